"""Draws in cycles of a learning rate."""

from __future__ import annotations

from numbers import Integral

from bayesrule.methods.sampling import spread


def check_cycles(cycles: int, draws: int) -> None:
    """Refuse what is no number of cycles, or more of them than draws."""
    if isinstance(cycles, bool) or not isinstance(cycles, Integral) or not 0 <= cycles <= draws:
        raise ValueError(f"cycles must be a whole number from 0 to draws={draws}, not {cycles!r}")


def kept_in_cycles(steps: int, draws: int, cycles: int) -> set[int]:
    """After which of so many steps a draw is kept: in the second half of each cycle, or all over if there is none.

    >>> sorted(kept_in_cycles(8, 4, cycles=2)), sorted(kept_in_cycles(8, 4, cycles=0))
    ([3, 4, 7, 8], [2, 4, 6, 8])
    """
    if not cycles:
        return spread(0, steps, draws)
    kept: set[int] = set()
    for cycle in range(cycles):
        first, last = steps * cycle // cycles, steps * (cycle + 1) // cycles
        share = draws * (cycle + 1) // cycles - draws * cycle // cycles
        kept |= spread((first + last) // 2, last, share)
    return kept
