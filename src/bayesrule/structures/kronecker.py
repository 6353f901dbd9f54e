"""The rows of a matrix apart from its columns: Σ = (U ⊗ V) diag(variance) (U ⊗ V)ᵀ."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from bayesrule.structures.base import Structure
from bayesrule.structures.dense import ROUNDING, square, symmetric


@dataclass(frozen=True, eq=False)
class Kronecker(Structure):
    """Σ = (U ⊗ V) diag(vec variance) (U ⊗ V)ᵀ over a weight W [O, I], row after row in the vector.

    U = ``left`` [O, O] and V = ``right`` [I, I] hold orthonormal eigenvectors in their columns, ``variance`` [O, I] is
    positive. A convolution's weight [O, C, H, W] is one with I = C·H·W. With ``bias`` the last column of W is a layer's
    bias, which comes after the weight in the vector (`to_matrix`). O² + I² + OI numbers to store; O(O²I + OI²)
    operations for a draw, a product, a quadratic form or all marginal variances. The OI × OI matrix is never made.

    >>> one = Kronecker(torch.eye(1), torch.eye(2), torch.tensor([[4.0, 1.0]]))
    >>> one.quadratic(torch.tensor([2.0, 1.0]))
    tensor(2.)
    """

    name: ClassVar[str] = "kronecker"
    left: Tensor
    right: Tensor
    variance: Tensor
    bias: bool = False

    def __post_init__(self) -> None:
        for name in ("left", "right"):
            square(name, getattr(self, name))
            orthonormal(name, getattr(self, name))
        shape = [len(self.left), len(self.right)]
        if list(self.variance.shape) != shape:
            raise ValueError(f"variance must have the shape {shape} of left and right, not {list(self.variance.shape)}")
        if not bool((self.variance > 0).all()):
            raise ValueError(f"variance must be positive, not {float(self.variance.min()):.3g}")
        for name in ("left", "right", "variance"):  # in memory as it comes back from a file: the same to the bit
            object.__setattr__(self, name, getattr(self, name).contiguous())

    @classmethod
    def of_factors(
        cls, left: Tensor, right: Tensor, scale: float = 1.0, precision: float = 1.0, bias: bool = False
    ) -> Kronecker:
        """Σ = (scale · B ⊗ A + precision · I)⁻¹ of B = ``left`` [O, O] and A = ``right`` [I, I], exactly.

        With B = U diag(β) Uᵀ and A = V diag(α) Vᵀ, variance_oi = 1/(scale · β_o α_i + precision): O(O³ + I³), in
        float64, kept in the dtype of B. Eigenvalues that rounding left below zero count as zero.

        >>> Kronecker.of_factors(torch.eye(2), 3 * torch.eye(1), scale=2.0, precision=4.0).variance
        tensor([[0.1000], [0.1000]])
        """
        if not (math.isfinite(scale) and scale >= 0):
            raise ValueError(f"scale must be finite and not negative, not {scale}")
        if not math.isfinite(precision):
            raise ValueError(f"precision must be one finite number, not {precision}")
        (beta, u), (alpha, v) = eigen("left", left), eigen("right", right)
        total = scale * beta[:, None] * alpha + precision
        if not bool((total > 0).all()):
            rule = "scale · left ⊗ right + precision must be positive definite, but its smallest eigenvalue is"
            raise ValueError(f"{rule} {float(total.min()):.3g}; precision must be above 0, not {precision:.3g}")
        return cls(u.to(left.dtype), v.to(left.dtype), total.reciprocal().to(left.dtype), bias)

    @property
    def size(self) -> int:
        """P = O·I."""
        return self.variance.numel()

    @property
    def diagonal(self) -> Tensor:
        """(U∘U) variance (V∘V)ᵀ."""
        return self._marginal(self.variance)

    @property
    def precision_diagonal(self) -> Tensor:
        """(U∘U) (1/variance) (V∘V)ᵀ."""
        return self._marginal(1 / self.variance)

    def sample(self, count: int, generator: torch.Generator | None = None) -> Tensor:
        """W = U (√variance ∘ E) Vᵀ with E ~ N(0, I)."""
        noise = torch.randn(count, *self.variance.shape, generator=generator, dtype=self.variance.dtype)
        return self._from_eigen(noise.mul_(self.variance.sqrt()))

    def quadratic(self, v: Tensor) -> Tensor:
        """Σ_oi (Uᵀ W V)_oi² / variance_oi for v = vec W."""
        return (self._to_eigen(v).square() / self.variance).sum()

    def logdet(self) -> Tensor:
        """Σ_oi log variance_oi."""
        return self.variance.log().sum()

    def multiply(self, v: Tensor) -> Tensor:
        """vec U (variance ∘ Uᵀ W V) Vᵀ for v = vec W: O(O²I + OI²) operations a vector."""
        return self._from_eigen(self._to_eigen(v) * self.variance)

    def variance_along(self, j: Tensor) -> Tensor:
        """A Aᵀ with rows A_k = vec √variance ∘ Uᵀ J_k V: O(K(O²I + OI²) + K²OI) operations, as much memory as J."""
        half = (self._to_eigen(j) * self.variance.sqrt()).flatten(-2)
        return half @ half.mT

    def _to_eigen(self, v: Tensor) -> Tensor:
        """Uᵀ W V of vec W [..., P], as [..., O, I]."""
        return self.left.T @ (to_matrix(v, len(self.left), len(self.right), self.bias) @ self.right)

    def _from_eigen(self, w: Tensor) -> Tensor:
        """Vec U W Vᵀ [..., P] of W [..., O, I]."""
        return to_vector(self.left @ (w @ self.right.T), self.bias)

    def _marginal(self, numbers: Tensor) -> Tensor:
        return to_vector(self.left.square() @ numbers @ self.right.square().T, self.bias)


def to_matrix(vector: Tensor, rows: int, columns: int, bias: bool) -> Tensor:
    """A vector [..., P], a weight row after row and then its bias, as W [..., O, I]: the bias is the last column.

    >>> to_matrix(torch.arange(8.0), 2, 4, bias=True)
    tensor([[0., 1., 2., 6.],
            [3., 4., 5., 7.]])
    """
    lead = vector.shape[:-1]
    if not bias:
        return vector.reshape(*lead, rows, columns)
    weight, last = torch.split(vector, [rows * (columns - 1), rows], -1)
    return torch.cat([weight.reshape(*lead, rows, columns - 1), last.unsqueeze(-1)], -1)


def to_vector(matrix: Tensor, bias: bool) -> Tensor:
    """Undo `to_matrix`.

    >>> to_vector(torch.tensor([[0.0, 1.0, 4.0], [2.0, 3.0, 5.0]]), bias=True)
    tensor([0., 1., 2., 3., 4., 5.])
    """
    return torch.cat([matrix[..., :-1].flatten(-2), matrix[..., -1]], -1) if bias else matrix.flatten(-2)


def orthonormal(what: str, matrix: Tensor) -> None:
    """A cheap look, O(n²): all columns of length one."""
    norms = matrix.square().sum(0)
    if not bool(((norms - 1).abs() < 0.01).all()):
        worst = float(norms[(norms - 1).abs().argmax()].sqrt())
        rule = f"{what} must hold orthonormal columns, but one has length {worst:.3g}"
        raise ValueError(f"{rule}; for the factors of a curvature use Kronecker.of_factors")


def eigen(what: str, matrix: Tensor) -> tuple[Tensor, Tensor]:
    """Eigenvalues, not below zero, and eigenvectors in float64."""
    values, vectors = torch.linalg.eigh(symmetric(what, matrix))
    if bool(values[0] < -ROUNDING * values.abs().max()):
        rule = f"{what} must be positive semi-definite, but its smallest eigenvalue is {float(values[0]):.3g}"
        raise ValueError(f"{rule} and its largest {float(values[-1]):.3g}; is it a sum of outer products?")
    return values.clamp(min=0), vectors
