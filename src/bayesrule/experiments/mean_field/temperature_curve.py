"""What the sweeps over τ of η = τ·p/w have in common: fits, scores, what is claimed of a curve, and its figure."""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from torch import Tensor, nn

from bayesrule.data import Inputs
from bayesrule.evaluate import collapse, evaluate
from bayesrule.experiments.base import Claim
from bayesrule.experiments.figures import panels
from bayesrule.methods import BBB
from bayesrule.posteriors import Posterior
from bayesrule.priors import Gaussian
from bayesrule.temperatures import Balanced
from bayesrule.training import fit

METRICS = ("accuracy", "ece", "expected_nll", "confidence")  # in the order of an `Authors`' row
DEVIATION = 0.2  # of the prior: the authors' code; their slides say variance 1/5
Authors = Mapping[float, tuple[float, float, float, float]]
"""τ: accuracy, ECE, NLL, confidence; as a figure of the authors has them, read from its vector coordinates."""


@dataclass(frozen=True)
class Fit:
    """One fit of Bayes by Backprop at η = τ·p/w: ``deviation`` is that of the prior of all weights."""

    data: str
    tau: float
    deviation: float
    epochs: int
    batch_size: int
    seed: int

    def of(self, network: nn.Module, train: tuple[Tensor, Tensor], method: BBB) -> Posterior:
        """The posterior of a network."""
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of fits that collapse, which is what this shows
            return fit(
                network,
                train,
                method,
                prior=Gaussian(self.deviation),
                temperature=Balanced(self.tau),
                epochs=self.epochs,
                batch_size=self.batch_size,
                seed=self.seed,
                val=0,
            )


def scores(
    posterior: Posterior, train: tuple[Tensor, Tensor], test: tuple[Tensor, Tensor], outside: Inputs | None, draws: int
) -> dict[str, Any]:
    """Of a posterior by so many draws, as plain data; ``outside``: inputs out of distribution, if there are any."""
    found = evaluate(posterior, test, samples=draws, bootstrap=0)
    told = collapse(posterior, train=train)
    plain: dict[str, Any] = {
        "eta": posterior.info["temperature"],
        **{name: float(found[name]) for name in ("accuracy", "ece", "nll", "confidence")},
        "expected_nll": expected_nll(posterior, *test, draws),
    }
    if outside is not None:
        plain["confidence_outside"] = float(posterior.predict(outside, samples=draws).confidence.mean())
    return plain | {
        "collapsed": told.collapsed,
        "at_prior": told.at_prior,
        "kl": told.end.kl,
        "weights": sum(layer.weights for layer in told.layers.values()),
    }


@torch.no_grad()
def expected_nll(posterior: Posterior, x: Tensor, y: Tensor, draws: int) -> float:
    """E_q of the cross entropy, which the authors call NLL: that of a drawn network, and not of the mean of many."""
    outputs = posterior.outputs(posterior.inputs(x), draws, torch.Generator().manual_seed(0))
    return -float(torch.stack([posterior.likelihood.log_prob(f, y).mean() for f in outputs]).mean())


def plain_authors(authors: Authors) -> dict[str, dict[str, float]]:
    """Their curve as plain data."""
    return {f"{tau:g}": dict(zip(METRICS, row, strict=True)) for tau, row in authors.items()}


# ---- claims ----------------------------------------------------------------------------------------------------------


def best(curve: Sequence[dict[str, Any]], source: str) -> Claim:
    """Where the NLL is lowest."""
    lowest = min(curve, key=lambda row: row["expected_nll"])
    return Claim(
        source,
        "the NLL is best at τ < 0.1",
        f"lowest at τ = {lowest['tau']:g}: {lowest['expected_nll']:.4f}; {listed(curve, 'expected_nll')}",
        lowest["tau"] < 0.1,
    )


def falls(curve: Sequence[dict[str, Any]], source: str) -> Claim:
    """Confidence over τ, and out of distribution where it is known."""
    inside = [row["confidence"] for row in curve]
    held = all(a > b for a, b in pairwise(inside))
    says, measured = "confidence falls with τ", f"in distribution {inside[0]:.3f} to {inside[-1]:.3f}"
    outside = [row["confidence_outside"] for row in curve if "confidence_outside" in row]
    if outside:
        says += ", and is lower out of distribution"
        measured += f", outside {outside[0]:.3f} to {outside[-1]:.3f}"
        held = held and all(row["confidence_outside"] < row["confidence"] for row in curve if row["tau"] <= 1)
    return Claim(source, says, measured, held)


def told(curve: Sequence[dict[str, Any]], says: str, must: float = math.inf) -> Claim:
    """The library's own diagnosis: no collapse where networks are accurate, τ ≤ 1, and one from τ = ``must`` on."""
    flagged = [row["tau"] for row in curve if row["collapsed"]]
    missed = [row["tau"] for row in curve if row["tau"] >= must and not row["collapsed"]]
    return Claim(
        "this library, br.evaluate.collapse",
        says,
        f"told at τ = {', '.join(f'{tau:g}' for tau in flagged) or 'none'}",
        not missed and all(tau > 1 for tau in flagged),
    )


def listed(curve: Sequence[dict[str, Any]], metric: str) -> str:
    """A metric at each τ."""
    return ", ".join(f"{row[metric]:.3f} ({row['tau']:g})" for row in curve)


# ---- figure ----------------------------------------------------------------------------------------------------------


def draw(figure: Figure, plain: dict[str, Any]) -> None:
    """Four panels of ``plain["curve"]``, beside ``plain["authors"]``."""
    titles = {"accuracy": "accuracy", "expected_nll": "NLL, E_q of the cross entropy", "ece": "ECE"}
    axes = panels(figure, 4, rows=2)
    for ax, (metric, title) in zip(axes, titles.items(), strict=False):
        _line(ax, plain, metric, title)
    confidence, curve = axes[3], plain["curve"]
    _line(confidence, plain, "confidence", "confidence")
    if "confidence_outside" in curve[0]:
        outside = [row["confidence_outside"] for row in curve]
        taus = [row["tau"] for row in curve]
        confidence.plot(taus, outside, "s--", color="C2", markersize=4, label="out of distribution")
        confidence.legend()


def _line(ax: Axes, plain: dict[str, Any], metric: str, title: str) -> None:
    curve = plain["curve"]
    ax.plot([row["tau"] for row in curve], [row[metric] for row in curve], "o-", markersize=4, label="this library")
    if plain["authors"]:
        theirs = [row[metric] for row in plain["authors"].values()]
        ax.plot([float(tau) for tau in plain["authors"]], theirs, "x:", color="C1", label="the authors")
    bayes = curve[0]["tau"] / curve[0]["eta"]  # τ at which η is one
    ax.axvline(bayes, color="0.6", lw=1)
    ax.annotate("η = 1", (bayes, 0.92), xycoords=("data", "axes fraction"), fontsize=8, color="0.4")
    ax.set(xscale="log", xlabel="τ", title=title)
    ax.legend(loc="best")
