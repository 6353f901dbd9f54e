"""The figures of a comparison."""

from __future__ import annotations

import io
from typing import Any, TypeAlias

import numpy as np
import torch
from matplotlib.axes import Axes
from numpy.typing import NDArray
from torch import Tensor

from bayesrule.data import Split
from bayesrule.evaluate import flat, quantile_calibration, reliability, risk_coverage, risk_curve
from bayesrule.predictions import Classes, Continuous, Numbers, Prediction
from bayesrule.report.comparison import PLANE, Comparison, Entry, grid
from bayesrule.report.drawing import INK, MISS, panels, together

MOST = 200  # points of a cloud or a line

Array: TypeAlias = NDArray[Any]


def reliability_diagrams(comparison: Comparison) -> str:
    """Accuracy against confidence, a panel for each method; a dot's area is the share of examples."""

    def draw(axes: Axes, entry: Entry, colour: str) -> None:
        confidence, accuracy, share = reliability(_classes(entry.prediction), comparison.split.test[1], bins=10)
        there = share > 0
        axes.plot([0, 1], [0, 1], "--", color=INK, lw=0.8)
        axes.vlines(confidence[there], confidence[there], accuracy[there], color=colour, alpha=0.4, lw=2)
        axes.plot(confidence[there], accuracy[there], color=colour, lw=1.2)
        axes.scatter(confidence[there], accuracy[there], s=10 + 220 * share[there], color=colour, alpha=0.8)
        axes.set(xlim=(0, 1.04), ylim=(0, 1.04), xlabel="confidence", ylabel="accuracy")

    return panels(comparison, draw, height=2.6)


def quantile_curves(comparison: Comparison) -> str:
    """Share of targets below each predicted quantile, all methods in one."""

    def draw(axes: Axes, entry: Entry, colour: str, style: str) -> None:
        assert isinstance(entry.prediction, Continuous)
        nominal, empirical = quantile_calibration(entry.prediction, comparison.split.test[1])
        axes.plot(nominal, empirical, style, marker=".", color=colour, label=entry.name)

    def finish(axes: Axes) -> None:
        axes.plot([0, 1], [0, 1], "--", color=INK, lw=0.8)
        axes.set(xlim=(0, 1), ylim=(0, 1), xlabel="predicted quantile", ylabel="share of targets below it")
        axes.set_aspect("equal")

    return together(comparison, draw, finish, height=4.0)


def histograms(comparison: Comparison) -> str:
    """Confidence, or predicted standard deviation, of test examples and of those from elsewhere."""
    classes = comparison.split.kind == "classes"

    def values(prediction: Prediction) -> Array:
        if classes:
            return _array(_classes(prediction).confidence)
        return _array(prediction.uncertainty)

    if classes:
        last, label = 1.0, "confidence"
    else:
        # The largest of all methods' 95 % quantiles, so that a few huge values leave something to see.
        predictions = [p for entry in comparison.entries for p in (entry.prediction, entry.outside) if p is not None]
        last = max(float(np.quantile(values(p), 0.95)) for p in predictions) * 1.1
        label = "predicted standard deviation"
    edges = np.linspace(0, last, 21)

    def draw(axes: Axes, entry: Entry, colour: str) -> None:
        def shares(prediction: Prediction) -> Array:
            inside = np.clip(values(prediction), edges[0], edges[-1])
            return np.histogram(inside, edges)[0] / len(prediction)

        axes.stairs(shares(entry.prediction), edges, fill=True, color=colour, alpha=0.65, label="test examples")
        if entry.outside is not None:
            axes.stairs(shares(entry.outside), edges, color=INK, lw=1.3, label="out-of-distribution")
        axes.set(xlabel=label, ylabel="share of examples")
        if entry is comparison.ranked[0] and entry.outside is not None:
            axes.legend(loc="upper left" if classes else "upper right")

    return panels(comparison, draw, height=2.3)


def risk_curves(comparison: Comparison) -> str:
    """The error among the most certain examples, as a function of their share."""
    y = comparison.split.test[1]
    classes = comparison.split.kind == "classes"
    label = "root mean squared error"
    if classes:
        label = "errors among them, %"

    def draw(axes: Axes, entry: Entry, colour: str, style: str) -> None:
        if classes:
            coverage, risk = risk_coverage(_classes(entry.prediction), y)
            risk = 100 * risk
        else:
            coverage, risk = _errors(entry.prediction, y)
        some = _some(len(coverage))
        axes.plot([0, *100 * coverage[some]], [risk[0], *risk[some]], style, color=colour, label=entry.name)

    def finish(axes: Axes) -> None:
        axes.set(xlim=(0, 100), xlabel="most certain examples, % of all", ylabel=label)
        axes.set_ylim(bottom=0)

    return together(comparison, draw, finish, height=3.2)


