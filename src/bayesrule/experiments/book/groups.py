"""Means and deviations as two groups: by turns or at once, at learning rates of their own, and at which ratio."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from statistics import mean
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from bayesrule.experiments import book, findings, trials
from bayesrule.experiments.base import Claim, Result, Setting
from bayesrule.experiments.book import landscapes
from bayesrule.experiments.book.landscapes import LEVEL, Landscape
from bayesrule.experiments.figures import panels
from bayesrule.experiments.trials import Outcome, Training
from bayesrule.methods import BBB

TURNS = 2  # epochs that a group trains before it is the other's turn
RATIOS = (10.0, 1.0, 0.1, 0.01)
SEARCHED = ("adabound", "adam")
LOWEST = -4.0  # learning rates are drawn from 10^LOWEST to 1, uniformly in the logarithm
SAME = 0.02  # accuracies that differ by less are about the same
PROBED = 0.01  # the means' rate when the ratio is probed: the document's text has this one, its caption 0.001
EPOCHS = {
    "digits": {"turns": 24, "search": 6, "ratio": 60},
    "mnist": {"turns": 8, "search": 1, "ratio": 3},
    "cifar10": {"turns": 8, "search": 1, "ratio": 5},
}
DRAWS = {"digits": 24, "mnist": 14, "cifar10": 14}
SEEDS = 3
TOSSES = 500  # of a test


@dataclass(frozen=True)
class Parts:
    """The three parts on one data set."""

    data: str
    turns: Sequence[Outcome]
    search: dict[str, Landscape]
    ratio: Sequence[Outcome]

    def claims(self) -> list[Claim]:
        """The document's claims on this data set."""
        claims = _turn_claims(self.turns, self.data)
        claims += [_narrow_claim(name, landscape) for name, landscape in self.search.items()]
        claims.append(_divergence_claim(self.search["adam"]))
        claims += [_ratio_claim(self.ratio, self.data, ratio) for ratio in RATIOS if ratio < 1]
        return claims

    def plain(self) -> dict[str, Any]:
        """Every number."""
        return {
            "turns": findings.all_plain(self.turns),
            "search": {name: landscape.plain() for name, landscape in self.search.items()},
            "ratio": findings.all_plain(self.ratio),
        }

    def note(self) -> str:
        """What the ratio does to accuracy and loss."""
        return f"{self.data}: at the lowest divergence the accuracy need not be best: {_told(self.ratio, self.data)}"


def run(setting: Setting) -> Result:
    """Three parts on each data set."""
    found = [_parts(data, setting) for data in book.data(setting)]
    claims: list[Claim] = []
    plain, notes = {}, []
    for parts in found:
        claims += parts.claims()
        plain[parts.data] = parts.plain()
        notes.append(parts.note())
    return Result(tuple(claims), plain, partial(_draw, found=found), (13.0, 6.4 * len(found)), tuple(notes))


def _parts(data: str, setting: Setting) -> Parts:
    epochs = EPOCHS[data]
    probed = trials.run(_ratio_trainings(data, epochs["ratio"], setting), setting)
    alternated = trials.run(_turn_trainings(data, epochs["turns"], setting), setting)
    searched = {name: _search(name, data, epochs["search"], setting) for name in SEARCHED}
    return Parts(data, alternated, searched, probed)


def _turn_trainings(data: str, epochs: int, setting: Setting) -> list[Training]:
    trainings = []
    for seed in findings.seeds(setting, SEEDS):
        for what, turns in (("at once", 0), ("by turns", TURNS)):
            trainings.append(Training(what, data, BBB(**{**book.METHOD, "alternate": turns}), epochs, seed))
    return trainings


def _search(optimizer: str, data: str, epochs: int, setting: Setting) -> Landscape:
    random = landscapes.generator(setting, SEARCHED.index(optimizer))
    places = {name: 10 ** random.uniform(LOWEST, 0, DRAWS[data]) for name in ("means", "deviations")}

    def method(means: float, deviations: float) -> BBB:
        changed = {"optimizer": optimizer, "lr": means, "sigma_lr_ratio": deviations / means}
        return BBB(**{**book.METHOD, **changed})

    return landscapes.explore(optimizer, data, epochs, places, method, setting)


def _ratio_trainings(data: str, epochs: int, setting: Setting) -> list[Training]:
    trainings = []
    for seed in findings.seeds(setting, SEEDS):
        for ratio in RATIOS:
            method = BBB(**{**book.METHOD, "lr": PROBED, "sigma_lr_ratio": ratio})
            trainings.append(Training(_r(ratio), data, method, epochs, seed))
    return trainings


def _r(ratio: float) -> str:
    return f"r = {ratio:g}"


def falls(outcome: Outcome, metric: str, group: int) -> float:
    """By how much a metric falls from the first to the last epoch of a turn, on average over the turns of a group.

    Group 0, the means, has the first turn.
    """
    values = [epoch[metric] for epoch in outcome.history]
    starts = range(group * TURNS, len(values) - TURNS + 1, 2 * TURNS)
    return mean(values[start] - values[start + TURNS - 1] for start in starts)


