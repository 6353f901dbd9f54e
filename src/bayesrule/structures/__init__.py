"""How a covariance is stored: what can be drawn from it, and what it costs to be far from its mean.

A structure describes a zero-mean Gaussian over one flat vector of P numbers.
"""

from __future__ import annotations

from bayesrule.structures.base import Structure
from bayesrule.structures.blocks import Blocks
from bayesrule.structures.dense import Dense
from bayesrule.structures.diagonal import Diagonal
from bayesrule.structures.kronecker import Kronecker
from bayesrule.structures.low_rank import LowRank
from bayesrule.structures.scaled import Scaled
from bayesrule.structures.spiked import Spiked

AVAILABLE: dict[str, type[Structure]] = {
    kind.name: kind for kind in (Diagonal, LowRank, Spiked, Kronecker, Dense, Blocks, Scaled)
}

__all__ = ["AVAILABLE", "Blocks", "Dense", "Diagonal", "Kronecker", "LowRank", "Scaled", "Spiked", "Structure"]
