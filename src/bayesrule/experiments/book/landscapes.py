"""Landscapes: what trainings give at hyper-parameters drawn at random, as statistics of ranks and as pictures."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
from matplotlib.axes import Axes
from numpy.typing import ArrayLike, NDArray

from bayesrule.experiments import trials
from bayesrule.experiments.base import Setting
from bayesrule.experiments.trials import Outcome, Training
from bayesrule.methods import Method

Array: TypeAlias = NDArray[np.float64]

ROUNDS = 2000  # of a permutation test
LEVEL = 0.05  # its error rate
CHANCE_PLUS = 0.05  # a training has learnt something if its accuracy is above chance by as much


@dataclass(frozen=True)
class Landscape:
    """Trainings on ``data`` at random ``places``, coordinates by name, and what they gave."""

    data: str
    places: Mapping[str, Array]
    found: Sequence[Outcome]

    @property
    def accuracy(self) -> Array:
        """Test accuracies."""
        return np.array([t.accuracy for t in self.found])

    @property
    def loss(self) -> Array:
        """Losses of the last epoch, infinite where a training broke off."""
        return np.array([t.loss for t in self.found])

    @property
    def divergence(self) -> Array:
        """The divergence's part of the losses."""
        return np.array([t.divergence for t in self.found])

    def best(self, share: float = 0.25) -> NDArray[np.bool_]:
        """Which trainings have the lowest losses, this share of them all."""
        mask = np.zeros(len(self.found), dtype=bool)
        mask[np.argsort(self.loss, kind="stable")[: max(1, round(share * len(self.found)))]] = True
        return mask

    def plain(self) -> dict[str, Any]:
        """Places and scores as plain data; what is not finite is None."""
        scores = {"accuracy": self.accuracy, "loss": self.loss, "divergence": self.divergence}
        found: dict[str, Any] = {"data": self.data}
        for name, values in {**self.places, **scores}.items():
            found[name] = list(map(finite, values))
        found["failed"] = [outcome.failed for outcome in self.found]
        return found


def explore(
    what: str,
    data: str,
    epochs: int,
    places: Mapping[str, Array],
    method: Callable[..., Method],
    setting: Setting,
) -> Landscape:
    """Train at each place, with another seed at each; ``method`` takes the coordinates by name."""
    trainings = []
    for number, coordinates in enumerate(zip(*places.values(), strict=True)):
        by_name = dict(zip(places, map(float, coordinates), strict=True))
        trainings.append(Training(what, data, method(**by_name), epochs, 1000 * setting.seed + number))
    return Landscape(data, places, trials.run(trainings, setting))


def generator(setting: Setting, *key: int) -> np.random.Generator:
    """Random numbers of their own for each part of an experiment, a function of the setting's seed."""
    return np.random.default_rng([setting.seed, *key])


def learnt(outcome: Outcome, classes: int = 10) -> bool:
    """Whether a training got beyond chance: Book's 15 % for ten classes."""
    return not outcome.failed and outcome.accuracy > 1 / classes + CHANCE_PLUS


def finite(value: float) -> float | None:
    """The number, or None if it is infinite or not a number: JSON knows neither.

    >>> finite(2.0), finite(math.inf)
    (2.0, None)
    """
    return float(value) if math.isfinite(value) else None


def ranks(values: ArrayLike) -> Array:
    """Ranks from 1, equal values sharing the mean of theirs.

    >>> ranks([3.0, 1.0, 3.0, math.inf]).tolist()
    [2.5, 1.0, 2.5, 4.0]
    """
    _, index, counts = np.unique(np.asarray(values, dtype=float), return_inverse=True, return_counts=True)
    last = np.cumsum(counts)
    # NumPy 2.0 gives the index the shape of the values, other versions a flat one: hence ravel.
    return np.asarray((last - (counts - 1) / 2)[index.ravel()], dtype=float)


