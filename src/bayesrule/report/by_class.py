"""How a method does on each class: what it takes for what."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from bayesrule.data import Split
from bayesrule.predictions import Prediction

MOST_CLASSES = 12
"""More classes are no table that can be read: then the pairs that are confused most are listed."""
PAIRS = 10
NORMAL_95 = 1.96


class ClassRow(NamedTuple):
    """A class: how many test examples are of it, and how many of them, and of those called so, are right."""

    name: str
    examples: int
    recall: str
    recall_interval: str
    precision: str


class Pair(NamedTuple):
    """Examples of a class that are taken for another."""

    true: str
    predicted: str
    examples: int


class ByClass(NamedTuple):
    """Rows of scores; ``counts[true][predicted]``, empty of many classes; the pairs that are confused most."""

    rows: list[ClassRow]
    counts: list[list[int]]
    pairs: list[Pair]


def by_class(prediction: Prediction, split: Split) -> ByClass:
    """Scores of each class, and what is taken for what.

    >>> from bayesrule.predictions import Classes
    >>> y = torch.tensor([0, 0, 1, 1])
    >>> split = Split("s", "classes", "", (torch.zeros(4, 1), y), classes=("no", "yes"))
    >>> found = by_class(Classes(torch.eye(2)[[0, 1, 1, 1]].log().clamp(min=-9)[None]), split)
    >>> found.counts, found.pairs
    ([[1, 1], [0, 2]], [Pair(true='no', predicted='yes', examples=1)])
    >>> found.rows[0]
    ClassRow(name='no', examples=2, recall='50 %', recall_interval='9 … 91 %', precision='100 %')
    """
    names, size = split.classes, len(split.classes)
    true, said = split.test[1].flatten().cpu(), prediction.label.flatten().cpu()
    counts = torch.bincount(true * size + said, minlength=size * size).reshape(size, size)
    rows = [_row(name, counts, index) for index, name in enumerate(names)]
    wrong = counts - counts.diag().diag()
    order = wrong.flatten().argsort(descending=True, stable=True)[:PAIRS].tolist()
    pairs = [Pair(names[at // size], names[at % size], int(wrong.flatten()[at])) for at in order]
    shown = counts.tolist() if size <= MOST_CLASSES else []
    return ByClass(rows, shown, [pair for pair in pairs if pair.examples])


def _row(name: str, counts: Tensor, index: int) -> ClassRow:
    right, there, called = int(counts[index, index]), int(counts[index].sum()), int(counts[:, index].sum())
    low, high = wilson(right, there)
    interval = f"{100 * low:.0f} … {100 * high:.0f} %"
    return ClassRow(name, there, _percent(right, there), interval, _percent(right, called))


def wilson(right: int, of: int) -> tuple[float, float]:
    """A 95 % interval of a share (Wilson 1927): (p + z²/2n ± z √(p(1−p)/n + z²/4n²)) / (1 + z²/n).

    >>> [round(end, 3) for end in wilson(8, 10)]
    [0.49, 0.943]
    """
    if not of:
        return 0.0, 1.0
    share, z = right / of, NORMAL_95
    half = z * (share * (1 - share) / of + z**2 / (4 * of**2)) ** 0.5
    middle, whole = share + z**2 / (2 * of), 1 + z**2 / of
    return max(0.0, (middle - half) / whole), min(1.0, (middle + half) / whole)


def _percent(part: int, of: int) -> str:
    return f"{100 * part / of:.0f} %" if of else "–"
