"""Bayes prefers flat minima: from a sharp and lower one the learning rule goes to the flat one, descent does not."""

from __future__ import annotations

from typing import Any

import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from torch import Tensor

from bayesrule import jobs
from bayesrule.experiments.base import Claim, Result, Setting
from bayesrule.experiments.figures import panels
from bayesrule.families import DiagonalGaussian, Estimator, GaussianMean, Natural
from bayesrule.rule import Rule

FLAT, SHARP = 1.0, -1.0  # where the two minima are
DEPTH, WIDTH = 2.2, 0.1  # of the sharp one, in a bowl of curvature 1
NEAR = 0.25  # an end within this of a minimum is in it
DEVIATION = 0.1  # of the first q: as narrow as the sharp minimum
STEPS, LONG = 400, 1000  # the second for low temperatures, which are slower
RATES = {"descent": 0.002, "rule": 0.1}
STARTS = {False: 6, True: 24}
TEMPERATURES = {False: (0.1, 0.2, 0.4, 0.6, 0.8, 1.0), True: tuple(0.05 * i for i in range(1, 31))}
DEVIATIONS = {False: (0.1, 1.0), True: (0.1, 0.3, 1.0)}
NODES = 600  # the points must be closer than the sharp minimum is wide
SOURCE = "Khan, conditions of the optimum"


@jobs.threads(1)
def run(setting: Setting) -> Result:
    """Both from the same starts; the conditions at the end of the rule; and what a lower temperature changes."""
    noise = torch.rand(STARTS[setting.full], generator=torch.Generator().manual_seed(setting.seed), dtype=torch.float64)
    starts = (SHARP + WIDTH * (2 * noise - 1)).tolist()
    descents = [_descend(start) for start in starts]
    rules = [_learn(start, DEVIATION, 1.0, STEPS) for start in starts]
    setting.tell(f"{len(starts)} starts done; now {len(TEMPERATURES[setting.full])} temperatures")
    sweep = _sweep(setting.full, starts[0])
    optima = [conditions(path["mean"][-1], path["deviation"][-1]) for path in rules]
    claims = (_stays(descents), _leaves(rules), *_optimal(optima), _colder(sweep))
    plain = {
        "loss": {"sharp": lowest(SHARP), "flat": lowest(FLAT)},
        "starts": starts,
        "descent": descents,
        "rule": rules,
        "conditions": optima,
        "temperatures": sweep,
    }
    return Result(claims, plain, lambda figure: _draw(figure, descents[0], rules[0], sweep), (11.0, 3.4))


def loss(w: Tensor) -> Tensor:
    """½(w − 1)² − D exp(−½((w + 1)/r)²): a bowl of curvature 1 with a sharp dent, slightly lower, on its side.

    >>> loss(torch.tensor([FLAT, SHARP])).round(decimals=4)
    tensor([ 0.0000, -0.2000])
    """
    return 0.5 * (w - FLAT).square() - DEPTH * torch.exp(-0.5 * ((w - SHARP) / WIDTH).square())


def smoothed(mean: Tensor, deviation: float) -> Tensor:
    """E_q[ℓ] for q = N(mean, deviation²), in closed form.

    >>> smoothed(torch.tensor(FLAT), 1.0).round(decimals=3)  # the dent all but gone
    tensor(0.4700)
    """
    variance = deviation**2
    wide = WIDTH**2 + variance
    dent = DEPTH * WIDTH / wide**0.5 * torch.exp(-0.5 * (mean - SHARP).square() / wide)
    return 0.5 * ((mean - FLAT).square() + variance) - dent


def derivatives(w: Tensor) -> tuple[Tensor, Tensor]:
    """ℓ' and ℓ'', by hand."""
    at = (w - SHARP) / WIDTH
    dent = DEPTH * torch.exp(-0.5 * at.square())
    return w - FLAT + dent * at / WIDTH, 1 + dent * (1 - at.square()) / WIDTH**2


