"""Pictures of a sweep: the held-out NLL over pairs of settings and over each one alone."""

from __future__ import annotations

import io
import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, TypeAlias

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.cm import ScalarMappable
from matplotlib.colors import Normalize
from matplotlib.figure import Figure

from bayesrule.report.drawing import INK, MISS, STYLE
from bayesrule.sweeps import Choice, Log, Sweep, Trial

COLOURS = "viridis"
COLUMNS, WIDE, HIGH = 3, 3.5, 2.7
SHOWN = 0.8  # the share of trials, from the best on, that the axis of NLL is made for
Numbers: TypeAlias = Sequence[float]


class Axis(NamedTuple):
    """A setting along an axis: what it is called, its value in a trial if it has one, its scale and where it ends."""

    label: str
    of: Callable[[Trial], float | None]
    log: bool
    ends: tuple[float, float] | None = None


def landscapes(found: Sweep) -> bytes:
    """A PNG: a panel for each pair that belongs together, then one for each setting.

    The colour is the rank by held-out NLL, a star the best trial, a red cross one that broke off; a triangle at the
    upper edge lies beyond it.
    """
    pairs, singles = _pairs(found), list(found.space)
    count = len(pairs) + len(singles)
    columns = min(COLUMNS, count)
    rows = math.ceil(count / columns)
    with matplotlib.rc_context({**STYLE, "figure.facecolor": "white"}):
        figure = Figure((WIDE * columns + 0.6, HIGH * rows + 0.3), layout="constrained")
        FigureCanvasAgg(figure)
        figure.get_layout_engine().set(w_pad=0.07, h_pad=0.07)  # type: ignore[union-attr, call-arg]
        grid = figure.add_gridspec(rows, columns)
        every = [figure.add_subplot(grid[divmod(index, columns)]) for index in range(count)]
        for axes, (x, y) in zip(every, pairs, strict=False):
            _pair(axes, found, x, y)
        for axes, key in zip(every[len(pairs) :], singles, strict=True):
            if isinstance(found.space[key], Choice):
                _choice(axes, found, key)
            else:
                _single(axes, found, _axis(found, key))
        _key(figure, every, found)
        target = io.BytesIO()
        figure.savefig(target, format="png", dpi=130, metadata={"Software": None})
    return target.getvalue()


def _pairs(found: Sweep) -> list[tuple[Axis, Axis]]:
    """(lr, momentum) and (lr, rate of the deviations), where they were searched together."""
    pairs = []
    for key in found.space:
        head, _, name = key.rpartition(".")
        method = ".".join(part for part in head.split(".") if part not in ("sgd", "optimizer"))
        rate = f"{method}.lr".lstrip(".")
        if rate not in found.space or isinstance(found.space[rate], Choice) or isinstance(found.space[key], Choice):
            continue
        if name in ("momentum", "sigma_lr"):
            pairs.append((_axis(found, rate), _axis(found, key)))
        elif name == "sigma_lr_ratio":
            pairs.append((_axis(found, rate), Axis("lr of the deviations", _product(rate, key), True)))
    return pairs


def _product(rate: str, ratio: str) -> Callable[[Trial], float | None]:
    def of(trial: Trial) -> float | None:
        if rate not in trial.settings or ratio not in trial.settings:
            return None
        return _number(trial.settings[rate]) * _number(trial.settings[ratio])

    return of


def _axis(found: Sweep, key: str) -> Axis:
    def of(trial: Trial) -> float | None:
        if key not in trial.settings:
            return None
        return _number(trial.settings[key])

    low, high = (_number(end) for end in found.space[key].ends())
    return Axis(key, of, isinstance(found.space[key], Log), (low, high))


def _pair(axes: Axes, found: Sweep, x: Axis, y: Axis) -> None:
    ranked = [trial for trial in found.ranked if x.of(trial) is not None and y.of(trial) is not None]
    broken = [t for t in found.trials if t.failed and x.of(t) is not None and y.of(t) is not None]
    axes.plot(_along(x, broken), _along(y, broken), "x", color=MISS, ms=5, mew=1)
    _points(axes, found, ranked, _along(x, ranked), _along(y, ranked))
    _scale(axes, x, y)


def _single(axes: Axes, found: Sweep, x: Axis) -> None:
    ranked = [trial for trial in found.ranked if x.of(trial) is not None]
    broken = [trial for trial in found.trials if trial.failed and x.of(trial) is not None]
    _nll(axes, found, ranked, broken, _along(x, ranked), _along(x, broken))
    _scale(axes, x)


