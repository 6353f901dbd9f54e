"""One training step of each contender as a ratio to plain Adam, interleaved in one run.

    python benchmarks/steps.py --out docs/results

A round takes one step of Adam and one of each contender, in random order; the ratio of a round is that of their times.
Written are the median ratio and its quartiles over the rounds. Absolute times on a shared machine are noise; ratios
within a round are not.
"""

from __future__ import annotations

import argparse
import copy
import json
import random
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import torch
from matplotlib.figure import Figure
from torch import nn
from torch.nn import functional as F

import bayesrule as br
from bayesrule.data import Batch
from bayesrule.files import write_atomically
from bayesrule.methods import BBB, MAP, Method, Plan
from bayesrule.models import build
from bayesrule.report.comparison import machine, versions

Step = Callable[[], object]
SETTINGS = {
    "MLP 784-400-400-10, batch 128": ({"name": "mlp", "inputs": 784, "outputs": 10, "hidden": [400, 400]}, 128),
    "LeNet-5, batch 100": ({"name": "lenet5", "channels": 1, "side": 28, "outputs": 10}, 100),
}
METHODS: dict[str, Method] = {
    "map": MAP(),
    "bbb": BBB(),
    "bbb, path": BBB(gradient="path"),
    "bbb, local-reparam": BBB(estimator="local-reparam"),
    "bbb, flipout": BBB(estimator="flipout"),
}


def adam(model: nn.Module, batch: Batch) -> Step:
    """What everybody has: forward, backward, torch's Adam."""
    model = copy.deepcopy(model)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3, fused=True)

    def step() -> None:
        loss = F.cross_entropy(model(batch.x), batch.y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

    return step


def ours(method: Method, model: nn.Module, batch: Batch) -> Step:
    """A step of a learner, its logs included."""
    task = br.Task.create(model, (batch.x, batch.y), "categorical")
    learner = method.start(task, Plan(epochs=1000, steps_per_epoch=1000, batch_size=len(batch.y)))
    return lambda: learner.step(batch)


def seconds(step: Step) -> float:
    """The time of a step."""
    began = time.perf_counter()
    step()
    return time.perf_counter() - began


def rounds(steps: dict[str, Step], count: int) -> Iterator[dict[str, float]]:
    """Times of one step each, in an order of their own every round."""
    names = list(steps)
    for _ in range(count):
        random.shuffle(names)
        yield {name: seconds(steps[name]) for name in names}


def measure(spec: dict[str, object], size: int, count: int) -> dict[str, dict[str, float]]:
    """The ratio of each contender to Adam: median and quartiles."""
    torch.manual_seed(0)
    random.seed(0)
    model = build(spec, seed=0)
    batch = Batch(torch.rand(size, 1, 28, 28), torch.randint(10, (size,)))
    steps = {"adam": adam(model, batch)} | {name: ours(method, model, batch) for name, method in METHODS.items()}
    for _ in rounds(steps, 10):  # warm-up
        pass
    times = list(rounds(steps, count))
    found = {}
    for name in steps:
        low, median, high = np.percentile([t[name] / t["adam"] for t in times], [25, 50, 75])
        milliseconds = float(np.median([t[name] for t in times]) * 1e3)
        found[name] = {"ratio": round(float(median), 3), "low": round(float(low), 3), "high": round(float(high), 3)}
        found[name]["milliseconds"] = round(milliseconds, 2)
    return found


def draw(result: dict[str, dict[str, dict[str, float]]], path: Path) -> None:
    """A bar for each contender, its quartiles as a line."""
    figure = Figure(figsize=(9, 3), layout="constrained")
    for place, (setting, rows) in enumerate(result.items()):
        axes = figure.add_subplot(1, len(result), place + 1)
        names = list(rows)[::-1]
        ratios = [rows[name]["ratio"] for name in names]
        spread = [
            [rows[n]["ratio"] - rows[n]["low"] for n in names],
            [rows[n]["high"] - rows[n]["ratio"] for n in names],
        ]
        bars = axes.barh(names, ratios, xerr=spread, color="#4878d0", alpha=0.85)
        axes.bar_label(bars, [f"{ratio:.2f}" for ratio in ratios], label_type="center", color="white")
        axes.axvline(1, color="#888888", lw=0.8, ls="--")
        axes.set(title=setting, xlabel="time of a step / Adam's")
    figure.savefig(path, dpi=150)


def main() -> None:
    """Measure, print, write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=100)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--out", type=Path, default=Path("docs/results"))
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    found = {setting: measure(spec, size, args.rounds) for setting, (spec, size) in SETTINGS.items()}
    commit = subprocess.run(["git", "rev-parse", "HEAD"], capture_output=True, text=True).stdout.strip()
    about = {"command": f"python benchmarks/steps.py --rounds {args.rounds} --threads {args.threads}"}
    about |= {"commit": commit, "seed": 0, "machine": machine(), "versions": versions()}
    for setting, rows in found.items():
        print(setting)
        for name, row in rows.items():
            print(
                f"  {name:22}{row['ratio']:6.2f}  [{row['low']:.2f}, {row['high']:.2f}]  {row['milliseconds']:.2f} ms"
            )
    args.out.mkdir(parents=True, exist_ok=True)
    write_atomically(args.out / "steps.json", json.dumps(about | {"ratio to Adam": found}, indent=1))
    draw(found, args.out / "steps.png")


if __name__ == "__main__":
    main()