def scatter(comparison: Comparison) -> str:
    """Predicted against true, with 90 % intervals; targets outside theirs in red."""
    y = _array(comparison.split.test[1])
    some = np.argsort(y)[_some(len(y))]

    def draw(axes: Axes, entry: Entry, colour: str) -> None:
        assert isinstance(entry.prediction, Numbers)
        low, high = (_array(end)[some] for end in entry.prediction.interval(0.9))
        truth, mean = y[some], _array(entry.prediction.mean)[some]
        inside = (low <= truth) & (truth <= high)
        for chosen, shade in ((inside, colour), (~inside, MISS)):
            axes.vlines(truth[chosen], low[chosen], high[chosen], color=shade, alpha=0.35, lw=1.2)
            axes.plot(truth[chosen], mean[chosen], ".", color=shade, ms=4)
        ends = [min(low.min(), y.min()), max(high.max(), y.max())]
        axes.plot(ends, ends, "--", color=INK, lw=0.8)
        axes.set(xlabel="true", ylabel="predicted")

    return panels(comparison, draw, height=2.9)


def curves(comparison: Comparison) -> str:
    """A function of one input: the mean, the 90 % interval, and the part of it that more data would narrow."""
    split = comparison.split
    x, y = split.training or split.test
    line = _array(_grid(split))[:, 0]
    some = _some(len(y))

    def draw(axes: Axes, entry: Entry, colour: str) -> None:
        assert isinstance(entry.grid, Numbers)
        mean, spread = _array(entry.grid.mean), 1.645 * np.sqrt(_array(entry.grid.epistemic))
        low, high = (_array(end) for end in entry.grid.interval(0.9))
        axes.fill_between(line, low, high, color=colour, alpha=0.2, lw=0, label="90 % interval")
        axes.fill_between(line, mean - spread, mean + spread, color=colour, alpha=0.35, lw=0, label="epistemic part")
        axes.plot(line, mean, color=colour, lw=1.5, label="mean")
        axes.plot(_array(x)[some, 0], _array(y)[some], ".", color=INK, ms=2.5, alpha=0.7, label="data")
        # By the data, not by the band: far from them it may grow a hundredfold.
        reach = float(np.ptp(_array(y)))
        axes.set_ylim(_array(y).min() - 0.6 * reach, _array(y).max() + 0.6 * reach)
        axes.set_xlim(line[0], line[-1])
        axes.set_xlabel(next(iter(split.features), "input"), parse_math=False)
        if entry is comparison.ranked[0]:
            axes.legend(loc="best", fontsize=7)

    return panels(comparison, draw, height=2.8)


def planes(comparison: Comparison) -> str:
    """Entropy over the plane of two inputs, with the examples on top."""
    split = comparison.split
    x, y = (_array(part) for part in split.training or split.test)
    plane = _array(_grid(split))
    (left, bottom), (right, top) = plane[0], plane[-1]
    some = _some(len(y))

    def draw(axes: Axes, entry: Entry, colour: str) -> None:
        assert entry.grid is not None
        entropy = _array(_classes(entry.grid).entropy).reshape(PLANE, PLANE)
        # One scale for all methods, from certain to all classes alike: colours can be compared.
        axes.imshow(
            entropy,
            extent=(left, right, bottom, top),
            origin="lower",
            aspect="auto",
            cmap="viridis",
            vmin=0,
            vmax=np.log(len(split.classes)),
        )
        for label in range(len(split.classes)):
            of = some[y[some] == label]
            shape = "osv^D*"[label % 6]
            axes.scatter(x[of, 0], x[of, 1], s=9, marker=shape, c="white", edgecolors="black", linewidths=0.4)
        axes.grid(False)
        names = split.features or ("first input", "second input")
        axes.set_xlabel(names[0], parse_math=False)
        axes.set_ylabel(names[1], parse_math=False)

    return panels(comparison, draw, height=2.6)


def bands(comparison: Comparison) -> str:
    """Along the column of a table that tells most: the mean, the 90 % interval, and ignorance in it."""
    split = comparison.split
    y = _array((split.training or split.test)[1])
    some = _some(len(y))

    def draw(axes: Axes, entry: Entry, colour: str) -> None:
        shown = entry.doubt
        assert shown is not None
        assert isinstance(shown.prediction, Numbers)
        (line,), prediction = shown.axes, shown.prediction
        mean, spread = _array(prediction.mean), 1.645 * np.sqrt(_array(prediction.epistemic))
        low, high = (_array(end) for end in prediction.interval(0.9))
        axes.fill_between(line, low, high, color=colour, alpha=0.2, lw=0, label="90 % interval")
        axes.fill_between(line, mean - spread, mean + spread, color=colour, alpha=0.35, lw=0, label="ignorance")
        axes.plot(line, mean, color=colour, lw=1.5, label="mean")
        axes.plot(_column(comparison, shown.places[0])[some], y[some], ".", color=INK, ms=2, alpha=0.4, label="data")
        axes.set_xlabel(shown.columns[0], parse_math=False)
        reach = float(np.ptp(y)) or 1.0
        axes.set_ylim(y.min() - 0.3 * reach, y.max() + 0.3 * reach)
        if entry is comparison.ranked[0]:
            axes.legend(loc="best", fontsize=7)

    return panels(comparison, draw, height=2.8, alike=False)


