"""Independent numbers: Σ = diag(v)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from bayesrule.structures.base import Structure


@dataclass(frozen=True, eq=False)
class Diagonal(Structure):
    """Σ = diag(variance): P numbers to store, P to draw.

    >>> Diagonal(torch.tensor([4.0, 1.0])).quadratic(torch.tensor([2.0, 1.0]))
    tensor(2.)
    """

    name: ClassVar[str] = "diagonal"
    variance: Tensor

    @property
    def size(self) -> int:
        """P."""
        return self.variance.numel()

    @property
    def diagonal(self) -> Tensor:
        """The variances themselves."""
        return self.variance

    @property
    def precision_diagonal(self) -> Tensor:
        """1 / variance_j."""
        return 1 / self.variance

    def sample(self, count: int, generator: torch.Generator | None = None) -> Tensor:
        """√v ∘ ε with ε ~ N(0, I)."""
        noise = torch.randn(count, self.size, generator=generator, dtype=self.variance.dtype)
        return noise.mul_(self.variance.sqrt())

    def quadratic(self, v: Tensor) -> Tensor:
        """Σ_j v_j² / variance_j."""
        return (v.square() / self.variance).sum()

    def logdet(self) -> Tensor:
        """Σ_j log variance_j."""
        return self.variance.log().sum()

    def multiply(self, v: Tensor) -> Tensor:
        """variance ∘ v: P operations a vector."""
        return v * self.variance

    def variance_along(self, j: Tensor) -> Tensor:
        """A Aᵀ with A = J ∘ √variance: K²P operations."""
        scaled = j * self.variance.sqrt()
        return scaled @ scaled.mT
