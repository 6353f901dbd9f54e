"""What the weight decay of an optimiser believes: a normal prior, layer by layer."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from numbers import Real
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from bayesrule.modules import parameters
from bayesrule.naming import unknown
from bayesrule.penalties.calibration.calibrated import examples
from bayesrule.priors import Flat, Gaussian, Prior, Product, scales

REDUCTIONS = ("mean", "sum")
DECOUPLED = {"AdamW", "Adafactor", "Muon", "NAdamW", "SGDW"}  # optimisers that shrink weights beside the gradient
FLAGS = ("decoupled_weight_decay", "weight_decouple")  # options by which others do
FAR = 10.0  # a ratio of scales beyond which a prior is far from the start
NEAR = 3.0  # and within which it is near
HEADER = ("parameter", "decay", "prior std", "fan-in std", "kaiming std", "std now", "ratio", "matching decay", "")


@dataclass(frozen=True)
class DecayOfParameter:
    """What weight decay says of one parameter.

    decay: of the parameter's group. scale: the standard deviation of the prior it stands for, infinite without decay.
    fan_in, kaiming: the standard deviations of these rules. found: the root of the mean square of the weights as they
    are. matching: the weight decay whose prior has the scale ``fan_in``.
    """

    parameter: str
    decay: float
    scale: float
    fan_in: float
    kaiming: float
    found: float
    matching: float

    @property
    def ratio(self) -> float:
        """The prior's scale over that of an initialisation by fan-in."""
        return self.scale / self.fan_in

    @property
    def is_far(self) -> bool:
        """Whether there is decay, and the two scales are more than ten times apart."""
        return math.isfinite(self.scale) and not 1 / FAR <= self.ratio <= FAR

    @property
    def verdict(self) -> str:
        """The ratio in words.

        >>> DecayOfParameter("weight", 1e-4, 5.0, 0.1, 0.14, 0.1, 0.25).verdict
        'far wider than the start: weights 50 times as large cost next to nothing'
        """
        if math.isinf(self.scale):
            return "no decay: every size is as likely as any other"
        if self.ratio > FAR:
            return f"far wider than the start: weights {self.ratio:.3g} times as large cost next to nothing"
        if self.ratio < 1 / FAR:
            return f"far narrower than the start: held to 1/{1 / self.ratio:.3g} of it unless the data insist"
        if 1 / NEAR <= self.ratio <= NEAR:
            return "near the start"
        return "wider than the start" if self.ratio > 1 else "narrower than the start"


@dataclass(frozen=True, eq=False)
class Explanation:
    """The prior that a weight decay stands for. ``print`` it for the table.

    rows: one for each trainable parameter. notes: what to mind when reading them.
    """

    rows: tuple[DecayOfParameter, ...]
    notes: tuple[str, ...]

    @property
    def prior(self) -> Prior:
        """The same belief as an object: centred normals, flat where nothing decays."""
        decayed = {row.parameter: row.scale for row in self.rows if math.isfinite(row.scale)}
        rest = [row.parameter for row in self.rows if row.parameter not in decayed]
        normal = Gaussian(decayed, dict.fromkeys(decayed, 0.0))
        if not decayed or not rest:
            return normal if decayed else Flat()
        return Product.of((normal, list(decayed)), (Flat(), rest))

    @property
    def far(self) -> tuple[DecayOfParameter, ...]:
        """The rows whose prior is far from the initialisation."""
        return tuple(row for row in self.rows if row.is_far)

    def __str__(self) -> str:
        cells = [HEADER, *(_cells(row) for row in self.rows)]
        widths = [max(len(line[k]) for line in cells) for k in range(len(HEADER) - 1)]
        lines = [
            "  ".join([line[0].ljust(widths[0]), *map(str.rjust, line[1:-1], widths[1:]), line[-1]]).rstrip()
            for line in cells
        ]
        return "\n".join([*lines, *self.notes])


def _cells(row: DecayOfParameter) -> tuple[str, ...]:
    numbers = (row.decay, row.scale, row.fan_in, row.kaiming, row.found, row.ratio, row.matching)
    return row.parameter, *(f"{number:.3g}" for number in numbers), row.verdict