def regions(comparison: Comparison) -> str:
    """Entropy over the two columns of a table that tell most, and lines between the classes that are preferred."""
    split = comparison.split
    y = _array((split.training or split.test)[1])
    some = _some(len(y))

    def draw(axes: Axes, entry: Entry, colour: str) -> None:
        shown = entry.doubt
        assert shown is not None
        assert shown.prediction is not None
        prediction, (across, up) = _classes(shown.prediction), shown.axes
        shape = len(up), len(across)
        ends = (across[0], across[-1], up[0], up[-1])
        entropy, label = _array(prediction.entropy).reshape(shape), _array(prediction.label).reshape(shape)
        most = np.log(len(split.classes))
        axes.imshow(entropy, extent=ends, origin="lower", aspect="auto", cmap="viridis", vmin=0, vmax=most)
        for one in np.unique(label)[1:]:
            axes.contour(across, up, (label >= one).astype(float), levels=[0.5], colors="white", linewidths=0.8)
        first, second = (_column(comparison, place) for place in shown.places)
        for one in range(len(split.classes)):
            of = some[y[some] == one]
            mark = "osv^D*"[one % 6]
            axes.scatter(first[of], second[of], s=8, marker=mark, c="white", edgecolors="black", linewidths=0.4)
        axes.grid(False)
        axes.set_xlabel(shown.columns[0], parse_math=False)
        axes.set_ylabel(shown.columns[1], parse_math=False)

    return panels(comparison, draw, height=2.6, alike=False)


def _column(comparison: Comparison, place: int) -> Array:
    """Values of an input in the training examples."""
    split = comparison.split
    return _array((split.training or split.test)[0][:, place])


def told_apart(comparison: Comparison) -> str:
    """AUROC against strangers by each way to tell, a mark for each method."""
    rows = list(dict.fromkeys(name for entry in comparison.ranked for name in entry.strangers or {}))

    def draw(axes: Axes, entry: Entry, colour: str, style: str) -> None:
        assert entry.strangers is not None
        known = [index for index, name in enumerate(rows) if name in entry.strangers]
        values = [entry.strangers[rows[index]]["auroc"] for index in known]
        axes.plot(values, known, "o", color=colour, alpha=0.8, label=entry.name)

    def finish(axes: Axes) -> None:
        axes.axvline(0.5, color=INK, ls="--", lw=0.8)
        axes.set_yticks(range(len(rows)), rows)
        axes.set(xlim=(-0.02, 1.02), ylim=(len(rows) - 0.5, -0.5), xlabel="AUROC, strangers against test examples")

    return together(comparison, draw, finish, height=1.0 + 0.35 * len(rows))


def picture(pixels: Tensor) -> str:
    """Pixels [C, H, W] in [0, 1] as the base64 text of a PNG."""
    import base64

    from matplotlib.image import imsave

    array = np.clip(_array(pixels.movedim(0, -1)), 0, 1)
    stream = io.BytesIO()
    if array.shape[2] == 3:
        imsave(stream, array, format="png")
    else:
        imsave(stream, array.mean(2), format="png", cmap="gray", vmin=0, vmax=1)
    return base64.b64encode(stream.getvalue()).decode()


def _errors(prediction: Prediction, y: Tensor) -> tuple[Array, Array]:
    """Coverage and root mean squared error when the most certain examples come first, equally certain ones at once."""
    certainty = -flat(prediction.uncertainty)
    # Rounded to five digits: what differs by less is equally certain, whatever the order of a sum.
    certainty = (certainty / certainty.abs().amax() * 1e5).round()
    squares = flat((y - prediction.point).square())
    _, coverage, risk = risk_curve(certainty, squares, torch.ones(1, len(squares), dtype=torch.float64))
    return _array(coverage[0]), np.sqrt(_array(risk[0]))


def _some(n: int) -> Array:
    """At most `MOST` of n indices, evenly spaced, the last one always."""
    return np.unique(np.linspace(0, n - 1, min(n, MOST)).round().astype(int))


def _grid(split: Split) -> Tensor:
    points = grid(split)
    assert points is not None, "a picture of the function is only asked for where there is a grid"
    return points


def _classes(prediction: Prediction) -> Classes:
    assert isinstance(prediction, Classes), "a figure of classes is only asked for where the split has classes"
    return prediction


def _array(t: Tensor) -> Array:
    return t.detach().cpu().numpy()
