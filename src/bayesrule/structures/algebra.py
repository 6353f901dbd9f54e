"""Λ + Λ', for every two kinds."""

from __future__ import annotations

from itertools import pairwise

import torch

from bayesrule.structures.base import Structure
from bayesrule.structures.blocks import Blocks, joined
from bayesrule.structures.dense import Dense
from bayesrule.structures.diagonal import Diagonal
from bayesrule.structures.kronecker import Kronecker
from bayesrule.structures.low_rank import LowRank
from bayesrule.structures.sums import Sum


def add(first: Structure, second: Structure) -> Structure:
    """The sum in the simplest structure that holds it exactly.

    | | diagonal | low rank | Kronecker | dense |
    | --- | --- | --- | --- | --- |
    | **diagonal** | diagonal | low rank | Kronecker | dense |
    | **low rank** | | low rank of both, or a `Sum` if one is of a covariance | a `Sum` | dense |
    | **Kronecker** | | | Kronecker with the products of both | dense |
    | **dense** | | | | dense |

    Blocks are added piece by piece, between the indices at which both are cut. A sum of two dtypes is in the one that
    holds both.
    """
    if first.size != second.size:
        raise ValueError(f"precisions must be of the same size to be added, not {first.size} and {second.size}")
    # before all else, so that no kind has to know what to do with numbers of two dtypes
    common = torch.promote_types(first.dtype, second.dtype)
    first, second = first.to(common), second.to(common)
    if isinstance(first, Sum) or isinstance(second, Sum):
        return _into_sum(first, second)
    if isinstance(first, Blocks) or isinstance(second, Blocks):
        return _by_pieces(first, second)
    # None where neither kind holds both: a sum is exact, where the nearest simple structure would not be
    return _pair(first, second) or _pair(second, first) or Sum([first, second])


def _pair(first: Structure, second: Structure) -> Structure | None:
    """The sum where ``first`` knows how to take in ``second``."""
    if isinstance(second, Diagonal):
        if isinstance(first, Diagonal):
            return Diagonal(first.values + second.values)
        if isinstance(first, LowRank | Kronecker):
            return first.plus_diagonal(second.values)
    if isinstance(first, Dense):
        if isinstance(second, Diagonal):
            return Dense.derived(first.matrix.diagonal_scatter(first.diagonal + second.values))
        return Dense.derived(first.matrix + second.dense())
    if isinstance(first, Kronecker) and isinstance(second, Kronecker):
        if first.shape == second.shape and first.bias == second.bias:
            return first.plus_products(second)
        return None
    if isinstance(first, LowRank) and isinstance(second, LowRank) and first.of == second.of == "precision":
        return LowRank(first.values + second.values, torch.cat([first.factor, second.factor], 1))
    return None


def _into_sum(first: Structure, second: Structure) -> Structure:
    """A sum with one more part, or with that part in the first of its parts that can take it in."""
    parts = _summands(first)
    for new in _summands(second):
        for index, part in enumerate(parts):
            both = part + new
            if not isinstance(both, Sum):
                parts[index] = both
                break
        else:
            parts.append(new)
    if len(parts) == 1:
        return parts[0]
    return Sum(parts)


def _summands(structure: Structure) -> list[Structure]:
    if isinstance(structure, Sum):
        return list(structure.parts)
    return [structure]


def _by_pieces(first: Structure, second: Structure) -> Structure:
    """Piece by piece; a single piece of which one side is in blocks that the other is not is dense, or a `Sum`."""
    found = []
    bounds = common_bounds(first, second)
    for start, stop in pairwise(bounds):
        left, right = first.part(start, stop), second.part(start, stop)
        if not isinstance(left, Blocks) and not isinstance(right, Blocks):
            found.append(left + right)  # not for blocks, which would come back here for ever
        elif isinstance(left, Dense) or isinstance(right, Dense):
            found.append(Dense.derived(left.dense() + right.dense()))
        else:
            found.append(Sum([left, right]))
    return joined(found)


def common_bounds(first: Structure, second: Structure) -> list[int]:
    """The indices from 0 to P at which both can be cut without a loss, of those between the parts of blocks.

    >>> common_bounds(Blocks([Diagonal(torch.ones(2)), Dense(torch.eye(3))]), Diagonal(torch.ones(5)))
    [0, 2, 5]
    """
    found = [0]
    for index in sorted({*_bounds(first), *_bounds(second)}):
        if _cuts(first, index) and _cuts(second, index):
            found.append(index)
    return [*found, first.size]


def _bounds(structure: Structure) -> list[int]:
    """The indices between the parts of blocks, those of blocks within them included."""
    if not isinstance(structure, Blocks):
        return []
    found, start = [], 0
    for part in structure.parts:
        found += [start, *(start + bound for bound in _bounds(part))]
        start += part.size
    return found[1:]


def _cuts(structure: Structure, index: int) -> bool:
    """Whether a precision has nothing but zeros between what is before an index and what is from it on."""
    if isinstance(structure, Diagonal):
        return True
    if isinstance(structure, Blocks):
        start = 0
        for part in structure.parts:
            if start < index < start + part.size:
                return _cuts(part, index - start)
            start += part.size
        return True
    return False


def pooled(structure: Structure) -> Structure:
    """The structure with one Kronecker product in the place of several, see `Kronecker.pooled`, in all its blocks."""
    if isinstance(structure, Kronecker):
        return structure.pooled()
    if isinstance(structure, Blocks):
        return joined([pooled(part) for part in structure.parts])
    return structure
