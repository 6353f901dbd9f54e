"""Recalibration over ten splits: every kind of one network, and the one that is chosen.

    python benchmarks/recalibration.py --out docs/results
    BAYESRULE_DATA=data python benchmarks/recalibration.py mnist --out docs/results
    python benchmarks/recalibration.py numbers --out docs/results

Of each split a fifth is tested on, and a fifth of the rest is held out for the recalibration; of MNIST a split is
10 000 of the pictures to train on, and the test pictures are the official ones. Networks are MAP under the default
prior, and, to be too sure, maximum likelihood. What is chosen is decided on the held-out examples alone.
"""

from __future__ import annotations

import argparse
import json
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

import torch
from sklearn.datasets import load_breast_cancer, load_diabetes

import bayesrule as br
from bayesrule import jobs
from bayesrule.data import Pair
from bayesrule.data.splits import cut
from bayesrule.files import write_atomically
from bayesrule.models import build
from bayesrule.posteriors import Posterior, recalibrated
from bayesrule.report import provenance

SPLITS, HELD, PICTURES = 10, 0.2, 10_000
TABLES = {"small": ("breast cancer", "digits"), "mnist": ("mnist",), "numbers": ("diabetes",)}
EPOCHS = {"breast cancer": 60, "digits": 60, "mnist": 10, "diabetes": 60}
CLASSES = {"temperature": "temperature", "vector": "vector", "isotonic": "isotonic", "best of all": "all"}
KINDS = {"diabetes": {"scale": "scale"}}
"""Of numbers whose noise the network tells; of all else there are the `CLASSES`."""
PIXELS = ("digits", "mnist")
METHODS = ("map", "mle")


def examples(name: str) -> Pair:
    """All examples of a set that is not divided yet."""
    if name == "digits":
        return br.data.digits()
    x, y = (load_breast_cancer if name == "breast cancer" else load_diabetes)(return_X_y=True)
    target = torch.from_numpy(y)
    return torch.from_numpy(x).float(), target.float() if name == "diabetes" else target.long()


def parts(name: str, seed: int) -> tuple[Pair, Pair, Pair]:
    """Examples to train on, to recalibrate on and to test on."""
    if name == "mnist":
        split = br.data.load_set("mnist")
        x, y = split.train
        some = torch.randperm(len(y), generator=torch.Generator().manual_seed(seed))[:PICTURES]
        rest, test = (x[some], y[some]), split.test
    else:
        rest, test = cut(*examples(name), test=0.2, seed=seed)
    return *cut(*rest, test=HELD, seed=seed), test


@dataclass(frozen=True)
class Question:
    """A set, a method and a split."""

    name: str
    method: str
    seed: int


def measured(question: Question) -> dict[str, dict[str, Any]]:
    """NLL and ECE on test examples, as training left it and after each kind, and whether it was used."""
    name, method, seed = question.name, question.method, question.seed
    train, held, test = parts(name, seed)
    x, y = train
    numbers = y.is_floating_point()
    outputs = 2 if numbers else int(y.max()) + 1
    model = build({"name": "mlp", "inputs": x[0].numel(), "outputs": outputs, "hidden": [64, 64]}, seed)
    data = train if name in PIXELS else br.data.standardize(train)
    likelihood = "heteroscedastic" if numbers else None
    plain = br.fit(model, data, method, likelihood, epochs=EPOCHS[name], seed=seed, val=0)
    found = {"none": _scores(plain, test, False)}
    for called, kinds in KINDS.get(name, CLASSES).items():
        other = recalibrated(plain, held, kinds=kinds)
        found[called] = _scores(other, test, other.info["calibration"]["chosen"] is not None)
    return found


def _scores(posterior: Posterior, test: Any, used: bool) -> dict[str, Any]:
    scores = br.evaluate(posterior, test, bootstrap=0)
    shown = ("nll", "ece", "accuracy", "coverage_90", "rmse")
    return {name: scores[name] for name in shown if name in scores} | {"used": float(used)}


def summary(rows: list[dict[str, dict[str, Any]]]) -> dict[str, Any]:
    """Means, and differences of the NLL from that of no recalibration with their standard errors."""
    found: dict[str, Any] = {}
    for kind in rows[0]:
        found[kind] = {score: round(fmean(row[kind][score] for row in rows), 4) for score in rows[0][kind]}
        change = [row[kind]["nll"] - row["none"]["nll"] for row in rows]
        found[kind]["change"] = round(fmean(change), 4)
        found[kind]["error"] = round(stdev(change) / len(change) ** 0.5, 4)
    return found


def main() -> None:
    """Measure, write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("table", nargs="?", choices=TABLES, default="small")
    parser.add_argument("--out", type=Path, help="a directory for recalibration.json")
    parser.add_argument("--cache", type=Path, help="a directory that keeps each split that is done")
    args = parser.parse_args()
    name = "recalibration" if args.table == "small" else f"recalibration-{args.table}"
    command = "python benchmarks/recalibration.py" + ("" if args.table == "small" else f" {args.table}")
    if args.table == "mnist":
        command = f"BAYESRULE_DATA=data {command}"
    sets = TABLES[args.table]
    found: dict[str, Any] = provenance(command, seed=0)
    found |= {"splits": SPLITS, "epochs": EPOCHS[sets[0]], "sets": {}}
    for which in sets:
        found["sets"][which] = {}
        for method in METHODS:
            questions = [Question(which, method, seed) for seed in range(SPLITS)]
            rows = jobs.run(measured, questions, cache=args.cache, tell=print)
            found["sets"][which][method] = summary(rows)
            print(which, method, json.dumps(found["sets"][which][method]), flush=True)
    if args.out is not None:
        write_atomically(args.out / f"{name}.json", json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
