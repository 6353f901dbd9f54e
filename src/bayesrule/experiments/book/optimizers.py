"""Nine optimisers under a random search over their hyper-parameters: who gets far, and who gets there most often."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from itertools import chain
from statistics import mean, stdev
from typing import Any, TypeAlias

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from bayesrule.experiments import book, findings, trials
from bayesrule.experiments.base import Claim, Result, Setting
from bayesrule.experiments.book.landscapes import LEVEL, chance_of_gain, epochs_said, generator, learnt
from bayesrule.experiments.figures import PALETTE, panels
from bayesrule.experiments.trials import Outcome, Training
from bayesrule.methods import BBB
from bayesrule.optim import Recipe

OPTIONS: dict[str, tuple[str, ...]] = {
    "adabound": ("final_lr",),
    "sgd": ("momentum",),
    "yellowfin": ("momentum",),
    "adam": (),
    "radam": (),
    "amsgrad": (),
    "amsbound": ("final_lr",),
    "rmsprop": (),
    "adagrad": (),
}
"""What is drawn beside the learning rate."""
BASES = {"lr": (1e-3, 1e-2, 1e-1), "final_lr": (1e-2, 1e-1), "momentum": (0.0, 0.1, 0.5, 0.9, 0.95)}
FACTORS = (0.1, 1.0)  # YellowFin's own learning rate is one it finds; this one is a factor on it
LIMITS = {"momentum": 1.0}  # what lies at or above is not drawn
AHEAD = ("adabound", "sgd", "yellowfin")
BEHIND = ("adam", "radam")
EPOCHS = {"digits": 12, "mnist": 1, "cifar10": 3}
DRAWS = 9
SOURCE = "Book 2020, figure 5.3"

Drawn: TypeAlias = Mapping[str, Sequence[dict[str, float]]]  # hyper-parameters by optimiser
Summaries: TypeAlias = dict[str, dict[str, float | None]]  # what `summary` says, by optimiser


def run(setting: Setting) -> Result:
    """The same draws for each optimiser, on each data set."""
    drawn = {name: draws(name, DRAWS, generator(setting, number)) for number, name in enumerate(OPTIONS)}
    found: dict[str, list[Outcome]] = {}
    claims: list[Claim] = []
    plain = {}
    for data in book.data(setting):
        runs = trials.run(_trainings(drawn, data, setting), setting)
        found[data] = runs
        claims += _claims(runs, data)
        plain[data] = {"optimizers": _table(runs), "runs": _runs(runs, drawn)}
    epochs = ", ".join(f"{epochs_said(EPOCHS[data])} on {data}" for data in found)
    note = (
        f"{DRAWS} draws for each optimiser, {epochs}; mean and deviation are of the runs that learnt something; "
        f"YellowFin's learning rate is a factor, drawn around {FACTORS}"
    )
    return Result(tuple(claims), plain, partial(_draw, found=found), (9.0, 3.6 * len(found)), (note,))


def _trainings(drawn: Drawn, data: str, setting: Setting) -> list[Training]:
    trainings = []
    for name, settings in drawn.items():
        for seed, options in zip(findings.seeds(setting, DRAWS), settings, strict=True):
            trainings.append(Training(name, data, _method(name, **options), EPOCHS[data], seed))
    return trainings


def _table(found: Sequence[Outcome]) -> Summaries:
    return {name: summary(_of(found, name)) for name in OPTIONS}


def _of(found: Sequence[Outcome], optimizer: str) -> list[Outcome]:
    return [outcome for outcome in found if outcome.what == optimizer]


def _runs(found: Sequence[Outcome], drawn: Drawn) -> list[dict[str, Any]]:
    settings = chain(*drawn.values())  # in the order of the trainings
    return [_score(outcome) | options for outcome, options in zip(found, settings, strict=True)]


def _claims(found: Sequence[Outcome], data: str) -> tuple[Claim, ...]:
    table = _table(found)
    return _mean_claim(found, data), _best_claim(table, data), _spread_claim(table, data), _success_claim(table, data)


def draws(optimizer: str, count: int, random: np.random.Generator) -> list[dict[str, float]]:
    """Hyper-parameters from N(v, v/2): v each base value of the learning rate in turn, of others any."""
    bases = FACTORS if optimizer == "yellowfin" else BASES["lr"]
    # All rates before the other options: with one seed, all optimisers of the same base rates get the same ones.
    settings = [{"lr": near(bases[index % len(bases)], "lr", random)} for index in range(count)]
    for drawn in settings:
        for name in OPTIONS[optimizer]:
            drawn[name] = near(float(random.choice(BASES[name])), name, random)
    return settings


def near(value: float, name: str, random: np.random.Generator) -> float:
    """A draw from N(v, v/2), again until it is valid: positive, or 0 if v is, and below the limit of the name."""
    while True:
        drawn = float(random.normal(value, value / 2))
        if (drawn > 0 or drawn == value) and drawn < LIMITS.get(name, np.inf):
            return drawn


def _method(optimizer: str, lr: float, **options: float) -> BBB:
    return BBB(**{**book.METHOD, "optimizer": Recipe(optimizer, options), "lr": lr})


def summary(found: Sequence[Outcome]) -> dict[str, float | None]:
    """Mean, deviation and best of the accuracies of the runs that learnt something, and their share."""
    good = [outcome.accuracy for outcome in found if learnt(outcome)]
    summed: dict[str, float | None] = {"mean": None, "std": None, "best": None, "success": len(good) / len(found)}
    if good:
        summed |= {"mean": mean(good), "best": max(good)}
    if len(good) > 1:
        summed["std"] = stdev(good)
    return summed


def _score(outcome: Outcome) -> dict[str, Any]:
    plain = findings.plain(outcome)
    return {key: plain[key] for key in ("what", "seed", "accuracy", "nll", "loss", "divergence", "failed")}


def _mean_claim(found: Sequence[Outcome], data: str) -> Claim:
    accuracies: dict[str, list[float]] = {"ahead": [], "behind": []}
    means, said = dict.fromkeys((*AHEAD, *BEHIND), 0.0), []
    for name in means:
        good = [outcome.accuracy for outcome in _of(found, name) if learnt(outcome)]
        accuracies["ahead" if name in AHEAD else "behind"] += good
        if good:
            means[name] = mean(good)
            said.append(f"{name} {trials.said(good)}")
    p = 1.0
    if accuracies["ahead"] and accuracies["behind"]:
        p = chance_of_gain(accuracies["ahead"], accuracies["behind"])
    return Claim(
        SOURCE,
        f"AdaBound, SGD and YellowFin are each ahead of Adam and RAdam in mean accuracy on {data}",
        f"{', '.join(said)}; all of the three against all of the two: p = {p:.2g}",
        _all_above(means) and p < LEVEL,
    )


def _best_claim(table: Summaries, data: str) -> Claim:
    best = {name: table[name]["best"] or 0.0 for name in (*AHEAD, *BEHIND)}
    return Claim(
        "Book 2020, figure A.2",
        f"the best runs of AdaBound, SGD and YellowFin are ahead of those of Adam and RAdam on {data}",
        ", ".join(f"{name} {value:.4f}" for name, value in best.items()),
        _all_above(best),
    )


def _all_above(values: dict[str, float]) -> bool:
    return min(values[name] for name in AHEAD) > max(values[name] for name in BEHIND)


def _spread_claim(table: Summaries, data: str) -> Claim:
    known: dict[str, float] = {}
    for name in (*AHEAD, *BEHIND):
        deviation = table[name]["std"]
        if deviation is not None:
            known[name] = deviation
    return Claim(
        SOURCE,
        f"of these five AdaBound's accuracies have the smallest deviation on {data}",
        ", ".join(f"{name} {value:.4f}" for name, value in known.items()),
        bool(known) and min(known, key=known.__getitem__) == "adabound",
    )


def _success_claim(table: Summaries, data: str) -> Claim:
    share = {name: table[name]["success"] or 0.0 for name in (*AHEAD, *BEHIND)}
    return Claim(
        "Book 2020, chapter 6",
        f"AdaBound bears wrong hyper-parameters best: none of these five succeeds more often on {data}",
        ", ".join(f"{name} {value:.0%}" for name, value in share.items()),
        share["adabound"] == max(share.values()),
    )


def _draw(figure: Figure, found: Mapping[str, Sequence[Outcome]]) -> None:
    for axes, (data, runs) in zip(panels(figure, len(found), rows=len(found)), found.items(), strict=True):
        _panel(axes, data, runs)


def _panel(axes: Axes, data: str, found: Sequence[Outcome]) -> None:
    for index, name in enumerate(OPTIONS):
        _column(axes, index, _of(found, name))
    axes.set_xticks(range(len(OPTIONS)), list(OPTIONS))
    axes.set(ylabel="test accuracy", title=f"{data}: a dot for each draw, and the share that learnt something")
    axes.set_ylim(0, 1.1 * max(outcome.accuracy for outcome in found))
    handles = dict(zip(*reversed(axes.get_legend_handles_labels()), strict=True))
    axes.legend(handles.values(), handles.keys(), loc="upper center", bbox_to_anchor=(0.5, -0.1), ncols=4)


def _column(axes: Axes, index: int, found: Sequence[Outcome]) -> None:
    """One optimiser's runs, spread a little so that they can be told apart."""
    x = index + np.linspace(-0.25, 0.05, len(found))
    accuracy = np.array([outcome.accuracy for outcome in found])
    good = np.array([learnt(outcome) for outcome in found])
    axes.plot(x[good], accuracy[good], "o", color=PALETTE[0], ms=4, alpha=0.7, label="learnt something")
    axes.plot(x[~good], accuracy[~good], "x", color="0.6", ms=4, alpha=0.7, label="did not")
    table = summary(found)
    if table["mean"] is not None and table["best"] is not None:
        style: dict[str, Any] = {"color": PALETTE[1], "ms": 5, "capsize": 3, "label": "mean ± deviation"}
        axes.errorbar(index + 0.22, table["mean"], table["std"] or 0.0, fmt="s", **style)
        axes.plot(index + 0.22, table["best"], "*", color=PALETTE[2], ms=8, label="best")
    axes.text(index, 1.0, f"{table['success']:.0%}", transform=axes.get_xaxis_transform(), ha="center", va="top")
