"""The leaderboard, for the page and for the terminal."""

from __future__ import annotations

from typing import NamedTuple

from bayesrule.report.comparison import Comparison, Entry, by_nll
from bayesrule.report.measures import MEASURES, Measure, number


class Cell(NamedTuple):
    """A score, its 95 % interval, whether it is the best of its column, and what it would be by chance alone."""

    value: str
    interval: str
    best: bool
    null: str = ""
    null_upper: str = ""


class BoardRow(NamedTuple):
    """A method, its scores, and what its training cost: a multiple of MAP's, or seconds; whether it is folded away."""

    name: str
    cells: list[Cell]
    cost: str
    folded: bool = False


class Board(NamedTuple):
    """The columns that the scores allow, and a row for each method and baseline, best NLL first."""

    measures: list[Measure]
    rows: list[BoardRow]


def board(comparison: Comparison) -> Board:
    """The leaderboard of a comparison."""
    shown = {name: measure for name, measure in MEASURES.items() if name in comparison.entries[0].scores}
    entries = by_nll([*comparison.entries, *comparison.baselines])
    best = {name: m.best({e.name: e.scores[name] for e in entries if name in e.scores}) for name, m in shown.items()}
    first = {id(entry) for entry in (*comparison.leading, *comparison.baselines)}
    rows = []
    for entry in entries:
        cells, cost = [_cell(entry, name, entry.name in best[name]) for name in shown], comparison.cost(entry)
        paid = f"{entry.seconds:.1f} s"
        if cost is not None:
            paid = f"{cost:.1f} ×"
        rows.append(BoardRow(entry.name + _mark(entry, comparison), cells, paid, id(entry) not in first))
    return Board(list(shown.values()), rows)


def _mark(entry: Entry, comparison: Comparison) -> str:
    """What is said beside a name: whether it is a baseline, and if that saw fewer rows than the methods, how many."""
    if entry not in comparison.baselines:
        return ""
    return f" (baseline, {entry.settings['rows']} rows)" if "rows" in entry.settings else " (baseline)"


def _cell(entry: Entry, name: str, best: bool) -> Cell:
    if name not in entry.scores:
        return Cell("–", "", False)
    low, high = entry.scores.interval(name)
    cell = Cell(number(entry.scores[name]), f"{number(low)} … {number(high)}", best)
    if name in entry.scores.nulls:
        null = entry.scores.null(name)
        cell = cell._replace(null=number(null.mean), null_upper=number(null.upper))
    return cell
