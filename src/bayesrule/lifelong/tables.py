"""A stream from a table: a column says which task a row belongs to."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from bayesrule.data import Kind, Schema, cut
from bayesrule.data.columns import as_texts, sorted_texts
from bayesrule.data.reading import open_table, stem
from bayesrule.data.tables import known_rows
from bayesrule.lifelong.streams import Chapter, Stream
from bayesrule.naming import unknown
from bayesrule.seeds import mixed

if TYPE_CHECKING:
    import pandas as pd

LEAST = 10  # rows of a task: fewer tell neither what to learn nor how well it was learnt


@dataclass(frozen=True, eq=False)
class TableStream:
    """A stream of a table's rows, how its columns become inputs, and ``notes``: sentences about both."""

    stream: Stream
    schema: Schema
    notes: tuple[str, ...]


def by_column(
    table: str | Path | pd.DataFrame,
    target: str,
    by: str,
    test: float = 0.2,
    seed: int = 0,
    kind: Kind | None = None,
    sep: str | None = None,
    without: Collection[str] = (),
) -> TableStream:
    """The rows of a table as tasks, one for each value of the column ``by``, in sorted order.

    How columns become inputs, and by what they are shifted and scaled, is learnt on the training rows of the first task
    alone: nothing of later tasks is known by then. Classes are those of all rows, announced from the beginning. Real
    targets are shifted and scaled by the first task, too.

    Args:
        table: a file or a frame.
        target: the column to predict. Rows without a value there, or of ``by``, are left out.
        by: the column that orders or names the tasks: numbers by size, all else by the alphabet; it is no input.
        test: the share of each task's rows that is held out.
        seed: of the rows that are held out.
        kind: what the target is, where the guess is wrong.
        sep: what separates columns, where the guess is wrong.
        without: columns that are no inputs.

    >>> import pandas as pd
    >>> frame = pd.DataFrame({"year": [2001, 2000] * 20, "size": range(40), "sold": ["no", "yes", "yes", "no"] * 10})
    >>> [chapter.name for chapter in by_column(frame, target="sold", by="year").stream]
    ['year 2000', 'year 2001']
    """
    notes: list[str] = []
    name = "table"
    if isinstance(table, str | Path):
        opened = open_table(table, sep)
        name, table = stem(table), opened.frame
        notes += opened.notes
    frame, holes = known_rows(table, target)
    notes += holes
    if by not in frame:
        raise unknown("column of tasks", by, frame.columns)
    if by == target:
        raise ValueError(f"by must not name the target, got {by!r}: a column that says which task a row belongs to")
    if left := int(frame[by].isna().sum()):
        notes.append(f"{left} of {len(frame)} rows left out: no value of {by!r}")
        frame = frame[frame[by].notna()]
    labels, order = as_texts(frame[by]), sorted_texts(frame[by])
    groups = {label: frame[labels == label] for label in order}
    _check(by, groups)
    rows = _rows(frame, groups, target, kind, test, seed)
    first_train = rows[order[0]][0]
    schema = Schema.learn(frame, target, kind, {*without, by}, first=first_train)
    scaling = _Scaling.of(schema, first_train)
    chapters = []
    for label in order:
        train, held = (scaling.examples(schema, part) for part in rows[label])
        chapters.append(Chapter(f"{by} {label}", train, held, tuple(range(len(schema.classes)))))
    notes += [*schema.notes, f"{len(order)} tasks, in this order of {by!r}: {', '.join(order)}"]
    notes.append(f"inputs are encoded and scaled by the rows of {by} {order[0]} alone")
    if schema.kind == "reals":
        notes.append(f"the target is in units of its standard deviation in {by} {order[0]}, {scaling.unit:.4g}")
    stream = Stream(f"{name} by {by}", len(chapters), chapters.__getitem__, len(schema.classes))
    return TableStream(stream, schema, tuple(notes))


def _check(by: str, groups: dict[str, pd.DataFrame]) -> None:
    """Refuse a column that makes no tasks."""
    if len(groups) < 2:
        raise ValueError(f"by must name a column of at least two different values, {by!r} has {len(groups)}")
    for label, group in groups.items():
        if len(group) < LEAST:
            raise ValueError(
                f"a task must have at least {LEAST} rows, but {by} {label} has {len(group)}: join it with another, or "
                f"take a coarser column than {by!r}, which has {len(groups)} values"
            )


def _rows(
    frame: pd.DataFrame, groups: dict[str, pd.DataFrame], target: str, kind: Kind | None, test: float, seed: int
) -> dict[str, tuple[pd.DataFrame, pd.DataFrame]]:
    """The rows of each task to train on and to test on."""
    if not 0 < test < 1:
        raise ValueError(f"test must be a share of the rows, above 0 and below 1, got {test}")
    classes = sorted_texts(frame[target]) if kind in (None, "classes") else ()
    strata_wanted = 0 < len(classes) <= LEAST * 10
    found = {}
    for index, (label, group) in enumerate(groups.items()):
        strata = torch.zeros(len(group))
        if strata_wanted:
            strata = torch.from_numpy(np.unique(as_texts(group[target]), return_inverse=True)[1])
        where = torch.arange(len(group))
        (train, _), (held, _) = cut(where, strata, test, mixed(seed, index))
        found[label] = group.iloc[train.numpy()], group.iloc[held.numpy()]
    return found


@dataclass(frozen=True, eq=False)
class _Scaling:
    """What the first task says of where inputs and real targets are, and how far they scatter."""

    shift: torch.Tensor
    scale: torch.Tensor
    middle: float
    unit: float

    @classmethod
    def of(cls, schema: Schema, frame: pd.DataFrame) -> _Scaling:
        x = torch.from_numpy(schema.inputs(frame))
        spread = x.std(0, correction=0)
        middle, unit = 0.0, 1.0
        if schema.kind == "reals":
            y = schema.targets(frame)
            middle, unit = float(y.mean()), float(y.std()) or 1.0
        return cls(x.mean(0), torch.where(spread > 0, spread, 1.0), middle, unit)

    def examples(self, schema: Schema, frame: pd.DataFrame) -> tuple[torch.Tensor, torch.Tensor]:
        """Inputs and targets of some rows."""
        x = ((torch.from_numpy(schema.inputs(frame)) - self.shift) / self.scale).float()
        y: Any = torch.from_numpy(schema.targets(frame))
        if schema.kind == "reals":
            y = ((y - self.middle) / self.unit).float()
        return x, y
