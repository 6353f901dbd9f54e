"""Independent normal weights, with one scale, a scale per layer or parameter, or a scale by rule."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from bayesrule.modules import Parameters, is_norm, owners, parameters
from bayesrule.naming import unknown
from bayesrule.priors.base import Prior
from bayesrule.priors.scales import RULES, scales

Value = float | Tensor


@dataclass(frozen=True, eq=False)
class Gaussian(Prior):
    """p(w) = Π_j N(w_j; mean_j, scale_j²).

    ``scale``: one number for all weights; a rule (``"fan-in"``, ``"glorot"``, ``"kaiming"``); or a mapping from the
    name of a parameter, or of a layer for all that is in it, to a number or a tensor (the longest name wins; ``""``
    is the rest). ``mean``: a number, or a mapping of the same kind; None is zero, and one for the weights of
    normalisation layers, which scale by one when they do nothing.

    >>> prior = Gaussian(scale="fan-in").resolve(nn.Linear(4, 2))
    >>> prior.scale
    {'weight': 0.5, 'bias': 1.0}
    """

    name: ClassVar[str] = "gaussian"
    scale: float | str | Mapping[str, Value] = 1.0
    mean: float | Mapping[str, Value] | None = None

    def __post_init__(self) -> None:
        if isinstance(self.scale, str):
            if self.scale not in RULES:
                raise unknown("scale rule", self.scale, RULES)
            return
        for name, value in self.scale.items() if isinstance(self.scale, Mapping) else [("", self.scale)]:
            tensor = torch.as_tensor(value)
            if not bool(((tensor > 0) & tensor.isfinite()).all()):
                where = f" of {name!r}" if name else ""
                raise ValueError(f"the prior scale{where} must be positive and finite, not {value}")

    def resolve(self, module: nn.Module) -> Gaussian:
        """One scale and one mean for each parameter of the module, by name."""
        scale = scales(self.scale, module) if isinstance(self.scale, str) else _spread(self.scale, module, "scale")
        if self.mean is None:
            mean: Mapping[str, Value] = {
                name: float(is_norm(layer) and name.rpartition(".")[2] == "weight")
                for name, layer in owners(module).items()
            }
        else:
            mean = _spread(self.mean, module, "mean")
        return Gaussian(scale, mean)

    def log_prob(self, parameters: Mapping[str, Tensor]) -> Tensor:
        """Σ_j −½((w_j − mean_j)/scale_j)² − log scale_j − ½ log 2π."""
        if not isinstance(self.scale, Mapping) or not isinstance(self.mean, Mapping):
            raise ValueError("this prior is not bound to a module yet: call prior.resolve(module) first")
        names = list(parameters)
        scales, means = [self.scale[name] for name in names], [self.mean[name] for name in names]
        return _LogDensity.apply(scales, means, *parameters.values())  # type: ignore[no-untyped-call]

    def sample(self, module: nn.Module, generator: torch.Generator | None = None) -> Parameters:
        """One draw of all the module's parameters."""
        prior = self.resolve(module)
        assert isinstance(prior.scale, Mapping)
        assert isinstance(prior.mean, Mapping)
        return {
            name: prior.mean[name] + prior.scale[name] * torch.randn(w.shape, generator=generator, dtype=w.dtype)
            for name, w in parameters(module).items()
        }


class _LogDensity(torch.autograd.Function):
    """Σ log N(w; mean, scale²) and its gradient (mean − w)/scale² as one node, over all parameters at a time."""

    @staticmethod
    def forward(ctx: Any, scales: list[Value], means: list[Value], *weights: Tensor) -> Tensor:
        """The value; the gradient is kept for the way back."""
        total = weights[0].new_zeros(())
        pulls = []
        for w, scale, mean in zip(weights, scales, means, strict=True):
            centred = w if isinstance(mean, float) and mean == 0.0 else w - mean
            pulls.append(centred * -(scale**-2))
            log_scale = math.log(scale) if isinstance(scale, float) else float(scale.log().mean())
            constant = w.numel() * (log_scale + 0.5 * math.log(2 * math.pi))
            total += 0.5 * torch.dot(centred.flatten(), pulls[-1].flatten()) - constant
        ctx.save_for_backward(*pulls)
        return total

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Any, ...]:
        """The gradient times what comes from above."""
        return None, None, *torch._foreach_mul(ctx.saved_tensors, grads[0])


def _spread(given: float | Mapping[str, Value], module: nn.Module, what: str) -> dict[str, Value]:
    """One value for each parameter, from a number or from the longest matching name in a mapping."""
    named = dict(given) if isinstance(given, Mapping) else {"": given}
    found: dict[str, Value] = {}
    used = set()
    for name, w in parameters(module).items():
        matches = [key for key in named if key == "" or name == key or name.startswith(key + ".")]
        if not matches:
            raise ValueError(f"the prior has no {what} for parameter {name!r}: add it, its layer, or '' for the rest")
        key = max(matches, key=len)
        value = named[key]
        if isinstance(value, Tensor) and value.shape not in (w.shape, ()):
            raise ValueError(
                f"the prior {what} {key!r} has shape {tuple(value.shape)}, parameter {name!r} {tuple(w.shape)}"
            )
        found[name] = value.to(w.dtype) if isinstance(value, Tensor) else float(value)
        used.add(key)
    for key in named:
        if key and key not in used:
            raise unknown(f"name in the prior's {what}", key, list(parameters(module)))
    return found
