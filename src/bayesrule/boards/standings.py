"""From cells to a table: means with standard errors, costs as ratios, ranks, and the method that validation chooses."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from bayesrule.boards.base import BOARDS
from bayesrule.boards.cells import Cell, Simple
from bayesrule.jobs import Answer
from bayesrule.report.runs import score

UNIT = "map"  # whose cost is the unit
CHOSEN = "best by validation"

Runs = dict[int, Answer]  # answers by repetition


@dataclass(frozen=True)
class Row:
    """A line of a board: a value of each score by repetition, costs, and what went wrong.

    ``training`` and ``prediction``: multiples of those of `UNIT` on the same repetition, or seconds without it.
    """

    name: str
    scores: Mapping[str, Mapping[int, float]]
    training: Mapping[int, float] = field(default_factory=dict)
    prediction: Mapping[int, float] = field(default_factory=dict)
    failed: Mapping[int, str] = field(default_factory=dict)
    warnings: Sequence[str] = ()

    def values(self, score: str) -> list[float]:
        """A score of all repetitions."""
        return list(self.scores.get(score, {}).values())

    @property
    def nll(self) -> float:
        """The mean, infinite where a repetition failed: what did not finish leads no board."""
        found = self.values("nll")
        return math.inf if self.failed or not found else sum(found) / len(found)


@dataclass(frozen=True)
class Standing:
    """What came out on one board.

    ``relative``: whether costs are multiples. ``elected``: how often validation chose which method. ``commits``: of the
    source that measured the cells.
    """

    board: str
    rows: Sequence[Row]
    baselines: Sequence[Row]
    repeats: Sequence[int]
    relative: bool
    likelihoods: Sequence[str] = ()
    chosen: Row | None = None
    elected: Mapping[str, int] = field(default_factory=dict)
    commits: Sequence[str] = ()

    @property
    def ranked(self) -> list[Row]:
        """All rows, the lowest NLL first."""
        extra = [] if self.chosen is None else [self.chosen]
        return sorted([*self.rows, *extra, *self.baselines], key=lambda row: row.nll)


def standing(board: str, cells: Sequence[tuple[Cell, Answer]], simple: Sequence[tuple[Simple, Answer]]) -> Standing:
    """All cells of one board."""
    mine = [(cell, answer) for cell, answer in cells if cell.board == board]
    tested: dict[str, Runs] = {}
    held: dict[str, Runs] = {}
    for cell, answer in mine:
        part = tested if cell.part == "test" else held
        part.setdefault(cell.method, {})[cell.repeat] = answer
    unit = tested.get(UNIT, {})
    rows = [_row(name, runs, unit) for name, runs in tested.items()]
    repeats = sorted({cell.repeat for cell, _ in mine})
    elected = {repeat: _elected(held, tested, repeat) for repeat in repeats} if held else {}
    found = {repeat: name for repeat, name in elected.items() if name is not None}
    chosen = None
    if found and len(found) == len(repeats):
        chosen = _row(CHOSEN, {repeat: tested[name][repeat] for repeat, name in found.items()}, unit)
    names = list(found.values())
    return Standing(
        board,
        rows,
        _baselines({question.repeat: answer for question, answer in simple if question.board == board}, unit),
        repeats,
        bool(unit),
        sorted({answer["likelihood"] for _, answer in mine if "likelihood" in answer}),
        chosen,
        {name: names.count(name) for name in dict.fromkeys(names)},
        sorted({answer["commit"] for _, answer in mine if answer.get("commit")}),
    )


def standings(
    cells: Sequence[Cell], answers: Sequence[Answer], simple: Sequence[Simple], baselines: Sequence[Answer]
) -> list[Standing]:
    """All boards, in the order of their names in the catalogue."""
    found, below = list(zip(cells, answers, strict=True)), list(zip(simple, baselines, strict=True))
    names = {cell.board for cell in cells}
    return [standing(name, found, below) for name in BOARDS if name in names]


def ranks(standings: Sequence[Standing]) -> dict[str, float]:
    """The mean rank of each method by NLL over boards, 1 the best; ties, and failures at the end, share their places.

    Only of methods that are on all boards: of others a mean would be over easier ones.
    """
    common = set.intersection(*({row.name for row in one.rows} for one in standings))
    totals = dict.fromkeys((row.name for row in standings[0].rows if row.name in common), 0.0)
    for one in standings:
        nll = {row.name: row.nll for row in one.rows if row.name in common}
        for name in nll:
            below = sum(other < nll[name] for other in nll.values())
            level = sum(other == nll[name] for other in nll.values())
            totals[name] += below + (level + 1) / 2
    means = {name: total / len(standings) for name, total in totals.items()}
    return dict(sorted(means.items(), key=lambda item: item[1]))


def gains(one: Standing, row: Row) -> list[float]:
    """By how much the NLL of `UNIT` is above a row's, repetition by repetition: what they share cancels."""
    unit = next((other for other in one.rows if other.name == UNIT), None)
    if unit is None or "nll" not in unit.scores or "nll" not in row.scores:
        return []
    base = unit.scores["nll"]
    return [base[repeat] - value for repeat, value in row.scores["nll"].items() if repeat in base]


