"""Sets and intervals that hold the truth as often as promised, whatever the prediction: split conformal prediction.

A score s(x, y) says how odd a target is under the prediction. Of n examples that the prediction has not been made
from, the threshold is the ⌈(n + 1) level⌉-th smallest score. A new example of the same kind is as likely to have any
rank among the n + 1, so that P(s ≤ threshold) is at least ``level``, and at most 1/(n + 1) more if no scores are equal
(Vovk et al. 2005).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from math import ceil
from typing import Any, TypeAlias

import numpy as np
import torch
from torch import Tensor

from bayesrule.files import Tree
from bayesrule.naming import unknown
from bayesrule.predictions.base import Prediction, fraction
from bayesrule.predictions.binary import Binary
from bayesrule.predictions.classes import Classes
from bayesrule.predictions.counts import Counts
from bayesrule.predictions.frames import percent
from bayesrule.predictions.numbers import Numbers
from bayesrule.predictions.positive_reals import PositiveReals
from bayesrule.seeds import mixed

Group: TypeAlias = str | int | bool
SCORES = ("aps", "randomised-aps")  # of classes; numbers have one
CALIBRATION, NEW = range(2)  # what the random numbers of a score are for


def needed(level: float) -> int:
    """The fewest examples that a threshold of this level can be calibrated on: ⌈level/(1 − level)⌉.

    >>> needed(0.9), needed(0.95), needed(0.999)
    (9, 19, 999)
    """
    exact = _exact(level)
    return ceil(exact / (1 - exact))


def threshold(scores: Tensor, level: float) -> Tensor:
    """The ⌈(n + 1) level⌉-th smallest of scores ``[n, ...]``, for each place of the other dimensions.

    >>> threshold(torch.arange(1.0, 20.0), 0.9)  # the 18th of 19
    tensor(18.)
    """
    n = len(scores)
    rank = ceil((n + 1) * _exact(level))
    if rank > n:
        short = f"held must have at least {needed(level)} examples for level={level:g}: got {n}"
        raise ValueError(f"{short}; hold out more, or promise a lower level")
    return scores.kthvalue(rank, 0).values


def _exact(level: float) -> Fraction:
    """A level as it was typed: 0.07 · 100 is 7, where the product of floats is above it."""
    return Fraction(str(float(fraction("level", level))))


@dataclass(frozen=True, eq=False)
class Conformal:
    """What calibration has found: a threshold for each group and place of a target, and how scores are made.

    ``thresholds`` are ``[G, ...]`` for G groups and targets ``[B, ...]``; without ``groups`` G is 1. ``rows`` are the
    examples of each group. ``samples`` and ``seed`` are those of the predictions: others would be another score.

    >>> from bayesrule.predictions import Reals
    >>> y = torch.linspace(-3, 3, 99)  # a prediction that is too sure
    >>> promise = calibrate(Reals(torch.zeros(1, 99), torch.ones(())), y, level=0.9)
    >>> low, high = promise.intervals(Reals(torch.zeros(1, 1), torch.ones(())))
    >>> round(float(high), 2), promise.says
    (2.76, '90 % of intervals hold the truth, as calibrated on 99 rows')
    """

    level: float
    score: str
    thresholds: Tensor
    rows: tuple[int, ...]
    groups: tuple[Group, ...] = ()
    samples: int = 32
    seed: int = 0

    def sets(self, prediction: Prediction, groups: Any = None, first: int = 0) -> Tensor:
        """The classes whose score is at most the threshold, as a mask ``[B, C, ...]``.

        ``first``: how many examples came before these, where a long table is predicted in parts: their random numbers
        are left out, so that the sets are those of the whole.
        """
        classes = _classes(prediction)
        if classes is None or self.score not in SCORES:
            raise TypeError(f"sets are of classes, and this is about {_kind(prediction)}: ask for intervals")
        found = class_scores(classes, self.score, mixed(self.seed, NEW), first)
        return found <= self._thresholds(len(prediction), groups).to(found.device).unsqueeze(1)

    def intervals(self, prediction: Prediction, groups: Any = None) -> tuple[Tensor, Tensor]:
        """Lower and upper ends, of the targets' shape: the prediction's own, moved out by ``threshold`` deviations."""
        if not isinstance(prediction, Numbers) or self.score in SCORES:
            raise TypeError(f"intervals are of numbers, and this is about {_kind(prediction)}: ask for sets")
        low, high, scale = _ends(prediction, self.level)
        out = self._thresholds(len(prediction), groups).to(scale.device) * scale
        middle = (low + high) / 2  # where a negative threshold would put the lower end above the upper one
        low, high = torch.minimum(low - out, middle), torch.maximum(high + out, middle)
        if isinstance(prediction, PositiveReals):
            low, high = low.exp(), high.exp()
        elif isinstance(prediction, Counts):
            slack = 1e-9 * (1 + high.abs())  # an end that is a count, but for rounding, is that count
            low, high = (low - slack).ceil().clamp(min=0).minimum(middle.floor()), (high + slack).floor()
        return low.to(prediction.mean.dtype), high.to(prediction.mean.dtype)

    def _thresholds(self, count: int, groups: Any) -> Tensor:
        """The threshold of every target of ``count`` examples, ``[B, ...]``, or ``[1, ...]`` without groups."""
        if not self.groups:
            if groups is not None:
                raise ValueError("groups must be left out: calibration had none; conformalize(held, groups=...)")
            return self.thresholds
        if groups is None:
            raise ValueError(f"groups must name the group of each example, as in calibration: {_shown(self.groups)}")
        given, index = labels(groups, count), {name: place for place, name in enumerate(self.groups)}
        for name in given:
            if name not in index:
                raise ValueError(
                    f"group {name!r} has no examples in the calibration set, and nothing can be promised for it: the "
                    f"groups are {_shown(self.groups)}; hold out some of it, or leave groups out"
                )
        return self.thresholds[torch.tensor([index[name] for name in given], device=self.thresholds.device)]

    @property
    def says(self) -> str:
        """The promise in words."""
        what = "sets" if self.score in SCORES else "intervals"
        said = f"{percent(self.level)} % of {what} hold the truth"
        if not self.groups:
            return f"{said}, as calibrated on {self.rows[0]} rows"
        least, most = min(self.rows), max(self.rows)
        rows = f"{least}" if least == most else f"{least} to {most}"
        return f"{said} in each of {len(self.groups)} groups, as calibrated on {rows} rows of each"

    def state(self) -> Tree:
        """All of it, for a file: thresholds, and no example."""
        return {
            "level": self.level,
            "score": self.score,
            "thresholds": self.thresholds,
            "rows": list(self.rows),
            "groups": list(self.groups),
            "samples": self.samples,
            "seed": self.seed,
        }

    @classmethod
    def from_state(cls, state: Tree) -> Conformal:
        """Undo `state`; a `ValueError` for what no calibration can have made."""
        read = {**state, "rows": tuple(state["rows"]), "groups": tuple(state["groups"])}
        found = cls(**read)
        least, count = needed(found.level), max(1, len(found.groups))
        sound = len(found.rows) == count == len(found.thresholds) and all(rows >= least for rows in found.rows)
        if not sound or found.thresholds.dtype != torch.float64 or not bool(found.thresholds.isfinite().all()):
            raise ValueError(f"its conformal thresholds are not those of {count} calibrated groups")
        if found.score not in (*SCORES, "interval") or found.samples < 1:
            raise ValueError(f"its conformal score is {found.score!r} by {found.samples} networks")
        return found


def calibrate(
    prediction: Prediction, y: Tensor, level: float = 0.9, groups: Any = None, score: str = "aps", seed: int = 0
) -> Conformal:
    """Thresholds from a prediction of examples that it was not made from, and their targets.

    ``groups``: the group of each example; each then has a threshold of its own, and the level holds in each (Vovk's
    Mondrian). ``score``: of classes, see `class_scores`. ``seed``: of the random numbers of ``"randomised-aps"``.
    """
    found = conformity(prediction, y, level, score, mixed(seed, CALIBRATION))
    name = score if _classes(prediction) is not None else "interval"
    if groups is None:
        return Conformal(level, name, threshold(found, level)[None], (len(found),), seed=seed)
    given = labels(groups, len(found))
    names = tuple(sorted(set(given), key=lambda label: (type(label).__name__, label)))
    if not names:
        raise ValueError("groups must name at least one group: got none")
    members = [torch.tensor([label == name for label in given], device=found.device) for name in names]
    thresholds = []
    for group, mine in zip(names, members, strict=True):
        try:
            thresholds.append(threshold(found[mine], level))
        except ValueError as error:
            raise ValueError(f"group {group!r}: {error}") from None
    rows = tuple(int(mine.sum()) for mine in members)
    return Conformal(level, name, torch.stack(thresholds), rows, names, seed=seed)


def conformity(prediction: Prediction, y: Tensor, level: float, score: str = "aps", seed: int = 0) -> Tensor:
    """How odd each target is under the prediction, ``[B, ...]`` in double precision.

    Classes: `class_scores` of the true class. Numbers, by the ends and the deviation of the prediction itself::

        s(x, y) = max(lower_level(x) − y, y − upper_level(x)) / std(x)

    which is 0 at both ends of the prediction's own interval; of positive reals that is taken of log y. For a normal
    prediction it is the normalised residual |y − mean|/std, less a constant.
    """
    y = prediction.target(y)
    classes = _classes(prediction)
    if classes is not None:
        return class_scores(classes, score, seed).gather(1, y.unsqueeze(1)).squeeze(1)
    assert isinstance(prediction, Numbers)
    low, high, scale = _ends(prediction, level)
    y = y.double()
    if isinstance(prediction, PositiveReals):
        y = y.log()
    return torch.maximum(low - y, y - high) / scale


def class_scores(prediction: Classes, score: str = "aps", seed: int = 0, first: int = 0) -> Tensor:
    """The score of every class, ``[B, C, ...]`` in double precision: adaptive prediction sets (Romano et al. 2020).

    ::

        aps:             s(x, c) = Σ of the probabilities of classes that are more probable than c
        randomised-aps:  s(x, c) = the same + u · p(c|x),  u uniform in [0, 1), one for each example

    Sets of the first are the posterior's own `prediction_set` at a calibrated level. They always hold the most probable
    class, and so may hold the truth more often than promised. Those of the second do so as often as promised, to
    1/(n + 1), and may be empty for it.

    >>> class_scores(Classes(torch.tensor([[[0.2, 0.5, 0.3]]]).log()))
    tensor([[0.8000, 0.0000, 0.5000]], dtype=torch.float64)
    """
    if score not in SCORES:
        raise unknown("score", score, SCORES)
    probs = prediction.logits.double().softmax(2).mean(0)
    ordered, index = probs.sort(dim=1, descending=True, stable=True)
    before = torch.zeros_like(probs).scatter(1, index, ordered.cumsum(1) - ordered)
    if score == "aps":
        return before
    generator = torch.Generator().manual_seed(seed)
    count, *rest = prediction.shape
    u = torch.rand([first + count, *rest], generator=generator, dtype=torch.float64)[first:].to(probs.device)
    return before + u.unsqueeze(1) * probs


def _ends(prediction: Numbers, level: float) -> tuple[Tensor, Tensor, Tensor]:
    """The prediction's own interval and its deviation in double precision; of positive reals, those of log y."""
    view = prediction.logs if isinstance(prediction, PositiveReals) else prediction
    low, high = view.interval(level)
    scale = view.std.double()
    return low.double(), high.double(), scale.clamp(min=torch.finfo(scale.dtype).tiny)


def _classes(prediction: Prediction) -> Classes | None:
    """The prediction as one of classes, if it is."""
    if isinstance(prediction, Binary):
        return prediction.classes
    return prediction if isinstance(prediction, Classes) else None


def _kind(prediction: Prediction) -> str:
    return "numbers" if isinstance(prediction, Numbers) else "classes"


def labels(groups: Any, n: int) -> list[Group]:
    """The group of each of ``n`` examples as plain values, or an error that says what is wrong."""
    given: Iterable[Any] = groups.tolist() if isinstance(groups, Tensor | np.ndarray) else groups
    found = [label.item() if isinstance(label, np.generic) else label for label in given]
    if len(found) != n:
        raise ValueError(f"groups must name the group of each of the {n} examples, got {len(found)} names")
    for row, label in enumerate(found):
        if not isinstance(label, str | int):
            raise TypeError(
                f"groups must be texts, whole numbers or booleans: got {label!r} in row {row}; cut numbers into ranges"
            )
    return found


def _shown(groups: Sequence[Group]) -> str:
    more = ", …" if len(groups) > 10 else ""
    return ", ".join(map(repr, groups[:10])) + more
