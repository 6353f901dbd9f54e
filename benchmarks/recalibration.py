"""Recalibration over ten splits: temperature, vector and isotonic scaling of one network, and the one that is chosen.

    python benchmarks/recalibration.py --out docs/results

Of each split a fifth is tested on, and a fifth of the rest is held out for the recalibration. Networks are MAP under
the default prior, and, to be too sure, maximum likelihood. What is chosen is decided on the held-out examples alone.
"""

from __future__ import annotations

import argparse
import json
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

import torch
from sklearn.datasets import load_breast_cancer

import bayesrule as br
from bayesrule import jobs
from bayesrule.data.splits import cut
from bayesrule.files import write_atomically
from bayesrule.models import build
from bayesrule.posteriors import Posterior, recalibrated
from bayesrule.report import provenance

SPLITS, EPOCHS, HELD = 10, 60, 0.2
KINDS = {"temperature": "temperature", "vector": "vector", "isotonic": "isotonic", "best of all": "all"}
METHODS = ("map", "mle")


def examples(name: str) -> tuple[torch.Tensor, torch.Tensor]:
    """All examples of a set."""
    if name == "digits":
        return br.data.digits()
    x, y = load_breast_cancer(return_X_y=True)
    return torch.from_numpy(x).float(), torch.from_numpy(y).long()


@dataclass(frozen=True)
class Question:
    """A set, a method and a split."""

    name: str
    method: str
    seed: int


def measured(question: Question) -> dict[str, dict[str, Any]]:
    """NLL and ECE on test examples, as training left it and after each kind, and whether it was used."""
    name, method, seed = question.name, question.method, question.seed
    rest, test = cut(*examples(name), test=0.2, seed=seed)
    train, held = cut(*rest, test=HELD, seed=seed)
    x, y = train
    model = build({"name": "mlp", "inputs": x.shape[1], "outputs": int(y.max()) + 1, "hidden": [64, 64]}, seed)
    data = train if name == "digits" else br.data.standardize(train)
    plain = br.fit(model, data, method, epochs=EPOCHS, seed=seed, val=0)
    found = {"none": _scores(plain, test, False)}
    for called, kinds in KINDS.items():
        other = recalibrated(plain, held, kinds=kinds)
        found[called] = _scores(other, test, other.info["calibration"]["chosen"] is not None)
    return found


def _scores(posterior: Posterior, test: Any, used: bool) -> dict[str, Any]:
    scores = br.evaluate(posterior, test, bootstrap=0)
    return {"nll": scores["nll"], "ece": scores["ece"], "accuracy": scores["accuracy"], "used": float(used)}


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
    parser.add_argument("--out", type=Path, help="a directory for recalibration.json")
    parser.add_argument("--cache", type=Path, help="a directory that keeps each split that is done")
    args = parser.parse_args()
    found: dict[str, Any] = provenance("python benchmarks/recalibration.py", seed=0)
    found |= {"splits": SPLITS, "epochs": EPOCHS, "sets": {}}
    for name in ("breast cancer", "digits"):
        found["sets"][name] = {}
        for method in METHODS:
            questions = [Question(name, method, seed) for seed in range(SPLITS)]
            rows = jobs.run(measured, questions, cache=args.cache)
            found["sets"][name][method] = summary(rows)
            print(name, method, json.dumps(found["sets"][name][method]), flush=True)
    if args.out is not None:
        write_atomically(args.out / "recalibration.json", json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
