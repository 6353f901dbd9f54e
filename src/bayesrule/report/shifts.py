"""Curves of scores against the severity of a shift, and what its examples look like."""

from __future__ import annotations

import matplotlib
import numpy as np
from matplotlib.figure import Figure

from bayesrule.evaluate import ShiftCurves
from bayesrule.report.drawing import PALETTE, STYLE, STYLES, svg
from bayesrule.report.measures import MEASURES
from bayesrule.report.runs import png

COLUMNS = 3


def shift_figure(curves: ShiftCurves) -> Figure:
    """A panel for each score, a line for each posterior, a band where there are bootstrap intervals."""
    shown = curves.shown
    rows = -(-len(shown) // COLUMNS)
    with matplotlib.rc_context(STYLE):
        figure = Figure((3.3 * COLUMNS, 2.5 * rows), layout="constrained")
        every = figure.subplots(rows, COLUMNS, squeeze=False).flat
        for index, axes in enumerate(every):
            if index >= len(shown):
                axes.remove()
                continue
            _lines(axes, curves, shown[index])
        handles, labels = figure.axes[0].get_legend_handles_labels()
        legend = figure.legend(handles, labels, loc="outside lower center", ncols=min(5, len(labels)))
        for text in legend.get_texts():
            text.set_parse_math(False)
    return figure


def _lines(axes: matplotlib.axes.Axes, curves: ShiftCurves, score: str) -> None:
    for index, (name, found) in enumerate(curves.scores.items()):
        colour, style = PALETTE[index % len(PALETTE)], STYLES[index // len(PALETTE) % len(STYLES)]
        axes.plot(curves.severities, curves.curve(score, name), style, marker=".", color=colour, label=name)
        if found[0].intervals:
            ends = np.array([at.interval(score) for at in found])
            axes.fill_between(curves.severities, ends[:, 0], ends[:, 1], color=colour, alpha=0.15, lw=0)
    axes.set(xlabel=f"{curves.shift}, {curves.unit}", title=_label(score))


def _label(score: str) -> str:
    """What a leaderboard calls it, without what it says in brackets."""
    return MEASURES[score].label.partition(" (")[0] if score in MEASURES else score


def shift_svg(curves: ShiftCurves) -> str:
    """The curves for a page."""
    return svg(shift_figure(curves))


def shift_png(curves: ShiftCurves) -> bytes:
    """The curves as a picture on white."""
    return png(shift_figure(curves))