def _row(name: str, runs: Runs, unit: Runs) -> Row:
    done = {repeat: answer for repeat, answer in runs.items() if "failed" not in answer}
    failed = {repeat: answer["failed"] for repeat, answer in runs.items() if "failed" in answer}
    scores: dict[str, dict[int, float]] = {}
    said: list[str] = []
    for repeat, answer in done.items():
        said += answer.get("warnings", [])
        for which, value in answer["scores"].items():
            scores.setdefault(which, {})[repeat] = value
    costs = {what: _costs(done, unit, what) for what in ("training", "prediction")}
    return Row(name, scores, failed=failed, warnings=list(dict.fromkeys(said)), **costs)


def _costs(runs: Runs, unit: Runs, what: str) -> dict[int, float]:
    """Seconds, or, where the unit was measured on any repetition, multiples on those where it was."""
    found = {}
    for repeat, answer in runs.items():
        if what not in answer:
            continue
        if not unit:
            found[repeat] = answer[what]
        elif what in unit.get(repeat, {}):
            found[repeat] = answer[what] / max(unit[repeat][what], 1e-9)
    return found


def _elected(held: Mapping[str, Runs], tested: Mapping[str, Runs], repeat: int) -> str | None:
    """The method whose NLL is lowest on the part of the training examples that was kept apart."""
    found = {}
    for name, runs in held.items():
        if "scores" in runs.get(repeat, {}) and "scores" in tested[name].get(repeat, {}):
            found[name] = runs[repeat]["scores"]["nll"]
    return min(found, key=lambda name: found[name]) if found else None


def _baselines(answers: Runs, unit: Runs) -> list[Row]:
    """A row for each baseline, or one that says why there is none."""
    found: dict[str, Runs] = {}
    failed = {}
    for repeat, answer in answers.items():
        if "failed" in answer:
            failed[repeat] = answer["failed"]
        for name, scores in answer.get("baselines", {}).items():
            found.setdefault(name, {})[repeat] = scores
    rows = [_row(name, runs, unit) for name, runs in found.items()]
    return [*rows, Row("baselines", {}, failed=failed)] if failed else rows


def plain_board(one: Standing) -> dict[str, Any]:
    """A board as plain data; ``runs`` are the values by repetition."""
    methods = {row.name: _plain(one, row) for row in sorted(one.rows, key=lambda row: row.nll)}
    found: dict[str, Any] = {"repeats": list(one.repeats), "likelihoods": list(one.likelihoods)}
    found |= {"commits": list(one.commits), "methods": methods}
    found["baselines"] = {row.name: _plain(one, row) for row in one.baselines}
    if one.chosen is not None:
        found["chosen"] = _plain(one, one.chosen) | {"methods": dict(one.elected)}
    return found


def _plain(one: Standing, row: Row) -> dict[str, Any]:
    scores = {name: summary(list(values.values())) for name, values in row.scores.items()}
    costs = {what: summary(list(getattr(row, what).values())) for what in ("training", "prediction")}
    about: dict[str, Any] = {"scores": scores, **{what: value for what, value in costs.items() if value}}
    if difference := gains(one, row):
        about["gain"] = summary(difference)
    about["runs"] = {name: list(values.values()) for name, values in row.scores.items()}
    return about | {"failed": {str(key): what for key, what in row.failed.items()}, "warnings": list(row.warnings)}


def summary(values: Sequence[float]) -> dict[str, float | None]:
    """A mean and its standard error; that of one value is not known.

    >>> summary([1.0, 3.0]), summary([2.0]), summary([])
    ({'mean': 2.0, 'error': 1.0}, {'mean': 2.0, 'error': None}, {})
    """
    if not values:
        return {}
    found = score(values)
    return {"mean": found.mean, "error": found.error}
