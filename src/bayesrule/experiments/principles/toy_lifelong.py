"""A border that is drawn piece by piece: what each strategy knows of it at the end."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from torch import Tensor

from bayesrule import jobs
from bayesrule.experiments import findings
from bayesrule.experiments.base import Claim, Result, Setting
from bayesrule.experiments.figures import panels
from bayesrule.experiments.trials import said
from bayesrule.lifelong import Finetune, Functions, Joint, MemoryOnly, Past, Replay, Sequential, Strategy, streams
from bayesrule.lifelong.fits import Fits
from bayesrule.likelihoods import Categorical
from bayesrule.methods import Laplace
from bayesrule.models import build
from bayesrule.posteriors import Posterior
from bayesrule.seeds import mixed

TASKS, EPOCHS, BATCH = 5, {False: 60, True: 300}, 32
SEEDS = {False: 3, True: 10}
NETWORK = {"name": "mlp", "inputs": 2, "outputs": 2, "hidden": [20, 20]}
POINTS, RATE, GRID = 20, 1e-2, 80
SOURCE = "Khan, Life-long learning"


def _laplace(structure: str) -> Sequential:
    return Sequential(Laplace("all", structure, tune="nothing", lr=RATE, predictive="weights"), predicts="mean")


# The strength of fromp was chosen, among 0.1 to 0.001, on seeds 1000 and 1001, which are not among those shown.
STRATEGIES: dict[str, Strategy] = {
    "finetune": Finetune(lr=RATE),
    "ewc": _laplace("diagonal"),
    "kfac-laplace": _laplace("kronecker"),
    "memory-only": MemoryOnly(points=POINTS, lr=RATE),
    "replay": Replay(points=POINTS, lr=RATE),
    "fromp": Functions(points=POINTS, lr=RATE, strength=0.003),
    "joint": Joint(lr=RATE),
}


@dataclass(frozen=True)
class Question:
    """A strategy, a seed of stream and network, and how many epochs a task has."""

    strategy: str
    seed: int
    epochs: int


def run(setting: Setting) -> Result:
    """Every strategy on a few streams, and pictures of the first."""
    seeds = findings.seeds(setting, SEEDS[setting.full])
    epochs = EPOCHS[setting.full]
    questions = [Question(name, seed, epochs) for name in STRATEGIES for seed in seeds]
    answers = setting.answers(ask, questions)
    averages: dict[str, list[float]] = {name: [] for name in STRATEGIES}
    for question, answer in zip(questions, answers, strict=True):
        averages[question.strategy].append(answer["average"])
    claims = (_forgets(averages), *(_between(name, averages) for name in ("ewc", "kfac-laplace", "replay", "fromp")))
    claims += (_memory(averages),)
    return Result(claims, {"averages": averages}, lambda figure: _draw(figure, seeds[0], epochs), (12.0, 5.0))


def learn(question: Question) -> tuple[Past, list[streams.Chapter]]:
    """What is known after the last task."""
    chapters = list(streams.toy(TASKS, seed=question.seed))
    network = build(NETWORK, question.seed)
    past = Past()
    for index, chapter in enumerate(chapters):
        size = len(chapter.train[1])
        fits = Fits(network, Categorical(), question.epochs, BATCH, mixed(question.seed, index), size)
        past = STRATEGIES[question.strategy].learn(past, chapter, fits)
    return past, chapters


def ask(question: Question, data_dir: str | None = None) -> dict[str, Any]:
    """Accuracy on each task at the end, and their mean."""
    past, chapters = learn(question)
    assert past.posterior is not None
    right = []
    for chapter in chapters:
        label = past.posterior.predict(chapter.test[0]).label
        right.append(float((label == chapter.test[1]).double().mean()))
    return {"tasks": right, "average": sum(right) / len(right)}


def _forgets(averages: dict[str, list[float]]) -> Claim:
    gains = findings.differences(averages["joint"], averages["finetune"])
    return Claim(
        SOURCE,
        "training on forgets: it is behind training on all data at once",
        f"average accuracy {said(averages['finetune'], 3)} against {said(averages['joint'], 3)}",
        findings.better(gains),
    )


def _between(name: str, averages: dict[str, list[float]]) -> Claim:
    gains = findings.differences(averages[name], averages["finetune"])
    return Claim(
        SOURCE,
        f"{name} forgets less than training on",
        f"average accuracy {said(averages[name], 3)} against {said(averages['finetune'], 3)}",
        findings.better(gains),
    )


def _memory(averages: dict[str, list[float]]) -> Claim:
    gains = findings.differences(averages["fromp"], averages["memory-only"])
    return Claim(
        SOURCE,
        "the memorable past is worth more than its examples: fromp is ahead of training on the kept examples alone",
        f"average accuracy {said(averages['fromp'], 3)} against {said(averages['memory-only'], 3)}",
        findings.better(gains),
    )


@jobs.threads(1)
def _draw(figure: Figure, seed: int, epochs: int) -> None:
    axes = panels(figure, len(STRATEGIES) + 1, rows=2)
    for ax, name in zip(axes, STRATEGIES, strict=False):
        past, chapters = learn(Question(name, seed, epochs))
        assert past.posterior is not None
        _map(ax, past.posterior)
        shown = [chapters[-1].train, *past.memory.parts] if name != "joint" else [c.train for c in chapters]
        for x, y in shown:
            assert isinstance(x, Tensor)
            ax.scatter(x[:, 0], x[:, 1], c=y, s=6, cmap="coolwarm", edgecolors="0.3", linewidths=0.2)
        ax.set_title(name)
    for ax in axes[len(STRATEGIES) :]:
        _truth(ax)


def _plane() -> tuple[Tensor, Tensor]:
    across, up = torch.linspace(-3, 3, GRID), torch.linspace(-2.6, 2.6, GRID)
    columns, rows = torch.meshgrid(across, up, indexing="xy")
    return columns, rows


def _map(ax: Axes, posterior: Posterior) -> None:
    across, up = _plane()
    points = torch.stack([across.flatten(), up.flatten()], 1)
    probs = posterior.predict(points).probs[:, 1].reshape(GRID, GRID)
    ax.contourf(across, up, probs, levels=20, cmap="coolwarm", vmin=0, vmax=1, alpha=0.6)
    _border(ax)


def _truth(ax: Axes) -> None:
    _border(ax)
    edges = torch.linspace(-3, 3, TASKS + 1)
    for edge in edges[1:-1]:
        ax.axvline(float(edge), color="0.8", lw=0.8)
    for index in range(TASKS):
        ax.text(float(edges[index : index + 2].mean()), -2.3, str(index + 1), ha="center")
    ax.set(title="the border and its five stretches", xlim=(-3, 3), ylim=(-2.6, 2.6))


def _border(ax: Axes) -> None:
    line = torch.linspace(-3, 3, 200)
    ax.plot(line, torch.sin(1.5 * line), "k--", lw=1)
    ax.set_xticks([])
    ax.set_yticks([])
