"""The learning rule beside textbook forms, I: descent, binary and dropped weights, search.

Each function runs a known algorithm twice on one small problem, as the rule and as its textbook prints it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import softplus

from bayesrule.experiments.principles import textbook
from bayesrule.experiments.principles.textbook import Array
from bayesrule.families import Categorical, DiagonalGaussian, FullGaussian, GaussianMixture
from bayesrule.rule import State, algorithms
from bayesrule.seeds import mixed

STEPS = 60


@dataclass(frozen=True)
class Derivation:
    """An algorithm as the rule gives it and as ``against`` does: all iterates of both, first dimension the step.

    ``family``, ``how``: the choices that make it. ``beyond``: what it does that the rule does not. ``drawn``: it is
    random, and both were given the same random numbers. ``steps``: how many there were; 1 for a posterior in one step.
    """

    name: str
    family: str
    how: str
    against: str
    ours: Array
    theirs: Array
    steps: int = STEPS
    beyond: str = ""
    drawn: bool = False
    bar: float = 1e-6

    @property
    def error(self) -> float:
        """The largest difference, in the unit of the largest entry."""
        if self.ours.shape != self.theirs.shape:
            raise ValueError(f"{self.name}: shapes {self.ours.shape} and {self.theirs.shape} differ")
        return float(np.abs(self.ours - self.theirs).max() / np.abs(self.theirs).max())

    @property
    def held(self) -> bool:
        """Within the bar; a NaN is not."""
        return self.error <= self.bar


def tensor(array: Array) -> Tensor:
    """In double precision."""
    return torch.tensor(array, dtype=torch.float64)


@dataclass(frozen=True)
class Points:
    """The loss of `textbook.LogisticLoss` for the rule: of points [n, D], derivatives by autograd."""

    table: textbook.LogisticLoss

    def __call__(self, w: Tensor) -> Tensor:
        """ℓ at each point."""
        margins = tensor(self.table.y) * (w @ tensor(self.table.x).mT)
        return softplus(-margins).sum(-1) + 0.5 * self.table.decay * w.square().sum(-1)

    def one(self, w: Tensor) -> Tensor:
        """Of a single point [D], as torch's optimisers want it."""
        return self(w[None])[0]


def logistic(seed: int) -> tuple[textbook.LogisticLoss, Array]:
    """Forty noisy examples in three dimensions, and a start."""
    random = np.random.default_rng([seed, 1])
    x = random.normal(size=(40, 3))
    y = np.sign(x @ np.array([1.0, -2.0, 0.5]) + random.normal(size=40))
    return textbook.LogisticLoss(x, y), 0.3 * random.normal(size=3)  # nearer than where whole Newton steps overshoot


def batches(seed: int) -> list[textbook.LogisticLoss]:
    """The batches of five of `logistic`, one for each step."""
    random, (table, _) = np.random.default_rng([seed, 2]), logistic(seed)
    return [table.batch(random.choice(40, 5, replace=False).tolist()) for _ in range(STEPS)]


def gradient_descent(seed: int) -> Derivation:
    """m ← m − ρ∇ℓ(m)."""
    table, start = logistic(seed)
    rule = algorithms.gradient_descent(Points(table), rate=0.02)
    ours = rule.run(rule.start((tensor(start),)), STEPS).natural().numpy()
    theirs = textbook.gradient_descent([table.gradient] * STEPS, start, 0.02)
    return Derivation("gradient descent", "Gaussian, fixed covariance", "at the mean", "numpy", ours, theirs)


def sgd(seed: int) -> Derivation:
    """The same on batches."""
    tables, (_, start) = batches(seed), logistic(seed)
    rule = algorithms.gradient_descent(rate=0.05)
    trace = rule.run(rule.start((tensor(start),)), STEPS, losses=lambda step: Points(tables[step]))
    theirs = textbook.torch_optimiser(partial(torch.optim.SGD, lr=0.05), [Points(t).one for t in tables], start)
    against, how = "torch.optim.SGD", "at the mean, of a batch"
    return Derivation("SGD", "Gaussian, fixed covariance", how, against, trace.natural().numpy(), theirs)


