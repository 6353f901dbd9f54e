"""The first deviation of q, σ = softplus(ρ): too wide a start harms accuracy, too narrow a one leaves a point."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from bayesrule import modules
from bayesrule.data import Split
from bayesrule.evaluate import evaluate
from bayesrule.experiments import book, findings, trials
from bayesrule.experiments.base import Claim, Result, Setting
from bayesrule.experiments.figures import panels
from bayesrule.experiments.trials import Outcome, Training
from bayesrule.methods import BBB
from bayesrule.posteriors import Gaussian, Particles, Posterior

STARTS = (-2, -4, -6, -8, -10, -12)
CHOSEN = -10  # the document's
LITTLE = 0.01  # the share of epistemic uncertainty in the total below which a network is as good as a point
EPOCHS = {False: 20, True: 8}
SOURCE = "Book 2020, appendix A, figure A.1"


def run(setting: Setting) -> Result:
    """Trainings that differ in the first ρ alone; at the end q is compared with the network at its mean."""
    lengths = book.data(setting, EPOCHS[setting.full])
    trainings = []
    for data, epochs in lengths.items():
        for seed in findings.seeds(setting):
            for rho in STARTS:
                method = BBB(**{**book.METHOD, "initial_std": deviation(rho)})
                trainings.append(Training(_named(rho), data, method, epochs, seed, look=look))
    found = trials.run(trainings, setting)
    claims: list[Claim] = []
    for data in lengths:
        claims += _claims(found, data)
    plain = {"rho": STARTS, "std": list(map(deviation, STARTS)), "trials": findings.all_plain(found)}
    return Result(tuple(claims), plain, lambda figure: _draw(figure, found), (10.5, 2.8 * len(lengths)), _notes(found))


def deviation(rho: float) -> float:
    """σ = log(1 + e^ρ).

    >>> round(deviation(0.0), 4)
    0.6931
    """
    return math.log1p(math.exp(rho))


def look(posterior: Posterior, split: Split) -> dict[str, Any]:
    """What the spread of q is worth on test data.

    ``epistemic`` and ``entropy``: mean uncertainties in nats. ``gain``: how much lower the NLL of the average over
    networks is than that of the one network at the mean. ``std``: the median deviation of a weight.
    """
    assert isinstance(posterior, Gaussian)
    test = tuple(part[: trials.TESTED] for part in split.test)
    spread = evaluate(posterior, test, samples=trials.SAMPLES, bootstrap=0)
    centre = evaluate(Particles([posterior.mean | posterior.fixed], posterior.context), test, bootstrap=0)
    return {
        "epistemic": float(spread["epistemic"]),
        "entropy": float(spread["entropy"]),
        "gain": float(centre["nll"] - spread["nll"]),
        "std": float(modules.flatten(posterior.std).median()),
    }


def _named(rho: float) -> str:
    return f"ρ = −{-rho:g}"


def _share(found: Sequence[Outcome], data: str, rho: int) -> float:
    """The epistemic part of the total uncertainty, over all seeds."""
    total = sum(_seen(found, data, rho, "entropy"))
    if not total:
        return 0.0
    return sum(_seen(found, data, rho, "epistemic")) / total


def _claims(found: list[Outcome], data: str) -> list[Claim]:
    accuracy = findings.by_kind(found, data, map(_named, STARTS), "accuracy")
    shares = {rho: _share(found, data, rho) for rho in STARTS}
    best = max(STARTS, key=lambda rho: trials.average(accuracy[_named(rho)])[0])
    widest, narrowest = max(STARTS), min(STARTS)
    lost = findings.gains(found, data, _named(CHOSEN), _named(widest), "accuracy")
    behind = findings.gains(found, data, _named(CHOSEN), _named(best), "accuracy")
    return [
        Claim(
            SOURCE,
            f"too wide a start impairs performance on {data}",
            "accuracy " + findings.listed(accuracy),
            findings.better(lost),
        ),
        Claim(
            SOURCE,
            f"too narrow a start ends in a frequentist network on {data}: less than {LITTLE:.0%} of the uncertainty "
            "is epistemic",
            "share " + ", ".join(f"{share:.1e} ({_named(rho)})" for rho, share in shares.items()),
            shares[narrowest] < LITTLE,
        ),
        Claim(
            "Book 2020, section 4.2",
            f"ρ = −10 is a good trade-off on {data}: as accurate as any (within "
            f"{100 * findings.ACCURACY:g} points), and not frequentist",
            f"accuracy {trials.said(accuracy[_named(CHOSEN)])}, the best {trials.said(accuracy[_named(best)])} "
            f"({_named(best)}); a share {shares[CHOSEN]:.1e} of the uncertainty is epistemic",
            findings.all_hold([findings.not_worse(behind, findings.ACCURACY), shares[CHOSEN] >= LITTLE]),
        ),
    ]


def _notes(found: list[Outcome]) -> tuple[str, ...]:
    lines = []
    for data in findings.datasets(found):
        moves, worth = [], {}
        for rho in STARTS:
            ends = _seen(found, data, rho, "std")
            if ends:
                moves.append(f"{deviation(rho):.1e} → {torch.tensor(ends).mean():.1e}")
                worth[_named(rho)] = _seen(found, data, rho, "gain")
        lines.append(f"{data}: the median deviation of a weight before and after training: {', '.join(moves)}.")
        lines.append(
            f"{data}: the average over draws of q has a lower NLL than the network at its mean by "
            f"{findings.listed(worth)}."
        )
    return tuple(lines)


def _seen(found: Sequence[Outcome], data: str, rho: int, what: str) -> list[float]:
    return [outcome.seen[what] for outcome in findings.chosen(found, data, _named(rho), finished=True)]


def _draw(figure: Figure, found: list[Outcome]) -> None:
    names = findings.datasets(found)
    axes = panels(figure, 4 * len(names), rows=len(names))
    for row, data in enumerate(names):
        accuracy, divergence, epistemic, std = axes[4 * row : 4 * row + 4]
        for ax, metric in ((accuracy, "accuracy"), (divergence, "divergence")):
            _dots(ax, {rho: findings.values(found, data, _named(rho), metric) for rho in STARTS})
        for ax, metric in ((epistemic, "epistemic"), (std, "std")):
            _dots(ax, {rho: _seen(found, data, rho, metric) for rho in STARTS})
        accuracy.set(title=f"{data}: test accuracy")
        divergence.set(title="divergence at the end")
        epistemic.set(title="epistemic uncertainty, nats", yscale="log")
        std.plot(STARTS, list(map(deviation, STARTS)), "--", color="C7", label="at the start")
        std.set(title="median deviation at the end", yscale="log")
        std.legend()


def _dots(ax: Axes, by_start: dict[int, list[float]]) -> None:
    """A dot for each training, a line through the means."""
    means = {}
    for rho, values in by_start.items():
        there = list(filter(math.isfinite, values))
        if there:
            ax.plot([rho] * len(there), there, "o", color="C0", alpha=0.5, ms=4)
            means[rho] = sum(there) / len(there)
    ax.plot(list(means), list(means.values()), color="C0")
    ax.set(xlabel="first ρ", xticks=STARTS)
