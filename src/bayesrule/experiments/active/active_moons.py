"""Which points are chosen while training: the posterior of a natural-gradient method asks for the next ones."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from torch import Tensor

from bayesrule import active, jobs
from bayesrule.active import Result as Run
from bayesrule.data import moons
from bayesrule.experiments import findings
from bayesrule.experiments.base import Claim, Result, Setting
from bayesrule.experiments.figures import panels
from bayesrule.experiments.trials import said
from bayesrule.models import build
from bayesrule.seeds import mixed

SOURCE = "Khan, Deep learning with Bayesian principles"
ACQUIRE = ("random", "relevance", "bald")
METHOD = "ivon"
SEEDS = {False: 3, True: 10}
EPOCHS = {False: 60, True: 300}
START, BATCH, BUDGET, POOL, TEST, GRID = 4, 4, 24, 300, 500, 60
NETWORK = {"name": "mlp", "inputs": 2, "outputs": 2, "hidden": [20, 20]}


@dataclass(frozen=True)
class Question:
    """An acquisition, a seed of pool and network, and how long a round is learnt."""

    acquire: str
    seed: int
    epochs: int


def run(setting: Setting) -> Result:
    """Curves of a few pools, and pictures of the first."""
    seeds = findings.seeds(setting, SEEDS[setting.full])
    questions = [Question(name, seed, EPOCHS[setting.full]) for name in ACQUIRE for seed in seeds]
    runs: dict[str, list[Run]] = {name: [] for name in ACQUIRE}
    for question, answer in zip(questions, setting.answers(ask, questions), strict=True):
        runs[question.acquire].append(Run.from_json(answer))
    areas = {name: [one.summary()["area"] for one in found] for name, found in runs.items()}
    apart = {}
    for name, found in runs.items():
        apart[name] = [_distance(one, seed) for one, seed in zip(found, seeds, strict=True)]
    claims = []
    for name in ACQUIRE[1:]:
        gains = findings.differences(areas[name], areas["random"])
        claims.append(
            Claim(
                SOURCE,
                f"examples that are chosen while training, by {name}, are worth more than random ones",
                f"mean accuracy over the curve {said(areas[name], 3)} against {said(areas['random'], 3)}",
                findings.better(gains),
            )
        )
    gains = findings.differences(apart["random"], apart["relevance"])
    claims.append(
        Claim(
            SOURCE,
            "the chosen points lie at the border between the classes",
            f"mean distance to the other class {said(apart['relevance'], 3)} against {said(apart['random'], 3)}",
            findings.better(gains),
        )
    )
    data = {"areas": areas, "distance": apart, "labels": runs["random"][0].labels}
    first = seeds[0]
    return Result(tuple(claims), data, lambda figure: _draw(figure, runs, first, EPOCHS[setting.full]), (9.6, 3.4))


def pool(seed: int) -> tuple[tuple[Tensor, Tensor], tuple[Tensor, Tensor]]:
    """A pool, and examples to be judged on."""
    x, y = moons(POOL + TEST, seed=seed)
    return (x[:POOL], y[:POOL]), (x[POOL:], y[POOL:])


def ask(question: Question, data_dir: str | None = None) -> dict[str, Any]:
    """One run, as plain data."""
    return session(question).finish().to_json()


def session(question: Question) -> active.Session:
    """A run to its end, with the posterior that it ended with."""
    (x, y), test = pool(question.seed)
    found = active.Session(
        (x, y),
        question.acquire,
        build(NETWORK, mixed(question.seed)),
        METHOD,
        test=test,
        start=START,
        balanced=True,
        batch=BATCH,
        budget=BUDGET,
        epochs=question.epochs,
        batch_size=BATCH,
        warm=True,
        val=0,
        samples=50,
        seed=question.seed,
    )
    while len(rows := found.ask()):
        found.tell(y[rows])
    found.learn()
    return found


def _distance(run: Run, seed: int) -> float:
    """How far the chosen points are from the other class, on average."""
    (x, y), _ = pool(seed)
    rows = torch.tensor([row for part in run.rows[1:] for row in part])
    distances = torch.cdist(x[rows], x)
    distances[y[rows, None] == y[None]] = torch.inf
    return float(distances.amin(1).mean())


@jobs.threads(1)
def _draw(figure: Figure, runs: dict[str, list[Run]], seed: int, epochs: int) -> None:
    for axes, name in zip(panels(figure, len(ACQUIRE)), ACQUIRE, strict=True):
        _map(axes, session(Question(name, seed, epochs)))
        axes.set_title(f"{name}: {100 * runs[name][0].accuracy[-1]:.1f} %")


def _map(axes: Axes, found: active.Session) -> None:
    """What is predicted everywhere, the pool, and the chosen points in their order."""
    (x, y), _ = pool(found.seed)
    low, high = x.amin(0) - 0.3, x.amax(0) + 0.3
    across, up = (torch.linspace(float(low[k]), float(high[k]), GRID) for k in range(2))
    columns, lines = torch.meshgrid(across, up, indexing="xy")
    points = torch.stack([columns.flatten(), lines.flatten()], 1)
    probs = found.learn().predict(points).probs[:, 1].reshape(GRID, GRID)
    axes.contourf(columns, lines, probs, levels=20, cmap="coolwarm", vmin=0, vmax=1, alpha=0.6)
    axes.scatter(x[:, 0], x[:, 1], c=y, s=3, cmap="coolwarm")
    for index, rows in enumerate(found.result.rows):
        at = x[torch.tensor(rows)]
        axes.scatter(at[:, 0], at[:, 1], s=26, c="white" if index else "black", edgecolors="black", linewidths=0.8)
        for point in at:
            axes.annotate(str(index), point.tolist(), fontsize=4.5, ha="center", va="center", color="black")
    axes.set_xticks([])
    axes.set_yticks([])
