"""How costs grow with weights, examples, draws and classes: slopes of logarithms of times.

    python benchmarks/growth.py --out docs/results

A cost is the processor's time of one call on one thread, the shortest of several rounds in which all sizes take turns.
Its slope along an axis is that of the line through the logarithms over the larger half of the sizes, where what each
call takes whatever its size no longer counts: 1 is in proportion, 2 by the square, 0 not at all. Beside it stand the
times at the two ends.
"""

from __future__ import annotations

import argparse
import json
import time
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

import bayesrule as br
from bayesrule.files import write_atomically
from bayesrule.methods import BBB, IVON, MAP, VOGN, Laplace, Method, Noise, Plan
from bayesrule.report import provenance

Call = Callable[[], object]
INPUTS = 64
ROUNDS = 5
LONG = 2.0  # seconds of a call after which there are fewer rounds


@dataclass(frozen=True)
class Size:
    """A network with two hidden layers, and what it is asked: one axis grows, the others stay."""

    width: int = 128
    classes: int = 10
    examples: int = 1024
    draws: int = 16

    def network(self) -> nn.Module:
        """Fresh weights."""
        torch.manual_seed(0)
        return br.models.mlp(INPUTS, self.classes, hidden=(self.width, self.width))

    def data(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Inputs and classes of no meaning: what is learnt does not matter here."""
        generator = torch.Generator().manual_seed(0)
        x = torch.randn(self.examples, INPUTS, generator=generator)
        return x, torch.randint(self.classes, (self.examples,), generator=generator)

    def along(self, axis: str) -> int:
        """How large it is along an axis."""
        if axis == "weights":
            return sum(p.numel() for p in self.network().parameters())
        return int(getattr(self, axis))


WIDE = [Size(width=width) for width in (64, 128, 256, 512, 1024)]
DENSE = [Size(width=width) for width in (16, 32, 64, 128, 256)]  # whose matrix has 10 · (width + 1) rows
MANY = [Size(examples=examples) for examples in (512, 1024, 2048, 4096, 8192)]
DRAWS = [Size(draws=draws) for draws in (8, 16, 32, 64, 128)]
CLASSES = [Size(width=32, classes=classes) for classes in (4, 8, 16, 32, 64)]
AXES = {"weights": WIDE, "examples": MANY, "draws": DRAWS, "classes": CLASSES}
Sizes = dict[str, list[Size]]


def along(*axes: str, weights: list[Size] = WIDE) -> Sizes:
    """The sizes of some axes."""
    return {axis: AXES[axis] for axis in axes} | {"weights": weights}


def step(method: Method, size: Size) -> Call:
    """A training step on a batch of all examples."""
    task = br.Task.create(size.network(), size.data(), "categorical", prior=1.0)
    learner = method.start(task, Plan(1000, 1000, batch_size=size.examples), Noise.on(task.device))
    batch = task.data.all()
    return lambda: learner.step(batch)


def after_the_fact(method: Laplace, size: Size) -> Call:
    """Laplace's method on a network that is taken as it is."""
    model, data = size.network(), size.data()
    return lambda: br.fit(model, data, method, epochs=0, prior=1.0)


def prediction(method: Laplace, size: Size, fresh: bool = True) -> Call:
    """Of all examples; with draws that are new each time, or those of the last call."""
    posterior = br.fit(size.network(), size.data(), method, epochs=0, prior=1.0)
    x, seeds = size.data()[0], count(1)
    return lambda: posterior.predict(x, size.draws, seed=next(seeds) if fresh else 0)


def laplace(subset: str, structure: str, predictive: str = "probit") -> Laplace:
    """Nothing is tuned."""
    return Laplace(subset, structure, tune="nothing", predictive=predictive)


DRAWN = laplace("all", "diagonal", "weights")
COSTS: dict[str, tuple[Callable[[Size], Call], Sizes]] = {
    "a step of `map`": (lambda size: step(MAP(), size), along("examples", "classes")),
    "a step of `ivon`": (lambda size: step(IVON(), size), along("examples", "classes")),
    "a step of `vogn`": (lambda size: step(VOGN(), size), along("examples", "classes")),
    "a step of `bbb`": (lambda size: step(BBB(), size), along("examples", "classes")),
    "`laplace`, last layer, dense": (
        lambda size: after_the_fact(laplace("last-layer", "dense"), size),
        along("examples", "classes", weights=DENSE),
    ),
    "`laplace`, Kronecker": (
        lambda size: after_the_fact(laplace("all", "kronecker"), size),
        along("examples", "classes"),
    ),
    "`laplace`, diagonal": (
        lambda size: after_the_fact(laplace("all", "diagonal"), size),
        along("examples", "classes"),
    ),
    "`predict`, new draws": (lambda size: prediction(DRAWN, size), along("examples", "draws", "classes")),
    "`predict`, the same draws": (
        lambda size: prediction(DRAWN, size, False),
        along("examples", "draws", "classes"),
    ),
    "`predict`, tangent, last layer": (
        lambda size: prediction(laplace("last-layer", "dense"), size),
        along("examples", "classes", weights=DENSE),
    ),
    "`predict`, tangent, Kronecker": (
        lambda size: prediction(laplace("all", "kronecker"), size),
        along("examples", "classes"),
    ),
}


def seconds(call: Call) -> float:
    """Of the processor."""
    began = time.process_time()
    call()
    return time.process_time() - began


def shortest(calls: list[Call]) -> list[float]:
    """The least time of each, in rounds in which all take turns."""
    best = [seconds(call) for call in calls]  # the first of each warms up
    rounds = ROUNDS if max(best) < LONG else 2
    for _ in range(rounds):
        best = [min(least, seconds(call)) for least, call in zip(best, calls, strict=True)]
    return best


def slope(sizes: list[int], times: list[float]) -> float:
    """Of log time against log size, over the larger half."""
    half = len(sizes) // 2
    return float(np.polyfit(np.log(sizes[half:]), np.log(times[half:]), 1)[0])


def measured() -> Iterator[tuple[str, str, dict[str, Any]]]:
    """Each cost along each of its axes."""
    for name, (make, axes) in COSTS.items():
        for axis, sizes in axes.items():
            times = shortest([make(size) for size in sizes])
            counts = [size.along(axis) for size in sizes]
            shown = [float(f"{1e3 * each:.3g}") for each in times]
            yield name, axis, {"slope": round(slope(counts, times), 2), "sizes": counts, "ms": shown}


def main() -> None:
    """Measure, print, write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("docs/results"))
    args = parser.parse_args()
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    found: dict[str, dict[str, Any]] = {}
    for name, axis, row in measured():
        found.setdefault(name, {})[axis] = row
        print(f"{name:32} {axis:9} slope {row['slope']:5.2f}   {row['ms'][0]:8.3g} to {row['ms'][-1]:8.3g} ms")
    about = provenance("python benchmarks/growth.py", seed=0) | {"base": vars(Size()), "inputs": INPUTS}
    args.out.mkdir(parents=True, exist_ok=True)
    write_atomically(args.out / "growth.json", json.dumps(about | {"costs": found}, indent=1))


if __name__ == "__main__":
    main()
