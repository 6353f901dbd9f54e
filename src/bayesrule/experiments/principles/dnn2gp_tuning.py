"""Prior, noise and width by the marginal likelihood of a network as a Gaussian process, against the test error."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from torch import Tensor

from bayesrule import gp
from bayesrule.data import Arrays, Pair, load, standardize
from bayesrule.data.splits import cut
from bayesrule.experiments import trials
from bayesrule.experiments.base import Claim, Result, Setting
from bayesrule.experiments.figures import panels
from bayesrule.experiments.modes import trained
from bayesrule.likelihoods import Gaussian as Reals
from bayesrule.priors import Gaussian

DELTA, SIGMA, WIDTH = "prior precision δ", "noise σ", "width"
WITHIN = 0.05  # of the lowest test error counts as chosen well
SOURCE = "Khan et al. 2019, tuning"


@dataclass(frozen=True)
class Choice:
    """A network of hidden layers of one ``width``, prior N(0, 1/δ) and noise σ, on one split of a data set."""

    sweep: str
    data: str
    split: int
    delta: float
    sigma: float
    width: int
    layers: int
    epochs: int


@dataclass(frozen=True)
class Sweep:
    """What is varied, and what the rest is."""

    sweep: str
    values: tuple[float, ...]
    delta: float
    sigma: float
    width: int = 20
    layers: int = 1

    def choices(self, data: str, split: int, epochs: int) -> list[Choice]:
        """One for each value."""
        fixed = {"delta": self.delta, "sigma": self.sigma, "width": self.width}
        name = {DELTA: "delta", SIGMA: "sigma", WIDTH: "width"}[self.sweep]
        numbers = [int(v) if name == "width" else v for v in self.values]
        return [
            Choice(self.sweep, data, split, layers=self.layers, epochs=epochs, **(fixed | {name: v}))  # type: ignore[arg-type]
            for v in numbers
        ]


def _log(low: float, high: float, count: int) -> tuple[float, ...]:
    return tuple(float(f"{v:.4g}") for v in np.logspace(low, high, count))


QUICK = (
    Sweep(DELTA, _log(-1, 3.6, 9), 30.0, 0.7),
    Sweep(SIGMA, _log(-1, 0.5, 9), 30.0, 0.7),
    Sweep(WIDTH, (1, 2, 4, 8, 16, 32, 64), 3.0, 0.7),
)
FULL = (
    Sweep(DELTA, _log(-1, 3.6, 15), 30.0, 0.64, layers=3),
    Sweep(SIGMA, _log(-1, 1, 15), 30.0, 0.64, layers=3),
    Sweep(WIDTH, (1, 2, 3, 5, 8, 12, 20, 30, 50, 75, 100, 150), 3.0, 0.64),
)
DATA = {False: ("diabetes", 5, 400), True: ("uci/wine", 20, 2000)}  # splits, and epochs of one step


def run(setting: Setting) -> Result:
    """A training for each value of each sweep and each split."""
    data, splits, epochs = DATA[setting.full]
    sweeps = FULL if setting.full else QUICK
    first = 0 if setting.full else setting.seed * 100  # the standard splits have numbers
    asked = [
        choice
        for sweep in sweeps
        for split in range(first, first + splits)
        for choice in sweep.choices(data, split, epochs)
    ]
    found = [vars(question) | answer for question, answer in zip(asked, setting.answers(look, asked), strict=True)]
    claims = tuple(claim for sweep in sweeps for claim in _claims(found, sweep.sweep))
    return Result(
        claims,
        {"data": data, "networks": found},
        lambda figure: _draw(figure, found, sweeps),
        (11.0, 5.4),
        tuple(_note(found, sweep.sweep) for sweep in sweeps),
    )


def look(question: Choice, data_dir: str | None) -> dict[str, float]:
    """Errors on training and test data, and the marginal likelihood, for each example."""
    data, (x, y) = table(question.data, question.split, data_dir)
    spec = {"name": "mlp", "inputs": x.shape[1], "outputs": 1, "activation": "tanh"}
    spec |= {"hidden": [question.width] * question.layers}
    scale = question.delta**-0.5
    noise = Reals(question.sigma)
    network, _ = trained(spec, data, scale, question.epochs, data.n, question.split, noise)
    process = gp.from_network(network, data, noise, Gaussian(scale))
    found, mean = process.posterior(x), process.network(x)[:, 0]
    squares = (y - mean).square()
    nll = 0.5 * (squares / found.total + found.total.log() + math.log(2 * math.pi))
    assert isinstance(data.x, Tensor)
    train = (data.y - process.network(data.x)[:, 0]).square().mean()
    return {
        "log_marginal_likelihood": process.log_marginal_likelihood() / data.n,
        "train_mse": float(train),
        "test_mse": float(squares.mean()),
        "test_nll": float(nll.mean()),
    }


def table(name: str, split: int, data_dir: str | None) -> tuple[Arrays, Pair]:
    """Training and test data: inputs standardised, targets centred; those of diabetes in their standard deviations.

    The units of the targets are then those of σ.
    """
    train, test = _diabetes(split) if name == "diabetes" else _uci(name, split, data_dir)
    scaled = standardize(train, targets="keep")
    scaling = scaled.scaling.inputs
    assert scaling is not None
    centre = train[1].mean()
    unit = train[1].std() if name == "diabetes" else torch.tensor(1.0)
    y, other = ((part - centre) / unit for part in (train[1], test[1]))
    return Arrays(scaled.x, y), (scaling.forward(test[0]), other)


def _diabetes(seed: int) -> tuple[Pair, Pair]:
    """442 patients, ten measurements, the progress of the disease a year later; in scikit-learn."""
    from sklearn.datasets import load_diabetes

    x, y = (torch.from_numpy(part) for part in load_diabetes(return_X_y=True, scaled=False))
    return cut(x, y, test=0.3, seed=seed)


def _uci(name: str, split: int, data_dir: str | None) -> tuple[Pair, Pair]:
    found = load(name, data_dir, split=split)
    return found.train, found.test


def _name(sweep: str) -> str:
    return {DELTA: "delta", SIGMA: "sigma", WIDTH: "width"}[sweep]


def _by_split(found: list[dict[str, Any]], sweep: str) -> list[list[dict[str, Any]]]:
    rows = [each for each in found if each["sweep"] == sweep]
    return [[each for each in rows if each["split"] == split] for split in dict.fromkeys(r["split"] for r in rows)]


def excess(rows: Sequence[dict[str, Any]], metric: str, by: str, sign: int) -> float:
    """By how much the row with the largest ``sign·by`` is above the lowest ``metric``.

    >>> excess([{"a": 1.0, "b": 3.0}, {"a": 2.0, "b": 2.0}], "b", by="a", sign=-1)
    1.0
    """
    chosen = max(rows, key=lambda row: sign * row[by])
    return float(chosen[metric] - min(row[metric] for row in rows))


def _claims(found: list[dict[str, Any]], sweep: str) -> list[Claim]:
    """Is the choice near the best in squared error and in likelihood, and better than that by the training error?"""
    splits = _by_split(found, sweep)
    best = [min(row["test_mse"] for row in rows) for rows in splits]
    off = [excess(rows, "test_mse", "log_marginal_likelihood", 1) / b for rows, b in zip(splits, best, strict=True)]
    nats = [excess(rows, "test_nll", "log_marginal_likelihood", 1) for rows in splits]
    train = [excess(rows, "test_mse", "train_mse", -1) / b for rows, b in zip(splits, best, strict=True)]
    return [
        Claim(
            SOURCE,
            f"{sweep}: the largest marginal likelihood is within {WITHIN:.0%} of the lowest test error",
            f"its squared error is above the lowest by {_percent(off)}, over {len(off)} splits; that of the lowest "
            f"training error by {_percent(train)}",
            trials.average(off)[0] <= WITHIN,
        ),
        Claim(
            SOURCE,
            f"{sweep}: the largest marginal likelihood is within {WITHIN:g} nats of the lowest test NLL",
            f"{trials.said(nats, 3)} nats above the lowest of the same split",
            trials.average(nats)[0] <= WITHIN,
        ),
    ]


def _percent(values: Sequence[float]) -> str:
    return f"{trials.said([100 * v for v in values], 1)} %"


def _note(found: list[dict[str, Any]], sweep: str) -> str:
    splits, name = _by_split(found, sweep), _name(sweep)
    chosen = [max(rows, key=lambda row: row["log_marginal_likelihood"])[name] for rows in splits]
    best = [min(rows, key=lambda row: row["test_mse"])[name] for rows in splits]
    return f"{sweep}: chosen {_list(chosen)}; lowest test error at {_list(best)}."


def _list(values: Sequence[float]) -> str:
    return ", ".join(f"{v:g}" for v in sorted(set(values)))


def _draw(figure: Figure, found: list[dict[str, Any]], sweeps: Sequence[Sweep]) -> None:
    axes = panels(figure, 2 * len(sweeps), 2)
    for place, sweep in enumerate(sweeps):
        splits, name = _by_split(found, sweep.sweep), _name(sweep.sweep)
        top, bottom = axes[place], axes[place + len(sweeps)]
        _lines(top, splits, name, {"train_mse": "training error", "test_mse": "test error"})
        _lines(bottom, splits, name, {"log_marginal_likelihood": "log marginal likelihood / N"}, first=2)
        _lines(bottom, splits, name, {"test_nll": "test log-likelihood"}, first=3, sign=-1)
        values = [row[name] for row in splits[0]]
        means = [np.mean([rows[i]["log_marginal_likelihood"] for rows in splits]) for i in range(len(values))]
        for ax in (top, bottom):
            ax.axvline(values[int(np.argmax(means))], color="C2", ls=":", lw=1.2)
            ax.set(xscale="log")
        top.set(title=sweep.sweep, ylabel="mean squared error" if not place else None)
        bottom.set(xlabel=sweep.sweep, ylabel="nats per example" if not place else None)
        high = max(float(np.max(line.get_ydata())) for line in bottom.lines[:2])
        low = max(bottom.get_ylim()[0], high - 2.5)
        bottom.set(ylim=(low, high + 0.1 * (high - low)))
        if not place:
            top.legend(loc="best")
            bottom.legend(loc="lower center")


def _lines(
    ax: Axes, splits: list[list[dict[str, Any]]], name: str, metrics: dict[str, str], first: int = 0, sign: int = 1
) -> None:
    """The mean over splits of each metric, with a band of one standard error."""
    values = [row[name] for row in splits[0]]
    for place, (metric, label) in enumerate(metrics.items(), first):
        columns = [[sign * rows[i][metric] for rows in splits] for i in range(len(values))]
        means, errors = (np.array(part) for part in zip(*map(trials.average, columns), strict=True))
        ax.plot(values, means, "o-", color=f"C{place}", markersize=3, label=label)
        ax.fill_between(values, means - errors, means + errors, color=f"C{place}", alpha=0.2, lw=0)
