"""How the divergence is spread over the batches of an epoch: π_i = λ^i / Σ_k λ^k for λ = 0, ½, 1, 2."""

from __future__ import annotations

from dataclasses import replace

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from bayesrule.experiments import book, findings, trials
from bayesrule.experiments.base import Claim, Result, Setting
from bayesrule.experiments.figures import panels
from bayesrule.experiments.trials import Outcome, Training
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
    trainings = []
    for data, epochs in lengths.items():
        for seed in findings.seeds(setting):
            for what, ratio in RATIOS.items():
                trainings.append(Training(what, data, BBB(**book.METHOD, kl_ratio=ratio), epochs, seed))
    found = trials.run(trainings, setting)
    claims: list[Claim] = []
    for data in lengths:
        claims += _claims(found, data)
    plain = {"ratios": RATIOS, "trials": findings.all_plain(found)}
    size = (11.0, 2.8 * len(lengths))
    return Result(tuple(claims), plain, lambda figure: _draw(figure, found), size, _notes(found))


def _claims(found: list[Outcome], data: str) -> list[Claim]:
    return [
        _lowest(found, data, "loss", "total loss", f"{SOURCE} and chapter 6"),
        _lowest(found, data, "divergence", "divergence", SOURCE),
        _accurate(found, data),
        _alike(found, data),
        _unregularised(found, data),
    ]


def _lowest(found: list[Outcome], data: str, metric: str, called: str, source: str) -> Claim:
    return Claim(
        source,
        f"an even weight (λ = 1) has the lowest {called} on {data}",
        _by_ratio(found, data, metric),
        all(findings.better(findings.gains(found, data, other, EVEN, metric)) for other in OTHERS),
    )


def _accurate(found: list[Outcome], data: str) -> Claim:
    gains = [findings.gains(found, data, what, EVEN, "accuracy") for what in (FIRST, LAST)]
    return Claim(
        SOURCE,
        f"λ = ½ and λ = 2 are at least as accurate as λ = 1 on {data} (within {100 * findings.ACCURACY:g} points)",
        "accuracy " + _by_ratio(found, data, "accuracy"),
        findings.all_hold(findings.not_worse(each, findings.ACCURACY) for each in gains),
    )


def _alike(found: list[Outcome], data: str) -> Claim:
    gains = findings.gains(found, data, LAST, FIRST, "accuracy")
    return Claim(
        "Book 2020, section 5.2",
        f"λ = ½ and λ = 2 perform alike on {data}: the order does not matter (within {ALIKE:.0%} of accuracy)",
        f"λ = 2 is more accurate than λ = ½ by {trials.said(gains)}",
        findings.alike(gains, ALIKE),
    )


def _unregularised(found: list[Outcome], data: str) -> Claim:
    others = [what for what in RATIOS if what != "λ = 0"]
    return Claim(
        "Book 2020, section 5.2",
        f"no other λ is as accurate as λ = 0, which ignores the divergence, on {data}",
        "accuracy " + _by_ratio(found, data, "accuracy"),
        all(findings.better(findings.gains(found, data, "λ = 0", what, "accuracy")) for what in others),
    )


def _by_ratio(found: list[Outcome], data: str, metric: str) -> str:
    return findings.listed(findings.by_kind(found, data, RATIOS, metric))


def _notes(found: list[Outcome]) -> tuple[str, ...]:
    epochs = {outcome.data: len(outcome.history) for outcome in found}
    length = ", ".join(f"{count} on {data}" for data, count in epochs.items())
    return (
        f"Epochs: {length}. From so narrow a start the divergence is nearly all of the total loss, and falls slowly: "
        "Adam moves ρ by about its rate in a step at most, whatever the weight of the divergence.",
    )


def _draw(figure: Figure, found: list[Outcome]) -> None:
    names = findings.datasets(found)
    axes = panels(figure, 4 * len(names), rows=len(names))
    for row, data in enumerate(names):
        own = [_with_total(outcome) for outcome in findings.chosen(found, data)]
        accuracy, *rest = axes[4 * row : 4 * row + 4]
        _accuracies(accuracy, own)
        accuracy.set(title=f"{data}: test accuracy")
        for ax, metric in zip(rest, ("total", "nll", "penalty"), strict=True):
            findings.curves(ax, own, metric)
            ax.set(title={"total": "total loss", "nll": "negative log likelihood", "penalty": "divergence"}[metric])
            if metric == "nll":
                ax.set(yscale="log")
            elif legend := ax.get_legend():  # one legend says it for the whole row
                legend.remove()


def _accuracies(ax: Axes, found: list[Outcome]) -> None:
    """A dot for each training, a bar at the mean."""
    for index, what in enumerate(RATIOS):
        scores = [outcome.accuracy for outcome in found if outcome.what == what]
        ax.plot([index] * len(scores), scores, "o", color=f"C{index}", alpha=0.6)
        ax.hlines(sum(scores) / len(scores), index - 0.3, index + 0.3, color=f"C{index}", lw=2)
    ax.set_xticks(range(len(RATIOS)), list(RATIOS))


def _with_total(outcome: Outcome) -> Outcome:
    """The logs with nll + divergence among them; their own loss weighs the divergence by π."""
    history = []
    for epoch in outcome.history:
        history.append({**epoch, "total": epoch["nll"] + epoch["penalty"]})
    return replace(outcome, history=history)
