"""Bayes by Backprop on MNIST and CIFAR-10 beside MAP: accuracy, NLL, ECE, and what the temperature does.

    BAYESRULE_DATA=data python benchmarks/variational.py --out docs/results

Each row is trained for every seed and scored with 32 draws on all test examples; rows that are done are kept in
``--cache``, so an interrupted run goes on. Inputs of CIFAR-10 are standardised per channel, those of MNIST are in
[0, 1], as the command line has them.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import subprocess
from dataclasses import dataclass, field
from pathlib import Path
from statistics import mean

import torch
from matplotlib.figure import Figure
from matplotlib.ticker import NullFormatter

import bayesrule as br
from bayesrule.files import write_atomically
from bayesrule.methods import BBB, MAP, Method
from bayesrule.models import build, default_for
from bayesrule.naming import to_spec
from bayesrule.priors import Prior
from bayesrule.report.comparison import machine, versions

SCORES = ("accuracy", "nll", "ece")


@dataclass(frozen=True)
class Row:
    """One line of the table."""

    data: str
    method: Method
    epochs: int
    prior: Prior | str | None = None
    temperature: float = 1.0
    hidden: tuple[int, ...] = ()
    seeds: tuple[int, ...] = field(default=(0, 1, 2))


WIDE = BBB(sigma_lr_ratio=1.0)
SLOW = BBB(sigma_lr_ratio=1.0, lr=3e-3)
ROWS = {
    "LeNet-5, MNIST: map": Row("mnist", MAP(), 10),
    "LeNet-5, MNIST: bbb": Row("mnist", BBB(), 10),
    "LeNet-5, CIFAR-10: map": Row("cifar10", MAP(), 20, "kaiming", seeds=(0, 1)),
    "LeNet-5, CIFAR-10: bbb, η = 0.3": Row("cifar10", WIDE, 20, "kaiming", 0.3),
    "LeNet-5, CIFAR-10: bbb, η = 1": Row("cifar10", WIDE, 20, "kaiming", 1.0, seeds=(0, 1)),
    "MLP 400-400, MNIST: map": Row("mnist", MAP(lr=3e-3), 20, hidden=(400, 400), seeds=(0,)),
    "MLP 400-400, MNIST: bbb": Row("mnist", BBB(lr=1e-3), 20, hidden=(400, 400), seeds=(0,)),
    "MLP 400-400, MNIST: bbb, η = 0.1": Row("mnist", SLOW, 60, "kaiming", 0.1, hidden=(400, 400), seeds=(0,)),
}


def train(row: Row, seed: int) -> dict[str, float]:
    """Scores of one training."""
    split = br.data.load(row.data)
    spec = default_for(split)
    if row.hidden:
        inputs = split.train[0][0].numel()
        spec = {"name": "mlp", "inputs": inputs, "outputs": 10, "hidden": list(row.hidden)}
    train = br.data.standardize(split.train) if row.data == "cifar10" else split.train
    settings = {"prior": row.prior, "temperature": row.temperature, "epochs": row.epochs, "seed": seed}
    posterior = br.fit(build(spec, seed), train, row.method, val=0, **settings)
    scores = br.evaluate(posterior, split.test)
    return {name: float(scores[name]) for name in SCORES} | {"seconds": posterior.info["seconds"]}


def kept(name: str, seed: int, cache: Path) -> dict[str, float]:
    """Scores from the cache, or from a training that goes there."""
    row = ROWS[name]
    key = hashlib.sha256(f"{row} {seed}".encode()).hexdigest()[:24]  # all that decides the training
    path = cache / f"{key}.json"
    if not path.is_file():
        write_atomically(path, json.dumps(train(row, seed)))
    found: dict[str, float] = json.loads(path.read_text(encoding="utf-8"))
    print(f"{name:36} seed {seed}: " + ", ".join(f"{k} {v:.4f}" for k, v in found.items()), flush=True)
    return found


def draw(table: dict[str, list[dict[str, float]]], path: Path) -> None:
    """A dot for each seed, a panel for each score."""
    figure = Figure(figsize=(11, 3.4), layout="constrained")
    names = list(table)[::-1]
    for place, score in enumerate(SCORES):
        axes = figure.add_subplot(1, len(SCORES), place + 1)
        for y, name in enumerate(names):
            values = [1 - run[score] if score == "accuracy" else run[score] for run in table[name]]
            axes.scatter(values, [y] * len(values), alpha=0.7)
        axes.set_yticks(range(len(names)), names if place == 0 else [""] * len(names))
        axes.set(title="error" if score == "accuracy" else score, xscale="log")
        axes.xaxis.set_minor_formatter(NullFormatter())
        axes.grid(alpha=0.3)
    figure.savefig(path, dpi=150)


def main() -> None:
    """Train, print, write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("docs/results"))
    parser.add_argument("--cache", type=Path, default=Path("results/variational"))
    parser.add_argument("--only", default="", help="rows whose name holds this")
    parser.add_argument("--threads", type=int, default=1)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    names = [name for name in ROWS if args.only in name]
    table = {name: [kept(name, seed, args.cache) for seed in ROWS[name].seeds] for name in names}
    if args.only:
        return
    commit = subprocess.run(["git", "rev-parse", "HEAD"], capture_output=True, text=True).stdout.strip()
    rows = {
        name: {score: round(mean(run[score] for run in runs), 5) for score in (*SCORES, "seconds")}
        | {"method": to_spec(ROWS[name].method), "prior": str(ROWS[name].prior), "epochs": ROWS[name].epochs}
        | {"temperature": ROWS[name].temperature, "seeds": list(ROWS[name].seeds), "runs": runs}
        for name, runs in table.items()
    }
    about = {"command": "python benchmarks/variational.py", "commit": commit, "machine": machine()}
    result = about | {"versions": versions(), "rows": rows}
    write_atomically(args.out / "variational.json", json.dumps(result, indent=1, default=str))
    draw(table, args.out / "variational.png")


if __name__ == "__main__":
    main()
