"""Tables with a target column: the recipe from raw columns to numbers.

A `Schema` is learnt on the training rows only, and then turns any table with the same columns into inputs:

============ =================================================================================================
column       becomes
============ =================================================================================================
numbers      itself, missing values as the median; if some were missing in training, also a 0/1 column saying so
yes/no       0 and 1, as numbers; also yes and no, true and false, y and n, t and f as texts
dates        days, and sine and cosine of the time of the year, of the week and, if there are times, of the day;
             as dates, as texts in any usual form, or as Excel's day numbers in a column that is called a date
anything     one 0/1 column for each category seen in training, in sorted order; all 0 for unseen or missing
============ =================================================================================================

If the network is to ``embed`` them, a column of more than 10 categories becomes the number of the category, from 1 on
in sorted order; 0 for unseen or missing. Such inputs are the last ones. Otherwise a column of more than 100 is dropped.

Constant and empty columns, lengths of time and ids are dropped, and ``notes`` says so. Ids are texts that all differ,
or are more than 50 and more than one for every two rows; and whole numbers that all differ, if the column has no name
or one like ``id`` or ``customer_id``. The target is

- classes, if it holds anything but numbers, or yes/no;
- classes, if it holds whole numbers: just two different ones, or at most 20 and at most 5 % of the number of rows;
- reals otherwise. ``kind`` overrules this, and is the only way to get counts.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Collection, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeGuard, get_args

import numpy as np
import torch
from numpy.typing import NDArray

from bayesrule.data.columns import (
    MOST_CATEGORIES,
    AnswerColumn,
    CategoryColumn,
    Column,
    DateColumn,
    NumberColumn,
    as_numbers,
    as_texts,
    cell,
    content_of,
    is_run,
    learn_column,
    place,
    sorted_texts,
)
from bayesrule.data.reading import open_table, stem
from bayesrule.data.splits import Groups, Kind, Pair, Split, hold_out, spare
from bayesrule.naming import unknown
from bayesrule.seeds import mixed

if TYPE_CHECKING:
    import pandas as pd

READINGS = {
    "as written": "",
    "day first": ", the day before the month",
    "month first": ", the month before the day",
    "excel": ", which Excel writes as numbers of days",
}
"""What is said of how dates are read."""


@dataclass(frozen=True)
class Schema:
    """How the columns of a table become inputs and targets.

    >>> import pandas as pd
    >>> frame = pd.DataFrame({"age": [20, None, 40], "job": ["cook", "smith", "cook"], "pay": [1.5, 2.5, 3.5]})
    >>> schema = Schema.learn(frame, target="pay")
    >>> schema.features
    ('age', 'age is missing', 'job=cook', 'job=smith')
    >>> schema.inputs(frame).tolist()
    [[20.0, 0.0, 1.0, 0.0], [30.0, 1.0, 0.0, 1.0], [40.0, 0.0, 1.0, 0.0]]
    >>> schema.notes
    ("target 'pay': real numbers",)
    >>> Schema.from_json(schema.to_json()) == schema
    True
    """

    target: str
    kind: Kind
    columns: tuple[Column, ...]
    classes: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()

    @classmethod
    def learn(
        cls,
        frame: pd.DataFrame,
        target: str,
        kind: Kind | None = None,
        without: Collection[str] = (),
        first: pd.DataFrame | None = None,
        embed: bool = False,
    ) -> Schema:
        """The schema of a table of training rows; the columns ``without`` are no inputs.

        ``first``: the rows that say how columns become inputs, where only some may; all rows say what the target is.
        ``embed``: the network has vectors for the categories of columns that have more than 10.
        """
        frame, notes = known_rows(frame, target)
        kind, said = _kind(frame[target], kind)
        notes.append(said)
        columns: list[Column] = []
        runs: list[str] = []
        shown = frame if first is None else _named(first)
        for name in _inputs(frame, target, without):
            column = learn_column(shown[name], embed)
            if isinstance(column, str):
                notes.append(f"column {name!r} dropped: {column}")
                continue
            columns.append(column)
            if isinstance(column, DateColumn):
                notes.append(f"column {name!r} is read as dates{READINGS[column.reading]}")
            elif _is_code(column):
                notes.append(f"column {name!r} has {len(column.categories)} categories: a vector is learnt for each")
            elif is_run(shown[name]):
                runs.append(f"column {name!r} holds different whole numbers one after another: drop it if it is an id")
        if not columns:
            raise ValueError(f"the table must have a usable column beside {target!r}: {'; '.join(notes[1:]) or 'none'}")
        classes: tuple[str, ...] = ()
        if kind == "classes":
            classes = sorted_texts(frame[target])
        columns.sort(key=_is_code)  # the order is kept otherwise
        return cls(target, kind, tuple(columns), classes, (*notes, *runs))

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the columns that become inputs."""
        return tuple(column.name for column in self.columns)

    @property
    def features(self) -> tuple[str, ...]:
        """The names of the inputs."""
        return tuple(feature for column in self.columns for feature in column.features)

    @property
    def categories(self) -> tuple[int, ...]:
        """How many categories there are in each of the last inputs, which are their numbers."""
        return tuple(len(column.categories) for column in self.columns if _is_code(column))

    def inputs(self, frame: pd.DataFrame) -> NDArray[np.float64]:
        """The inputs [rows, features] of any table with the columns of the schema; other columns are ignored."""
        frame = _named(frame)
        for column in self.columns:
            if column.name not in frame:
                near = difflib.get_close_matches(column.name, frame.columns, n=1, cutoff=0.0)
                hint = "it has no columns"
                if near:
                    hint = f"the nearest it has is {near[0]!r}"
                raise ValueError(f"the table must have the column {column.name!r}, known from training: {hint}")
        return np.concatenate([column.encode(frame[column.name]) for column in self.columns], axis=1)

    def unusual(self, frame: pd.DataFrame) -> list[tuple[str, ...]]:
        """For every row the columns that are unlike anything in training, where predictions are a guess.

        A number is if it lies farther outside the range in training than that is wide; a category, if it was not seen.
        """
        frame = _named(frame)
        marks = {column.name: column.unusual(frame[column.name]) for column in self.columns}
        found: list[tuple[str, ...]] = [()] * len(frame)
        for name, rows in marks.items():
            for row in np.flatnonzero(rows):
                found[row] += (name,)
        return found

    def targets(self, frame: pd.DataFrame) -> NDArray[Any]:
        """The targets: int64 classes or counts, or float64 reals. None may be missing."""
        frame = _named(frame)
        if self.target not in frame:
            raise unknown("target column", self.target, frame.columns)
        column = frame[self.target]
        if column.isna().any():
            where = place(column, int(np.argmax(column.isna().to_numpy())))
            raise ValueError(f"target {self.target!r} must be known for every row, {where} has none: drop such rows")
        if self.kind == "reals":
            return as_numbers(column)
        if self.kind == "counts":
            return as_numbers(column).astype(np.int64)
        code = {text: i for i, text in enumerate(self.classes)}
        texts = as_texts(column)
        for row, text in enumerate(texts):
            if text not in code:
                raise ValueError(f"{place(column, row)} of the target: {unknown('class', text, self.classes)}")
        return np.array([code[text] for text in texts], dtype=np.int64)

    def to_json(self) -> dict[str, Any]:
        """The schema as plain data that `json` can write."""
        return asdict(self)

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Schema:
        """Undo `to_json`."""
        columns: list[Column] = []
        for column in data["columns"]:
            if "categories" in column:
                columns.append(CategoryColumn(**column | {"categories": tuple(column["categories"])}))
            elif "reading" in column:
                columns.append(DateColumn(**column))
            elif "yes" in column:
                columns.append(AnswerColumn(**column))
            else:
                columns.append(NumberColumn(**column))
        return cls(data["target"], data["kind"], tuple(columns), tuple(data["classes"]), tuple(data["notes"]))


