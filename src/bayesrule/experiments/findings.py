"""What trainings with several seeds found: metrics, gains of one kind over another, and their curves."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from matplotlib.axes import Axes

from bayesrule.experiments.base import Setting
from bayesrule.experiments.trials import Trial, average


def seeds(setting: Setting, count: int = 3) -> range:
    """Several seeds, other ones for another seed of the setting."""
    return range(setting.seed * 100, setting.seed * 100 + count)


def not_worse(gains: Sequence[float]) -> bool:
    """Whether a mean gain is not below zero by more than two standard errors."""
    centre, error = average(gains)
    return centre >= 0 or centre + 2 * error >= 0


def better(gains: Sequence[float]) -> bool:
    """Whether a mean gain is above zero by more than two standard errors."""
    centre, error = average(gains)
    return centre - 2 * error > 0


def values(found: Sequence[Trial], data: str, what: str, metric: str) -> list[float]:
    """A metric of one kind of training on one data set, by seed."""
    return [getattr(t, metric) for t in found if t.data == data and t.what == what]


def gains(found: Sequence[Trial], data: str, what: str, other: str, metric: str) -> list[float]:
    """By how much a metric of one kind of training is above that of another, seed by seed."""
    pairs = zip(values(found, data, what, metric), values(found, data, other, metric), strict=True)
    return [a - b for a, b in pairs]


def plain(trial: Trial) -> dict[str, Any]:
    """A trial as plain data, its curves included; what is infinite, since the training broke off, is None."""
    return {k: None if isinstance(v, float) and not math.isfinite(v) else v for k, v in asdict(trial).items()}


def curves(axes: Axes, found: Sequence[Trial], metric: str) -> None:
    """The mean over seeds of a metric by epoch, a line for each kind of training."""
    for what in dict.fromkeys(t.what for t in found):
        runs = [[epoch[metric] for epoch in t.history] for t in found if t.what == what and not t.failed]
        if runs:
            means = [sum(values) / len(values) for values in zip(*runs, strict=True)]
            axes.plot(range(1, len(means) + 1), means, label=what)
    axes.set(xlabel="epoch")
    axes.legend()
