"""The path derivative against the total one: its variance where q is the posterior, and what it does for training."""

from __future__ import annotations

import math
from itertools import product
from typing import Any

import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from torch import Tensor, nn

from bayesrule import jobs
from bayesrule.data import load_set, standardize
from bayesrule.experiments import book, findings, trials
from bayesrule.experiments.base import Claim, Result, Setting
from bayesrule.experiments.figures import panels
from bayesrule.experiments.trials import Outcome, Training
from bayesrule.methods import BBB, Noise, Plan
from bayesrule.models import build, default_for
from bayesrule.nn import bayesianize
from bayesrule.nn.variational import Variational, inverse_softplus
from bayesrule.task import Task

DISTANCES = (0.0, 0.01, 0.03, 0.1, 0.3, 1.0)
KINDS = ("total", "path")
STARTS = {"narrow": book.METHOD["initial_std"], "wide": book.WIDE}  # the first σ
DRAWS = 50
NEAR = 0.1  # the relative error that an estimate of a deviation may have
NOTE = (
    "Without its score the gradient for a mean keeps −(η/N)·ε/σ, the slope of log q at the drawn weight, which the "
    "score would cancel. At the posterior the slope of log p(D, w) cancels it instead; where q is much narrower than "
    "the posterior nothing does, and its deviation η/(Nσ) may be far above all that the data say."
)


@jobs.threads(1)
def run(setting: Setting) -> Result:
    """Variances on a conjugate model and at the start of training, and trainings that differ in gradient and start."""
    noise = {}
    for kind in KINDS:
        noise[kind] = [_variance(kind, distance, setting.seed) for distance in DISTANCES]
    lengths = book.data(setting)
    first = [_first_gradients(data, start, setting) for data, start in product(lengths, STARTS)]
    trainings = []
    for data, epochs in lengths.items():
        for seed in findings.seeds(setting):
            for kind, start in product(KINDS, STARTS):
                trainings.append(Training(_named(kind, start), data, _method(kind, start), epochs, seed))
    found = trials.run(trainings, setting)
    claims = [_variance_claim(noise), *map(_first_claim, first), _term_claim(first)]
    for data, start in product(lengths, STARTS):
        claims.append(_training_claim(found, data, start))
    plain = {"distance": DISTANCES, "variance": noise, "first": first, "trials": findings.all_plain(found)}
    size = (3.6 * (2 + len(lengths)), 3.2)
    return Result(tuple(claims), plain, lambda figure: _draw(figure, noise, first, found), size, (NOTE,))


def _named(kind: str, start: str) -> str:
    return f"{kind}, {start} start"


def _method(kind: str, start: str) -> BBB:
    return BBB(**{**book.METHOD, "gradient": kind, "initial_std": STARTS[start]})


