"""Tables from files as they come: CSV in any form, packed or not, and Parquet."""

from __future__ import annotations

import hashlib
import re
from collections import Counter
from collections.abc import Collection
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from bayesrule.data.cells import is_predictions, unescaped
from bayesrule.data.columns import LINE
from bayesrule.data.delimited import Form, recognise
from bayesrule.data.written import numbers_in

if TYPE_CHECKING:
    import pandas as pd

ENDINGS = (".csv", ".csv.gz", ".tsv", ".tsv.gz", ".parquet")
"""How the names of tables end."""
MISSING = frozenset({"", "NA", "N/A", "n/a", "NaN", "nan", "null", "NULL", "None", "#N/A"})
"""What pandas takes for a missing value, and we also with spaces around it."""


class Table(NamedTuple):
    """What a file holds, and sentences on how it was read."""

    frame: pd.DataFrame
    notes: tuple[str, ...]


def ending(path: str | Path) -> str | None:
    """The ending of a table's name, or None if it is no table.

    >>> ending("a/Houses.CSV.gz"), ending("digits")
    ('.csv.gz', None)
    """
    name = Path(path).name.lower()
    return next((e for e in sorted(ENDINGS, key=len, reverse=True) if name.endswith(e)), None)


def stem(path: str | Path) -> str:
    """The name of a table without its ending.

    >>> stem("a/houses.csv.gz")
    'houses'
    """
    return Path(path).name[: -len(ending(path) or "") or None]


def read_table(path: str | Path, sep: str | None = None) -> pd.DataFrame:
    """The table in a ``.csv``, ``.csv.gz``, ``.tsv`` or ``.parquet`` file; ``sep`` where the guess is wrong.

    >>> import tempfile
    >>> path = Path(tempfile.mkdtemp()) / "table.csv"
    >>> _ = path.write_text("a;b\\n1,5; x\\n€ 2;y\\n", encoding="utf-8")
    >>> read_table(path)["a"].tolist()
    [1.5, 2.0]
    """
    return open_table(path, sep).frame


def open_table(path: str | Path, sep: str | None = None, texts: Collection[str] = ()) -> Table:
    """The table in a file, and how it was read. The columns ``texts`` stay as they are written, zeros in front too."""
    path = Path(path)
    if ending(path) is None:
        raise ValueError(f"path must end in .csv or .parquet (or .csv.gz, .tsv, .tsv.gz), got {path}")
    exists(path)
    if ending(path) == ".parquet":
        return Table(_parquet(path), ())
    return _delimited(path, sep, texts)


def fingerprint(path: str | Path) -> str:
    """The sha256 of the bytes of a file: the same for a copy, another one when anything was changed."""
    exists(Path(path))
    digest = hashlib.sha256()
    with open(path, "rb") as file:
        while block := file.read(2**20):
            digest.update(block)
    return digest.hexdigest()


def exists(path: Path) -> None:
    """An error if there is no such file."""
    if not path.is_file():
        raise FileNotFoundError(f"path must be an existing file, got {path}, looked for in {Path.cwd()}")


def _parquet(path: Path) -> pd.DataFrame:
    import pandas as pd

    try:
        frame = pd.read_parquet(path)
    except ImportError as error:
        raise ImportError(f"reading {path} needs pyarrow: pip install bayesrule[parquet]") from error
    except (ValueError, OSError) as error:  # pyarrow's parser errors are ValueErrors or OSErrors
        raise ValueError(f"{path} cannot be read as parquet: {error}") from error
    return _with_rows(path, frame)


def _delimited(path: Path, sep: str | None, texts: Collection[str]) -> Table:
    import pandas as pd

    form = recognise(path, sep)
    names = _header(form)
    verbatim = {name: str for name in names if name.strip() in texts}
    try:
        frame = pd.read_csv(path, low_memory=False, dtype=verbatim, **form.pandas, **_exactly())
    except (ValueError, OSError) as error:  # pandas' parser errors are ValueErrors
        raise ValueError(f"{path} cannot be read as csv: {_in_words(error, form.separator)}") from error
    if not isinstance(frame.index, pd.RangeIndex):
        raise ValueError(f"{path} must name every column, but its rows have more values than its first line")
    frame = _with_rows(path, frame.rename(columns=lambda name: str(name).strip()))
    frame.index = _lines(form, len(frame))
    predictions, notes = is_predictions(list(frame.columns)), list(form.notes)
    for place, name in enumerate(frame.columns):
        if name in texts or frame[name].dtype.kind in "fiub":
            continue
        column, said = _tidy(frame[name], form.decimal)
        if predictions:
            column = column.map(lambda value: unescaped(value) if isinstance(value, str) else value)
        frame.isetitem(place, column.array)
        notes += said
    return Table(frame, tuple(notes))


