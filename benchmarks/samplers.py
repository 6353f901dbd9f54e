"""Samplers: what they are worth on small tables, and what they cost beside bare gradients.

    BAYESRULE_DATA=data python benchmarks/samplers.py settings --out docs/results
    BAYESRULE_DATA=data python benchmarks/samplers.py uci --out docs/results
    BAYESRULE_DATA=data python benchmarks/samplers.py more --out docs/results
    BAYESRULE_DATA=data python benchmarks/samplers.py beside --splits 3 --out docs/results
    python benchmarks/samplers.py cost --out docs/results

``settings``: the method and what else was tried, one setting changed at a time at the same number of gradients, by the
log-likelihood of two tenths of the training rows of split 0 of four UCI sets, which are held out; no test row is seen.
``uci``: the mean test log-likelihood on
the standard splits of these sets, of 8 microcanonical chains over heteroscedastic networks of 2 × 16 units, and the
processor's seconds that fit and prediction took. ``more``: minus that of standardised targets, on five random splits of
airfoil and bike sharing with a fifth of the rows to test. ``beside``: ``uci`` and, split by split in the same run,
``bde`` of scikit-learn-contrib on JAX, which ``pip install sklearn-contrib-bde`` brings. Finished fits are kept in
``--cache``. ``cost``: the time of HMC's transitions over that of as many bare gradients, and of a step of 8 chains over
that of one, both in turns, which wants a quiet machine; and what gradients of networks that are too large for one batch
cost by `torch.vmap` and in processes.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import math
import os
import time
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import mean, median, stdev
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

import bayesrule as br
from bayesrule import jobs
from bayesrule.experiments.base import fingerprint
from bayesrule.files import write_atomically
from bayesrule.likelihoods import Heteroscedastic
from bayesrule.methods import HMC, MCLMC, Noise, Plan
from bayesrule.methods.log_posterior import LogPosterior
from bayesrule.methods.sampling_learner import ADAM_STEPS
from bayesrule.report import provenance

Table = dict[str, Any]
Rows = tuple[Tensor, Tensor]
SETS = {"yacht": 20, "energy": 20, "boston": 20, "concrete": 20}
MORE = {"airfoil": 5, "bikesharing": 5}
HEADS = {"log-variance": Heteroscedastic(), "log-deviation": Heteroscedastic(deviation=True)}
TENTHS = (0, 1)  # of the training rows of split 0, held out one after the other
SHOWN = 1000  # test rows at most, by which mixing is told
METHOD = MCLMC(chains=8, draws=50, thin=110, warm_up=30, training=20)
HEAD = "log-deviation"
BDE = {  # its example's lengths of training; sizes of the chains as for the figures that it is known by
    "n_members": 8,
    "hidden_layers": [16, 16],
    "epochs": 1000,
    "patience": 20,
    "validation_split": 0.15,
    "warmup_steps": 2000,
    "n_samples": 400,
    "n_thinning": 10,
    "seed": 0,
}
ROUNDS = 11


class Setting(NamedTuple):
    """A method, and what the second output of its networks is."""

    method: MCLMC
    head: str


def as_dear(**changes: Any) -> MCLMC:
    """The method with other fields, and draws as far apart as lets a chain take as many gradients as before."""
    changed = replace(METHOD, **changes)
    left = gradients(METHOD) - ADAM_STEPS * changed.training
    return replace(changed, thin=round(left / (changed.warm_up + changed.draws)))


def gradients(method: MCLMC) -> int:
    """Of a chain: in training, in the warm-up, and up to the last draw."""
    return ADAM_STEPS * method.training + method.thin * (method.warm_up + method.draws)


AS_IT_IS = "as it is"
SETTINGS = {
    AS_IT_IS: Setting(METHOD, HEAD),
    "log-variance": Setting(METHOD, "log-variance"),
    "variance=0.05": Setting(as_dear(variance=0.05), HEAD),
    "variance=0.2": Setting(as_dear(variance=0.2), HEAD),
    "variance=0.5": Setting(as_dear(variance=0.5), HEAD),
    "training=40": Setting(as_dear(training=40), HEAD),
    "warm_up=15": Setting(as_dear(warm_up=15), HEAD),
    "warm_up=60": Setting(as_dear(warm_up=60), HEAD),
}


@dataclass(frozen=True)
class Split:
    """One split of one set, and what the second output of networks is."""

    data: str
    split: int
    head: str

    def key(self) -> dict[str, Any]:
        """All that decides what it gives."""
        return {**jobs.plain(self), "method": repr(METHOD), "fingerprint": fingerprint(f"uci/{self.data}", None)}

    def key_of_both(self) -> dict[str, Any]:
        """The same with the other library's settings."""
        return self.key() | {"bde": repr(BDE)}

    def key_of_more(self) -> dict[str, Any]:
        """The same for a set without standard splits."""
        digest = hashlib.sha256(more_file(self.data).read_bytes()).hexdigest()
        return {**jobs.plain(self), "method": repr(METHOD), "fingerprint": digest}


