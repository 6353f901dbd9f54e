"""Laplace's method: what it costs, and what it is worth.

    BAYESRULE_DATA=data python benchmarks/laplace_method.py cost --out docs/results
    BAYESRULE_DATA=data python benchmarks/laplace_method.py uci --out docs/results

``cost``: curvature in epochs of plain training, taken in turns, on 12 000 digits of MNIST, of untrained networks and of
networks after 20 epochs; and the time of a linearised prediction against laplace-torch's, if that is installed.
``uci``: prior and noise by evidence against the best of a grid, on the test set of split 0; finished trainings are kept
in ``--cache``. What it is worth on images is the experiment ``bayesrule reproduce laplace-structures --full``.
"""

from __future__ import annotations

import argparse
import json
import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import torch
from matplotlib.figure import Figure
from torch import Tensor, nn

import bayesrule as br
from bayesrule import jobs
from bayesrule.curvature import curvature, jacobians
from bayesrule.experiments.base import fingerprint
from bayesrule.files import write_atomically
from bayesrule.likelihoods import Categorical
from bayesrule.methods import Laplace
from bayesrule.models import build
from bayesrule.report import provenance

Table = dict[str, Any]
NETWORKS = {
    "MLP 784-400-400-10": ({"name": "mlp", "inputs": 784, "outputs": 10, "hidden": [400, 400]}, 128),
    "LeNet-5": ({"name": "lenet5", "channels": 1, "side": 28, "outputs": 10}, 100),
}
CURVATURES = {
    "last layer, dense": {"structure": "dense", "subset": "last-layer"},
    "Kronecker": {"structure": "kronecker"},
    "diagonal": {"structure": "diagonal"},
    "Kronecker, sampled": {"structure": "kronecker", "labels": "sampled"},
    "diagonal, sampled": {"structure": "diagonal", "labels": "sampled"},
}
EXAMPLES, EPOCHS, ROUNDS = 12_000, 20, 3
SETS = {
    "boston": 3,
    "concrete": 3,
    "energy": 3,
    "kin8nm": 1,
    "naval": 1,
    "power": 1,
    "protein": 1,
    "wine": 3,
    "yacht": 3,
}


def seconds(call: Callable[[], object]) -> float:
    """How long a call takes."""
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


def epoch(model: nn.Module, batches: list[tuple[Tensor, Tensor]]) -> None:
    """Forward, backward, Adam."""
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    for x, y in batches:
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()


def pictures(size: int) -> list[tuple[Tensor, Tensor]]:
    """Some of MNIST, in batches."""
    x, y = (part[:EXAMPLES] for part in br.data.load_set("mnist").train)
    return list(zip(x.split(size), y.split(size), strict=True))


def cost(cache: Path) -> Table:
    """Ratios of times, medians over rounds."""
    found: Table = {"epochs of plain training": {}}
    for name, (spec, size) in NETWORKS.items():
        model, batches = build(spec, seed=0), pictures(size)
        rows: dict[str, float] = {}
        for state in ("untrained", "trained"):
            for run, settings in CURVATURES.items():
                rows[f"{run}, {state}"] = ratio(model, build(spec, seed=0), batches, settings)
                print(f"{name:20} {run}, {state}: {rows[f'{run}, {state}']}", flush=True)
            for _ in range(EPOCHS if state == "untrained" else 0):
                epoch(model, batches)
        found["epochs of plain training"][name] = rows
        if spec["name"] == "mlp":
            found["seconds for 256 inputs, all weights of the MLP, Kronecker"] = prediction(model, batches)
    return found


def ratio(model: nn.Module, other: nn.Module, batches: list[tuple[Tensor, Tensor]], settings: dict[str, Any]) -> float:
    """The curvature of a model in epochs of another that is training, in turns."""
    ratios = []
    for _ in range(ROUNDS):
        plain = seconds(lambda: epoch(other, batches))
        ratios.append(seconds(lambda: curvature(model, batches, Categorical(), **settings)) / plain)
    return round(median(ratios), 2)


def prediction(model: nn.Module, batches: list[tuple[Tensor, Tensor]]) -> dict[str, float]:
    """Mean and covariance of 256 outputs by the tangent, ours and laplace-torch's."""
    data = tuple(torch.cat(parts)[:1000] for parts in zip(*batches, strict=True))
    x = torch.cat([x for x, _ in batches])[:256]
    posterior = br.fit(model, data, Laplace("all", "kronecker", tune="nothing"), epochs=0)
    times = {"bayesrule": median(seconds(lambda: posterior.moments(x)) for _ in range(3))}  # type: ignore[attr-defined]
    try:
        from laplace import Laplace as Peer
    except ImportError:
        return times
    loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(*data), batch_size=100)
    peer = Peer(model, "classification", subset_of_weights="all", hessian_structure="kron")
    peer.fit(loader)
    times["laplace-torch"] = seconds(lambda: peer._glm_predictive_distribution(x))
    times["ratio"] = times["laplace-torch"] / times["bayesrule"]
    print(times, flush=True)
    return times


def uci(cache: Path) -> Table:
    """Test log-likelihoods, means over networks: three where the data are few."""
    found: Table = {}
    for name, seeds in SETS.items():
        asked = [Network(f"uci/{name}", seed) for seed in range(seeds)]
        runs = jobs.run(tuned, asked, cache=cache, key=Network.key, say=said, tell=print)
        found[name] = {key: sum(run[key] for run in runs) / seeds for key in runs[0]} | {"runs": runs}
    return found


