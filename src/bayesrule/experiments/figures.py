"""Figures of experiments."""

from __future__ import annotations

import io
import math
from typing import Any

import matplotlib
from cycler import cycler
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from bayesrule.experiments.base import Result
from bayesrule.report.drawing import PALETTE

__all__ = ["PALETTE", "STYLE", "panels", "png"]

STYLE: dict[Any, Any] = {
    "font.size": 9,
    "axes.titlesize": 9.5,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.alpha": 0.2,
    "legend.frameon": False,
    "legend.fontsize": 8,
    "axes.prop_cycle": cycler(color=PALETTE),
}


def panels(figure: Figure, count: int, rows: int = 1) -> list[Axes]:
    """Axes side by side, in one row or more."""
    return [figure.add_subplot(rows, math.ceil(count / rows), index + 1) for index in range(count)]


def png(result: Result) -> bytes:
    """The result's figure as a picture."""
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=result.size, layout="constrained")
        FigureCanvasAgg(figure)
        result.draw(figure)
        target = io.BytesIO()
        figure.savefig(target, format="png", dpi=150, metadata={"Software": None})
    return target.getvalue()