@dataclass(frozen=True)
class Choice:
    """One of the settings, tried on one set with a tenth of its training rows held out."""

    data: str
    setting: str
    tenth: int

    def key(self) -> dict[str, Any]:
        """All that decides what it gives, which the name of a setting does not."""
        setting = SETTINGS[self.setting]
        own = {"data": self.data, "tenth": self.tenth, "head": setting.head, "method": repr(setting.method)}
        return own | {"fingerprint": fingerprint(f"uci/{self.data}", None)}


def network(inputs: int) -> nn.Module:
    """2 × 16 units, a mean and the logarithm of the noise."""
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(inputs, 16), nn.SiLU(), nn.Linear(16, 16), nn.SiLU(), nn.Linear(16, 2))


def scored(train: Rows, test: Rows, head: str, method: MCLMC = METHOD) -> Table:
    """Log-likelihood of the test rows in the units of y and of standardised y, seconds, and whether chains mixed."""
    data = br.data.standardize(train)
    began = time.process_time()
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "chains have not mixed")
        posterior = br.fit(network(train[0].shape[1]), data, method, HEADS[head], prior=1.0)
    prediction = posterior.predict(test[0], samples=method.chains * method.draws)
    found = float(prediction.log_prob(test[1]).mean())
    took = time.process_time() - began
    mixing = br.evaluate.chains(posterior, test[0][:SHOWN])
    scaled = found + math.log(float(train[1].std(correction=0)))
    kept = {"log-likelihood": found, "standardised": scaled, "processor": took}
    return kept | {"r_hat": mixing.worst, "ess": mixing.least}


def sampled(asked: Split) -> Table:
    """One split of a UCI set."""
    split = br.data.load_set(f"uci/{asked.data}", split=asked.split)
    assert split.train is not None
    return scored(split.train, split.test, asked.head)


def sampled_by_both(asked: Split) -> Table:
    """One split of a UCI set, by this library and by bde."""
    split = br.data.load_set(f"uci/{asked.data}", split=asked.split)
    assert split.train is not None
    return {"bayesrule": scored(split.train, split.test, asked.head), "bde": scored_by_bde(split.train, split.test)}


