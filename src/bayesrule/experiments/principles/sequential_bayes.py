"""Sequential Bayes: the posterior after each batch is the prior of the next, beside the one of all data at once."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from torch import Tensor, nn
from torch.nn.functional import logsigmoid

from bayesrule import jobs
from bayesrule.data import moons
from bayesrule.experiments import findings
from bayesrule.experiments.base import Claim, Result, Setting
from bayesrule.experiments.figures import panels
from bayesrule.experiments.trials import said
from bayesrule.likelihoods import Bernoulli, Gaussian
from bayesrule.methods import Laplace
from bayesrule.models import build
from bayesrule.posteriors import Posterior
from bayesrule.priors import Gaussian as GaussianPrior
from bayesrule.training import fit

BATCHES = 4
SEEDS = {False: 3, True: 10}
POINTS, SIZE = 40, 200  # that the straight classifier and the network learn from
EPOCHS = {False: 500, True: 2000}  # of the network, for each batch
NOISE = 0.25  # of the moons
TEST = 1000
SPLITS = {False: 5, True: 50}  # of the regression, in random order
EXACT = 1e-8
NEAR = 0.02  # of probability, between sequence and joint posterior
MARGIN = 0.05  # nats
NODES, REACH = 25, 5.0  # of the grid over three weights, in deviations
GRID, PLANE = 61, 41  # points along a side of a picture, and of the plane that predictions are compared on
ORDERS = ("random order", "from left to right")
SOURCE = "Khan, Sequential Bayesian inference"
OPEN = "Khan, Life-long learning with Bayes"

Pair = tuple[Tensor, Tensor]


@dataclass(frozen=True)
class Course:
    """The posterior after each batch, that of all data at once, and the batches."""

    steps: list[Posterior]
    joint: Posterior
    batches: list[Pair]


@jobs.threads(1)
def run(setting: Setting) -> Result:
    """A linear regression, where all is exact; a straight classifier beside the exact posterior; a network."""
    seeds = findings.seeds(setting, SEEDS[setting.full])
    errors = [_regression(seed) for seed in range(SPLITS[setting.full])]
    setting.tell("regression done")
    lines = [_straight(seed) for seed in seeds]
    straight = [_beside_exact(found) for found in lines]
    setting.tell("straight classifiers done")
    networks = [_network(seed, EPOCHS[setting.full]) for seed in seeds]
    scores: dict[str, list[dict[str, Any]]] = {order: [] for order in ORDERS}
    for courses, seed in zip(networks, seeds, strict=True):
        for order in ORDERS:
            scores[order].append(_scores(courses[order], seed))
    claims = (
        _exactly(errors),
        _alike(straight),
        _as_near(straight),
        _surer(straight),
        *map(_networks, ORDERS, scores.values()),
    )
    plain = {"regression": errors, "straight": straight, "networks": scores}
    shown = {"straight classifier": lines[0], "network": networks[0][ORDERS[1]]}
    return Result(claims, plain, lambda figure: _draw(figure, shown), (12.0, 5.4))


def in_turn(learn: Callable[..., Posterior], prior: Any, batches: Sequence[Pair]) -> list[Posterior]:
    """``prior=posterior``, batch after batch: all there is to sequential Bayes."""
    found: list[Posterior] = []
    for batch in batches:
        found.append(learn(batch, prior=found[-1] if found else prior))
    return found


def _cut(pair: Pair, index: Tensor) -> list[Pair]:
    return [(pair[0][rows], pair[1][rows]) for rows in index.tensor_split(BATCHES)]


def _line(inputs: int) -> nn.Linear:
    """One output, all weights zero."""
    line = nn.Linear(inputs, 1).double()
    for weight in line.parameters():
        nn.init.zeros_(weight)
    return line


def _generator(*key: int) -> torch.Generator:
    return torch.Generator().manual_seed(sum(100_003**power * part for power, part in enumerate(key)))


# A linear regression


def _regression(seed: int) -> dict[str, float]:
    """Differences of mean and precision from the joint posterior's, relative, for one random order and cut."""
    generator = _generator(seed, 1)
    x = torch.randn(60, 3, generator=generator, dtype=torch.float64)
    y = x @ torch.tensor([1.0, -2.0, 0.5]).double() + 0.3 * torch.randn(60, generator=generator, dtype=torch.float64)
    line, method = _line(3), Laplace("all", "dense", tune="nothing", newton=1)

    def learn(batch: Pair, prior: Any) -> Posterior:
        likelihood = None if isinstance(prior, Posterior) else Gaussian(0.3)
        return fit(line, batch, method, likelihood, prior, epochs=0)

    joint = learn((x, y), GaussianPrior(1.0))
    cuts = torch.randperm(59, generator=generator)[: BATCHES - 1].sort().values + 1
    order = torch.randperm(60, generator=generator)
    parts = [(x[rows], y[rows]) for rows in order.tensor_split(cuts)]
    last = in_turn(learn, GaussianPrior(1.0), parts)[-1]
    return {
        "mean": _off(_flat(last), _flat(joint)),
        "precision": _off(_precision(last), _precision(joint)),
    }