def _is_code(column: Column) -> TypeGuard[CategoryColumn]:
    """Whether a column becomes the number of its category."""
    return isinstance(column, CategoryColumn) and not column.one_hot


def load_table(
    path: str | Path,
    target: str,
    test: float | str | Path = 0.2,
    seed: int = 0,
    kind: Kind | None = None,
    schema: Schema | None = None,
    sep: str | None = None,
    without: Collection[str] = (),
    weights: str | None = None,
    calibration: Callable[[int], int] | None = None,
    groups: str | None = None,
    embed: bool = False,
) -> tuple[Split, Schema]:
    """A file as a `Split`, with the schema learnt on its training rows, or the one that is given.

    Args:
        path: The table.
        target: The column to predict. Rows that have no value there are left out.
        test: A share of the rows to hold out, stratified by class: a function of ``seed`` and the file's contents. Or
            another table to test on; then all rows are trained on.
        seed: Of the rows that are held out.
        kind: What the target is, where the guess is wrong.
        schema: How columns become inputs, if that is known.
        sep: What separates the columns, where the guess is wrong.
        without: Columns that are no inputs.
        weights: A column that says how many times each training row counts; it is no input.
        calibration: How many of so many training rows are spared for calibration. Nothing is learnt from them but which
            classes there are.
        groups: A column whose values are the groups that promises are calibrated for, each by itself. It is an input,
            too, unless it is among those ``without``.
        embed: Whether columns of more than 10 categories become their numbers, ``split.categories``, for a network that
            has a vector for each: `br.models.tabular`.
    """
    table = open_table(path, sep)
    frame, holes = known_rows(table.frame, target)
    if weights is not None:
        without = (*without, weights)
    if schema is not None:
        kind = schema.kind
    kind, said = _kind(frame[target], kind)
    if isinstance(test, float | int):
        train, held, notes = *_held_out(frame, target, kind, test, seed), holes
    else:
        train, (held, notes) = frame, known_rows(open_table(test, sep).frame, target)
        notes = [*holes, *(f"{Path(test).name}: {note}" for note in notes)]
    known, spared = train, None
    if calibration is not None:
        left, aside = spare(len(train), calibration(len(train)), mixed(seed, 1))
        train, spared = known.iloc[left.numpy()], known.iloc[aside.numpy()]
    if schema is None:
        schema = Schema.learn(known, target, kind, without, None if spared is None else train, embed)
        # What is said of the target is of all rows, and of the columns of the training rows.
        schema = replace(schema, notes=(*table.notes, *notes, said, *schema.notes[1:]))
    what = f"{len(known)} + {len(held)} rows of {Path(path).name}, target {target!r}"
    if not isinstance(test, float | int):
        what = f"{len(known)} rows of {Path(path).name} and {len(held)} of {Path(test).name}, target {target!r}"
    split = Split(
        stem(path),
        kind,
        what,
        _pair(schema, held),
        _pair(schema, train),
        schema.classes,
        schema.features,
        weight=None if weights is None else _weights(train, weights),
        calibration=None if spared is None else _pair(schema, spared),
        groups=None if groups is None or spared is None else Groups(groups_of(held, groups), groups_of(spared, groups)),
        categories=schema.categories,
    )
    return split, schema


