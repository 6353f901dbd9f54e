"""The first line of a report: how good the best method is, and whether it beats the best baseline."""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor

from bayesrule.evaluate import flat
from bayesrule.report.comparison import Comparison, Entry, by_nll
from bayesrule.report.measures import number

NORMAL_95 = 1.96  # standard errors on both sides of a mean


class Gain(NamedTuple):
    """By how much a method's NLL is below another's, example by example: the mean and the half of its 95 % interval."""

    mean: float
    half: float

    @property
    def says(self) -> str:
        """What the interval allows to say of the method."""
        if self.mean > self.half:
            return "better than"
        return "worse than" if self.mean < -self.half else "not distinguishable from"


def verdict(comparison: Comparison) -> str:
    """One line: the best method's score, and the best baseline's NLL beside its own.

    The two predict the same examples, so that their difference is far less uncertain than either NLL.
    """
    best = comparison.ranked[0]
    said = f"{best.name} {_good(best)} on {len(comparison.split.test[1])} test examples"
    if not comparison.baselines:
        return f"{said}."
    rival = by_nll(comparison.baselines)[0]
    found = gain(best, rival, comparison.split.test[1])
    return (
        f"{said}, and is {found.says} the best baseline, {rival.name}: NLL {number(best.scores['nll'])} against "
        f"{number(rival.scores['nll'])}, {number(abs(found.mean))} ± {number(found.half)} "
        f"{'lower' if found.mean >= 0 else 'higher'}."
    )


def gain(entry: Entry, rival: Entry, y: Tensor) -> Gain:
    """How much more probable the targets are under an entry than under its rival, in nats an example."""
    more = flat(entry.prediction.log_prob(y)) - flat(rival.prediction.log_prob(y))
    half = NORMAL_95 * float(more.std()) / len(more) ** 0.5 if len(more) > 1 else float("inf")
    return Gain(float(more.mean()), half)


def _good(entry: Entry) -> str:
    """The score that everybody knows, in words."""
    scores = entry.scores
    if "accuracy" in scores:
        return f"is right in {100 * scores['accuracy']:.1f} % of cases"
    said = f"is wrong by {number(scores['rmse'])} (RMSE)"
    if scores.get("r2", 0) <= 0:
        return said
    return f"explains {100 * scores['r2']:.0f} % of the variance, {said},"
