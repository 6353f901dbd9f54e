"""How the divergence is spread over the batches of an epoch: π_i = λ^i / Σ_k λ^k for λ = 0, ½, 1, 2."""

from __future__ import annotations

from dataclasses import replace

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from bayesrule.experiments import book, findings, trials
from bayesrule.experiments.base import Claim, Result, Setting
from bayesrule.experiments.figures import panels
from bayesrule.experiments.trials import Job, Trial
from bayesrule.methods import BBB

RATIOS = {"λ = 0": 0.0, "λ = ½": 0.5, "λ = 1": 1.0, "λ = 2": 2.0}
EVEN, FIRST, LAST = "λ = 1", "λ = ½", "λ = 2"  # where the divergence counts: in all batches, the first, the last
OTHERS = tuple(what for what in RATIOS if what != EVEN)
ALIKE = 0.01  # accuracies that differ by less are alike
EPOCHS = {False: 20, True: 10}
SOURCE = "Book 2020, figure 5.2"


def run(setting: Setting) -> Result:
    """Trainings that differ in λ alone. Loss and divergence are with full weight: nll + (1/N) KL(q‖p), whatever λ."""
    lengths = book.data(setting, EPOCHS[setting.full])
    found = trials.run(
        [
            Job(what, data, BBB(**book.METHOD, kl_ratio=ratio), epochs, seed)
            for data, epochs in lengths.items()
            for seed in findings.seeds(setting)
            for what, ratio in RATIOS.items()
        ],
        setting,
    )
    claims = [claim for data in lengths for claim in _claims(found, data)]
    plain = {"ratios": RATIOS, "trials": [findings.plain(trial) for trial in found]}
    size = (11.0, 2.8 * len(lengths))
    return Result(tuple(claims), plain, lambda figure: _draw(figure, found), size, _notes(found))


def _claims(found: list[Trial], data: str) -> list[Claim]:
    return [
        _lowest(found, data, "loss", "total loss", f"{SOURCE} and chapter 6"),
        _lowest(found, data, "divergence", "divergence", SOURCE),
        _accurate(found, data),
        _alike(found, data),
        _unregularised(found, data),
    ]


def _lowest(found: list[Trial], data: str, metric: str, called: str, source: str) -> Claim:
    return Claim(
        source,
        f"an even weight (λ = 1) has the lowest {called} on {data}",
        _by_ratio(found, data, metric),
        all(findings.better(findings.gains(found, data, other, EVEN, metric)) for other in OTHERS),
    )


def _accurate(found: list[Trial], data: str) -> Claim:
    return Claim(
        SOURCE,
        f"λ = ½ and λ = 2 are at least as accurate as λ = 1 on {data}",
        "accuracy " + _by_ratio(found, data, "accuracy"),
        all(findings.not_worse(findings.gains(found, data, what, EVEN, "accuracy")) for what in (FIRST, LAST)),
    )


def _alike(found: list[Trial], data: str) -> Claim:
    gains = findings.gains(found, data, LAST, FIRST, "accuracy")
    return Claim(
        "Book 2020, section 5.2",
        f"λ = ½ and λ = 2 perform alike on {data}: the order does not matter (within {ALIKE:.0%} of accuracy)",
        f"λ = 2 is more accurate than λ = ½ by {trials.said(gains)}",
        abs(trials.average(gains)[0]) <= ALIKE,
    )


def _unregularised(found: list[Trial], data: str) -> Claim:
    others = [what for what in RATIOS if what != "λ = 0"]
    return Claim(
        "Book 2020, section 5.2",
        f"no other λ is as accurate as λ = 0, which ignores the divergence, on {data}",
        "accuracy " + _by_ratio(found, data, "accuracy"),
        all(findings.better(findings.gains(found, data, "λ = 0", what, "accuracy")) for what in others),
    )


def _by_ratio(found: list[Trial], data: str, metric: str) -> str:
    return ", ".join(f"{trials.said(findings.values(found, data, what, metric))} ({what})" for what in RATIOS)


def _notes(found: list[Trial]) -> tuple[str, ...]:
    epochs = {trial.data: len(trial.history) for trial in found}
    length = ", ".join(f"{epochs[data]} on {data}" for data in epochs)
    return (
        f"Epochs: {length}. From so narrow a start the divergence is nearly all of the total loss, and falls slowly: "
        "Adam moves ρ by about its rate in a step at most, whatever the weight of the divergence.",
    )


def _draw(figure: Figure, found: list[Trial]) -> None:
    names = list(dict.fromkeys(trial.data for trial in found))
    axes = panels(figure, 4 * len(names), rows=len(names))
    for row, data in enumerate(names):
        own = [_with_total(trial) for trial in found if trial.data == data]
        accuracy, *rest = axes[4 * row : 4 * row + 4]
        _accuracies(accuracy, own)
        accuracy.set(title=f"{data}: test accuracy")
        for ax, metric in zip(rest, ("total", "nll", "penalty"), strict=True):
            findings.curves(ax, own, metric)
            ax.set(title={"total": "total loss", "nll": "negative log likelihood", "penalty": "divergence"}[metric])
            ax.set(yscale="log" if metric == "nll" else "linear")
            if metric != "nll" and (legend := ax.get_legend()):
                legend.remove()


def _accuracies(ax: Axes, found: list[Trial]) -> None:
    """A dot for each training, a bar at the mean."""
    for place, what in enumerate(RATIOS):
        scores = [trial.accuracy for trial in found if trial.what == what]
        ax.plot([place] * len(scores), scores, "o", color=f"C{place}", alpha=0.6)
        ax.hlines(sum(scores) / len(scores), place - 0.3, place + 0.3, color=f"C{place}", lw=2)
    ax.set_xticks(range(len(RATIOS)), list(RATIOS))


def _with_total(trial: Trial) -> Trial:
    """The logs with nll + divergence among them; their own loss weighs the divergence by π."""
    return replace(trial, history=[{**epoch, "total": epoch["nll"] + epoch["penalty"]} for epoch in trial.history])
