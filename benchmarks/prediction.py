"""Predictions of an IVON posterior as ratios to plain forward passes of its module, interleaved in one run.

    python benchmarks/prediction.py --out docs/results

A round takes as many plain forward passes as there are draws, and one prediction of each contender, in random order;
the ratio of a round is that of their times. ``first`` asks with a seed that was never asked for, ``again`` with the
seed of the last call, ``loop`` runs the kept networks one after the other without `torch.vmap`. Written are the median
ratio and its quartiles over the rounds. On one thread it is the processor's time that counts, so that what else the
machine does matters less.
"""

from __future__ import annotations

import argparse
import copy
import itertools
import json
import random
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import torch

import bayesrule as br
from bayesrule.files import write_atomically
from bayesrule.methods import IVON
from bayesrule.models import build
from bayesrule.posteriors import Gaussian
from bayesrule.report import provenance

Run = Callable[[], object]
SETTINGS = {
    "MLP 784-400-400-10": {"name": "mlp", "inputs": 784, "outputs": 10, "hidden": [400, 400]},
    "LeNet-5": {"name": "lenet5", "channels": 1, "side": 28, "outputs": 10},
}
DRAWS = 32
ROUNDS = {8: 60, 1000: 5}
"""Rounds by the number of inputs."""


def contenders(posterior: Gaussian, x: torch.Tensor) -> dict[str, Run]:
    """Plain passes, and the ways of a prediction."""
    module, seeds = copy.deepcopy(posterior.model), itertools.count(1)
    again, looped = copy.deepcopy(posterior), copy.deepcopy(posterior)
    looped._draws.runner.vectorises = False

    @torch.no_grad()
    def plain() -> None:
        for _ in range(DRAWS):
            module(x)

    return {
        "plain": plain,
        "first": lambda: posterior.predict(x, DRAWS, seed=next(seeds)),
        "again": lambda: again.predict(x, DRAWS, seed=0),
        "loop": lambda: looped.predict(x, DRAWS, seed=0),
    }


def seconds(run: Run) -> float:
    """The time of a run."""
    clock = time.process_time if torch.get_num_threads() == 1 else time.perf_counter
    began = clock()
    run()
    return clock() - began


def rounds(runs: dict[str, Run], count: int) -> Iterator[dict[str, float]]:
    """Times of one run each, in an order of their own every round."""
    names = list(runs)
    for _ in range(count):
        random.shuffle(names)
        yield {name: seconds(runs[name]) for name in names}


def measure(spec: dict[str, object], size: int, count: int) -> dict[str, dict[str, float]]:
    """The ratio of each contender to plain passes: median and quartiles."""
    torch.manual_seed(0)
    random.seed(0)
    x, y = torch.rand(64, 1, 28, 28), torch.randint(10, (64,))
    # What is learnt does not matter here; small steps, since a few of the usual ones would diverge.
    method = IVON(lr=1e-3, initial_std=0.02, betas=(0.9, 0.99999), tempering=0.0)
    posterior = br.fit(build(spec, seed=0), (x, y), method, epochs=1)
    assert isinstance(posterior, Gaussian)
    runs = contenders(posterior, torch.rand(size, 1, 28, 28))
    for _ in rounds(runs, 2):  # warm-up
        pass
    times = list(rounds(runs, count))
    found = {}
    for name in runs:
        low, median, high = np.percentile([t[name] / t["plain"] for t in times], [25, 50, 75])
        milliseconds = float(np.median([t[name] for t in times]) * 1e3)
        found[name] = {"ratio": round(float(median), 3), "low": round(float(low), 3), "high": round(float(high), 3)}
        found[name]["milliseconds"] = round(milliseconds, 2)
    return found


def main() -> None:
    """Measure, print, write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--out", type=Path, default=Path("docs/results"))
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    found = {}
    for (setting, spec), (size, count) in itertools.product(SETTINGS.items(), ROUNDS.items()):
        name = f"{setting}, {size} inputs"
        found[name] = measure(spec, size, count)
        print(name)
        for way, row in found[name].items():
            print(f"  {way:8}{row['ratio']:6.2f}  [{row['low']:.2f}, {row['high']:.2f}]  {row['milliseconds']:.2f} ms")
    about = provenance(f"python benchmarks/prediction.py --threads {args.threads}", seed=0) | {"draws": DRAWS}
    args.out.mkdir(parents=True, exist_ok=True)
    write_atomically(args.out / "prediction.json", json.dumps(about | {"ratio to plain passes": found}, indent=1))


if __name__ == "__main__":
    main()
