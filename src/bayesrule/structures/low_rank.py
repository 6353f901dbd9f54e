"""A few directions on top of independent variables."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar

import torch
from torch import Tensor

from bayesrule.naming import unknown
from bayesrule.structures.base import Structure, check_positive, common_dtype

FORMS = ("precision", "covariance")


@dataclass(frozen=True, eq=False)
class LowRank(Structure):
    """M = diag(``values``) + F Fᵀ with F = ``factor`` [P, K]; ``of`` says whether M is the precision or the covariance.

    The stiffest directions of a curvature are those of a precision, the path of an optimiser that of a covariance; each
    stays what it is, since the inverse of M loses digits where directions are many times stiffer than the rest. O(PK)
    to store; O(PK²) once, then O(PK) for everything.

    >>> path = LowRank(torch.ones(2), torch.tensor([[2.0], [0.0]]), of="covariance")
    >>> path.variances, path.diagonal
    (tensor([5., 1.]), tensor([0.2000, 1.0000]))
    """

    name: ClassVar[str] = "low-rank"
    values: Tensor
    factor: Tensor
    of: str = "precision"

    def __post_init__(self) -> None:
        if self.of not in FORMS:
            raise unknown("form of a low-rank matrix", self.of, FORMS)
        if self.values.ndim != 1:
            raise ValueError(f"values must be one vector, not {list(self.values.shape)}: flatten them")
        if self.factor.ndim != 2 or len(self.factor) != len(self.values):
            rule = f"factor must have a row for each of the {len(self.values)} values"
            raise ValueError(f"{rule}, not the shape {list(self.factor.shape)}")
        # in memory as it comes back from a file, so that kernels add in the same order, to the bit
        dtype = common_dtype([self.values, self.factor])
        object.__setattr__(self, "values", self.values.to(dtype))
        object.__setattr__(self, "factor", self.factor.to(dtype).contiguous())

    @property
    def size(self) -> int:
        """P."""
        return len(self.values)

    @property
    def diagonal(self) -> Tensor:
        """That of the precision."""
        if self.of == "precision":
            return self._own_diagonal
        return self._inverse_diagonal

    @property
    def variances(self) -> Tensor:
        """The diagonal of the covariance."""
        if self.of == "precision":
            return self._inverse_diagonal
        return self._own_diagonal

    def multiply(self, v: Tensor) -> Tensor:
        """Λ v."""
        if self.of == "precision":
            return self._times(v)
        return self._over(v)

    def solve(self, v: Tensor) -> Tensor:
        """Λ⁻¹ v."""
        if self.of == "precision":
            return self._over(v)
        return self._times(v)

    def logdet(self) -> Tensor:
        """± (Σ_j log values_j + log |I + Fᵀ diag(1/values) F|)."""
        check_positive(self.values)
        scaled = self.factor * self.values.rsqrt()[:, None]
        inner = torch.eye(scaled.shape[1], dtype=scaled.dtype, device=scaled.device) + scaled.T @ scaled
        own = self.values.log().sum() + torch.linalg.slogdet(inner)[1]
        if self.of == "precision":
            return own
        return -own

    def sample(self, count: int, generator: torch.Generator | None = None) -> Tensor:
        """√values ∘ ε₁ + F ε₂ for a covariance; (M^½)⁻ᵀ ε, by its few stiff directions, for a precision."""
        like, size = self.values, (count, self.size)
        noise = torch.randn(size, generator=generator, dtype=like.dtype, device=like.device)
        if self.of == "covariance":
            rank = self.factor.shape[1]
            common = torch.randn(count, rank, generator=generator, dtype=like.dtype, device=like.device)
            return noise.mul_(like.sqrt()).addmm_(common, self.factor.T)
        vectors, spikes = self._spikes
        across, along = _split(noise, vectors)
        return (across + (along * spikes.rsqrt()) @ vectors.T) * like.rsqrt()

    def dense(self) -> Tensor:
        """M or its inverse."""
        if self.of == "precision":
            return self.values.diag() + self.factor @ self.factor.T
        # by the spikes, not by a Cholesky factor of M: in float32 that fails for directions 10⁷ times as wide as others
        inverse = self._over(torch.eye(self.size, dtype=self.values.dtype, device=self.values.device))
        return (inverse + inverse.T) / 2

    def part(self, start: int, stop: int) -> LowRank:
        """The rows in question; of a covariance M, the precision given the others is low rank again:

        M_SS − M_SR M_RR⁻¹ M_RS = diag(values_S) + F_S (I + F_Rᵀ diag(1/values_R) F_R)⁻¹ F_Sᵀ.
        """
        if self.of == "precision":
            return LowRank(self.values[start:stop], self.factor[start:stop])
        check_positive(self.values)
        others = torch.ones_like(self.values, dtype=torch.float64)
        others[start:stop] = 0
        narrowed = self._narrowed(others / self.values.double()).to(self.factor.dtype)
        return LowRank(self.values[start:stop], narrowed[start:stop], of="covariance")

    def __mul__(self, factor: float | Tensor) -> LowRank:
        """Λ times the factor."""
        by = torch.as_tensor(factor, dtype=self.values.dtype, device=self.values.device)
        if self.of == "covariance":
            by = 1 / by
        return LowRank(self.values * by, self.factor * by.sqrt(), self.of)

    def plus_diagonal(self, values: Tensor) -> LowRank:
        """Λ + diag(values), in the same form: of a covariance, with shrink = 1/(1 + self.values ∘ values), it is

        (M⁻¹ + diag(values))⁻¹ = diag(shrink ∘ self.values) + shrink F (I + Fᵀ diag(shrink ∘ values) F)⁻¹ Fᵀ shrink.
        """
        if self.of == "precision":
            return LowRank(self.values + values, self.factor)
        shrink = 1 / (1 + self.values.double() * values.double())
        narrowed = self._narrowed(shrink * values.double())
        dtype = common_dtype([self.values, values])
        return LowRank((shrink * self.values).to(dtype), (shrink[:, None] * narrowed).to(dtype), of="covariance")

    def _narrowed(self, precisions: Tensor) -> Tensor:
        """F C⁻ᵀ with C Cᵀ = I + Fᵀ diag(precisions) F, in float64: what is left of F where so much more is known.

        Woodbury's identity in a form that only adds positive numbers. The plain one inverts M to diag(a) − B Bᵀ, and
        loses all digits to the difference where F is 10⁸ times the values.
        """
        factor = self.factor.double()
        inner = factor.T @ (precisions[:, None] * factor)
        inner.diagonal().add_(1)
        return torch.linalg.solve_triangular(torch.linalg.cholesky(inner), factor.T, upper=False).T

    def variance_along(self, j: Tensor) -> Tensor:
        """J Λ⁻¹ Jᵀ, in two parts: none is the difference of large numbers."""
        if self.of == "covariance":
            own = j * self.values.sqrt().to(j.dtype)
            common = j @ self.factor.to(j.dtype)
            return own @ own.mT + common @ common.mT
        vectors, spikes = (t.to(j.dtype) for t in self._spikes)
        across, along = _split(j * self.values.rsqrt().to(j.dtype), vectors)
        return across @ across.mT + (along / spikes) @ along.mT

    @property
    def _own_diagonal(self) -> Tensor:
        return self.values + self.factor.square().sum(1)

    @cached_property
    def _inverse_diagonal(self) -> Tensor:
        vectors, spikes = self._spikes
        return (1 - vectors.square() @ (1 - 1 / spikes)) / self.values

    def _times(self, v: Tensor) -> Tensor:
        """M v."""
        values, factor = self.values.to(v.dtype), self.factor.to(v.dtype)
        return v * values + (v @ factor) @ factor.T

    def _over(self, v: Tensor) -> Tensor:
        """M⁻¹ v."""
        root = self.values.rsqrt().to(v.dtype)
        vectors, spikes = (t.to(v.dtype) for t in self._spikes)
        across, along = _split(v * root, vectors)
        return (across + (along / spikes) @ vectors.T) * root

    @cached_property
    def _spikes(self) -> tuple[Tensor, Tensor]:
        """Orthonormal Q [P, K] and e [K] with M = √values (I + Q diag(e − 1) Qᵀ) √values."""
        check_positive(self.values)
        # an SVD of the factor, not the eigenvectors of Fᵀ diag(1/values) F, whose condition is the square of F's
        vectors, sizes, _ = torch.linalg.svd(self.factor * self.values.rsqrt()[:, None], full_matrices=False)
        return vectors, 1 + sizes.square()


def _split(v: Tensor, vectors: Tensor) -> tuple[Tensor, Tensor]:
    """(I − QQᵀ) v and Qᵀ v; taken off twice, since large spikes would bring out what rounding leaves of Qᵀ v."""
    along = v @ vectors
    across = v - along @ vectors.T
    return across - (across @ vectors) @ vectors.T, along
