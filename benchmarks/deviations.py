"""What the learnt deviations carry: predictions with them, and with their mean in the place of each.

    BAYESRULE_DATA=data python benchmarks/deviations.py --out docs/results

``ivon``, ``vogn`` and ``bbb`` at their defaults under N(0, 1), three seeds, each a split of its own. The posterior is
scored on the test set as it is, with σ replaced by its mean over all weights, and by its mean over each parameter: NLL,
and the AUROC of the entropy, or of the deviation, between test inputs and inputs from elsewhere. For digits these are
pictures of something else; for tables the test inputs, each column shuffled by itself.
"""

from __future__ import annotations

import argparse
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from matplotlib.figure import Figure
from sklearn.datasets import load_breast_cancer
from torch import Tensor

import bayesrule as br
from bayesrule import modules
from bayesrule.files import write_atomically
from bayesrule.posteriors import Gaussian
from bayesrule.report import provenance
from bayesrule.structures import Diagonal

METHODS = ("ivon", "vogn", "bbb")
SEEDS = (0, 1, 2)
LEARNT, ALL, EACH = "learnt", "mean of all weights", "mean of each parameter"
SCORES = {"nll": "NLL", "auroc_ood": "AUROC, out of distribution"}


@dataclass(frozen=True)
class Data:
    """What is learnt from, what it is judged on, and the network."""

    train: tuple[Tensor, Tensor]
    test: tuple[Tensor, Tensor]
    elsewhere: Tensor
    outputs: int
    hidden: tuple[int, ...]


def digits(seed: int) -> Data:
    """Four fifths of the digits; pictures that are none."""
    split = br.data.load_set("digits", seed=seed)
    assert split.train is not None
    assert split.ood is not None
    return Data(split.train, split.test, split.ood, 10, (128, 128))


def cancer(seed: int) -> Data:
    """Four fifths of the table."""
    x, y = (torch.from_numpy(array) for array in load_breast_cancer(return_X_y=True))
    order = torch.randperm(len(x), generator=torch.Generator().manual_seed(seed))
    test, train = order[: len(x) // 5], order[len(x) // 5 :]
    return Data((x[train].float(), y[train]), (x[test].float(), y[test]), shuffled(x[test].float(), seed), 2, (64, 64))


def energy(seed: int) -> Data:
    """A standard split."""
    split = br.data.load_set("uci/energy", split=seed)
    assert split.train is not None
    return Data(split.train, split.test, shuffled(split.test[0], seed), 1, (64, 64))


SETS = {"digits": digits, "breast cancer": cancer, "energy": energy}


def shuffled(x: Tensor, seed: int) -> Tensor:
    """Each column in an order of its own: the same numbers, in rows that nobody has seen."""
    generator = torch.Generator().manual_seed(seed)
    return torch.stack([column[torch.randperm(len(x), generator=generator)] for column in x.T], 1)


def levelled(posterior: Gaussian, each: bool) -> Gaussian:
    """The posterior with σ replaced by its mean: over each parameter, or over all weights."""
    deviations = dict(posterior.std)
    everywhere = modules.flatten(deviations).mean()
    for name, std in deviations.items():
        deviations[name] = (std.mean() if each else everywhere).expand(std.shape)
    precision = Diagonal(modules.flatten(deviations).pow(-2))
    return Gaussian(posterior.mean, precision, posterior.fixed, posterior.context)


def measured(name: str, method: str, seed: int) -> dict[str, Any]:
    """One fit, scored three times."""
    data = SETS[name](seed)
    torch.manual_seed(seed)
    model = br.models.mlp(data.train[0].shape[1], data.outputs, hidden=data.hidden)
    train = data.train if name == "digits" else br.data.standardize(data.train)
    posterior = br.fit(model, train, method, prior=1.0, seed=seed)
    assert isinstance(posterior, Gaussian)
    found: dict[str, Any] = {"data": name, "method": method, "seed": seed}
    deviations = modules.flatten(posterior.std)
    found["sigma"] = {str(share): float(deviations.quantile(share)) for share in (0.01, 0.5, 0.99)}
    kinds = {LEARNT: posterior, ALL: levelled(posterior, each=False), EACH: levelled(posterior, each=True)}
    for kind, each in kinds.items():
        scores = br.evaluate(each, data.test, ood=data.elsewhere, samples=64, bootstrap=0)
        found[kind] = {score: scores[score] for score in SCORES}
    print(json.dumps(found), flush=True)
    return found


def draw(rows: list[dict[str, Any]], path: Path) -> None:
    """For each data set a point for every fit: with learnt deviations, and with the two means."""
    figure = Figure(figsize=(10, 6), layout="constrained")
    panels = figure.subplots(len(SCORES), len(SETS), squeeze=False)
    for line, (score, title) in zip(panels, SCORES.items(), strict=True):
        for axes, name in zip(line, SETS, strict=True):
            for number, method in enumerate(METHODS):
                for row in rows:
                    if (row["data"], row["method"]) == (name, method):
                        values = [row[kind][score] for kind in (LEARNT, EACH, ALL)]
                        axes.plot(
                            [0, 1, 2], values, "o-", color=f"C{number}", label=method if not row["seed"] else None
                        )
            axes.set_xticks([0, 1, 2], ["learnt σ", "its mean by\nparameter", "its mean"])
            axes.set_title(f"{name}: {title}", fontsize=9)
    panels[0, 0].legend()
    figure.savefig(path, dpi=120)


def main() -> None:
    """Run, print, write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("docs/results"))
    args = parser.parse_args()
    torch.set_num_threads(1)
    about = provenance("BAYESRULE_DATA=data python benchmarks/deviations.py", seed=SEEDS[0])
    rows = [measured(name, method, seed) for name in SETS for method in METHODS for seed in SEEDS]
    means = {}
    for name in SETS:
        for method in METHODS:
            ours = [row for row in rows if (row["data"], row["method"]) == (name, method)]
            means[f"{name}, {method}"] = {
                kind: {score: sum(row[kind][score] for row in ours) / len(ours) for score in SCORES}
                for kind in (LEARNT, EACH, ALL)
            }
    write_atomically(args.out / "deviations.json", json.dumps(about | {"means": means, "fits": rows}, indent=1))
    draw(rows, args.out / "deviations.png")


if __name__ == "__main__":
    main()
