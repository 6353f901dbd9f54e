"""How a precision matrix is stored, and the algebra of precisions.

A structure is the precision Λ = Σ⁻¹ of a Gaussian over one flat vector of P variables, or the curvature that is added
to one: natural parameters add, so that Λ_posterior = Λ_prior + G/η is one line whatever the two structures are.
"""

from __future__ import annotations

from bayesrule.structures.algebra import common_bounds, pooled
from bayesrule.structures.base import Structure, check_sound
from bayesrule.structures.blocks import Blocks, joined
from bayesrule.structures.dense import Dense
from bayesrule.structures.diagonal import Diagonal
from bayesrule.structures.kronecker import Kronecker
from bayesrule.structures.low_rank import LowRank
from bayesrule.structures.relative import relative_eigenvalues
from bayesrule.structures.selection import selected
from bayesrule.structures.sums import Sum

AVAILABLE: dict[str, type[Structure]] = {kind.name: kind for kind in (Diagonal, LowRank, Kronecker, Dense, Blocks, Sum)}

__all__ = [
    "AVAILABLE",
    "Blocks",
    "Dense",
    "Diagonal",
    "Kronecker",
    "LowRank",
    "Structure",
    "Sum",
    "check_sound",
    "common_bounds",
    "joined",
    "pooled",
    "relative_eigenvalues",
    "selected",
]