def groups_of(frame: pd.DataFrame, name: str) -> tuple[str, ...]:
    """The group of each row, by a column of the table; an error where one has none."""
    frame = _named(frame)
    if name not in frame:
        raise unknown("column of groups", name, frame.columns)
    found = as_texts(frame[name])
    for row, group in enumerate(found):
        if group is None:
            raise ValueError(
                f"groups {name!r} must be known for every row, {place(frame[name], row)} has none: mend it"
            )
    return tuple(found)


def _pair(schema: Schema, frame: pd.DataFrame) -> Pair:
    """Inputs and targets of rows."""
    return torch.from_numpy(schema.inputs(frame)), torch.from_numpy(schema.targets(frame))


def _weights(frame: pd.DataFrame, name: str) -> torch.Tensor:
    """How many times each row counts."""
    if name not in frame:
        raise unknown("column of weights", name, frame.columns)
    column = frame[name]
    values = as_numbers(column)
    bad = np.isnan(values) | (values < 0)
    if bad.any():
        row = int(np.argmax(bad))
        raise ValueError(
            f"weights {name!r} must be numbers from 0 up, got {cell(column, row)!r} in {place(column, row)}: mend it, "
            "or give 0 to a row that does not count"
        )
    return torch.from_numpy(values)


def known_rows(frame: pd.DataFrame, target: str) -> tuple[pd.DataFrame, list[str]]:
    """The rows that have a target, and a note if there are others."""
    frame = _named(frame)
    if target not in frame:
        raise unknown("target column", target, frame.columns)
    known = frame[target].notna()
    if not known.any():
        raise ValueError(f"target {target!r} must have values, but every row of the table is empty there")
    notes = []
    if left := int((~known).sum()):
        notes.append(f"{left} of {len(frame)} rows left out: no value of target {target!r}")
    return frame[known], notes


