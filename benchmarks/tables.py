"""The default for tables against simple models: fourteen tables, five splits each, all from one run.

    BAYESRULE_DATA=data python benchmarks/tables.py --out docs/results

Each row is the mean over splits of the test NLL: of `BayesianClassifier` and `BayesianRegressor` as they come, and of
the base rate, a linear model, boosting, a forest, and for reals a Gaussian process, as scikit-learn has them. The
noise of those that have none of their own is that of predictions in five folds. ``standard_error`` is that of the
difference to the best of them over the splits. For classes the ECE stands beside the 95th percentile of what a
perfectly calibrated prediction with the same probabilities has; for reals the share of targets within intervals of 90
%. None of the tables was looked at when the defaults were chosen, but for other splits of the UCI sets.
"""

from __future__ import annotations

import argparse
import json
import math
import time
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from matplotlib.figure import Figure
from sklearn.ensemble import (
    HistGradientBoostingClassifier,
    HistGradientBoostingRegressor,
    RandomForestClassifier,
    RandomForestRegressor,
)
from sklearn.gaussian_process import GaussianProcessRegressor
from sklearn.gaussian_process.kernels import RBF, ConstantKernel, WhiteKernel
from sklearn.linear_model import LassoCV, LogisticRegression, RidgeCV
from sklearn.model_selection import cross_val_predict
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

import bayesrule as br
from bayesrule import jobs
from bayesrule.boards.tables import TABLES as EMBEDDED
from bayesrule.boards.tables import Array, Parts
from bayesrule.estimators import BayesianClassifier, BayesianRegressor
from bayesrule.evaluate.baselines import one_thread
from bayesrule.files import write_atomically
from bayesrule.predictions import Classes, Reals
from bayesrule.report import provenance

SPLITS = 5
LEAST = 1e-6  # probability, so that a forest that is sure and wrong is not infinitely bad
DRAWS = 500  # of labels from a prediction's own probabilities


def uci(name: str, seed: int) -> Parts:
    """The standard splits from the tenth on."""
    split = br.data.load_set(f"uci/{name}", split=10 + seed)
    return tuple(t.numpy() for t in (*split.train, *split.test))  # type: ignore[return-value]


SETS = {"boston": "boston", "concrete": "concrete", "energy": "energy", "red wine": "wine", "yacht": "yacht"}
TABLES: dict[str, Callable[[int], Parts]] = EMBEDDED | {name: partial(uci, known) for name, known in SETS.items()}


def rivals(x: Array, real: bool) -> dict[str, Any]:
    """The simple models, as they come."""
    if not real:
        return {
            "linear": make_pipeline(StandardScaler(), LogisticRegression(max_iter=5000)),
            "boosting": HistGradientBoostingClassifier(random_state=0),
            "forest": RandomForestClassifier(300, random_state=0),
        }
    found = {
        "linear": make_pipeline(StandardScaler(), RidgeCV(np.logspace(-3, 4, 15))),
        "boosting": HistGradientBoostingRegressor(random_state=0),
        "forest": RandomForestRegressor(200, random_state=0),
    }
    if x.shape[1] > len(x):
        found["lasso"] = LassoCV(alphas=30)
    elif len(x) <= 2000:
        kernel = ConstantKernel() * RBF(np.full(x.shape[1], 3.0)) + WhiteKernel(0.1)
        gp = GaussianProcessRegressor(kernel, normalize_y=True)
        found["Gaussian process"] = make_pipeline(StandardScaler(), gp)
    return found


def normal_nll(y: Array, mean: Array, std: Array | float) -> float:
    """Mean −log N(y; mean, std²)."""
    return float(np.mean(((y - mean) / std) ** 2 / 2 + np.log(std)) + math.log(2 * math.pi) / 2)