def _choice(axes: Axes, found: Sweep, key: str) -> None:
    options = list(found.space[key].ends())
    width = np.random.default_rng(0).uniform(-0.22, 0.22, len(found.trials))

    def along(trials: Sequence[Trial]) -> list[float]:
        return [options.index(trial.settings[key]) + width[found.trials.index(trial)] for trial in trials]

    ranked = [trial for trial in found.ranked if key in trial.settings]
    broken = [trial for trial in found.trials if trial.failed and key in trial.settings]
    _nll(axes, found, ranked, broken, along(ranked), along(broken))
    slanted: dict[str, Any] = {}
    if len(options) > 3:
        slanted = {"rotation": 40, "ha": "right", "rotation_mode": "anchor"}
    axes.set_xticks(range(len(options)), [str(option) for option in options], **slanted)
    axes.set_xlim(-0.6, len(options) - 0.4)
    axes.grid(False, axis="x")
    axes.set_xlabel(key, parse_math=False)


def _nll(
    axes: Axes, found: Sweep, ranked: Sequence[Trial], broken: Sequence[Trial], x: Numbers, crosses: Numbers
) -> None:
    """Held-out NLL upwards; what lies beyond the axis is at its upper edge."""
    low, high, log = _limits([trial.nll for trial in found.ranked])
    axes.set_ylim(low, high)
    # A little below the upper end, so that a cross or a triangle there is whole.
    if log:
        axes.set_yscale("log")
        edge = low * (high / low) ** 0.97
    else:
        edge = low + 0.97 * (high - low)
    axes.plot(crosses, [edge] * len(broken), "x", color=MISS, ms=5, mew=1)
    _points(axes, found, ranked, x, [min(trial.nll, edge) for trial in ranked], edge)
    axes.set_ylabel("held-out NLL")


def _limits(values: Numbers) -> tuple[float, float, bool]:
    """Where the axis of NLL begins and ends, and whether it is logarithmic: for the better trials, not the worst."""
    if not values:
        return 0.0, 1.0, False
    low, high = values[0], values[-1]
    if len(values) > 4:
        high = float(np.quantile(values, SHOWN))
    if low > 0 and high / low > 8:
        return low / 1.15, high * (high / low) ** 0.15, True
    margin = 0.07 * (high - low) or 0.1 * abs(low) or 1.0
    return low - margin, high + 2.5 * margin, False


def _points(axes: Axes, found: Sweep, ranked: Sequence[Trial], x: Numbers, y: Numbers, edge: float = math.inf) -> None:
    """A dot for each trial in the colour of its rank, the best one on top; triangles at the edge point beyond it."""
    order = {trial.number: rank for rank, trial in enumerate(found.ranked)}
    shades = [order[trial.number] / max(len(order) - 1, 1) for trial in ranked]
    look: dict[str, Any] = {"s": 24, "cmap": COLOURS, "norm": Normalize(0, 1), "edgecolors": INK, "lw": 0.3}
    for marker, beyond in (("^", True), ("o", False)):
        # The worst first: what is drawn later lies on top.
        some = [index for index in reversed(range(len(ranked))) if (y[index] >= edge) == beyond]
        axes.scatter([x[i] for i in some], [y[i] for i in some], c=[shades[i] for i in some], marker=marker, **look)
    if ranked and ranked[0] is found.ranked[0]:
        axes.plot(x[:1], y[:1], "*", color="white", markeredgecolor=INK, ms=13, mew=1)


def _scale(axes: Axes, x: Axis, y: Axis | None = None) -> None:
    axes.set_xlabel(x.label, parse_math=False)
    _stretch(axes.xaxis, x, axes.set_xlim)
    if y is not None:
        axes.set_ylabel(y.label, parse_math=False)
        _stretch(axes.yaxis, y, axes.set_ylim)


def _stretch(line: Any, axis: Axis, limit: Callable[[float, float], object]) -> None:
    """All of the range, with a margin, whatever part of it was tried."""
    if axis.log:
        line.axes.set(**{f"{line.axis_name}scale": "log"})
    if axis.ends is None or axis.ends[0] == axis.ends[1]:
        return
    low, high = axis.ends
    if axis.log:
        factor = (high / low) ** 0.04
        limit(low / factor, high * factor)
    else:
        margin = 0.04 * (high - low)
        limit(low - margin, high + margin)


def _key(figure: Figure, every: Sequence[Axes], found: Sweep) -> None:
    """What the colours mean, and how many trials there are."""
    bar = figure.colorbar(ScalarMappable(Normalize(0, 1), COLOURS), ax=list(every), shrink=0.7, aspect=30, pad=0.01)
    bar.set_ticks([0, 0.5, 1], labels=["best NLL", "median", "worst"])
    bar.ax.invert_yaxis()
    title = f"{len(found.trials)} trials"
    if found.ranked:
        title += f"; best (star): NLL {found.ranked[0].nll:.4g}"
    if broken := sum(trial.failed is not None for trial in found.trials):
        title += f"; {broken} broke off (red)"
    figure.suptitle(title, fontsize=10)


def _along(axis: Axis, trials: Sequence[Trial]) -> list[float]:
    return [value for trial in trials if (value := axis.of(trial)) is not None]


def _number(value: object) -> float:
    assert isinstance(value, int | float), "a setting with an axis is a number"
    return float(value)
