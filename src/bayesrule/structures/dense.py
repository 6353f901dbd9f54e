"""Every variable with every other."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar

import torch
from torch import Tensor

from bayesrule import tracing
from bayesrule.structures.base import Structure

ROWS = 2**22  # numbers of a matrix that are looked at in one go
ROUNDING = 1e-4  # of a matrix's largest entry or eigenvalue: more than this is not the rounding of float32


@dataclass(frozen=True, eq=False)
class Dense(Structure):
    """Λ = ``matrix``, which is symmetric.

    It is never inverted: a draw and Λ⁻¹v are triangular solves with the factor L, L Lᵀ = Λ. P² numbers to store, O(P³)
    once for the factor, then O(P²) for a draw or a solve.

    >>> Dense(torch.tensor([[4.0, 2.0], [2.0, 2.0]])).factor
    tensor([[2., 0.], [1., 1.]])
    """

    name: ClassVar[str] = "dense"
    matrix: Tensor

    def __post_init__(self) -> None:
        check_symmetric("matrix", self.matrix)
        # row after row in memory, as it comes back from a file, so that kernels add in the same order, to the bit
        object.__setattr__(self, "matrix", self.matrix.contiguous())

    @classmethod
    def derived(cls, matrix: Tensor) -> Dense:
        """Of a matrix that was made from checked ones, as sums and multiples are: symmetric without another look at P²
        numbers, which would take as long as the arithmetic."""
        found = object.__new__(cls)
        object.__setattr__(found, "matrix", matrix.contiguous())
        return found

    @property
    def size(self) -> int:
        """P."""
        return len(self.matrix)

    @property
    def diagonal(self) -> Tensor:
        """That of the matrix."""
        return self.matrix.diagonal()

    @cached_property
    def factor(self) -> Tensor:
        """The lower triangular L with L Lᵀ = Λ, found in float64."""
        precise = self.matrix.double()
        # In units in which the diagonal is one: weights of very different precisions then cost no digits, since the
        # condition number that is left is at most P times the smallest that any choice of units gives.
        # L does not depend on the units, so that no gradient goes through them, and the matrix is scaled in its place.
        scale = precise.detach().diagonal().clamp(min=torch.finfo(torch.float64).tiny).sqrt()
        found, failure = torch.linalg.cholesky_ex((precise / scale).div_(scale[:, None]))
        if int(failure):
            least = float(torch.linalg.eigvalsh(precise.detach())[0])
            rule = "the precision must be positive definite, but its smallest eigenvalue is"
            raise ValueError(f"{rule} {least:.3g}; add a prior, or more than {max(-least, 0):.3g} to its diagonal")
        return found.mul(scale[:, None]).to(self.matrix.dtype)

    @cached_property
    def variances(self) -> Tensor:
        """The diagonal of L⁻ᵀL⁻¹: O(P³)."""
        return torch.cholesky_inverse(self.factor).diagonal().clone()  # a view would keep all P² numbers

    def multiply(self, v: Tensor) -> Tensor:
        """Λ v."""
        return v @ self.matrix.to(v.dtype)

    def solve(self, v: Tensor) -> Tensor:
        """L⁻ᵀ (L⁻¹ v): 2P² operations a vector."""
        half = self._half(v.reshape(-1, self.size))
        return torch.linalg.solve_triangular(self.factor.T.to(v.dtype), half, upper=True).T.reshape(v.shape)

    def sample(self, count: int, generator: torch.Generator | None = None) -> Tensor:
        """L⁻ᵀ ε with ε ~ N(0, I)."""
        like = self.matrix
        noise = torch.randn(count, self.size, generator=generator, dtype=like.dtype, device=like.device)
        return torch.linalg.solve_triangular(self.factor.T, noise.T, upper=True).T

    def logdet(self) -> Tensor:
        """2 Σ_j log L_jj."""
        return 2 * self.factor.diagonal().log().sum()

    def dense(self) -> Tensor:
        """As it is."""
        return self.matrix

    def part(self, start: int, stop: int) -> Dense:
        """A block on the diagonal."""
        return Dense.derived(self.matrix[start:stop, start:stop])

    def __mul__(self, factor: float | Tensor) -> Dense:
        """The matrix times the factor, and L times its root, if L is known."""
        found = Dense.derived(self.matrix * factor)
        if "factor" in self.__dict__ and not isinstance(factor, Tensor):
            object.__setattr__(found, "factor", self.factor * factor**0.5)
        return found

    def variance_along(self, j: Tensor) -> Tensor:
        """A Aᵀ with A = (L⁻¹ Jᵀ)ᵀ: one triangular solve for all rows, KP² + K²P operations."""
        half = self._half(j.reshape(-1, self.size)).T.reshape(j.shape)
        return half @ half.mT

    def _half(self, rows: Tensor) -> Tensor:
        """L⁻¹ of every row, as columns."""
        if tracing.active():  # few runtimes of programs know a triangular solve
            with tracing.outside():
                eye = torch.eye(self.size, dtype=self.factor.dtype, device=self.factor.device)
                inverse = torch.linalg.solve_triangular(self.factor, eye, upper=False)
            return inverse.to(rows.dtype) @ rows.T
        return torch.linalg.solve_triangular(self.factor.to(rows.dtype), rows.T, upper=False)

    def lifted(self) -> Dense:
        """With P·ε of the diagonal added, ε the precision of float64: more than the rounding of a Cholesky factor.

        For a sum with a prior that rounding hides beside the largest entries. It makes any singular matrix definite,
        so only who knows that there is a prior may ask for it.

        >>> Dense(torch.ones(2, 2, dtype=torch.float64)).lifted().variances > 1e14
        tensor([True, True])
        """
        slack = self.size * torch.finfo(torch.float64).eps * self.diagonal.double()
        return Dense.derived(self.matrix.double() + slack.diag())

    def clipped(self) -> Dense:
        """Without eigenvalues below zero, as rounding leaves them in a sum of squares.

        >>> Dense(torch.diag(torch.tensor([2.0, -1e-9]))).clipped().diagonal
        tensor([2., 0.])
        """
        values, vectors = torch.linalg.eigh(self.matrix.double())  # in float32 it would bring them back
        return Dense(((vectors * values.clamp(min=0)) @ vectors.T).to(self.matrix.dtype))


def check_square(what: str, matrix: Tensor) -> None:
    """Refuse what is not a square matrix of floats."""
    if matrix.dim() != 2 or matrix.shape[0] != matrix.shape[1] or not matrix.is_floating_point():
        raise ValueError(f"{what} must be a square matrix of floats, not {list(matrix.shape)} {matrix.dtype}")


def check_symmetric(what: str, matrix: Tensor) -> None:
    """Refuse a matrix that is not finite, or not symmetric up to the rounding of single precision.

    >>> check_symmetric("M", torch.tensor([[1.0, 2.0], [3.0, 1.0]]))
    Traceback (most recent call last):
    ValueError: M must be symmetric, but [0, 1] is 2 and [1, 0] is 3; is it a transposed or unfinished sum?
    """
    check_square(what, matrix)
    matrix = matrix.detach()
    # A few rows at a time: P² numbers are many, and a copy of them may be more than there is room for.
    rows = max(1, ROWS // max(1, len(matrix)))
    largest = max((float(part.abs().max()) for part in torch.split(matrix, rows) if part.numel()), default=0.0)
    for start in range(0, len(matrix), rows):
        _check_rows(what, matrix, slice(start, start + rows), largest)


def _check_rows(what: str, matrix: Tensor, rows: slice, largest: float) -> None:
    """The same of some rows; ``largest``: of the absolute values of all entries."""
    some = matrix[rows]
    if not bool(some.isfinite().all()):
        row, column = (~some.isfinite()).nonzero()[0].tolist()
        where = f"[{rows.start + row}, {column}] is {float(some[row, column])}"
        raise ValueError(f"{what} must be finite, but {where}; are the network's weights and the data finite?")
    # A Cholesky factor reads one triangle only: of a matrix that is not symmetric it would be that of another one.
    apart = (some - matrix[:, rows].T).abs()
    if float(apart.max()) > ROUNDING * largest:
        row, column = divmod(int(apart.argmax()), len(matrix))
        above, below = float(some[row, column]), float(matrix[column, rows.start + row])
        row += rows.start
        entries = f"[{row}, {column}] is {above:.6g} and [{column}, {row}] is {below:.6g}"
        raise ValueError(f"{what} must be symmetric, but {entries}; is it a transposed or unfinished sum?")