def _off(found: Tensor, wanted: Tensor) -> float:
    return float((found - wanted).abs().max() / wanted.abs().max())


def _flat(posterior: Posterior) -> Tensor:
    return torch.cat([part.flatten() for part in posterior.mean.values()])


def _precision(posterior: Any) -> Tensor:
    found: Tensor = posterior.precision.dense()
    return found


# A straight classifier


def _straight(seed: int) -> Course:
    """Two clouds that overlap, the batches a random cut."""
    generator = _generator(seed, 2)
    y = torch.arange(POINTS) % 2
    x = (2.0 * y - 1)[:, None] * torch.tensor([1.0, 0.6]) + torch.randn(POINTS, 2, generator=generator)
    data, model = (x.double(), y), _line(2)
    method = Laplace("all", "dense", tune="nothing", newton=30)

    def learn(batch: Pair, prior: Any) -> Posterior:
        likelihood = None if isinstance(prior, Posterior) else Bernoulli()
        return fit(model, batch, method, likelihood, prior, epochs=0)

    batches = _cut(data, torch.randperm(POINTS, generator=generator))
    return Course(in_turn(learn, GaussianPrior(3.0), batches), learn(data, GaussianPrior(3.0)), batches)


def _plane() -> Tensor:
    line = torch.linspace(-4, 4, PLANE, dtype=torch.float64)
    return torch.cartesian_prod(line, line)


def _beside_exact(found: Course) -> dict[str, Any]:
    """Mean differences of P(1) over the plane, and the epistemic uncertainty there after each batch."""
    plane = _plane()
    exact = _exact(found, plane)
    last, joint = (posterior.predict(plane).probs.flatten() for posterior in (found.steps[-1], found.joint))
    return {
        "sequence_joint": float((last - joint).abs().mean()),
        "sequence_exact": float((last - exact).abs().mean()),
        "joint_exact": float((joint - exact).abs().mean()),
        "epistemic": [float(posterior.predict(plane).epistemic.mean()) for posterior in found.steps],
    }


def _exact(found: Course, plane: Tensor) -> Tensor:
    """P(1) under the exact posterior of all data, by a grid over the three weights about the joint Gaussian."""
    line = torch.linspace(-REACH, REACH, NODES, dtype=torch.float64)
    root = torch.linalg.cholesky(torch.linalg.inv(_precision(found.joint)))
    weights = _flat(found.joint) + torch.cartesian_prod(line, line, line) @ root.T
    x, y = (torch.cat(parts) for parts in zip(*found.batches, strict=True))
    log_likelihood = logsigmoid((2.0 * y - 1) * _logits(weights, x)).sum(1)
    share = (log_likelihood - 0.5 * (weights / 3.0).square().sum(1)).softmax(0)
    return share @ _logits(weights, plane).sigmoid()


def _logits(weights: Tensor, x: Tensor) -> Tensor:
    return weights[:, :2] @ x.T + weights[:, 2:]


# A network


def _network(seed: int, epochs: int) -> dict[str, Course]:
    """Moons, in batches of a random cut and one part of the plane after the other; all at once with as many steps."""
    data = moons(SIZE, NOISE, seed)
    model = build({"name": "mlp", "inputs": 2, "outputs": 2, "hidden": [16], "activation": "tanh"}, seed)
    method = Laplace("all", "dense", tune="nothing")

    def learn(batch: Pair, prior: Any, epochs: int = epochs) -> Posterior:
        return fit(model, batch, method, prior=prior, epochs=epochs, batch_size=SIZE, seed=seed)

    joint = learn(data, GaussianPrior(1.0), BATCHES * epochs)
    found = {}
    drawn, sorted_ = torch.randperm(SIZE, generator=_generator(seed, 3)), data[0][:, 0].argsort()
    for order, index in zip(ORDERS, (drawn, sorted_), strict=True):
        batches = _cut(data, index)
        found[order] = Course(in_turn(learn, GaussianPrior(1.0), batches), joint, batches)
    return found


def _scores(found: Course, seed: int) -> dict[str, Any]:
    """Accuracy and NLL on the whole of the plane, after each batch and of all data at once."""
    x, y = moons(TEST, NOISE, seed + 1_000_000)
    predictions = [posterior.predict(x) for posterior in (*found.steps, found.joint)]
    accuracy = [float((each.label == y).double().mean()) for each in predictions]
    nll = [float(-each.log_prob(y).double().mean()) for each in predictions]
    return {"accuracy": accuracy[:-1], "nll": nll[:-1], "joint_accuracy": accuracy[-1], "joint_nll": nll[-1]}


# What is claimed


def _exactly(errors: list[dict[str, float]]) -> Claim:
    most = max(max(each.values()) for each in errors)
    return Claim(
        SOURCE,
        f"the previous posterior as the prior: a linear regression in {BATCHES} batches is that of all data (to 1e-8)",
        f"mean and precision differ by at most {most:.0e}, relative, over {len(errors)} random orders and cuts",
        most <= EXACT,
    )


