"""Prior, noise and width by the marginal likelihood of a network as a Gaussian process, against the test error."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from numpy.typing import NDArray
from torch import Tensor

from bayesrule import gp
from bayesrule.data import Arrays, Pair, load_set, standardize
from bayesrule.data.splits import cut
from bayesrule.experiments import findings, trials
from bayesrule.experiments.base import Claim, Result, Setting
from bayesrule.experiments.figures import panels
from bayesrule.experiments.modes import trained
from bayesrule.likelihoods import Gaussian as Reals
from bayesrule.priors import Gaussian

DELTA, SIGMA, WIDTH = "prior precision δ", "noise σ", "width"
WITHIN = 0.05  # of the lowest test error counts as chosen well
SOURCE = "Khan et al. 2019, tuning"


@dataclass(frozen=True)
class TuningQuestion:
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
class HyperparameterSweep:
    """What is varied, and what the rest is."""

    sweep: str
    values: tuple[float, ...]
    delta: float
    sigma: float
    width: int = 20
    layers: int = 1

    def choices(self, data: str, split: int, epochs: int) -> list[TuningQuestion]:
        """One for each value."""
        middle = TuningQuestion(self.sweep, data, split, self.delta, self.sigma, self.width, self.layers, epochs)
        name = _name(self.sweep)
        kind = int if name == "width" else float
        return [replace(middle, **{name: kind(value)}) for value in self.values]  # type: ignore[arg-type]


def _log(low: float, high: float, count: int) -> tuple[float, ...]:
    return tuple(float(f"{v:.4g}") for v in np.logspace(low, high, count))


QUICK = (
    HyperparameterSweep(DELTA, _log(-1, 3.6, 9), 30.0, 0.7),
    HyperparameterSweep(SIGMA, _log(-1, 0.5, 9), 30.0, 0.7),
    HyperparameterSweep(WIDTH, (1, 2, 4, 8, 16, 32, 64), 3.0, 0.7),
)
FULL = (
    HyperparameterSweep(DELTA, _log(-1, 3.6, 15), 30.0, 0.64, layers=3),
    HyperparameterSweep(SIGMA, _log(-1, 1, 15), 30.0, 0.64, layers=3),
    HyperparameterSweep(WIDTH, (1, 2, 3, 5, 8, 12, 20, 30, 50, 75, 100, 150), 3.0, 0.64),
)
DATA = {False: ("diabetes", 5, 400), True: ("uci/wine", 20, 2000)}  # splits, and epochs of one step


def run(setting: Setting) -> Result:
    """A training for each value of each sweep and each split."""
    data, splits, epochs = DATA[setting.full]
    sweeps = FULL if setting.full else QUICK
    first = 0 if setting.full else setting.seed * 100  # the standard splits have numbers
    asked: list[TuningQuestion] = []
    for sweep in sweeps:
        for split in range(first, first + splits):
            asked += sweep.choices(data, split, epochs)
    found = findings.with_answers(asked, setting.answers(look, asked))
    claims: list[Claim] = []
    notes = []
    for sweep in sweeps:
        claims += _claims(found, sweep.sweep)
        notes.append(_note(found, sweep.sweep))
    plain = {"data": data, "networks": found}
    return Result(tuple(claims), plain, lambda figure: _draw(figure, found, sweeps), (11.0, 5.4), tuple(notes))


def look(question: TuningQuestion, data_dir: str | None) -> dict[str, float]:
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
    unit = torch.tensor(1.0)
    if name == "diabetes":
        train, test = _diabetes(split)
        unit = train[1].std()
    else:
        train, test = _uci(name, split, data_dir)
    scaled = standardize(train, targets="keep")
    scaling = scaled.scaling.inputs
    assert scaling is not None
    centre = train[1].mean()
    y, y_test = (train[1] - centre) / unit, (test[1] - centre) / unit
    return Arrays(scaled.x, y), (scaling.forward(test[0]), y_test)


def _diabetes(seed: int) -> tuple[Pair, Pair]:
    """442 patients, ten measurements, the progress of the disease a year later; in scikit-learn."""
    from sklearn.datasets import load_diabetes

    x, y = load_diabetes(return_X_y=True, scaled=False)
    return cut(torch.from_numpy(x), torch.from_numpy(y), test=0.3, seed=seed)


def _uci(name: str, split: int, data_dir: str | None) -> tuple[Pair, Pair]:
    found = load_set(name, data_dir, split=split)
    return found.train, found.test


def _name(sweep: str) -> str:
    return {DELTA: "delta", SIGMA: "sigma", WIDTH: "width"}[sweep]


def _by_split(found: list[dict[str, Any]], sweep: str) -> list[list[dict[str, Any]]]:
    splits: dict[int, list[dict[str, Any]]] = {}
    for each in found:
        if each["sweep"] == sweep:
            splits.setdefault(each["split"], []).append(each)
    return list(splits.values())


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
    off, nats, train = [], [], []
    for rows in splits:
        best = min(row["test_mse"] for row in rows)
        off.append(excess(rows, "test_mse", "log_marginal_likelihood", 1) / best)
        nats.append(excess(rows, "test_nll", "log_marginal_likelihood", 1))
        train.append(excess(rows, "test_mse", "train_mse", -1) / best)
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
    chosen, best = [], []
    for rows in splits:
        chosen.append(max(rows, key=lambda row: row["log_marginal_likelihood"])[name])
        best.append(min(rows, key=lambda row: row["test_mse"])[name])
    return f"{sweep}: chosen {_list(chosen)}; lowest test error at {_list(best)}."


def _list(values: Sequence[float]) -> str:
    return ", ".join(f"{v:g}" for v in sorted(set(values)))


def _draw(figure: Figure, found: list[dict[str, Any]], sweeps: Sequence[HyperparameterSweep]) -> None:
    axes = panels(figure, 2 * len(sweeps), 2)
    for index, sweep in enumerate(sweeps):
        splits, name = _by_split(found, sweep.sweep), _name(sweep.sweep)
        top, bottom = axes[index], axes[index + len(sweeps)]
        _lines(top, splits, name, {"train_mse": "training error", "test_mse": "test error"})
        _lines(bottom, splits, name, {"log_marginal_likelihood": "log marginal likelihood / N"}, first=2)
        _lines(bottom, splits, name, {"test_nll": "test log-likelihood"}, first=3, sign=-1)
        evidence = _metric(splits, "log_marginal_likelihood").mean(0)
        for ax in (top, bottom):
            ax.axvline(splits[0][int(evidence.argmax())][name], color="C2", ls=":", lw=1.2)
            ax.set(xscale="log")
        top.set(title=sweep.sweep)
        bottom.set(xlabel=sweep.sweep)
        high = max(float(np.max(line.get_ydata())) for line in bottom.lines[:2])
        low = max(bottom.get_ylim()[0], high - 2.5)
        bottom.set(ylim=(low, high + 0.1 * (high - low)))
        if index == 0:
            top.set(ylabel="mean squared error")
            bottom.set(ylabel="nats per example")
            top.legend(loc="best")
            bottom.legend(loc="lower center")


def _metric(splits: list[list[dict[str, Any]]], metric: str) -> NDArray[np.float64]:
    """A metric by split and value of what is varied."""
    return np.array([[row[metric] for row in rows] for rows in splits])


def _lines(
    ax: Axes, splits: list[list[dict[str, Any]]], name: str, metrics: dict[str, str], first: int = 0, sign: int = 1
) -> None:
    """The mean over splits of each metric, with a band of one standard error."""
    values = [row[name] for row in splits[0]]
    for colour, (metric, label) in enumerate(metrics.items(), first):
        columns = (sign * _metric(splits, metric)).T.tolist()
        means, errors = np.array([trials.average(column) for column in columns]).T
        ax.plot(values, means, "o-", color=f"C{colour}", markersize=3, label=label)
        ax.fill_between(values, means - errors, means + errors, color=f"C{colour}", alpha=0.2, lw=0)
