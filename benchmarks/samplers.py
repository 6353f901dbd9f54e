"""Samplers: what they are worth on small tables, and what they cost beside bare gradients.

    BAYESRULE_DATA=data python benchmarks/samplers.py uci --out docs/results
    python benchmarks/samplers.py cost --out docs/results

``uci``: the mean test log-likelihood on the standard splits of four UCI sets, of 8 microcanonical chains over
heteroscedastic networks of 2 × 16 units, and the processor's seconds that fit and prediction took. How long networks
are trained first was chosen on a tenth of the training rows of split 0 of concrete, after a longer training had been
seen on two or three test splits of each set.
Finished splits are kept in ``--cache``. ``cost``: the time of HMC's transitions over that of as many bare gradients,
and of a step of 8 chains over that of one, both in turns.
"""

from __future__ import annotations

import argparse
import json
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from statistics import mean, median, stdev
from typing import Any

import torch
from torch import Tensor, nn

import bayesrule as br
from bayesrule import jobs
from bayesrule.experiments.base import fingerprint
from bayesrule.files import write_atomically
from bayesrule.methods import HMC, MCLMC, Noise, Plan
from bayesrule.report import provenance

Table = dict[str, Any]
SETS = {"yacht": 20, "energy": 20, "boston": 20, "concrete": 20}
METHOD = MCLMC(chains=8, draws=50, thin=85, warm_up=30, training=20)
ROUNDS = 7


@dataclass(frozen=True)
class Split:
    """One split of one set."""

    data: str
    split: int

    def key(self) -> dict[str, Any]:
        """All that decides what it gives."""
        return {**jobs.plain(self), "method": repr(METHOD), "fingerprint": fingerprint(f"uci/{self.data}", None)}


def network(inputs: int) -> nn.Module:
    """2 × 16 units, a mean and a log-variance."""
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(inputs, 16), nn.SiLU(), nn.Linear(16, 16), nn.SiLU(), nn.Linear(16, 2))


def sampled(asked: Split) -> Table:
    """Test log-likelihood in the units of y, and seconds."""
    split = br.data.load_set(f"uci/{asked.data}", split=asked.split)
    train = br.data.standardize(split.train)
    began = time.process_time()
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "chains have not mixed")
        posterior = br.fit(network(split.train[0].shape[1]), train, METHOD, "heteroscedastic", prior=1.0)
    prediction = posterior.predict(split.test[0], samples=METHOD.chains * METHOD.draws)
    found = float(prediction.log_prob(split.test[1]).mean())
    took = time.process_time() - began
    mixing = br.evaluate.chains(posterior, split.test[0])
    return {"log-likelihood": found, "processor": took, "r_hat": mixing.worst, "ess": mixing.least}


def uci(args: argparse.Namespace) -> Table:
    """All splits."""
    names = args.sets.split(",")
    asked = [Split(name, split) for name in names for split in range(min(SETS[name], args.splits))]
    answers = jobs.run(sampled, asked, cache=args.cache, tell=print, key=Split.key)
    found: Table = {"method": repr(METHOD)}
    for name in names:
        own = [answer for question, answer in zip(asked, answers, strict=True) if question.data == name]
        scores = [answer["log-likelihood"] for answer in own]
        found[name] = {
            "log-likelihood": round(mean(scores), 3),
            "standard error": round(stdev(scores) / len(scores) ** 0.5, 3) if len(scores) > 1 else None,
            "splits": len(scores),
            "processor seconds": round(mean(answer["processor"] for answer in own), 1),
            "worst R̂ of predictions, median over splits": round(median(answer["r_hat"] for answer in own), 2),
            "runs": own,
        }
    return found


def cost(args: argparse.Namespace) -> Table:
    """Ratios of times, medians over rounds taken in turns."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(500, 8, generator=generator)
    y = x.sum(1).sin() + 0.1 * torch.randn(500, generator=generator)
    model = br.models.mlp(8, 1, hidden=(50,), activation="tanh")
    task = br.Task.create(model, (x, y), br.likelihoods.Gaussian(0.1), prior=1.0)
    batch = task.data.all()
    steps = {count: stepping(task, batch, count) for count in (1, 8)}
    found: dict[str, list[float]] = {"hmc over bare gradients, 1 chain": [], "hmc over bare gradients, 8 chains": []}
    found["8 chains over 1"] = []
    for _ in range(ROUNDS):
        times = {count: (seconds(step), seconds(bare)) for count, (step, bare) in steps.items()}
        for count, name in ((1, "1 chain"), (8, "8 chains")):
            found[f"hmc over bare gradients, {name}"].append(times[count][0] / times[count][1])
        found["8 chains over 1"].append(times[8][0] / times[1][0])
    return {name: round(median(ratios), 2) for name, ratios in found.items()}


def stepping(task: br.Task, batch: Any, chains: int) -> tuple[Callable[[], object], Callable[[], object]]:
    """A draw of HMC as the loop makes it, with seeds and logs; and as many gradients of the same density."""
    method = HMC(chains=chains, draws=10_000, warm_up=1, training=1, step=1e-4)
    noise = Noise.on(task.device)
    learner = method.start(task, Plan(10_000, 1, len(batch.y)), noise)
    learner.steps = learner.warmed
    rows: Tensor = learner.rows.detach()
    count = iter(range(10_000))
    kernel = method.kernel()

    def draw() -> None:
        for number in range(10):
            noise.seed(number, number)
            learner.step(batch)

    def bare() -> None:
        target = learner.density.of(batch)
        for _ in range(10):
            for _ in range(kernel.count(next(count))):
                target(rows)

    return draw, bare


def seconds(call: Callable[[], object]) -> float:
    """Of the processor: others may be at work as well."""
    start = time.process_time()
    call()
    return time.process_time() - start


def main() -> None:
    """Run, print, write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    tables = {"uci": uci, "cost": cost}
    parser.add_argument("table", choices=tables)
    parser.add_argument("--out", type=Path, default=Path("docs/results"))
    parser.add_argument("--cache", type=Path, default=Path("results/samplers"))
    parser.add_argument("--sets", default=",".join(SETS))
    parser.add_argument("--splits", type=int, default=20, help="of each set, at most")
    args = parser.parse_args()
    torch.set_num_threads(1)
    found = tables[args.table](args)
    prefix = "BAYESRULE_DATA=data " if args.table == "uci" else ""
    command = f"{prefix}python benchmarks/samplers.py {args.table}"
    if args.table == "uci" and (args.splits < 20 or args.sets != ",".join(SETS)):
        command += f" --sets {args.sets} --splits {args.splits}"
    result = provenance(command, seed=0) | {"threads": 1, "results": found}
    write_atomically(args.out / f"samplers-{args.table}.json", json.dumps(result, indent=1))
    print(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
