"""The rows of a matrix apart from its columns: Λ = Σ_k B_k ⊗ A_k + diag(D)."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar

import torch
from torch import Tensor

from bayesrule.structures.base import Structure, common_dtype
from bayesrule.structures.dense import ROUNDING, Dense, check_symmetric


@dataclass(frozen=True, eq=False)
class Kronecker(Structure):
    """Λ = Σ_k B_k ⊗ A_k + diag(D) over a weight W [O, I], row after row in the vector.

    ``lefts``: the B_k [O, O], of a layer's outputs. ``rights``: the A_k [I, I], of its inputs. ``values``: D, a number
    for each of the vector, such as a prior's precisions. A convolution's weight [O, C, H, W] is one with I = C·H·W.
    With ``bias`` the last column of W is a layer's bias, which comes after the weight in the vector (`to_matrix`).

    Products with Λ are exact. For Λ⁻¹, log |Λ| and draws, W is taken to the eigenvectors of B̄ = Σ_k tr(A_k) B_k and
    Ā = Σ_k tr(B_k) A_k, in units in which D is about one, and what Λ has off its diagonal there is left out. This is
    exact for one product and a D that is a number for each row times one for each column, such as one for the weight
    and one for the bias; for several products whose B_k, or whose A_k, are multiples of each other; and close where
    they are nearly so. A D of other numbers can put single variances off by a factor of two or more.

    K(O² + I²) + OI numbers to store, O(O³ + I³) once, O(O²I + OI²) for a draw or a solve.

    >>> both = Kronecker([2 * torch.eye(1)], [torch.diag(torch.tensor([3.0, 0.0]))], torch.ones(2))
    >>> both.diagonal, both.variances.float()
    (tensor([7., 1.]), tensor([0.1429, 1.0000]))
    """

    name: ClassVar[str] = "kronecker"
    lefts: list[Tensor]
    rights: list[Tensor]
    values: Tensor
    bias: bool = False

    def __post_init__(self) -> None:
        if not isinstance(self.bias, bool):
            raise TypeError(f"bias must be True or False, not {self.bias!r}")
        if len(self.lefts) != len(self.rights) or not self.lefts:
            counts = f"{len(self.lefts)} and {len(self.rights)}"
            raise ValueError(f"lefts and rights must have the same length, at least 1, not {counts}")
        dtype = common_dtype([*self.lefts, *self.rights, self.values])
        object.__setattr__(self, "values", self.values.to(dtype))
        for name in ("lefts", "rights"):
            for index, factor in enumerate(getattr(self, name)):
                check_symmetric(f"{name}[{index}]", factor)
            # in memory as they come back from a file, so that kernels add in the same order, to the bit
            object.__setattr__(self, name, [factor.to(dtype).contiguous() for factor in getattr(self, name)])
        rows, columns = self.shape
        if list(self.values.shape) != [rows * columns]:
            raise ValueError(f"values must be {rows} × {columns} in one vector, not {list(self.values.shape)}")

    @classmethod
    def of(cls, left: Tensor, right: Tensor, bias: bool = False) -> Kronecker:
        """B ⊗ A."""
        return cls([left], [right], left.new_zeros(len(left) * len(right)), bias)

    @classmethod
    def derived(cls, lefts: list[Tensor], rights: list[Tensor], values: Tensor, bias: bool) -> Kronecker:
        """Of factors that were made from checked ones, as multiples are: not looked at again."""
        found = object.__new__(cls)
        for name, value in (("lefts", lefts), ("rights", rights), ("values", values), ("bias", bias)):
            object.__setattr__(found, name, value)
        return found

    @property
    def shape(self) -> tuple[int, int]:
        """O and I."""
        return len(self.lefts[0]), len(self.rights[0])

    @property
    def size(self) -> int:
        """P = O·I."""
        return len(self.values)

    @property
    def diagonal(self) -> Tensor:
        """Σ_k diag(B_k) diag(A_k)ᵀ + D."""
        total = self.values.new_zeros(self.shape)
        for left, right in zip(self.lefts, self.rights, strict=True):
            total = total + torch.outer(left.diagonal(), right.diagonal())
        return to_vector(total, self.bias) + self.values

    def multiply(self, v: Tensor) -> Tensor:
        """vec Σ_k B_k W A_k + D ∘ v for v = vec W."""
        w = self._matrix(v)
        total = v * self.values.to(v.dtype)
        for left, right in zip(self.lefts, self.rights, strict=True):
            total = total + to_vector(left.to(v.dtype) @ (w @ right.to(v.dtype)), self.bias)
        return total

    @property
    def variances(self) -> Tensor:
        """(left ∘ left) (1/values) (right ∘ right)ᵀ in the `basis`."""
        left, right, values = self.basis
        return to_vector(left.square() @ (1 / values) @ right.square().T, self.bias)

    def solve(self, v: Tensor) -> Tensor:
        """Divided by the values of the `basis`."""
        left, right, values = (part.to(v.dtype) for part in self.basis)
        inside = (left.T @ (self._matrix(v) @ right)) / values
        return to_vector(left @ (inside @ right.T), self.bias)

    def sample(self, count: int, generator: torch.Generator | None = None) -> Tensor:
        """W = left (E/√values) rightᵀ with E ~ N(0, I)."""
        left, right, values = self.basis
        noise = torch.randn(count, *self.shape, generator=generator, dtype=values.dtype, device=values.device)
        return to_vector(left @ (noise.mul_(values.rsqrt()) @ right.T), self.bias)

    def logdet(self) -> Tensor:
        """Σ_oi log values_oi − 2 I log |left| − 2 O log |right|."""
        (left, right, values), (rows, columns) = self.basis, self.shape
        volume = columns * torch.linalg.slogdet(left)[1] + rows * torch.linalg.slogdet(right)[1]
        return values.log().sum() - 2 * volume

    def dense(self) -> Tensor:
        """The sum of the products, in the order of the vector."""
        return self._written(0, self.size)

    def part(self, start: int, stop: int) -> Structure:
        """The weight alone is a Kronecker product again; any other rows and columns are written out."""
        if (start, stop) == (0, self.size):
            return self
        if self.bias and (start, stop) == (0, self.size - self.shape[0]):
            return Kronecker(self.lefts, [right[:-1, :-1] for right in self.rights], self.values[start:stop])
        return Dense(self._written(start, stop))

    def _written(self, start: int, stop: int) -> Tensor:
        """Σ_k B_k[o, o'] A_k[i, i'] + D for the entries (o, i) from ``start`` up to ``stop``, and no others."""
        rows, columns = self.shape
        position = to_vector(torch.arange(self.size, device=self.values.device).view(rows, columns), self.bias)
        o, i = position[start:stop] // columns, position[start:stop] % columns
        total = self.values[start:stop].diag()
        for left, right in zip(self.lefts, self.rights, strict=True):
            total = total + left[o][:, o] * right[i][:, i]
        return total

    def __mul__(self, factor: float | Tensor) -> Kronecker:
        """The first factors and D times the factor; the same basis, if it is known."""
        found = Kronecker([left * factor for left in self.lefts], self.rights, self.values * factor, self.bias)
        if "basis" in self.__dict__ and not isinstance(factor, Tensor):
            left, right, values = self.basis
            object.__setattr__(found, "basis", (left, right, values * factor))
        return found

    def plus_diagonal(self, values: Tensor) -> Kronecker:
        """Λ + diag(values)."""
        return Kronecker(self.lefts, self.rights, self.values + values, self.bias)

    def reweighted(self, products: float, diagonal: float) -> Kronecker:
        """products·Σ_k B_k ⊗ A_k + diagonal·D: in the same basis, so that eigenvectors are found once for all weights.

        >>> both = Kronecker([torch.eye(1)], [torch.diag(torch.tensor([3.0, 0.0]))], torch.ones(2))
        >>> both.reweighted(2.0, 5.0).variances.float()
        tensor([0.0909, 0.2000])
        """
        left, right, values = self.basis
        own = left.square().T @ self._matrix(self.values.to(left.dtype)) @ right.square()
        lefts = [factor * products for factor in self.lefts]
        found = Kronecker.derived(lefts, self.rights, self.values * diagonal, self.bias)
        object.__setattr__(found, "basis", (left, right, products * (values - own) + diagonal * own))
        return found

    def plus_products(self, other: Kronecker) -> Kronecker:
        """Λ + Λ'; a product that shares a factor with one that is there, up to a number, is added to it."""
        lefts, rights = list(self.lefts), list(self.rights)
        for left, right in zip(other.lefts, other.rights, strict=True):
            for k in range(len(lefts)):  # or every data set would add a product, and the root be further from exact
                if (ratio := _ratio(left, lefts[k])) is not None:
                    rights[k] = rights[k] + ratio * right
                    break
                if (ratio := _ratio(right, rights[k])) is not None:
                    lefts[k] = lefts[k] + ratio * left
                    break
            else:
                lefts.append(left)
                rights.append(right)
        return Kronecker(lefts, rights, self.values + other.values, self.bias)

    def pooled(self) -> Kronecker:
        """One product in the place of all, B = Σ_k B_k and A = Σ_k tr(B_k) A_k / Σ_k tr(B_k), with the same trace.

        Exact where all A_k are alike. What a product costs, in time and memory, is then no matter of how many data sets
        have added one.

        >>> both = Kronecker([torch.eye(1), torch.eye(1)], [torch.eye(2), 3 * torch.eye(2)], torch.zeros(2))
        >>> both.pooled().diagonal
        tensor([4., 4.])
        """
        if len(self.lefts) < 2:
            return self
        left = torch.stack(self.lefts).sum(0)
        if not bool(left.trace() > 0):  # nothing but zeros
            return Kronecker([left], [self.rights[0]], self.values, self.bias)
        right = _pooled(self.rights, self.lefts) / left.trace()
        return Kronecker([left], [right], self.values, self.bias)

    def variance_along(self, j: Tensor) -> Tensor:
        """A Aᵀ with rows A_k = vec (leftᵀ J_k right)/√values: O(K(O²I + OI²) + K²OI) operations."""
        left, right, values = (part.to(j.dtype) for part in self.basis)
        half = ((left.T @ (self._matrix(j) @ right)) * values.rsqrt()).flatten(-2)
        return half @ half.mT

    def _matrix(self, v: Tensor) -> Tensor:
        return to_matrix(v, *self.shape, self.bias)

    @cached_property
    def basis(self) -> tuple[Tensor, Tensor, Tensor]:
        """left [O, O], right [I, I] and values [O, I] with (left ⊗ right)ᵀ Λ (left ⊗ right) ≈ diag(values), in float64.

        Gradients go through the values alone: to first order a change of Λ moves them as if the vectors stood still.
        """
        with torch.no_grad():
            # in units in which D is one, so that it stays diagonal in the eigenvectors of the products
            rows, columns = _units(self._matrix(self.values.double()))
            lefts, rights = _scaled(self.lefts, rows), _scaled(self.rights, columns)
            left = _eigenvectors("lefts", _pooled(lefts, rights)) / rows[:, None]
            right = _eigenvectors("rights", _pooled(rights, lefts)) / columns[:, None]
        own = left.square().T @ self._matrix(self.values.to(left.dtype)) @ right.square()
        values = self._plus_products_in(left, right, own)
        # Products of low rank leave eigenvalues of rounding, some above zero: where D has nothing, these are no
        # precision. D's own share is exact however small it is beside the products, and so it always counts.
        rounding = self.size * torch.finfo(values.dtype).eps * values.detach().max()
        singular = (own <= 0) & (values <= rounding)
        if bool(singular.any()) or not bool((values > 0).all()):
            least = float(values.min())
            raise ValueError(f"the precision must be positive definite, but has an eigenvalue {least:.3g}; add a prior")
        return left, right, values

    def _plus_products_in(self, left: Tensor, right: Tensor, total: Tensor) -> Tensor:
        """``total`` plus the diagonal of (left ⊗ right)ᵀ Σ_k (B_k ⊗ A_k) (left ⊗ right), [O, I]."""
        for b, a in zip(self.lefts, self.rights, strict=True):
            # sums in single precision have eigenvalues a little below zero, and a large one on the other side would
            # make of them more than the prior
            outputs = (left * (b.to(left.dtype) @ left)).sum(0).clamp(min=0)
            inputs = (right * (a.to(right.dtype) @ right)).sum(0).clamp(min=0)
            total = total + torch.outer(outputs, inputs)
        return total


