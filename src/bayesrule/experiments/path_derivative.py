"""The path derivative against the total one: its variance where q is the posterior, and what it does for training."""

from __future__ import annotations

import torch
from matplotlib.figure import Figure
from torch import Tensor, nn

from bayesrule.experiments import book, trials
from bayesrule.experiments.base import Claim, Result, Setting
from bayesrule.experiments.figures import panels
from bayesrule.experiments.trials import Job, Trial
from bayesrule.methods import BBB
from bayesrule.nn import bayesianize
from bayesrule.nn.variational import Variational, inverse_softplus

DISTANCES = (0.0, 0.01, 0.03, 0.1, 0.3, 1.0)
KINDS = ("total", "path")


def run(setting: Setting) -> Result:
    """Variances on a conjugate model, and trainings that differ in the gradient alone."""
    noise = {kind: [_variance(kind, distance, setting.seed) for distance in DISTANCES] for kind in KINDS}
    found = trials.run(
        [
            Job(kind, data, BBB(**{**book.METHOD, "gradient": kind}), epochs, seed)
            for data, epochs in book.data(setting).items()
            for seed in book.seeds(setting)
            for kind in KINDS
        ],
        setting,
    )
    claims = [_variance_claim(noise), *(_training_claim(found, data) for data in book.data(setting))]
    plain = {"distance": DISTANCES, "variance": noise, "trials": [book.plain(trial) for trial in found]}
    return Result(tuple(claims), plain, lambda figure: _draw(figure, noise, found))


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


def _variance_claim(noise: dict[str, list[float]]) -> Claim:
    path, total = noise["path"][0], noise["total"][0]
    return Claim(
        "Book 2020, section 2.2 (after Roeder 2017)",
        "without the score function the gradient has less variance",
        f"at the exact posterior the variance is {path:.1e} (path) against {total:.1e} (total)",
        path < 1e-20 < total,
    )


def _training_claim(found: list[Trial], data: str) -> Claim:
    scores = {kind: [t.accuracy for t in found if t.what == kind and t.data == data] for kind in KINDS}
    gain = [a - b for a, b in zip(scores["path"], scores["total"], strict=True)]
    return Claim(
        "Book 2020, figure 5.1",
        f"the path derivative is at least as good as the total one on {data}",
        f"accuracy {trials.said(scores['path'])} (path), {trials.said(scores['total'])} (total)",
        book.not_worse(gain),
    )


def _draw(figure: Figure, noise: dict[str, list[float]], found: list[Trial]) -> None:
    names = list(dict.fromkeys(t.data for t in found))
    axes = panels(figure, 1 + len(names))
    for kind in KINDS:
        axes[0].plot([d + 1e-3 for d in DISTANCES], [max(v, 1e-33) for v in noise[kind]], "o-", label=kind)
    axes[0].set(xscale="log", yscale="log", xlabel="distance from the posterior, in σ", title="gradient variance")
    axes[0].legend()
    for ax, data in zip(axes[1:], names, strict=True):
        book.curves(ax, [t for t in found if t.data == data], "loss")
        ax.set(title=f"{data}: loss")
