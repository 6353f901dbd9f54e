"""What reports of many runs share: pages from templates, curves over seeds, examples, scores in words."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from importlib.resources import files as resources
from math import sqrt
from statistics import fmean, stdev
from typing import Any, NamedTuple

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from torch import Tensor

from bayesrule.report.drawing import PALETTE, STYLE, STYLES
from bayesrule.report.figures import picture


class Shown(NamedTuple):
    """An example on a page: its label, a picture (base64 of a PNG) or none, and the cells of a row."""

    label: str
    png: str
    cells: Sequence[str] = ()


class Score(NamedTuple):
    """A mean over seeds, its standard error (None of one seed), and both in words."""

    mean: float
    error: float | None
    text: str
    best: bool = False

    @property
    def short(self) -> str:
        """The mean alone, for narrow places."""
        return self.text.split(" ± ")[0].removesuffix(" %")


class Line(NamedTuple):
    """A row of a table of runs: what they are of, and their scores."""

    name: str
    cells: list[Score]


def score(values: Sequence[float], percent: bool = False) -> Score:
    """A mean over seeds in words.

    >>> score([0.5, 0.7], percent=True).text
    '60.0 ± 10.0 %'
    """
    mean = fmean(values)
    error = stdev(values) / sqrt(len(values)) if len(values) > 1 else None
    if percent:
        text = f"{100 * mean:.1f}" + ("" if error is None else f" ± {100 * error:.1f}")
        return Score(mean, error, text + " %")
    return Score(mean, error, f"{mean:.3f}" + ("" if error is None else f" ± {error:.3f}"))


def bands(axes: Axes, across: Any, runs: Mapping[str, Any], first: int = 0) -> None:
    """A line for each name, of values [seeds, points]; a band of one standard error where there are seeds.

    ``first``: the number of the first line's colour.
    """
    for index, (name, values) in enumerate(runs.items(), first):
        colour, style = PALETTE[index % len(PALETTE)], STYLES[index // len(PALETTE) % len(STYLES)]
        mean = values.mean(0)
        axes.plot(across, mean, style, marker=".", color=colour, label=name)
        if len(values) > 1:
            error = values.std(0, ddof=1) / sqrt(len(values))
            axes.fill_between(across, mean - error, mean + error, color=colour, alpha=0.18, lw=0)


def legend_beside(axes: Axes) -> None:
    """A legend to the right of a figure; names are no mathematics."""
    legend = axes.legend(loc="center left", bbox_to_anchor=(1.01, 0.5))
    for text in legend.get_texts():
        text.set_parse_math(False)


def png(figure: Figure) -> bytes:
    """A figure as a picture on white."""
    FigureCanvasAgg(figure)
    target = io.BytesIO()
    with matplotlib.rc_context(STYLE):
        figure.savefig(target, format="png", dpi=130, metadata={"Software": None})
    return target.getvalue()


def shown(x: Tensor, label: str, shape: tuple[int, int, int] | None) -> Shown:
    """One example, as a picture if it has the shape of one."""
    if shape is not None:
        return Shown(label, picture(x.reshape(shape)))
    return Shown(label, "", [f"{value:.4g}" for value in x.flatten().tolist()])


def evenly(count: int, most: int) -> list[int]:
    """At most so many of ``count`` places, evenly spaced.

    >>> evenly(9, 3)
    [0, 4, 8]
    """
    return np.unique(np.linspace(0, count - 1, min(most, count)).round().astype(int)).tolist()


def page(template: str, **values: Any) -> str:
    """A page of a template beside this file; whatever comes from a user's file is escaped."""
    import jinja2

    here = resources("bayesrule.report")

    def source(name: str) -> str:
        return here.joinpath(name).read_text(encoding="utf-8")

    loader = jinja2.FunctionLoader(source)
    # Strict: a name that the template has and this call has not is an error, not a gap in the page.
    environment = jinja2.Environment(autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True, loader=loader)
    return environment.get_template(template).render(css=source("page.css"), **values)