def _turn_claims(found: Sequence[Outcome], data: str) -> list[Claim]:
    once = findings.values(found, data, "at once", "accuracy")
    turns = findings.values(found, data, "by turns", "accuracy")
    claims = [
        Claim(
            "Book 2020, figure 5.8",
            f"means and deviations by turns give about the same accuracy as both at once on {data}",
            f"{trials.said(turns)} by turns, {trials.said(once)} at once; the same is a difference below {SAME}",
            findings.alike(findings.differences(turns, once), SAME),
        )
    ]
    by_turns = findings.chosen(found, data, "by turns", finished=True)
    for group, (name, metric, said) in enumerate((("means", "nll", "nll"), ("deviations", "penalty", "divergence"))):
        own = [falls(outcome, metric, group) for outcome in by_turns]
        other = [falls(outcome, metric, 1 - group) for outcome in by_turns]
        claims.append(
            Claim(
                "Book 2020, figure 5.8",
                f"while the {name} train the {said} falls on {data}",
                f"by {trials.said(own)} within a turn of theirs, by {trials.said(other)} within one of the others'",
                findings.better(own) and findings.better(findings.differences(own, other)),
            )
        )
    return claims


def ahead(landscape: Landscape) -> tuple[float, float, float]:
    """The shares of the accuracy's variance that the two rates explain, and how likely such a lead of the means' is.

    That is, if in each run the toss of a coin decides which rate is taken for which.
    """
    rates = np.log([landscape.places["means"], landscape.places["deviations"]])
    accuracy = landscape.accuracy
    random = np.random.default_rng(0)
    # The first row of coins exchanges nothing: what is seen counts as one of the deals.
    coins = [np.zeros(len(accuracy), dtype=bool), *(random.random((TOSSES, len(accuracy))) < 0.5)]
    rows = []
    for coin in coins:
        dealt = np.where(coin, rates[::-1], rates)
        rows.append([landscapes.explained(rate, accuracy) for rate in dealt])
    shares = np.array(rows)
    leads = shares[:, 0] - shares[:, 1]
    return float(shares[0, 0]), float(shares[0, 1]), float(np.mean(leads >= leads[0]))


def _narrow_claim(optimizer: str, landscape: Landscape) -> Claim:
    means, deviations, p = ahead(landscape)
    return Claim(
        "Book 2020, figure 5.9",
        f"the accuracy of {optimizer} depends more on the means' rate than on the deviations' on {landscape.data}",
        f"parabolas in the rate's logarithm explain {means:.0%} and {deviations:.0%} of its variance (p = {p:.2g})",
        p < LEVEL,
    )


def _divergence_claim(landscape: Landscape) -> Claim:
    rate, divergence = landscape.places["deviations"], landscape.divergence
    p = landscapes.chance(rate, divergence)
    return Claim(
        "Book 2020, figure 5.9",
        f"with adam the divergence is the lower, the larger the deviations' rate on {landscape.data}",
        f"their rank correlation is {landscapes.correlation(rate, divergence):.2f} (p = {p:.2g})",
        p < LEVEL,
    )


def _ratio_claim(found: Sequence[Outcome], data: str, ratio: float) -> Claim:
    return Claim(
        "Book 2020, figure 5.10",
        f"a deviations' rate of {ratio:g} times the means' is better than the same rate on {data}",
        _told([outcome for outcome in found if outcome.what in (_r(ratio), _r(1.0))], data),
        findings.better(findings.gains(found, data, _r(ratio), _r(1.0), "accuracy")),
    )


def _told(found: Sequence[Outcome], data: str) -> str:
    lines = []
    for what in dict.fromkeys(outcome.what for outcome in found):
        accuracy = trials.said(findings.values(found, data, what, "accuracy"))
        loss = trials.said(findings.values(found, data, what, "loss"), 2)
        lines.append(f"accuracy {accuracy}, loss {loss} at {what}")
    return "; ".join(lines)


def _draw(figure: Figure, found: Sequence[Parts]) -> None:
    axes = panels(figure, 8 * len(found), rows=2 * len(found))
    for number, parts in enumerate(found):
        _rows(axes[8 * number : 8 * number + 8], parts)


def _rows(axes: Sequence[Axes], parts: Parts) -> None:
    for ax, found, metric, title in (
        (axes[0], parts.turns, "nll", "training nll"),
        (axes[1], parts.turns, "penalty", "divergence"),
        (axes[2], parts.ratio, "nll", "training nll by ratio r"),
        (axes[3], parts.ratio, "penalty", "divergence by ratio r"),
    ):
        findings.curves(ax, found, metric)
        ax.set(title=f"{parts.data}: {title}")
    for row, (name, landscape) in enumerate(parts.search.items()):
        _panel(axes[4 + 2 * row], landscape, name, "accuracy")
        _panel(axes[5 + 2 * row], landscape, name, "divergence")


def _panel(axes: Axes, landscape: Landscape, optimizer: str, metric: str) -> None:
    score = landscape.accuracy if metric == "accuracy" else landscape.divergence
    landscapes.scatter(
        axes, landscape.places["means"], landscape.places["deviations"], score, metric, high=metric == "accuracy"
    )
    axes.set(xscale="log", yscale="log", xlabel="rate of the means", ylabel="rate of the deviations")
    epochs = landscapes.epochs_said(EPOCHS[landscape.data]["search"])
    axes.set_title(f"{landscape.data}, {optimizer}: {metric} after {epochs}")
