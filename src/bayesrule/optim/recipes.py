"""Optimisers by name.

A factory takes parameters or groups of them, a learning rate, and its own options by keyword, with the defaults of the
paper. Weight decay is not among them: the prior is in the loss already.
"""

from __future__ import annotations

import importlib
import inspect
import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.optim import Optimizer

from bayesrule.naming import Named, unknown
from bayesrule.optim.yellowfin import YellowFin

Betas = tuple[float, float]
Factory = Callable[..., Optimizer]


def sgd(params: list[Any], lr: float, *, momentum: float = 0.9, nesterov: bool = False) -> Optimizer:
    """v ← μv + g, w ← w − lr·v (Polyak 1964); with ``nesterov`` w ← w − lr·(g + μv)."""
    return torch.optim.SGD(params, lr, momentum=momentum, nesterov=nesterov, fused=_fused(params))


def rmsprop(
    params: list[Any], lr: float, *, alpha: float = 0.99, eps: float = 1e-8, momentum: float = 0.0
) -> Optimizer:
    """v ← αv + (1 − α)g², w ← w − lr·g/(√v + ε) (Tieleman and Hinton 2012)."""
    return torch.optim.RMSprop(params, lr, alpha=alpha, eps=eps, momentum=momentum)


def adagrad(params: list[Any], lr: float, *, initial_accumulator_value: float = 0.0, eps: float = 1e-10) -> Optimizer:
    """v ← v + g², w ← w − lr·g/(√v + ε) (Duchi, Hazan and Singer 2011)."""
    start = initial_accumulator_value
    return torch.optim.Adagrad(params, lr, initial_accumulator_value=start, eps=eps, fused=_fused(params))


def adam(params: list[Any], lr: float, *, betas: Betas = (0.9, 0.999), eps: float = 1e-8) -> Optimizer:
    """m ← β₁m + (1 − β₁)g, v ← β₂v + (1 − β₂)g², w ← w − lr·m̂/(√v̂ + ε) (Kingma and Ba 2015).

    m̂ = m/(1 − β₁ᵗ) and v̂ = v/(1 − β₂ᵗ).
    """
    return torch.optim.Adam(params, lr, betas=betas, eps=eps, fused=_fused(params))


def amsgrad(params: list[Any], lr: float, *, betas: Betas = (0.9, 0.999), eps: float = 1e-8) -> Optimizer:
    """Adam with the largest v so far in the place of v (Reddi, Kale and Kumar 2018)."""
    return torch.optim.Adam(params, lr, betas=betas, eps=eps, amsgrad=True, fused=_fused(params))


def radam(params: list[Any], lr: float, *, betas: Betas = (0.9, 0.999), eps: float = 1e-8) -> Optimizer:
    """Adam with its steps times r_t, which makes up for how little v̂ rests on at first (Liu et al. 2020).

    ρ_t = ρ∞ − 2tβ₂ᵗ/(1 − β₂ᵗ), ρ∞ = 2/(1 − β₂) − 1 and r_t² = (ρ_t − 4)(ρ_t − 2)ρ∞/((ρ∞ − 4)(ρ∞ − 2)ρ_t) where
    ρ_t > 5; before that w ← w − lr·m̂. ε is added to √v, before the correction of bias.
    """
    return torch.optim.RAdam(params, lr, betas=betas, eps=eps)


def adabound(
    params: list[Any],
    lr: float,
    *,
    final_lr: float = 0.1,
    gamma: float = 1e-3,
    betas: Betas = (0.9, 0.999),
    eps: float = 1e-8,
) -> Optimizer:
    """w ← w − η·m with η = clip(lr·√(1 − β₂ᵗ)/(1 − β₁ᵗ)/(√v + ε), l_t, u_t) (Luo et al. 2019).

    l_t = f·(1 − 1/(γt + 1)) and u_t = f·(1 + 1/(γt)): from Adam to SGD at the rate f, which is ``final_lr`` times the
    schedule's factor on lr. The package adds 1e-15 under the root; it counts for gradients below 1e-6.
    """
    return _bound(params, lr, final_lr=final_lr, gamma=gamma, betas=betas, eps=eps, ams_bound=False)


def amsbound(
    params: list[Any],
    lr: float,
    *,
    final_lr: float = 0.1,
    gamma: float = 1e-3,
    betas: Betas = (0.9, 0.999),
    eps: float = 1e-8,
) -> Optimizer:
    """AdaBound with the largest v so far in the place of v (Luo et al. 2019)."""
    return _bound(params, lr, final_lr=final_lr, gamma=gamma, betas=betas, eps=eps, ams_bound=True)


def yellowfin(
    params: list[Any], lr: float, *, momentum: float = 0.0, beta: float = 0.999, window: int = 20
) -> Optimizer:
    """Momentum SGD that tunes itself; ``lr`` is a factor, and 1 trusts the tuning (see `YellowFin`)."""
    return YellowFin(params, lr, momentum, beta, window)


