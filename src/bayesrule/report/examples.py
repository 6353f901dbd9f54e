"""The most and the least certain test examples of a method, as pictures or as rows."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import NamedTuple, TypeAlias

import numpy as np
from torch import Tensor

from bayesrule.data import AnswerColumn, CategoryColumn, Column, DateColumn, Schema, Split
from bayesrule.gp import Influence
from bayesrule.predictions import Binary, Classes, Numbers, Prediction
from bayesrule.report.measures import number

PICTURES, ROWS, COLUMNS = 10, 5, 8


class Example(NamedTuple):
    """A test example: what was said of it, how sure, and what it is: a PNG in base64, or the cells of a row."""

    predicted: str
    true: str
    right: bool
    sure: str
    epistemic: str
    png: str = ""
    cells: tuple[str, ...] = ()
    why: str = ""


class Extremes(NamedTuple):
    """Both ends of the test set in the order of a method's uncertainty; ``columns`` are the names of the cells."""

    columns: tuple[str, ...]
    least: list[Example]
    most: list[Example]


def extremes(
    prediction: Prediction, split: Split, schema: Schema | None = None, causes: Mapping[int, str] | None = None
) -> Extremes:
    """The examples that a prediction is least and most certain of; ``causes``: why, in a few words, by row."""
    most = PICTURES if split.image_shape else ROWS
    count = min(most, max(1, len(prediction) // 2))  # no example is among both
    order = prediction.uncertainty.argsort(stable=True).tolist()
    said = _said(prediction, split)
    columns, look = _look(split, schema)

    def shown(row: int) -> Example:
        png, cells = look(row)
        return said(row)._replace(png=png, cells=cells, why=(causes or {}).get(row, ""))

    return Extremes(columns, [shown(row) for row in order[: -count - 1 : -1]], [shown(row) for row in order[:count]])


class Worth(NamedTuple):
    """The training examples that move the network most, and those that the others contradict most.

    ``rows`` and ``nll`` are their numbers among the training examples, and −log p of their targets by the others.
    """

    columns: tuple[str, ...]
    influential: list[Example]
    suspicious: list[Example]
    rows: dict[str, list[int]]
    nll: dict[str, list[float]]


def worth(found: Influence, split: Split, schema: Schema | None = None) -> Worth:
    """Both ends of the training set, each example with what is predicted of it from all others."""
    most = PICTURES if split.image_shape else ROWS
    trained = replace(split, test=split.train)
    prediction = found.prediction
    if isinstance(prediction, Binary):
        prediction = prediction.classes
    said = _said(prediction, trained)
    columns, look = _look(trained, schema)
    chosen = {"influential": found.order[:most].tolist(), "suspicious": found.suspicious[:most].tolist()}

    def shown(row: int) -> Example:
        png, cells = look(row)
        return said(row)._replace(png=png, cells=cells)

    lists = {name: [shown(row) for row in rows] for name, rows in chosen.items()}
    nll = {name: found.nll[rows].tolist() for name, rows in chosen.items()}
    return Worth(columns, lists["influential"], lists["suspicious"], chosen, nll)


def _said(prediction: Prediction, split: Split) -> Callable[[int], Example]:
    """What a prediction says of a test row, against the truth."""
    y = split.test[1]
    if isinstance(prediction, Classes):
        names, label = split.classes, prediction.label
        confidence, epistemic = prediction.confidence.tolist(), prediction.epistemic.tolist()
        return lambda row: Example(
            names[label[row]],
            names[y[row]],
            bool(label[row] == y[row]),
            f"{confidence[row]:.0%}",
            f"{epistemic[row]:.2f}",
        )
    assert isinstance(prediction, Numbers)
    mean, deviation, (low, high) = prediction.mean, prediction.epistemic.sqrt(), prediction.interval(0.9)
    return lambda row: Example(
        number(float(mean[row])),
        number(float(y[row])),
        bool(low[row] <= y[row] <= high[row]),
        f"{number(float(low[row]))} … {number(float(high[row]))}",
        f"± {number(float(deviation[row]))}",
    )


Look: TypeAlias = tuple[str, tuple[str, ...]]


def _look(split: Split, schema: Schema | None) -> tuple[tuple[str, ...], Callable[[int], Look]]:
    """The names of the columns, and what a test row looks like: a picture or cells."""
    x, shape = split.test[0], split.image_shape
    if shape is not None:
        from bayesrule.report.figures import picture

        return (), lambda row: (picture(x[row].reshape(shape)), ())
    if schema is not None:
        columns = schema.columns[:COLUMNS]
        parts, start = [], 0
        for column in columns:
            parts.append((column, start))
            start += len(column.features)
        return tuple(c.name for c in columns), lambda row: ("", tuple(cell(c, x[row, i:]) for c, i in parts))
    names = split.features or tuple(f"input {i}" for i in range(x[0].numel()))
    return names[:COLUMNS], lambda row: ("", tuple(f"{v:.4g}" for v in x[row].flatten()[:COLUMNS].tolist()))


def cell(column: Column, values: Tensor) -> str:
    """A column of the table as it was before it was encoded in the first of ``values``."""
    if isinstance(column, CategoryColumn):
        code = int(values[0])
        if column.one_hot:
            chosen = [0.0, *values[: len(column.categories)].tolist()]
            code = chosen.index(max(chosen))
        return column.categories[code - 1] if code else "–"  # missing, or not seen in training
    if column.flag and values[1]:
        return "–"
    if isinstance(column, AnswerColumn):
        return column.yes if values[0] > 0.5 else column.no
    if isinstance(column, DateColumn):
        return str(np.datetime64(round(float(values[0])), "D"))
    return f"{float(values[0]):.6g}"
