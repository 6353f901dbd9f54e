"""Independent pieces, each with its own structure: Σ = blockdiag(Σ_1, …, Σ_M)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from bayesrule.structures.base import Structure


@dataclass(frozen=True, eq=False)
class Blocks(Structure):
    """Σ = blockdiag(Σ_1, …, Σ_M): ``parts`` over consecutive pieces of the vector, of any kinds.

    Such as one part for every parameter of a network, in their order. Every cost is the sum of the parts' costs.

    >>> from bayesrule.structures import Diagonal, LowRank
    >>> both = Blocks([Diagonal(torch.ones(2)), LowRank(torch.ones(3), torch.zeros(3, 1))])
    >>> both.size, [part.name for part in both.parts]
    (5, ['diagonal', 'low-rank'])
    """

    name: ClassVar[str] = "blocks"
    parts: Sequence[Structure]

    def __post_init__(self) -> None:
        if not self.parts:
            raise ValueError("parts must hold at least one structure, not none")
        for index, part in enumerate(self.parts):
            if not isinstance(part, Structure):
                raise TypeError(f"parts[{index}] must be a structure, not {type(part).__name__}; see br.structures")
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
    def precision_diagonal(self) -> Tensor:
        """Those of the parts, one after the other."""
        return torch.cat([part.precision_diagonal for part in self.parts])

    def sample(self, count: int, generator: torch.Generator | None = None) -> Tensor:
        """A draw from every part, side by side."""
        return torch.cat([part.sample(count, generator) for part in self.parts], 1)

    def quadratic(self, v: Tensor) -> Tensor:
        """Σ_m v_mᵀ Σ_m⁻¹ v_m."""
        return torch.stack([part.quadratic(piece) for part, piece in self._pieces(v)]).sum()

    def logdet(self) -> Tensor:
        """Σ_m log |Σ_m|."""
        return torch.stack([part.logdet() for part in self.parts]).sum()

    def multiply(self, v: Tensor) -> Tensor:
        """Σ_m v_m, one after the other."""
        return torch.cat([part.multiply(piece) for part, piece in self._pieces(v)], -1)

    def variance_along(self, j: Tensor) -> Tensor:
        """Σ_m J_m Σ_m J_mᵀ, J_m the columns of part m: one part's memory at a time."""
        (first, piece), *rest = self._pieces(j)
        total = first.variance_along(piece)
        for part, piece in rest:
            total = total + part.variance_along(piece)
        return total

    def _pieces(self, v: Tensor) -> list[tuple[Structure, Tensor]]:
        pieces = torch.split(v, [part.size for part in self.parts], -1)
        return list(zip(self.parts, pieces, strict=True))
