"""What each column of a table does to the answer, and how sure that is.

Two questions, two uncertainties. How does the answer change when a column goes from low to high, all other columns of
each row as they are (a partial dependence)? The networks of the posterior disagree about it. And what is lost when the
column is shuffled among the rows (a permutation importance)? There the test rows are few.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor

from bayesrule.data import CategoryColumn, Schema, Split
from bayesrule.evaluate import flat
from bayesrule.modules import device_of
from bayesrule.posteriors import Posterior
from bayesrule.report.doubt import Part, parts
from bayesrule.report.examples import cell
from bayesrule.report.measures import number

ROWS, SHUFFLES, MOST_COLUMNS = 100, 3, 40
NORMAL_95 = 1.96
LOW, HIGH = 0.1, 0.9  # quantiles that a number goes between


class Step(NamedTuple):
    """Two values of a column, in words and as inputs."""

    words: tuple[str, str]
    inputs: tuple[Tensor, Tensor]


class Effect(NamedTuple):
    """A column: the change of the answer from one value to another, and the NLL that is lost without it.

    ``of``: whose probability changes, empty of numbers. ``low`` and ``high``: a 95 % interval over networks, None of
    one network. ``half``: of the 95 % interval of ``lost`` over test rows.
    """

    column: str
    step: tuple[str, str]
    of: str
    change: float
    low: float | None
    high: float | None
    lost: float
    half: float

    @property
    def interval(self) -> str:
        """The interval in words."""
        if self.low is None or self.high is None:
            return "one network"
        return f"{number(self.low)} … {number(self.high)}"


def effects(posterior: Posterior, split: Split, schema: Schema | None, samples: int, seed: int) -> list[Effect]:
    """The effect of each column, the one that would be missed most first; nothing of pictures and very many columns."""
    x, y = split.test
    if split.image_shape is not None or x.ndim != 2 or not x.is_floating_point() or y.ndim != 1 or len(x) < 2:
        return []
    columns = parts(split, schema)
    if not 1 < len(columns) <= MOST_COLUMNS:
        return []
    some = torch.randperm(len(x), generator=torch.Generator().manual_seed(seed))[:ROWS]
    steps = _steps(split, schema, columns)
    shown = _Shown(posterior, x[some], y[some], split.classes, samples, seed)
    found = [shown.effect(part, step) for part, step in zip(columns, steps, strict=True)]
    return sorted(found, key=lambda each: -each.lost)


class _Shown:
    """What is asked of a posterior about some test rows."""

    def __init__(
        self, posterior: Posterior, x: Tensor, y: Tensor, classes: tuple[str, ...], samples: int, seed: int
    ) -> None:
        self.posterior, self.x, self.y, self.classes = posterior, x, y, classes
        self.samples, self.seed = samples, seed
        self.known = self._log_prob(x)

    def effect(self, part: Part, step: Step) -> Effect:
        low, high = (self._means(self._put(part, inputs)) for inputs in step.inputs)
        change = high - low
        of, which = self._whose(change)
        drawn = change[:, which].double()
        lost = self.known - torch.stack([self._log_prob(x) for x in self._shuffled(part)]).mean(0)
        half = NORMAL_95 * float(lost.std()) / len(lost) ** 0.5
        return Effect(part.name, step.words, of, float(drawn.mean()), *_interval(drawn), float(lost.mean()), half)

    def _means(self, x: Tensor) -> Tensor:
        """The mean answer over rows by each network, ``[S, outputs]``; in every call the same networks."""
        posterior = self.posterior
        generator = torch.Generator(device_of(posterior.model)).manual_seed(self.seed)
        with torch.no_grad():
            outputs = posterior.outputs(posterior.inputs(x), self.samples, generator)
            means = torch.stack([posterior.likelihood.mean(each) for each in outputs]).reshape(len(outputs), len(x), -1)
        targets = posterior.context.scaling.targets
        if targets is not None:
            means = targets.loc.to(means) + targets.scale.to(means) * means
        return means.mean(1).cpu()

    def _log_prob(self, x: Tensor) -> Tensor:
        return flat(self.posterior.predict(x, self.samples, self.seed).log_prob(self.y))

    def _put(self, part: Part, inputs: Tensor) -> Tensor:
        changed = self.x.clone()
        changed[:, part.inputs] = inputs.to(changed)
        return changed

    def _shuffled(self, part: Part) -> Iterator[Tensor]:
        generator = torch.Generator().manual_seed(self.seed)
        for _ in range(SHUFFLES):
            yield self._put(part, self.x[torch.randperm(len(self.x), generator=generator)][:, part.inputs])

    def _whose(self, change: Tensor) -> tuple[str, int]:
        """The class whose probability is spoken of: the second of two, of more the one that changes most."""
        if not self.classes:
            return "", 0
        if len(self.classes) == 2:
            return self.classes[1], change.shape[1] - 1  # one output is the second class's
        which = int(change.mean(0).abs().argmax())
        return self.classes[which], which


def _interval(drawn: Tensor) -> tuple[float | None, float | None]:
    """What 95 % of the networks say; one alone says nothing of others."""
    if len(drawn) < 2:
        return None, None
    low, high = drawn.quantile(torch.tensor([0.025, 0.975], dtype=torch.float64)).tolist()
    return low, high


def _steps(split: Split, schema: Schema | None, columns: list[Part]) -> Iterator[Step]:
    """From low to high of numbers; of categories from the most frequent one to the next."""
    known = (split.training or split.test)[0]
    by_name = {} if schema is None else {column.name: column for column in schema.columns}
    for part in columns:
        own, column = known[:, part.inputs], by_name.get(part.name)
        ends = _frequent(own) if isinstance(column, CategoryColumn) else _low_and_high(own, part.flag)
        low, high = (f"{float(end[0]):.4g}" if column is None else cell(column, end) for end in ends)
        yield Step((low, high), ends)


def _low_and_high(own: Tensor, flag: bool) -> tuple[Tensor, Tensor]:
    """Inputs of two training rows: what belongs together, as the parts of a date, stays together."""
    if flag and not bool(own[:, 1].all()):
        own = own[own[:, 1] == 0]  # rows without a value have the value that stands for it
    ordered = own[own[:, 0].argsort(stable=True)]
    low, high = (ordered[round(share * (len(ordered) - 1))] for share in (LOW, HIGH))
    if low[0] == high[0]:  # nearly all rows are alike
        low, high = ordered[0], ordered[-1]
    return low, high


def _frequent(own: Tensor) -> tuple[Tensor, Tensor]:
    """The two most frequent categories, as rows that have them are encoded; of one alone twice the same."""
    values, counts = torch.unique(own, dim=0, return_counts=True)
    common = values[counts.argsort(descending=True, stable=True)]
    return common[0], common[min(1, len(common) - 1)]
