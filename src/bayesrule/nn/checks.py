"""What cannot be made variational, and settings that contradict each other."""

from __future__ import annotations

import math

from torch import nn

from bayesrule import modules, priors
from bayesrule.naming import unknown
from bayesrule.nn.estimators import ESTIMATORS

GRADIENTS = ("total", "path", "score")


def check_settings(estimator: str, gradient: str, initial_std: float | str, initial_mean: str | None) -> None:
    """Refuse settings of `bayesianize` that no module has; a method asks before it has one."""
    if estimator not in ESTIMATORS:
        raise unknown("estimator", estimator, ESTIMATORS)
    if gradient not in GRADIENTS:
        raise unknown("gradient", gradient, GRADIENTS)
    if gradient != "total" and estimator != "weight":
        raise ValueError(f'gradient={gradient!r} looks at the drawn weights: it needs estimator="weight"')
    if not isinstance(initial_mean, str | None):
        raise TypeError(f"initial_mean must be the name of a rule or None, not {initial_mean!r}")
    for rule in (initial_std, initial_mean):
        if isinstance(rule, str) and rule not in priors.RULES:
            raise unknown("initialisation rule", rule, priors.RULES)
    if not isinstance(initial_std, str) and not (1e-15 <= initial_std < math.inf):
        raise ValueError(f"initial_std must be a rule, or positive and finite, from 1e-15 on, not {initial_std}")


def check_model(model: nn.Module) -> None:
    """Refuse, by name, what cannot be drawn."""
    modules.check(model)
    for path, layer in model.named_modules():
        if getattr(layer, "sparse", False):
            raise ValueError(f"layer {path!r} has sparse gradients, q has dense ones: make it with sparse=False")
    trainable = modules.parameters(model)
    first, dtype = next((name, p.dtype) for name, p in trainable.items())
    for name, p in trainable.items():
        if p.dtype != dtype:
            raise TypeError(
                f"parameter {name!r} is {p.dtype} but {first!r} is {dtype}: q needs one dtype, such as model.float()"
            )
