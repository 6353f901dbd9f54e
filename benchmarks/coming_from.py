"""The code of docs/coming-from.md side by side: laplace-torch and a plain ensemble against `br.fit`, interleaved.

    pip install laplace-torch
    python benchmarks/coming_from.py --out docs/results

A round is a split of the digits and a network that a plain loop trains. All ways to Laplace take this very network;
both ensembles train five networks by Adam from the same rate, in as many epochs and batches of the same size; a plain
loop keeps its rate, `br.fit` lets it fall. The time
is the processor's, from the network to the probabilities of the test pictures; rounds turn the order around. All
settings are the defaults of each library but for what makes the two alike.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from pathlib import Path
from statistics import fmean, median, stdev

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import bayesrule as br
from bayesrule.data import Split
from bayesrule.evaluate import score
from bayesrule.files import write_atomically
from bayesrule.predictions import Classes
from bayesrule.report import provenance

EPOCHS, BATCH, RATE, MEMBERS = 15, 32, 1e-2, 5
Way = Callable[[nn.Module, Split], Tensor]


def network(seed: int) -> nn.Module:
    """The network of every way, with fresh weights."""
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))


def loader(split: Split) -> DataLoader[tuple[Tensor, ...]]:
    """Shuffled batches of the training pictures."""
    return DataLoader(TensorDataset(*split.train), batch_size=BATCH, shuffle=True)


def trained(split: Split, seed: int) -> nn.Module:
    """A network by a plain loop."""
    model = network(seed)
    optimizer = torch.optim.Adam(model.parameters(), lr=RATE)
    for _ in range(EPOCHS):
        for x, y in loader(split):
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(x), y).backward()
            optimizer.step()
    return model


@torch.no_grad()
def plain(model: nn.Module, split: Split) -> Tensor:
    """The network itself."""
    return model(split.test[0]).softmax(1)


def by_laplace_torch(model: nn.Module, split: Split) -> Tensor:
    """Kronecker factors of the last layer, the prior by the evidence."""
    from laplace import Laplace

    la = Laplace(model, "classification", subset_of_weights="last_layer", hessian_structure="kron")
    la.fit(loader(split))
    la.optimize_prior_precision(method="marglik")
    return la(split.test[0], link_approx="probit").detach()


def by_bayesrule(model: nn.Module, split: Split) -> Tensor:
    """The same here."""
    method = br.methods.Laplace(subset="last-layer", structure="kronecker", tune="evidence", predictive="probit")
    return br.fit(model, split.train, method, epochs=0).predict(split.test[0]).probs


def by_default(model: nn.Module, split: Split) -> Tensor:
    """What is done here where nothing is said."""
    return br.fit(model, split.train, "laplace", epochs=0).predict(split.test[0]).probs


def plain_ensemble(model: nn.Module, split: Split) -> Tensor:
    """Five loops, and the mean of their probabilities."""
    members = [trained(split, seed) for seed in range(1, MEMBERS + 1)]
    return torch.stack([plain(member, split) for member in members]).mean(0)


def ensemble(model: nn.Module, split: Split) -> Tensor:
    """Five members under no prior, as the plain ones are."""
    method = br.methods.Ensemble(members=MEMBERS, base=br.methods.MLE(lr=RATE))
    posterior = br.fit(network(1), split.train, method, epochs=EPOCHS, batch_size=BATCH)
    return posterior.predict(split.test[0]).probs


WAYS: dict[str, Way] = {
    "one network": plain,
    "laplace-torch": by_laplace_torch,
    "bayesrule, the same": by_bayesrule,
    "bayesrule, its default": by_default,
    "plain ensemble": plain_ensemble,
    "bayesrule ensemble": ensemble,
}


def measured(seed: int, turned: bool) -> dict[str, dict[str, float]]:
    """Seconds of the processor and scores of each way on one split."""
    split = br.data.load_set("digits", seed=seed)
    model = trained(split, seed)
    found = {}
    for name, way in list(WAYS.items())[:: -1 if turned else 1]:
        before = {key: value.clone() for key, value in model.state_dict().items()}
        began = time.process_time()
        probs = way(model, split)
        seconds = time.process_time() - began
        model.load_state_dict(before)
        model.requires_grad_(True)
        scores = score(Classes(probs.log().clamp(min=-100)[None]), split.test[1], bootstrap=0)
        found[name] = {"seconds": seconds, **{key: scores[key] for key in ("accuracy", "nll", "ece")}}
    return found


def warm_up(split: Split) -> None:
    """Imports and first calls are nobody's."""
    for way in (by_laplace_torch, by_bayesrule, by_default):
        way(network(0), split)


def main() -> None:
    """Measure, print, write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--out", type=Path, default=Path("docs/results"))
    args = parser.parse_args()
    torch.set_num_threads(1)
    warm_up(br.data.load_set("digits", seed=0))
    rounds = [measured(seed, turned=bool(seed % 2)) for seed in range(args.rounds)]
    table = {}
    for name in WAYS:
        row: dict[str, float] = {"processor": median(each[name]["seconds"] for each in rounds)}
        for key in ("accuracy", "nll", "ece"):
            values = [each[name][key] for each in rounds]
            row |= {key: fmean(values), f"{key} error": stdev(values) / len(values) ** 0.5}
        table[name] = row
        print(f"{name:20}" + "  ".join(f"{key} {value:.4f}" for key, value in row.items()))
    pairs = (
        ("bayesrule, the same", "laplace-torch"),
        ("bayesrule, its default", "laplace-torch"),
        ("bayesrule ensemble", "plain ensemble"),
    )
    ratios = {f"{a} / {b}": median(each[a]["seconds"] / each[b]["seconds"] for each in rounds) for a, b in pairs}
    print(ratios)
    about = provenance(f"python benchmarks/coming_from.py --rounds {args.rounds}", seed=0)
    about["versions"] |= {"laplace-torch": version()}
    result = about | {"rounds": args.rounds, "table": table, "time, median of ratios": ratios}
    write_atomically(args.out / "coming-from.json", json.dumps(result, indent=1))


def version() -> str:
    """Of the other library."""
    from importlib.metadata import version

    return version("laplace-torch")


if __name__ == "__main__":
    main()
