"""What trainings with several seeds found: metrics, gains of one kind over another, and their curves."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from typing import Any

from matplotlib.axes import Axes

from bayesrule.experiments.base import Setting
from bayesrule.experiments.trials import Outcome, average, said

LEVEL = 0.95
"""Confidence of each bound of a mean over seeds."""
ACCURACY = 0.005
"""The margin of accuracy: what is less accurate by less than half a percentage point is not worse."""


def seeds(setting: Setting, count: int = 3) -> range:
    """Several seeds, other ones for another seed of the setting."""
    return range(setting.seed * 100, setting.seed * 100 + count)


def bounds(gains: Sequence[float]) -> tuple[float, float]:
    """The lower and the upper 95 % confidence bound of a mean gain, each one-sided, by Student's t.

    >>> bounds([1.0, 3.0, 2.0])
    (0.314..., 3.685...)
    """
    from scipy.stats import t

    centre, error = average(gains)
    if math.isnan(error):  # one seed, or a training that broke off, says nothing of the scatter
        return -math.inf, math.inf
    reach = float(t.ppf(LEVEL, len(gains) - 1)) * error
    return centre - reach, centre + reach


def not_worse(gains: Sequence[float], margin: float) -> bool | None:
    """Test of non-inferiority: whether a mean gain is above ``-margin``. None: these seeds cannot tell.

    True if the lower confidence bound of the mean gain is above ``-margin``, False if the upper one is below it. More
    noise widens the bounds, so it can undo a verdict but never make one.

    >>> not_worse([0.001, -0.001, 0.0], margin=0.005), not_worse([0.05, -0.06, 0.0], margin=0.005)
    (True, None)
    """
    low, high = bounds(gains)
    if low > -margin:
        return True
    return False if high < -margin else None


def alike(gains: Sequence[float], margin: float) -> bool | None:
    """Test of equivalence, two one-sided tests: whether a mean gain is between ``-margin`` and ``margin``.

    >>> alike([0.001, -0.001, 0.0], margin=0.005), alike([0.02, 0.021, 0.02], margin=0.005)
    (True, False)
    """
    return all_hold([not_worse(gains, margin), not_worse([-gain for gain in gains], margin)])


def all_hold(verdicts: Iterable[bool | None]) -> bool | None:
    """Whether all hold: one that does not is enough for False, and one that is undecided leaves the whole undecided.

    >>> all_hold([True, True]), all_hold([True, None]), all_hold([None, False])
    (True, None, False)
    """
    verdicts = list(verdicts)
    if False in verdicts:
        return False
    return None if None in verdicts else True


def better(gains: Sequence[float]) -> bool:
    """Whether a mean gain is above zero by more than two standard errors."""
    centre, error = average(gains)
    return centre - 2 * error > 0


def datasets(found: Sequence[Outcome]) -> list[str]:
    """The names of the data sets, in the order in which they come first."""
    return list(dict.fromkeys(outcome.data for outcome in found))


def chosen(found: Sequence[Outcome], data: str, what: str | None = None, finished: bool = False) -> list[Outcome]:
    """The trainings on one data set, of one kind if it is given; ``finished``: only those that did not break off."""
    kept = []
    for outcome in found:
        if outcome.data != data or (what is not None and outcome.what != what):
            continue
        if finished and outcome.failed:
            continue
        kept.append(outcome)
    return kept


def values(found: Sequence[Outcome], data: str, what: str, metric: str) -> list[float]:
    """A metric of one kind of training on one data set, by seed."""
    return [getattr(outcome, metric) for outcome in chosen(found, data, what)]


def by_kind(found: Sequence[Outcome], data: str, kinds: Iterable[str], metric: str) -> dict[str, list[float]]:
    """`values` of several kinds of training."""
    return {what: values(found, data, what, metric) for what in kinds}


def listed(groups: Mapping[str, Sequence[float]], digits: int = 4) -> str:
    """Mean and standard error of each group of values, in words.

    >>> listed({"a": [1.0, 3.0], "b": [2.0, 2.0]}, digits=1)
    '2.0 ± 1.0 (a), 2.0 ± 0.0 (b)'
    """
    return ", ".join(f"{said(group, digits)} ({name})" for name, group in groups.items())


def differences(values: Sequence[float], others: Sequence[float]) -> list[float]:
    """The first minus the second, seed by seed.

    >>> differences([3.0, 2.0], [1.0, 2.0])
    [2.0, 0.0]
    """
    return [value - other for value, other in zip(values, others, strict=True)]


def gains(found: Sequence[Outcome], data: str, what: str, other: str, metric: str) -> list[float]:
    """By how much a metric of one kind of training is above that of another, seed by seed."""
    return differences(values(found, data, what, metric), values(found, data, other, metric))


def plain(outcome: Outcome) -> dict[str, Any]:
    """An outcome as plain data, its curves included; what is infinite, since the training broke off, is None."""
    fields = asdict(outcome)
    for name, value in fields.items():
        if isinstance(value, float) and not math.isfinite(value):
            fields[name] = None
    return fields


def all_plain(found: Sequence[Outcome]) -> list[dict[str, Any]]:
    """All outcomes as plain data."""
    return [plain(outcome) for outcome in found]


def with_answers(questions: Sequence[Any], answers: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """The fields of each question together with its answer."""
    return [vars(question) | answer for question, answer in zip(questions, answers, strict=True)]


def curves(axes: Axes, found: Sequence[Outcome], metric: str) -> None:
    """The mean over seeds of a metric by epoch, a line for each kind of training."""
    for what in dict.fromkeys(outcome.what for outcome in found):
        runs = []
        for outcome in found:
            if outcome.what == what and not outcome.failed:
                runs.append([epoch[metric] for epoch in outcome.history])
        if runs:
            means = [sum(values) / len(values) for values in zip(*runs, strict=True)]
            axes.plot(range(1, len(means) + 1), means, label=what)
    axes.set(xlabel="epoch")
    axes.legend()