def explain(
    decay: Optimizer | float, model: nn.Module, loss_reduction: str = "mean", n: int | None = None
) -> Explanation:
    """What prior a weight decay stands for, layer by layer, and how far that is from where the weights start.

    An optimiser that adds wd·w to the gradient of a loss minimises loss + ½wd‖w‖². Where the loss is the mean of
    −log p(y|f) over n examples, n times that is −log of likelihood × prior with the prior N(0, 1/(n·wd)). Where it is
    the sum over all examples, the prior is N(0, 1/wd).

    Args:
        decay: an optimiser, whose groups are told apart, or a weight decay that all parameters have.
        model: the module that is trained.
        loss_reduction: ``"mean"`` or ``"sum"`` over examples.
        n: how many examples the training set has; a mean needs it.

    >>> model = nn.Linear(100, 1, bias=False)
    >>> (row,) = explain(1e-4, model, n=10_000).rows
    >>> row.scale, row.fan_in, round(row.ratio, 6), row.verdict
    (1.0, 0.1, 10.0, 'wider than the start')
    """
    if not isinstance(model, nn.Module):
        raise TypeError(f"model must be a torch.nn.Module, not {type(model).__name__}")
    if loss_reduction not in REDUCTIONS:
        raise unknown("loss_reduction", loss_reduction, REDUCTIONS)
    if loss_reduction == "mean" and n is None:
        raise ValueError("n must be the number of training examples where loss_reduction is 'mean': pass n=len(data)")
    named = parameters(model)
    if not named:
        raise ValueError(f"the model ({type(model).__name__}) has no trainable weights: there is nothing to explain")
    count = examples(n) if n is not None else 1
    factor = count if loss_reduction == "mean" else 1
    decays = _decays(decay, named)
    sizes = _sizes(decay, named) if isinstance(decay, Optimizer) else {}
    fan_in, kaiming = scales.scales("fan-in", model), scales.scales("kaiming", model)
    rows = []
    for name, w in named.items():
        precision = factor * sizes.get(name, 1.0)
        scale = math.inf
        if decays[name] > 0:
            scale = (precision * decays[name]) ** -0.5
        root = float(w.detach().double().square().mean().sqrt())
        matching = 1 / (precision * fan_in[name] ** 2)
        rows.append(DecayOfParameter(name, decays[name], scale, fan_in[name], kaiming[name], root, matching))
    return Explanation(tuple(rows), tuple(_notes(decay, named, loss_reduction, count, sizes)))


def _decays(decay: Optimizer | float, named: Mapping[str, Tensor]) -> dict[str, float]:
    """The weight decay of each parameter; zero for those that the optimiser does not have."""
    if not isinstance(decay, Optimizer):
        if isinstance(decay, bool) or not isinstance(decay, Real):
            raise TypeError(f"decay must be a torch optimiser or a weight decay, not {type(decay).__name__}")
        return dict.fromkeys(named, _checked(float(decay)))
    groups = _groups(decay)
    if not any(id(w) in groups for w in named.values()):
        raise ValueError("the optimiser has no parameter of the model: pass the optimiser that trains it")
    found = dict.fromkeys(named, 0.0)
    for name, w in named.items():
        if id(w) in groups:
            found[name] = _checked(float(groups[id(w)].get("weight_decay", 0.0)))
    return found


def _checked(decay: float) -> float:
    if not (math.isfinite(decay) and decay >= 0):
        raise ValueError(f"weight decay must be a finite number of at least 0, not {decay}: below it, no prior exists")
    return decay


def _groups(optimizer: Optimizer) -> dict[int, dict[str, Any]]:
    found = {}
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            found[id(parameter)] = group  # by identity: tensors compare element by element
    return found


def _is_decoupled(optimizer: Optimizer, group: Mapping[str, Any]) -> bool:
    by_name = any(kind.__name__ in DECOUPLED for kind in type(optimizer).__mro__)
    return by_name or any(bool(group.get(flag)) for flag in FLAGS)


def _sizes(optimizer: Optimizer, named: Mapping[str, Tensor]) -> dict[str, float]:
    """The mean of √v̂ + ε of each parameter that decays beside its gradient, as far as the optimiser has seen any.

    w stays where it is if wd·w = −m/(√v̂ + ε): as under a penalty ½wd(√v̂ + ε)w².
    """
    groups, found = _groups(optimizer), dict[str, float]()
    for name, w in named.items():
        group, state = groups.get(id(w), {}), optimizer.state.get(w, {})
        if _is_decoupled(optimizer, group) and "exp_avg_sq" in state and "betas" in group:
            seen = 1 - group["betas"][1] ** float(torch.as_tensor(state["step"]))
            size = float((state["exp_avg_sq"] / seen).sqrt().double().mean()) + float(group.get("eps", 0.0))
            if size > 0:
                found[name] = size
    return found


def _notes(
    decay: Optimizer | float, named: Mapping[str, Tensor], reduction: str, n: int, sizes: Mapping[str, float]
) -> list[str]:
    notes = [_reading(reduction, n)]
    if not isinstance(decay, Optimizer):
        return notes
    groups, title = _groups(decay), type(decay).__name__
    own = [groups[id(w)] for w in named.values() if id(w) in groups]
    if any(_is_decoupled(decay, group) and group.get("weight_decay", 0.0) for group in own):
        notes.append(_decoupled(title, bool(sizes)))
    elif not type(decay).__module__.startswith("torch.optim"):
        notes.append(f"{title} is not an optimiser of torch: its weight decay is read as an addition to the gradient.")
    missing = [name for name, w in named.items() if id(w) not in groups]
    if missing:
        notes.append(f"{title} does not train {', '.join(missing)}: no decay there.")
    return notes


def _reading(reduction: str, n: int) -> str:
    if reduction == "mean":
        return f"Weight decay wd on a mean over n = {n} examples is the prior N(0, 1/(n·wd))."
    return (
        "Weight decay wd on a sum over all examples is the prior N(0, 1/wd). If each step sums over a batch of B of "
        "the n examples, it is N(0, B/(n·wd)): divide the variances by n/B."
    )


def _decoupled(title: str, seen: bool) -> str:
    start = f"{title} shrinks weights beside the gradient: no penalty of the loss does the same. "
    if seen:
        return start + (
            "Nearest to it is a penalty ½wd·√v̂·w², with √v̂ the size of gradients that it has seen; "
            "that is what the table shows, with the mean of √v̂ for each parameter."
        )
    return start + (
        "The table reads it as if gradients had size one, which they do not have: "
        "explain it again after some steps, when it knows their size."
    )
