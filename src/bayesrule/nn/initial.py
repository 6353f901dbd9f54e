"""Where q starts: means and deviations by value or by rule."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from bayesrule.modules import Parameters, owners, parameters
from bayesrule.priors import RULES, fans


def deviations(given: float | str, module: nn.Module) -> Parameters:
    """The first deviation of each weight: a number for all, or a rule's scale.

    A rule gives a bias the scale of the weight beside it, and what has no fan at all one.

    >>> deviations("fan-in", nn.Linear(4, 1))
    {'weight': tensor([[0.5000, 0.5000, 0.5000, 0.5000]]), 'bias': tensor([0.5000])}
    """
    if isinstance(given, str):
        return {name: torch.full_like(w, _scale(given, layer, w)) for name, (w, layer) in _owned(module).items()}
    return {name: torch.full_like(w, given) for name, w in parameters(module).items()}


def means(rule: str, module: nn.Module) -> Parameters:
    """Weights drawn from N(0, scale²) under a rule; biases at zero; what has no fan stays as it is.

    >>> float(means("kaiming", nn.Linear(4, 1))["bias"])
    0.0
    """
    found = {}
    for name, (w, layer) in _owned(module).items():
        if w.ndim < 2 and _weight(layer) is not None:
            found[name] = torch.zeros_like(w)
        elif fans(layer, w) is None:
            found[name] = w.detach().clone()
        else:
            found[name] = torch.randn_like(w) * _scale(rule, layer, w)
    return found


def _owned(module: nn.Module) -> dict[str, tuple[Tensor, nn.Module]]:
    layers = owners(module)
    return {name: (w, layers[name]) for name, w in parameters(module).items()}


def _weight(layer: nn.Module) -> Tensor | None:
    """The first of a layer's own tensors that has a fan: what its biases stand beside."""
    return next((w for w in layer.parameters(recurse=False) if fans(layer, w) is not None), None)


def _scale(rule: str, layer: nn.Module, w: Tensor) -> float:
    beside = w if fans(layer, w) is not None else _weight(layer)
    pair = None if beside is None else fans(layer, beside)
    return math.sqrt(RULES[rule](*pair)) if pair else 1.0
