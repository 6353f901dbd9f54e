"""The one search behind quantiles that have no closed form."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from bayesrule import tracing

ROUNDS = 64
TRACED = 32
"""Rounds in a program, which cannot stop when all is told: a part in 4 · 10⁹ of where the search began."""


def bisect(low: Tensor, high: Tensor, below: Callable[[Tensor], Tensor], whole: bool = False) -> Tensor:
    """The least point of ``(low, high]`` where ``below`` is false, to a 2⁻⁶⁴th part; among whole numbers if ``whole``.

    >>> import torch
    >>> bisect(torch.zeros(1), torch.full((1,), 2.0), lambda x: x**2 < 2)
    tensor([1.4142])
    """
    for _ in range(TRACED if tracing.active() else ROUNDS):
        middle = (low + high) / 2
        if whole:
            middle = middle.floor()
        # Between neighbouring numbers there is no middle: all that the dtype can tell is told.
        # A program cannot tell, and goes on: nothing changes then.
        if not tracing.active() and not ((low < middle) & (middle < high)).any():
            break
        under = below(middle)
        low, high = torch.where(under, middle, low), torch.where(under, high, middle)
    return high
