"""The columns of a table: what they hold, and how they become numbers."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from bayesrule.data.dates import Reading, are_excel_days, days_of, reading_of_texts
from bayesrule.data.written import numbers_in

if TYPE_CHECKING:
    import pandas as pd

LINE = "line"
"""The name of an index that holds the numbers of lines in a file."""
MOST_CATEGORIES = 50
"""More different texts than this are an id, unless there are two rows for each."""
MOST_INPUTS = 100
"""A column becomes no more inputs than this."""
MOST_ONE_HOT = 10
"""A column of more categories becomes their numbers, where the network has a vector for each."""
LEAST_IDS = 10
"""Fewer texts than this may all differ by chance."""
ANSWERS = (("no", "yes"), ("false", "true"), ("n", "y"), ("f", "t"))
"""Pairs of texts that say no and yes, in small letters or capitals."""


@dataclass(frozen=True)
class NumberColumn:
    """A column of numbers: ``fill`` stands for missing values, and ``flag`` adds a column that says where.

    ``low`` and ``high`` are the range in training; None where it was not noted.
    """

    name: str
    fill: float
    flag: bool
    low: float | None = None
    high: float | None = None

    @property
    def features(self) -> list[str]:
        """The names of the columns it becomes."""
        return _flagged(self.name, self.flag)

    def encode(self, column: pd.Series[Any]) -> NDArray[np.float64]:
        """The column as numbers, [rows, features]."""
        return _filled(as_numbers(column), self.fill, self.flag)

    def unusual(self, column: pd.Series[Any]) -> NDArray[np.bool_]:
        """Which rows are farther from the range in training than its width; missing ones are not."""
        values = as_numbers(column)
        if self.low is None or self.high is None:
            return np.zeros(len(values), dtype=bool)
        width = self.high - self.low
        return (values < self.low - width) | (values > self.high + width)  # a comparison with NaN is False


@dataclass(frozen=True)
class AnswerColumn:
    """A column of two texts that say ``no`` and ``yes``, as 0 and 1; anything else counts as missing."""

    name: str
    no: str
    yes: str
    fill: float
    flag: bool

    @property
    def features(self) -> list[str]:
        """The names of the columns it becomes."""
        return _flagged(self.name, self.flag)

    def encode(self, column: pd.Series[Any]) -> NDArray[np.float64]:
        """The column as numbers, [rows, features]."""
        values = np.full(len(column), np.nan)
        texts = _small(column)
        values[texts == self.no], values[texts == self.yes] = 0.0, 1.0
        return _filled(values, self.fill, self.flag)

    def unusual(self, column: pd.Series[Any]) -> NDArray[np.bool_]:
        """Which rows hold another text."""
        return column.notna().to_numpy() & ~np.isin(_small(column), [self.no, self.yes])


@dataclass(frozen=True)
class CategoryColumn:
    """A column of categories: ``one_hot``, or as their numbers, from 1 on.

    One that is missing, or was not seen in training, is all zeros, or number 0.
    """

    name: str
    categories: tuple[str, ...]
    one_hot: bool = True

    @property
    def features(self) -> list[str]:
        """The names of the columns it becomes."""
        if not self.one_hot:
            return [self.name]
        return [f"{self.name}={category}" for category in self.categories]

    def encode(self, column: pd.Series[Any]) -> NDArray[np.float64]:
        """The column as numbers, [rows, features]."""
        number = {category: k for k, category in enumerate(self.categories, 1)}
        numbers = np.array([number.get(text, 0) for text in as_texts(column)], dtype=np.float64)[:, None]
        if not self.one_hot:
            return numbers
        return (numbers == np.arange(1, len(self.categories) + 1)).astype(np.float64)

    def unusual(self, column: pd.Series[Any]) -> NDArray[np.bool_]:
        """Which rows hold a category that was not seen in training; missing ones do not."""
        known = set(self.categories)
        return np.array([text is not None and text not in known for text in as_texts(column)], dtype=bool)


@dataclass(frozen=True)
class DateColumn:
    """A column of dates: days, the time of the year and of the week, and if there are ``times``, that of the day.

    The last three are angles, by their sine and cosine. ``fill`` stands for missing ones, in days since 1970.
    """

    name: str
    reading: Reading
    times: bool
    fill: float
    flag: bool
    low: float
    high: float

    @property
    def turns(self) -> dict[str, float]:
        """The days that a turn takes, by what turns."""
        return {"year": 365.2425, "week": 7.0} | ({"day": 1.0} if self.times else {})

    @property
    def features(self) -> list[str]:
        """The names of the columns it becomes."""
        turns = [f"{self.name}: {side} of {turn}" for turn in self.turns for side in ("sine", "cosine")]
        return [*_flagged(self.name, self.flag), *turns]

    def encode(self, column: pd.Series[Any]) -> NDArray[np.float64]:
        """The column as numbers, [rows, features]."""
        days = _filled(days_of(column, self.reading), self.fill, self.flag)
        angles = [2 * np.pi * (days[:, 0] % length) / length for length in self.turns.values()]
        return np.column_stack([days, *(side(angle) for angle in angles for side in (np.sin, np.cos))])

    def unusual(self, column: pd.Series[Any]) -> NDArray[np.bool_]:
        """Which rows are farther from the range in training than its width, or no dates; missing ones are not."""
        days, width = days_of(column, self.reading), self.high - self.low
        away = (days < self.low - width) | (days > self.high + width)
        return away | (np.isnan(days) & column.notna().to_numpy())


Column: TypeAlias = NumberColumn | AnswerColumn | CategoryColumn | DateColumn


def _flagged(name: str, flag: bool) -> list[str]:
    return [name, f"{name} is missing"] if flag else [name]


def _filled(values: NDArray[np.float64], fill: float, flag: bool) -> NDArray[np.float64]:
    """Numbers with ``fill`` for missing ones, and if ``flag`` a column that says where."""
    missing = np.isnan(values)
    filled = np.where(missing, fill, values)
    return np.stack([filled, missing], axis=1) if flag else filled[:, None]


def _small(column: pd.Series[Any]) -> NDArray[np.object_]:
    """Texts in small letters, None for missing."""
    return np.array([text and text.casefold() for text in as_texts(column)], dtype=object)


def learn_column(column: pd.Series[Any], embed: bool = False) -> Column | str:
    """The recipe of a column, or why it is dropped; ``embed``: categories may become their numbers."""
    missing, name, content = bool(column.isna().any()), str(column.name), content_of(column)
    if column.isna().all():
        return "it is empty"
    if content == "times":
        return "it holds times or lengths of time; add the parts that matter (hour, minutes) as columns of numbers"
    reading = _dates_in(column, content)
    if reading is not None:
        return _learn_dates(column, reading)
    if content in ("numbers", "yes/no"):
        values = as_numbers(column)
        known = values[~np.isnan(values)]
        if not missing and known.min() == known.max():
            return f"it is constant, {known[0]:g} in every row"
        if content == "numbers" and _called_id(name) and _count_rows(known):
            return f"its {len(known)} different whole numbers in {len(column)} rows look like an id"
        # The median: a few huge values would move a mean far from what is usual.
        return NumberColumn(name, float(np.median(known)), missing, float(known.min()), float(known.max()))
    categories = sorted_texts(column)
    if not missing and len(categories) == 1:
        return f"it is constant, {categories[0]!r} in every row"
    # Nearly one text for each row says who a row is, not what it is like: learnt by heart, and of no use elsewhere.
    rows = int(column.notna().sum())
    if (len(categories) > MOST_CATEGORIES and len(categories) > rows / 2) or len(categories) == rows >= LEAST_IDS:
        return f"its {len(categories)} different values in {len(column)} rows look like an id"
    if embed and len(categories) > MOST_ONE_HOT:
        return CategoryColumn(name, categories, one_hot=False)
    if len(categories) > MOST_INPUTS:
        return f"its {len(categories)} categories are more than {MOST_INPUTS}; put rare ones together to keep it"
    if (answers := _answers(categories)) is not None:
        yes = np.mean([text == answers[1] for text in _small(column) if text is not None])
        return AnswerColumn(name, *answers, float(yes > 0.5), missing)
    return CategoryColumn(name, categories)


def _dates_in(column: pd.Series[Any], content: str) -> Reading | None:
    """How to read a column as dates, if it holds some."""
    if content == "dates":
        return "as written"
    if content == "texts":
        return reading_of_texts(Counter(text.strip() for text in as_texts(column) if text is not None))
    if content == "numbers" and are_excel_days(str(column.name), as_numbers(column.dropna())):
        return "excel"
    return None


def _learn_dates(column: pd.Series[Any], reading: Reading) -> DateColumn | str:
    days = days_of(column, reading)
    known = days[~np.isnan(days)]
    low, high, missing = float(known.min()), float(known.max()), len(known) < len(days)
    if not missing and low == high:
        return f"it is constant, {cell(column, 0)} in every row"
    # a whole day in another time zone ends in the same part of one, too: hours that differ are what counts
    times = bool(np.ptp(known % 1) > 1e-9)
    return DateColumn(str(column.name), reading, times, float(np.median(known)), missing, low, high)


def is_run(column: pd.Series[Any]) -> bool:
    """Whether a column counts the rows, in any order: whole numbers, all different, with few between them left out."""
    if content_of(column) != "numbers" or column.isna().any() or len(column) < LEAST_IDS:
        return False
    values = as_numbers(column)
    # Of rows that were held out the numbers are not here: a run of which a third is missing is one still.
    return _count_rows(values) and bool(values.max() - values.min() < 1.5 * len(values))


_ID = re.compile(
    r"Unnamed: \d+|(?:.*[\W_])?(?:id|ids|idx|index|uuid|guid|key|rowid|row|rownum|row number|nr|no)\.?", re.IGNORECASE
)
_CAMEL = re.compile(r".*[a-z](?:Id|ID|Key|Nr|No)")


def _called_id(name: str) -> bool:
    """Whether the name of a column says that it is an id, or, as pandas names what has no name, says nothing.

    >>> [_called_id(name) for name in ("id", "customer_id", "CustomerID", "Unnamed: 0", "paid", "year")]
    [True, True, True, True, False, False]
    """
    return bool(_ID.fullmatch(name) or _CAMEL.fullmatch(name))


def _count_rows(values: NDArray[np.float64]) -> bool:
    """Whether numbers are whole and all different, and not few."""
    return len(values) >= LEAST_IDS and bool((values % 1 == 0).all()) and len(np.unique(values)) == len(values)


def _answers(categories: tuple[str, ...]) -> tuple[str, str] | None:
    """The pair of `ANSWERS` that categories are, if they are one."""
    found = {text.casefold() for text in categories}
    return next((pair for pair in ANSWERS if found == set(pair)), None)


def content_of(column: pd.Series[Any]) -> str:
    """What a column holds, whatever it is stored as: numbers, yes/no, dates, times or texts."""
    from pandas.api.types import infer_dtype

    return _CONTENTS.get(infer_dtype(column, skipna=True), "texts")


_CONTENTS = {
    **dict.fromkeys(("integer", "floating", "mixed-integer-float", "decimal"), "numbers"),
    "boolean": "yes/no",
    **dict.fromkeys(("datetime64", "datetime", "date"), "dates"),
    **dict.fromkeys(("timedelta64", "timedelta", "time", "period"), "times"),
}


def as_numbers(column: pd.Series[Any]) -> NDArray[np.float64]:
    """A column as floats, NaN for missing; an error that names the first value that is no number."""
    import pandas as pd

    if isinstance(column.dtype, np.dtype) and column.dtype.kind in "fiub":  # the usual case, at a tenth of the price
        values = column.to_numpy().astype(np.float64)
        if not np.isinf(values).any():
            return values
    values = pd.to_numeric(column, errors="coerce").to_numpy(dtype=np.float64, na_value=np.nan, copy=True)
    bad = np.isinf(values) | (np.isnan(values) & column.notna().to_numpy())
    if bad.any():
        # What is mended first is what kept the others, such as € 12, from being read as numbers.
        worst = bad & ~np.array([isinstance(v, str) and numbers_in([v]) is not None for v in column])
        bad = worst if worst.any() else bad
        row = int(np.argmax(bad))
        raise ValueError(
            f"column {column.name!r} must hold finite numbers, got {cell(column, row)!r} in {place(column, row)} "
            f"({int(bad.sum())} such rows): mend it, or leave it empty"
        )
    return values


def place(column: pd.Series[Any], row: int) -> str:
    """Where a value is, for whoever has to mend it: a line of the file it came from, or a row by its label."""
    what = "line" if column.index.name == LINE else "row"
    return f"{what} {column.index[row]}"


def cell(column: pd.Series[Any], row: int) -> Any:
    """A value as Python's own type, to be shown."""
    return column.iloc[[row]].tolist()[0]


def as_texts(column: pd.Series[Any]) -> NDArray[np.object_]:
    """A column as texts, None for missing; whole numbers without a decimal point, however they were stored."""
    from pandas.api.types import infer_dtype

    if infer_dtype(column, skipna=True) == "string":
        texts = column.to_numpy(dtype=object, copy=True)
        texts[column.isna().to_numpy()] = None
        return texts
    found: list[str | None] = []
    for value, missing in zip(column, column.isna(), strict=True):
        if missing:
            found.append(None)
        elif isinstance(value, float) and value.is_integer():
            # pandas stores a column of whole numbers as floats as soon as one is missing; 3 and 3.0 are one category
            found.append(str(int(value)))
        else:
            found.append(str(value))
    return np.array(found, dtype=object)


def sorted_texts(column: pd.Series[Any]) -> tuple[str, ...]:
    """The different texts of a column: in the order of the numbers if they are numbers."""

    def key(text: str) -> tuple[float, str]:
        try:
            return float(text), text
        except ValueError:
            return np.inf, text

    return tuple(sorted({text for text in as_texts(column) if text is not None}, key=key))