def scored_by_bde(train: Rows, test: Rows) -> Table:
    """Log-likelihood of the test rows under the mixture of all its networks, and seconds of all its threads."""
    from bde import BdeRegressor  # type: ignore[import-not-found]

    (x, y), (new, wanted) = train, test
    centre, spread = x.mean(0), x.std(0, correction=0).clamp_min(1e-12)
    middle, unit = y.mean(), y.std(correction=0)
    began = time.process_time()
    regressor = BdeRegressor(**BDE)
    regressor.fit(((x - centre) / spread).numpy(), ((y - middle) / unit).numpy())
    raw = regressor.predict(((new - centre) / spread).numpy(), raw=True)
    outputs = torch.from_numpy(np.array(raw)).double().flatten(0, 1)  # networks, rows, mean and raw scale
    deviation = nn.functional.softplus(outputs[..., 1]) + 1e-6
    log_probs = torch.distributions.Normal(outputs[..., 0], deviation).log_prob((wanted - middle) / unit)
    scaled = float((log_probs.logsumexp(0) - math.log(len(outputs))).mean())
    took = time.process_time() - began
    return {"log-likelihood": scaled - math.log(float(unit)), "standardised": scaled, "processor": took}


def sampled_at_random(asked: Split) -> Table:
    """One random split of a set that has no standard ones."""
    table = torch.from_numpy(np.loadtxt(more_file(asked.data)))
    order = torch.randperm(len(table), generator=torch.Generator().manual_seed(asked.split))
    rows = table[order]
    count = round(0.8 * len(rows))
    return scored((rows[:count, :-1], rows[:count, -1]), (rows[count:, :-1], rows[count:, -1]), asked.head)


