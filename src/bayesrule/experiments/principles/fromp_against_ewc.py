"""Functions or weights? FROMP beside EWC on permuted and split digits, the strength of both chosen on held-out data."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from matplotlib.figure import Figure

from bayesrule.data import load_set
from bayesrule.experiments import findings
from bayesrule.experiments.base import Claim, Result, Setting
from bayesrule.experiments.figures import panels
from bayesrule.experiments.trials import said
from bayesrule.lifelong import Finetune, Functions, Joint, Strategy, Stream, Weighted, streams
from bayesrule.lifelong import run as learn
from bayesrule.lifelong.benchmarks import PERM_FROMP, SPLIT_FROMP

SEEDS = 3
STREAMS = ("permuted", "split")
NAMES = ("finetune", "ewc", "fromp", "joint")
TUNED = ("ewc", "fromp")
FACTORS = (0.1, 1.0, 10.0)  # on the strength of a strategy
LONGEST = 4  # times that a grid may grow by a factor more, while the best is at its edge
SOURCE = "Khan, Life-long learning: FROMP"

Strategies = Mapping[str, Mapping[str, Any]]  # of each stream, by name


@dataclass(frozen=True)
class Scale:
    """How large: data, tasks of the permuted stream, epochs, batch size, and by stream hidden layers and strategies,
    whose strengths are where the search for them begins."""

    data: str
    tasks: int
    epochs: int
    batch: int
    hidden: dict[str, tuple[int, ...]]
    strategies: Strategies


def _at(lr: float, points: int) -> dict[str, Strategy]:
    """All strategies at one rate."""
    fromp = Functions(points=points, strength=0.05, lr=lr)
    return {"finetune": Finetune(lr), "ewc": Weighted("diagonal", 10.0, lr), "fromp": fromp, "joint": Joint(lr)}


# On digits, where a task has few steps, one rate is as good for all. On MNIST each strategy has its own on each stream:
# at that of the others FROMP leaves the region in which the kernel of a task's start holds.
QUICK = Scale(
    "digits", 4, 15, 32, dict.fromkeys(STREAMS, (50, 50)), {"permuted": _at(5e-3, 40), "split": _at(5e-3, 20)}
)
FULL = Scale(
    "mnist",
    10,
    10,
    128,
    {"permuted": (100, 100), "split": (256, 256)},
    {
        "permuted": _at(1e-3, 200)
        | {"ewc": Weighted("diagonal", 10.0, 3e-3), "fromp": replace(PERM_FROMP, points=200)},
        "split": _at(1e-3, 40) | {"fromp": replace(SPLIT_FROMP, points=40)},
    },
)


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
    tuned = _tuned(setting, scale, seeds[0])
    judged = []
    for stream in STREAMS:
        for name in NAMES:
            strength = best(tuned[stream, name]) if name in TUNED else 1.0
            judged += [Question(scale.data, stream, name, strength, False, seed) for seed in seeds]
    averages: dict[str, dict[str, list[float]]] = {stream: {name: [] for name in NAMES} for stream in STREAMS}
    curves: dict[str, dict[str, list[list[float]]]] = {stream: {name: [] for name in NAMES} for stream in STREAMS}
    for question, answer in zip(judged, setting.answers(ask, judged), strict=True):
        averages[question.stream][question.strategy].append(answer["average"])
        curves[question.stream][question.strategy].append(answer["averages"])
    claims = tuple(_ahead(stream, averages[stream]) for stream in STREAMS)
    strengths = {f"{stream}, {name}": best(tried) for (stream, name), tried in tuned.items()}
    tried = {f"{stream}, {name}": sorted(found.items()) for (stream, name), found in tuned.items()}
    plain = {"averages": averages, "curves": curves, "strengths": strengths, "tried": tried}
    return Result(claims, plain, lambda figure: _draw(figure, curves), (8.5, 3.4))


def _tuned(setting: Setting, scale: Scale, seed: int) -> dict[tuple[str, str], dict[float, float]]:
    """The average on held-out training data of each strength that was tried, of each stream and strategy."""
    found: dict[tuple[str, str], dict[float, float]] = {(stream, name): {} for stream in STREAMS for name in TUNED}
    for _ in range(LONGEST + 1):
        trials = []
        for (stream, name), known in found.items():
            wanted = following(known, scale.strategies[stream][name].strength)
            trials += [Question(scale.data, stream, name, strength, True, seed) for strength in wanted]
        if not trials:
            break
        for question, answer in zip(trials, setting.answers(ask, trials), strict=True):
            found[question.stream, question.strategy][question.strength] = answer["average"]
    return found


def following(known: Mapping[float, float], first: float) -> list[float]:
    """Which strengths to try next: a grid about the first, and then beyond its edge while the best is there.

    >>> following({}, 10.0), following({1.0: 0.7, 10.0: 0.8, 100.0: 0.9}, 10.0)
    ([1.0, 10.0, 100.0], [1000.0])
    >>> following({1.0: 0.7, 10.0: 0.8, 100.0: 0.6}, 10.0)
    []
    """
    if not known:
        return [factor * first for factor in FACTORS]
    if best(known) == max(known):
        return [float(f"{max(known) * FACTORS[-1]:.12g}")]
    if best(known) == min(known):
        return [float(f"{min(known) * FACTORS[0]:.12g}")]
    return []


def best(known: Mapping[float, float]) -> float:
    """The strength of the highest average; of equals the largest."""
    return max(known, key=lambda strength: (known[strength], strength))


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
    strategy = scale.strategies[question.stream][question.strategy]
    if question.strategy in TUNED:
        strategy = replace(strategy, strength=question.strength)
    result = learn(
        _stream(question, scale, data_dir),
        strategy,
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