def _held_out(
    frame: pd.DataFrame, target: str, kind: Kind, test: float, seed: int
) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Rows to train on and rows to test on."""
    strata = torch.zeros(len(frame))
    if kind == "classes":
        codes = np.unique(as_texts(frame[target]), return_inverse=True)[1]
        strata = torch.from_numpy(codes)
    train, held = hold_out(strata, test, seed)
    return frame.iloc[train.numpy()], frame.iloc[held.numpy()]


def _inputs(frame: pd.DataFrame, target: str, without: Collection[str]) -> list[str]:
    """The names of the columns that may become inputs."""
    for name in without:
        if name not in frame:
            raise unknown("column", name, frame.columns)
        if name == target:
            raise ValueError(f"the columns that are no inputs must not hold the target, got {name!r}: leave it out")
    return [name for name in frame.columns if name != target and name not in without]


def _named(frame: pd.DataFrame) -> pd.DataFrame:
    frame = frame.rename(columns=str)
    if not frame.columns.is_unique:
        twice = frame.columns[frame.columns.duplicated()][0]
        raise ValueError(f"the columns of a table must have different names, got {twice!r} more than once: rename one")
    return frame


def _kind(column: pd.Series[Any], kind: Kind | None) -> tuple[Kind, str]:
    """What the target is, and a sentence about it."""
    name, n, rows = column.name, column.nunique(), len(column)
    if kind is not None and kind not in get_args(Kind):
        raise unknown("kind", kind, get_args(Kind))
    if n < 2:
        raise ValueError(f"target {name!r} must have different values, but all {rows} rows have {cell(column, 0)!r}")
    number = content_of(column) == "numbers"
    if kind is None:
        whole = number and bool((as_numbers(column) % 1 == 0).all())
        # Two whole numbers are labels; more are labels only if each is frequent, as ratings are and prices are not.
        few = n == 2 or (n <= 20 and n <= 0.05 * rows)
        kind = "classes" if not number or (whole and few) else "reals"
    if kind == "classes":
        if n > MOST_CATEGORIES and n > rows / 2:
            raise ValueError(
                f"target {name!r} must be numbers or classes, got {n} different values in {rows} rows, such as "
                f"{cell(column, 0)!r}: choose another target, or mend the values that are not numbers"
            )
        said = f"target {name!r}: {n} classes"
        if number:
            said += " (whole numbers; if they are amounts, choose the kind reals or counts)"
        return kind, said
    values = as_numbers(column)
    if kind == "reals":
        said = f"target {name!r}: real numbers"
        if ((values >= 0) & (values % 1 == 0)).all():
            said += " (whole ones; if they count something, choose the kind counts)"
        return kind, said
    if ((values < 0) | (values % 1 != 0)).any():
        raise ValueError(f"target {name!r} must hold whole numbers from 0 for the kind counts, got {values.min():g} …")
    return kind, f"target {name!r}: counts"
