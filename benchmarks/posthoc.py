"""Laplace's method after the fact: ten networks that plain torch has trained, before and after.

    BAYESRULE_DATA=data python benchmarks/posthoc.py --out docs/results

Each network is trained by Adam or AdamW as a user would, some far too long, and handed to
``br.fit(net, train, "laplace", epochs=0)``: no setting, no held-out data. ``net`` and ``laplace`` are test NLLs, means
over splits for tables; ``epochs`` is the processor time of that call, the median of five, in epochs of the training,
taken in the same run. A network counts as gaining from a difference of −.0001 on.

``net`` has the noise of reals that is most probable about its outputs on all its training data.

The rule was chosen on other networks, ``--tuning``: generated tables, digits in splits 50 to 52, the test pictures of
Fashion-MNIST and KMNIST, and of reals generated tables and the splits 0 to 2 of energy, yacht and boston. Of the sets
here digits alone is among them, in other splits.
"""

from __future__ import annotations

import argparse
import json
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from pathlib import Path
from statistics import mean, median
from typing import Any

import numpy as np
import torch
from matplotlib.figure import Figure
from sklearn import datasets
from torch import Tensor, nn

import bayesrule as br
from bayesrule import jobs
from bayesrule.curvature import curvature
from bayesrule.files import write_atomically
from bayesrule.models import build
from bayesrule.report import provenance

Pair = tuple[Tensor, Tensor]
Parts = tuple[Pair, Pair]
SLACK = 0.005
GAIN = 1e-4
TIMES = 5
EXAMPLES = 10_000  # of pictures to train on


def cut(load: Callable[..., Any], seed: int, reals: bool = False) -> Parts:
    """Four fifths to train on, a fifth to test; columns, and real targets, standardised by the former."""
    x, y = load(return_X_y=True)
    order = np.random.default_rng(2000 + seed).permutation(len(y))
    inputs, targets = torch.tensor(x[order]), torch.tensor(y[order])
    few = len(y) // 5
    return standardised((inputs[few:], targets[few:]), (inputs[:few], targets[:few]), reals)


def standardised(train: Pair, test: Pair, reals: bool) -> Parts:
    """Columns, and real targets, less the training data's mean, in units of their deviation."""
    centre, scale = train[0].mean(0), train[0].std(0).clamp(min=1e-6)
    x, other = ((part - centre).div(scale).float() for part in (train[0], test[0]))
    if not reals:
        return (x, train[1].long()), (other, test[1].long())
    middle, unit = train[1].mean(), train[1].std()
    return (x, (train[1] - middle).div(unit).float()), (other, (test[1] - middle).div(unit).float())


def uci(name: str, number: int) -> Parts:
    """One of the standard splits."""
    split = br.data.load_set(f"uci/{name}", split=number)
    return standardised(split.train, split.test, reals=True)


def pictures(name: str, flat: bool) -> Parts:
    """The first of the training pictures, and all of the test's."""
    split = br.data.load_set(name)
    (x, y), (other, labels) = split.train, split.test
    x, y = x[:EXAMPLES], y[:EXAMPLES]
    if flat:
        x, other = x.flatten(1), other.flatten(1)
    return (x, y), (other, labels)


def digits(seed: int) -> Parts:
    """Pixels from 0 to 1: standardised, those that are nearly always 0 would be huge where they are not."""
    x, y = datasets.load_digits(return_X_y=True)
    order = np.random.default_rng(2000 + seed).permutation(len(y))
    pixels, labels = torch.tensor(x[order] / 16).float(), torch.tensor(y[order])
    few = len(y) // 5
    return (pixels[few:], labels[few:]), (pixels[:few], labels[:few])


def small_pictures(seed: int) -> Parts:
    """Digits as pictures of 8 by 8."""
    (x, y), (other, labels) = digits(seed)
    return (x.reshape(-1, 1, 8, 8), y), (other.reshape(-1, 1, 8, 8), labels)


def made(make: Callable[..., Any], train: int, seed: int, **settings: Any) -> Parts:
    """A generated table, with 5000 rows to test on."""
    x, y = make(train + 5000, random_state=300 + seed, **settings)
    inputs, targets = torch.tensor(x), torch.tensor(y)
    if int(targets.min()) < 0:  # −1 and 1
        targets = (targets > 0).long()
    return standardised((inputs[:train], targets[:train]), (inputs[train:], targets[train:]), reals=False)


def made_reals(make: Callable[..., Any], train: int, seed: int, noise: float = 0.0, **settings: Any) -> Parts:
    """A generated table of reals, with 3000 rows to test on; ``noise`` in deviations of the targets."""
    x, y = make(train + 3000, random_state=300 + seed, **settings)
    y = y + noise * y.std() * np.random.default_rng(seed).normal(size=len(y))
    inputs, targets = torch.tensor(x), torch.tensor(y)
    return standardised((inputs[:train], targets[:train]), (inputs[train:], targets[train:]), reals=True)


