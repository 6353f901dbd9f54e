"""SGD over learning rate and momentum: where it trains, and the lines that bound this region."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from numpy.typing import NDArray

from bayesrule.experiments import book
from bayesrule.experiments.base import Claim, Result, Setting
from bayesrule.experiments.book.landscapes import (
    LEVEL,
    Array,
    Landscape,
    auroc,
    chance,
    correlation,
    epochs_said,
    explore,
    generator,
    learnt,
    legend_below,
    scatter,
)
from bayesrule.experiments.figures import panels
from bayesrule.methods import BBB
from bayesrule.optim import Recipe, robust_region

EPOCHS = {"digits": 3, "mnist": 1, "cifar10": 2}
DRAWS = {"digits": 120, "mnist": 64, "cifar10": 48}
HIGHEST = {"digits": 2.0, "mnist": 1.0, "cifar10": 0.6}  # the largest learning rate that is drawn
WITHIN = 0.9  # the share of the best runs that the bounds enclose
APART = 0.8  # the least area under the curve that makes α/(1 − μ) a bound


def run(setting: Setting) -> Result:
    """Short trainings at learning rates and momenta from uniform distributions."""
    found = [_landscape(data, number, setting) for number, data in enumerate(book.data(setting))]
    claims = []
    for landscape in found:
        claims += [_bound_claim(landscape), _covariance_claim(landscape)]
    plain = [{**landscape.plain(), "bounds": bounds(landscape)} for landscape in found]
    note = (
        f"the bounds enclose {WITHIN:.0%} each of the quarter with the lowest losses: a is that quantile of α/(1 − μ), "
        "h that of (1 − √μ)²/α"
    )
    return Result(tuple(claims), {"landscapes": plain}, partial(_draw, found=found), _size(found), (note,))


def _size(found: Sequence[Landscape]) -> tuple[float, float]:
    return 9.0, 3.7 * len(found)


def _landscape(data: str, number: int, setting: Setting) -> Landscape:
    random = generator(setting, number)
    places = {
        "momentum": random.uniform(0, 1, DRAWS[data]),
        "lr": HIGHEST[data] * (1 - random.uniform(0, 1, DRAWS[data])),  # not 0
    }
    return explore("sgd", data, EPOCHS[data], places, _method, setting)


def _method(momentum: float, lr: float) -> BBB:
    return BBB(**{**book.METHOD, "optimizer": Recipe("sgd", {"momentum": momentum}), "lr": lr})


def reach(landscape: Landscape) -> Array:
    """α/(1 − μ), the size of a step when the momentum has built up."""
    return landscape.places["lr"] / (1 - landscape.places["momentum"])


def bounds(landscape: Landscape) -> dict[str, float]:
    """``a`` of α + aμ ≤ a and the curvature ``h`` of (1 − √μ)²/h ≤ α, each with `WITHIN` of the best runs inside."""
    best = landscape.best()
    curvature = (1 - np.sqrt(landscape.places["momentum"])) ** 2 / landscape.places["lr"]
    return {
        "a": float(np.quantile(reach(landscape)[best], WITHIN)),
        "h": float(np.quantile(curvature[best], WITHIN)),
    }


def _lost(landscape: Landscape) -> NDArray[np.bool_]:
    return np.array([not learnt(outcome) for outcome in landscape.found])


def _bound_claim(landscape: Landscape) -> Claim:
    lost, size = _lost(landscape), reach(landscape)
    area = auroc(size[lost], size[~lost])
    said = "?" if area is None else f"{area:.3f}"
    return Claim(
        "Book 2020, section 3.1 and figures 5.4, 5.5",
        f"there is an upper bound on α/(1 − μ) beyond which training fails on {landscape.data}",
        f"{lost.sum()} of {lost.size} runs learnt nothing; α/(1 − μ) tells them from the others with an AUROC of "
        f"{said}; a = {bounds(landscape)['a']:.2g}",
        area is not None and area > APART,
    )


def _covariance_claim(landscape: Landscape) -> Claim:
    best = landscape.best()
    momentum, lr = landscape.places["momentum"][best], landscape.places["lr"][best]
    p = chance(momentum, lr)
    return Claim(
        "Book 2020, section 5.3",
        f"learning rate and momentum cannot be tuned apart on {landscape.data}",
        f"in the best quarter their rank correlation is {correlation(momentum, lr):.2f} (p = {p:.2g})",
        p < LEVEL,
    )


def _draw(figure: Figure, found: Sequence[Landscape]) -> None:
    axes = iter(panels(figure, 2 * len(found), rows=len(found)))
    for landscape in found:
        _panel(next(axes), landscape, "loss", landscape.loss)
        _panel(next(axes), landscape, "accuracy", landscape.accuracy)


def _panel(axes: Axes, landscape: Landscape, name: str, score: Array) -> None:
    scatter(axes, landscape.places["momentum"], landscape.places["lr"], score, name, high=name == "accuracy")
    limit = bounds(landscape)
    momentum = np.linspace(0, 0.999, 200)
    lower = [robust_region(float(m), limit["h"])[0] for m in momentum]
    axes.plot(momentum, lower, color="0.2", ls="--", lw=1, label=f"(1 − √μ)²/h, h = {limit['h']:.2g}")
    axes.plot([0, 1], [limit["a"], 0], color="0.2", lw=1, label=f"α + aμ = a, a = {limit['a']:.2g}")
    top = HIGHEST[landscape.data]
    axes.set(xlabel="momentum μ", ylabel="learning rate α", ylim=(0, 1.03 * top), xlim=(-0.02, 1.02))
    axes.set_title(f"{landscape.data}: {name} after {epochs_said(EPOCHS[landscape.data])}")
    legend_below(axes)