def newton(seed: int) -> Derivation:
    """ρ = 1."""
    table, start = logistic(seed)
    ours = _newton_path(table, start, rate=1.0)
    theirs = textbook.newton(table.gradient, table.hessian, start, STEPS)
    return Derivation("Newton's method", "Gaussian", "at the mean", "numpy", ours, theirs)


def averaged_newton(seed: int) -> Derivation:
    """ρ < 1: a running Hessian."""
    table, start = logistic(seed)
    ours = _newton_path(table, start, rate=0.3)
    theirs = textbook.averaged_newton(table.gradient, table.hessian, start, np.eye(3), 0.3, STEPS)
    return Derivation("Newton, ρ = 0.3", "Gaussian", "at the mean", "numpy", ours, theirs)


def _newton_path(table: textbook.LogisticLoss, start: Array, rate: float) -> Array:
    rule = algorithms.newton(Points(table), rate=rate)
    trace = rule.run(rule.start(FullGaussian.of(tensor(start), torch.eye(3, dtype=torch.float64))), STEPS)
    return np.array([FullGaussian().mean(state.natural).numpy() for state in trace.states])


def rmsprop(seed: int) -> Derivation:
    """The rule twice, with a square root."""
    make = partial(torch.optim.RMSprop, lr=0.02, alpha=0.9)
    beyond = "∇ℓ² for the Hessian; square root and δ; two rates"
    return _scaled("RMSprop", seed, algorithms.rmsprop(rate=0.02, average=0.9), make, beyond)


def adam(seed: int) -> Derivation:
    """The rule twice, with a square root, momentum and bias correction."""
    make = partial(torch.optim.Adam, lr=0.05, betas=(0.9, 0.99))
    beyond = "as RMSprop; heavy ball; bias correction"
    return _scaled("Adam", seed, algorithms.adam(rate=0.05, betas=(0.9, 0.99)), make, beyond)


def _scaled(
    name: str,
    seed: int,
    algorithm: algorithms.Scaled,
    make: Callable[[list[Tensor]], torch.optim.Optimizer],
    beyond: str,
) -> Derivation:
    losses, (_, start) = [Points(table) for table in batches(seed)], logistic(seed)
    ours = algorithm.path(tensor(start), losses).numpy()
    theirs = textbook.torch_optimiser(make, [loss.one for loss in losses], start)
    return Derivation(
        name, "Gaussian, diagonal", "at the mean, of a batch", f"torch.optim.{name}", ours, theirs, beyond=beyond
    )


# Dropped and binary weights


def dropout(seed: int) -> Derivation:
    """Logistic regression, one example and one mask of its inputs a step."""
    (table, start), keep, rate = logistic(seed), 0.6, 0.1
    rows = np.random.default_rng([seed, 3]).integers(0, 40, STEPS)
    rule = algorithms.dropout(rate=rate, keep=keep, seed=seed)
    scaled, dropped = [], []
    for step, row in enumerate(rows):
        one = table.batch([row])
        scaled.append(Points(textbook.LogisticLoss(one.x / keep, one.y, 0.0)))
        mask = torch.rand(3, generator=_generator(seed, step), dtype=torch.float64) < keep  # as the rule draws it
        dropped.append(Points(textbook.LogisticLoss(one.x / keep * mask.numpy(), one.y, 0.0)).one)
    trace = rule.run(rule.start((tensor(start)[:, None],)), STEPS, lambda step: lambda w: scaled[step](w[..., 0]))
    theirs = textbook.torch_optimiser(partial(torch.optim.SGD, lr=rate), dropped, start)
    ours, against = trace.natural()[..., 0].numpy(), "torch.optim.SGD, masked inputs"
    return Derivation("dropout", "spike and slab", "at the slab's mean, one mask", against, ours, theirs, drawn=True)


def _generator(seed: int, step: int) -> torch.Generator:
    """What a rule of this seed draws its step's first numbers from."""
    return torch.Generator().manual_seed(mixed(seed, step, 0))