def test_pictures(name: str, flat: bool) -> Parts:
    """Seven tenths of a set's test pictures to train on, the rest to test."""
    x, y = br.data.load_set(name).test
    if flat:
        x = x.flatten(1)
    return (x[:7000], y[:7000]), (x[7000:], y[7000:])


def mlp(*widths: int) -> nn.Module:
    """Linear layers with ReLU between them."""
    layers: list[nn.Module] = []
    for inputs, outputs in pairwise(widths):
        layers += [nn.Linear(inputs, outputs), nn.ReLU()]
    return nn.Sequential(*layers[:-1])


def convolutions() -> nn.Module:
    """Two convolutions and a linear layer for pictures of 8 by 8."""
    return nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(16, 32, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(128, 10),
    )


def lenet(channels: int, side: int) -> nn.Module:
    """LeNet-5."""
    return build({"name": "lenet5", "channels": channels, "side": side, "outputs": 10})


@dataclass(frozen=True)
class Recipe:
    """Data by the number of a split, a network, and how it is trained: ``decay`` is AdamW's."""

    data: Callable[[int], Parts]
    network: Callable[[], nn.Module]
    epochs: int
    lr: float = 1e-3
    decay: float = 0.0
    batch: int = 32
    splits: int = 3


RECIPES = {
    "breast cancer, Adam": Recipe(lambda s: cut(datasets.load_breast_cancer, s), lambda: mlp(30, 50, 2), 200),
    "breast cancer, AdamW": Recipe(
        lambda s: cut(datasets.load_breast_cancer, s), lambda: mlp(30, 100, 100, 2), 60, decay=0.1
    ),
    "wine, AdamW": Recipe(lambda s: cut(datasets.load_wine, s), lambda: mlp(13, 50, 3), 100, 3e-3, 0.01, 16),
    "digits, AdamW": Recipe(digits, lambda: mlp(64, 100, 100, 10), 60, decay=0.01),
    "digits, convolutions": Recipe(small_pictures, convolutions, 40),
    "diabetes, AdamW": Recipe(lambda s: cut(datasets.load_diabetes, s, True), lambda: mlp(10, 50, 1), 60, 3e-3, 0.01),
    "concrete, Adam": Recipe(lambda s: uci("concrete", 13 + s), lambda: mlp(8, 50, 1), 200, 3e-3),
    "MNIST, MLP 400-400": Recipe(
        lambda s: pictures("mnist", True), lambda: mlp(784, 400, 400, 10), 10, batch=128, splits=1
    ),
    "MNIST, LeNet-5": Recipe(lambda s: pictures("mnist", False), lambda: lenet(1, 28), 10, batch=128, splits=1),
    "CIFAR-10, LeNet-5": Recipe(lambda s: pictures("cifar10", False), lambda: lenet(3, 32), 20, batch=128, splits=1),
}

