"""Adam over β₁ and β₂: whether its usual β₂ = 0.999 is a good choice here."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from matplotlib.figure import Figure

from bayesrule.experiments import book, findings, trials
from bayesrule.experiments.base import Claim, Result, Setting
from bayesrule.experiments.book.landscapes import (
    LEVEL,
    Array,
    Landscape,
    chance,
    correlation,
    epochs_said,
    explore,
    generator,
    legend_below,
    scatter,
)
from bayesrule.experiments.figures import panels
from bayesrule.experiments.trials import Outcome, Training
from bayesrule.methods import BBB
from bayesrule.optim import Recipe

EPOCHS = {"digits": 8, "mnist": 1, "cifar10": 2}
DRAWS = {"digits": 80, "mnist": 56, "cifar10": 44}
SEEDS = {"digits": 8, "mnist": 4, "cifar10": 4}  # of trainings at each of the two places below
USUAL = (0.9, 0.999)
LOW = (0.9, 0.1)


def run(setting: Setting) -> Result:
    """Short trainings at betas from uniform distributions, and some that differ in β₂ alone."""
    names = list(book.data(setting))
    found = [_landscape(data, number, setting) for number, data in enumerate(names)]
    trainings: list[Training] = []
    for data in names:
        trainings += _pairs(data, setting)
    pairs = trials.run(trainings, setting)
    claims: list[Claim] = []
    for landscape in found:
        claims += [*_trends(landscape), _against_usual(pairs, landscape.data)]
    plain = {
        "landscapes": [landscape.plain() for landscape in found],
        "pairs": findings.all_plain(pairs),
    }
    size = 9.0, 3.7 * len(found)
    return Result(tuple(claims), plain, partial(_draw, found=found), size, tuple(map(_note, found)))


def _method(beta1: float, beta2: float) -> BBB:
    return BBB(**{**book.METHOD, "optimizer": Recipe("adam", {"betas": (beta1, beta2)})})


def _landscape(data: str, number: int, setting: Setting) -> Landscape:
    random = generator(setting, number)
    places = {name: random.uniform(0, 1, DRAWS[data]) for name in ("beta1", "beta2")}
    return explore("adam", data, EPOCHS[data], places, _method, setting)


def _pairs(data: str, setting: Setting) -> list[Training]:
    trainings = []
    for seed in findings.seeds(setting, SEEDS[data]):
        trainings.append(Training("low", data, _method(*LOW), EPOCHS[data], seed))
        trainings.append(Training("usual", data, _method(*USUAL), EPOCHS[data], seed))
    return trainings


def _trends(landscape: Landscape) -> list[Claim]:
    return [
        _trend(landscape, "higher the accuracy", landscape.accuracy),
        _trend(landscape, "lower the loss", -landscape.loss),
    ]


def _trend(landscape: Landscape, what: str, score: Array) -> Claim:
    beta2 = landscape.places["beta2"]
    p = chance(beta2, score)
    return Claim(
        "Book 2020, figures 5.6, 5.7",
        f"the lower β₂, the {what} on {landscape.data}",
        f"the rank correlation of β₂ with what is better is {correlation(beta2, score):.2f} (p = {p:.2g})",
        p < LEVEL,
    )


def _against_usual(pairs: Sequence[Outcome], data: str) -> Claim:
    low = trials.said(findings.values(pairs, data, "low", "accuracy"))
    usual = trials.said(findings.values(pairs, data, "usual", "accuracy"))
    low_loss = trials.said(findings.values(pairs, data, "low", "loss"), 3)
    usual_loss = trials.said(findings.values(pairs, data, "usual", "loss"), 3)
    return Claim(
        "Book 2020, figures 5.6, 5.7",
        f"a low β₂ is better than the usual one on {data}",
        f"accuracy {low} at β = {LOW}, {usual} at {USUAL}; loss {low_loss} and {usual_loss}",
        findings.better(findings.gains(pairs, data, "low", "usual", "accuracy")),
    )


def _note(landscape: Landscape) -> str:
    scores = {"accuracy": landscape.accuracy, "loss": landscape.loss}
    said = []
    for name, score in scores.items():
        for beta, sign in (("beta1", "β₁"), ("beta2", "β₂")):
            said.append(f"{name} with {sign} {correlation(landscape.places[beta], score):.2f}")
    return f"rank correlations on {landscape.data}: {', '.join(said)}"


def _draw(figure: Figure, found: Sequence[Landscape]) -> None:
    axes = iter(panels(figure, 2 * len(found), rows=len(found)))
    for landscape in found:
        for name, score in (("loss", landscape.loss), ("accuracy", landscape.accuracy)):
            ax = next(axes)
            beta1, beta2 = landscape.places["beta1"], landscape.places["beta2"]
            scatter(ax, beta1, beta2, score, name, worst=0.9, high=name == "accuracy")
            ax.plot(*USUAL, "*", color="crimson", ms=10, label=f"usual: {USUAL}", clip_on=False)
            ax.set(xlabel="β₁", ylabel="β₂", xlim=(-0.02, 1.02), ylim=(-0.02, 1.02))
            ax.set_title(f"{landscape.data}: {name} after {epochs_said(EPOCHS[landscape.data])}")
            legend_below(ax)
