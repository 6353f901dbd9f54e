"""Precisions that add up to no simpler structure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar

import torch
from torch import Tensor

from bayesrule.structures.base import Structure
from bayesrule.structures.blocks import Blocks, check_parts
from bayesrule.structures.dense import Dense
from bayesrule.structures.diagonal import Diagonal
from bayesrule.structures.kronecker import Kronecker
from bayesrule.structures.low_rank import LowRank

SMALL = 4096
"""Variables of which a dense matrix is no trouble: 128 MB in float64, and seconds for its factor."""


@dataclass(frozen=True, eq=False)
class Sum(Structure):
    """Λ = Σ_k Λ_k of ``parts`` of different kinds, such as a low-rank prior and the Kronecker products of a curvature.

    Products with Λ, and so the quadratic form that a fit needs of its prior, are exact. For Λ⁻¹, log |Λ| and draws it
    is replaced by its `root`: exact up to 4096 variables, where it is a dense matrix. Above, one part is kept, and the
    parts that no kind holds together with it enter by their diagonals. Kept are, of what there is, a dense matrix,
    blocks, Kronecker products, low rank of a covariance or low rank of a precision, in this order; of two of the same
    kind, that with the larger trace.

    >>> from bayesrule.structures import Kronecker, LowRank
    >>> few = LowRank(torch.ones(2), torch.ones(2, 1))
    >>> both = few + Kronecker.of(torch.eye(1), torch.eye(2))
    >>> both.name, both.root.name, both.diagonal
    ('sum', 'dense', tensor([3., 3.]))
    """

    name: ClassVar[str] = "sum"
    parts: Sequence[Structure]

    def __post_init__(self) -> None:
        check_parts(self.parts)
        sizes = sorted({part.size for part in self.parts})
        if len(sizes) != 1:
            raise ValueError(f"parts must be precisions of the same size, not of {sizes}")
        object.__setattr__(self, "parts", list(self.parts))

    @property
    def size(self) -> int:
        """P."""
        return self.parts[0].size

    @cached_property
    def root(self) -> Structure:
        """What stands for Λ where it has to be inverted."""
        if self.size <= SMALL:
            return Dense.derived(self.dense())
        root, *others = sorted(self.parts, key=_first_to_keep)
        for part in others:
            both = root + part
            if isinstance(both, Sum):  # no kind holds both
                both = root + Diagonal(part.diagonal)
            root = both
        return root

    @property
    def diagonal(self) -> Tensor:
        """Σ_k diag Λ_k."""
        return torch.stack([part.diagonal for part in self.parts]).sum(0)

    @property
    def variances(self) -> Tensor:
        """Those of the root."""
        return self.root.variances

    def multiply(self, v: Tensor) -> Tensor:
        """Σ_k Λ_k v."""
        return torch.stack([part.multiply(v) for part in self.parts]).sum(0)

    def solve(self, v: Tensor) -> Tensor:
        """By the root."""
        return self.root.solve(v)

    def sample(self, count: int, generator: torch.Generator | None = None) -> Tensor:
        """From the root."""
        return self.root.sample(count, generator)

    def logdet(self) -> Tensor:
        """That of the root."""
        return self.root.logdet()

    def dense(self) -> Tensor:
        """Σ_k Λ_k."""
        return torch.stack([part.dense() for part in self.parts]).sum(0)

    def part(self, start: int, stop: int) -> Structure:
        """The sum of the parts' parts."""
        first, *rest = (part.part(start, stop) for part in self.parts)
        for other in rest:
            first = first + other
        return first

    def __mul__(self, factor: float | Tensor) -> Sum:
        """Every part times the factor."""
        return Sum([part * factor for part in self.parts])

    def variance_along(self, j: Tensor) -> Tensor:
        """By the root."""
        return self.root.variance_along(j)


def _first_to_keep(part: Structure) -> tuple[int, bool, float]:
    """Sorts parts into the order that `Sum` names, whatever the order in which they were added."""
    # a dense matrix first, since it takes everything in; a diagonal last, since everything takes it in
    order = [Dense, Blocks, Kronecker, LowRank, Sum, Diagonal]
    of_precision = isinstance(part, LowRank) and part.of == "precision"
    trace = float(part.diagonal.detach().double().sum())
    return order.index(type(part)), of_precision, -trace