classes = partial(made, datasets.make_classification)
TUNING = {
    "noisy": Recipe(lambda s: classes(400, s, n_features=20, n_informative=8, flip_y=0.1), lambda: mlp(20, 50, 2), 200),
    "apart, AdamW": Recipe(
        lambda s: classes(450, s, n_features=30, n_informative=10, flip_y=0.0, class_sep=2.0),
        lambda: mlp(30, 100, 100, 2),
        60,
        decay=0.1,
    ),
    "apart, Adam": Recipe(
        lambda s: classes(450, s, n_features=30, n_informative=10, flip_y=0.02, class_sep=2.0),
        lambda: mlp(30, 50, 2),
        200,
    ),
    "three classes": Recipe(
        lambda s: classes(
            150,
            s,
            n_features=13,
            n_informative=6,
            n_classes=3,
            n_clusters_per_class=1,
            flip_y=0.0,
            class_sep=2.0,
        ),
        lambda: mlp(13, 50, 3),
        100,
        3e-3,
        0.01,
        16,
    ),
    "ten epochs": Recipe(
        lambda s: classes(1000, s, n_features=20, n_informative=8, flip_y=0.05), lambda: mlp(20, 50, 2), 10
    ),
    "flipped labels": Recipe(
        lambda s: classes(600, s, n_features=10, n_informative=6, n_classes=3, flip_y=0.25),
        lambda: mlp(10, 50, 50, 3),
        60,
    ),
    "few positive": Recipe(
        lambda s: classes(960, s, n_features=10, n_informative=4, weights=[0.94], flip_y=0.02),
        lambda: mlp(10, 50, 2),
        100,
    ),
    "moons": Recipe(lambda s: made(datasets.make_moons, 200, s, noise=0.3), lambda: mlp(2, 64, 64, 2), 100, 3e-3),
    "sum of squares": Recipe(lambda s: made(datasets.make_hastie_10_2, 500, s), lambda: mlp(10, 64, 2), 60),
    "blobs": Recipe(
        lambda s: made(datasets.make_blobs, 300, s, n_features=5, centers=4, cluster_std=4.5),
        lambda: mlp(5, 50, 4),
        100,
    ),
    "friedman1, AdamW": Recipe(
        lambda s: made_reals(datasets.make_friedman1, 350, s, 1.0), lambda: mlp(10, 50, 1), 60, 3e-3, 0.01
    ),
    "friedman1, Adam": Recipe(
        lambda s: made_reals(datasets.make_friedman1, 900, s, 0.1), lambda: mlp(10, 50, 1), 200, 3e-3
    ),
    "friedman2": Recipe(lambda s: made_reals(datasets.make_friedman2, 300, s, 0.3), lambda: mlp(4, 50, 1), 100, 3e-3),
    "friedman3, short": Recipe(lambda s: made_reals(datasets.make_friedman3, 500, s, 0.2), lambda: mlp(4, 50, 1), 15),
    "linear, AdamW": Recipe(
        lambda s: made_reals(datasets.make_regression, 350, s, n_features=10, n_informative=5, noise=100.0),
        lambda: mlp(10, 50, 1),
        60,
        3e-3,
        0.01,
    ),
    "linear, by heart": Recipe(
        lambda s: made_reals(datasets.make_regression, 200, s, n_features=20, n_informative=4, noise=150.0),
        lambda: mlp(20, 50, 50, 1),
        60,
        decay=0.01,
    ),
    "energy": Recipe(lambda s: uci("energy", s), lambda: mlp(8, 50, 1), 200, 3e-3),
    "yacht": Recipe(lambda s: uci("yacht", s), lambda: mlp(6, 50, 1), 200, 3e-3),
    "boston": Recipe(lambda s: uci("boston", s), lambda: mlp(13, 50, 1), 100, 3e-3),
    "digits, AdamW": Recipe(lambda s: digits(50 + s), lambda: mlp(64, 100, 100, 10), 60, decay=0.01),
    "digits, convolutions": Recipe(lambda s: small_pictures(50 + s), convolutions, 40),
    "Fashion-MNIST, MLP 400-400": Recipe(
        lambda s: test_pictures("fashion-mnist", True), lambda: mlp(784, 400, 400, 10), 10, batch=128, splits=1
    ),
    "KMNIST, LeNet-5": Recipe(lambda s: test_pictures("kmnist", False), lambda: lenet(1, 28), 10, batch=128, splits=1),
    "Fashion-MNIST, LeNet-5": Recipe(
        lambda s: test_pictures("fashion-mnist", False), lambda: lenet(1, 28), 20, batch=128, splits=1
    ),
}


@dataclass(frozen=True)
class Asked:
    """A network, by its recipe and the number of the split."""

    name: str
    split: int
    tuning: bool = False

    @property
    def recipe(self) -> Recipe:
        """How it is trained."""
        return (TUNING if self.tuning else RECIPES)[self.name]

    def key(self) -> dict[str, object]:
        """All that decides what it gives."""
        recipe = self.recipe
        return {
            "name": self.name,
            "split": self.split,
            "tuning": self.tuning,
            "epochs": recipe.epochs,
            "decay": recipe.decay,
            "lr": recipe.lr,
        }


def trained(recipe: Recipe, train: Pair, seed: int) -> tuple[nn.Module, float]:
    """A network as plain torch leaves it, and the processor time of an epoch, the median of all."""
    torch.manual_seed(seed)
    network = recipe.network()
    optimizer = torch.optim.AdamW(network.parameters(), lr=recipe.lr, weight_decay=recipe.decay)
    x, y = train
    times = []
    for _ in range(recipe.epochs):
        began = time.process_time()
        for rows in torch.randperm(len(y)).split(recipe.batch):
            optimizer.zero_grad()
            outputs = network(x[rows])
            if y.is_floating_point():
                loss = nn.functional.mse_loss(outputs.squeeze(1), y[rows])
            else:
                loss = nn.functional.cross_entropy(outputs, y[rows])
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
        times.append(time.process_time() - began)
    return network.eval(), median(times)


def run(asked: Asked) -> dict[str, Any]:
    """Test NLL and accuracy before and after, what was chosen, and what it cost."""
    recipe = asked.recipe
    train, test = recipe.data(asked.split)
    network, epoch = trained(recipe, train, asked.split)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "the network is left as it is")
        times = []
        for _ in range(TIMES):
            began = time.process_time()
            after = br.fit(network, train, "laplace", epochs=0)
            times.append(time.process_time() - began)
        seconds = median(times)
    before = br.fit(network, train, "map", epochs=0)
    found: dict[str, Any] = {"seconds": seconds, "seconds of an epoch": epoch, "epochs": seconds / epoch}
    for name, posterior in (("net", before), ("laplace", after)):
        found[name] = -float(posterior.predict(test[0]).log_prob(test[1]).mean())
    on_train = before.predict(train[0]).log_prob(train[1])
    found["net on its training data"] = -float(on_train.mean())
    found["spread"] = float(after.spread)  # type: ignore[attr-defined]
    found["test examples"] = len(test[1])
    return found


