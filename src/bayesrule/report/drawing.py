"""Inline SVG: no file, no font, no address outside the page; lines and text in the colour of the page.

A figure is as wide as a telephone and stands beside others where there is room. So its letters are of one size on all
screens.
"""

from __future__ import annotations

import io
import re
import warnings
from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeAlias

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from bayesrule.report.comparison import Comparison, Entry

INK = "#0a0b0c"  # stands for the page's text colour
MISS = "#d0342c"
PALETTE = ("#4878d0", "#e07b39", "#2f9e77", "#c44e8a", "#8b6fd6", "#a08a1f", "#3aa5c9", "#8c8c8c")
STYLES = ("-", "--", ":")
STYLE: dict[Any, Any] = {
    "svg.fonttype": "none",
    "svg.hashsalt": "bayesrule",
    "font.size": 9,
    "axes.titlesize": 9.5,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.alpha": 0.15,
    "legend.frameon": False,
    **dict.fromkeys(
        ("text.color", "axes.labelcolor", "axes.edgecolor", "xtick.color", "ytick.color", "grid.color"), INK
    ),
}
NARROW, WIDE = 3.3, 4.6  # inches, of one panel of several, and of a figure of its own
SHRUNK = 0.74  # of its width: more would make letters of nine points smaller than nine pixels

Draw: TypeAlias = Callable[[Axes, Entry, str], None]


def panels(comparison: Comparison, draw: Draw, height: float, alike: bool = True) -> str:
    """A panel for each method, best first; ``alike``: with the same axes. Those that do not lead are folded away."""
    entries = comparison.ranked
    width = NARROW if len(entries) > 1 else WIDE
    with matplotlib.rc_context(STYLE):
        figures = [Figure((width, height * width / NARROW), layout="constrained") for _ in entries]
        every = [figure.subplots() for figure in figures]
        for axes, entry in zip(every, entries, strict=True):
            draw(axes, entry, colour(comparison, entry)[0])
            axes.set_title(entry.name, parse_math=False)
        if alike:
            share_limits(every)
        drawn = [svg(figure) for figure in figures]
    return folded(drawn, len(comparison.leading))


def share_limits(every: Iterable[Axes]) -> None:
    """The same limits for all, so that panels can be compared."""
    every = list(every)
    for get, put in (("get_xlim", "set_xlim"), ("get_ylim", "set_ylim")):
        low, high = zip(*(getattr(axes, get)() for axes in every), strict=True)
        for axes in every:
            getattr(axes, put)(min(low), max(high))


def folded(drawn: Sequence[str], first: int) -> str:
    """Figures beside each other; those after the ``first`` ones are opened on demand."""
    shown = beside(drawn[:first])
    if len(drawn) > first:
        rest = len(drawn) - first
        more = "1 more method" if rest == 1 else f"{rest} more methods"
        shown += f"<details><summary>{more}</summary>{beside(drawn[first:])}</details>"
    return shown


def beside(drawn: Iterable[str]) -> str:
    """Figures in rows, as many as there is room for."""
    return f'<div class="panels">{"".join(drawn)}</div>'


def together(
    comparison: Comparison,
    draw: Callable[[Axes, Entry, str, str], None],
    finish: Callable[[Axes], None],
    height: float,
) -> str:
    """The leading methods in one panel; all of them, where there are more, in one that is opened on demand."""
    shown = _one(comparison, comparison.leading, draw, finish, height)
    if len(comparison.leading) < len(comparison.entries):
        every = _one(comparison, comparison.ranked, draw, finish, height)
        shown += f"<details><summary>All {len(comparison.entries)} methods</summary>{every}</details>"
    return shown


def _one(
    comparison: Comparison,
    entries: Sequence[Entry],
    draw: Callable[[Axes, Entry, str, str], None],
    finish: Callable[[Axes], None],
    height: float,
) -> str:
    columns = 2 if len(entries) > 2 else len(entries)
    with matplotlib.rc_context(STYLE):
        figure = Figure((WIDE, height + 0.2 * -(-len(entries) // columns)), layout="constrained")
        axes = figure.subplots()
        for entry in entries:
            draw(axes, entry, *colour(comparison, entry))
        finish(axes)
        legend = figure.legend(*axes.get_legend_handles_labels(), loc="outside lower center", ncols=columns)
        for text in legend.get_texts():
            text.set_parse_math(False)
        return svg(figure)


def colour(comparison: Comparison, entry: Entry) -> tuple[str, str]:
    """The colour and line style of a method, the same in all figures."""
    index = list(comparison.entries).index(entry)
    return PALETTE[index % len(PALETTE)], STYLES[index // len(PALETTE) % len(STYLES)]


def svg(figure: Figure) -> str:
    """A figure for a page: text as text, in the page's own font and colour; it shrinks as far as it can be read."""
    stream = io.StringIO()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # glyphs that matplotlib's font lacks; the browser has its own
        figure.savefig(stream, format="svg", transparent=True, metadata={"Date": None, "Creator": None})
    text = stream.getvalue()
    # Ids and namespaces repeat from figure to figure, and one page holds them all; INK follows the page's own colour.
    text = re.sub(r"<metadata>.*?</metadata>", "", text[text.index("<svg") :], flags=re.DOTALL)
    text = re.sub(r' id="[A-Za-z0-9.]+_\d+"| xmlns(:xlink)?="[^"]*"', "", text)
    width = figure.get_figwidth() * 100
    size = f'style="width: {width:.0f}px; min-width: min({SHRUNK * width:.0f}px, 100%)"'
    if figure.get_figwidth() > WIDE:  # it cannot be as narrow as a telephone: it is moved sideways
        size = f'style="width: {width:.0f}px; max-width: none; min-width: {SHRUNK * width:.0f}px"'
    return re.sub(r' width="[\d.]+pt" height="[\d.]+pt"', f" {size}", text, count=1).replace(INK, "currentColor")
