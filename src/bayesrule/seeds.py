"""Seeds: what is random here is a function of whole numbers."""

from __future__ import annotations


def mixed(*key: int) -> int:
    """One well mixed seed from several numbers, by the finaliser of SplitMix64 (Steele 2014).

    >>> mixed(0, 1) != mixed(1, 0)
    True
    """
    state = 0
    for part in key:
        state = (state + part + 0x9E3779B97F4A7C15) % 2**64
        state = (state ^ state >> 30) * 0xBF58476D1CE4E5B9 % 2**64
        state = (state ^ state >> 27) * 0x94D049BB133111EB % 2**64
        state ^= state >> 31
    return state >> 1
