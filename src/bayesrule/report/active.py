"""What came out of active learning: a table, learning curves, what was asked for, and a page to answer on."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median

import matplotlib
import numpy as np
from markupsafe import Markup
from matplotlib.figure import Figure

from bayesrule.active import Result
from bayesrule.report.drawing import STYLE, svg
from bayesrule.report.runs import Line, Score, Shown, bands, legend_beside, page, score

SHOWN = 12  # rounds whose rows are on the page


@dataclass(frozen=True, eq=False)
class Asked:
    """What one run asked for: of each round its name and examples."""

    name: str
    rounds: Sequence[tuple[str, Sequence[Shown]]]
    columns: Sequence[str] = ()


@dataclass(frozen=True, eq=False)
class Curves:
    """Runs over one pool: of each acquisition those of its seeds. ``reach``: accuracies to be reached."""

    pool: str
    summary: str
    runs: Mapping[str, Sequence[Result]]
    labelled: bool
    reach: Sequence[float] = ()
    facts: Sequence[tuple[str, str]] = ()
    notes: Sequence[str] = ()
    asked: Sequence[Asked] = ()

    @property
    def judged(self) -> bool:
        """Whether there were test examples."""
        return all(run.accuracy for runs in self.runs.values() for run in runs)


def headings(curves: Curves) -> list[tuple[str, str]]:
    """The columns of the table, each with what it says."""
    if not curves.judged:
        return [
            ("labels", "how many are known"),
            ("epistemic", "mean epistemic uncertainty over the pool"),
            ("s", "seconds"),
        ]
    found = []
    if curves.labelled:
        for accuracy in curves.reach:
            says = f"labels with which {accuracy:.0%} of the test examples were right first: the median over seeds"
            found.append((f"labels to {accuracy:.0%}", says))
    last, mean = ("accuracy", "mean accuracy") if curves.labelled else ("RMSE", "mean RMSE")
    found.append((last, "on the test examples, when the budget is spent"))
    found.append((mean, "over the learning curve: its area"))
    found.append(("NLL", "mean −log p(y|x) when the budget is spent: punishes being sure and wrong"))
    if curves.labelled:
        found.append(("ECE", "mean gap between confidence and accuracy"))
    return [*found, ("s", "seconds of learning and choosing")]


def lines(curves: Curves) -> list[Line]:
    """The table, the best area first."""
    found = [Line(name, _cells(curves, runs)) for name, runs in curves.runs.items()]
    if not curves.judged:
        return found
    sign = 1 if curves.labelled else -1
    order = sorted(found, key=lambda line: -sign * _area(curves.runs[line.name]))
    return [line._replace(cells=_marked(curves, found, line)) for line in order]


def _area(runs: Sequence[Result]) -> float:
    return float(np.mean([run.summary()["area"] for run in runs]))


def _marked(curves: Curves, every: Sequence[Line], line: Line) -> list[Score]:
    """Cells with the best of each column marked; of one acquisition nothing is."""
    if len(every) < 2:
        return line.cells
    cells = []
    for index, (label, _) in enumerate(headings(curves)):
        values = [other.cells[index].mean for other in every]
        best = max(values) if "accuracy" in label else min(values)
        leads = label != "s" and line.cells[index].mean == best < float("inf")
        cells.append(line.cells[index]._replace(best=leads))
    return cells


def _cells(curves: Curves, runs: Sequence[Result]) -> list[Score]:
    ends = [run.summary() for run in runs]
    seconds = score([end["seconds"] for end in ends])
    seconds = seconds._replace(text=f"{seconds.mean:.0f}")
    if not curves.judged:
        labels = score([end["labels"] for end in ends])
        return [labels._replace(text=f"{labels.mean:.0f}"), score([end["unsure"] for end in ends]), seconds]
    found = []
    sign = 1.0 if curves.labelled else -1.0
    if curves.labelled:
        found += [_reached(runs, accuracy) for accuracy in curves.reach]
    for name in ("accuracy", "area"):
        found.append(score([sign * end[name] for end in ends], percent=curves.labelled))
    found.append(score([end["nll"] for end in ends]))
    if curves.labelled:
        found.append(score([end["ece"] for end in ends]))
    return [*found, seconds]


def _reached(runs: Sequence[Result], accuracy: float) -> Score:
    """The median over seeds of the labels to an accuracy; a run that never got there counts as more than all."""
    found = [run.labels_to(accuracy) for run in runs]
    middle = median([float("inf") if labels is None else labels for labels in found])
    if middle == float("inf"):
        return Score(middle, None, f"> {max(run.labels[-1] for run in runs)}")
    missed = sum(labels is None for labels in found)
    return Score(middle, None, f"{middle:g}" + (f" ({missed} never)" if missed else ""))


def figure(curves: Curves) -> Figure:
    """Accuracy, minus RMSE, or without test examples uncertainty, against the number of labels."""
    with matplotlib.rc_context(STYLE):
        drawn = Figure((7.6, 3.6), layout="constrained")
        axes = drawn.subplots()
        first = next(iter(curves.runs.values()))[0]
        values = {}
        for name, runs in curves.runs.items():
            if not curves.judged:
                values[name] = np.array([run.unsure for run in runs])
            else:
                values[name] = np.array([run.accuracy for run in runs]) * (100.0 if curves.labelled else -1.0)
        bands(axes, first.labels, values)
        label = "test accuracy, %" if curves.labelled else "test RMSE"
        axes.set(xlabel="labels", ylabel=label if curves.judged else "mean epistemic uncertainty of the pool")
        if curves.labelled and curves.judged:
            for accuracy in curves.reach:
                axes.axhline(100 * accuracy, color="0.6", lw=0.7, ls=":")
        legend_beside(axes)
        return drawn


def render(curves: Curves) -> str:
    """The page; whatever comes from a user's file is escaped."""
    return page(
        "active.html",
        curves=curves,
        seeds=len(next(iter(curves.runs.values()))),
        headings=headings(curves),
        lines=lines(curves),
        figure=svg(figure(curves)),
    )


def answering(
    question: str,
    target: str,
    rows: Sequence[int],
    examples: Sequence[Shown],
    columns: Sequence[str],
    classes: Sequence[str],
) -> str:
    """A page to answer a question on: one example after the other, a button for each class or a field for a number.

    It needs nothing but a browser, keeps what was answered there, and exports a file for ``--tell``.
    """
    items = [
        {"row": row, "png": example.png, "cells": list(example.cells)}
        for row, example in zip(rows, examples, strict=True)
    ]
    about = {"question": question, "target": target, "items": items, "columns": list(columns), "classes": list(classes)}
    # within a script no text may end it, whatever a user's file holds
    plain = json.dumps(about).replace("<", "\\u003c").replace("\u2028", "\\u2028").replace("\u2029", "\\u2029")
    return page("answering.html", about=Markup(plain), question=question, target=target, count=len(items))
