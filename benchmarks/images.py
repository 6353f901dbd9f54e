"""Methods on MNIST and CIFAR-10: accuracy, NLL, ECE, and on MNIST the AUROC by entropy against Fashion-MNIST.

    BAYESRULE_DATA=data python benchmarks/images.py variational --out docs/results
    BAYESRULE_DATA=data python benchmarks/images.py natural --out docs/results

Either table has both baselines, without regularisation (``adam``, ``mle``) and with it (``map``: the prior as weight
decay), in the same run as what is compared with them. On two cores ``natural`` takes about 100 minutes and
``variational`` four hours. Each row of a table is trained for every seed and scored with 32 draws on all test examples;
rows that are done are kept in ``--cache``, so an interrupted run goes on. Inputs of CIFAR-10 are standardised per
channel, those of MNIST are in [0, 1], as the command line has them.
"""

from __future__ import annotations

import argparse
import json
from dataclasses import dataclass, field
from pathlib import Path
from statistics import mean
from typing import Any

from matplotlib.figure import Figure
from matplotlib.ticker import NullFormatter

import bayesrule as br
from bayesrule import jobs
from bayesrule.experiments.base import fingerprint
from bayesrule.files import write_atomically
from bayesrule.methods import BBB, IVON, MAP, MLE, VOGN, Method
from bayesrule.models import build, default_for
from bayesrule.naming import to_spec
from bayesrule.priors import Gaussian, Prior
from bayesrule.report import provenance

SCORES = ("accuracy", "nll", "ece", "auroc_ood")
SIMULATIONS = 100  # of a calibrated prediction, behind the null of the ECE


@dataclass(frozen=True)
class Row:
    """One line of the table."""

    data: str
    method: Method
    epochs: int
    prior: Prior | str | None = None
    temperature: float = 1.0
    hidden: tuple[int, ...] = ()
    batch_size: int | None = None
    seeds: tuple[int, ...] = field(default=(0, 1, 2))


CAUTIOUS = BBB(lr=1e-2, sigma_lr_ratio=0.1)
WIDE = BBB(lr=1e-2, sigma_lr_ratio=1.0)
SLOW = BBB(sigma_lr_ratio=1.0, lr=3e-3)
# of σ₀ = 0.02, 0.05, 0.08 the best on 10 000 held-out training digits
LOUD = BBB(lr=1e-3, sigma_lr_ratio=0.1, initial_std=0.05)
VARIATIONAL = {
    "LeNet-5, MNIST: mle": Row("mnist", MLE(), 10),
    "LeNet-5, MNIST: map": Row("mnist", MAP(), 10),
    "LeNet-5, MNIST: bbb": Row("mnist", CAUTIOUS, 10),
    "LeNet-5, CIFAR-10: mle": Row("cifar10", MLE(), 20, seeds=(0, 1)),
    "LeNet-5, CIFAR-10: map": Row("cifar10", MAP(), 20, "kaiming", seeds=(0, 1)),
    "LeNet-5, CIFAR-10: bbb, η = 0.3": Row("cifar10", WIDE, 20, "kaiming", 0.3),
    "LeNet-5, CIFAR-10: bbb, η = 1": Row("cifar10", WIDE, 20, "kaiming", 1.0, seeds=(0, 1)),
    "MLP 400-400, MNIST: map": Row("mnist", MAP(lr=3e-3), 20, hidden=(400, 400), seeds=(0,)),
    "MLP 400-400, MNIST: bbb": Row("mnist", BBB(lr=1e-3, sigma_lr_ratio=0.1), 20, hidden=(400, 400), seeds=(0,)),
    "MLP 400-400, MNIST: bbb, σ₀ = 0.05, 50 epochs": Row("mnist", LOUD, 50, hidden=(400, 400), seeds=(0,)),
    "MLP 400-400, MNIST: bbb, σ₀ = 0.05, 200 epochs": Row("mnist", LOUD, 200, hidden=(400, 400), seeds=(0, 1)),
    "MLP 400-400, MNIST: bbb, η = 0.1": Row("mnist", SLOW, 60, "kaiming", 0.1, hidden=(400, 400), seeds=(0,)),
}
ADAM = MLE(lr=1e-3)
DECAYED = MAP(lr=1e-3)  # the same with the prior as its weight decay: what a Gaussian over the weights has to beat
NARROW = Gaussian(0.4)  # about the weight decay 1e-4
# Narrow deviations that hardly move, and the first steps those of SGD at 0.5 on MNIST and 0.1 on CIFAR-10.
STILL = {"initial_std": 0.02, "tempering": 0.0}
IVON_ON_MNIST = IVON(lr=0.02089, betas=(0.9, 0.99999), **STILL)
VOGN_ON_MNIST = VOGN(lr=0.02089, betas=(0.9, 0.9999), **STILL)
IVON_ON_CIFAR = IVON(lr=0.005, betas=(0.9, 0.99999), **STILL)
VOGN_ON_CIFAR = VOGN(lr=0.005, betas=(0.9, 0.9999), **STILL)
NATURAL = {
    "LeNet-5, MNIST: adam": Row("mnist", ADAM, 10, batch_size=100),
    "LeNet-5, MNIST: map": Row("mnist", DECAYED, 10, NARROW, batch_size=100),
    "LeNet-5, MNIST: ivon": Row("mnist", IVON_ON_MNIST, 10, NARROW, batch_size=100),
    "LeNet-5, MNIST: vogn": Row("mnist", VOGN_ON_MNIST, 10, NARROW, batch_size=100),
    "LeNet-5, CIFAR-10: adam": Row("cifar10", ADAM, 20, batch_size=100),
    "LeNet-5, CIFAR-10: map": Row("cifar10", DECAYED, 20, batch_size=100),
    "LeNet-5, CIFAR-10: map, Kaiming's prior": Row("cifar10", DECAYED, 20, "kaiming", batch_size=100),
    "LeNet-5, CIFAR-10: ivon": Row("cifar10", IVON_ON_CIFAR, 20, batch_size=100),
    "LeNet-5, CIFAR-10: vogn": Row("cifar10", VOGN_ON_CIFAR, 20, batch_size=100),
}
TABLES = {"variational": VARIATIONAL, "natural": NATURAL}


