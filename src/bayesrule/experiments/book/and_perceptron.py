"""A Bayesian perceptron learns AND: Bayes by Backprop beside the best q of its kind and the exact posterior."""

from __future__ import annotations

from dataclasses import asdict, dataclass

import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from torch import Tensor, nn

from bayesrule import jobs
from bayesrule.data import load_set
from bayesrule.experiments.base import Claim, Result, Setting
from bayesrule.experiments.book.logistic import LogisticRegression, Normal, probability
from bayesrule.experiments.figures import panels
from bayesrule.methods import BBB
from bayesrule.nn.variational import log_normal
from bayesrule.posteriors import Gaussian
from bayesrule.priors import Gaussian as GaussianPrior
from bayesrule.training import fit

COPIES = (1, 16)  # how often the truth table is seen
STEPS = {False: 2000, True: 20000}
CLOSE = 0.1  # nats that a trained q may be further from the posterior than the best q
NAMES = ("w₁", "w₂", "b")
SOURCE = "Book 2020, section 2.4, figure 2.2"
NOTES = (
    "The perceptron's output is the logit of the Bernoulli distribution, without the document's ReLU: behind a ReLU a "
    "logit never says no, P(1) ≥ ½ everywhere, and a probability may be above one.",
    "The prior N(0, 1) is strong against four examples: see what the exact posterior says of the table seen once.",
)


@dataclass(frozen=True)
class Arm:
    """A training, beside what is exact. KL is from q to the posterior; probabilities are P(1) at the table's inputs."""

    copies: int
    loss: list[float]
    trained: Normal
    best: Normal
    exact: Normal
    kl_trained: float
    kl_best: float
    probs: list[float]
    probs_exact: list[float]


@jobs.threads(1)
def run(setting: Setting) -> Result:
    """One training for each number of copies of the truth table, all examples in one batch."""
    first = torch.randn(3, generator=torch.Generator().manual_seed(setting.seed))  # Kaiming: N(0, 2/2)
    arms = [_arm(first, copies, STEPS[setting.full], setting.seed) for copies in COPIES]
    claims = (_falls(arms), *map(_learns, arms), _nearest(arms), *_gradients(setting.seed))
    start = Normal(first.tolist(), [1.0] * 3)
    plain = {"start": asdict(start), "arms": [asdict(arm) | {"loss": _smooth(arm.loss)} for arm in arms]}
    return Result(claims, plain, lambda figure: _draw(figure, start, arms), (10.5, 5.6), NOTES)


def _table(copies: int) -> LogisticRegression:
    """The truth table with a one beside its inputs, for the bias."""
    x, y = load_set("and").train
    return LogisticRegression(torch.cat([x, torch.ones(4, 1)], 1).double(), 2.0 * y.double() - 1, copies)


def _arm(first: Tensor, copies: int, steps: int, seed: int) -> Arm:
    table = _table(copies)
    posterior = _fit(first, copies, steps, seed)
    mean = torch.cat([posterior.mean["weight"][0], posterior.mean["bias"]])
    std = torch.cat([posterior.std["weight"][0], posterior.std["bias"]])
    trained, best = Normal(mean.tolist(), std.tolist()), table.best()
    exact, evidence, probs_exact = table.exact()
    return Arm(
        copies,
        [copies * 4 * (step["nll"] + step["penalty"]) for step in posterior.info["history"]],
        trained,
        best,
        exact,
        evidence - table.bound(*trained.tensors()).item(),
        evidence - table.bound(*best.tensors()).item(),
        probability(trained, table.x)[0].tolist(),
        probs_exact,
    )


def _fit(first: Tensor, copies: int, steps: int, seed: int) -> Gaussian:
    """Bayes by Backprop with Adam at 10⁻² and one draw a step, from σ by Kaiming's rule."""
    x, y = load_set("and").train
    model = nn.Linear(2, 1)
    with torch.no_grad():
        model.weight.copy_(first[None, :2])
        model.bias.copy_(first[2:])
    method, prior = BBB(lr=1e-2, sigma_lr_ratio=1.0, initial_std="kaiming", schedule="constant"), GaussianPrior(1.0)
    data = x.repeat(copies, 1), y.repeat(copies)
    posterior = fit(model, data, method, "bernoulli", prior, epochs=steps, batch_size=4 * copies, seed=seed, val=0)
    assert isinstance(posterior, Gaussian)
    return posterior


def _falls(arms: list[Arm]) -> Claim:
    said, held = [], True
    for arm in arms:
        tenths = _smooth(arm.loss, 10)
        said.append(f"{tenths[0]:.2f} to {tenths[-1]:.2f} ({_seen(arm)})")
        held = held and tenths[-1] < tenths[0]
    return Claim(
        SOURCE,
        "the training loss falls",
        f"from the first to the last tenth of the steps {', '.join(said)}",
        held,
    )


def _seen(arm: Arm) -> str:
    if arm.copies == 1:
        return "table seen once"
    return f"table seen {arm.copies} times"