def rival_nll(model: Any, parts: Parts, real: bool) -> float:
    """Of one simple model."""
    x, y, test, truth = parts
    if not real:
        probs = model.fit(x, y).predict_proba(test)[np.arange(len(truth)), truth]
        return float(-np.log(np.clip(probs, LEAST, 1)).mean())
    if hasattr(model, "steps") and isinstance(model[-1], GaussianProcessRegressor):
        return normal_nll(truth, *model.fit(x, y).predict(test, return_std=True))
    noise = float(np.std(y - cross_val_predict(model, x, y, cv=5)))
    return normal_nll(truth, model.fit(x, y).predict(test), noise)


def base_rate(parts: Parts, real: bool) -> float:
    """Of the mean, or of the frequencies of the classes."""
    _, y, _, truth = parts
    if real:
        return normal_nll(truth, np.full(len(truth), y.mean()), y.std())
    return float(-np.log(np.clip(np.bincount(y, minlength=truth.max() + 1) / len(y), LEAST, 1))[truth].mean())


def calibration(prediction: Any, truth: Array) -> dict[str, float]:
    """Coverage of 90 % intervals, or the ECE and the 95th percentile of its null."""
    y = torch.from_numpy(truth)
    if isinstance(prediction, Reals):
        low, high = prediction.interval(0.9)
        error = float((prediction.mean - y).square().mean().sqrt())
        return {"coverage": float(((y >= low) & (y <= high)).double().mean()), "rmse": error}
    assert isinstance(prediction, Classes)
    random = torch.Generator().manual_seed(0)
    labels = torch.multinomial(prediction.probs.double(), DRAWS, replacement=True, generator=random)
    sure, guess = prediction.confidence.double(), prediction.label
    null = [ece(sure, labels[:, d] == guess) for d in range(DRAWS)]
    return {"ece": ece(sure, guess == y), "ece_95": float(np.quantile(null, 0.95))}


def ece(confidence: torch.Tensor, right: torch.Tensor) -> float:
    """In fifteen bins of one width."""
    index = (confidence * 15).long().clamp(max=14)
    gaps = torch.zeros(15, dtype=torch.float64).index_add_(0, index, right.double() - confidence)
    return float(gaps.abs().sum() / len(confidence))


@dataclass(frozen=True)
class Question:
    """One split of one table."""

    table: str
    split: int

    def parts(self) -> tuple[Parts, bool]:
        """The examples, and whether the targets are reals."""
        parts = TABLES[self.table](self.split)
        return parts, bool(np.issubdtype(parts[1].dtype, np.floating))


def ours(question: Question) -> dict[str, Any]:
    """The default: NLL, calibration, and seconds of processor time."""
    (x, y, test, truth), real = question.parts()
    began = time.process_time()
    fitted = (BayesianRegressor if real else BayesianClassifier)(random_state=question.split).fit(x, y)
    seconds = time.process_time() - began
    prediction = fitted.predict_distribution(test)
    nll = -float(prediction.log_prob(torch.from_numpy(truth)).mean())
    return {"nll": {"bayesrule": nll}, "seconds": seconds, **calibration(prediction, truth)}


def others(question: Question) -> dict[str, Any]:
    """The simple models: NLL, and for the wide table the error of the lasso."""
    warnings.simplefilter("ignore")  # of kernels at the bounds of their settings
    parts, real = question.parts()
    x, _, test, truth = parts
    found: dict[str, Any] = {"nll": {"base rate": base_rate(parts, real)}}
    with one_thread():
        for rival, model in rivals(x, real).items():
            found["nll"][rival] = rival_nll(model, parts, real)
            if rival == "lasso":
                found["rmse of lasso"] = float(np.sqrt(np.mean((model.predict(test) - truth) ** 2)))
    return found


