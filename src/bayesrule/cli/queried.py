"""Rows of a pool on pages: what was asked for, as pictures or as people read a table."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torch import Tensor

from bayesrule.active import Pool, Result
from bayesrule.data import albums

if TYPE_CHECKING:
    import pandas as pd

    from bayesrule.report.active import Asked
    from bayesrule.report.runs import Shown

CELLS = 8  # of a row, on the page
ROUNDS = 12  # whose rows are on the page


@dataclass(frozen=True, eq=False)
class Opened:
    """A pool, its rows as people read them (None: pictures by name), sentences, and the ``folder`` of picture files."""

    pool: Pool
    frame: pd.DataFrame | None
    notes: tuple[str, ...]
    folder: Path | None = None


def asked(opened: Opened, name: str, result: Result, target: str | None) -> Asked:
    """Some rounds of a run, as pictures or rows."""
    from bayesrule.report import active as report
    from bayesrule.report.runs import evenly

    pool, names = opened.pool, columns(opened, target)
    rounds = []
    for index in evenly(len(result.rows), ROUNDS):
        examples = []
        for place, row in enumerate(result.rows[index]):
            label = _label(pool, result.answers[index][place])
            if result.guesses[index]:
                label += f" ({_guess(pool, result.guesses[index][place], result.sure[index][place])})"
            examples.append(shown(opened, row, label, names[:CELLS]))
        title = "to begin with" if index == 0 else f"round {index}"
        if examples:
            rounds.append((f"{title}: {len(examples)}", examples))
    return report.Asked(name, rounds, names[:CELLS])


def columns(opened: Opened, target: str | None) -> list[str]:
    """The names of what `shown` shows of a row; none of a picture."""
    pool, frame = opened.pool, opened.frame
    if frame is not None:
        return [str(name) for name in frame.columns if name != target]
    if pool.image_shape is not None:
        return []
    assert isinstance(pool.x, Tensor)
    return list(pool.features) or [f"input {index + 1}" for index in range(pool.x[0].numel())]


def shown(opened: Opened, row: int, label: str, columns: Sequence[str]) -> Shown:
    """A row of the pool for a page."""
    from bayesrule.report import runs

    pool, frame = opened.pool, opened.frame
    assert isinstance(pool.x, Tensor)
    found = runs.shown(pool.x[row], label, pool.image_shape)
    return found if frame is None else found._replace(cells=[_words(frame.iloc[row][name]) for name in columns])


def questioned(opened: Opened, row: int, columns: Sequence[str]) -> Shown:
    """A row of the pool for whoever labels it: a user's picture from its own file, however small the network's is."""
    found = shown(opened, row, "", columns)
    if opened.folder is None or opened.frame is None:
        return found
    file = opened.folder / str(opened.frame.iloc[row][albums.FILE])
    return found._replace(png=b64encode(albums.preview(file)).decode())


def _words(value: Any) -> str:
    """A cell of a table, a dash if it is empty."""
    if value is None or value != value:
        return "–"
    return f"{value:.6g}" if isinstance(value, float) else str(value)


def _label(pool: Pool, value: float) -> str:
    return pool.classes[int(value)] if pool.kind == "classes" else f"{value:.4g}"


def _guess(pool: Pool, guess: float, sure: float) -> str:
    return f"{_label(pool, guess)}, {sure:.0%}" if pool.kind == "classes" else f"{guess:.4g} ± {sure:.2g}"
