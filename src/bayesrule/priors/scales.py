"""Prior scales by rule: the variance at which a wide layer keeps the size of its signal.

| rule | variance of a weight |
| --- | --- |
| `fan-in` | 1 / fan_in |
| `glorot`, also called `xavier` | 2 / (fan_in + fan_out) |
| `kaiming` | 2 / fan_in |

Biases, the weights of normalisation layers and embeddings have no fan: their scale is 1.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from torch import Tensor, nn
from torch.nn.modules.conv import _ConvTransposeNd

from bayesrule.modules import is_norm, owners, parameters

RULES: dict[str, Callable[[int, int], float]] = {
    "fan-in": lambda fan_in, fan_out: 1 / fan_in,
    "glorot": lambda fan_in, fan_out: 2 / (fan_in + fan_out),
    "xavier": lambda fan_in, fan_out: 2 / (fan_in + fan_out),
    "kaiming": lambda fan_in, fan_out: 2 / fan_in,
}


def fans(layer: nn.Module, weight: Tensor) -> tuple[int, int] | None:
    """How many numbers a weight's output sums over, and how many outputs an input goes to; None without such a sum.

    >>> fans(nn.Linear(3, 5), nn.Linear(3, 5).weight)
    (3, 5)
    """
    if weight.ndim < 2 or is_norm(layer) or isinstance(layer, nn.Embedding | nn.EmbeddingBag):
        return None
    field = math.prod(weight.shape[2:])
    groups = getattr(layer, "groups", 1)
    if isinstance(layer, _ConvTransposeNd):  # weight[in, out / groups, ...]
        return weight.shape[0] // groups * field, weight.shape[1] * field
    return weight.shape[1] * field, weight.shape[0] // groups * field


def scales(rule: str, module: nn.Module) -> dict[str, float]:
    """The prior standard deviation of each trainable parameter under a rule."""
    layers, found = owners(module), {}
    for name, weight in parameters(module).items():
        pair = fans(layers[name], weight)
        found[name] = math.sqrt(RULES[rule](*pair)) if pair else 1.0
    return found
