"""One training step of each contender as a ratio to plain Adam, interleaved in one run.

    python benchmarks/steps.py --out docs/results

A round takes one step of `torch.optim.Adam` as it comes and one of each contender, in random order; the ratio of a
round is that of their times. Written are the median ratio and its quartiles over the rounds. Absolute times on a shared
machine are noise; ratios within a round are not. Other libraries are in the table where they are installed:
``pip install "bayesrule[bench]"``.
"""

from __future__ import annotations

import argparse
import copy
import importlib.util
import json
import random
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import numpy as np
import torch
from matplotlib.figure import Figure
from torch import nn
from torch.nn import functional as F

import bayesrule as br
from bayesrule.data import Batch
from bayesrule.files import write_atomically
from bayesrule.methods import BBB, IVON, MAP, VOGN, Method, Noise, Plan
from bayesrule.models import build
from bayesrule.report import provenance

Step = Callable[[], object]
Contender = Callable[[nn.Module, Batch], Step]
EXAMPLES = 60_000  # that the posterior of every contender is of
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
    "ivon in br.fit": IVON(),
    "vogn in br.fit": VOGN(),
}


def adam(model: nn.Module, batch: Batch, fused: bool | None = None) -> Step:
    """What everybody has: forward, backward, torch's Adam; ``fused`` is its fastest form."""
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3, fused=fused)

    def step() -> None:
        loss = F.cross_entropy(model(batch.x), batch.y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

    return step


def natural(kind: Callable[..., br.optim.Natural], model: nn.Module, batch: Batch) -> Step:
    """The loop of the README with one of our optimisers."""
    optimizer = kind(model.parameters(), lr=1e-2, ess=EXAMPLES)

    def step() -> None:
        with optimizer.sampled():
            F.cross_entropy(model(batch.x), batch.y).backward()
        optimizer.step()

    return step


def vogn(model: nn.Module, batch: Batch) -> Step:
    """VOGN, which has to know the model."""
    return natural(partial(br.optim.VOGN, model=model), model, batch)


def ivon_opt(model: nn.Module, batch: Batch) -> Step:
    """IVON by the package of its authors."""
    optimizer = importlib.import_module("ivon").IVON(model.parameters(), lr=1e-2, ess=EXAMPLES)

    def step() -> None:
        with optimizer.sampled_params(train=True):
            optimizer.zero_grad()
            F.cross_entropy(model(batch.x), batch.y).backward()
        optimizer.step()

    return step


def backpack(model: nn.Module, batch: Batch) -> Step:
    """VOGN's squares by BackPACK, with Adam for the step."""
    package = importlib.import_module("backpack")
    squares = importlib.import_module("backpack.extensions").SumGradSquared()
    model, loss = package.extend(model), package.extend(nn.CrossEntropyLoss())
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)

    def step() -> None:
        value = loss(model(batch.x), batch.y)
        optimizer.zero_grad()
        with package.backpack(squares):
            value.backward()
        optimizer.step()

    return step


def torchbnn(model: nn.Module, batch: Batch) -> Step:
    """Bayes by Backprop by torchbnn."""
    package = importlib.import_module("torchbnn")
    for path, layer in list(model.named_modules()):
        if isinstance(layer, nn.Linear):
            model.set_submodule(path, package.BayesLinear(0, 0.1, layer.in_features, layer.out_features))
        elif isinstance(layer, nn.Conv2d):
            shape = layer.in_channels, layer.out_channels, layer.kernel_size
            model.set_submodule(path, package.BayesConv2d(0, 0.1, *shape, layer.stride, layer.padding))
    return _with_divergence(model, batch, package.BKLLoss(reduction="mean", last_layer_only=False))


def bayesian_torch(model: nn.Module, batch: Batch, kind: str = "Reparameterization") -> Step:
    """Bayes by Backprop by bayesian-torch, with reparameterisation or Flipout."""
    package = importlib.import_module("bayesian_torch.models.dnn_to_bnn")
    settings = {"prior_mu": 0.0, "prior_sigma": 1.0, "posterior_mu_init": 0.0, "posterior_rho_init": -3.0}
    package.dnn_to_bnn(model, settings | {"type": kind, "moped_enable": False, "moped_delta": 0.5})
    return _with_divergence(model, batch, package.get_kl_loss)


def _with_divergence(model: nn.Module, batch: Batch, divergence: Callable[[nn.Module], torch.Tensor]) -> Step:
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)

    def step() -> None:
        loss = F.cross_entropy(model(batch.x), batch.y) + divergence(model) / EXAMPLES
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

    return step


OPTIMISERS: dict[str, Contender] = {
    "adam, fused": partial(adam, fused=True),
    "ivon": partial(natural, br.optim.IVON),
    "vogn": vogn,
    "vadam": partial(natural, br.optim.Vadam),
}
PEERS: dict[str, tuple[str, Contender]] = {
    "ivon-opt": ("ivon", ivon_opt),
    "BackPACK, squares": ("backpack", backpack),
    "torchbnn": ("torchbnn", torchbnn),
    "bayesian-torch": ("bayesian_torch", bayesian_torch),
    "bayesian-torch, flipout": ("bayesian_torch", partial(bayesian_torch, kind="Flipout")),
}


def ours(method: Method, model: nn.Module, batch: Batch) -> Step:
    """A step of a learner, its logs included.

    The data are the batch, many times over: of 128 examples alone hardly a weight would be known, and numbers that
    saturated outputs bring to the edge of what a float holds take a processor longer.
    """
    times = EXAMPLES // len(batch.y)
    x, y = batch.x.expand(times, *batch.x.shape).flatten(0, 1), batch.y.repeat(times)
    task = br.Task.create(model, (x, y), "categorical")
    plan = Plan(epochs=1000, steps_per_epoch=1000, batch_size=len(batch.y))
    learner = method.start(task, plan, Noise.on(task.device))
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
    contenders = {"adam": adam} | OPTIMISERS | {name: partial(ours, method) for name, method in METHODS.items()}
    contenders |= {name: peer for name, (package, peer) in PEERS.items() if importlib.util.find_spec(package)}
    steps = {name: contender(copy.deepcopy(model), batch) for name, contender in contenders.items()}
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
    figure = Figure(figsize=(11, 4.6), layout="constrained")
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
    about = provenance(f"python benchmarks/steps.py --rounds {args.rounds} --threads {args.threads}", seed=0)
    for setting, rows in found.items():
        print(setting)
        for name, row in rows.items():
            print(
                f"  {name:26}{row['ratio']:6.2f}  [{row['low']:.2f}, {row['high']:.2f}]  {row['milliseconds']:.2f} ms"
            )
    args.out.mkdir(parents=True, exist_ok=True)
    write_atomically(args.out / "steps.json", json.dumps(about | {"ratio to Adam": found}, indent=1))
    draw(found, args.out / "steps.png")


if __name__ == "__main__":
    main()
