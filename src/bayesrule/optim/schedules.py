"""Learning-rate schedules: a factor on the learning rate as a function of how far the fit is.

A schedule has no state. What it needs of the past it computes from the history of the fit, so a resumed fit repeats
exactly.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from numbers import Integral
from typing import ClassVar

from bayesrule import naming
from bayesrule.naming import Named

History = Sequence[Mapping[str, float]]


class Schedule(Named, ABC):
    """A factor on the learning rate."""

    def __call__(self, done: float, history: History = ()) -> float:
        """The factor where the share ``done`` of all steps is done; ``history``: mean logs of each finished epoch."""
        if not 0 <= done <= 1:
            raise ValueError(f"done must be the share of all steps done, from 0 to 1, not {done}")
        return self.at(done, history)

    @abstractmethod
    def at(self, done: float, history: History) -> float:
        """The factor, for a share in [0, 1]."""


@dataclass(frozen=True)
class Constant(Schedule):
    """1.

    >>> Constant()(0.3)
    1.0
    """

    name: ClassVar[str] = "constant"

    def at(self, done: float, history: History) -> float:
        """1, whatever was done."""
        return 1.0


@dataclass(frozen=True)
class WarmUp(Schedule):
    """min(done/share, 1): a linear rise over the first ``share`` of the steps, then constant.

    >>> WarmUp(share=0.2)(0.1), WarmUp(share=0.2)(0.9)
    (0.5, 1.0)
    """

    name: ClassVar[str] = "warm-up"
    share: float = 0.1

    def __post_init__(self) -> None:
        if not 0 <= self.share <= 1:
            raise ValueError(f"share must be from 0 to 1, not {self.share}: the share of steps that the rise takes")

    def at(self, done: float, history: History) -> float:
        """The rise, or 1 after it."""
        return min(done / self.share, 1.0) if self.share > 0 else 1.0


@dataclass(frozen=True)
class Cosine(Schedule):
    """min(done/warm_up, 1) · ½(1 + cos(π·done)): a linear rise, times half a cosine over all steps.

    >>> [round(Cosine()(done), 3) for done in (0, 0.05, 0.1, 0.5, 1)]
    [0.0, 0.497, 0.976, 0.5, 0.0]
    """

    name: ClassVar[str] = "cosine"
    warm_up: float = 0.1

    def __post_init__(self) -> None:
        if not 0 <= self.warm_up <= 1:
            raise ValueError(f"warm_up must be from 0 to 1, not {self.warm_up}: the share of steps that the rise takes")

    def at(self, done: float, history: History) -> float:
        """The rise times the fall."""
        rise = min(done / self.warm_up, 1.0) if self.warm_up > 0 else 1.0
        return rise * (0.5 * (1 + math.cos(math.pi * done)))


@dataclass(frozen=True)
class Cyclic(Schedule):
    """low + (1 − low)·(1 − |2·frac(cycles·done) − 1|): up and down in straight lines (Smith 2017, "triangular").

    >>> [Cyclic(cycles=2, low=0.5)(done) for done in (0, 0.125, 0.25, 0.5, 0.75, 1)]
    [0.5, 0.75, 1.0, 0.5, 1.0, 0.5]
    """

    name: ClassVar[str] = "cyclic"
    cycles: int = 4
    low: float = 0.1

    def __post_init__(self) -> None:
        _check_whole("cycles", self.cycles, 1)
        if not 0 <= self.low <= 1:
            raise ValueError(f"low must be from 0 to 1, not {self.low}: it is the factor between two cycles")

    def at(self, done: float, history: History) -> float:
        """Where the line is."""
        return self.low + (1 - self.low) * (1 - abs(2 * (self.cycles * done % 1) - 1))


@dataclass(frozen=True)
class Plateau(Schedule):
    """factor^k, k the number of times that ``metric`` did not improve for more than ``patience`` epochs on end.

    An epoch improves if metric < best − threshold·|best|. For a positive metric these are the rules of torch's
    ReduceLROnPlateau.

    >>> losses = [{"loss": 1.0}, {"loss": 0.9}, {"loss": 0.9}, {"loss": 0.9}]
    >>> Plateau()(0.5, losses[:3]), Plateau()(0.5, losses)
    (1.0, 0.1)
    """

    name: ClassVar[str] = "plateau"
    metric: str = "loss"
    patience: int = 1
    factor: float = 0.1
    threshold: float = 1e-4

    def __post_init__(self) -> None:
        _check_whole("patience", self.patience, 0)
        if not 0 < self.factor < 1:
            raise ValueError(f"factor must be between 0 and 1, not {self.factor}: the learning rate is to fall")
        if not 0 <= self.threshold < 1:
            raise ValueError(
                f"threshold must be at least 0 and less than 1, not {self.threshold}: it is a relative gain"
            )

    def at(self, done: float, history: History) -> float:
        """The factor after all finished epochs, from the first on."""
        best, waited, falls = math.inf, 0, 0
        for epoch, logs in enumerate(history):
            value = self._value(logs, epoch)
            # the first epoch is always better: inf − threshold·inf would be NaN
            if best == math.inf or value < best - self.threshold * abs(best):
                best, waited = value, 0
            else:
                waited += 1
            if waited > self.patience:
                falls, waited = falls + 1, 0
        return self.factor**falls

    def _value(self, logs: Mapping[str, float], epoch: int) -> float:
        if self.metric not in logs:
            raise naming.unknown(f"metric in the logs of epoch {epoch}", self.metric, logs)
        return logs[self.metric]


@dataclass(frozen=True)
class Ramp(Schedule):
    """low^(1 − done): exponentially from ``low`` to 1, to see at which learning rate the loss falls, and breaks.

    >>> [round(Ramp(low=1e-4)(done), 6) for done in (0, 0.5, 1)]
    [0.0001, 0.01, 1.0]
    """

    name: ClassVar[str] = "ramp"
    low: float = 1e-6

    def __post_init__(self) -> None:
        if not 0 < self.low < 1:
            raise ValueError(f"low must be between 0 and 1, not {self.low}: it is the factor at the start")

    def at(self, done: float, history: History) -> float:
        """The power."""
        return self.low ** (1 - done)


SCHEDULES: dict[str, type[Schedule]] = {kind.name: kind for kind in (Constant, WarmUp, Cosine, Cyclic, Plateau, Ramp)}


def schedule(given: str | Schedule) -> Schedule:
    """A schedule by name or as an object.

    >>> schedule("cyclic")
    Cyclic(cycles=4, low=0.1)
    """
    return naming.choose("schedule", given, SCHEDULES, Schedule)


def robust_region(momentum: float, curvature: float) -> tuple[float, float]:
    """((1 − √μ)²/h, (1 + √μ)²/h): the learning rates at which momentum, not curvature, sets the pace.

    On a quadratic of curvature h gradient descent with momentum μ contracts at the rate √μ for every learning rate in
    this region, and more slowly, or not at all, outside it.

    >>> robust_region(momentum=0.25, curvature=1.0)
    (0.25, 2.25)
    """
    if not 0 <= momentum < 1:
        raise ValueError(
            f"momentum must be at least 0 and less than 1, not {momentum}: at 1 nothing ever comes to rest"
        )
    if not 0 < curvature < math.inf:
        raise ValueError(f"curvature must be positive and finite, not {curvature}: without it there is no optimum")
    root = math.sqrt(momentum)
    return (1 - root) ** 2 / curvature, (1 + root) ** 2 / curvature


def _check_whole(name: str, value: int, least: int) -> None:
    if isinstance(value, bool) or not isinstance(value, Integral) or value < least:
        raise ValueError(f"{name} must be a whole number of at least {least}, not {value!r}")
