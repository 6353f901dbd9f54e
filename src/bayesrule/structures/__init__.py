"""How a covariance is stored: what can be drawn from it, and what it costs to be far from its mean.

A structure describes a zero-mean Gaussian over one flat vector of P numbers.
"""

from __future__ import annotations

from bayesrule.structures.base import Structure
from bayesrule.structures.diagonal import Diagonal
from bayesrule.structures.low_rank import LowRank

AVAILABLE: dict[str, type[Structure]] = {kind.name: kind for kind in (Diagonal, LowRank)}

__all__ = ["AVAILABLE", "Diagonal", "LowRank", "Structure"]
