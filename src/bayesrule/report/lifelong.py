"""What came out of learning streams: a table, matrices and curves, and one HTML page."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import fmean
from typing import Any

import matplotlib
import numpy as np
from matplotlib.figure import Figure
from torch import Tensor

from bayesrule.lifelong import Result
from bayesrule.report.drawing import STYLE, svg
from bayesrule.report.runs import Line, Score, Shown, bands, evenly, legend_beside, page, score, shown

CONTROL = "finetune"  # whose time is the unit
SHOWN = 12  # kept examples of a task on the page
WRITTEN = 10  # tasks up to which a matrix has its numbers written


@dataclass(frozen=True, eq=False)
class Kept:
    """Examples that a method keeps: of each task in ``tasks`` the pictures (base64 of a PNG) or rows, with labels."""

    method: str
    tasks: Sequence[tuple[str, int, Sequence[Shown]]]
    columns: Sequence[str] = ()


@dataclass(frozen=True, eq=False)
class Lives:
    """Runs over one stream: of each method those of its seeds. ``facts``: what a page says of where they come from."""

    stream: str
    summary: str
    runs: Mapping[str, Sequence[Result]]
    facts: Sequence[tuple[str, str]] = ()
    notes: Sequence[str] = ()
    kept: Sequence[Kept] = field(default_factory=tuple)

    @property
    def tasks(self) -> list[str]:
        """The names of the tasks."""
        return next(iter(self.runs.values()))[0].tasks

    @property
    def labelled(self) -> bool:
        """Whether accuracy is one, rather than minus an RMSE."""
        return all(value >= 0 for runs in self.runs.values() for run in runs for row in run.accuracy for value in row)


COLUMNS = {
    "average": ("accuracy", "mean accuracy over all tasks, after the last one"),
    "backward_transfer": ("backward", "change of a task's accuracy since it was learnt: below zero is forgetting"),
    "forgetting": ("forgetting", "how far a task has fallen from its best"),
    "forward_transfer": ("forward", "accuracy on a task before it is learnt, above that of a network that knows none"),
    "nll": ("NLL", "mean −log p(y|x) over all tasks, after the last one: punishes being sure and wrong"),
    "ece": ("ECE", "mean gap between confidence and accuracy"),
    "unsure": ("epistemic", "mean epistemic uncertainty on all tasks; a single network has none, and shows zero"),
    "bytes": ("memory", "what the method holds between tasks: networks, precisions and examples"),
    "time": ("time", f"processor time of learning, as a multiple of that of {CONTROL}; without it, in seconds"),
}
HIGH, LOW = ("average", "backward_transfer"), ("forgetting", "nll", "ece")


def lines(lives: Lives) -> list[Line]:
    """The table, best average first."""
    found = {method: _scores(lives, runs) for method, runs in lives.runs.items()}
    best: dict[str, float] = {}
    for column in (*HIGH, *LOW):
        pick = max if column in HIGH else min
        # joint sees all data at once, and competes with nobody
        best[column] = pick(scores[column].mean for name, scores in found.items() if name != "joint" or len(found) == 1)
    rows = []
    for method, scores in sorted(found.items(), key=lambda item: -item[1]["average"].mean):
        cells = [
            score._replace(best=method != "joint" and score.mean == best.get(column))
            for column, score in scores.items()
        ]
        rows.append(Line(method, cells))
    return rows


def headings(lives: Lives) -> list[tuple[str, str]]:
    """The columns of the table, each with what it says."""
    found = list(COLUMNS.values())
    if not lives.labelled:
        found[0] = ("−RMSE", "minus the root mean squared error over all tasks, after the last one")
    return found


def _scores(lives: Lives, runs: Sequence[Result]) -> dict[str, Score]:
    unit = lives.runs.get(CONTROL)
    seconds = None if unit is None else fmean(sum(run.seconds) for run in unit)
    found = {}
    for column in COLUMNS:
        if column == "time":
            values = [sum(run.seconds) / (seconds or 1.0) for run in runs]
        else:
            values = [float(run.summary()[column]) for run in runs]
        found[column] = _score(column, values, lives.labelled, seconds is not None)
    return found


def _score(column: str, values: Sequence[float], labelled: bool, relative: bool) -> Score:
    found = score(values, percent=labelled and column not in ("nll", "ece", "unsure"))
    if column == "bytes":
        return found._replace(text=in_bytes(found.mean))
    if column == "time":
        return found._replace(text=f"{found.mean:.1f} ×" if relative else f"{found.mean:.1f} s")
    return found


def in_bytes(count: float) -> str:
    """A number of bytes for people.

    >>> in_bytes(512), in_bytes(15040), in_bytes(1913200)
    ('512 B', '15.0 kB', '1.9 MB')
    """
    for unit in ("B", "kB", "MB"):
        if count < 1000:
            return f"{count:.0f} B" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1000
    return f"{count:.1f} GB"


def matrices(lives: Lives) -> Figure:
    """The accuracy matrix of each method, mean over seeds; rows are after which task, columns of which task."""
    methods = list(lives.runs)
    count = len(lives.tasks)
    columns = min(3, len(methods))
    rows = -(-len(methods) // columns)
    wide = 3.3 if columns > 1 else 4.6
    every = {method: matrix(runs) for method, runs in lives.runs.items()}
    low, high = (0.0, 1.0) if lives.labelled else _ends(every)
    with matplotlib.rc_context(STYLE):
        figure = Figure((wide * columns, 0.9 * wide * rows), layout="constrained")
        panels = list(figure.subplots(rows, columns, squeeze=False).flat)
        image = None
        for axes, method in zip(panels, methods, strict=False):
            image = axes.imshow(every[method], cmap="viridis", vmin=low, vmax=high, aspect="equal")
            axes.set_title(method, parse_math=False)
            axes.grid(False)
            ticks = _ticks(count)
            axes.set(xlabel="accuracy on task" if lives.labelled else "−RMSE on task", ylabel="after task")
            axes.set_xticks(ticks, [str(tick + 1) for tick in ticks])
            axes.set_yticks(ticks, [str(tick + 1) for tick in ticks])
            if count <= WRITTEN:
                _write(axes, every[method], (low, high), lives.labelled)
        for axes in panels[len(methods) :]:
            axes.remove()
        if image is not None:
            bar = figure.colorbar(image, ax=panels[: len(methods)], shrink=0.7, pad=0.02)
            bar.outline.set_visible(False)
        return figure


def matrix(runs: Sequence[Result]) -> Any:
    """R as an array, mean over seeds; NaN where a task was not judged."""
    count = len(runs[0].accuracy)
    found = np.full((len(runs), count, count), np.nan)
    for which, run in enumerate(runs):
        for i, row in enumerate(run.accuracy):
            found[which, i, : i + 1] = row[: i + 1]
    return found.mean(0)


def _ends(every: Mapping[str, Any]) -> tuple[float, float]:
    values = np.concatenate([found[np.isfinite(found)] for found in every.values()])
    # by quantiles: one method that went astray would leave nothing to see of the others
    return float(np.quantile(values, 0.05)), float(values.max())


def _ticks(count: int) -> list[int]:
    step = -(-count // WRITTEN)
    return list(range(0, count, step))


def _write(axes: Any, values: Any, ends: tuple[float, float], labelled: bool) -> None:
    middle = ends[0] + 0.6 * (ends[1] - ends[0])
    size = 8 if len(values) <= 6 else 5.5
    for i, row in enumerate(values):
        for j, value in enumerate(row[: i + 1]):
            text = f"{100 * value:.0f}" if labelled else f"{value:.2f}"
            colour = "white" if value < middle else "black"
            axes.text(j, i, text, ha="center", va="center", color=colour, fontsize=size)


def curves(lives: Lives) -> Figure:
    """Average accuracy, and epistemic uncertainty where there is any, over the tasks so far, after each; a band of one
    standard error where there are seeds."""
    scale = 100.0 if lives.labelled else 1.0
    panels: dict[str, dict[str, Any]] = {
        "average accuracy so far, %" if lives.labelled else "minus average RMSE so far": {}
    }
    (accuracy,) = panels.values()
    unsure: dict[str, Any] = {}
    for method, runs in lives.runs.items():
        accuracy[method] = scale * np.array([run.averages for run in runs])
        unsure[method] = np.array([run.doubts for run in runs])
    if any(values.any() for values in unsure.values()):
        panels["mean epistemic uncertainty so far"] = unsure
    after = np.arange(1, len(lives.tasks) + 1)
    with matplotlib.rc_context(STYLE):
        figure = Figure((7.6 if len(panels) == 1 else 11.0, 3.6), layout="constrained")
        for axes, (label, values) in zip(
            figure.subplots(1, len(panels), squeeze=False)[0], panels.items(), strict=True
        ):
            bands(axes, after, values)
            axes.set(xlabel="tasks learnt", ylabel=label)
            axes.set_xticks([tick + 1 for tick in _ticks(len(after))])
        legend_beside(axes)
        return figure


def kept_pictures(
    method: str,
    tasks: Sequence[str],
    parts: Sequence[tuple[Tensor, Tensor]],
    shape: tuple[int, int, int] | None,
    columns: Sequence[str] = (),
    orders: Callable[[int], Tensor] | None = None,
) -> Kept:
    """Some of the examples that a method keeps, evenly over those of each task. ``orders``: in which the numbers of a
    task's pictures are, which is undone."""
    found = []
    for task, (name, (x, y)) in enumerate(zip(tasks, parts, strict=False)):
        if orders is not None:
            x = x[:, orders(task).argsort()]
        cells = [shown(x[row], f"{y[row].item():.4g}", shape) for row in evenly(len(y), SHOWN)]
        found.append((name, len(y), cells))
    return Kept(method, found, columns)


def render(lives: Lives) -> str:
    """The page; whatever comes from a user's file is escaped."""
    return page(
        "lifelong.html",
        lives=lives,
        seeds=len(next(iter(lives.runs.values()))),
        headings=headings(lives),
        lines=lines(lives),
        relative=CONTROL in lives.runs,
        curves=svg(curves(lives)),
        matrices=svg(matrices(lives)),
    )