def conditions(mean: float, deviation: float) -> dict[str, float]:
    """E_q[ℓ'] and E_q[ℓ''] on a fine even grid, which is not the quadrature of the rule, and 1/σ²."""
    noise = torch.linspace(-10, 10, 40_001, dtype=torch.float64)
    weights = (-0.5 * noise.square()).softmax(0)
    slope, curvature = derivatives(mean + deviation * noise)
    return {"slope": float(weights @ slope), "curvature": float(weights @ curvature), "precision": deviation**-2}


def lowest(near: float) -> dict[str, float]:
    """The minimum near a place, by a fine grid, and its curvature."""
    w = torch.linspace(near - NEAR, near + NEAR, 50_001, dtype=torch.float64)
    at = w[loss(w).argmin()]
    return {"w": float(at), "loss": float(loss(at)), "curvature": float(derivatives(at)[1])}


def _one(w: Tensor) -> Tensor:
    return loss(w[:, 0])


def _descend(start: float) -> dict[str, Any]:
    """Gradient descent, which is the rule for a Gaussian of fixed variance at its mean."""
    rule = Rule(GaussianMean(), _one, how="local", rate=RATES["descent"])
    trace = rule.run(rule.start((torch.tensor([start], dtype=torch.float64),)), STEPS)
    return {"w": trace.natural()[:, 0].tolist()}


def _learn(start: float, deviation: float, temperature: float, steps: int) -> dict[str, Any]:
    """The rule for a Gaussian of free mean and variance, exact gradients."""
    family = DiagonalGaussian()
    how = Estimator("exact", nodes=NODES)
    rule = Rule(family, _one, how=how, rate=RATES["rule"], temperature=temperature, positive=True)
    first = family.of(torch.tensor([start], dtype=torch.float64), torch.tensor([deviation**2], dtype=torch.float64))
    trace = rule.run(rule.start(first), steps, watch=_moments)
    return {"mean": trace.column("mean"), "deviation": trace.column("deviation")}


def _moments(natural: Natural) -> dict[str, float]:
    mean, variance = DiagonalGaussian.mean_and_variance(natural)
    return {"mean": float(mean), "deviation": float(variance.sqrt())}


def _sweep(full: bool, start: float) -> list[dict[str, float]]:
    """Where the rule ends from one start, by the deviation of the first q and the temperature."""
    rows = []
    for deviation in DEVIATIONS[full]:
        for temperature in TEMPERATURES[full]:
            path = _learn(start, deviation, temperature, LONG)
            ends = {"mean": path["mean"][-1], "deviation": path["deviation"][-1]}
            rows.append({"temperature": temperature, "start_deviation": deviation, **ends})
    return rows


def _stays(descents: list[dict[str, Any]]) -> Claim:
    ends = [path["w"][-1] for path in descents]
    sharp = lowest(SHARP)

    return Claim(
        SOURCE,
        "gradient descent stays in the sharp minimum it starts beside",
        f"{len(ends)} starts end at w = {min(ends):.4f} to {max(ends):.4f}, where ℓ = {sharp['loss']:.3f} and "
        f"ℓ'' = {sharp['curvature']:.0f}",
        all(abs(end - sharp["w"]) < 1e-3 for end in ends),
    )


def _leaves(rules: list[dict[str, Any]]) -> Claim:
    ends = [path["mean"][-1] for path in rules]
    spread = max(path["deviation"][-1] for path in rules)

    flat, sharp = lowest(FLAT), lowest(SHARP)
    return Claim(
        SOURCE,
        "from the same starts the rule ends in the flat minimum, although it is the higher one",
        f"{len(ends)} starts end at m = {min(ends):.4f} to {max(ends):.4f}, σ = {spread:.4f}; there ℓ = "
        f"{round(flat['loss'], 3) + 0.0:.3f} and ℓ'' = {flat['curvature']:.2f}",
        all(abs(end - FLAT) < NEAR for end in ends) and flat["loss"] > sharp["loss"],
    )


