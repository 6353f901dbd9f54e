"""The leaderboard for people: a table for each board, a picture, one HTML page; and as plain data."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from bayesrule.boards import published
from bayesrule.boards.published import Published
from bayesrule.boards.standings import CHOSEN, UNIT, Row, Standing, gains, plain_board, ranks
from bayesrule.report.drawing import INK, PALETTE, STYLE, svg
from bayesrule.report.measures import MEASURES, UP, Measure, number
from bayesrule.report.runs import Line, Score, score
from bayesrule.report.runs import page as from_template

NAMED = {f"auroc_{name}": Measure(f"{name} AUROC", UP, f"the same for {name}") for name in ("kmnist", "notmnist")}
COLUMNS = MEASURES | NAMED
COSTS = {
    "training": "processor time of training",
    "prediction": "processor time of predicting the test examples, with 32 networks where there are as many",
}
NOTHING = Score(float("nan"), None, "–")
ACROSS = 3  # panels of the picture side by side


@dataclass(frozen=True, eq=False)
class Shown:
    """What is shown: standings, a sentence about each board, and where the numbers are from."""

    standings: Sequence[Standing]
    protocols: Mapping[str, str]
    about: Mapping[str, Any]

    @property
    def ranks(self) -> dict[str, float]:
        """Mean ranks, where there are several boards."""
        return ranks(self.standings) if len(self.standings) > 1 else {}


def headings(one: Standing) -> list[tuple[str, str]]:
    """The columns of a board, each with what it says."""
    found = [(COLUMNS[name].label, COLUMNS[name].says) for name in _measured(one)]
    unit = f"as a multiple of that of {UNIT} in the same run" if one.relative else "in seconds"
    return [*found, *((name, f"{says}, {unit}") for name, says in COSTS.items())]


def lines(one: Standing) -> list[Line]:
    """A board, the lowest NLL first; the best of a column is marked, published figures come last."""
    best = {name: _best(one, name) for name in _measured(one)}
    found = []
    for row in one.ranked:
        cells = [_cell(row, name)._replace(best=row.name in best[name]) for name in best]
        found.append(Line(_named(one, row), [*cells, *(_cost(one, getattr(row, what)) for what in COSTS)]))
    for (source, how), figures in _beside(one.board).items():
        cells = [_published(figures[name]) if name in figures else NOTHING for name in best]
        found.append(Line(f"{source}, {how}", [*cells, *[NOTHING] * len(COSTS)]))
    return found


def _beside(board: str) -> dict[tuple[str, str], dict[str, Published]]:
    """What is known of a board, the scores of each source together."""
    found: dict[tuple[str, str], dict[str, Published]] = {}
    for figure in published.on(board):
        found.setdefault((figure.source, figure.how), {})[figure.score] = figure
    return found


def in_short(one: Standing) -> tuple[list[str], list[list[str]]]:
    """The head and the rows of a board for a terminal: of all scores but the NLL the mean alone."""
    heads = [label for label, _ in headings(one)]
    rows = []
    for line in lines(one)[: len(one.ranked)]:
        cells = [cell.text if head == "NLL" else cell.short for head, cell in zip(heads, line.cells, strict=True)]
        rows.append([line.name, *cells])
    return ["method", *heads], rows


def literature(one: Standing) -> str:
    """What is known of other methods, in one line."""
    told = []
    for (source, how), figures in _beside(one.board).items():
        scores = " ".join(f"{name} {figure.value:g}" for name, figure in figures.items())
        told.append(f"{source}, {how}: {scores}")
    return "; ".join(told)


def failures(found: Sequence[Standing]) -> list[str]:
    """A sentence for each cell that failed."""
    said = []
    for one in found:
        for row in [*one.rows, *one.baselines]:
            said += [f"{one.board}, {row.name}, repetition {repeat}: {why}" for repeat, why in row.failed.items()]
    return said


def warnings(found: Sequence[Standing]) -> list[str]:
    """What fits have warned of, once for each method and board."""
    return [f"{one.board}, {row.name}: {text}" for one in found for row in one.rows for text in row.warnings]


def figure(shown: Shown) -> Figure:
    """By how much each method's NLL is below that of `UNIT`, a panel for each board; bars are standard errors."""
    names = list(shown.ranks) or [row.name for row in shown.standings[0].ranked]
    for one in shown.standings:
        names += [row.name for row in one.ranked if row.name not in names and row.name != UNIT]
    names = [name for name in names if name not in (UNIT, "baselines")]
    across = min(ACROSS, len(shown.standings))
    down = -(-len(shown.standings) // across)
    with matplotlib.rc_context(STYLE):
        drawn = Figure((3.0 * across + 1.2, (0.18 * len(names) + 1.1) * down), layout="constrained")
        panels = list(drawn.subplots(down, across, squeeze=False, sharey=True).flat)
        for axes, one in zip(panels, shown.standings, strict=False):
            _draw(axes, one, names)
        for axes in panels[len(shown.standings) :]:
            axes.remove()
        return drawn


def _draw(axes: Axes, one: Standing, names: Sequence[str]) -> None:
    extra = [] if one.chosen is None else [one.chosen]
    for row in [*one.rows, *extra, *one.baselines]:
        if row.name in names and not row.failed and (values := gains(one, row)):
            found = score(values)
            colour = PALETTE[2] if row.name == CHOSEN else PALETTE[7] if row in one.baselines else PALETTE[0]
            axes.errorbar(found.mean, names.index(row.name), xerr=found.error or 0, fmt="o", ms=4, color=colour)
    axes.axvline(0, color=INK, lw=0.8)
    axes.set_xscale("symlog", linthresh=0.1)
    axes.set_yticks(range(len(names)), names, parse_math=False)
    axes.set_ylim(len(names) - 0.5, -0.5)
    axes.set_title(one.board, parse_math=False)
    axes.set_xlabel(f"NLL of {UNIT} minus its own")
    axes.tick_params(axis="x", labelrotation=60)


def render(shown: Shown) -> str:
    """The page."""
    boards = [
        {"name": one.board, "protocol": shown.protocols[one.board], "standing": one, "headings": headings(one)}
        | {"lines": lines(one), "elected": _elected(one)}
        for one in shown.standings
    ]
    glossary: dict[str, str] = {}
    for one in shown.standings:
        glossary |= dict(headings(one))
    relative = any(one.relative for one in shown.standings)
    return from_template(
        "boards.html",
        boards=boards,
        ranks=[(name, f"{value:.1f}") for name, value in shown.ranks.items()],
        glossary_of=list(glossary.items()),
        figure=svg(figure(shown)) if relative else "",
        failures=failures(shown.standings),
        warnings=warnings(shown.standings),
        facts=[(name, str(shown.about[name])) for name in ("command", "commit", "date", "machine", "versions")],
        unit=UNIT,
    )


def plain(shown: Shown) -> dict[str, Any]:
    """The contents of ``result.json``."""
    boards = {}
    for one in shown.standings:
        beside = [
            {"source": f.source, "how": f.how, f.score: f.value, "error": f.error} for f in published.on(one.board)
        ]
        boards[one.board] = {"protocol": shown.protocols[one.board], **plain_board(one), "published": beside}
    return {**shown.about, "ranks": shown.ranks, "boards": boards, "failures": failures(shown.standings)}


def _measured(one: Standing) -> list[str]:
    """The scores that some row has, in the order of the columns."""
    return [name for name in COLUMNS if any(name in row.scores for row in [*one.rows, *one.baselines])]


def _best(one: Standing, name: str) -> set[str]:
    """Of the methods without a failure; the one that validation chose is one of them already."""
    means = {}
    for row in one.rows:
        if not row.failed and (values := row.values(name)):
            means[row.name] = sum(values) / len(values)
    return COLUMNS[name].best(means)


def _cell(row: Row, name: str) -> Score:
    values = row.values(name)
    if not values:
        return NOTHING
    found = score(values)
    text = number(found.mean) + ("" if found.error is None else f" ± {number(found.error)}")
    if name == "ece" and (nulls := row.values("ece_null")):
        text += f" ({number(sum(nulls) / len(nulls))})"
    return Score(found.mean, found.error, text)


def _cost(one: Standing, values: Mapping[int, float]) -> Score:
    if not values:
        return NOTHING
    found = score(list(values.values()))
    return found._replace(text=f"{found.mean:.1f} ×" if one.relative else f"{found.mean:.3g} s")


def _published(figure: Published) -> Score:
    text = number(figure.value) + ("" if figure.error is None else f" ± {number(figure.error)}")
    return Score(figure.value, figure.error, text)


def _named(one: Standing, row: Row) -> str:
    """A row's name, and what a reader has to know of it."""
    if row in one.baselines:
        return f"{row.name} (baseline)"
    if row.failed:
        return f"{row.name} ({len(row.failed)} of {len(one.repeats)} FAILED)"
    return f"{row.name} (regularised baseline)" if row.name == UNIT else row.name


def _elected(one: Standing) -> str:
    """Which methods validation chose, in words."""
    return ", ".join(f"{name} ({count} of {len(one.repeats)})" for name, count in one.elected.items())
