"""The figure of `prior_gallery`, and its answers in words."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Sequence
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from bayesrule.penalties import Implied, Radial, Verdict

Answer = Implied | Radial | Verdict
SHADES = ("0.0", "0.45", "0.7")  # of lines that are not of a ν: slices through a group, cuts of a spectrum


def draw(figure: Figure, rows: list[dict[str, Any]], nus: Sequence[float], blocks: int) -> None:
    """Three panels for each row, rows in one block or in two beside each other."""
    height = math.ceil(len(rows) / blocks)
    colours = {f"ν = {nu:g}": f"C{index}" for index, nu in enumerate(nus)}
    grid = figure.add_gridspec(height, 3 * blocks)
    for index, each in enumerate(rows):
        block, down = divmod(index, height)
        axes = [figure.add_subplot(grid[down, 3 * block + panel]) for panel in range(3)]
        axes[0].set_title(f"{each['penalty']} ({each['family']})", loc="left", fontweight="bold")
        _panel(axes[0], each, "r", each["lines"], colours)
        _panel(axes[1], each, "A", each["A_lines"], colours)
        _panel(axes[2], each, "alpha", each["lines"] if len(each["alpha"]) > 1 else [""], colours)
        if down == height - 1:
            for ax, label in zip(axes, "μww", strict=True):
                ax.set_xlabel(label)
    handles = [figure.axes[0].plot([], [], color=colour, label=label)[0] for label, colour in colours.items()]
    figure.legend(handles=handles, loc="outside upper right", ncols=len(handles))


def _panel(ax: Axes, row: dict[str, Any], what: str, labels: list[str], colours: dict[str, str]) -> None:
    """Curves that lie on one another all show, the first is the widest; α is dashed if it lacks a term in ν."""
    x, completed = row["x"][0], what == "alpha" and row["verdict"]
    dashes = "--" if completed else "-"
    for index, (label, values) in enumerate(zip(labels, row[what], strict=False)):
        width = 1.2 + 3.6 / len(labels) * (len(labels) - 1 - index) * (label in colours)
        colour = colours.get(label, SHADES[index % 3])
        ax.plot(x, values, dashes, color=colour, linewidth=width, label=label)
        if what == "alpha":
            ax.fill_between(x, values, color="0.5", alpha=0.15, linewidth=0)
    if not row[what]:
        text = "no A_ν" if what == "A" else f"no prior, {row['says']}"
        ax.text(0.5, 0.5, textwrap.fill(text, 32), ha="center", va="center", fontsize=8, transform=ax.transAxes)
        ax.set_axis_off()
    elif what == "alpha":
        title = row["says"].split(":")[0]
        if completed:
            title += "; α if completed"
        ax.set(ylim=(0, None), title=title)
    elif what == "A" and labels[0] not in ("", *colours):
        ax.legend(loc="lower center", bbox_to_anchor=(0.5, 0.96), ncols=3, fontsize=7, handlelength=1, columnspacing=1)
    ax.set_ylabel({"r": "r", "A": r"$A_\nu$", "alpha": "α"}[what])


def in_words(answer: Answer) -> str:
    """The answer in a few words."""
    if isinstance(answer, Verdict):
        size = f" ({answer.measure:.3g} nats)" if answer.reason == "depends on ν" else ""
        return f"{answer.reason}: {answer.sentence.split(':')[0]}{size}"
    if isinstance(answer, Radial):
        return f"α = exp(−{answer.factor:g}‖w‖)/κ"
    if answer.exact is None:
        return f"α of variance {answer.variance:.3g}"
    s = float(answer.exact.scale)  # type: ignore[arg-type]
    if answer.exact.name == "gaussian":
        return f"α = N(0, {s**2:.3g})"
    return f"α = Laplace({s:.3g})"
