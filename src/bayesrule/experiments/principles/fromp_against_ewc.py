"""Functions or weights? FROMP beside EWC on permuted and split digits, the strength of both chosen on held-out data."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from matplotlib.figure import Figure

from bayesrule.data import load_set
from bayesrule.experiments import findings
from bayesrule.experiments.base import Claim, Result, Setting
from bayesrule.experiments.figures import panels
from bayesrule.experiments.trials import said
from bayesrule.lifelong import Finetune, Functions, Joint, Strategy, Stream, Weighted, streams
from bayesrule.lifelong import run as learn

SEEDS = 3
STREAMS = ("permuted", "split")
NAMES = ("finetune", "ewc", "fromp", "joint")
GRID = {"ewc": (1.0, 10.0, 100.0), "fromp": (0.005, 0.05, 0.5)}  # strengths
SOURCE = "Khan, Life-long learning: FROMP"


@dataclass(frozen=True)
class Scale:
    """How large: data, tasks of the permuted stream, epochs, batch size, rate, hidden layers and points by stream."""

    data: str
    tasks: int
    epochs: int
    batch: int
    lr: float
    hidden: dict[str, tuple[int, ...]]
    points: dict[str, int]


QUICK = Scale("digits", 4, 15, 32, 5e-3, dict.fromkeys(STREAMS, (50, 50)), {"permuted": 40, "split": 20})
FULL = Scale("mnist", 10, 10, 128, 3e-3, {"permuted": (100, 100), "split": (256, 256)}, {"permuted": 200, "split": 40})


@dataclass(frozen=True)
class Question:
    """A strategy with its strength on a stream; ``tuning``: judged on held-out training examples."""

    data: str
    stream: str
    strategy: str
    strength: float
    tuning: bool
    seed: int


def run(setting: Setting) -> Result:
    """Strengths first, on one seed and held-out training data; then every strategy on the test tasks of three seeds."""
    scale = FULL if setting.full else QUICK
    seeds = findings.seeds(setting, SEEDS)
    trials = []
    for stream in STREAMS:
        for name, strengths in GRID.items():
            trials += [Question(scale.data, stream, name, strength, True, seeds[0]) for strength in strengths]
    tuned: dict[tuple[str, str], tuple[float, float]] = {}
    for question, answer in zip(trials, setting.answers(ask, trials), strict=True):
        found = answer["average"], question.strength
        where = question.stream, question.strategy
        tuned[where] = max(tuned.get(where, found), found)
    judged = []
    for stream in STREAMS:
        for name in NAMES:
            strength = tuned[stream, name][1] if name in GRID else 1.0
            judged += [Question(scale.data, stream, name, strength, False, seed) for seed in seeds]
    averages: dict[str, dict[str, list[float]]] = {stream: {name: [] for name in NAMES} for stream in STREAMS}
    curves: dict[str, dict[str, list[list[float]]]] = {stream: {name: [] for name in NAMES} for stream in STREAMS}
    for question, answer in zip(judged, setting.answers(ask, judged), strict=True):
        averages[question.stream][question.strategy].append(answer["average"])
        curves[question.stream][question.strategy].append(answer["averages"])
    claims = tuple(_ahead(stream, averages[stream]) for stream in STREAMS)
    strengths_used = {f"{stream}, {name}": strength for (stream, name), (_, strength) in tuned.items()}
    plain = {"averages": averages, "curves": curves, "strengths": strengths_used}
    return Result(claims, plain, lambda figure: _draw(figure, curves), (8.5, 3.4))


def _stream(question: Question, scale: Scale, data_dir: str | None) -> Stream:
    split = load_set(scale.data, data_dir)
    if question.stream == "permuted":
        stream = streams.permuted(split, scale.tasks, question.seed)
    else:
        stream = streams.split_by_class(split)
    return stream.tuning() if question.tuning else stream


def ask(question: Question, data_dir: str | None = None) -> dict[str, Any]:
    """Average accuracy after each task."""
    scale = FULL if question.data == FULL.data else QUICK
    points = scale.points[question.stream]
    makers: dict[str, Callable[[], Strategy]] = {
        "finetune": lambda: Finetune(lr=scale.lr),
        "ewc": lambda: Weighted("diagonal", question.strength, lr=scale.lr),
        "fromp": lambda: Functions(points=points, strength=question.strength, lr=scale.lr),
        "joint": lambda: Joint(lr=scale.lr),
    }
    result = learn(
        _stream(question, scale, data_dir),
        makers[question.strategy](),
        epochs=scale.epochs,
        batch_size=scale.batch,
        hidden=scale.hidden[question.stream],
        seed=question.seed,
    )
    return {"average": result.average, "averages": result.averages, "seconds": sum(result.seconds)}


def _ahead(stream: str, averages: dict[str, list[float]]) -> Claim:
    gains = findings.differences(averages["fromp"], averages["ewc"])
    others = f"training on {said(averages['finetune'], 3)}, all data at once {said(averages['joint'], 3)}"
    return Claim(
        SOURCE,
        f"FROMP is ahead of EWC on {stream} digits",
        f"average accuracy {said(averages['fromp'], 3)} against {said(averages['ewc'], 3)} ({others})",
        findings.better(gains),
    )


def _draw(figure: Figure, curves: dict[str, dict[str, list[list[float]]]]) -> None:
    for ax, (stream, own) in zip(panels(figure, len(curves)), curves.items(), strict=True):
        for name, rows in own.items():
            means = [sum(column) / len(column) for column in zip(*rows, strict=True)]
            ax.plot(range(1, len(means) + 1), means, "o-", label=name)
        ax.set(title=stream, xlabel="tasks learnt", ylabel="average accuracy")
        ax.legend()