@dataclass(frozen=True)
class Network:
    """A set of data and the seed of a network."""

    data: str
    seed: int

    def key(self) -> dict[str, object]:
        """All that decides what it gives."""
        return {**jobs.plain(self), "fingerprint": fingerprint(self.data, None)}


def said(asked: Network, scores: dict[str, float]) -> str:
    """A network and its scores."""
    return f"{asked.data} {asked.seed} { {k: round(v, 3) for k, v in scores.items()} }"


def tuned(asked: Network) -> dict[str, float]:
    """By evidence while training, by evidence afterwards, and the best of a grid about the former."""
    split, seed = br.data.load_set(asked.data), asked.seed
    train = br.data.standardize(split.train)

    def network() -> nn.Module:
        torch.manual_seed(seed)
        return nn.Sequential(nn.Linear(train.all().x.shape[1], 50), nn.ReLU(), nn.Linear(50, 1))  # type: ignore[union-attr]

    steps = max(10_000, 20 * train.n // 32)
    epochs = math.ceil(steps / train.steps(32))
    method = Laplace("all", precision="layer", tune_every=max(1, epochs // 50))
    posterior = br.fit(network(), train, method, epochs=epochs, seed=seed)
    after = br.fit(network(), train, Laplace("all"), seed=seed)
    point = br.fit(network(), train, "map", seed=seed)
    best = grid(posterior, train, split.test)  # type: ignore[arg-type]
    found = {"while training": posterior, "afterwards": after, "map, held-out noise": point}
    scores = {k: float(q.predict(split.test[0]).log_prob(split.test[1]).mean()) for k, q in found.items()}
    return scores | best | {"difference": scores["while training"] - best["grid"], "test examples": len(split.test[1])}


def grid(posterior: br.posteriors.Linearised, train: Any, test: tuple[Tensor, Tensor]) -> dict[str, float]:
    """The best test log-likelihood over factors on prior variance and noise variance, in double precision."""
    model = posterior.model.double().requires_grad_(True)
    scales = posterior.info["diagnostics"]["prior_scale"]
    s = torch.cat([torch.full((w.numel(),), scales[k], dtype=torch.float64) for k, w in posterior.mean.items()])
    features = sum(
        (j.T @ j for x, _ in train.ordered(1000) for j in [jacobians(model, x.double())[:, 0] * s]), torch.zeros(())
    )
    noise = float(posterior.likelihood.noise) ** 2  # type: ignore[attr-defined]
    values, vectors = torch.linalg.eigh(features / noise)
    x, targets = posterior.inputs(test[0]).double(), train.scaling.targets  # type: ignore[union-attr]
    along = ((jacobians(model, x)[:, 0] * s) @ vectors).square()
    away = (targets.forward(test[1].double()) - model(x)[:, 0]).detach().square()
    best = {"grid": -math.inf, "log10 prior": 0.0, "log10 noise": 0.0}
    for prior in [0.5 * i for i in range(-8, 9)]:
        for level in [0.25 * i for i in range(-4, 5)]:
            t, c = 10**prior, 10**level
            total = along @ (t / (1 + t / c * values.clamp(min=0))) + noise * c
            score = -0.5 * float((away / total + (2 * math.pi * total).log()).mean()) - math.log(float(targets.scale))
            if score > best["grid"]:
                best = {"grid": score, "log10 prior": prior, "log10 noise": level}
    return best


def draw(name: str, found: Table, path: Path) -> None:
    """Bars, one panel for each part of a table."""
    panels = panels_of(name, found)
    figure = Figure(figsize=(6.5 * len(panels), 4.2), layout="constrained")
    for place, (title, rows, limit) in enumerate(panels):
        axes = figure.add_subplot(1, len(panels), place + 1)
        axes.barh(list(rows)[::-1], list(rows.values())[::-1], color="#4878cf")
        axes.set_title(title)
        if limit is not None:
            axes.axvline(limit, color="#b03030", linestyle="--")
        axes.grid(axis="x", alpha=0.3)
    figure.savefig(path, dpi=150)


def panels_of(name: str, found: Table) -> list[tuple[str, dict[str, float], float | None]]:
    """Title, bars and a line for each panel."""
    if name == "cost":
        return [(f"{net}: epochs", rows, 1.0) for net, rows in found["epochs of plain training"].items()]
    return [("test log-likelihood less the grid's best", {k: v["difference"] for k, v in found.items()}, -0.05)]


def main() -> None:
    """Run, print, write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    tables = {"cost": cost, "uci": uci}
    parser.add_argument("table", choices=tables)
    parser.add_argument("--out", type=Path, default=Path("docs/results"))
    parser.add_argument("--cache", type=Path, default=Path("results/laplace"))
    parser.add_argument("--threads", type=int, default=1)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    found = tables[args.table](args.cache)
    about = provenance(f"BAYESRULE_DATA=data python benchmarks/laplace_method.py {args.table}", seed=0)
    result = about | {"threads": args.threads, "results": found}
    write_atomically(args.out / f"laplace-{args.table}.json", json.dumps(result, indent=1, default=str))
    draw(args.table, found, args.out / f"laplace-{args.table}.png")


if __name__ == "__main__":
    main()
