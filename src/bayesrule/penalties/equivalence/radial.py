"""The prior of a group penalty: a density of the length of each group."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn

from bayesrule.priors import GroupLaplace, Prior, group_laplace


@dataclass(frozen=True)
class Radial(Prior):
    """α(w) = exp(−factor·‖w‖)/κ_n for a group w of n weights; for a module it is `GroupLaplace` with scale 1/factor.

    ``axis``: as for `penalties.GroupLasso`, 0 for the weights that come into a neuron, 1 for those that leave one.

    >>> prior = Radial(3.0)
    >>> prior.variance(8)  # of one weight in a group of n: (n + 1)/factor²
    1.0
    >>> prior.log_density(torch.zeros(1)).exp()  # a group of one is Laplace's: factor/2
    tensor(1.5000)
    """

    name: ClassVar[str] = "radial"
    exists: ClassVar[bool] = True
    error: ClassVar[float] = 0.0
    factor: float = 1.0
    axis: int = 0

    def log_density(self, w: Tensor) -> Tensor:
        """log α of groups w [..., n]."""
        return -self.factor * torch.linalg.vector_norm(w, dim=-1) - group_laplace.log_normaliser(
            w.shape[-1], 1 / self.factor
        )

    def variance(self, size: int) -> float:
        """(n + 1)/factor²: of one weight in a group of n."""
        return (size + 1) / self.factor**2

    def sample(self, count: int, size: int, generator: torch.Generator | None = None) -> Tensor:
        """Groups [count, size]: a direction at random times a length that is Gamma(n, rate factor)."""
        return group_laplace.draw(torch.empty(count, size, dtype=torch.float64), (1, 1), generator) / self.factor

    def resolve(self, module: nn.Module) -> Prior:
        """`GroupLaplace` on the groups of the module; what is in none, such as biases, is normal."""
        return GroupLaplace(1 / self.factor, outgoing=self.axis == 1).resolve(module)

    def log_prob(self, parameters: Mapping[str, Tensor]) -> Tensor:
        """Only of a module, which says what the groups are."""
        raise ValueError("this prior is not bound to a module yet: call prior.resolve(module) first")
