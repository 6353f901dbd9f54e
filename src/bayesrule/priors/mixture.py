"""A spike that is not quite a point, and a slab."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn

from bayesrule.priors.base import Prior
from bayesrule.priors.independent import Value, centres


@dataclass(frozen=True, eq=False)
class ScaleMixture(Prior):
    """p(w) = Π_j π N(w_j; mean_j, wide²) + (1 − π) N(w_j; mean_j, narrow²) (Blundell 2015).

    ``share``: π. ``wide``, ``narrow``: the two scales; the defaults lie in the middle of Blundell's grid. The means are
    zero, and one for the weights of normalisation layers. There is no closed form of a Gaussian's divergence from it.

    >>> module = nn.Linear(2, 1)
    >>> same = ScaleMixture(wide=1.0, narrow=1.0).resolve(module)
    >>> torch.allclose(same.log_prob({"weight": torch.ones(1, 2)}), torch.tensor(-1.0 - math.log(2 * math.pi)))
    True
    """

    name: ClassVar[str] = "scale-mixture"
    share: float = 0.5
    wide: float = math.exp(-1)
    narrow: float = math.exp(-7)
    mean: Mapping[str, Value] | None = None

    def __post_init__(self) -> None:
        if not 0 < self.share < 1:
            raise ValueError(f"share must lie between 0 and 1, not {self.share}")
        for name in ("wide", "narrow"):
            value = getattr(self, name)
            if not (math.isfinite(value) and value > 0):
                raise ValueError(f"the prior scale {name!r} must be positive and finite, not {value}")

    def resolve(self, module: nn.Module) -> ScaleMixture:
        """The means of the module's parameters."""
        return ScaleMixture(self.share, self.wide, self.narrow, centres(module))

    def log_prob(self, parameters: Mapping[str, Tensor]) -> Tensor:
        """Σ_j log(π N(w_j; mean_j, wide²) + (1 − π) N(w_j; mean_j, narrow²))."""
        if self.mean is None:
            raise ValueError("this prior is not bound to a module yet: call prior.resolve(module) first")
        terms = []
        for name, w in parameters.items():
            terms.append(self._log_density(w - self.mean[name]).sum())
        return torch.stack(terms).sum()

    def _log_density(self, w: Tensor) -> Tensor:
        wide = _log_weighted(self.share, self.wide, w)
        narrow = _log_weighted(1 - self.share, self.narrow, w)
        return torch.logaddexp(wide, narrow)  # of logs, since the densities themselves vanish far out


def _log_weighted(share: float, scale: float, w: Tensor) -> Tensor:
    """log share·N(w; 0, scale²)."""
    return math.log(share / (scale * math.sqrt(2 * math.pi))) - 0.5 * (w / scale).square()