def newton_ensemble(seed: int) -> Derivation:
    """Four Gaussians in four valleys, against four runs of Newton's method with a running Hessian."""
    random = np.random.default_rng([seed, 4])
    corners = np.array([[-3.0, -3.0], [-3.0, 3.0], [3.0, -3.0], [3.0, 3.0]])
    starts = corners + random.uniform(-0.5, 0.5, (4, 2))
    state = ensemble_start(starts)
    trace = algorithms.newton_ensemble(valleys, rate=0.2).run(state, STEPS)
    ours = np.array([GaussianMixture().parts(s.natural)[1].numpy() for s in trace.states])

    def gradient(w: Array) -> Array:
        return 2 * w * (w**2 - 9)

    def hessian(w: Array) -> Array:
        return np.diag(6 * w**2 - 18)

    runs = [textbook.averaged_newton(gradient, hessian, start, 20 * np.eye(2), 0.2, STEPS) for start in starts]
    family, how = "mixture of Gaussians", "at each mean"
    theirs = np.stack(runs, 1)
    return Derivation("ensemble of Newton", family, how, "numpy, each alone", ours, theirs, beyond="equal weights held")


def valleys(w: Tensor) -> Tensor:
    """½Σ_j(w_j² − 9)², lowest at ±3 in each coordinate."""
    return 0.5 * (w.square() - 9).square().sum(-1)


def ensemble_start(starts: Array) -> State:
    """Equal Gaussians of precision 20 at the given means."""
    count, width = starts.shape
    weights = torch.full((count,), 1 / count, dtype=torch.float64)
    covs = torch.eye(width, dtype=torch.float64).expand(count, width, width) / 20
    return algorithms.newton_ensemble(valleys).start(GaussianMixture.of(weights, tensor(starts), covs))