def _with_rows(path: Path, frame: pd.DataFrame) -> pd.DataFrame:
    if frame.empty:
        raise ValueError(f"{path} must have rows, got only the columns {', '.join(map(str, frame.columns))}")
    return frame


def _tidy(column: pd.Series[Any], decimal: str) -> tuple[pd.Series[Any], list[str]]:
    """A column of texts without stray spaces; as numbers if all are some, with a note on how they were written."""
    import pandas as pd

    codes, uniques = pd.factorize(column)  # −1 for missing
    if not all(isinstance(value, str) for value in uniques):
        return column, []
    texts = [value.strip() for value in uniques]
    known = [text for text in texts if text not in MISSING]
    # The file's own sign of decimals is the likelier one.
    written = numbers_in(known, decimal + {".": ",", ",": "."}[decimal])
    values: list[Any] = [None if text in MISSING else text for text in texts]
    if written is None:
        if texts == list(uniques):
            return column, []
        cells = np.array([*values, None], dtype=object)
        return pd.Series(cells[codes], index=column.index, name=column.name), []
    numbers = iter(written.values)
    floats = np.array([np.nan if value is None else next(numbers) for value in values] + [np.nan])
    notes = []
    if written.signs:
        example = next(value for value in values if value is not None)
        notes.append(f"column {column.name!r} is read as numbers: {', '.join(written.signs)}, as in {example!r}")
    return pd.Series(floats[codes], index=column.index, name=column.name), notes


def _lines(form: Form, rows: int) -> pd.Index[Any]:
    """The number of each row's first line in the file, from 1, as an editor shows it; the header is a line, too."""
    import pandas as pd

    if form.lines == rows + 1:  # a line a row, and the header
        return pd.RangeIndex(2, rows + 2, name=LINE)
    starts = form.starts()
    if len(starts) != rows + 1:  # read otherwise than by pandas: better no number than a wrong one
        return pd.RangeIndex(rows)
    return pd.Index(starts[1:], name=LINE)


def _exactly() -> dict[str, Any]:
    """What makes pandas read the nearest number to the digits in a file; since 3.1 it does so by itself."""
    import pandas as pd

    version = tuple(int(part) for part in pd.__version__.split(".")[:2])
    return {} if version >= (3, 1) else {"float_precision": "round_trip"}


def _in_words(error: Exception, separator: str) -> str:
    """What pandas says, or for a line of too many cells what to do."""
    found = re.search(r"Expected (\d+) fields in line (\d+), saw (\d+)", str(error))
    if found is None:
        return str(error)
    columns, line, cells = found.groups()
    return (
        f"line {line} has {cells} cells, and there are {columns} columns: put texts that hold {separator!r} in quotes"
    )


def _header(form: Form) -> list[str]:
    """The names in the first line; an error if two are alike: pandas would make ``a`` and ``a.1`` of them."""
    import pandas as pd

    path = form.path
    try:
        first = pd.read_csv(path, header=None, nrows=1, dtype=str, keep_default_na=False, **form.pandas)
    except pd.errors.EmptyDataError as error:
        raise ValueError(f"{path} must have a header and rows, but it is empty") from error
    except (ValueError, OSError) as error:
        raise ValueError(f"{path} cannot be read as csv: {error}") from error
    names = [str(name) for name in first.iloc[0]]
    for name, times in Counter(name.strip() for name in names).items():
        if name and times > 1:
            raise ValueError(
                f"{path} must have columns with different names, got {name!r} {times} times in its first line: "
                "rename or remove all but one"
            )
    return names
