"""Networks that have learnt digits see Gaussian noise: how sure is a frequentist one, how sure a Bayesian one?"""

from __future__ import annotations

from itertools import chain
from typing import Any

import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from torch import Tensor

from bayesrule.data import Split
from bayesrule.evaluate import score
from bayesrule.experiments import book, findings, trials
from bayesrule.experiments.base import Claim, Result, Setting
from bayesrule.experiments.figures import panels
from bayesrule.experiments.trials import Outcome, Training
from bayesrule.methods import BBB, IVON, MAP, MLE, SWAG, VOGN, Ensemble, Laplace, MCDropout, Method
from bayesrule.posteriors import Posterior
from bayesrule.predictions import Classes

PLAIN, MODE, NARROW, BROAD = "frequentist", "MAP", "Bayesian, narrow start", "Bayesian, wide start"
METHODS: dict[str, Method] = {
    PLAIN: MLE(lr=book.METHOD["lr"]),
    MODE: MAP(lr=book.METHOD["lr"]),
    NARROW: BBB(**book.METHOD),
    BROAD: BBB(**{**book.METHOD, "initial_std": book.WIDE}),
}
DEFAULT = "map"
OTHERS: dict[str, Method] = {
    DEFAULT: MAP(),
    "ensemble": Ensemble(),
    "mc-dropout": MCDropout(),
    "swag": SWAG(),
    "laplace": Laplace(),
    "ivon": IVON(),
    "vogn": VOGN(),
}
"""What else the library has, each as it is by default, under the same prior: beside one network at the mode."""
LENGTHS = {False: ("digits", 40), True: ("mnist", 8)}  # data and epochs
ACCURATE = {"digits": 0.93, "mnist": 0.98}  # what counts as trained
NOISES = 500
EXAMPLES = 20  # noise inputs of which all probabilities are kept
SAMPLES = 32
SOURCE = "Book 2020, figure 1.1"


def run(setting: Setting) -> Result:
    """Trainings by each method, and what the networks say about N(0, 1) on the standardised scale of the inputs."""
    data, epochs = LENGTHS[setting.full]
    trainings = []
    for seed in findings.seeds(setting):
        for what, method in {**METHODS, **OTHERS}.items():
            trainings.append(Training(what, data, method, epochs, seed, look=look))
    found = findings.chosen(trials.run(trainings, setting), data, finished=True)
    claims = (
        _trained(found, data),
        _less_sure(found, NARROW),
        _less_sure(found, BROAD),
        _unknown(found),
        *(_less_sure_than_one(found, what) for what in OTHERS if what != DEFAULT),
    )
    plain = {"data": data, "noises": NOISES, "trials": findings.all_plain(found)}
    return Result(claims, plain, lambda figure: _draw(figure, found), (13.0, 3.4), (_prior_or_spread(found),))


def look(posterior: Posterior, split: Split) -> dict[str, Any]:
    """Means over noise of confidence, entropy and its epistemic part, and the AUROC of entropy against test data.

    ``confidences`` are those of all noise inputs, ``probs`` the class probabilities at the first few.
    """
    x, y = (part[: trials.TESTED] for part in split.test)
    noise = posterior.predict(_noise(posterior, x), samples=SAMPLES)
    test = posterior.predict(x, samples=SAMPLES)
    assert isinstance(noise, Classes)
    assert isinstance(test, Classes)
    return {
        "confidence": float(noise.confidence.mean()),
        "entropy": float(noise.entropy.mean()),
        "epistemic": float(noise.epistemic.mean()),
        "test_confidence": float(test.confidence.mean()),
        "test_epistemic": float(test.epistemic.mean()),
        "auroc": float(score(test, y, noise, bootstrap=0)["auroc_ood"]),
        "confidences": [round(c, 4) for c in noise.confidence.tolist()],
        "probs": [[round(p, 4) for p in row] for row in noise.probs[:EXAMPLES].tolist()],
    }


def _noise(posterior: Posterior, like: Tensor) -> Tensor:
    """Inputs that the posterior sees as N(0, 1); the same ones for all networks of a seed."""
    generator = torch.Generator().manual_seed(posterior.info["seed"])
    noise = torch.randn(NOISES, *like.shape[1:], generator=generator)
    scaling = posterior.context.scaling.inputs
    if scaling is None:
        return noise
    return scaling.inverse(noise)


def _seen(found: list[Outcome], what: str, metric: str) -> list[Any]:
    return [outcome.seen[metric] for outcome in found if outcome.what == what]


