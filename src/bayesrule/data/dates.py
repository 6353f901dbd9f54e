"""Dates in the columns of tables: recognised however they are written, and read as days since 1970."""

from __future__ import annotations

import re
import warnings
from collections import Counter
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    import pandas as pd

Reading = Literal["as written", "day first", "month first", "excel"]
"""How dates are read: 03/04/2020 in one of two orders, Excel's day numbers, or in no doubt."""

EXCEL_1970 = 25569
"""The day number of 1970-01-01 in Excel, which counts from the end of 1899."""
EXCEL_DATES = (18264, 73051)
"""Excel's day numbers from 1950 to 2100: numbers outside are something else."""

_MONTH = r"(?:jan|feb|mar|apr|may|jun|jul|aug|sep|oct|nov|dec)[a-z]*\.?"
_DATE = re.compile(
    rf"""(?:[a-z]{{3,9}},?\s+)?                                # Friday,
    (?: \d{{4}}([-/.])\d{{1,2}}\1\d{{1,2}}                     # 2020-01-31
      | \d{{1,2}}([-/.])\d{{1,2}}\2\d{{4}}                     # 31.01.2020, 1/31/2020
      | \d{{1,2}}([-/])\d{{1,2}}\3\d{{2}}                      # 1/31/20
      | \d{{4}}-\d{{2}}                                        # 2020-01
      | \d{{1,2}}[\s-]?{_MONTH}[\s,-]*(?:\d{{4}}|\d{{2}})      # 31 Jan 2020, 31-Jan-20
      | {_MONTH}\s+(?:\d{{1,2}}(?:st|nd|rd|th)?,?\s+)?\d{{4}}  # January 31, 2020; Jan 2020
    )(?:[t\s,]+\d{{1,2}}:\d{{2}}.*)?                          # 12:30:00.5+01:00""",
    re.IGNORECASE | re.VERBOSE,
)
_TWO_WAYS = re.compile(r"(\d{1,2})([-/.])(\d{1,2})\2\d{2,4}\b")  # 03/04/2020
_CALLED = re.compile(r"(?:.*[\W_])?(?:date|datum|day|fecha|timestamp|dt)(?:[\W_].*)?|.*[a-z]Date", re.IGNORECASE)


def reading_of_texts(texts: Counter[str]) -> Reading | None:
    """How to read texts of which at least 90 % are dates; None if they are not.

    The order of day and month is the one in which all make sense. Where both do, points stand after a day, as in
    03.04.2020, and strokes after a month.

    >>> reading_of_texts(Counter(["03/04/2020", "13/04/2020"])), reading_of_texts(Counter(["03/04/2020"]))
    ('day first', 'month first')
    """
    alike = [text for text in texts if _DATE.fullmatch(text)]
    if sum(texts[text] for text in alike) < 0.9 * texts.total():
        return None
    reading = _order(alike)
    # The pattern alone takes 99.99.2020; pandas alone takes almost any text. Both together are right.
    fine = ~np.isnan(_parsed(alike, reading))
    known = sum(texts[text] for text, good in zip(alike, fine, strict=True) if good)
    return reading if known >= 0.9 * texts.total() else None


def are_excel_days(name: str, values: NDArray[np.float64]) -> bool:
    """Whether a column that is called a date holds Excel's day numbers.

    >>> are_excel_days("order_date", np.array([43831.0, 43890.5])), are_excel_days("pay", np.array([43831.0, 43890.0]))
    (True, False)
    """
    first, last = EXCEL_DATES
    return bool(_CALLED.fullmatch(name)) and bool(((values >= first) & (values < last)).all())


def days_of(column: pd.Series[Any], reading: Reading) -> NDArray[np.float64]:
    """Days since 1970, in UTC, with the time of day as a part of one; NaN for what is missing or no date."""
    import pandas as pd

    if reading == "excel":
        return pd.to_numeric(column, errors="coerce").to_numpy(dtype=np.float64, na_value=np.nan) - EXCEL_1970
    codes, uniques = pd.factorize(column)  # −1 for missing
    return np.append(_parsed(list(uniques), reading), np.nan)[codes]


def _order(texts: list[str]) -> Reading:
    found = [match for match in map(_TWO_WAYS.match, texts) if match]
    if not found:
        return "as written"
    days_first = sum(int(match[1]) > 12 for match in found)
    months_first = sum(int(match[3]) > 12 for match in found)
    if days_first == months_first:
        return "day first" if found[0][2] == "." else "month first"
    return "day first" if days_first > months_first else "month first"


def _parsed(values: list[Any], reading: Reading) -> NDArray[np.float64]:
    """Days since 1970 of texts or dates."""
    import pandas as pd

    # Only where it is in doubt: pandas would take 2020/01/05 for the first of May, too.
    turned = [reading == "day first" and isinstance(v, str) and bool(_TWO_WAYS.match(v.strip())) for v in values]
    found = np.full(len(values), np.nan)
    with warnings.catch_warnings():  # about the order of day and month, and unknown time zones
        warnings.simplefilter("ignore")
        for dayfirst in (False, True):
            rows = np.array(turned, dtype=bool) == dayfirst
            some = pd.Series([v for v, row in zip(values, rows, strict=True) if row], dtype=object)
            read = pd.to_datetime(some, errors="coerce", format="mixed", utc=True, dayfirst=dayfirst)
            found[rows] = ((read - pd.Timestamp(0, tz="UTC")) / pd.Timedelta(days=1)).to_numpy(dtype=np.float64)
    return found