def _variance(kind: str, distance: float, seed: int) -> float:
    """The gradient's variance at ``distance`` deviations from the exact posterior of a line through the origin."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(20, 1, generator=generator, dtype=torch.float64)
    y = x[:, 0] + 0.5 * torch.randn(20, generator=generator, dtype=torch.float64)
    precision = x.square().sum() / 0.25 + 1
    std = precision.rsqrt().reshape(1)
    bnn = bayesianize(nn.Linear(1, 1, bias=False).double(), gradient=kind)
    with torch.no_grad():
        bnn.mean.copy_((x[:, 0] @ y / 0.25) / precision + distance * std)
        bnn.rho.copy_(inverse_softplus(std))
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        grads = torch.stack([_gradient(bnn, x, y) for _ in range(200)])
    return float(grads.var(0).sum())


def _gradient(bnn: Variational, x: Tensor, y: Tensor) -> Tensor:
    nll = (bnn(x)[:, 0] - y).square().mean() / 0.5
    return torch.cat(torch.autograd.grad(bnn.objective(nll, 1 / len(x)), [bnn.mean, bnn.rho]))


def _first_gradients(data: str, start: str, setting: Setting) -> dict[str, Any]:
    """Gradients for the means on the first batch of a training, before any step, over several draws of the weights.

    For each kind the deviation over draws of a weight's gradient, as a root mean square over weights; ``term`` is
    η/(Nσ); ``signal`` the root mean square of the gradient's mean over draws (total derivative).
    """
    split = load_set(data, setting.data_dir)
    task = Task.create(build(default_for(split), setting.seed), standardize(split.train), prior="kaiming")
    batch = next(iter(task.batches(100, setting.seed)))
    row: dict[str, Any] = {"data": data, "start": start, "term": task.weight / STARTS[start]}
    for kind in KINDS:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(setting.seed)
            plan = Plan(1, task.data.steps(100), 100)
            learner = _method(kind, start).start(task, plan, Noise.on(task.device, setting.seed))
            drawn: list[Tensor] = []
            for _ in range(DRAWS):
                loss = learner.objective(batch)[0]
                drawn += torch.autograd.grad(loss, learner.network.mean)
        gradients = torch.stack(drawn)
        row[kind] = math.sqrt(float(gradients.var(0).mean()))
        if kind == "total":
            row["signal"] = math.sqrt(float(gradients.mean(0).square().mean()))
    return row


def _variance_claim(noise: dict[str, list[float]]) -> Claim:
    path, total = noise["path"][0], noise["total"][0]
    return Claim(
        "Book 2020, section 2.2 (after Roeder 2017)",
        "without the score function the gradient has less variance",
        f"at the exact posterior the variance is {path:.1e} (path) against {total:.1e} (total)",
        path < 1e-20 < total,
    )


def _first_claim(row: dict[str, Any]) -> Claim:
    return Claim(
        "Book 2020, section 5.1",
        f"the path derivative has less variance in training on {row['data']}: first batch, {row['start']} start",
        f"the gradient of a mean deviates by {row['path']:.1e} (path), {row['total']:.1e} (total) from draw to draw; "
        f"η/(Nσ) = {row['term']:.1e}; its mean is {row['signal']:.1e} in size",
        row["path"] < row["total"],
    )


def _term_claim(first: list[dict[str, Any]]) -> Claim:
    ratios = {row["data"]: row["path"] / row["term"] for row in first if row["start"] == "narrow"}
    return Claim(
        "closed form",
        f"from a narrow start the noise of the path derivative is that of −(η/N)·ε/σ: η/(Nσ) within {NEAR:.0%}",
        ", ".join(f"{ratio:.3f} of it on {data}" for data, ratio in ratios.items()),
        all(abs(ratio - 1) < NEAR for ratio in ratios.values()),
    )


def _training_claim(found: list[Outcome], data: str, start: str) -> Claim:
    path = findings.values(found, data, _named("path", start), "accuracy")
    total = findings.values(found, data, _named("total", start), "accuracy")
    return Claim(
        "Book 2020, figure 5.1",
        f"the path derivative is at least as good as the total one on {data} ({start} start): less accurate by no more "
        f"than {100 * findings.ACCURACY:g} points",
        f"accuracy {trials.said(path)} (path), {trials.said(total)} (total)",
        findings.not_worse(findings.differences(path, total), findings.ACCURACY),
    )


def _draw(figure: Figure, noise: dict[str, list[float]], first: list[dict[str, Any]], found: list[Outcome]) -> None:
    names = findings.datasets(found)
    exact, start, *rest = panels(figure, 2 + len(names))
    for kind in KINDS:
        # Shifted and cut, since neither a distance nor a variance of zero is on a logarithmic axis.
        exact.plot(np.add(DISTANCES, 1e-3), np.maximum(noise[kind], 1e-33), "o-", label=kind)
    exact.set(xscale="log", yscale="log", xlabel="distance from the posterior, in σ", title="gradient variance")
    exact.legend()
    _bars(start, first)
    for ax, data in zip(rest, names, strict=True):
        findings.curves(ax, findings.chosen(found, data), "nll")
        ax.set(title=f"{data}: negative log likelihood", yscale="log")


def _bars(ax: Axes, first: list[dict[str, Any]]) -> None:
    """The deviation of gradients at the start of training, with η/(Nσ) as a line across."""
    index = np.arange(len(first))
    for shift, kind in enumerate(KINDS):
        ax.bar(index + 0.4 * shift - 0.2, [row[kind] for row in first], 0.4, label=kind)
    terms = [row["term"] for row in first]
    ax.hlines(terms, index - 0.45, index + 0.45, color="black", ls="--", lw=1, label="η/(Nσ)")
    ax.set_xticks(range(len(first)), [f"{row['data']}\n{row['start']}" for row in first])
    ax.set(yscale="log", title="first gradient of a mean: noise")
    ax.set(ylim=(None, 30 * ax.get_ylim()[1]))  # room for the legend
    ax.legend()
