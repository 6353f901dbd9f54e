"""What a method says of a table along its most telling columns, and what makes a row uncertain.

All other columns stay at what is typical: the median of a number, the most frequent category. A column tells much if
predictions change much when it is put there, too.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from bayesrule.data import CategoryColumn, Schema, Split
from bayesrule.predictions import Classes, Prediction

LOOKED_AT, MOST_COLUMNS = 50, 40
"""Test rows that tell which columns matter, and columns of a table that is looked at."""
UNCERTAIN = 5
"""Rows whose doubt is explained."""
LINE, PLANE = 120, 50
"""Points along an axis."""

Predict: TypeAlias = Callable[[Tensor], Prediction]
Array: TypeAlias = NDArray[Any]


class Part(NamedTuple):
    """A column of a table: its name, where its inputs are, what is typical of them.

    ``flag``: its second input says where it is missing.
    """

    name: str
    inputs: slice
    typical: Tensor
    numeric: bool
    flag: bool = False


@dataclass(frozen=True, eq=False)
class Doubt:
    """A prediction along one column, or over two, with the others at what is typical; and why rows are uncertain.

    ``columns``: their names. ``places``: which inputs they are. ``axes``: values along them. ``causes``: by test row, a
    few words.
    """

    columns: tuple[str, ...]
    places: tuple[int, ...]
    axes: tuple[Array, ...]
    prediction: Prediction | None
    causes: Mapping[int, str]


def doubt(predict: Predict, prediction: Prediction, split: Split, schema: Schema | None) -> Doubt | None:
    """What is shown of a table; None of pictures, of one column, and of very many."""
    x = split.test[0]
    if split.image_shape is not None or x.ndim != 2 or not x.is_floating_point():
        return None
    columns = parts(split, schema)
    if not 1 < len(columns) <= MOST_COLUMNS:
        return None
    causes = _causes(predict, prediction, x, columns)
    telling = [part for part in _by_effect(predict, x, columns) if part.numeric]
    wanted = 2 if split.kind == "classes" else 1
    if len(telling) < wanted or len(columns) == wanted:  # the whole function is drawn elsewhere
        return Doubt((), (), (), None, causes)
    shown = telling[:wanted]
    names, places = tuple(part.name for part in shown), tuple(part.inputs.start for part in shown)
    axes = tuple(_axis(split, part, LINE if wanted == 1 else PLANE) for part in shown)
    typical = _typical(columns, x)
    grid = np.stack([part.ravel() for part in np.meshgrid(*axes)], 1)
    points = typical.repeat(len(grid), 1)
    points[:, list(places)] = torch.from_numpy(grid).to(points)
    return Doubt(names, places, axes, predict(points), causes)


def parts(split: Split, schema: Schema | None) -> list[Part]:
    """The columns of a table, and what is typical of each among the training examples."""
    known = (split.training or split.test)[0]
    if schema is None:
        names = split.features or tuple(f"input {i}" for i in range(known.shape[1]))
        medians = known.median(0).values
        return [Part(name, slice(i, i + 1), medians[i : i + 1], True) for i, name in enumerate(names)]
    found, start = [], 0
    for column in schema.columns:
        where = slice(start, start + len(column.features))
        own, categories = known[:, where], isinstance(column, CategoryColumn)
        typical = own.median(0).values
        if categories and own.shape[1] == 1:  # the number of a category
            typical = own.mode(0).values
        elif categories:
            typical = torch.zeros_like(typical)
            typical[own.mean(0).argmax()] = 1
        flagged = not isinstance(column, CategoryColumn) and column.flag
        if where.stop > where.start:
            found.append(Part(column.name, where, typical, not categories, flagged))
        start = where.stop
    return found


def _typical(columns: list[Part], x: Tensor) -> Tensor:
    row = torch.zeros_like(x[:1])
    for part in columns:
        row[:, part.inputs] = part.typical.to(x)
    return row


def _without(x: Tensor, columns: list[Part]) -> Tensor:
    """Rows [K·n, F]: all of x with the first column at what is typical, then with the second, …"""
    copies = x.repeat(len(columns), 1)
    for index, part in enumerate(columns):
        copies[index * len(x) : (index + 1) * len(x), part.inputs] = part.typical.to(x)
    return copies


def _by_effect(predict: Predict, x: Tensor, columns: list[Part]) -> list[Part]:
    """The columns, first the one whose absence changes predictions most."""
    some = x[np.unique(np.linspace(0, len(x) - 1, min(len(x), LOOKED_AT)).round().astype(int))]
    there, gone = _said(predict(some)), _said(predict(_without(some, columns)))
    effect = (gone.reshape(len(columns), len(some), -1) - there.reshape(1, len(some), -1)).abs().sum(2).mean(1)
    return [columns[index] for index in effect.argsort(descending=True, stable=True).tolist()]


def _said(prediction: Prediction) -> Tensor:
    """What is compared: probabilities, or the mean."""
    return (prediction.probs if isinstance(prediction, Classes) else prediction.mean).cpu()


def _causes(predict: Predict, prediction: Prediction, x: Tensor, columns: list[Part]) -> dict[int, str]:
    """Of the least certain rows the column without whose value they would be most certain."""
    doubt = prediction.uncertainty.cpu()
    rows = doubt.argsort(stable=True, descending=True)[: min(UNCERTAIN, max(1, len(doubt) // 2))]
    gone = predict(_without(x[rows], columns)).uncertainty.cpu().reshape(len(columns), len(rows))
    found = {}
    for index, row in enumerate(rows.tolist()):
        least, which = gone[:, index].min(0)
        before = float(doubt[row])
        if float(least) < 0.95 * before:
            found[row] = f"{columns[int(which)].name}: typical there, {1 - float(least) / before:.0%} less"
        else:
            found[row] = "no single column"
    return found


def _axis(split: Split, part: Part, points: int) -> Array:
    """From the lowest to the highest value of all examples, and a tenth beyond."""
    values = torch.cat([pair[0][:, part.inputs.start] for pair in (split.training, split.test) if pair is not None])
    low, high = float(values.min()), float(values.max())
    beyond = 0.1 * (high - low or 1.0)
    return np.linspace(low - beyond, high + beyond, points)
