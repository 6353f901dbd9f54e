"""Labels to an accuracy: BatchBALD, BALD and EPIG against random rows, ten labels at a time."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from bayesrule import active
from bayesrule.active import Result as Run
from bayesrule.data import load_set
from bayesrule.experiments import findings
from bayesrule.experiments.base import Claim, Result, Setting
from bayesrule.experiments.figures import panels
from bayesrule.experiments.trials import said
from bayesrule.methods import MCDropout
from bayesrule.models import Spec, build
from bayesrule.report.runs import bands
from bayesrule.seeds import mixed

ACQUIRE = ("random", "bald", "epig", "batchbald")
SEEDS = 3
NAMES = {"random": "random", "bald": "BALD", "epig": "EPIG", "batchbald": "BatchBALD"}
REACH = (0.9, 0.95)


@dataclass(frozen=True)
class Scale:
    """How long a run is: see `br.active.Settings`. ``network``: MC dropout is of it."""

    data: str
    network: Spec
    budget: int
    epochs: int
    lr: float
    batch_size: int
    samples: int
    candidates: int
    test_samples: int = 16


# Rate, dropout and epochs of the quick form are the best of three on seed 1000, which is not among those shown.
QUICK = Scale(
    "digits",
    {"name": "mlp", "inputs": 64, "outputs": 10, "hidden": [128, 128], "dropout": 0.5},
    budget=100,
    epochs=60,
    lr=1e-2,
    batch_size=16,
    samples=50,
    candidates=500,
)
# Kirsch's network, start and batches; rate and epochs are usual ones, not chosen on anything. Candidates are drawn anew
# in each round: passes of 100 networks over all rows would take most of the time.
FULL = Scale(
    "mnist",
    {"name": "dropout-cnn", "channels": 1, "side": 28, "outputs": 10},
    budget=300,
    epochs=60,
    lr=1e-3,
    batch_size=16,
    samples=100,
    candidates=2000,
)


@dataclass(frozen=True)
class Question:
    """An acquisition and a seed, on a data set."""

    data: str
    acquire: str
    seed: int
    full: bool


def run(setting: Setting) -> Result:
    """Learning curves of each acquisition."""
    scale = FULL if setting.full else QUICK
    seeds = findings.seeds(setting, SEEDS)
    questions = [Question(scale.data, name, seed, setting.full) for name in ACQUIRE for seed in seeds]
    runs: dict[str, list[Run]] = {name: [] for name in ACQUIRE}
    for question, answer in zip(questions, setting.answers(ask, questions, say=_told), strict=True):
        runs[question.acquire].append(Run.from_json(answer))
    areas = {name: [one.summary()["area"] for one in found] for name, found in runs.items()}
    claims = tuple(_ahead(name, "random", areas, source) for name, source in SOURCES.items())
    claims += (_ahead("batchbald", "bald", areas, SOURCES["batchbald"]), _fewer(runs))
    data: dict[str, Any] = {"labels": runs["random"][0].labels, "areas": areas}
    data["accuracy"] = {name: [one.accuracy for one in found] for name, found in runs.items()}
    data["labels_to"] = {
        name: {f"{reach:.0%}": [one.labels_to(reach) for one in found] for reach in REACH}
        for name, found in runs.items()
    }
    return Result(claims, data, lambda figure: _draw(figure, runs), (7.0, 3.6))


SOURCES = {
    "bald": "Gal et al. 2017",
    "epig": "Bickford Smith et al. 2023",
    "batchbald": "Kirsch et al. 2019",
}


def ask(question: Question, data_dir: str | None = None) -> dict[str, Any]:
    """One run, as plain data."""
    scale = FULL if question.full else QUICK
    found = active.run(
        load_set(question.data, data_dir),
        question.acquire,
        build(scale.network, mixed(question.seed)),
        MCDropout(lr=scale.lr),
        start=20,
        balanced=True,
        batch=10,
        budget=scale.budget,
        epochs=scale.epochs,
        batch_size=scale.batch_size,
        prior=1.0,
        val=0,
        samples=scale.samples,
        candidates=scale.candidates,
        test_samples=scale.test_samples,
        seed=question.seed,
    )
    return found.to_json()


def _told(question: Question, answer: dict[str, Any]) -> str:
    return f"{question.acquire}, seed {question.seed}: accuracy {answer['summary']['accuracy']:.4f}"


def _ahead(name: str, other: str, areas: dict[str, list[float]], source: str) -> Claim:
    gains = findings.differences(areas[name], areas[other])
    return Claim(
        source,
        f"{NAMES[name]} is ahead of {NAMES[other]}, ten labels at a time",
        f"mean accuracy over the curve {said(areas[name], 3)} against {said(areas[other], 3)}",
        findings.better(gains),
    )


def _fewer(runs: dict[str, list[Run]]) -> Claim:
    """At least half of random's labels, where both get there."""
    reached = {}
    for name in ("batchbald", "random"):
        labels = [one.labels_to(REACH[-1]) for one in runs[name]]
        reached[name] = float(np.median([np.inf if each is None else each for each in labels]))
    most = runs["random"][0].labels[-1]
    texts = {name: f"{value:g}" if value < np.inf else f"> {most}" for name, value in reached.items()}
    held: bool | None = None
    if reached["batchbald"] < np.inf:
        held = 2 * reached["batchbald"] <= reached["random"]
        if reached["random"] == np.inf and 2 * reached["batchbald"] > most:
            held = None  # random might get there just after the end
    return Claim(
        SOURCES["batchbald"],
        f"random rows need at least twice the labels of BatchBALD to {REACH[-1]:.0%}",
        f"median over seeds {texts['random']} against {texts['batchbald']}",
        held,
    )


def _draw(figure: Figure, runs: dict[str, list[Run]]) -> None:
    (axes,) = panels(figure, 1)
    values = {NAMES[name]: 100 * np.array([one.accuracy for one in found]) for name, found in runs.items()}
    bands(axes, runs["random"][0].labels, values)
    for reach in REACH:
        axes.axhline(100 * reach, color="0.6", lw=0.7, ls=":")
    axes.set(xlabel="labels", ylabel="test accuracy, %")
    axes.legend()
