"""Independent variables: Λ = diag(values)."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar

import torch
from torch import Tensor

from bayesrule.structures.base import Structure, check_positive


@dataclass(frozen=True, eq=False)
class Diagonal(Structure):
    """Λ = diag(values): P numbers to store, P to draw.

    >>> Diagonal(torch.tensor([0.25, 1.0])).variances
    tensor([4., 1.])
    """

    name: ClassVar[str] = "diagonal"
    values: Tensor

    def __post_init__(self) -> None:
        if self.values.ndim != 1:
            raise ValueError(f"values must be one vector, not {list(self.values.shape)}: flatten them")

    @property
    def size(self) -> int:
        """P."""
        return len(self.values)

    @property
    def diagonal(self) -> Tensor:
        """The values."""
        return self.values

    @property
    def variances(self) -> Tensor:
        """1 / values."""
        return 1 / self._positive

    @cached_property
    def _positive(self) -> Tensor:
        """The values, looked at once: a zero would give infinite draws without a word."""
        check_positive(self.values)
        return self.values

    def multiply(self, v: Tensor) -> Tensor:
        """values ∘ v."""
        return v * self.values.to(v.dtype)

    def solve(self, v: Tensor) -> Tensor:
        """v / values."""
        return v / self._positive.to(v.dtype)

    def sample(self, count: int, generator: torch.Generator | None = None) -> Tensor:
        """ε / √values with ε ~ N(0, I)."""
        rows = self.values.new_empty(count, self.size)
        self.fill(rows, generator)
        return rows

    def fill(self, rows: Tensor, generator: torch.Generator | None = None) -> None:
        """Draws where they are to be: a pass over memory takes a good part of the time of drawing."""
        rows.normal_(generator=generator).mul_(self._deviations)

    @cached_property
    def _deviations(self) -> Tensor:
        return self._positive.rsqrt()

    def logdet(self) -> Tensor:
        """Σ_j log values_j."""
        return self._positive.log().sum()

    def dense(self) -> Tensor:
        """diag(values)."""
        return self.values.diag()

    def part(self, start: int, stop: int) -> Diagonal:
        """Some of the values."""
        return Diagonal(self.values[start:stop])

    def __mul__(self, factor: float | Tensor) -> Diagonal:
        """Every value times the factor: one for all, or one for each."""
        return Diagonal(self.values * factor)

    def variance_along(self, j: Tensor) -> Tensor:
        """A Aᵀ with A = J / √values: K²P operations."""
        scaled = j * self._positive.rsqrt().to(j.dtype)
        return scaled @ scaled.mT
