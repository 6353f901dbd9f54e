"""A conformal test martingale: evidence, number by number, that a stream is not exchangeable with its reference."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from bayesrule.files import Tree

Floats = NDArray[np.float64]
Whole = NDArray[np.int64]

EXPONENTS = (0.1, 0.3, 0.5, 0.7, 0.9)
"""κ of the bets κ p^(κ−1), from the boldest, for changes that all can see, to one for a change of few examples."""
SLOPES = (0.5, 0.9)
"""ε of the bets 1 + ε(1 − 2p), for changes that move all scores a little."""
SIDE = len(EXPONENTS) + len(SLOPES)
"""Bets that scores are larger, which come first; as many that they are smaller follow."""
BLOCK = 512
"""Scores that are ranked among each other at a time."""
EDGE = 1e-12
"""p-values count as no nearer to 0 and 1: a bet pays less there than it might, never more."""

_KAPPA: Floats = np.array(EXPONENTS)[:, None]
_SLOPE: Floats = np.array(SLOPES)[:, None]
_SHARE = -math.log(2 * SIDE)  # log of the wealth that each bet has


@dataclass(frozen=True, eq=False)
class Martingale:
    """What a stream of scores has shown after ``seen`` of them; `after` gives what more of them show.

    ``past``: the scores of reference and stream, sorted. ``grown``: of each bet b, L_b = Σ_{i≤n} log f_b(p_i).
    ``begun``: log Σ_{k≤n} π_k exp(−L_b,k−1), over the examples k at which it may have begun. ``lowest``, ``turn``: the
    least L_b so far, and the example after it, from which on this bet has won most. ``alarm``, ``since``: the example
    at which the wealth reached 1/α, and the turn of the bet that had won most by then; 0 before. ``larger``: whether
    that was a bet on larger scores. ``seed``: of the numbers that break ties.
    """

    past: Floats
    reference: int
    level: float
    seed: int
    grown: Floats
    begun: Floats
    lowest: Floats
    turn: Whole
    alarm: int = 0
    since: int = 0
    larger: bool = True

    @classmethod
    def start(cls, reference: Floats, level: float, seed: int) -> Martingale:
        """Before the first score, with a wealth of 1. ``level``: α, the probability of a false alarm."""
        zeros = np.zeros(2 * SIDE)
        nothing = np.full(2 * SIDE, -np.inf)
        first = np.ones(2 * SIDE, dtype=np.int64)
        return cls(np.sort(reference), len(reference), level, seed, zeros, nothing, zeros, first)

    @property
    def seen(self) -> int:
        """How many scores of the stream there were."""
        return len(self.past) - self.reference

    @property
    def log_wealth(self) -> float:
        """The log of the wealth now."""
        return float(_log_wealth(self.grown[:, None], self.begun[:, None], np.array([self.seen]))[0])

    def after(self, scores: Floats) -> Martingale:
        """The martingale after more scores: the same, to the bit, however they are cut."""
        found = self
        for start in range(0, len(scores), BLOCK):
            found = found._after_block(scores[start : start + BLOCK])
        return found

    def p_values(self, scores: Floats) -> Floats:
        """What share of all scores up to and with its own is larger than each of at most `BLOCK` scores.

        Ties are broken by fresh uniform numbers u: p_n = (#{i ≤ n: s_i > s_n} + u_n #{i ≤ n: s_i = s_n})/n.
        """
        left, right = (np.searchsorted(self.past, scores, side) for side in ("left", "right"))
        earlier = np.tri(len(scores), dtype=bool)  # [n, i]: i ≤ n, with the score itself
        above = len(self.past) - right + ((scores[None] > scores[:, None]) & earlier).sum(1)
        equal = right - left + ((scores[None] == scores[:, None]) & earlier).sum(1)
        total = len(self.past) + np.arange(1, len(scores) + 1)
        # by position, so that a stream that is resumed goes on with the numbers it would have had
        uniform = np.random.Generator(np.random.PCG64(self.seed).advance(self.seen)).random(len(scores))
        p: Floats = (above + uniform * equal) / total
        return p

    def _after_block(self, scores: Floats) -> Martingale:
        gains = log_bets(self.p_values(scores))
        numbers = self.seen + np.arange(1, len(scores) + 1)
        # One after the other, from what was carried over: the same sums in the same order, wherever a stream is cut.
        grown = np.add.accumulate(np.hstack([self.grown[:, None], gains]), axis=1)
        entries = _log_entry(numbers) - grown[:, :-1]
        begun = np.logaddexp.accumulate(np.hstack([self.begun[:, None], entries]), axis=1)[:, 1:]
        lowest, turn = _lowest(self.lowest, self.turn, grown, numbers)
        found = replace(
            self,
            past=_merged(self.past, scores),
            grown=grown[:, -1],
            begun=begun[:, -1],
            lowest=lowest[:, -1],
            turn=turn[:, -1],
        )
        if self.alarm:
            return found
        rich = _log_wealth(grown[:, 1:], begun, numbers) >= -math.log(self.level)
        if not rich.any():
            return found
        at = int(rich.argmax())
        best = int((grown[:, at + 1] - lowest[:, at]).argmax())
        since, larger = int(turn[best, at]), best < SIDE
        return replace(found, alarm=int(numbers[at]), since=since, larger=larger)

    def state(self) -> Tree:
        """All of it as a tree of tensors and plain values."""
        arrays = {name: torch.from_numpy(getattr(self, name).copy()) for name in ("past", "grown", "begun", "lowest")}
        plain = {name: getattr(self, name) for name in ("reference", "level", "seed", "alarm", "since", "larger")}
        return {**arrays, "turn": torch.from_numpy(self.turn.copy()), **plain}

    @classmethod
    def from_state(cls, state: Tree) -> Martingale:
        """Undo `state`."""
        plain: dict[str, Any] = {}
        for name, value in state.items():
            plain[name] = value.cpu().numpy() if isinstance(value, torch.Tensor) else value
        return cls(**plain)


def log_bets(p: Floats) -> Floats:
    """Log f_b(p), [bets, n]: κ p^(κ−1) and 1 + ε(1 − 2p), that scores are larger, and the same of 1 − p, smaller.

    Each f_b has the integral 1 over [0, 1]: a fair bet if p is uniform.
    """
    p = p.clip(EDGE, 1 - EDGE)
    larger = _log_side(np.log(p), p)
    smaller = _log_side(np.log1p(-p), 1 - p)
    return np.vstack([larger, smaller])


def _log_side(log_p: Floats, p: Floats) -> Floats:
    return np.vstack([np.log(_KAPPA) + (_KAPPA - 1) * log_p, np.log1p(_SLOPE * (1 - 2 * p))])


def least_reference(level: float) -> int:
    """How many reference scores are enough for the plainest change, at the first example, to be told.

    Each new score is then larger than all of the reference, but not than those that have come since: the change becomes
    part of what the next score is ranked among, and if the reference is small, that is soon most of it.
    """
    size = 1
    while not _told(size, level):
        size += 1
    return size


def _told(size: int, level: float) -> bool:
    """Whether a power is to reach the alarm: p_n is uniform in (0, c), c = n/(size + n), and E[log p_n] = log c − 1."""
    numbers = np.arange(1, 10 * size + 1)
    gains = np.log(_KAPPA) + (_KAPPA - 1) * (np.log(numbers / (size + numbers)) - 1)
    most = np.add.accumulate(gains, axis=1).max() + _log_entry(np.array([1]))[0] + _SHARE
    return bool(most >= -math.log(level))


def _log_entry(numbers: Whole) -> Floats:
    """Log π_k, the share of the wealth that enters at example k: π_k = 1/log₂(k + 1) − 1/log₂(k + 2), in all 1.

    Nearly as slow as 1/k: a change after k quiet examples costs about log k + 2 log log k of evidence.
    """
    found: Floats = np.log(1 / np.log2(numbers + 1) - 1 / np.log2(numbers + 2))
    return found


def _log_wealth(grown: Floats, begun: Floats, numbers: Whole) -> Floats:
    """Log of 1/B Σ_b Σ_{k≤n} π_k Π_{i=k}^n f_b(p_i) + Σ_{k>n} π_k, the last not yet bet."""
    waiting = -np.log(np.log2(numbers + 2))
    found: Floats = np.logaddexp(np.logaddexp.reduce(grown + begun, axis=0) + _SHARE, waiting)
    return found


def _lowest(lowest: Floats, turn: Whole, grown: Floats, numbers: Whole) -> tuple[Floats, Whole]:
    """The least of L up to each example, and the example that came after it."""
    lows = np.minimum.accumulate(np.hstack([lowest[:, None], grown[:, 1:]]), axis=1)
    # the last example at which L was lower than ever, as a running maximum of numbers that only grow
    fresh = np.where(lows[:, 1:] < lows[:, :-1], numbers + 1, 0)
    turns = np.maximum.accumulate(np.hstack([turn[:, None], fresh]), axis=1)
    return lows[:, 1:], turns[:, 1:]


def _merged(past: Floats, scores: Floats) -> Floats:
    scores = np.sort(scores)
    return np.insert(past, np.searchsorted(past, scores), scores)
