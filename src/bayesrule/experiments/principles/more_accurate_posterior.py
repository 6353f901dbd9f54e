"""Does a better approximation of the posterior forget less? Diagonal, Kronecker, dense, and the posterior itself."""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import Any

from matplotlib.figure import Figure

from bayesrule.experiments import findings
from bayesrule.experiments.base import Claim, Result, Setting
from bayesrule.experiments.figures import panels
from bayesrule.experiments.trials import said
from bayesrule.lifelong import Past, Sequential, streams
from bayesrule.lifelong.fits import Fits
from bayesrule.lifelong.memory import joined
from bayesrule.likelihoods import Categorical
from bayesrule.methods import HMC, Laplace
from bayesrule.models import build
from bayesrule.posteriors import Posterior
from bayesrule.priors import Gaussian
from bayesrule.seeds import mixed
from bayesrule.training import fit

TASKS, BATCH, EPOCHS = 5, 32, {False: 100, True: 400}
SEEDS = {False: 5, True: 20}
NETWORK = {"name": "mlp", "inputs": 2, "outputs": 2, "hidden": [16], "activation": "tanh"}
RATE, SCALE, DRAWS = 1e-2, 2.0, 100
LAPLACE = ("diagonal", "kronecker", "dense")
EXACT = "sampled"  # the sequence without an approximation is the posterior of all data so far: HMC's
KINDS = (*LAPLACE, EXACT)
SOURCE = "Khan, Life-long learning with Bayes"


@dataclass(frozen=True)
class Question:
    """A kind of posterior, a seed of stream and network, and how many epochs a task has."""

    kind: str
    seed: int
    epochs: int


def run(setting: Setting) -> Result:
    """Every kind on a few streams."""
    seeds = findings.seeds(setting, SEEDS[setting.full])
    questions = [Question(kind, seed, EPOCHS[setting.full]) for kind in KINDS for seed in seeds]
    answers = setting.answers(ask, questions)
    found: dict[str, list[list[float]]] = {kind: [] for kind in KINDS}
    for question, answer in zip(questions, answers, strict=True):
        found[question.kind].append(answer["averages"])
    last = {kind: [row[-1] for row in rows] for kind, rows in found.items()}
    claims = tuple(_better(worse, kind, last) for worse, kind in itertools.pairwise(KINDS))
    return Result(claims, {"averages": found}, lambda figure: _draw(figure, found), (6.0, 3.6))


def ask(question: Question, data_dir: str | None = None) -> dict[str, Any]:
    """Mean accuracy over the tasks so far, after each task; of the posterior itself after the last alone."""
    chapters = list(streams.toy(TASKS, seed=question.seed))
    network = build(NETWORK, question.seed)
    if question.kind == EXACT:
        seen = joined([each.train for each in chapters])
        sampler, seed = HMC(chains=2, draws=DRAWS), mixed(question.seed, TASKS)
        posterior = fit(network, seen, sampler, Categorical(), Gaussian(SCALE), 1.0, seed=seed)
        return {"averages": [_average(posterior, chapters)]}
    past, averages = Past(), []
    for index, chapter in enumerate(chapters):
        method = Laplace("all", question.kind, tune="nothing", lr=RATE, predictive="weights")
        seed = mixed(question.seed, index)
        fits = Fits(network, Categorical(), question.epochs, BATCH, seed, len(chapter.train[1]))
        past = Sequential(method, SCALE, "mean").learn(past, chapter, fits)
        assert past.posterior is not None
        averages.append(_average(past.posterior, chapters[: index + 1]))
    return {"averages": averages}


def _average(posterior: Posterior, chapters: list[streams.Chapter]) -> float:
    right = [(posterior.predict(c.test[0]).label == c.test[1]).double().mean() for c in chapters]
    return float(sum(right) / len(right))


def _better(worse: str, better: str, last: dict[str, list[float]]) -> Claim:
    gains = findings.differences(last[better], last[worse])
    names = {EXACT: "the posterior itself (HMC on all data so far)"}
    return Claim(
        SOURCE,
        f"with a better approximation accuracy improves: {names.get(better, better)} over {worse}",
        f"average accuracy after {TASKS} tasks {said(last[better], 3)} against {said(last[worse], 3)}",
        findings.better(gains),
    )


def _draw(figure: Figure, found: dict[str, list[list[float]]]) -> None:
    (ax,) = panels(figure, 1)
    for kind, rows in found.items():
        means = [sum(column) / len(column) for column in zip(*rows, strict=True)]
        ax.plot(range(TASKS + 1 - len(means), TASKS + 1), means, "*" if kind == EXACT else "o-", label=kind)
    ax.set(xlabel="tasks learnt", ylabel="average accuracy", xticks=range(1, TASKS + 1))
    ax.legend()
