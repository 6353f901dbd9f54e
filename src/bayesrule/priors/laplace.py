"""Independent weights with an L1 penalty for a log-density."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from bayesrule.modules import unflatten
from bayesrule.priors.independent import Independent


@dataclass(frozen=True, eq=False)
class Laplace(Independent):
    """p(w) = Π_j exp(−|w_j − mean_j|/scale_j)/(2 scale_j): most weights near zero, some far away.

    ``scale`` and ``mean`` as for `Gaussian`. A rule sets the standard deviation, which is √2·scale.

    >>> from torch import nn
    >>> Laplace(scale="fan-in").resolve(nn.Linear(8, 2)).scale["weight"]
    0.25
    """

    name: ClassVar[str] = "laplace"
    widening: ClassVar[float] = 1.0  # exp(−|w|/s)^{1/T} has the scale T·s
    deviation: ClassVar[float] = math.sqrt(2)

    def log_prob(self, parameters: Mapping[str, Tensor]) -> Tensor:
        """Σ_j −|w_j − mean_j|/scale_j − log 2 scale_j."""
        terms = []
        for w, scale, mean in zip(parameters.values(), *self.bound(parameters), strict=True):
            terms.append(-((w - mean).abs() / scale).sum() - _log_twice(scale, w).sum())
        return torch.stack(terms).sum()

    def divergence(self, mean: Tensor, std: Tensor, like: Mapping[str, Tensor]) -> Tensor:
        """KL(N(m, s²)‖p) = Σ_j E|w_j − mean_j|/scale_j + log 2 scale_j − ½ log 2πe s_j².

        With d = m − mean, E|w − mean| = s √(2/π) exp(−d²/2s²) + d erf(d/√2 s).
        """
        means, stds = unflatten(mean, like), unflatten(std, like)
        total = -std.log().sum() - 0.5 * std.numel() * math.log(2 * math.pi * math.e)
        for m, s, scale, centre in zip(means.values(), stds.values(), *self.bound(like), strict=True):
            ratio = (m - centre) / s
            away = s * (math.sqrt(2 / math.pi) * (-0.5 * ratio.square()).exp() + ratio * (ratio / math.sqrt(2)).erf())
            total = total + (away / scale + _log_twice(scale, m)).sum()
        return total


def _log_twice(scale: float | Tensor, like: Tensor) -> Tensor:
    return torch.as_tensor(scale, dtype=like.dtype, device=like.device).mul(2).log().expand(like.shape)
