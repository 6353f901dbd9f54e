"""Texts in the cells of a CSV file that a spreadsheet would run as formulas.

A label may come from anywhere, and a cell that begins with ``=`` is a program to a spreadsheet. Such labels are written
with an apostrophe in front (OWASP, CSV injection), which `unescaped` takes away again. Numbers stay numbers.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

_FORMULA = re.compile(r"[' ]*[=+\-@\t\r\n＝＋－＠]")  # the wide signs, too: some spreadsheets take them for the others
_NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)(e[+-]?\d+)?", re.IGNORECASE)


def escaped(text: str) -> str:
    """A text that no spreadsheet takes for a formula.

    >>> [escaped(text) for text in ("=1+1", "-1.5", "cat", "'tis", "'=1")]
    ["'=1+1", '-1.5', 'cat', "'tis", "''=1"]
    """
    return f"'{text}" if _runs(text) else text


def unescaped(text: str) -> str:
    """Undo `escaped`.

    >>> [unescaped(text) for text in ("'=1+1", "-1.5", "cat", "'tis", "''=1")]
    ['=1+1', '-1.5', 'cat', "'tis", "'=1"]
    """
    return text[1:] if text.startswith("'") and _runs(text) else text


def _runs(text: str) -> bool:
    """Whether a text is a formula, apart from apostrophes and spaces before it."""
    return bool(_FORMULA.match(text)) and not _NUMBER.fullmatch(text.lstrip("' "))


def is_predictions(columns: Sequence[str]) -> bool:
    """Whether columns are those that ``bayesrule predict`` writes."""
    return list(columns[:2]) in (["prediction", "confidence"], ["prediction", "std"])
