"""Named scores with bootstrap intervals."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from bayesrule import showing
from bayesrule.evaluate.null import Null
from bayesrule.evaluate.weighted import Statistic
from bayesrule.naming import unknown

CELLS = 2_000_000
"""How many weights are held at once."""


@dataclass(frozen=True, eq=False, repr=False)
class Scores(Mapping[str, float]):
    """Scores by name, each with a 95 % interval over resamples of the test examples.

    A score that is above zero even where nothing is wrong, the calibration error, has its null beside it.

    >>> scores = Scores({"accuracy": 0.9}, {"accuracy": (0.85, 0.94)})
    >>> scores["accuracy"], scores.interval("accuracy")
    (0.9, (0.85, 0.94))
    >>> scores
    score           value  95 % interval
    accuracy          0.9  0.85 to 0.94
    >>> Scores({"ece": 0.02}, {"ece": (0.01, 0.05)}, {"ece": Null(0.015, 0.03)})
    score           value  95 % interval
    ece              0.02  0.01 to 0.05; if calibrated: 0.015, 95 % below 0.03
    """

    table: Mapping[str, float]
    intervals: Mapping[str, tuple[float, float]]
    nulls: Mapping[str, Null] = field(default_factory=dict)

    def __getitem__(self, name: str) -> float:
        return self.table[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self.table)

    def __len__(self) -> int:
        return len(self.table)

    def interval(self, name: str) -> tuple[float, float]:
        """Lower and upper end of the 95 % bootstrap percentile interval."""
        if name not in self:
            raise unknown("score", name, self)
        if name not in self.intervals:
            raise ValueError(f"{name!r} has no interval because bootstrap was 0: evaluate with bootstrap=1000")
        return self.intervals[name]

    def null(self, name: str) -> Null:
        """What the score would be of labels drawn from the prediction itself: its mean and its 95 % quantile."""
        if name not in self:
            raise unknown("score", name, self)
        if name not in self.nulls:
            raise ValueError(f"{name!r} has no null: only 'ece' has one, of classes, if bootstrap is not 0")
        return self.nulls[name]

    def to_json(self) -> dict[str, dict[str, float]]:
        """Plain data: value, low and high ends of the interval if there is one, mean and 95 % quantile of the null."""
        plain = {name: {"value": value} for name, value in self.items()}
        for name, (low, high) in self.intervals.items():
            plain[name] |= {"low": low, "high": high}
        for name, null in self.nulls.items():
            plain[name] |= {"null": null.mean, "null_95": null.upper}
        return plain

    def __repr__(self) -> str:
        rows = [f"{'score':<12} {'value':>8}" + "  95 % interval" * bool(self.intervals)]
        for name, value in self.items():
            row = f"{name:<12} {value:>8.4g}"
            if self.intervals:
                row += f"  {self._range(name)}"
            rows.append(row)
        return "\n".join(rows)

    def _repr_html_(self) -> str:
        """The same table for notebooks."""
        rows = [("score", "value", "95 % interval")]
        for name, value in self.items():
            rows.append((name, f"{value:.4g}", self._range(name) if self.intervals else ""))
        return showing.table(rows)

    def _range(self, name: str) -> str:
        """The interval of a score, and what it would be if nothing were wrong."""
        low, high = self.intervals[name]
        text = f"{low:.4g} to {high:.4g}"
        if name in self.nulls:
            text += f"; if calibrated: {self.nulls[name].mean:.4g}, 95 % below {self.nulls[name].upper:.4g}"
        return text


def scored(statistics: Mapping[str, Statistic], sizes: Sequence[int], bootstrap: int, seed: int) -> Scores:
    """Each statistic under weights of one, and its 2.5 % and 97.5 % quantiles over ``bootstrap`` resamples.

    ``sizes`` are the numbers of examples of the sets that are resampled, each apart.
    """
    if bootstrap < 0:
        raise ValueError(f"bootstrap must be a number of resamples, 0 or more: got {bootstrap}; 1000 is usual")
    ones = torch.ones(1, sum(sizes), dtype=torch.float64)
    values = {name: float(statistic(ones)) for name, statistic in statistics.items()}
    if not bootstrap:
        return Scores(values, {})
    generator = torch.Generator().manual_seed(seed)
    rows = max(1, CELLS // sum(sizes))
    # Room that is used again and again: large blocks that come and go leave holes, which the system gets back late.
    room = torch.empty(rows, sum(sizes), dtype=torch.float64)
    numbers = [torch.empty(rows, n, dtype=torch.int64) for n in sizes]
    chunks: dict[str, list[Tensor]] = {name: [] for name in statistics}
    for start in range(0, bootstrap, rows):
        weights = room[: bootstrap - start]
        for own, drawn in zip(torch.split(weights, list(sizes), 1), numbers, strict=True):
            _resample(own, drawn[: len(own)], generator)
        for name, statistic in statistics.items():
            chunks[name].append(statistic(weights))
    ends = torch.tensor([0.025, 0.975], dtype=torch.float64)
    quantiles = {name: torch.cat(parts).quantile(ends).tolist() for name, parts in chunks.items()}
    return Scores(values, {name: (low, high) for name, (low, high) in quantiles.items()})


def _resample(counts: Tensor, numbers: Tensor, generator: torch.Generator) -> None:
    """Set counts [rows, n] to how often each of n examples is among ``numbers``, n draws with replacement each."""
    # Weights rather than copies of examples: a statistic of all resamples is then one product of matrices.
    torch.randint(numbers.shape[1], numbers.shape, generator=generator, out=numbers)
    counts.zero_().scatter_add_(1, numbers, counts.new_ones(()).expand(numbers.shape))
