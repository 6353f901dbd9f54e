"""A plateau schedule for each group: the means' watches the likelihood, the deviations' the divergence."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from bayesrule.experiments import book, findings, trials
from bayesrule.experiments.base import Claim, Result, Setting
from bayesrule.experiments.figures import panels
from bayesrule.experiments.trials import Job, Trial
from bayesrule.methods import BBB
from bayesrule.optim import Group, Plateau
from bayesrule.report.figures import PALETTE

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
    jobs = [
        Job(what, data, method, count, seed)
        for data, count in epochs.items()
        for seed in findings.seeds(setting, SEEDS[setting.full])
        for what, method in _methods().items()
    ]
    found = trials.run(jobs, setting)
    claims = [_same_claim(found, data) if data == "mnist" else _better_claim(found, data) for data in epochs]
    plain = {
        "trials": [findings.plain(t) for t in found],
        "rates": [{"data": t.data, "seed": t.seed, **rates(t)} for t in found if t.what == PLATEAU],
    }
    notes = *(_note(found, data) for data in epochs), *([] if setting.full else [NARROW])
    return Result(tuple(claims), plain, partial(_draw, found=found), (13.0, 3.0 * len(epochs)), notes)


def _methods() -> dict[str, BBB]:
    by_group: dict[str, Any] = {"lr": RATE, "schedule": MEANS, "deviations": Group("adam", RATE, DEVIATIONS)}
    constant = {what: BBB(**{**book.METHOD, "lr": rate}) for what, rate in CONSTANT.items()}
    return {PLATEAU: BBB(**{**book.METHOD, **by_group}), **constant}


def rates(trial: Trial) -> dict[str, list[float]]:
    """The rates of a training with plateaus, by epoch."""
    before = [trial.history[:epoch] for epoch in range(len(trial.history))]
    schedules = {"means": MEANS, "deviations": DEVIATIONS}
    return {name: [RATE * schedule(1.0, past) for past in before] for name, schedule in schedules.items()}


def _said(found: Sequence[Trial], data: str, metric: str, digits: int) -> str:
    names = (PLATEAU, *CONSTANT)
    return ", ".join(f"{trials.said(findings.values(found, data, name, metric), digits)} ({name})" for name in names)


def _better_claim(found: Sequence[Trial], data: str) -> Claim:
    gains = [findings.gains(found, data, PLATEAU, name, "accuracy") for name in CONSTANT]
    return Claim(
        SOURCE,
        f"a plateau schedule by group gives a better accuracy than either constant rate on {data}",
        f"accuracy {_said(found, data, 'accuracy', 4)}",
        all(map(findings.better, gains)),
    )


def _same_claim(found: Sequence[Trial], data: str) -> Claim:
    gains = findings.gains(found, data, PLATEAU, next(iter(CONSTANT)), "accuracy")
    return Claim(
        SOURCE,
        f"a plateau schedule by group makes no significant difference to the accuracy on {data}",
        f"accuracy {_said(found, data, 'accuracy', 4)}",
        findings.not_worse(gains) and findings.not_worse([-gain for gain in gains]),
    )


def _note(found: Sequence[Trial], data: str) -> str:
    last = [rates(t) for t in found if t.data == data and t.what == PLATEAU and t.history]
    told = ", ".join(f"{r['means'][-1]:.0e} and {r['deviations'][-1]:.0e}" for r in last)
    loss, nll = _said(found, data, "loss", 3), _said(found, data, "nll", 4)
    return f"{data}: loss {loss}; test nll {nll}; the last rates of means and deviations by seed: {told}"


def _draw(figure: Figure, found: Sequence[Trial]) -> None:
    names = list(dict.fromkeys(t.data for t in found))
    axes = panels(figure, 4 * len(names), rows=len(names))
    for row, data in enumerate(names):
        _row(axes[4 * row : 4 * row + 4], [t for t in found if t.data == data], data)


def _row(axes: Sequence[Axes], found: Sequence[Trial], data: str) -> None:
    for ax, metric, title in ((axes[0], "nll", "training nll"), (axes[1], "penalty", "divergence")):
        findings.curves(ax, found, metric)
        for line in ax.get_lines():
            if line.get_label() == PLATEAU:
                line.set(linestyle="--", zorder=3)  # where it does what a constant rate does, both are seen
        ax.legend()
        ax.set(title=f"{data}: {title}")
    for trial in found:
        if trial.what == PLATEAU:
            for colour, (name, values) in zip(PALETTE[3:], rates(trial).items(), strict=False):
                label = name if trial is found[0] else None
                axes[2].semilogy(range(1, len(values) + 1), values, color=colour, label=label, alpha=0.7)
    axes[2].set(title=f"{data}: rates of the plateaus, by seed", xlabel="epoch")
    axes[2].legend()
    for place, name in enumerate((PLATEAU, *CONSTANT)):
        scores = findings.values(found, data, name, "accuracy")
        axes[3].plot([place] * len(scores), scores, "o", color=PALETTE[place], alpha=0.7)
    axes[3].set_xticks(range(3), [name.replace(" ", "\n", 1) for name in (PLATEAU, *CONSTANT)])
    axes[3].set(title=f"{data}: test accuracy", xlim=(-0.5, 2.5))