def summary(runs: list[dict[str, Any]]) -> dict[str, Any]:
    """Means over splits."""
    found: dict[str, Any] = {key: mean(one[key] for one in runs) for key in runs[0] if key != "spread"}
    found["splits"] = [[one["net"], one["laplace"]] for one in runs]
    found["difference"] = found["laplace"] - found["net"]
    found["largest difference of a split"] = max(one["laplace"] - one["net"] for one in runs)
    found["spreads"] = [one["spread"] for one in runs]
    return found


def draw(found: dict[str, dict[str, Any]], path: Path) -> None:
    """What Laplace's method adds to the NLL of each network."""
    figure = Figure(figsize=(7, 4.2), layout="constrained")
    axes = figure.add_subplot()
    names = list(found)[::-1]
    axes.barh(names, [found[name]["difference"] for name in names], color="#4878cf")
    axes.axvline(SLACK, color="#b03030", linestyle="--")
    axes.set_xlabel("NLL after Laplace's method, less the network's own")
    axes.grid(axis="x", alpha=0.3)
    figure.savefig(path, dpi=150)


def main() -> None:
    """Run, print, write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("docs/results"))
    parser.add_argument("--cache", type=Path, default=Path("results/posthoc"))
    parser.add_argument("--tuning", action="store_true", help="the networks that the rule was chosen on instead")
    parser.add_argument("--only", default="", help="networks whose name holds this; nothing is written")
    parser.add_argument("--floor", action="store_true", help="only: what cannot be done without, on the smallest table")
    args = parser.parse_args()
    torch.set_num_threads(1)
    if args.floor:
        floor(args.out)
        return
    found: dict[str, dict[str, Any]] = {}
    for name, recipe in (TUNING if args.tuning else RECIPES).items():
        if args.only not in name:
            continue
        asked = [Asked(name, split, args.tuning) for split in range(recipe.splits)]
        runs = jobs.run(run, asked, cache=args.cache, key=Asked.key, say=said, tell=print)
        found[name] = summary(runs)
        row = found[name]
        print(f"{name:26} net {row['net']:.4f} laplace {row['laplace']:.4f} epochs {row['epochs']:.2f}", flush=True)
    bars = {
        "never above the network's by more than .005": all(row["difference"] <= SLACK for row in found.values()),
        "largest rise of a split": max(row["largest difference of a split"] for row in found.values()),
        "below it in": sum(row["difference"] < -GAIN for row in found.values()),
        "at most an epoch in": sum(row["epochs"] <= 1 for row in found.values()),
    }
    print(bars)
    if args.only or args.tuning:
        return
    about = provenance("BAYESRULE_DATA=data python benchmarks/posthoc.py", seed=0)
    result = about | {"threads": 1, "results": found, "bars": bars}
    write_atomically(args.out / "posthoc.json", json.dumps(result, indent=1, default=str))
    draw(found, args.out / "posthoc.png")


def floor(out: Path) -> None:
    """What no Laplace approximation of the smallest table does without, beside an epoch: milliseconds, medians."""
    recipe = RECIPES["wine, AdamW"]
    train, _ = recipe.data(0)
    network, epoch = trained(recipe, train, 0)
    calls: dict[str, Callable[[], object]] = {
        "checks": lambda: br.fit(network, train, "map", epochs=0),
        "curvature": lambda: curvature(network, [train], br.likelihoods.Categorical(), "kronecker", "last-layer"),
        "laplace": lambda: br.fit(network, train, "laplace", epochs=0),
    }
    found = {"epoch": 1000 * epoch} | {name: 1000 * timed(call) for name, call in calls.items()}
    found["floor"] = found["checks"] + found["curvature"]
    print(found)
    about = provenance("python benchmarks/posthoc.py --floor", seed=0)
    write_atomically(out / "posthoc-floor.json", json.dumps(about | {"threads": 1, "results": found}, indent=1))


def timed(call: Callable[[], object]) -> float:
    """Processor time of a call, the median of many, after one to warm up."""
    call()
    times = []
    for _ in range(4 * TIMES):
        began = time.process_time()
        call()
        times.append(time.process_time() - began)
    return median(times)


def said(asked: Asked, row: dict[str, Any]) -> str:
    """A network and its scores."""
    return f"{asked.name} {asked.split}: net {row['net']:.4f}, laplace {row['laplace']:.4f}, spread {row['spread']:g}"


if __name__ == "__main__":
    main()