def tried(asked: Choice) -> Table:
    """One setting, by a tenth of the training rows of split 0."""
    split = br.data.load_set(f"uci/{asked.data}", split=0)
    assert split.train is not None
    x, y = split.train
    order = torch.randperm(len(y), generator=torch.Generator().manual_seed(0))
    parts = list(order.split(len(y) // 10))
    held = parts.pop(asked.tenth)
    seen = torch.cat(parts)
    setting = SETTINGS[asked.setting]
    return scored((x[seen], y[seen]), (x[held], y[held]), setting.head, setting.method)


def more_file(name: str) -> Path:
    """Of airfoil or bike sharing."""
    return Path(os.environ["BAYESRULE_DATA"]) / "UCI_More" / f"{name}.data"


def settings(args: argparse.Namespace) -> Table:
    """Log-likelihoods of held-out training rows, gains over the method as it is, and which setting is taken."""
    asked = [Choice(name, setting, tenth) for tenth in TENTHS for setting in SETTINGS for name in SETS]
    answers = jobs.run(tried, asked, processes=args.jobs, cache=args.cache, tell=print, key=Choice.key)
    found: Table = {"method": repr(METHOD), "head": HEAD, "tenths": list(TENTHS), "rule": chosen.__doc__}
    runs = {question: answer for question, answer in zip(asked, answers, strict=True)}
    base = [runs[Choice(name, AS_IT_IS, tenth)]["standardised"] for name in SETS for tenth in TENTHS]
    gains = {}
    for setting in SETTINGS:
        own = [runs[Choice(name, setting, tenth)] for name in SETS for tenth in TENTHS]
        scores = [answer["standardised"] for answer in own]
        gains[setting] = [score - before for score, before in zip(scores, base, strict=True)]
        found[setting] = held_out(scores) | {
            "gain": round(mean(gains[setting]), 3),
            "standard error": round(error_of(gains[setting]), 3),
            "thin": SETTINGS[setting].method.thin,
            "processor seconds": round(mean(answer["processor"] for answer in own), 1),
            "runs": own,
        }
    return found | {"chosen": chosen(gains)}


def held_out(scores: Sequence[float]) -> dict[str, float]:
    """The mean over the tenths of each set, and over all."""
    each = [scores[first : first + len(TENTHS)] for first in range(0, len(scores), len(TENTHS))]
    own = {name: round(mean(part), 3) for name, part in zip(SETS, each, strict=True)}
    return own | {"mean": round(mean(scores), 3)}


def error_of(gains: Sequence[float]) -> float:
    """The standard error of their mean."""
    return stdev(gains) / len(gains) ** 0.5


def chosen(gains: dict[str, list[float]]) -> str:
    """The setting of the largest mean gain over sets and tenths, if it is above its standard error; else as it is."""
    best = max(gains, key=lambda setting: mean(gains[setting]))
    return best if mean(gains[best]) > error_of(gains[best]) else AS_IT_IS


def uci(args: argparse.Namespace) -> Table:
    """All standard splits."""
    names = args.sets.split(",") if args.sets else list(SETS)
    asked = [Split(name, split, args.head) for name in names for split in range(min(SETS[name], args.splits))]
    answers = jobs.run(sampled, asked, processes=args.jobs, cache=args.cache, tell=print, key=Split.key)
    return summary(asked, answers, "log-likelihood", 1.0)


def beside(args: argparse.Namespace) -> Table:
    """Both libraries, split by split."""
    names = args.sets.split(",") if args.sets else list(SETS)
    asked = [Split(name, split, args.head) for name in names for split in range(min(SETS[name], args.splits))]
    answers = jobs.run(sampled_by_both, asked, processes=args.jobs, cache=args.cache, tell=print, key=Split.key_of_both)
    found: Table = {}
    for library in ("bayesrule", "bde"):
        own = summary(asked, [answer[library] for answer in answers], "log-likelihood", 1.0)
        found[library] = own | {"method": repr(METHOD) if library == "bayesrule" else repr(BDE)}
    return found


def more(args: argparse.Namespace) -> Table:
    """Five random splits of each set."""
    names = args.sets.split(",") if args.sets else list(MORE)
    asked = [Split(name, split, args.head) for name in names for split in range(min(MORE[name], args.splits))]
    answers = jobs.run(sampled_at_random, asked, processes=args.jobs, cache=args.cache, tell=print, key=Split.key_of_more)
    return summary(asked, answers, "standardised", -1.0)


def summary(asked: Sequence[Split], answers: Sequence[Table], score: str, sign: float) -> Table:
    """Means over the splits of each set."""
    found: Table = {"method": repr(METHOD), "head": asked[0].head}
    for name in dict.fromkeys(question.data for question in asked):
        own = [answer for question, answer in zip(asked, answers, strict=True) if question.data == name]
        scores = [sign * answer[score] for answer in own]
        found[name] = {
            "log-likelihood" if sign > 0 else "standardised NLL": round(mean(scores), 3),
            "standard error": round(stdev(scores) / len(scores) ** 0.5, 3) if len(scores) > 1 else None,
            "splits": len(scores),
            "processor seconds": round(mean(answer["processor"] for answer in own), 1),
            "most processor seconds": round(max(answer["processor"] for answer in own), 1),
            **_worst([answer["r_hat"] for answer in own if "r_hat" in answer]),
            "lowest split": round(min(scores), 2),
            "highest split": round(max(scores), 2),
            "runs": own,
        }
    return found


def _worst(r_hats: Sequence[float]) -> Table:
    """Of chains that were looked at."""
    return {"worst R̂ of predictions, median over splits": round(median(r_hats), 2)} if r_hats else {}


def cost(args: argparse.Namespace) -> Table:
    """Ratios of times, medians over rounds taken in turns: of the processor on one thread, by the clock on two."""
    found: Table = {}
    for threads, clock in ((1, time.process_time), (2, time.perf_counter)):
        torch.set_num_threads(threads)
        for activation in ("tanh", "relu"):
            ratios = chains_over_one(activation, clock)
            found |= {f"{name}, {activation}, threads: {threads}": ratio for name, ratio in ratios.items()}
    torch.set_num_threads(1)
    return found | ways()


def chains_over_one(activation: str, clock: Callable[[], float]) -> dict[str, float]:
    """HMC's transitions over bare gradients, and a step of 8 chains over that of one."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(500, 8, generator=generator)
    y = x.sum(1).sin() + 0.1 * torch.randn(500, generator=generator)
    model = br.models.mlp(8, 1, hidden=(50,), activation=activation)
    task = br.Task.create(model, (x, y), br.likelihoods.Gaussian(0.1), prior=1.0)
    one, eight = (stepping(task, task.data.all(), count) for count in (1, 8))
    found: dict[str, list[float]] = {"hmc over gradients, 1 chain": [], "hmc over gradients, 8 chains": []}
    found["8 chains over 1"] = []
    for _ in range(ROUNDS):
        step, bare, step_of_all, bare_of_all = (seconds(call, clock) for call in (*one, *eight))
        for name, ratio in zip(found, (step / bare, step_of_all / bare_of_all, step_of_all / step), strict=True):
            found[name].append(ratio)
    return {name: round(median(ratios), 2) for name, ratios in found.items()}


def ways() -> Table:
    """Gradients of 4 LeNets on 512 pictures: by `torch.vmap` and in two processes, over one after the other."""
    generator = torch.Generator().manual_seed(0)
    data = torch.rand(512, 1, 28, 28, generator=generator), torch.randint(10, (512,), generator=generator)
    task = br.Task.create(br.models.build({"name": "lenet5", "channels": 1, "side": 28, "outputs": 10}), data)
    density = LogPosterior(task, 4)
    rows = density.start(task.model).expand(4, -1)
    by_vmap = []
    for _ in range(ROUNDS):
        times = {}
        for way in ("loop", "vmap"):
            density.networks.way = way
            target = density.of(task.data.all())
            times[way] = seconds(lambda: target(rows))  # noqa: B023
        by_vmap.append(times["vmap"] / times["loop"])
    density.networks.way = "loop"
    alone = median(seconds(lambda: density.of(task.data.all())(rows)) for _ in range(ROUNDS))
    together = (in_processes(task, rows, 110) - in_processes(task, rows, 10)) / 100
    return {
        "4 LeNets: vmap over one after the other": round(median(by_vmap), 2),
        "4 LeNets: two processes over one after the other, of all processors": round(together / alone, 2),
    }


def in_processes(task: br.Task, rows: Tensor, count: int) -> float:
    """Processor's seconds of so many gradients and of the start of two processes, in all of them."""
    before = sum(os.times()[:4])
    density = LogPosterior(task, len(rows), workers=2)
    target = density.of(task.data.all())
    for _ in range(count):
        target(rows)
    del density, target  # which ends the processes: only then do their times count
    return sum(os.times()[:4]) - before


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


def seconds(call: Callable[[], object], clock: Callable[[], float] = time.process_time) -> float:
    """Of the processor unless another clock is given: others may be at work as well."""
    start = clock()
    call()
    return clock() - start


def main() -> None:
    """Run, print, write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    tables = {"settings": settings, "uci": uci, "more": more, "beside": beside, "cost": cost}
    parser.add_argument("table", choices=tables)
    parser.add_argument("--out", type=Path, default=Path("docs/results"))
    parser.add_argument("--cache", type=Path, default=Path("results/samplers"))
    parser.add_argument("--sets", help="of 'uci', 'more' or 'beside', with commas; all without")
    parser.add_argument("--head", choices=HEADS, default=HEAD, help="what networks tell of the noise")
    parser.add_argument("--splits", type=int, default=20, help="of each set, at most")
    parser.add_argument("--jobs", type=int, default=1, help="fits side by side, each on one thread")
    args = parser.parse_args()
    torch.set_num_threads(1)
    found = tables[args.table](args)
    command = f"python benchmarks/samplers.py {args.table}"
    if args.table != "cost":
        command = f"BAYESRULE_DATA=data {command}"
    if args.sets:
        command += f" --sets {args.sets}"
    if args.head != HEAD:
        command += f" --head {args.head}"
    if args.splits < 20:
        command += f" --splits {args.splits}"
    if args.jobs > 1:
        command += f" --jobs {args.jobs}"
    result = provenance(command, seed=0) | {"threads": 1, "results": found}
    write_atomically(args.out / f"samplers-{args.table}.json", json.dumps(result, indent=1))
    print(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
