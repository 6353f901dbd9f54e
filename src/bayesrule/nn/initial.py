"""Where q starts: means and deviations by value or by rule."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from bayesrule.modules import Parameters, owners, parameters
from bayesrule.priors import RULES, Prior, fans


def deviations(given: float | str, module: nn.Module) -> Parameters:
    """The first deviation of each weight: a number for all, or a rule's scale.

    A rule gives a bias the scale of the weight beside it, and what has no fan at all one.

    >>> deviations("fan-in", nn.Linear(4, 1))
    {'weight': tensor([[0.5000, 0.5000, 0.5000, 0.5000]]), 'bias': tensor([0.5000])}
    """
    found = {}
    for name, (w, layer) in _owned(module).items():
        std = _scale(given, layer, w) if isinstance(given, str) else given
        found[name] = torch.full_like(w, std)
    return found


def no_wider(stds: Parameters, prior: Prior) -> Parameters:
    """The deviations, each at most that of a Gaussian prior.

    Data narrow a Gaussian prior and do not widen it. Under the posterior of the past a weight that is known well would
    else start as if it were not, and how well would have to be learnt again from noise.

    >>> from bayesrule.priors import Gaussian
    >>> layer = nn.Linear(1, 1)
    >>> no_wider({"bias": torch.tensor([0.02])}, Gaussian(0.01).resolve(layer))
    {'bias': tensor([0.0100])}
    """
    try:
        _, precisions = prior.mean_field(stds)
    except ValueError:  # no Gaussian
        return stds
    return {name: torch.minimum(std, precisions[name].rsqrt().to(std)) for name, std in stds.items()}


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


def fan_ins(module: nn.Module) -> dict[str, int | None]:
    """How many numbers each weight's output sums over; for a bias as for the weight beside it; None without such a sum.

    >>> fan_ins(nn.Sequential(nn.Linear(4, 1), nn.LayerNorm(1)))
    {'0.weight': 4, '0.bias': 4, '1.weight': None, '1.bias': None}
    """
    found = {}
    for name, (w, layer) in _owned(module).items():
        pair = _fans(layer, w)
        found[name] = pair[0] if pair else None
    return found


def _owned(module: nn.Module) -> dict[str, tuple[Tensor, nn.Module]]:
    layers = owners(module)
    return {name: (w, layers[name]) for name, w in parameters(module).items()}


def _weight(layer: nn.Module) -> Tensor | None:
    """The first of a layer's own tensors that has a fan: what its biases stand beside."""
    for w in layer.parameters(recurse=False):
        if fans(layer, w) is not None:
            return w
    return None


def _fans(layer: nn.Module, w: Tensor) -> tuple[int, int] | None:
    """Of a weight, or of that which a bias stands beside."""
    pair, weight = fans(layer, w), _weight(layer)
    if pair is None and weight is not None:
        return fans(layer, weight)
    return pair


def _scale(rule: str, layer: nn.Module, w: Tensor) -> float:
    pair = _fans(layer, w)
    return math.sqrt(RULES[rule](*pair)) if pair else 1.0
