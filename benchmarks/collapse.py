"""Does `br.evaluate.collapse` tell collapsed fits from others, on data that its thresholds were not set on?

    python benchmarks/collapse.py --out docs/results

The thresholds were set on two moons. Here networks of one hidden layer are fitted to diabetes (reals) and to 400 digits
(ten classes) at temperatures τ·p/N from far too high to low. Whether a fit has collapsed is judged by examples that it
has not seen: it has, if an example gains less than 0.02 nats over the best constant outputs, and has not, if it gains
more than 0.1 nats; a fit in between is neither, and does not count. Finished fits are kept in ``--cache``.
"""

from __future__ import annotations

import argparse
import json
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import bayesrule as br
from bayesrule import jobs
from bayesrule.files import write_atomically
from bayesrule.report import provenance

SETS = {"diabetes": 300, "digits": 400}  # with so many examples to learn from
WIDTHS = {"diabetes": (50, 500, 5000), "digits": (50, 500)}
METHODS = ("bbb", "ivon")
TAUS = (3000.0, 62.5, 1.0)
SEEDS = (2,)
NOTHING, SOMETHING = 0.02, 0.1  # nats
STEPS = 2000


@dataclass(frozen=True)
class Fit:
    """One fit."""

    data: str
    width: int
    method: str
    tau: float
    seed: int


def pairs(name: str, seed: int) -> tuple[tuple[Tensor, Tensor], tuple[Tensor, Tensor]]:
    """Examples to learn from and others, in units of their deviations."""
    split = br.data.load_set(name)
    assert split.train is not None
    x, y = (torch.cat([a, b]) for a, b in zip(split.train, split.test, strict=True))
    order = torch.randperm(len(y), generator=torch.Generator().manual_seed(seed))
    x = (x - x.mean(0)) / x.std(0).clamp_min(1e-3)
    if y.is_floating_point():
        y = (y - y.mean()) / y.std()
    seen, rest = order[: SETS[name]], order[SETS[name] :]
    return (x[seen].float(), y[seen]), (x[rest].float(), y[rest])


def judged(asked: Fit) -> dict[str, Any]:
    """What the diagnosis says, and what unseen examples gain."""
    train, test = pairs(asked.data, asked.seed)
    classes = 1 if train[1].is_floating_point() else 10
    spec = {"name": "mlp", "inputs": train[0].shape[1], "outputs": classes, "hidden": [asked.width]}
    network = br.models.build(spec, asked.seed)
    temperature = br.Balanced(asked.tau)
    steps = -(-SETS[asked.data] // 32)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of the collapse, which is asked for below
        posterior = br.fit(
            network, train, asked.method, prior="fan-in", temperature=temperature, epochs=-(-STEPS // steps),
            batch_size=32, val=0, seed=asked.seed,
        )  # fmt: skip
    found = br.evaluate.collapse(posterior, train)
    gain = float(posterior.predict(test[0], samples=100).log_prob(test[1]).mean()) - constant(test[1])
    return {"collapsed": found.collapsed, "at_prior": found.at_prior, "gain": gain}


def constant(y: Tensor) -> float:
    """Mean log-likelihood of the best predictions that are the same for all."""
    if y.is_floating_point():
        return float(torch.distributions.Normal(y.mean(), y.std(correction=0)).log_prob(y).mean())
    shares = torch.bincount(y) / len(y)
    return float(shares[y].log().mean())


def main() -> None:
    """Run, print, write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("docs/results"))
    parser.add_argument("--cache", type=Path, default=Path("results/collapse"))
    args = parser.parse_args()
    torch.set_num_threads(1)
    asked = [
        Fit(data, width, method, tau, seed)
        for seed in SEEDS for data in SETS for width in WIDTHS[data] for method in METHODS for tau in TAUS
    ]  # fmt: skip
    answers = jobs.run(judged, asked, cache=args.cache, tell=print)
    fits = [jobs.plain(question) | answer for question, answer in zip(asked, answers, strict=True)]
    silent = [fit for fit in fits if fit["gain"] < NOTHING]
    telling = [fit for fit in fits if fit["gain"] > SOMETHING]
    found = {
        "collapsed": len(silent),
        "of which told": sum(fit["collapsed"] for fit in silent),
        "not collapsed": len(telling),
        "of which wrongly told": sum(fit["collapsed"] for fit in telling),
        "neither": len(fits) - len(silent) - len(telling),
        "fits": fits,
    }
    result = provenance("python benchmarks/collapse.py", seed=min(SEEDS)) | {"threads": 1, "results": found}
    write_atomically(args.out / "collapse-diagnosis.json", json.dumps(result, indent=1))
    print(json.dumps({name: value for name, value in found.items() if name != "fits"}, indent=1))


if __name__ == "__main__":
    main()
