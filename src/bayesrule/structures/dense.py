"""Every number with every other: Σ⁻¹ = L Lᵀ."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar

import torch
from torch import Tensor

from bayesrule.structures.base import Structure

ROUNDING = 1e-4  # of a matrix's largest entry or eigenvalue: more than this is not the rounding of float32


@dataclass(frozen=True, eq=False)
class Dense(Structure):
    """Σ = (L Lᵀ)⁻¹ with L = ``factor``, the lower triangular Cholesky factor of the precision.

    The precision is what a Laplace approximation has, and it is not inverted: a draw and a product with Σ are
    triangular solves. O(P²) to store, to draw, for a product or a quadratic form; O(P³) once for the diagonal.

    >>> Dense(torch.tensor([[2.0, 0.0], [1.0, 1.0]])).quadratic(torch.tensor([1.0, 1.0]))
    tensor(10.)
    """

    name: ClassVar[str] = "dense"
    factor: Tensor

    def __post_init__(self) -> None:
        square("factor", self.factor)
        if bool(self.factor.triu(1).any()):
            raise ValueError("factor must be lower triangular, but there are numbers above its diagonal; transpose it?")
        if not bool((self.factor.diagonal() > 0).all()):
            least = float(self.factor.diagonal().min())
            raise ValueError(f"factor must have a positive diagonal, not {least:.3g}; see Dense.of_precision")
        # row after row in memory, as it comes back from a file, so that kernels add in the same order, to the bit
        object.__setattr__(self, "factor", self.factor.contiguous())

    @classmethod
    def of_precision(cls, matrix: Tensor) -> Dense:
        """Σ = matrix⁻¹, factorised in float64 and kept in the matrix's dtype: O(P³).

        >>> Dense.of_precision(torch.tensor([[4.0, 2.0], [2.0, 2.0]])).factor
        tensor([[2., 0.], [1., 1.]])
        """
        precise = symmetric("the precision", matrix)
        factor, failure = torch.linalg.cholesky_ex(precise)
        if int(failure):
            least = float(torch.linalg.eigvalsh(precise)[0])
            rule = "the precision must be positive definite, but its smallest eigenvalue is"
            raise ValueError(f"{rule} {least:.3g}; add more than {max(-least, 0):.3g} to its diagonal")
        return cls(factor.to(matrix.dtype))

    @property
    def size(self) -> int:
        """P."""
        return len(self.factor)

    @cached_property
    def diagonal(self) -> Tensor:
        """Σ_i (L⁻¹)_ij²."""
        identity = torch.eye(self.size, dtype=self.factor.dtype)
        return torch.linalg.solve_triangular(self.factor, identity, upper=False).square().sum(0)

    @property
    def precision_diagonal(self) -> Tensor:
        """Σ_i L_ji²."""
        return self.factor.square().sum(1)

    def sample(self, count: int, generator: torch.Generator | None = None) -> Tensor:
        """L⁻ᵀ ε with ε ~ N(0, I)."""
        noise = torch.randn(count, self.size, generator=generator, dtype=self.factor.dtype)
        return torch.linalg.solve_triangular(self.factor.T, noise.T, upper=True).T

    def quadratic(self, v: Tensor) -> Tensor:
        """‖Lᵀ v‖²."""
        return (v @ self.factor).square().sum()

    def logdet(self) -> Tensor:
        """−2 Σ_j log L_jj."""
        return -2 * self.factor.diagonal().log().sum()

    def multiply(self, v: Tensor) -> Tensor:
        """L⁻ᵀ (L⁻¹ v): two triangular solves, 2P² operations a vector."""
        half = torch.linalg.solve_triangular(self.factor, v.reshape(-1, self.size).T, upper=False)
        return torch.linalg.solve_triangular(self.factor.T, half, upper=True).T.reshape(v.shape)

    def variance_along(self, j: Tensor) -> Tensor:
        """A Aᵀ with A = (L⁻¹ Jᵀ)ᵀ: one triangular solve for all rows, KP² + K²P operations."""
        half = torch.linalg.solve_triangular(self.factor, j.reshape(-1, self.size).T, upper=False).T.reshape(j.shape)
        return half @ half.mT


def square(what: str, matrix: Tensor) -> None:
    """Refuse what is not a square matrix of floats."""
    if matrix.dim() != 2 or matrix.shape[0] != matrix.shape[1] or not matrix.is_floating_point():
        raise ValueError(f"{what} must be a square matrix of floats, not {list(matrix.shape)} {matrix.dtype}")


def symmetric(what: str, matrix: Tensor) -> Tensor:
    """½(M + Mᵀ) in float64, if M is a square matrix, finite, and symmetric up to rounding.

    >>> symmetric("M", torch.tensor([[1.0, 2.0], [3.0, 1.0]]))
    Traceback (most recent call last):
    ValueError: M must be symmetric, but [0, 1] is 2 and [1, 0] is 3; is it a transposed or unfinished sum?
    """
    square(what, matrix)
    if not bool(matrix.isfinite().all()):
        row, column = (~matrix.isfinite()).nonzero()[0].tolist()
        where = f"[{row}, {column}] is {float(matrix[row, column])}"
        raise ValueError(f"{what} must be finite, but {where}; are the network's weights and the data finite?")
    precise = matrix.double()
    apart = (precise - precise.T).abs()
    if bool(apart.max() > ROUNDING * precise.abs().max()):
        row, column = divmod(int(apart.argmax()), len(precise))
        entries = f"[{row}, {column}] is {precise[row, column]:.6g} and [{column}, {row}] is {precise[column, row]:.6g}"
        raise ValueError(f"{what} must be symmetric, but {entries}; is it a transposed or unfinished sum?")
    return (precise + precise.T) / 2