def _alike(straight: list[dict[str, Any]]) -> Claim:
    gaps = [each["sequence_joint"] for each in straight]
    return Claim(
        SOURCE,
        f"a straight classifier in {BATCHES} batches is that of all data: P(1) differs by less than {NEAR} on average",
        f"by {said(gaps, 4)} over {len(gaps)} seeds; each batch is approximated where the Gaussian is at the time",
        max(gaps) < NEAR,
    )


def _as_near(straight: list[dict[str, Any]]) -> Claim:
    own, joint = ([each[name] for each in straight] for name in ("sequence_exact", "joint_exact"))
    return Claim(
        SOURCE,
        f"it is as near to the exact posterior as one Gaussian of all data is, within {NEAR} of P(1)",
        f"from the exact P(1): {said(own, 4)} in batches, {said(joint, 4)} at once",
        findings.not_worse(findings.differences(joint, own), NEAR),
    )


def _surer(straight: list[dict[str, Any]]) -> Claim:
    falls = [all(late < early for early, late in pairwise(each["epistemic"])) for each in straight]
    means = [sum(values) / len(values) for values in zip(*(each["epistemic"] for each in straight), strict=True)]
    return Claim(
        SOURCE,
        "what the model does not know becomes less with every batch",
        f"epistemic uncertainty over the plane, in nats: {', '.join(f'{value:.3f}' for value in means)}; it falls with "
        f"every batch in {sum(falls)} of {len(falls)} seeds",
        all(falls),
    )


def _networks(order: str, scores: list[dict[str, Any]]) -> Claim:
    own, joint = [each["nll"][-1] for each in scores], [each["joint_nll"] for each in scores]
    right = [each["accuracy"][-1] for each in scores], [each["joint_accuracy"] for each in scores]
    measured = (
        f"NLL {said(own, 3)} in batches, {said(joint, 3)} at once; accuracy {said(right[0], 3)} and {said(right[1], 3)}"
    )
    losses = findings.differences(own, joint)
    if order == ORDERS[0]:
        says = (
            f"for a network, in batches of random examples, the sequence is no worse than all at once by {MARGIN} nats"
        )
        return Claim(SOURCE, says, measured, findings.not_worse([-loss for loss in losses], MARGIN))
    says = "for a network whose batches come from left to right, approximations do not work well: all at once is better"
    return Claim(OPEN, says, measured, findings.better(losses))


# The figure


def _draw(figure: Figure, shown: dict[str, Course]) -> None:
    axes = panels(figure, len(shown) * (BATCHES + 1), rows=len(shown))
    for row, (name, found) in enumerate(shown.items()):
        own = axes[row * (BATCHES + 1) : (row + 1) * (BATCHES + 1)]
        plane = _frame(found)
        for index, posterior in enumerate(found.steps):
            _map(own[index], posterior, plane)
            _examples(own[index], found.batches[:index], 0.25)
            _examples(own[index], found.batches[index : index + 1], 1.0)
            own[index].set(title=f"{name}, batch {index + 1}" if index == 0 else f"then batch {index + 1}")
        _map(own[-1], found.joint, plane)
        _examples(own[-1], found.batches, 1.0)
        own[-1].set(title="all at once")


def _frame(found: Course) -> tuple[Tensor, Tensor]:
    """Two lines of coordinates about all examples."""
    x = torch.cat([batch[0] for batch in found.batches])
    low, high = x.amin(0) - 0.6, x.amax(0) + 0.6
    return torch.linspace(float(low[0]), float(high[0]), GRID), torch.linspace(float(low[1]), float(high[1]), GRID)


def _map(ax: Axes, posterior: Posterior, plane: tuple[Tensor, Tensor]) -> None:
    """P(1) in colours, and where twelve drawn classifiers have their boundaries."""
    points = torch.cartesian_prod(*plane).to(next(posterior.model.parameters()).dtype)
    probs = posterior.predict(points).probs
    probs = probs[:, 1] if probs.ndim == 2 and probs.shape[1] == 2 else probs
    grid = [line.numpy() for line in plane]
    ax.contourf(*grid, probs.reshape(GRID, GRID).T.numpy(), levels=20, cmap="RdBu_r", vmin=0, vmax=1, alpha=0.75)
    with torch.no_grad():
        drawn = posterior.outputs(points, 12, torch.Generator().manual_seed(0))
    logits = drawn[..., 1] - drawn[..., 0] if drawn.shape[-1] == 2 else drawn[..., 0]
    for each in logits:
        if not each.min() < 0 < each.max():  # one class everywhere
            continue
        ax.contour(*grid, each.reshape(GRID, GRID).T.numpy(), levels=[0.0], colors="0.25", linewidths=0.5)
    ax.set(xticks=[], yticks=[])
    ax.grid(False)


def _examples(ax: Axes, batches: Sequence[Pair], alpha: float) -> None:
    for x, y in batches:
        for label, colour in ((0, "C0"), (1, "C1")):
            own = x[y == label]
            ax.plot(
                own[:, 0], own[:, 1], "o", color=colour, markeredgecolor="white", markersize=4, alpha=alpha, mew=0.5
            )
