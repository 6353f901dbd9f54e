"""The scores that a leaderboard shows, what they mean, and which value is best."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import NamedTuple

UP, DOWN = math.inf, -math.inf


class Measure(NamedTuple):
    """A column of the leaderboard. ``goal`` is the ideal value: +∞, −∞ or a number; None where there is no better."""

    label: str
    goal: float | None
    says: str

    def best(self, values: Mapping[str, float]) -> set[str]:
        """Whose value is nearest to the goal, as far as three decimals can tell.

        >>> MEASURES["coverage_90"].best({"a": 0.86, "b": 0.93, "c": 1.0})
        {'b'}
        """
        if self.goal is None or len(values) < 2:
            return set()
        far = {}
        for name, value in values.items():
            seen = float(number(value).replace(",", ""))  # as the table shows it: what looks equal is equally good
            if self.goal == UP:
                far[name] = -seen
            elif self.goal == DOWN:
                far[name] = seen
            else:
                far[name] = abs(seen - self.goal)
        return {name for name, distance in far.items() if distance <= min(far.values()) + 1e-9}


MEASURES = {
    "accuracy": Measure("accuracy", UP, "share of test examples whose most probable class is the true one"),
    "rmse": Measure("RMSE", DOWN, "root of the mean squared error, in the units of the target"),
    "r2": Measure("R²", UP, "share of the targets' variance that the mean explains: 1 is all, 0 as good as their mean"),
    "nll": Measure("NLL", DOWN, "minus the mean log-probability of what was true: sure and wrong costs most"),
    "brier": Measure("Brier", DOWN, "mean squared distance between probabilities and the truth, from 0 to 2"),
    "ece": Measure(
        "ECE (null)",
        DOWN,
        "mean gap between confidence and accuracy: 0.02 is two percentage points. In brackets what a perfectly "
        "calibrated prediction would have on so few examples, on average: below that it is as good as it can be seen",
    ),
    "crps": Measure("CRPS", DOWN, "distance between predicted distribution and truth, in the units of the target"),
    "coverage_90": Measure("coverage 90 %", 0.9, "share of test targets inside their 90 % intervals: should be 0.9"),
    "width_90": Measure("width 90 %", None, "mean width of the 90 % intervals: narrow is good if coverage is right"),
    "agreement": Measure("agree", UP, "share of test inputs at which it prefers the class that the reference does"),
    "total_variation": Measure("TV", DOWN, "total variation: mean distance from the reference's probabilities, 0 to 1"),
    "wasserstein": Measure("W2", DOWN, "Wasserstein: mean distance from the reference's law, in units of the target"),
    "auroc_ood": Measure("OOD AUROC", UP, "chance that an out-of-distribution example is less certain than a test one"),
}
"""By the names of `bayesrule.evaluate`, in the order of the columns."""


def number(value: float) -> str:
    """A score for people.

    >>> number(0.97214), number(-1.5), number(12345.6), number(2.5e-7)
    ('0.972', '-1.500', '12,345.6', '2.50e-07')
    """
    size = abs(value)
    if size == 0 or 1e-3 <= size < 100:
        return f"{value:.3f}"
    if 100 <= size < 1e6:
        return f"{value:,.1f}"
    return f"{value:.2e}"
