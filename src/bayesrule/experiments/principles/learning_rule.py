"""Known algorithms as the Bayesian learning rule, each beside its textbook form: iterates, and how far they differ."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from bayesrule import jobs
from bayesrule.experiments.base import Claim, Result, Setting
from bayesrule.experiments.principles import derivations, textbook
from bayesrule.experiments.principles.derivations import (
    DERIVATIONS,
    DEVIATIONS,
    SEARCHES,
    STEPS,
    Derivation,
    Points,
    tensor,
)
from bayesrule.experiments.principles.derivations_of_posteriors import POSTERIORS, linear_system, swing
from bayesrule.families import FullGaussian, GaussianMixture
from bayesrule.rule import algorithms

SOURCE = "Khan, deep learning with Bayesian principles"
LOWEST = 1e-17  # what an error of zero is drawn as
KINDS = {"held to 1e-6": 0, "held to 1e-10": 2, "given the same draws": 1}  # and its colour
START = 3.3  # of the homotopy that is drawn


@jobs.threads(1)
def run(setting: Setting) -> Result:
    """All derivations, and what is drawn of three of them."""
    claims: list[Claim] = []
    rows: list[Derivation] = []
    for name, every in _sections().items():
        section = _compare(every, setting)
        claims.append(_claim(name, section))
        rows += section
    paths = _homotopy()
    claims += [_sign(setting.seed), _smoothing(paths)]
    ends = {name: float(path[-1]) for name, path in paths.items()}
    plain = {"algorithms": list(map(_plain, rows)), "homotopy_end": ends}
    notes = tuple(f"{row.name} takes steps beyond the rule: {row.beyond}" for row in rows if row.beyond)
    return Result(tuple(claims), plain, lambda figure: _draw(figure, rows, paths, setting.seed), (12.0, 8.4), notes)


def _sections() -> dict[str, Sequence[Callable[[int], Derivation]]]:
    return {
        "gradient descent, SGD, Newton's method, RMSprop and Adam": DERIVATIONS[:6],
        "dropout, the ensemble of Newton, straight-through and BayesBiNN": DERIVATIONS[6:],
        "least squares, Kalman, forward–backward, Baum–Welch, EM, SVI, messages and Laplace": POSTERIORS,
        "exponential weights, natural evolution and Gaussian homotopy": SEARCHES,
    }


def _compare(every: Sequence[Callable[[int], Derivation]], setting: Setting) -> list[Derivation]:
    rows = []
    for each in every:
        rows.append(each(setting.seed))
        setting.tell(f"{rows[-1].name}: {rows[-1].error:.1e}")
    return rows


def _claim(name: str, rows: list[Derivation]) -> Claim:
    worst = max(rows, key=lambda row: row.error)
    return Claim(
        SOURCE,
        f"{name} come out of the rule: iterates as in the textbook within 1e-6, exact posteriors within 1e-10",
        f"largest relative difference {worst.error:.1e} ({worst.name}, {worst.steps} steps) of {len(rows)} algorithms",
        all(row.held for row in rows),
    )


def _sign(seed: int) -> Claim:
    """The precision after one step of ρ = 1, as derived and as printed."""
    table, start = derivations.logistic(seed)
    natural = FullGaussian.of(tensor(start), torch.eye(3, dtype=torch.float64))
    slope = FullGaussian().gradient(Points(table), natural, "local")[1].numpy()
    hessian = table.hessian(start)
    off, printed = np.abs(2 * slope - hessian).max(), np.linalg.eigvalsh(-2 * slope).min()
    return Claim(
        "Khan, Newton's method from Bayes (erratum)",
        "the gradient by E[θθᵀ] is ½∇²ℓ, and the precision becomes (1 − ρ)S plus 2ρ times it, not minus",
        f"at ρ = 1 S is the Hessian to {off:.1e}; with the printed sign its lowest eigenvalue is {printed:.3g}",
        bool(off < 1e-10 and printed < 0),
    )


def _homotopy() -> dict[str, Any]:
    """Descent from one start with and without smoothing, and with it at a rate too low for the schedule of σ."""
    loss = derivations.rippled(textbook.Ripple())
    start = torch.tensor([START], dtype=torch.float64)
    rule = algorithms.gradient_descent(loss, rate=0.07)
    plain = rule.run(rule.start((start,)), STEPS).natural()
    smoothed = algorithms.homotopy(loss, start, DEVIATIONS, rate=0.07)[:, 0]
    slow = algorithms.homotopy(loss, start, DEVIATIONS, rate=0.03)[:, 0]
    return {"smoothed": smoothed, "descent": plain[:, 0], "slow": slow}


def _smoothing(paths: dict[str, Any]) -> Claim:
    smoothed, plain, slow = float(paths["smoothed"][-1]), float(paths["descent"][-1]), float(paths["slow"][-1])
    return Claim(
        SOURCE,
        "averaging over q (Gaussian homotopy) is a way past local minima, if σ shrinks slowly enough for the rate",
        f"on a rippled bowl, lowest at 0, from {START}: descent ends at {plain:.3f}, homotopy at {smoothed:.3f}, "
        f"and at {slow:.3f} with a rate of 0.03 for 0.07",
        abs(smoothed) < 0.05 < 0.5 < min(abs(plain), abs(slow)),
    )


def _plain(row: Derivation) -> dict[str, Any]:
    names = ("name", "family", "how", "against", "beyond", "drawn", "steps", "bar", "error", "held")
    return {name: getattr(row, name) for name in names}


# The figure


def _draw(figure: Figure, rows: list[Derivation], paths: dict[str, Any], seed: int) -> None:
    grid = figure.add_gridspec(3, 2, width_ratios=(1.25, 1))
    _bars(figure.add_subplot(grid[:, 0]), rows)
    _ripples(figure.add_subplot(grid[0, 1]), paths)
    _swing(figure.add_subplot(grid[1, 1]), seed)
    _valleys(figure.add_subplot(grid[2, 1]))


def _kind(row: Derivation) -> str:
    if row.drawn:
        return "given the same draws"
    if row.bar < 1e-6:
        return "held to 1e-10"
    return "held to 1e-6"


def _bars(ax: Axes, rows: list[Derivation]) -> None:
    """Errors on a logarithmic scale, the first algorithm on top; a star for those with steps beyond the rule."""
    for kind, colour in KINDS.items():
        heights, lengths = [], []
        for height, row in enumerate(rows):
            if _kind(row) == kind:
                heights.append(height)
                lengths.append(np.log10(max(row.error, LOWEST) / LOWEST))
        ax.barh(heights, lengths, left=np.log10(LOWEST), color=f"C{colour}", label=kind, height=0.7)
    names = [f"{row.name} *" if row.beyond else row.name for row in rows]
    ax.set_yticks(range(len(rows)), names)
    ax.axvline(-6, color="black", linestyle="--", linewidth=1)
    ax.axvline(-10, color="C2", linestyle="--", linewidth=1)
    ax.set(ylim=(len(rows) - 0.4, -0.6), xlim=(np.log10(LOWEST), -5))
    ax.set(xlabel="log₁₀ of the largest relative difference from the textbook form")
    ax.set_title("the rule against textbook forms (* with steps beyond the rule)")
    ax.grid(axis="y", visible=False)
    ax.legend(loc=(0.6, 0.02))


def _ripples(ax: Axes, paths: dict[str, Any]) -> None:
    ripple, m = textbook.Ripple(), np.linspace(-1.2, 4, 400)
    for index, deviation in enumerate((1.2, 0.4, 0.0)):
        ax.plot(m, ripple.smoothed(m, deviation), color="grey", alpha=0.3 + 0.3 * index, label=f"σ = {deviation:g}")
    widths = {"smoothed": [DEVIATIONS[0], *DEVIATIONS], "descent": [0.0] * (STEPS + 1)}
    for name, colour in (("smoothed", "C0"), ("descent", "C1")):
        path, deviations = paths[name], widths[name]
        heights = [float(ripple.smoothed(float(x), s)) for x, s in zip(path, deviations, strict=True)]  # type: ignore[arg-type]
        ax.plot(path, heights, ".-", color=colour, markersize=4, label={"smoothed": "homotopy"}.get(name, name))
        ax.plot(path[-1], heights[-1], "o", color=colour)
    ax.set(xlabel="m", title="Gaussian homotopy: E_q[ℓ] with σ from 1.2 to 0.05")
    ax.legend(ncols=2)


def _swing(ax: Axes, seed: int) -> None:
    path, seen = swing(seed)
    time = np.arange(len(path))
    ax.plot(time, seen[:, 0], ".", color="grey", markersize=4, label="seen")
    ax.plot(time, path[:, 0], color="black", linewidth=1, label="path")
    for (means, covs), name, colour in (
        (linear_system().filter(tensor(seen)), "filter", "C1"),
        (linear_system().smooth(tensor(seen)), "smoother", "C0"),
    ):
        middle, width = means[:, 0].numpy(), 2 * covs[:, 0, 0].sqrt().numpy()
        ax.fill_between(time, middle - width, middle + width, color=colour, alpha=0.25, linewidth=0)
        ax.plot(time, middle, color=colour, label=name)
    ax.set(xlabel="time", title="Kalman's filter and smoother, ρ = 1 (bands of two deviations)")
    ax.legend(ncols=4, loc="lower center")
    low, high = ax.get_ylim()
    ax.set_ylim(low - 0.25 * (high - low), high)


def _valleys(ax: Axes) -> None:
    """Five Gaussians for four valleys: two start together."""
    starts = np.array([[-3.6, -3.5], [-2.5, 3.4], [3.5, -2.6], [2.5, 2.6], [3.5, 3.5]])
    trace = algorithms.newton_ensemble(derivations.valleys, rate=0.1).run(derivations.ensemble_start(starts), STEPS)
    means = np.array([GaussianMixture().parts(state.natural)[1].numpy() for state in trace.states])
    x = np.linspace(-4.5, 4.5, 120)
    loss = 0.5 * ((x**2 - 9) ** 2)
    ax.contour(x, x, np.log1p(loss[:, None] + loss), levels=10, colors="grey", alpha=0.4, linewidths=0.7)
    for component in range(len(starts)):
        ax.plot(*means[:, component].T, ".-", markersize=4, linewidth=1)
        ax.plot(*means[-1, component], "ko", markersize=4)
    ax.set(xlabel="w₁", ylabel="w₂", title="ensemble of Newton: five Gaussians in four valleys")