def _optimal(optima: list[dict[str, float]]) -> tuple[Claim, Claim]:
    slope = max(abs(found["slope"]) for found in optima)
    gap = max(abs(found["curvature"] - found["precision"]) for found in optima)
    first, last = optima[0]["curvature"], optima[0]["precision"]
    return (
        Claim(SOURCE, "at the optimum E_q[ℓ'] = 0 (to 1e-3)", f"|E_q[ℓ']| is at most {slope:.1e}", slope < 1e-3),
        Claim(
            SOURCE,
            "at the optimum 1/σ² = E_q[ℓ''] (to 1e-3)",
            f"1/σ² = {last:.5f}, E_q[ℓ''] = {first:.5f}; over all starts they differ by at most {gap:.1e}",
            gap < 1e-3,
        ),
    )


def _colder(sweep: list[dict[str, float]]) -> Claim:
    narrowest = min(row["start_deviation"] for row in sweep)
    stay, leave = [], []
    for row in sweep:
        if row["start_deviation"] == narrowest and abs(row["mean"] - SHARP) < NEAR:
            stay.append(row["temperature"])
        elif row["start_deviation"] == narrowest and abs(row["mean"] - FLAT) < NEAR:
            leave.append(row["temperature"])
    return Claim(
        "the same with τH(q) in place of H(q)",
        "it is the entropy that prefers the flat one: with little of it a narrow q stays in the sharp minimum, as "
        "gradient descent does",
        f"from σ = {narrowest:g} the rule stays for τ = {_list(stay)} and leaves for {_list(leave)}",
        bool(stay and leave) and max(stay) < min(leave),
    )


def _list(numbers: list[float]) -> str:
    if len(numbers) > 6:
        return f"{len(numbers)} values from {min(numbers):.3g} to {max(numbers):.3g}"
    return ", ".join(f"{number:.3g}" for number in numbers) or "none"


def _draw(figure: Figure, descent: dict[str, Any], rule: dict[str, Any], sweep: list[dict[str, float]]) -> None:
    landscape, paths, temperatures = panels(figure, 3)
    _landscape(landscape, descent["w"], rule["mean"], rule["deviation"])
    steps = torch.arange(len(rule["mean"]))
    mean, deviation = torch.tensor(rule["mean"]), torch.tensor(rule["deviation"])
    paths.plot(steps, descent["w"], color="C1", label="gradient descent, w")
    paths.plot(steps, mean, color="C0", label="learning rule, m ± σ")
    paths.fill_between(steps, mean - deviation, mean + deviation, color="C0", alpha=0.2, linewidth=0)
    paths.set(xlabel="step", ylabel="w", title="from the same start")
    paths.legend(loc="center right")
    for colour, first in enumerate(sorted({row["start_deviation"] for row in sweep})):
        rows = [row for row in sweep if row["start_deviation"] == first]
        weights, ends = [row["temperature"] for row in rows], [row["mean"] for row in rows]
        temperatures.plot(weights, ends, "o-", color=f"C{colour + 2}", markersize=3, label=f"first σ = {first:g}")
    temperatures.set(xlabel="weight τ of the entropy", ylabel="last m", title="where the rule ends", ylim=(-1.4, 1.4))
    temperatures.legend(loc="lower right")


def _landscape(ax: Axes, descent: list[float], means: list[float], deviations: list[float]) -> None:
    """The loss, the loss averaged over the last q, and the two paths on them."""
    w = torch.linspace(-2.2, 3.2, 1081, dtype=torch.float64)
    ax.plot(w, loss(w), color="0.35", label="ℓ(w)")
    ax.plot(w, smoothed(w, deviations[-1]), "--", color="C0", label="E_q[ℓ], q of the last σ")
    path = torch.tensor(means, dtype=torch.float64)
    on_path = torch.stack([smoothed(m, s) for m, s in zip(path, deviations, strict=True)])
    ax.plot(path, on_path, ".-", color="C0", linewidth=0.8, markersize=3, label="learning rule, E_q[ℓ] at m")
    walk = torch.tensor(descent, dtype=torch.float64)
    ax.plot(walk, loss(walk), ".-", color="C1", markersize=4, label="gradient descent, ℓ at w")
    ax.plot(path[-1], on_path[-1], "o", color="C0", markersize=7)
    ax.plot(walk[-1], loss(walk[-1]), "o", color="C1", markersize=7)
    ax.set(xlabel="w", title="a sharp minimum and a flat one", ylim=(-0.6, 4.2))
    ax.legend(loc="upper right")
