"""Questions and answers as files for a person."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bayesrule.active.pools import Pool
from bayesrule.active.results import Result
from bayesrule.data.columns import as_texts
from bayesrule.data.reading import open_table
from bayesrule.naming import unknown

if TYPE_CHECKING:
    import pandas as pd

QUESTION, ROW = "question", "row"  # columns of both files


def identity(result: Result, rows: Sequence[int]) -> str:
    """A short name of the question for some rows, in a run: another question has another.

    >>> result = Result("pool", {}, 0)
    >>> identity(result, [1, 2]) == identity(result, [1, 2]) != identity(result, [1, 3])
    True
    """
    about = json.dumps([result.about, result.seed, list(rows)], sort_keys=True)
    return hashlib.sha256(about.encode()).hexdigest()[:8]


def written(result: Result, target: str, rows: pd.DataFrame | None = None) -> pd.DataFrame:
    """The open question as a table: its name, the rows asked for, what they hold, and an empty column for the labels.

    ``rows``: what the rows asked for hold, in their order; the target in it does not count.
    """
    import pandas as pd

    asked = result.asked
    found = pd.DataFrame({QUESTION: [identity(result, asked)] * len(asked), ROW: asked})
    if rows is not None:
        for name in rows.columns:
            if name in (QUESTION, ROW):
                raise ValueError(f"the table must have no column {name!r}, which names a question: rename it")
            if name != target:
                found[name] = rows[name].to_numpy()
    found[target] = ""
    return found


def read(path: str | Path, result: Result, pool: Pool, target: str, sep: str | None = None) -> list[float]:
    """The labels of the open question, in its order, from a person's file; or an error that says what is wrong.

    The file has the columns ``row`` and the target, and perhaps ``question``, as the file of questions has: that file,
    filled in, will do.
    """
    if not result.asked:
        raise ValueError(f"{path} must answer a question, but none is open: ask first (--ask)")
    frame = open_table(path, sep, texts={QUESTION}).frame
    for name in (ROW, target):
        if name not in frame:
            have = ", ".join(map(str, frame.columns))
            raise ValueError(f"{path} must have the columns {ROW} and {target}, as the questions have, but has {have}")
    if QUESTION in frame:
        _check_question(path, set(frame[QUESTION].dropna().astype(str)), result)
    told: dict[int, str] = {}
    for given, text in zip(frame[ROW], as_texts(frame[target]), strict=True):
        row = _row(path, given, result)
        if row in told:
            raise ValueError(f"{path}: row {row} must be answered once, but it is there twice")
        if text is not None and text.strip():
            told[row] = text.strip()
    if missing := [row for row in result.asked if row not in told]:
        raise ValueError(
            f"{path}: every row asked for must have a {target}, but {len(missing)} of {len(result.asked)} have none: "
            f"{_some(missing)}"
        )
    return [_label(path, row, told[row], pool) for row in result.asked]


def _row(path: str | Path, given: Any, result: Result) -> int:
    """A row that was asked for."""
    try:
        row = int(float(given))
    except (TypeError, ValueError):
        raise ValueError(f"{path}: {ROW} must be a whole number, got {given!r}") from None
    if row not in result.asked or row != float(given):
        raise ValueError(
            f"{path}: row {given} was not asked for: is it the answer to another question? Open are "
            f"{_some(result.asked)}"
        )
    return row


def _check_question(path: str | Path, questions: set[str], result: Result) -> None:
    mine = identity(result, result.asked)
    for other in sorted(questions - {mine}):
        for rows in result.rows:
            if identity(result, rows) == other:
                raise ValueError(f"{path} answers question {other}, which was told already: the open one is {mine}")
        raise ValueError(
            f"{path} answers question {other}, but the open one is {mine}: give the file that belongs to it"
        )


def _label(path: str | Path, row: int, text: str, pool: Pool) -> float:
    """A class's number, or the number itself."""
    if pool.kind == "classes":
        if text not in pool.classes:
            raise ValueError(f"{path}, row {row}: {unknown('class', text, pool.classes)}")
        return pool.classes.index(text)
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not math.isfinite(value):
        raise ValueError(f"{path}, row {row}: the label must be a number, got {text!r}")
    return value


def _some(rows: Sequence[int]) -> str:
    return f"rows {', '.join(map(str, rows[:8]))}" + (", …" if len(rows) > 8 else "")
