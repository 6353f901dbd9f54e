"""Tables with a target column, from CSV or Parquet files: the recipe from raw columns to numbers.

A `Schema` is learnt on the training rows only, and then turns any table with the same columns into inputs:

============ =================================================================================================
column       becomes
============ =================================================================================================
numbers      itself, missing values as the median; if some were missing in training, also a 0/1 column saying so
yes/no       0 and 1, as numbers
anything     one 0/1 column for each category seen in training, in sorted order; all 0 for unseen or missing
============ =================================================================================================

Constant and empty columns, dates (also as texts), columns of more than 50 categories that look like an id (more than
one category for every two rows), and any of more than 100 are dropped, and ``notes`` says so. The target is

- classes, if it holds anything but numbers, or yes/no;
- classes, if it holds whole numbers: just two different ones, or at most 20 and at most 5 % of the number of rows;
- reals otherwise. ``kind`` overrules this, and is the only way to get counts.
"""

from __future__ import annotations

import csv
import difflib
import hashlib
from collections import Counter
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

import numpy as np
import torch
from numpy.typing import NDArray

from bayesrule.data.cells import is_predictions, unescaped
from bayesrule.data.columns import (
    LINE,
    MOST_CATEGORIES,
    CategoryColumn,
    Column,
    NumberColumn,
    as_numbers,
    as_texts,
    cell,
    content_of,
    learn_column,
    place,
    sorted_texts,
)
from bayesrule.data.splits import Kind, Split, hold_out
from bayesrule.naming import unknown

if TYPE_CHECKING:
    import pandas as pd


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
    def learn(cls, frame: pd.DataFrame, target: str, kind: Kind | None = None) -> Schema:
        """The schema of a table of training rows."""
        frame, notes = _with_target(frame, target)
        kind, said = _kind(frame[target], kind)
        notes.append(said)
        columns: list[Column] = []
        for name in frame.columns.drop(target):
            column = learn_column(frame[name])
            if isinstance(column, str):
                notes.append(f"column {name!r} dropped: {column}")
            else:
                columns.append(column)
        if not columns:
            raise ValueError(f"the table must have a usable column beside {target!r}: {'; '.join(notes[1:]) or 'none'}")
        classes: tuple[str, ...] = ()
        if kind == "classes":
            classes = sorted_texts(frame[target])
        return cls(target, kind, tuple(columns), classes, tuple(notes))

    @property
    def features(self) -> tuple[str, ...]:
        """The names of the inputs."""
        return tuple(feature for column in self.columns for feature in column.features)

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
                columns.append(CategoryColumn(column["name"], tuple(column["categories"])))
            else:
                columns.append(NumberColumn(**column))
        return cls(data["target"], data["kind"], tuple(columns), tuple(data["classes"]), tuple(data["notes"]))


def read_table(path: str | Path) -> pd.DataFrame:
    """The table in a ``.csv`` or ``.parquet`` file.

    >>> import tempfile
    >>> path = Path(tempfile.mkdtemp()) / "table.csv"
    >>> _ = path.write_text("a,b\\n1,x\\n2,y\\n")
    >>> read_table(path).shape
    (2, 2)
    """
    import pandas as pd

    path = Path(path)
    suffix = path.suffix.lower()
    if suffix not in (".csv", ".parquet"):
        raise ValueError(f"path must end in .csv or .parquet, got {path}")
    _exists(path)
    if suffix == ".csv":
        _check_header(path)
    try:
        frame = pd.read_csv(path, low_memory=False, **_exactly()) if suffix == ".csv" else pd.read_parquet(path)
    except ImportError as error:
        raise ImportError(f"reading {path} needs pyarrow: pip install bayesrule[parquet]") from error
    except (ValueError, OSError) as error:  # pandas' and pyarrow's parser errors are ValueErrors or OSErrors
        raise ValueError(f"{path} cannot be read as {suffix[1:]}: {error}") from error
    if suffix == ".csv" and not isinstance(frame.index, pd.RangeIndex):
        raise ValueError(f"{path} must name every column, but its rows have more values than its first line")
    if frame.empty:
        raise ValueError(f"{path} must have rows, got only the columns {', '.join(map(str, frame.columns))}")
    if suffix == ".csv":
        frame.index = _lines(path, len(frame))
        if is_predictions(list(map(str, frame.columns))):
            frame["prediction"] = frame["prediction"].map(lambda v: unescaped(v) if isinstance(v, str) else v)
    return frame