def _trained(found: list[Outcome], data: str) -> Claim:
    scores = findings.by_kind(found, data, [*METHODS, *OTHERS], "accuracy")
    return Claim(
        SOURCE,
        f"all networks are more than {ACCURATE[data]:.0%} accurate on {data}",
        findings.listed(scores),
        all(trials.average(values)[0] > ACCURATE[data] for values in scores.values()),
    )


def _less_sure(found: list[Outcome], what: str) -> Claim:
    plain, bayes = _seen(found, PLAIN, "confidence"), _seen(found, what, "confidence")
    plain_auroc = trials.said(_seen(found, PLAIN, "auroc"), 3)
    bayes_auroc = trials.said(_seen(found, what, "auroc"), 3)
    return Claim(
        SOURCE,
        f"on noise a Bayesian network ({what.partition(', ')[2]}) is less sure than a frequentist one",
        f"mean probability of the likeliest class {trials.said(bayes)} against {trials.said(plain)}; "
        f"AUROC of entropy, noise against test data, {bayes_auroc} against {plain_auroc}",
        findings.better(findings.differences(plain, bayes)),
    )


def _less_sure_than_one(found: list[Outcome], what: str) -> Claim:
    mode, bayes = _seen(found, DEFAULT, "confidence"), _seen(found, what, "confidence")
    return Claim(
        "the same figure, of other methods",
        f"on noise {what} is less sure than one network at the mode under the same prior",
        f"mean probability of the likeliest class {trials.said(bayes)} against {trials.said(mode)}",
        findings.better(findings.differences(mode, bayes)),
    )


def _unknown(found: list[Outcome]) -> Claim:
    noise, test = _seen(found, BROAD, "epistemic"), _seen(found, BROAD, "test_epistemic")
    plain = max(_seen(found, PLAIN, "epistemic"))
    return Claim(
        "Book 2020, chapter 1",
        "a Bayesian network tells what it does not know: its epistemic uncertainty is higher on noise than on test "
        "data; a frequentist one has none",
        f"{trials.said(noise)} nats on noise, {trials.said(test)} on test data ({BROAD}); {plain:.4f} ({PLAIN})",
        findings.better(findings.differences(noise, test)) and plain < 1e-6,
    )


def _prior_or_spread(found: list[Outcome]) -> str:
    sure = findings.listed({what: _seen(found, what, "confidence") for what in METHODS}, 3)
    narrow, broad = trials.said(_seen(found, NARROW, "epistemic")), trials.said(_seen(found, BROAD, "epistemic"))
    return (
        "How much of it is the prior shows in one network at the mode under the same prior (MAP). Confidence on noise: "
        f"{sure}. The epistemic part of the entropy, which only a spread of weights gives, is {narrow} nats from "
        f"the narrow start and {broad} from the wide one."
    )


def _draw(figure: Figure, found: list[Outcome]) -> None:
    histogram, means, example = panels(figure, 3)
    sure = {what: trials.average(_seen(found, what, "confidence"))[0] for what in (*METHODS, *OTHERS)}
    means.barh(list(sure), list(sure.values()), color=[f"C{row}" for row in range(4)] + ["C7"] * len(OTHERS))
    means.set(xlabel="mean confidence on noise", xlim=(0, 1))
    means.invert_yaxis()
    for what in METHODS:
        values = list(chain.from_iterable(_seen(found, what, "confidences")))
        histogram.hist(values, bins=25, range=(0, 1), density=True, histtype="step", lw=1.5, label=what)
    histogram.set(xlabel="probability of the likeliest class", ylabel="density", title="confidence on Gaussian noise")
    histogram.set(ylim=(0, 1.3 * histogram.get_ylim()[1]))  # room for the legend
    histogram.legend(ncols=2, loc="upper center")
    _bars(example, found)


def _bars(ax: Axes, found: list[Outcome]) -> None:
    """Class probabilities at the one of the first few noise inputs that a frequentist network is surest of."""
    probs = {what: _seen(found, what, "probs")[0] for what in (PLAIN, NARROW, BROAD)}
    surest = max(range(EXAMPLES), key=lambda index: max(probs[PLAIN][index]))
    for shift, (what, rows) in enumerate(probs.items()):
        row, colour = rows[surest], f"C{list(METHODS).index(what)}"
        ax.bar(np.arange(len(row)) + 0.27 * (shift - 1), row, width=0.27, color=colour, label=what)
    ax.set(xlabel="class", ylabel="probability", ylim=(0, 1), title="noise that the frequentist network is sure of")
    ax.set_xticks(range(len(row)))
    ax.legend()