def _units(values: Tensor) -> tuple[Tensor, Tensor]:
    """√r and √c for which r_o c_i is nearest to D [O, I] in logs; ones where D has zeros."""
    if not bool((values > 0).all()):
        return values.new_ones(len(values)), values.new_ones(values.shape[1])
    # least squares in logs is a mean over rows and one over columns; half of the grand mean goes to each side, and the
    # last half is the root
    logs = values.log()
    middle = logs.mean() / 2
    return ((logs.mean(1) - middle) / 2).exp(), ((logs.mean(0) - middle) / 2).exp()


def _scaled(factors: list[Tensor], units: Tensor) -> list[Tensor]:
    """The factors in these units, in float64."""
    return [factor.double() / units[:, None] / units for factor in factors]


def _pooled(factors: list[Tensor], weights: list[Tensor]) -> Tensor:
    """Σ_k tr(weights_k) factors_k."""
    total = torch.zeros_like(factors[0])
    for factor, weight in zip(factors, weights, strict=True):
        total = total + weight.trace() * factor
    return total


def _eigenvectors(what: str, matrix: Tensor) -> Tensor:
    """Of a sum of outer products; eigenvalues below zero by more than rounding are an error."""
    values, vectors = torch.linalg.eigh((matrix + matrix.T) / 2)
    if bool(values[0] < -ROUNDING * values.abs().max()):
        rule = f"{what} must be positive semi-definite, but the smallest eigenvalue is {float(values[0]):.3g}"
        raise ValueError(f"{rule} and the largest {float(values[-1]):.3g}; is it a sum of outer products?")
    return vectors


def _ratio(factor: Tensor, other: Tensor) -> Tensor | None:
    """c with factor = c · other up to rounding, if there is one; gradients go through it."""
    square = other.square().sum()
    if not bool(square > 0):
        return None
    ratio = (factor * other).sum() / square
    apart = torch.linalg.vector_norm((factor - ratio * other).detach())
    size = torch.linalg.vector_norm(factor.detach())
    if bool(apart <= 16 * torch.finfo(factor.dtype).eps * size) and bool(ratio > 0):
        return ratio
    return None


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
    if not bias:
        return matrix.flatten(-2)
    return torch.cat([matrix[..., :-1].flatten(-2), matrix[..., -1]], -1)
