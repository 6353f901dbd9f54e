"""Temperature τ·p/w over six orders of magnitude: one hidden layer of 100 on MNIST, in and out of distribution."""

from __future__ import annotations

import math
from typing import Any

from bayesrule.data import Split, load_set
from bayesrule.evaluate import evaluate
from bayesrule.experiments import findings, trials
from bayesrule.experiments.base import Claim, Result, Setting
from bayesrule.experiments.mean_field.temperature_curve import (
    DEVIATION,
    Authors,
    Fit,
    best,
    draw,
    falls,
    plain_authors,
    scores,
    told,
)
from bayesrule.methods import BBB
from bayesrule.models import build
from bayesrule.posteriors import Posterior

SOURCE = "Huix et al. 2022, figure on MNIST"
AUTHORS: Authors = {
    0.001: (0.977, 0.019, 0.078, 0.983),
    0.005: (0.978, 0.021, 0.072, 0.977),
    0.01: (0.980, 0.021, 0.070, 0.972),
    0.05: (0.973, 0.038, 0.101, 0.948),
    0.1: (0.965, 0.051, 0.140, 0.925),
    0.5: (0.921, 0.112, 0.324, 0.821),
    1.0: (0.903, 0.166, 0.444, 0.744),
    5.0: (0.790, 0.402, 1.115, 0.388),
    10.0: (0.554, 0.368, 1.807, 0.187),
    50.0: (0.091, 0.020, 2.303, 0.104),
    100.0: (0.097, 0.033, 2.303, 0.104),
}
QUICK = (0.001, 0.01, 0.1, 1.0, 10.0, 100.0)
SLIDES = math.sqrt(0.2)
COMPARED = (0.01, 1.0, 10.0)  # where accuracies are compared
CLOSE = 0.015
NEURONS, SAMPLES = 100, 32
DRAWS = (1, 2, 4, 8, 32, 128)
EPOCHS = {False: 40, True: 8}
BATCH = {False: 32, True: 128}
RATE = 0.05  # of Adam, falling: outputs are divided by 100, and the authors' 0.001 takes their 200 epochs


def run(setting: Setting) -> Result:
    """The authors' network and prior at each τ; in full, at three of them also other seeds and the slides' prior."""
    data = "mnist" if setting.full else "digits"
    taus = tuple(AUTHORS) if setting.full else QUICK
    first, *more = findings.seeds(setting)
    shape = EPOCHS[setting.full], BATCH[setting.full]
    asked = [Fit(data, tau, DEVIATION, *shape, first) for tau in taus]
    if setting.full:
        asked += [Fit(data, tau, SLIDES, *shape, first) for tau in COMPARED]
        asked += [Fit(data, tau, DEVIATION, *shape, seed) for tau in COMPARED for seed in more]
    answers = setting.answers(train, asked)
    rows = [vars(question) | answer for question, answer in zip(asked, answers, strict=True)]
    curve, others = rows[: len(taus)], [row for row in rows if row["deviation"] == SLIDES]
    again = [row for row in rows if row["seed"] != first]
    draws = {}
    if setting.full:
        (draws,) = setting.answers(by_draws, [Fit(data, max(COMPARED), DEVIATION, *shape, first)])
    claims = claims_of(curve)
    if setting.full:
        claims = [*(_beside([*curve, *again], tau) for tau in COMPARED), *claims]
    plain = {
        "curve": curve,
        "other_seeds": again,
        "other_prior": others,
        "accuracy_by_draws": draws,
        "authors": plain_authors(AUTHORS) if setting.full else {},
    }
    notes = _notes(setting, others, draws)
    return Result(tuple(claims), plain, lambda figure: draw(figure, plain), (11.0, 5.6), notes)


def train(asked: Fit, data_dir: str | None) -> dict[str, Any]:
    """Fit and score, as plain data."""
    split = load_set(asked.data, data_dir)
    assert split.train is not None
    return scores(_fitted(asked, split), split.train, split.test, split.ood, SAMPLES)


def by_draws(asked: Fit, data_dir: str | None) -> dict[str, Any]:
    """The accuracy of predictions that average over few networks or many: the authors do not say over how many."""
    split = load_set(asked.data, data_dir)
    posterior = _fitted(asked, split)
    found = {}
    for samples in DRAWS:
        found[str(samples)] = float(evaluate(posterior, split.test, samples=samples, bootstrap=0)["accuracy"])
    return found


def _fitted(asked: Fit, split: Split) -> Posterior:
    x, y = split.train
    size = math.prod(x.shape[1:])
    network = build({"name": "mean-field", "inputs": size, "outputs": 10, "neurons": NEURONS}, asked.seed)
    return asked.of(network, (x, y), BBB(lr=RATE))


def claims_of(curve: list[dict[str, Any]]) -> list[Claim]:
    """What is claimed of the curve, beside its rows."""
    diagnosis = told(curve, "the collapse is told at τ ≥ 50, and not at τ ≤ 1", must=50)
    return [best(curve, SOURCE), _chance(curve), falls(curve, SOURCE), diagnosis]


def _beside(rows: list[dict[str, Any]], tau: float) -> Claim:
    """The mean over seeds beside the authors' one."""
    found, theirs = [row["accuracy"] for row in rows if row["tau"] == tau], AUTHORS[tau][0]
    off = trials.average(found)[0] - theirs
    return Claim(
        SOURCE,
        f"the accuracy at τ = {tau:g} is {theirs:.3f} (within 1.5 points)",
        f"accuracy {trials.said(found)} over {len(found)} seeds: {100 * off:+.1f} points",
        abs(off) <= CLOSE,
    )


def _chance(curve: list[dict[str, Any]]) -> Claim:
    high = [row for row in curve if row["tau"] >= 50]
    return Claim(
        SOURCE,
        "at τ ≥ 50 predictions are at chance level: NLL log 10 = 2.303, confidence 0.10 (within 0.02 and 0.02)",
        "; ".join(
            f"τ = {r['tau']:g}: NLL {r['expected_nll']:.3f}, confidence {r['confidence']:.3f}, "
            f"accuracy {r['accuracy']:.3f}"
            for r in high
        ),
        all(abs(row["expected_nll"] - math.log(10)) < 0.02 and row["confidence"] < 0.12 for row in high),
    )


def _notes(setting: Setting, others: list[dict[str, Any]], draws: dict[str, float]) -> tuple[str, ...]:
    if not setting.full:
        return ("On digits: 100 neurons, 7400 weights, 1438 examples. The authors' curve is of MNIST: --full.",)
    accuracies = ", ".join(f"{row['accuracy']:.3f} (τ = {row['tau']:g})" for row in others)
    few = ", ".join(f"{accuracy:.3f} ({count})" for count, accuracy in draws.items())
    return (
        f"{EPOCHS[True]} epochs at a rate of {RATE:g} that falls to zero, where the authors train 200 at 0.001; the "
        "divergence in closed form, and deviations from 0.02 on, where they sample it and start at 0.0001.",
        "NLL is the authors': E_q of the cross entropy. `nll` in the data is that of the mean prediction.",
        f"With the slides' prior, variance 1/5 instead of deviation 1/5, accuracies are {accuracies}.",
        f"The accuracy at τ = {max(COMPARED):g} by the number of networks that a prediction averages over: {few}.",
    )