@dataclass(frozen=True)
class Training:
    """One seed of a row."""

    name: str
    row: Row
    seed: int

    def key(self) -> dict[str, object]:
        """All that decides what it gives."""
        return {"row": self.row, "seed": self.seed, "data": fingerprint(self.row.data, None)}


def train(asked: Training) -> dict[str, float]:
    """Scores of one training."""
    row, seed = asked.row, asked.seed
    split = br.data.load_set(row.data)
    spec = default_for(split)
    if row.hidden:
        inputs = split.train[0][0].numel()
        spec = {"name": "mlp", "inputs": inputs, "outputs": 10, "hidden": list(row.hidden)}
    train: Any = br.data.standardize(split.train) if row.data == "cifar10" else split.train
    settings = {"prior": row.prior, "temperature": row.temperature, "epochs": row.epochs, "seed": seed}
    posterior = br.fit(build(spec, seed), train, row.method, val=0, batch_size=row.batch_size, **settings)
    ood = br.data.load_set("fashion-mnist").test[0] if row.data == "mnist" else None
    scores = br.evaluate(posterior, split.test, ood, bootstrap=SIMULATIONS)
    found = {name: float(scores[name]) for name in SCORES if name in scores}
    return found | {"ece_null": scores.null("ece").mean, "seconds": posterior.info["seconds"]}


def said(asked: Training, scores: dict[str, float]) -> str:
    """A training and its scores."""
    return f"{asked.name:36} seed {asked.seed}: " + ", ".join(f"{k} {v:.4f}" for k, v in scores.items())


def draw(table: dict[str, list[dict[str, float]]], path: Path) -> None:
    """A dot for each seed, a panel for each score."""
    figure = Figure(figsize=(13, 3.4), layout="constrained")
    names = list(table)[::-1]
    for place, score in enumerate(SCORES):
        axes = figure.add_subplot(1, len(SCORES), place + 1)
        for y, name in enumerate(names):
            runs = [run for run in table[name] if score in run]
            values = [1 - run[score] if score in ("accuracy", "auroc_ood") else run[score] for run in runs]
            axes.scatter(values, [y] * len(values), alpha=0.7)
        axes.set_yticks(range(len(names)), names if place == 0 else [""] * len(names))
        axes.set(title={"accuracy": "error", "auroc_ood": "1 − AUROC"}.get(score, score), xscale="log")
        axes.xaxis.set_minor_formatter(NullFormatter())
        axes.grid(alpha=0.3)
        axes.set_ylim(-0.5, len(names) - 0.5)
    figure.savefig(path, dpi=150)


def main() -> None:
    """Train, print, write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("table", choices=TABLES)
    parser.add_argument("--out", type=Path, default=Path("docs/results"))
    parser.add_argument("--cache", type=Path, default=Path("results/images"))
    parser.add_argument("--only", default="", help="rows whose name holds this")
    parser.add_argument("--jobs", type=int, default=1, help="processes side by side")
    args = parser.parse_args()
    rows = {name: row for name, row in TABLES[args.table].items() if args.only in name}
    asked = [Training(name, row, seed) for name, row in rows.items() for seed in row.seeds]
    answers = jobs.run(train, asked, (), args.jobs, args.cache, print, Training.key, said)
    table = {name: [a for t, a in zip(asked, answers, strict=True) if t.name == name] for name in rows}
    if args.only:
        return
    about = provenance(f"BAYESRULE_DATA=data python benchmarks/images.py {args.table}", seed=0)
    plain = {name: summary(row, table[name]) for name, row in rows.items()}
    result = about | {"rows": plain}
    write_atomically(args.out / f"{args.table}.json", json.dumps(result, indent=1, default=str))
    draw(table, args.out / f"{args.table}.png")


def summary(row: Row, runs: list[dict[str, float]]) -> dict[str, object]:
    """Means over seeds, every run, and what it was."""
    means = {score: round(mean(run[score] for run in runs), 5) for score in runs[0]}
    about = {"method": to_spec(row.method), "prior": str(row.prior), "temperature": row.temperature}
    return means | about | {"epochs": row.epochs, "seeds": list(row.seeds), "runs": runs}


if __name__ == "__main__":
    main()
