"""One settled scale of the prior against scales by layer: ``prior=None`` and ``prior="by-layer"``, test NLL.

    python benchmarks/by_layer.py --out docs/results

Point networks, so that nothing but the prior differs, and the tables' columns standardised; a fifth is the test set,
splits 0 to 2. ``seconds`` is processor time of the fit. Nothing was tuned on these sets: what is proposed, and when it
is taken, came from other generated tables.
"""

from __future__ import annotations

import argparse
import json
import time
import warnings
from dataclasses import dataclass
from pathlib import Path
from statistics import mean
from typing import Any

import numpy as np
import torch
from sklearn import datasets
from torch import Tensor, nn

import bayesrule as br
from bayesrule import jobs
from bayesrule.files import write_atomically
from bayesrule.report import commit, provenance

SPLITS = 3
PRIORS = {"one scale": None, "by layer": "by-layer"}
SETS = ("two groups", "breast cancer", "wine", "diabetes", "digits")
Pair = tuple[Tensor, Tensor]


class Groups(nn.Module):
    """Two linear layers of twenty columns each, added up."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(20, 1), nn.Linear(20, 1)

    def forward(self, x: Tensor) -> Tensor:
        """The sum of both."""
        return self.first(x[:, :20]) + self.second(x[:, 20:])


@dataclass(frozen=True)
class Asked:
    """A set, its split and the prior."""

    name: str
    split: int
    prior: str

    def key(self) -> dict[str, object]:
        """Trainings of other code are no answers."""
        return jobs.plain(self) | {"commit": commit()}


def groups(seed: int) -> tuple[Pair, Pair]:
    """y = 2·(a sum of the first twenty columns) + 0.05·(one of the others) + noise of 1: 120 rows, 2000 to test on."""
    generator = torch.Generator().manual_seed(1000 + seed)
    x = torch.randn(2120, 40, generator=generator)
    w = torch.randn(40, generator=generator) * torch.tensor([2.0, 0.05]).repeat_interleave(20)
    y = x @ w + torch.randn(2120, generator=generator)
    return (x[:120], y[:120]), (x[120:], y[120:])


def table(name: str, seed: int) -> tuple[Pair, Pair]:
    """Four fifths to train on, columns and reals standardised by them."""
    x, y = getattr(datasets, f"load_{name.replace(' ', '_')}")(return_X_y=True)
    order = np.random.default_rng(3000 + seed).permutation(len(y))
    inputs, targets = torch.tensor(x[order]), torch.tensor(y[order])
    few = len(y) // 5
    scaled = ((inputs - inputs[few:].mean(0)) / inputs[few:].std(0).clamp(min=1e-6)).float()
    if targets.is_floating_point():
        targets = ((targets - targets[few:].mean()) / targets[few:].std()).float()
    return (scaled[few:], targets[few:]), (scaled[:few], targets[:few])


def problem(asked: Asked) -> tuple[nn.Module, Pair, Pair]:
    """A network from a start of the split's own, and its data."""
    torch.manual_seed(asked.split)
    if asked.name == "two groups":
        return Groups(), *groups(asked.split)
    if asked.name == "digits":
        split = br.data.load_set("digits", seed=asked.split)
        return br.models.mlp(64, 10), split.train, split.test
    train, test = table(asked.name, asked.split)
    outputs = 1 if train[1].is_floating_point() else int(train[1].max()) + 1
    return br.models.mlp(train[0].shape[1], outputs, (50, 50)), train, test


def run(asked: Asked) -> dict[str, Any]:
    """Test NLL, what was settled and the processor time."""
    network, train, test = problem(asked)
    began = time.process_time()
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "y holds whole numbers")
        posterior = br.fit(network, train, "map", prior=PRIORS[asked.prior], seed=asked.split)
    seconds = time.process_time() - began
    nll = -float(posterior.predict(test[0]).log_prob(test[1]).mean())
    return {"nll": nll, "seconds": seconds, "settled": posterior.info["prior"]["settled"]}


def main() -> None:
    """Run, print, write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("docs/results"))
    parser.add_argument("--cache", type=Path, default=Path("results/by-layer"))
    args = parser.parse_args()
    torch.set_num_threads(1)
    found: dict[str, Any] = {}
    for name in SETS:
        row: dict[str, Any] = {}
        for prior in PRIORS:
            asked = [Asked(name, split, prior) for split in range(SPLITS)]
            runs = jobs.run(run, asked, cache=args.cache, key=Asked.key)
            row[prior] = {key: mean(one[key] for one in runs) for key in ("nll", "seconds")} | {"runs": runs}
        row["layers taken in"] = sum(one["settled"]["layers"]["scales"] is not None for one in row["by layer"]["runs"])
        found[name] = row
        nlls = " ".join(f"{prior} {row[prior]['nll']:.4f}" for prior in PRIORS)
        print(f"{name:14} {nlls}; taken in {row['layers taken in']} of {SPLITS}", flush=True)
    about = provenance("python benchmarks/by_layer.py", seed=0)
    result = about | {"threads": 1, "splits": SPLITS, "results": found}
    write_atomically(args.out / "by-layer.json", json.dumps(result, indent=1))


if __name__ == "__main__":
    main()
