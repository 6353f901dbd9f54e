"""Labels to an accuracy: BatchBALD, BALD and EPIG against random rows, ten labels at a time."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch
from matplotlib.figure import Figure
from torch import Tensor

from bayesrule import active
from bayesrule.active import Acquisition, Pool, Screened, pools
from bayesrule.active import Result as Run
from bayesrule.active.acquisition import chosen
from bayesrule.active.pools import Examples
from bayesrule.data import Split, load_set
from bayesrule.experiments import findings
from bayesrule.experiments.active import curves
from bayesrule.experiments.active.curves import SOURCES, Runs
from bayesrule.experiments.base import Result, Setting
from bayesrule.experiments.figures import panels
from bayesrule.methods import MCDropout
from bayesrule.models import Spec, build
from bayesrule.seeds import mixed

ACQUIRE = ("random", "bald", "epig", "batchbald")
SEEDS = 3
START, BATCH = 20, 10
TEN = ", ten labels at a time"
COPY = 1  # what a seed is for, beside the network


@dataclass(frozen=True)
class Scale:
    """How long a run is: see `br.active.Settings`.

    ``network``: MC dropout is of it. ``budgets``: of `ACQUIRE`. ``candidates``: rows of a round; None: all of the pool.
    ``keep``: how many of them all draws look at, after a few have screened the others; None: all.
    ``pictures``: that make the pool, drawn by the seed, each of them ``copies`` times, with normal noise of the
    deviation ``noise`` of its own; None: all. ``test``: examples to be judged on, drawn by the seed; None: all.
    """

    data: str
    network: Spec
    budgets: tuple[int, ...]
    epochs: int
    lr: float
    batch_size: int
    samples: int
    test_samples: int
    candidates: int | None = None
    keep: int | None = None
    pictures: int | None = None
    copies: int = 1
    noise: float = 0.0
    test: int | None = None

    @property
    def cut(self) -> str:
        """What is less than in the papers, in words."""
        rows = "all" if self.candidates is None else f"{self.candidates}"
        screened = "" if self.keep is None else f" for the {self.keep} most promising of them"
        test = "all" if self.test is None else f"{self.test}"
        return (
            f"Each round chooses among {rows} rows of the pool, drawn anew, by {self.samples} draws{screened}; "
            f"{test} test examples, predicted by {self.test_samples} draws; {self.epochs} epochs a round, from fresh "
            "weights."
        )


# Rate, dropout and epochs of the quick form are the best of three on seed 1000, which is not among those shown.
QUICK = Scale(
    "digits",
    {"name": "mlp", "inputs": 64, "outputs": 10, "hidden": [128, 128], "dropout": 0.5},
    budgets=(200, 150, 100, 100),
    epochs=60,
    lr=1e-2,
    batch_size=16,
    samples=50,
    test_samples=16,
    candidates=500,
)
# Kirsch's network, start and batches. The rate, the epochs and the size of mini-batches are the best of seven on random
# rows of seed 1000, judged on rows of the training set. Passes of 100 networks over all rows would take days of a core.
# Draws tell at most their logarithm, which ten labels of 0.4 nats each exceed with 25 of them: 64 for few rows. Random
# rows go on to twice the labels of BatchBALD, so that "twice as many" can be seen.
FULL = Scale(
    "mnist",
    {"name": "dropout-cnn", "channels": 1, "side": 28, "outputs": 10},
    budgets=(480, 340, 240, 240),
    epochs=100,
    lr=3e-3,
    batch_size=32,
    samples=64,
    test_samples=16,
    candidates=1500,
    keep=250,
    test=2000,
)


@dataclass(frozen=True)
class Question:
    """An acquisition, a seed, and how long its run is."""

    data: str
    acquire: str
    budget: int
    seed: int
    scale: Scale


def run(setting: Setting) -> Result:
    """Learning curves of each acquisition."""
    scale = FULL if setting.full else QUICK
    runs = runs_of(setting, scale)
    claims = [curves.ahead(runs, name, "random", source, TEN) for name, source in SOURCES.items()]
    claims.append(curves.ahead(runs, "batchbald", "bald", SOURCES["batchbald"], TEN))
    if setting.full:
        claims.append(curves.within(runs, ("batchbald", "epig"), 240, SOURCES["batchbald"]))
        claims.append(curves.within(runs, ("bald",), 340, SOURCES["bald"]))
    claims.append(curves.twice(runs))
    return Result(tuple(claims), curves.data_of(runs), lambda figure: draw(figure, runs), (7.0, 3.6), (scale.cut,))


def runs_of(setting: Setting, scale: Scale) -> Runs:
    """All runs, seed after seed, so that what is there after an interruption can be compared."""
    questions = []
    for seed in findings.seeds(setting, SEEDS):
        for acquire, budget in zip(ACQUIRE, scale.budgets, strict=True):
            questions.append(Question(scale.data, acquire, budget, seed, scale))
    runs: dict[str, list[Run]] = {name: [] for name in ACQUIRE}
    for question, answer in zip(questions, setting.answers(ask, questions, _key, told), strict=True):
        runs[question.acquire].append(Run.from_json(answer))
    return runs


def ask(question: Question, data_dir: str | None = None) -> dict[str, Any]:
    """One run, as plain data."""
    scale = question.scale
    network = build(scale.network, mixed(question.seed))
    network.to(memory_format=torch.channels_last)  # type: ignore[call-overload]  # 1.5 times as fast
    found = active.run(
        pool_of(load_set(question.data, data_dir), scale, question.seed),
        acquisition(question.acquire, scale.keep),
        network,
        MCDropout(lr=scale.lr),
        start=START,
        balanced=True,
        batch=BATCH,
        budget=question.budget,
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


def acquisition(name: str, keep: int | None) -> Acquisition:
    """The acquisition of this name; where rows are screened, after that."""
    found = chosen(name)
    return found if keep is None or name == "random" else Screened(found, keep=keep)


def pool_of(split: Split, scale: Scale, seed: int) -> Pool:
    """The pool of a seed: its pictures, each so many times, with noise."""
    generator = torch.Generator().manual_seed(mixed(seed, COPY))
    whole = pools.of(split)
    x, y = _some(split.train, scale.pictures, generator)
    if scale.copies > 1:
        x, y = torch.cat([x] * scale.copies), torch.cat([y] * scale.copies)
        x = x + scale.noise * torch.randn(x.shape, generator=generator)
    return replace(whole, x=x, labels=y, test=_some(split.test, scale.test, generator))


def _some(examples: Examples, count: int | None, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """So many of them, drawn at random; None: all."""
    x, y = examples
    assert isinstance(x, Tensor)
    if count is None:
        return x, y
    rows = torch.randperm(len(y), generator=generator)[:count]
    return x[rows], y[rows]


def _key(question: Question) -> dict[str, Any]:
    return {**vars(question), "scale": vars(question.scale)}


def told(question: Any, answer: dict[str, Any]) -> str:
    """A run in words."""
    return f"{question.acquire}, seed {question.seed}: accuracy {answer['summary']['accuracy']:.4f}"


def draw(figure: Figure, runs: Runs) -> None:
    """The curves."""
    (axes,) = panels(figure, 1)
    curves.draw(axes, runs)
