"""The leaderboard, for the page and for the terminal."""

from __future__ import annotations

from typing import NamedTuple

from bayesrule.report.comparison import Comparison
from bayesrule.report.measures import MEASURES, Measure, number


class Cell(NamedTuple):
    """A score, its 95 % interval, whether it is the best of its column, and what it would be by chance alone."""

    value: str
    interval: str
    best: bool
    null: str = ""
    null_upper: str = ""


class BoardRow(NamedTuple):
    """A method, its scores, and what its training cost: a multiple of MAP's, or seconds."""

    name: str
    cells: list[Cell]
    cost: str


class Board(NamedTuple):
    """The columns that the scores allow, and a row for each method, best NLL first."""

    measures: list[Measure]
    rows: list[BoardRow]


def board(comparison: Comparison) -> Board:
    """The leaderboard of a comparison."""
    shown = {name: measure for name, measure in MEASURES.items() if name in comparison.entries[0].scores}
    best = {name: m.best({e.name: e.scores[name] for e in comparison.entries}) for name, m in shown.items()}
    rows = []
    for entry in comparison.ranked:
        cells, cost = [], comparison.cost(entry)
        for name in shown:
            low, high = entry.scores.interval(name)
            cell = Cell(number(entry.scores[name]), f"{number(low)} … {number(high)}", entry.name in best[name])
            if name in entry.scores.nulls:
                null = entry.scores.null(name)
                cell = cell._replace(null=number(null.mean), null_upper=number(null.upper))
            cells.append(cell)
        paid = f"{entry.seconds:.1f} s"
        if cost is not None:
            paid = f"{cost:.1f} ×"
        rows.append(BoardRow(entry.name, cells, paid))
    return Board(list(shown.values()), rows)
