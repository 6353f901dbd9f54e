"""Independent weights, with one scale, a scale per layer or parameter, or a scale by rule."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, TypeAlias, TypeVar

import torch
from torch import Tensor, nn

from bayesrule.modules import is_norm, owners, parameters
from bayesrule.naming import unknown
from bayesrule.priors.base import Prior
from bayesrule.priors.scales import RULES, scales

Value: TypeAlias = float | Tensor
Self = TypeVar("Self", bound="Independent")


@dataclass(frozen=True, eq=False)
class Independent(Prior):
    """p(w) = Π_j p((w_j − mean_j)/scale_j)/scale_j: what a location and a scale for each weight have in common.

    ``scale``: one number for all weights; a rule (``"fan-in"``, ``"glorot"``, ``"kaiming"``) for their standard
    deviation; or a mapping from the name of a parameter, or of a layer for all that is in it, to a number or a tensor
    (the longest name wins; ``""`` is the rest). ``mean``: a number, or a mapping of the same kind; None is zero, and
    one for the weights of normalisation layers, which scale by one when they do nothing.
    """

    deviation: ClassVar[float] = 1.0  # the standard deviation at scale 1
    widening: ClassVar[float]  # the power of T by which the scale of p^{1/T} is wider than that of p
    scale: float | str | Mapping[str, Value] = 1.0
    mean: float | Mapping[str, Value] | None = None

    def __post_init__(self) -> None:
        check_scale(self.scale)

    def resolve(self: Self, module: nn.Module) -> Self:
        """One scale and one mean for each parameter of the module, by name."""
        if isinstance(self.scale, str):
            scale: Mapping[str, Value] = {k: s / self.deviation for k, s in scales(self.scale, module).items()}
        else:
            scale = spread(self.scale, module, "scale")
        mean = centres(module) if self.mean is None else spread(self.mean, module, "mean")
        return type(self)(scale, mean)

    def tempered(self: Self, temperature: float) -> Self:
        """p(w)^{1/T}: the same with scales that are T^widening as wide."""
        if not isinstance(self.scale, Mapping):
            raise ValueError("this prior is not bound to a module yet: call prior.resolve(module) first")
        factor = temperature**self.widening
        return type(self)({name: scale * factor for name, scale in self.scale.items()}, self.mean)

    def bound(self, names: Mapping[str, Tensor]) -> tuple[list[Value], list[Value]]:
        """The scales and means of the named parameters, once the prior is resolved."""
        if not isinstance(self.scale, Mapping) or not isinstance(self.mean, Mapping):
            raise ValueError("this prior is not bound to a module yet: call prior.resolve(module) first")
        return [self.scale[name] for name in names], [self.mean[name] for name in names]


def check_scale(scale: float | str | Mapping[str, Value] | Mapping[str, float]) -> None:
    """Refuse a rule that does not exist, and scales that are not positive and finite."""
    if isinstance(scale, str):
        if scale not in RULES:
            raise unknown("scale rule", scale, RULES)
        return
    named = scale if isinstance(scale, Mapping) else {"": scale}
    for name, value in named.items():
        tensor = torch.as_tensor(value)
        if not bool(((tensor > 0) & tensor.isfinite()).all()):
            where = f" of {name!r}" if name else ""
            raise ValueError(f"the prior scale{where} must be positive and finite, not {value}")


def centres(module: nn.Module) -> dict[str, Value]:
    """Where weights lie when they do nothing: at one for those of normalisation layers, at zero otherwise."""
    found: dict[str, Value] = {}
    for name, layer in owners(module).items():
        multiplies = is_norm(layer) and name.rpartition(".")[2] == "weight"
        found[name] = 1.0 if multiplies else 0.0
    return found


def spread(given: float | Mapping[str, Value], module: nn.Module, what: str) -> dict[str, Value]:
    """One value for each parameter, from a number or from the longest matching name in a mapping."""
    named = dict(given) if isinstance(given, Mapping) else {"": given}
    found: dict[str, Value] = {}
    used = set()  # a name that no parameter matches is a slip of the pen, and an error at the end
    for name, w in parameters(module).items():
        # a dot after the name: "fc1" is not for "fc10.weight"
        matches = [key for key in named if key == "" or name == key or name.startswith(key + ".")]
        if not matches:
            raise ValueError(f"the prior has no {what} for parameter {name!r}: add it, its layer, or '' for the rest")
        key = max(matches, key=len)
        value = named[key]
        if isinstance(value, Tensor) and value.shape not in (w.shape, ()):
            raise ValueError(
                f"the prior {what} {key!r} has shape {tuple(value.shape)}, parameter {name!r} {tuple(w.shape)}"
            )
        found[name] = value.to(w) if isinstance(value, Tensor) else float(value)
        used.add(key)
    for key in named:
        if key and key not in used:
            raise unknown(f"name in the prior's {what}", key, list(parameters(module)))
    return found
