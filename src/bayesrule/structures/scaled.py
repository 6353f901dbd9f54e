"""Another structure in other units: Σ = diag(s) Σ' diag(s)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from bayesrule.structures.base import Structure


@dataclass(frozen=True, eq=False)
class Scaled(Structure):
    """Σ = diag(scale) Σ' diag(scale) of ``part`` Σ': the covariance of scale ∘ u for u ~ N(0, Σ').

    Such as weights in units of their prior deviations. P operations more than those of the part.

    >>> import torch
    >>> from bayesrule.structures import Diagonal
    >>> Scaled(Diagonal(torch.ones(2)), torch.tensor([3.0, 1.0])).diagonal
    tensor([9., 1.])
    """

    name: ClassVar[str] = "scaled"
    part: Structure
    scale: Tensor

    def __post_init__(self) -> None:
        if list(self.scale.shape) != [self.part.size]:
            raise ValueError(f"scale must have the shape [{self.part.size}] of the part, not {list(self.scale.shape)}")
        if not bool(((self.scale > 0) & self.scale.isfinite()).all()):
            raise ValueError(f"scale must be positive and finite, not {float(self.scale.min()):.3g}")

    @property
    def size(self) -> int:
        """P."""
        return self.part.size

    @property
    def diagonal(self) -> Tensor:
        """scale_j² Σ'_jj."""
        return self.scale.square() * self.part.diagonal

    @property
    def precision_diagonal(self) -> Tensor:
        """(Σ'⁻¹)_jj / scale_j²."""
        return self.part.precision_diagonal / self.scale.square()

    def sample(self, count: int, generator: torch.Generator | None = None) -> Tensor:
        """scale ∘ u."""
        return self.part.sample(count, generator) * self.scale

    def quadratic(self, v: Tensor) -> Tensor:
        """That of v / scale."""
        return self.part.quadratic(v / self.scale)

    def logdet(self) -> Tensor:
        """log |Σ'| + 2 Σ_j log scale_j."""
        return self.part.logdet() + 2 * self.scale.log().sum()

    def multiply(self, v: Tensor) -> Tensor:
        """scale ∘ Σ' (scale ∘ v)."""
        return self.part.multiply(v * self.scale) * self.scale

    def variance_along(self, j: Tensor) -> Tensor:
        """That along J diag(scale)."""
        return self.part.variance_along(j * self.scale)