@dataclass(frozen=True)
class BinaryNetwork:
    """β Σ_i log(1 + exp(−y_i f_i)), f = Σ_h v_h tanh(u_h·x), all weights (u, v) in one row of 3H numbers."""

    x: Array
    y: Array
    weight: float = 0.2  # β: the whole loss at 1 drives log-odds beyond what 1 − tanh² can hold in double precision

    def __call__(self, w: Tensor) -> Tensor:
        """The loss at each point."""
        return self.weight * softplus(-tensor(self.y) * self.outputs(w)).sum(-1)

    def outputs(self, w: Tensor) -> Tensor:
        """f, [n, B]."""
        u, v = w[:, : 2 * w.shape[1] // 3].reshape(len(w), -1, 2), w[:, 2 * w.shape[1] // 3 :]
        return (v[:, :, None] * torch.tanh(u @ tensor(self.x).mT)).sum(1)

    def gradient(self, w: Array) -> Array:
        """Of one row, by hand."""
        u, v = w[: 2 * len(w) // 3].reshape(-1, 2), w[2 * len(w) // 3 :]
        hidden = np.tanh(self.x @ u.T)
        slope = -self.weight * self.y * textbook.sigmoid(-self.y * (hidden @ v))
        by_u = (slope[:, None] * (1 - hidden**2) * v).T @ self.x
        return np.concatenate([by_u.ravel(), hidden.T @ slope])


def binary_network(seed: int) -> tuple[BinaryNetwork, Array]:
    """Thirty examples on two sides of a line, and a start for twelve hidden units."""
    random = np.random.default_rng([seed, 5])
    x = random.normal(size=(30, 2))
    return BinaryNetwork(x, np.sign(x[:, 0] - 0.5 * x[:, 1])), random.normal(size=36)


def straight_through(seed: int) -> Derivation:
    """The estimator with torch's autograd and SGD, against Bernoulli weights at their likelier values."""
    network, start = binary_network(seed)
    rule = algorithms.straight_through(network, rate=0.03)
    ours = rule.run(rule.start((tensor(2 * start),)), STEPS).natural().numpy() / 2
    losses = [lambda w: network(textbook.straight_through(w)[None])[0]] * STEPS
    theirs = textbook.torch_optimiser(partial(torch.optim.SGD, lr=0.03), losses, start)
    against, beyond = "torch.optim.SGD, sign with slope 1", "slope at the likelier value; entropy left out"
    return Derivation("straight-through", "Bernoulli", "at the mode", against, ours, theirs, beyond=beyond)


def bayesbinn(seed: int) -> Derivation:
    """Meng, Bachmann and Khan's update with the same noise."""
    network, start = binary_network(seed)
    rule = algorithms.bayesbinn(network, rate=0.05, relaxation=0.7, seed=seed)
    ours = rule.run(rule.start((tensor(start),)), STEPS).natural().numpy() / 2
    uniform = [torch.rand(36, generator=_generator(seed, step), dtype=torch.float64).numpy() for step in range(STEPS)]
    theirs = textbook.bayesbinn(network.gradient, start / 2, np.array(uniform), 0.05, 0.7)
    return Derivation("BayesBiNN", "Bernoulli", "one relaxed draw", "numpy", ours, theirs, drawn=True)


# Search


def exponential_weights(seed: int) -> Derivation:
    """Ten experts, a loss for each in every round."""
    losses = np.random.default_rng([seed, 6]).uniform(size=(STEPS, 10)) + np.linspace(0, 0.3, 10)
    rule = algorithms.exponential_weights(rate=0.4)
    even = Categorical.of(torch.full((10,), 0.1, dtype=torch.float64))
    trace = rule.run(rule.start(even), STEPS, losses=lambda step: lambda w: w @ tensor(losses[step]))
    ours = np.array([Categorical().mean(state.natural).numpy() for state in trace.states])
    theirs = textbook.hedge(losses, 0.4)
    how = "exact; the last weights are the prior"
    return Derivation("exponential weights", "categorical", how, "numpy", ours, theirs)


def evolution(seed: int) -> Derivation:
    """Two dimensions, fifty draws a step, means and deviations."""
    loss = textbook.Ripple(height=0.3, pace=3.0)
    mean, variance = np.array([2.0, -1.5]), np.array([1.0, 0.5])
    rule = algorithms.evolution(lambda w: tensor(loss.smoothed(w.numpy(), 0.0).sum(-1)), rate=0.05, draws=50, seed=seed)
    trace = rule.run(rule.start(DiagonalGaussian.of(tensor(mean), tensor(variance))), STEPS)
    ours = np.array([torch.cat(DiagonalGaussian.mean_and_variance(state.natural)).numpy() for state in trace.states])
    draws = [torch.randn(50, 2, generator=_generator(seed, step), dtype=torch.float64) for step in range(STEPS)]
    theirs = textbook.evolution(
        lambda w: loss.smoothed(w, 0.0).sum(-1), mean, variance, torch.stack(draws).numpy(), 0.05
    )
    name, beyond = "natural evolution", "entropy left out"
    return Derivation(name, "Gaussian, diagonal", "50 draws, scores", "numpy", ours, theirs, beyond=beyond, drawn=True)


DEVIATIONS = np.linspace(1.2, 0.05, STEPS).tolist()


def homotopy(seed: int) -> Derivation:
    """Descent on a smoothed loss, the smoothing known in closed form."""
    ripple = textbook.Ripple()
    start = np.random.default_rng([seed, 7]).uniform(2.0, 4.0, 1)
    ours = algorithms.homotopy(rippled(ripple), tensor(start), DEVIATIONS, rate=0.07).numpy()
    theirs = textbook.continuation(ripple, start, DEVIATIONS, 0.07)
    how, beyond = "64-point quadrature", "σ shrinks by a schedule"
    return Derivation(
        "Gaussian homotopy", "Gaussian, fixed covariance", how, "numpy, closed form", ours, theirs, beyond=beyond
    )


def rippled(ripple: textbook.Ripple) -> Callable[[Tensor], Tensor]:
    """The loss for the rule."""
    return lambda w: (0.5 * w.square() + ripple.height * (1 - torch.cos(ripple.pace * w))).sum(-1)


DERIVATIONS: tuple[Callable[[int], Derivation], ...] = (
    gradient_descent,
    sgd,
    newton,
    averaged_newton,
    rmsprop,
    adam,
    dropout,
    newton_ensemble,
    straight_through,
    bayesbinn,
)
SEARCHES: tuple[Callable[[int], Derivation], ...] = (exponential_weights, evolution, homotopy)
