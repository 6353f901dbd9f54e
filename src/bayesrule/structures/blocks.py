"""Independent pieces, each with its own structure: Λ = blockdiag(Λ_1, …, Λ_M)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from bayesrule.structures.base import Structure
from bayesrule.structures.diagonal import Diagonal


@dataclass(frozen=True, eq=False)
class Blocks(Structure):
    """Λ = blockdiag(Λ_1, …, Λ_M): ``parts`` over consecutive pieces of the vector, of any kinds.

    Such as one part for every layer of a network, in their order. Every cost is the sum of the parts' costs.

    >>> from bayesrule.structures import Dense, Diagonal
    >>> both = Blocks([Diagonal(torch.ones(2)), Dense(torch.eye(3))])
    >>> both.size, [part.name for part in both.parts]
    (5, ['diagonal', 'dense'])
    """

    name: ClassVar[str] = "blocks"
    parts: Sequence[Structure]

    def __post_init__(self) -> None:
        check_parts(self.parts)
        object.__setattr__(self, "parts", list(self.parts))

    @property
    def size(self) -> int:
        """P = Σ_m P_m."""
        return sum(part.size for part in self.parts)

    @property
    def diagonal(self) -> Tensor:
        """Those of the parts, one after the other."""
        return torch.cat([part.diagonal for part in self.parts])

    @property
    def variances(self) -> Tensor:
        """Those of the parts, one after the other."""
        return torch.cat([part.variances for part in self.parts])

    def multiply(self, v: Tensor) -> Tensor:
        """Λ_m v_m, one after the other."""
        return torch.cat([part.multiply(piece) for part, piece in self._pieces(v)], -1)

    def solve(self, v: Tensor) -> Tensor:
        """Λ_m⁻¹ v_m, one after the other."""
        return torch.cat([part.solve(piece) for part, piece in self._pieces(v)], -1)

    def sample(self, count: int, generator: torch.Generator | None = None) -> Tensor:
        """A draw from every part, side by side."""
        return torch.cat([part.sample(count, generator) for part in self.parts], 1)

    def logdet(self) -> Tensor:
        """Σ_m log |Λ_m|."""
        return torch.stack([part.logdet() for part in self.parts]).sum()

    def dense(self) -> Tensor:
        """Zeros between the parts."""
        return torch.block_diag(*(part.dense() for part in self.parts))  # type: ignore[no-untyped-call]

    def part(self, start: int, stop: int) -> Structure:
        """The parts, or what is left of them, between the two."""
        kept, first = [], 0
        for each in self.parts:
            low, high = max(start - first, 0), min(stop - first, each.size)
            if low < high:
                kept.append(each.part(low, high))
            first += each.size
        return joined(kept)

    def __mul__(self, factor: float | Tensor) -> Blocks:
        """Every part times the factor."""
        return Blocks([part * factor for part in self.parts])

    def quadratic(self, v: Tensor) -> Tensor:
        """Σ_m v_mᵀ Λ_m v_m."""
        return torch.stack([part.quadratic(piece) for part, piece in self._pieces(v)]).sum()

    def variance_along(self, j: Tensor) -> Tensor:
        """Σ_m J_m Λ_m⁻¹ J_mᵀ, J_m the columns of part m: one part's memory at a time."""
        total = j.new_zeros(())
        for part, piece in self._pieces(j):
            total = total + part.variance_along(piece)
        return total

    def _pieces(self, v: Tensor) -> Iterator[tuple[Structure, Tensor]]:
        """Every part with its columns of v."""
        return zip(self.parts, torch.split(v, [part.size for part in self.parts], -1), strict=True)


def check_parts(parts: Sequence[Structure]) -> None:
    """Refuse what is no structure, and nothing at all."""
    if not parts:
        raise ValueError("parts must hold at least one structure, not none")
    for index, part in enumerate(parts):
        if not isinstance(part, Structure):
            raise TypeError(f"parts[{index}] must be a structure, not {type(part).__name__}; see br.structures")


def joined(parts: Sequence[Structure]) -> Structure:
    """Parts one after the other; one alone stays what it is, and diagonals become one.

    >>> from bayesrule.structures import Diagonal
    >>> joined([Diagonal(torch.ones(2)), Diagonal(torch.zeros(1))])
    Diagonal(values=tensor([1., 1., 0.]))
    """
    if len(parts) == 1:
        return parts[0]
    if all(isinstance(part, Diagonal) for part in parts):
        return Diagonal(torch.cat([part.diagonal for part in parts]))
    return Blocks(parts)
