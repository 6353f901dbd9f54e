"""Learning-rate schedules against a constant rate: on a line whose answer is known, and on networks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from functools import partial

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from bayesrule.data import load_set, standardize
from bayesrule.experiments import book, findings, trials
from bayesrule.experiments.base import Claim, Result, Setting
from bayesrule.experiments.book.landscapes import Array, generator
from bayesrule.experiments.figures import panels
from bayesrule.experiments.trials import Outcome, Training
from bayesrule.methods import BBB
from bayesrule.models import build, default_for
from bayesrule.optim import Constant, Cosine, Cyclic, Plateau, Schedule, WarmUp
from bayesrule.training import RangeTest, range_test

SCHEDULES: dict[str, Schedule] = {
    "constant": Constant(),
    "warm-up": WarmUp(),
    "cosine": Cosine(),
    "cyclic": Cyclic(),
    "plateau": Plateau("nll"),
}
OTHERS = tuple(name for name in SCHEDULES if name != "constant")
RATES = {"digits": 1e-2, "mnist": 1e-3, "cifar10": 1e-3}  # digits have few steps in an epoch
EPOCHS = {False: 20, True: 8}  # by whether it is in full
SEEDS = {False: 5, True: 3}
STYLES = dict.fromkeys(SCHEDULES, "-") | {"warm-up": "--", "plateau": "--"}  # these two often lie on constant's line
EXAMPLES = 50  # of the line
LINE_RATE = 0.1
LINE_EPOCHS = 20
LINE_RUNS = 20
RANGE_STEPS = 200
SOURCE = "Book 2020, section 3.3"


def run(setting: Setting) -> Result:
    """Losses of a line, trainings that differ in the schedule alone, and a range test of the rate."""
    epochs = book.data(setting, EPOCHS[setting.full])
    line = {name: excess(schedule, setting) for name, schedule in SCHEDULES.items()}
    tests = {data: _test(data, setting) for data in epochs}
    trainings = []
    for data, count in epochs.items():
        for seed in findings.seeds(setting, SEEDS[setting.full]):
            for name, schedule in SCHEDULES.items():
                method = BBB(**{**book.METHOD, "lr": RATES[data], "schedule": schedule})
                trainings.append(Training(name, data, method, count, seed))
    found = trials.run(trainings, setting)
    claims = [_line_claim(line)]
    for data in epochs:
        claims += [_claim(found, data, name) for name in OTHERS]
    plain = {
        "line": {name: values.mean(0).tolist() for name, values in line.items()},
        "range_test": {data: asdict(test) for data, test in tests.items()},
        "trials": findings.all_plain(found),
    }
    notes = [_note(found, data, test) for data, test in tests.items()]
    notes.append("a schedule holds the deviations back too, from as narrow a start: the loss is the higher for it")
    draw = partial(_draw, line=line, tests=tests, found=found)
    return Result(tuple(claims), plain, draw, (10.0, 3.0 * (1 + len(epochs))), tuple(notes))


def excess(schedule: Schedule, setting: Setting) -> Array:
    """Mean squared errors beyond the least there is, by run and epoch, of a line fitted by SGD, an example a step."""
    random = generator(setting)
    x = np.stack([np.ones(EXAMPLES), random.normal(size=EXAMPLES)], axis=1)
    y = x @ [1.0, 2.0] + random.normal(size=EXAMPLES)
    least = np.mean((y - x @ np.linalg.lstsq(x, y, rcond=None)[0]) ** 2)
    losses = [_descend(schedule, x, y, generator(setting, number)) for number in range(LINE_RUNS)]
    return np.array(losses) - float(least)


def _descend(schedule: Schedule, x: Array, y: Array, random: np.random.Generator) -> list[float]:
    """The mean squared error after each epoch, which is also what the schedule looks at."""
    w = np.zeros(2)
    history: list[dict[str, float]] = []
    steps = LINE_EPOCHS * EXAMPLES
    for step in range(steps):
        if step % EXAMPLES == 0:
            order = random.permutation(EXAMPLES)
        i = order[step % EXAMPLES]
        w = w - LINE_RATE * schedule((step + 0.5) / steps, history) * (x[i] @ w - y[i]) * x[i]
        if (step + 1) % EXAMPLES == 0:
            history.append({"nll": float(np.mean((x @ w - y) ** 2))})
    return [epoch["nll"] for epoch in history]


def _test(data: str, setting: Setting) -> RangeTest:
    split = load_set(data, setting.data_dir)
    model = build(default_for(split), setting.seed)
    return range_test(
        model,
        standardize(split.train),
        BBB(**book.METHOD),
        prior="kaiming",
        steps=RANGE_STEPS,
        batch_size=100,
        seed=setting.seed,
    )


def _line_claim(line: Mapping[str, Array]) -> Claim:
    last = {name: values[:, -1].tolist() for name, values in line.items()}
    gains = findings.differences(last["constant"], last["cosine"])  # a loss that is lower is a gain
    return Claim(
        SOURCE,
        "with SGD on a line a rate that falls to nothing (cosine) comes closer to the least loss than a constant one",
        "above it by " + findings.listed(last),
        findings.better(gains),
    )


def _claim(found: Sequence[Outcome], data: str, name: str) -> Claim:
    mine = findings.values(found, data, name, "accuracy")
    constant = findings.values(found, data, "constant", "accuracy")
    return Claim(
        SOURCE,
        f"the schedule {name} gives a better accuracy than a constant rate on {data}",
        f"{trials.said(mine)} against {trials.said(constant)}",
        findings.better(findings.gains(found, data, name, "constant", "accuracy")),
    )


def _note(found: Sequence[Outcome], data: str, test: RangeTest) -> str:
    losses = findings.listed(findings.by_kind(found, data, SCHEDULES, "loss"), 3)
    return f"{data}: all at the rate {RATES[data]:g}, and a range test suggests {test.suggestion:.1g}; loss {losses}"


def _draw(figure: Figure, line: Mapping[str, Array], tests: Mapping[str, RangeTest], found: Sequence[Outcome]) -> None:
    axes = panels(figure, 3 * (1 + len(tests)), rows=1 + len(tests))
    _factors(axes[0])
    for name, values in line.items():
        axes[1].semilogy(range(1, LINE_EPOCHS + 1), values.mean(0), label=name, ls=STYLES[name])
        axes[2].plot([name] * len(values), values[:, -1], "o", alpha=0.4, ms=4)
    axes[1].set(title="a line: loss above the least", xlabel="epoch")
    axes[2].set(title="a line: at the end, by run", yscale="log")
    for row, (data, test) in enumerate(tests.items(), start=1):
        ours = findings.chosen(found, data)
        test.draw(axes[3 * row])
        axes[3 * row].set(title=f"{data}: range test")
        findings.curves(axes[3 * row + 1], ours, "nll")
        for drawn in axes[3 * row + 1].get_lines():
            drawn.set(linestyle=STYLES[str(drawn.get_label())])
        axes[3 * row + 1].set(title=f"{data}: training nll", yscale="log")
        axes[3 * row + 1].legend()
        for name in SCHEDULES:
            scores = findings.values(ours, data, name, "accuracy")
            axes[3 * row + 2].plot([name] * len(scores), scores, "o", alpha=0.7)
        axes[3 * row + 2].set(title=f"{data}: test accuracy")


def _factors(axes: Axes) -> None:
    """The factors on the rate; a plateau's for a loss that falls for half of the time and then no more."""
    done = np.linspace(0, 1, 400, endpoint=False)
    epochs = [{"nll": max(1.0 - 0.1 * epoch, 0.5)} for epoch in range(10)]
    for name, schedule in SCHEDULES.items():
        factors = [schedule(float(d), epochs[: int(d * len(epochs))]) for d in done]
        axes.plot(done, factors, label=name, ls=STYLES[name])
    axes.set(title="factors on the rate", xlabel="share of all steps")
    axes.legend(loc="upper center", bbox_to_anchor=(0.5, -0.18), ncols=3)
