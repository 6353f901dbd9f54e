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
        """(I − QQᵀ) ε + Q (√variance ∘ Qᵀ ε)."""
        noise = torch.randn(count, self.size, generator=generator, dtype=self.vectors.dtype)
        across, along = self._split(noise)
        return across + (along * self.variance.sqrt()) @ self.vectors.T

    def quadratic(self, v: Tensor) -> Tensor:
        """‖(I − QQᵀ) v‖² + Σ_k (Qᵀ v)_k²/variance_k."""
        across, along = self._split(v)
        return across.square().sum() + (along.square() / self.variance).sum()

    def logdet(self) -> Tensor:
        """Σ_k log variance_k."""
        return self.variance.log().sum()

    def multiply(self, v: Tensor) -> Tensor:
        """(I − QQᵀ) v + Q (variance ∘ Qᵀ v)."""
        across, along = self._split(v)
        return across + (along * self.variance) @ self.vectors.T

    def variance_along(self, j: Tensor) -> Tensor:
        """A Aᵀ + (J Q) diag(variance) (J Q)ᵀ with A = J (I − QQᵀ)."""
        across, along = self._split(j)
        return across @ across.mT + (along * self.variance) @ along.mT

    def _split(self, v: Tensor) -> tuple[Tensor, Tensor]:
        """(I − QQᵀ) v and Qᵀ v: never the difference of large numbers, which variances near zero would not survive."""
        along = v @ self.vectors
        across = v - along @ self.vectors.T
        return across - (across @ self.vectors) @ self.vectors.T, along
