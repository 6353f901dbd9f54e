"""Far from the data, before and after: posteriors with and without `DistanceAware`, on embedded sets.

    python benchmarks/distance.py --out docs/results

Each set and seed is one fit by each method, for 40 epochs, and the same posterior around its training data. How many
neighbours count and where home ends was chosen on seeds 100 and 101 of moons, gap and digits.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure

import bayesrule as br
from bayesrule.data import Split
from bayesrule.files import write_atomically
from bayesrule.models import build, default_for
from bayesrule.posteriors import DistanceAware, Posterior
from bayesrule.report import provenance
from bayesrule.report.runs import png

SEEDS = {"moons": 10, "gap": 10, "digits": 5}
METHODS = ("map", "ensemble", "laplace")
EPOCHS = 40
BY = {"classes": "mutual information", "reals": "epistemic variance"}


def posteriors(data: str, method: str, seed: int) -> tuple[Split, dict[str, Posterior]]:
    """A fit, and the same around its training data."""
    split = br.data.load_set(data, seed=seed)
    train = split.train if split.image_shape else br.data.standardize(split.train)
    fitted = br.fit(build(default_for(split), seed), train, method, epochs=EPOCHS, seed=seed)
    return split, {"before": fitted, "after": DistanceAware.around(fitted, split.train, seed)}


def measured(data: str, method: str, seed: int) -> dict[str, dict[str, float]]:
    """Scores at home, and the AUROC against strangers by epistemic uncertainty and by all of it."""
    split, both = posteriors(data, method, seed)
    found = {}
    for when, posterior in both.items():
        scores = br.evaluate(posterior, split.test, split.ood, bootstrap=0)
        told = br.evaluate.strangers(posterior, split.test, split.ood)
        first = "accuracy" if split.kind == "classes" else "rmse"
        found[when] = {
            first: scores[first],
            "nll": scores["nll"],
            "auroc": scores["auroc_ood"],
            "auroc_epistemic": told[BY[split.kind]]["auroc"],
        }
    return found


def summary(rows: list[dict[str, dict[str, float]]]) -> dict[str, Any]:
    """Means and standard errors over seeds."""
    found: dict[str, Any] = {}
    for when in rows[0]:
        found[when] = {}
        for name in rows[0][when]:
            values = [row[when][name] for row in rows]
            error = stdev(values) / len(values) ** 0.5
            found[when][name] = {"mean": round(fmean(values), 4), "error": round(error, 4)}
    change = [row["after"]["nll"] - row["before"]["nll"] for row in rows]
    found["nll_change"] = {"mean": round(fmean(change), 4), "error": round(stdev(change) / len(change) ** 0.5, 4)}
    return found


def draw(figure: Figure) -> None:
    """Confidence and mutual information over the plane of moons, before and after."""
    split, both = posteriors("moons", "ensemble", 0)
    axis = np.linspace(-5, 6, 120)
    across, up = np.meshgrid(axis, axis)
    points = torch.from_numpy(np.stack([across.ravel(), up.ravel()], 1)).float()
    panels = figure.subplots(1, 4, sharey=True)
    for index, (when, posterior) in enumerate(both.items()):
        prediction = posterior.predict(points, samples=100)
        _plane(panels[index], split, prediction.confidence, (0.5, 1), f"confidence, {when}")
        _plane(panels[2 + index], split, prediction.epistemic, (0, np.log(2)), f"mutual information, {when}")


def _plane(axes: Axes, split: Split, values: torch.Tensor, limits: tuple[float, float], title: str) -> None:
    grid = values.reshape(120, 120).numpy()
    axes.imshow(grid, extent=(-5, 6, -5, 6), origin="lower", vmin=limits[0], vmax=limits[1], cmap="viridis")
    x, y = split.train
    assert split.ood is not None
    for label, colour in enumerate(("white", "tab:red")):
        axes.plot(*x[y == label].T.numpy(), ".", color=colour, ms=2)
    axes.plot(*split.ood.T.numpy(), color="black", lw=0.8, ls=":")
    axes.set_title(title, fontsize=9)


def main() -> None:
    """Measure, draw, write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, help="a directory for distance.json and distance.png")
    args = parser.parse_args()
    found: dict[str, Any] = provenance("python benchmarks/distance.py", seed=0)
    found |= {"epochs": EPOCHS, "seeds": SEEDS, "sets": {}}
    for data, seeds in SEEDS.items():
        found["sets"][data] = {}
        for method in METHODS:
            rows = [measured(data, method, seed) for seed in range(seeds)]
            found["sets"][data][method] = summary(rows)
            print(data, method, json.dumps(found["sets"][data][method]), flush=True)
    if args.out is not None:
        figure = Figure((11, 2.9), layout="constrained")
        draw(figure)
        write_atomically(args.out / "distance.png", png(figure))
        write_atomically(args.out / "distance.json", json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
