"""A few directions on top of independent numbers: Σ = diag(v) + F Fᵀ."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar

import torch
from torch import Tensor

from bayesrule.structures.base import Structure


@dataclass(frozen=True, eq=False)
class LowRank(Structure):
    """Σ = diag(variance) + F Fᵀ with a P × K factor F: O(PK) to store and draw, O(PK²) to solve.

    >>> one = LowRank(torch.ones(3), torch.zeros(3, 1))
    >>> one.logdet()
    tensor(0.)
    """

    name: ClassVar[str] = "low-rank"
    variance: Tensor
    factor: Tensor

    @property
    def size(self) -> int:
        """P."""
        return self.variance.numel()

    @property
    def diagonal(self) -> Tensor:
        """variance_j + Σ_k F_jk²."""
        return self.variance + self.factor.square().sum(1)

    @cached_property
    def precision_diagonal(self) -> Tensor:
        """By Woodbury: 1/v_j − ‖row j of D⁻¹F L⁻ᵀ‖², where LLᵀ = I + FᵀD⁻¹F."""
        scaled = self.factor / self.variance[:, None]
        inner = torch.linalg.solve_triangular(self._cholesky, scaled.T, upper=False)
        return 1 / self.variance - inner.square().sum(0)

    def sample(self, count: int, generator: torch.Generator | None = None) -> Tensor:
        """√v ∘ ε₁ + F ε₂ with independent standard normal ε₁, ε₂."""
        dtype = self.variance.dtype
        own = torch.randn(count, self.size, generator=generator, dtype=dtype).mul_(self.variance.sqrt())
        common = torch.randn(count, self.factor.shape[1], generator=generator, dtype=dtype)
        return own.addmm_(common, self.factor.T)

    def quadratic(self, v: Tensor) -> Tensor:
        """By Woodbury: vᵀD⁻¹v − ‖L⁻¹FᵀD⁻¹v‖², where LLᵀ = I + FᵀD⁻¹F."""
        scaled = v / self.variance
        inner = torch.linalg.solve_triangular(self._cholesky, (self.factor.T @ scaled)[:, None], upper=False)
        return v @ scaled - inner.square().sum()

    def logdet(self) -> Tensor:
        """log |D| + log |I + FᵀD⁻¹F|."""
        return self.variance.log().sum() + 2 * self._cholesky.diagonal().log().sum()

    def multiply(self, v: Tensor) -> Tensor:
        """variance ∘ v + F (Fᵀ v): O(PK) operations a vector."""
        return v * self.variance + (v @ self.factor) @ self.factor.T

    def variance_along(self, j: Tensor) -> Tensor:
        """A Aᵀ + B Bᵀ with A = J ∘ √variance and B = J F: one product with F, none with Fᵀ."""
        own, common = j * self.variance.sqrt(), j @ self.factor
        return own @ own.mT + common @ common.mT

    @cached_property
    def _cholesky(self) -> Tensor:
        rank = self.factor.shape[1]
        inner = self.factor.T @ (self.factor / self.variance[:, None])
        return torch.linalg.cholesky(inner + torch.eye(rank, dtype=inner.dtype))
