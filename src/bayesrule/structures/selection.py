"""Several pieces of a vector, given the rest."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from bayesrule.structures.base import Structure
from bayesrule.structures.blocks import joined
from bayesrule.structures.dense import Dense
from bayesrule.structures.sums import SMALL


def selected(precision: Structure, runs: Sequence[tuple[int, int]]) -> Structure:
    """The rows and columns of ``runs``, each from a start up to a stop: the precision of these given the rest.

    Exact for one run, and for several runs of up to 4096 variables in all of the precision. Of a larger one, what ties
    one run to another is left out: no structure but a dense one holds it.

    >>> selected(Dense(torch.tensor([[3.0, 1.0, 2.0], [1.0, 3.0, 0.0], [2.0, 0.0, 3.0]])), [(0, 1), (2, 3)]).matrix
    tensor([[3., 2.],
            [2., 3.]])
    """
    if len(runs) == 1 or precision.size > SMALL:
        return joined([precision.part(start, stop) for start, stop in runs])
    device = precision.diagonal.device
    index = torch.cat([torch.arange(start, stop, device=device) for start, stop in runs])
    return Dense(precision.dense()[index][:, index])