AVAILABLE: dict[str, Factory] = {
    "sgd": sgd,
    "rmsprop": rmsprop,
    "adagrad": adagrad,
    "adam": adam,
    "amsgrad": amsgrad,
    "radam": radam,
    "adabound": adabound,
    "amsbound": amsbound,
    "yellowfin": yellowfin,
}

RATES = {"sgd": 0.1, "adagrad": 1e-1, "rmsprop": 1e-3, "yellowfin": 1.0}  # learning rates to start from
RATE = 1e-2  # that of all others


@dataclass(frozen=True)
class Recipe(Named):
    """An optimiser before it has parameters.

    ``optimizer``: a name of `AVAILABLE`. ``options``: its options beside the learning rate.

    >>> w = torch.zeros(3, requires_grad=True)
    >>> optimizer = Recipe("adam", {"betas": (0.9, 0.99)}).build([w], lr=1e-2)
    >>> optimizer.param_groups[0]["betas"]
    (0.9, 0.99)
    >>> Recipe("adam", {"beta": 0.9})
    Traceback (most recent call last):
    ValueError: unknown option of adam 'beta': did you mean 'betas'? Valid: betas, eps
    """

    name: ClassVar[str] = "recipe"
    optimizer: str = "adam"
    options: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.optimizer not in AVAILABLE:
            raise unknown("optimizer", self.optimizer, AVAILABLE)
        for option in self.options:
            _check(self.optimizer, option)
        object.__setattr__(self, "options", dict(self.options))

    @property
    def rate(self) -> float:
        """A learning rate to start from."""
        return RATES.get(self.optimizer, RATE)

    def __hash__(self) -> int:
        return hash(self.optimizer)

    def build(self, params_or_groups: Iterable[Any], lr: float) -> Optimizer:
        """The optimiser of these parameters, or groups of parameters, at a learning rate."""
        if not (math.isfinite(lr) and lr > 0):
            raise ValueError(f"lr must be positive and finite, not {lr}")
        if isinstance(params_or_groups, Tensor):
            raise TypeError("parameters must be a list of tensors or of groups, not a tensor: write [w] for one alone")
        try:
            return AVAILABLE[self.optimizer](_listed(params_or_groups), lr, **self.options)
        except (TypeError, ValueError) as error:
            given = ", ".join(f"{option}={value!r}" for option, value in self.options.items()) or "no options"
            raise ValueError(f"optimizer {self.optimizer!r} with {given} cannot be built: {error}") from error


def choose(given: str | Recipe) -> Recipe:
    """The recipe that was asked for: itself, or the named optimiser with its defaults.

    >>> choose("radam")
    Recipe(optimizer='radam', options={})
    """
    if isinstance(given, str):
        return Recipe(given)
    if not isinstance(given, Recipe):
        raise TypeError(f"optimizer must be a name or a Recipe, not {type(given).__name__}: {given!r}")
    return given


def _check(optimizer: str, option: str) -> None:
    if option == "weight_decay":
        raise ValueError(f"weight_decay is not an option of {optimizer}: the prior is in the loss; give it a scale")
    _, _, *allowed = inspect.signature(AVAILABLE[optimizer]).parameters
    if option not in allowed:
        raise unknown(f"option of {optimizer}", option, allowed)


def _bound(params: list[Any], lr: float, **options: Any) -> Optimizer:
    try:
        package = importlib.import_module("pytorch_optimizer")
    except ImportError as error:
        raise ImportError(
            'adabound and amsbound are in the package pytorch_optimizer: pip install "bayesrule[optim]"'
        ) from error
    return package.AdaBound(params, lr, **options)


def _listed(params: Iterable[Any]) -> list[Any]:
    """Parameters, or groups of them, in lists, so that they can be looked at before they are handed on."""
    return [_listed_group(item) if isinstance(item, dict) else item for item in params]


def _listed_group(group: dict[str, Any]) -> dict[str, Any]:
    params = group["params"]
    return {**group, "params": [params] if isinstance(params, Tensor) else list(params)}


def _fused(params: list[Any]) -> bool | None:
    """Whether torch's fused kernels do what they should; None leaves the choice to torch.

    On a CPU they walk through memory in order, whatever the strides, and that of SGD in 16 bits leaves parameters where
    they are (torch 2.13). Other devices do not have all of them.
    """
    return all(map(_plain, _tensors(params))) or None


def _plain(p: Tensor) -> bool:
    return p.device.type == "cpu" and p.is_contiguous() and p.dtype in (torch.float32, torch.float64)


def _tensors(params: Iterable[Any]) -> Iterator[Tensor]:
    """Every tensor, whether it comes alone, with its name, or in a group."""
    for item in params:
        if isinstance(item, dict):
            yield from _tensors(item["params"])
        else:
            yield item[1] if isinstance(item, tuple) else item
