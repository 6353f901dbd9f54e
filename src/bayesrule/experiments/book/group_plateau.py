"""A plateau schedule for each group: the means' watches the likelihood, the deviations' the divergence."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from bayesrule.experiments import book, findings, trials
from bayesrule.experiments.base import Claim, Result, Setting
from bayesrule.experiments.figures import PALETTE, panels
from bayesrule.experiments.trials import Outcome, Training
from bayesrule.methods import BBB
from bayesrule.optim import Group, Plateau

RATE = 1e-3
MEANS = Plateau("nll", patience=1, factor=0.1)
DEVIATIONS = Plateau("penalty", patience=1, factor=0.1)
PLATEAU = "plateau by group"
CONSTANT = {"constant 0.001": RATE, "constant 0.0001": RATE / 10}
EPOCHS = {False: {"digits": 50}, True: {"mnist": 25, "cifar10": 30}}  # with 8 and 16 no plateau came
SEEDS = {False: 4, True: 3}
SOURCE = "Book 2020, figure 5.11"
NARROW = (
    "Adam at 0.001 moves ρ by about 0.001 a step: from ρ = −10 it takes thousands of steps until the deviations "
    "matter, more than there are here"
)


def run(setting: Setting) -> Result:
    """Adam with plateaus against two constant rates."""
    epochs = EPOCHS[setting.full]
    trainings = []
    for data, count in epochs.items():
        for seed in findings.seeds(setting, SEEDS[setting.full]):
            for what, method in _methods().items():
                trainings.append(Training(what, data, method, count, seed))
    found = trials.run(trainings, setting)
    claims, notes = [], []
    for data in epochs:
        claim = _same_claim if data == "mnist" else _better_claim
        claims.append(claim(found, data))
        notes.append(_note(found, data))
    if not setting.full:
        notes.append(NARROW)
    by_plateau = [outcome for outcome in found if outcome.what == PLATEAU]
    plain = {
        "trials": findings.all_plain(found),
        "rates": [{"data": outcome.data, "seed": outcome.seed, **rates(outcome)} for outcome in by_plateau],
    }
    return Result(tuple(claims), plain, partial(_draw, found=found), (13.0, 3.0 * len(epochs)), tuple(notes))


def _methods() -> dict[str, BBB]:
    by_group: dict[str, Any] = {"lr": RATE, "schedule": MEANS, "deviations": Group("adam", RATE, DEVIATIONS)}
    methods = {PLATEAU: BBB(**{**book.METHOD, **by_group})}
    for what, rate in CONSTANT.items():
        methods[what] = BBB(**{**book.METHOD, "lr": rate})
    return methods


def rates(outcome: Outcome) -> dict[str, list[float]]:
    """The rates of a training with plateaus, by epoch."""
    found: dict[str, list[float]] = {"means": [], "deviations": []}
    for epoch in range(len(outcome.history)):
        before = outcome.history[:epoch]  # a plateau is seen in the epochs that are over
        found["means"].append(RATE * MEANS(1.0, before))
        found["deviations"].append(RATE * DEVIATIONS(1.0, before))
    return found


def _said(found: Sequence[Outcome], data: str, metric: str, digits: int) -> str:
    return findings.listed(findings.by_kind(found, data, (PLATEAU, *CONSTANT), metric), digits)


def _better_claim(found: Sequence[Outcome], data: str) -> Claim:
    gains = [findings.gains(found, data, PLATEAU, name, "accuracy") for name in CONSTANT]
    return Claim(
        SOURCE,
        f"a plateau schedule by group gives a better accuracy than either constant rate on {data}",
        f"accuracy {_said(found, data, 'accuracy', 4)}",
        all(map(findings.better, gains)),
    )


def _same_claim(found: Sequence[Outcome], data: str) -> Claim:
    gains = findings.gains(found, data, PLATEAU, next(iter(CONSTANT)), "accuracy")
    return Claim(
        SOURCE,
        f"a plateau schedule by group makes no difference to the accuracy on {data} (within "
        f"{100 * findings.ACCURACY:g} points)",
        f"accuracy {_said(found, data, 'accuracy', 4)}",
        findings.alike(gains, findings.ACCURACY),
    )


def _note(found: Sequence[Outcome], data: str) -> str:
    last = []
    for outcome in findings.chosen(found, data, PLATEAU):
        if outcome.history:
            by_epoch = rates(outcome)
            last.append(f"{by_epoch['means'][-1]:.0e} and {by_epoch['deviations'][-1]:.0e}")
    loss, nll = _said(found, data, "loss", 3), _said(found, data, "nll", 4)
    return f"{data}: loss {loss}; test nll {nll}; the last rates of means and deviations by seed: {', '.join(last)}"


def _draw(figure: Figure, found: Sequence[Outcome]) -> None:
    names = findings.datasets(found)
    axes = panels(figure, 4 * len(names), rows=len(names))
    for row, data in enumerate(names):
        _row(axes[4 * row : 4 * row + 4], findings.chosen(found, data), data)


def _row(axes: Sequence[Axes], found: Sequence[Outcome], data: str) -> None:
    for ax, metric, title in ((axes[0], "nll", "training nll"), (axes[1], "penalty", "divergence")):
        findings.curves(ax, found, metric)
        for line in ax.get_lines():
            if line.get_label() == PLATEAU:
                line.set(linestyle="--", zorder=3)  # where it does what a constant rate does, both are seen
        ax.legend()
        ax.set(title=f"{data}: {title}")
    for outcome in found:
        if outcome.what != PLATEAU:
            continue
        for colour, (name, values) in zip(PALETTE[3:], rates(outcome).items(), strict=False):
            label = name if outcome is found[0] else None  # one entry of the legend for all seeds
            axes[2].semilogy(range(1, len(values) + 1), values, color=colour, label=label, alpha=0.7)
    axes[2].set(title=f"{data}: rates of the plateaus, by seed", xlabel="epoch")
    axes[2].legend()
    for index, name in enumerate((PLATEAU, *CONSTANT)):
        scores = findings.values(found, data, name, "accuracy")
        axes[3].plot([index] * len(scores), scores, "o", color=PALETTE[index], alpha=0.7)
    axes[3].set_xticks(range(3), [name.replace(" ", "\n", 1) for name in (PLATEAU, *CONSTANT)])
    axes[3].set(title=f"{data}: test accuracy", xlim=(-0.5, 2.5))