def correlation(x: ArrayLike, y: ArrayLike) -> float:
    """Spearman's rank correlation; 0 if one of the two is constant.

    >>> correlation([1, 2, 3, 4], [1, 8, 27, 64])
    1.0
    """
    return float(_unit(ranks(x)) @ _unit(ranks(y)))


def chance(x: ArrayLike, y: ArrayLike, seed: int = 0) -> float:
    """How often a permutation of y has a rank correlation with x as low as y's own: small if y falls with x."""
    a, b = _unit(ranks(x)), _unit(ranks(y))
    random = np.random.default_rng(seed)
    others = np.array([a @ random.permutation(b) for _ in range(ROUNDS)])
    return _share(others <= a @ b + 1e-12)  # a tie counts, whatever the rounding of the two sums


def chance_of_gain(high: ArrayLike, low: ArrayLike, seed: int = 0) -> float:
    """How often values dealt at random to the two have means as far apart as theirs: small if the first is higher."""
    a, b = np.asarray(high, dtype=float), np.asarray(low, dtype=float)
    pool = np.concatenate([a, b])
    random = np.random.default_rng(seed)
    dealt = np.array([random.permutation(pool)[: len(a)].mean() for _ in range(ROUNDS)])
    return _share(dealt >= a.mean() - 1e-12)


def auroc(high: ArrayLike, low: ArrayLike) -> float | None:
    """How often a value of the first is above one of the second, a tie counting half; None if one is empty.

    >>> auroc([2.0, 3.0], [1.0, 2.0])
    0.875
    """
    a, b = np.asarray(high, dtype=float), np.asarray(low, dtype=float)
    if not (a.size and b.size):
        return None
    return float(np.mean((a[:, None] > b) + 0.5 * (a[:, None] == b)))


def explained(x: ArrayLike, y: ArrayLike) -> float:
    """The share of y's variance that a parabola in x explains; 0 if y is constant."""
    a, b = np.asarray(x, dtype=float), np.asarray(y, dtype=float)
    spread = float(np.sum((b - b.mean()) ** 2))
    rest = float(np.sum((b - np.polynomial.Polynomial.fit(a, b, 2)(a)) ** 2))
    if not spread:
        return 0.0
    return 1 - rest / spread


def scatter(axes: Axes, x: Array, y: Array, score: Array, label: str, worst: float = 0.75, high: bool = False) -> None:
    """Places coloured by a score that is better low, or ``high``; crosses where there is none.

    The colours tell the better share ``worst`` of the finite scores apart; all beyond have the last colour.
    """
    there = np.isfinite(score)
    if high:
        shares, sign, colours, extend = [1 - worst, 1], 1, "viridis", "min"
    else:
        shares, sign, colours, extend = [0, worst], -1, "viridis_r", "max"
    if there.any():
        low, top = np.quantile(score[there], shares)
        order = np.argsort(sign * score[there])  # the best are drawn last, on top of the others
        points = axes.scatter(
            x[there][order], y[there][order], c=score[there][order], cmap=colours, vmin=low, vmax=top, s=22
        )
        axes.figure.colorbar(points, ax=axes, label=label, extend=extend)
    if not there.all():
        axes.plot(x[~there], y[~there], "x", color="0.6", ms=4, label="broke off")


def legend_below(axes: Axes) -> None:
    """The legend where it hides no point."""
    axes.legend(loc="upper center", bbox_to_anchor=(0.5, -0.18), ncols=2)


def epochs_said(count: int) -> str:
    """So many epochs, in words.

    >>> epochs_said(1), epochs_said(2)
    ('1 epoch', '2 epochs')
    """
    return f"{count} epoch" + "s" * (count != 1)


def _unit(values: Array) -> Array:
    """Centred and of length 1, or all zero."""
    centred = values - values.mean()
    length = float(np.linalg.norm(centred))
    return centred / length if length else centred


def _share(hits: NDArray[np.bool_]) -> float:
    """The p-value of a permutation test: the deal at hand counts as one of them, so it is never 0."""
    return float((1 + hits.sum()) / (1 + hits.size))