def summary(splits: list[dict[str, Any]]) -> dict[str, Any]:
    """Means over splits, and how far ours is from the best of the others."""
    nll = {model: float(np.mean([s["nll"][model] for s in splits])) for model in splits[0]["nll"]}
    best = min((model for model in nll if model != "bayesrule"), key=nll.__getitem__)
    behind = np.array([s["nll"]["bayesrule"] - s["nll"][best] for s in splits])
    error = float(behind.std(ddof=1) / math.sqrt(len(behind)))
    rest = {key: float(np.mean([s[key] for s in splits])) for key in splits[0] if key != "nll"}
    found = {"nll": nll, "best other": best, "behind": float(behind.mean()), "standard_error": error, **rest}
    if "coverage" in rest:
        shares = np.array([s["coverage"] for s in splits])
        found["coverage_error"] = float(shares.std(ddof=1) / math.sqrt(len(shares)))
    return found


def lines(found: dict[str, dict[str, Any]]) -> Iterator[str]:
    """A row for each table."""
    for name, row in found.items():
        calibrated = (
            f"coverage {row['coverage']:.3f} ± {row['coverage_error']:.3f}"
            if "coverage" in row
            else f"ECE {row['ece']:.3f} ({row['ece_95']:.3f})"
        )
        others = ", ".join(f"{model} {nll:.3f}" for model, nll in row["nll"].items() if model != "bayesrule")
        yield (
            f"{name:15}{row['nll']['bayesrule']:8.3f}  behind {row['best other']} {row['behind']:+.3f} ± "
            f"{row['standard_error']:.3f}  {calibrated}  {row['seconds']:.1f} s  [{others}]"
        )


def picture(found: dict[str, dict[str, Any]]) -> Figure:
    """How far each model is above the best of all on each table."""
    figure = Figure(figsize=(7, 0.4 * len(found) + 1.2), layout="constrained")
    axes = figure.subplots()
    models = list(dict.fromkeys(model for row in found.values() for model in row["nll"]))
    for model in models:
        rows = [index for index, row in enumerate(found.values()) if model in row["nll"]]
        tables = list(found.values())
        gaps = [tables[index]["nll"][model] - min(tables[index]["nll"].values()) for index in rows]
        own = model == "bayesrule"
        axes.plot(gaps, rows, "D" if own else "o", label=model, color="k" if own else None, zorder=3 if own else 2)
    axes.set_yticks(range(len(found)), list(found))
    axes.invert_yaxis()
    axes.set_xscale("symlog", linthresh=0.02)
    axes.set_xlim(left=-0.002)
    axes.set_xlabel("test NLL above that of the best model, nats an example")
    axes.grid(axis="x", alpha=0.3)
    figure.legend(loc="outside upper center", ncols=4, fontsize="small")
    return figure


def main() -> None:
    """Run, print, write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", help="names of tables, separated by commas; nothing is written then")
    parser.add_argument("--splits", type=int, default=SPLITS)
    parser.add_argument("--out", type=Path, default=Path("docs/results"))
    parser.add_argument("--jobs", type=int, default=1, help="processes side by side")
    parser.add_argument("--cache", type=Path, help="a directory that keeps answers: what was cut goes on from there")
    args = parser.parse_args()
    names = args.only.split(",") if args.only else list(TABLES)
    asked = [Question(name, split) for name in names for split in range(args.splits)]
    answers = [jobs.run(ask, asked, (), args.jobs, args.cache, tell=print) for ask in (others, ours)]
    splits: dict[str, list[dict[str, Any]]] = {name: [] for name in names}
    for question, theirs, own in zip(asked, *answers, strict=True):
        splits[question.table].append(theirs | own | {"nll": own["nll"] | theirs["nll"]})
    found = {name: summary(rows) for name, rows in splits.items()}
    print(*lines(found), sep="\n")
    if args.only is None:
        about = provenance(f"python benchmarks/tables.py --splits {args.splits}", seed=0)
        write_atomically(
            args.out / "tables.json", json.dumps(about | {"splits": args.splits, "tables": found}, indent=1)
        )
        picture(found).savefig(args.out / "tables.png", dpi=120)


if __name__ == "__main__":
    main()
