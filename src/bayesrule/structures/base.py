"""The contract of a structure."""

from __future__ import annotations

import dataclasses
import math
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from bayesrule import tracing
from bayesrule.naming import Named


class Structure(Named, ABC):
    """A precision Λ over a vector of ``size`` variables: symmetric, and no eigenvalue is negative.

    A curvature may be zero in some directions. It can be added, scaled and multiplied with; whatever needs Λ⁻¹ is an
    error until there is a prior beside it.

    Structures of two dtypes add up in the one that holds both. `multiply`, `solve`, `quadratic` and `variance_along`
    answer in the dtype of the vectors they are given, whatever that of Λ.
    """

    @property
    @abstractmethod
    def size(self) -> int:
        """P, the length of the vector."""

    @property
    def dtype(self) -> torch.dtype:
        """That which holds all numbers of Λ.

        >>> from bayesrule.structures import Blocks, Diagonal
        >>> Blocks([Diagonal(torch.ones(2)), Diagonal(torch.ones(2).double())]).dtype
        torch.float64
        """
        return common_dtype(list(_tensors(self)))

    @property
    @abstractmethod
    def diagonal(self) -> Tensor:
        """Λ_jj: the inverse variance of each variable given all others."""

    @property
    @abstractmethod
    def variances(self) -> Tensor:
        """(Λ⁻¹)_jj: the marginal variances."""

    @abstractmethod
    def multiply(self, v: Tensor) -> Tensor:
        """Λ v for every vector v of [..., P]."""

    @abstractmethod
    def solve(self, v: Tensor) -> Tensor:
        """Λ⁻¹ v for every vector v of [..., P]."""

    @abstractmethod
    def sample(self, count: int, generator: torch.Generator | None = None) -> Tensor:
        """``count`` draws from N(0, Λ⁻¹), one a row."""

    def fill(self, rows: Tensor, generator: torch.Generator | None = None) -> None:
        """Draws from N(0, Λ⁻¹) into memory that is there, one a row."""
        rows.copy_(self.sample(len(rows), generator))

    @abstractmethod
    def logdet(self) -> Tensor:
        """log |Λ|."""

    @abstractmethod
    def dense(self) -> Tensor:
        """Λ itself, [P, P]."""

    @abstractmethod
    def part(self, start: int, stop: int) -> Structure:
        """The rows and columns from ``start`` up to ``stop``: the precision of these variables given the others."""

    @abstractmethod
    def __mul__(self, factor: float | Tensor) -> Structure:
        """Λ times a positive number; a tensor hands gradients on."""

    def __add__(self, other: Structure) -> Structure:
        """Λ + Λ', in the simplest structure that holds the sum exactly; a `Sum` where there is none.

        >>> from bayesrule.structures import Dense, Diagonal
        >>> (Dense(torch.ones(2, 2)) + Diagonal(torch.tensor([1.0, 2.0]))).matrix
        tensor([[2., 1.],
                [1., 3.]])
        """
        from bayesrule.structures.algebra import add  # it knows all kinds, which know it

        return add(self, other)

    def quadratic(self, v: Tensor) -> Tensor:
        """vᵀ Λ v for a vector v."""
        return torch.dot(v, self.multiply(v))

    def variance_along(self, j: Tensor) -> Tensor:
        """J Λ⁻¹ Jᵀ [..., K, K] for J [..., K, P]: the covariance of K linear functions, such as outputs."""
        return j @ self.solve(j).mT

    def log_prob(self, v: Tensor) -> Tensor:
        """log N(v; 0, Λ⁻¹) = −½ (vᵀ Λ v − log |Λ| + P log 2π)."""
        return -0.5 * (self.quadratic(v) - self.logdet() + self.size * math.log(2 * math.pi))

    def tensors(self) -> Iterator[Tensor]:
        """All that Λ is stored as."""
        return _tensors(self)

    def to(self, target: torch.dtype | torch.device | str) -> Structure:
        """The same in another precision or on another device."""
        if all(tensor.dtype == target for tensor in _tensors(self)):
            return self  # with what it has worked out already
        fields = {f.name: _to(getattr(self, f.name), target) for f in dataclasses.fields(self)}  # type: ignore[arg-type]
        return type(self)(**fields)


def _to(value: Any, target: Any) -> Any:
    if isinstance(value, list):
        return [_to(each, target) for each in value]
    if isinstance(value, Tensor | Structure):
        return value.to(target)
    return value


def _tensors(value: Any) -> Iterator[Tensor]:
    """All tensors within a structure."""
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, list):
        for each in value:
            yield from _tensors(each)
    elif isinstance(value, Structure):
        for field in dataclasses.fields(value):  # type: ignore[arg-type]
            yield from _tensors(getattr(value, field.name))


def common_dtype(tensors: Sequence[Tensor]) -> torch.dtype:
    """The smallest dtype that holds the numbers of all.

    >>> common_dtype([torch.ones(2), torch.ones(1).double()])
    torch.float64
    """
    found = tensors[0].dtype
    for tensor in tensors[1:]:
        found = torch.promote_types(found, tensor.dtype)
    return found


def check_sound(precision: Structure) -> None:
    """Refuse a precision that is not finite, or not positive definite, before anything is drawn from it.

    >>> from bayesrule.structures import Diagonal
    >>> check_sound(Diagonal(torch.tensor([1.0, -1.0])))
    Traceback (most recent call last):
    ValueError: the precision (diagonal) has numbers on its diagonal that are not positive
    """
    for tensor in precision.tensors():
        if not bool(tensor.isfinite().all()):
            raise ValueError(f"the precision ({precision.name}) holds NaN or infinite values")
    if not bool((precision.diagonal > 0).all()):
        raise ValueError(f"the precision ({precision.name}) has numbers on its diagonal that are not positive")
    # What is needed for it, a root or eigenvalues, is kept for the first draw.
    if not bool(precision.logdet().isfinite()):
        raise ValueError(f"the precision ({precision.name}) is not positive definite")


def check_positive(values: Tensor) -> None:
    """Refuse a diagonal that has no inverse.

    >>> check_positive(torch.tensor([1.0, 0.0]))
    Traceback (most recent call last):
    ValueError: values must be positive for an inverse, but one is 0; add a prior
    """
    if not tracing.holds(values > 0):
        least = float(values.min())
        raise ValueError(f"values must be positive for an inverse, but one is {least:.3g}; add a prior")