def _lines(path: Path, rows: int) -> pd.Index[Any]:
    """The number of each row's first line in the file, from 1, as an editor shows it; the header is a line, too."""
    import pandas as pd

    with open(path, "rb") as file:
        count = sum(1 for _ in file)
    if count == rows + 1:  # a line a row, and the header
        return pd.RangeIndex(2, rows + 2, name=LINE)
    starts: list[int] = []
    with open(path, newline="", encoding="utf-8-sig", errors="replace") as text, suppress(csv.Error):
        reader, before = csv.reader(text), 0
        for record in reader:
            if record:  # pandas skips empty lines
                starts.append(before + 1)
            before = reader.line_num
    if len(starts) != rows + 1:  # read otherwise than by pandas: better no number than a wrong one
        return pd.RangeIndex(rows)
    return pd.Index(starts[1:], name=LINE)


def _exactly() -> dict[str, Any]:
    """What makes pandas read the nearest number to the digits in a file; since 3.1 it does so by itself."""
    import pandas as pd

    version = tuple(int(part) for part in pd.__version__.split(".")[:2])
    return {} if version >= (3, 1) else {"float_precision": "round_trip"}


def fingerprint(path: str | Path) -> str:
    """The sha256 of the bytes of a file: the same for a copy, another one when anything was changed."""
    _exists(Path(path))
    digest = hashlib.sha256()
    with open(path, "rb") as file:
        while block := file.read(2**20):
            digest.update(block)
    return digest.hexdigest()


def load_table(
    path: str | Path,
    target: str,
    test: float = 0.2,
    seed: int = 0,
    kind: Kind | None = None,
    schema: Schema | None = None,
) -> tuple[Split, Schema]:
    """A file as a `Split`, stratified by class, with the schema learnt on its training rows, or the one that is given.

    The rows held out are a function of ``seed`` and the file's contents.
    """
    frame, notes = _with_target(read_table(path), target)
    if schema is not None:
        kind = schema.kind
    kind, said = _kind(frame[target], kind)
    strata = torch.zeros(len(frame))
    if kind == "classes":
        codes = np.unique(as_texts(frame[target]), return_inverse=True)[1]
        strata = torch.from_numpy(codes)
    train, held = (frame.iloc[index.numpy()] for index in hold_out(strata, test, seed))
    if schema is None:
        schema = Schema.learn(train, target, kind)
        # What is said of the target is of all rows, and of the columns of the training rows.
        schema = replace(schema, notes=(*notes, said, *schema.notes[1:]))
    pairs = [(torch.from_numpy(schema.inputs(f)), torch.from_numpy(schema.targets(f))) for f in (train, held)]
    what = f"{len(train)} + {len(held)} rows of {Path(path).name}, target {target!r}"
    return Split(Path(path).stem, kind, what, pairs[1], pairs[0], schema.classes, schema.features), schema


def _exists(path: Path) -> None:
    if not path.is_file():
        raise FileNotFoundError(f"path must be an existing file, got {path}, looked for in {Path.cwd()}")


def _check_header(path: Path) -> None:
    """An error if two columns of a CSV file have one name: pandas would make ``a`` and ``a.1`` of them."""
    import pandas as pd

    try:
        first = pd.read_csv(path, header=None, nrows=1, dtype=str, keep_default_na=False)
    except pd.errors.EmptyDataError as error:
        raise ValueError(f"{path} must have a header and rows, but it is empty") from error
    except (ValueError, OSError) as error:
        raise ValueError(f"{path} cannot be read as csv: {error}") from error
    for name, times in Counter(first.iloc[0]).items():
        if name and times > 1:
            raise ValueError(
                f"{path} must have columns with different names, got {name!r} {times} times in its first line: "
                "rename or remove all but one"
            )


def _named(frame: pd.DataFrame) -> pd.DataFrame:
    frame = frame.rename(columns=str)
    if not frame.columns.is_unique:
        twice = frame.columns[frame.columns.duplicated()][0]
        raise ValueError(f"the columns of a table must have different names, got {twice!r} more than once: rename one")
    return frame


def _with_target(frame: pd.DataFrame, target: str) -> tuple[pd.DataFrame, list[str]]:
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
            said += " (whole numbers; kind='reals' for regression)"
        return kind, said
    values = as_numbers(column)
    if kind == "reals":
        return kind, f"target {name!r}: real numbers"
    if ((values < 0) | (values % 1 != 0)).any():
        raise ValueError(f"target {name!r} must hold whole numbers from 0 for kind='counts', got {values.min():g} …")
    return kind, f"target {name!r}: counts"
