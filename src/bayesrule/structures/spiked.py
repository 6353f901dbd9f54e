"""Unit variance but for a few directions: Σ = I + Q diag(v − 1) Qᵀ."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from bayesrule.structures.base import Structure
from bayesrule.structures.kronecker import orthonormal


@dataclass(frozen=True, eq=False)
class Spiked(Structure):
    """Σ = I + Q diag(variance − 1) Qᵀ: ``variance`` [K] along the orthonormal columns of Q = ``vectors`` [P, K], and 1
    across them.

    What a few directions of large curvature leave of a prior N(0, I). O(PK) to store and for everything else.

    >>> one = Spiked(torch.tensor([[1.0], [0.0]]), torch.tensor([0.25]))
    >>> one.diagonal, one.quadratic(torch.tensor([1.0, 1.0]))
    (tensor([0.2500, 1.0000]), tensor(5.))
    """

    name: ClassVar[str] = "spiked"
    vectors: Tensor
    variance: Tensor

    def __post_init__(self) -> None:
        orthonormal("vectors", self.vectors)
        if list(self.variance.shape) != [self.vectors.shape[1]]:
            rule = f"variance must hold one number for each of the {self.vectors.shape[1]} vectors"
            raise ValueError(f"{rule}, not {list(self.variance.shape)}")
        if not bool((self.variance > 0).all()):
            raise ValueError(f"variance must be positive, not {float(self.variance.min()):.3g}")
        object.__setattr__(self, "vectors", self.vectors.contiguous())  # as it comes back from a file

    @property
    def size(self) -> int:
        """P."""
        return len(self.vectors)

    @property
    def diagonal(self) -> Tensor:
        """1 + Σ_k Q_jk² (variance_k − 1)."""
        return 1 + self.vectors.square() @ (self.variance - 1)

    @property
    def precision_diagonal(self) -> Tensor:
        """1 + Σ_k Q_jk² (1/variance_k − 1)."""
        return 1 + self.vectors.square() @ (1 / self.variance - 1)

    def sample(self, count: int, generator: torch.Generator | None = None) -> Tensor:
        """ε + Q ((√variance − 1) ∘ Qᵀ ε)."""
        noise = torch.randn(count, self.size, generator=generator, dtype=self.vectors.dtype)
        return noise + self._within(noise, self.variance.sqrt() - 1)

    def quadratic(self, v: Tensor) -> Tensor:
        """‖v‖² + Σ_k (1/variance_k − 1) (Qᵀ v)_k²."""
        return v.square().sum() + ((1 / self.variance - 1) * (v @ self.vectors).square()).sum()

    def logdet(self) -> Tensor:
        """Σ_k log variance_k."""
        return self.variance.log().sum()

    def multiply(self, v: Tensor) -> Tensor:
        """v + Q ((variance − 1) ∘ Qᵀ v)."""
        return v + self._within(v, self.variance - 1)

    def variance_along(self, j: Tensor) -> Tensor:
        """J Jᵀ + (J Q) diag(variance − 1) (J Q)ᵀ."""
        inner = j @ self.vectors
        return j @ j.mT + (inner * (self.variance - 1)) @ inner.mT

    def _within(self, v: Tensor, factors: Tensor) -> Tensor:
        return ((v @ self.vectors) * factors) @ self.vectors.T