def _learns(arm: Arm) -> Claim:
    said = ", ".join(f"{p:.2f}" for p in arm.probs)
    exact = ", ".join(f"{p:.2f}" for p in arm.probs_exact)
    return Claim(
        SOURCE,
        f"the perceptron learns AND: at all four inputs P(1) is on the right side of ½ ({_seen(arm)})",
        f"P(1) = {said} at 00, 01, 10, 11; under the exact posterior {exact}",
        all((p > 0.5) == (y > 0) for p, y in zip(arm.probs, _table(1).y.tolist(), strict=True)),
    )


def _nearest(arms: list[Arm]) -> Claim:
    return Claim(
        "Book 2020, section 2.1",
        f"the trained q is that of least KL(q‖posterior) (within {CLOSE:g} nats)",
        "; ".join(f"{arm.kl_trained:.3f} nats, the least {arm.kl_best:.3f} ({_seen(arm)})" for arm in arms),
        all(arm.kl_trained - arm.kl_best < CLOSE for arm in arms),
    )


def _gradients(seed: int) -> tuple[Claim, Claim]:
    """∇_μ of log q(w) and of −log p(w) at w = μ + σε, what equation 2.4.4 says of them."""
    generator = torch.Generator().manual_seed(seed)
    mean, log_std, noise = torch.randn(3, 3, generator=generator, dtype=torch.float64)
    mean, std = mean.clone().requires_grad_(), log_std.exp()
    w = mean + std * noise
    (of_q,) = torch.autograd.grad(log_normal(w, mean, std), mean, retain_graph=True)
    (of_p,) = torch.autograd.grad(-log_normal(w, torch.zeros(3), torch.ones(3)), mean)
    left, first, gradient = of_q.abs().max().item(), w[0].item(), of_p[0].item()
    return (
        Claim(
            "Book 2020, equation 2.4.4",
            "the derivatives of the variational posterior for a mean cancel each other",
            f"what is left of them is at most {left:.0e}",
            left < 1e-12,
        ),
        Claim(
            "Book 2020, equation 2.4.4",
            "the prior contributes a simple 1 to the gradient for μ₁",
            f"{gradient:.3f} at w₁ = {first:.3f}: −log N(w₁; 0, 1) has the slope w₁",
            abs(gradient - 1) < 1e-6,
        ),
    )


def _smooth(values: list[float], pieces: int = 100) -> list[float]:
    """Means over stretches of equal length."""
    length = max(1, len(values) // pieces)
    means = []
    for start in range(0, len(values), length):
        part = values[start : start + length]
        means.append(sum(part) / len(part))
    return means


def _draw(figure: Figure, start: Normal, arms: list[Arm]) -> None:
    loss, before, after, weights, spread, spread_after = panels(figure, 6, rows=2)
    for arm in arms:
        curve = _smooth([value / (4 * arm.copies) for value in arm.loss])
        middles = (np.arange(len(curve)) + 0.5) * len(arm.loss) / len(curve)
        loss.plot(middles, curve, label=_seen(arm))
    loss.set(xlabel="step", title="training loss an example")
    loss.legend()
    _compare(weights, arms[-1])
    for q, when, axes in ((start, "before", (before, spread)), (arms[-1].trained, "after", (after, spread_after))):
        for which, what in enumerate(("P(1)", "its deviation")):
            _map(figure, axes[which], q, which, f"{what} {when} training")


def _compare(ax: Axes, arm: Arm) -> None:
    """Means and deviations of each weight."""
    for shift, (what, q) in enumerate((("trained q", arm.trained), ("best q", arm.best), ("exact", arm.exact))):
        ax.errorbar(np.arange(3) + 0.2 * (shift - 1), q.mean, q.std, fmt="o", capsize=3, ms=4, label=what)
    ax.set_xticks(range(3), NAMES)
    ax.set(title=f"weights ({_seen(arm)})")
    ax.legend()


def _map(figure: Figure, ax: Axes, q: Normal, which: int, title: str) -> None:
    line = torch.linspace(-0.5, 1.5, 61, dtype=torch.float64)
    grid = torch.cartesian_prod(line, line, torch.ones(1, dtype=torch.float64))
    values, ticks = probability(q, grid)[which].reshape(61, 61).T.numpy(), line.numpy()
    picture = ax.pcolormesh(ticks, ticks, values, vmin=0, vmax=(1, 0.35)[which], cmap=("RdBu_r", "viridis")[which])
    figure.colorbar(picture, ax=ax)
    if which == 0:
        ax.contour(ticks, ticks, values, levels=[0.5], colors="black", linewidths=1)
    x, y = load_set("and").train
    for label, mark in ((0, "o"), (1, "s")):
        ax.plot(*x[y == label].T.tolist(), mark, color="white", mec="black", ms=6, ls="")
    ax.set(title=title, xticks=(0, 1), yticks=(0, 1))
    ax.grid(visible=False)
