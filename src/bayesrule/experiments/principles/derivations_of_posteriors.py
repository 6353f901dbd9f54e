"""The learning rule beside textbook forms, II: posteriors, sequences, latent variables."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from bayesrule.experiments.principles import textbook
from bayesrule.experiments.principles.derivations import STEPS, Derivation, Points, logistic, tensor
from bayesrule.experiments.principles.textbook import Array
from bayesrule.families import Dirichlet, FullGaussian, Gamma
from bayesrule.rule import State, algorithms

EXACT = 1e-10


def ridge(seed: int) -> Derivation:
    """Mean and precision, by one step."""
    random = np.random.default_rng([seed, 10])
    x, decay = random.normal(size=(30, 5)), 0.7
    y = x @ random.normal(size=5) + random.normal(size=30)
    mean, cov = FullGaussian.mean_and_covariance(algorithms.ridge(tensor(x), tensor(y), decay).natural)
    ours = _moments(mean, torch.linalg.inv(cov))
    theirs = np.concatenate([textbook.ridge(x, y, decay), (x.T @ x + decay * np.eye(5)).ravel()])
    return _exact("ridge regression", "Gaussian", "numpy, least squares", ours, theirs, steps=1)


def laplace(seed: int) -> Derivation:
    """Mode and Hessian of logistic regression."""
    table, _ = logistic(seed)
    mean, cov = FullGaussian.mean_and_covariance(
        algorithms.laplace(Points(table), torch.zeros(3, dtype=torch.float64)).natural
    )
    ours, mode = _moments(mean, torch.linalg.inv(cov)), textbook.logistic_mode(table)
    theirs = np.concatenate([mode, table.hessian(mode).ravel()])
    return Derivation(
        "Laplace's method", "Gaussian", "at the mean, to the end", "scikit-learn's mode", ours, theirs, steps=1
    )


def _moments(mean: Tensor, second: Tensor) -> Array:
    return torch.cat([mean.flatten(), second.flatten()]).numpy()


def _exact(name: str, family: str, against: str, ours: Array, theirs: Array, **more: object) -> Derivation:
    """All conjugate: the bar is that of exact models."""
    return Derivation(name, family, "conjugate, ρ = 1", against, ours, theirs, bar=EXACT, **more)  # type: ignore[arg-type]


# Sequences


def system() -> textbook.StateSpace:
    """A point that swings and is seen with noise."""
    move = 0.99 * np.array([[np.cos(0.2), np.sin(0.2)], [-np.sin(0.2), np.cos(0.2)]])
    look, noise = np.array([[1.0, 0.0]]), np.array([[0.5]])
    return textbook.StateSpace(np.array([1.0, 0.0]), np.eye(2), move, 0.01 * np.eye(2), look, noise)


def swing(seed: int, length: int = STEPS) -> tuple[Array, Array]:
    """A path of `system` and what is seen of it."""
    random, here = np.random.default_rng([seed, 11]), system()
    path = [random.multivariate_normal(here.mean, here.cov)]
    for _ in range(length - 1):
        path.append(here.move @ path[-1] + random.multivariate_normal(np.zeros(2), here.drift))
    noise = random.normal(size=(length, 1)) * np.sqrt(here.noise[0, 0])
    return np.array(path), np.array(path) @ here.look.T + noise


def linear_system() -> algorithms.LinearSystem:
    """The same `system` for the rule."""
    here = system()
    parts = (here.mean, here.cov, here.move, here.drift, here.look, here.noise)
    return algorithms.LinearSystem(*(tensor(part) for part in parts))


def kalman_filter(seed: int) -> Derivation:
    """Means and covariances at each time."""
    seen = swing(seed)[1]
    ours = linear_system().filter(tensor(seen))
    theirs = textbook.kalman_filter(system(), seen)
    both = _moments(*ours), np.concatenate([part.ravel() for part in theirs])
    return _exact("Kalman filter", "Gaussian", "numpy, gain form", *both, beyond="prediction: q moved on by A and Q")


def kalman_smoother(seed: int) -> Derivation:
    """Means and covariances given all."""
    seen = swing(seed)[1]
    ours = linear_system().smooth(tensor(seen))
    theirs = textbook.rauch_tung_striebel(system(), seen)
    both = _moments(*ours), np.concatenate([part.ravel() for part in theirs])
    return _exact("Kalman smoother", "Gaussian over the path", "numpy, Rauch–Tung–Striebel", *both)


def hidden_markov(seed: int) -> tuple[Array, Array, Array, Array]:
    """Three classes, four symbols: p(z_1), p(z'|z), p(y|z) and eighty symbols."""
    random = np.random.default_rng([seed, 12])
    first, move = np.array([0.5, 0.3, 0.2]), 0.75 * np.eye(3) + 0.25 * random.dirichlet(np.ones(3), 3)
    show, z, symbols = random.dirichlet(0.5 * np.ones(4), 3), 0, []
    for _ in range(80):
        z = random.choice(3, p=move[z])
        symbols.append(random.choice(4, p=show[z]))
    return first, move, show, np.array(symbols)


def forward_backward(seed: int) -> Derivation:
    """p(z_t|y), the counts of moves, and log p(y)."""
    first, move, show, symbols = hidden_markov(seed)
    likelihood = show[:, symbols].T
    found = algorithms.forward_backward(tensor(first), tensor(move), tensor(likelihood))
    ours = torch.cat([found.single.flatten(), found.pairs.sum(0).flatten(), found.evidence[None]]).numpy()
    single, pairs, evidence = textbook.forward_backward(first, move, likelihood)
    theirs = np.concatenate([single.ravel(), pairs.ravel(), [evidence]])
    return _exact("forward–backward", "chain of classes", "numpy, Rabiner", ours, theirs, steps=80)


def baum_welch(seed: int) -> Derivation:
    """All tables after each round, from random ones."""
    symbols, random = hidden_markov(seed)[3], np.random.default_rng([seed, 13])
    first, move, show = random.dirichlet(np.ones(3)), random.dirichlet(np.ones(3), 3), random.dirichlet(np.ones(4), 3)
    model = algorithms.HiddenMarkov(tensor(first), tensor(move), tensor(show))
    ours = [_tables(model)]
    for _ in range(STEPS):
        model = model.step(torch.tensor(symbols))
        ours.append(_tables(model))
    theirs = np.array(textbook.baum_welch(first, move, show, symbols, STEPS))
    family, how, beyond = "chain of classes; Dirichlet", "conjugate, ρ = 1", "tables read at the mode"
    return Derivation("Baum–Welch", family, how, "numpy, Rabiner", np.array(ours), theirs, beyond=beyond)


def _tables(model: algorithms.HiddenMarkov) -> Array:
    return torch.cat([part.flatten() for part in (model.first, model.move, model.show)]).numpy()


# Latent variables


def mixture_em(seed: int) -> Derivation:
    """Two groups on the line."""
    random = np.random.default_rng([seed, 14])
    x = np.concatenate([random.normal(-2, 1, 40), random.normal(1.5, 0.5, 30)])
    weights, means, variances = np.array([0.5, 0.5]), np.array([-1.0, 0.5]), np.array([1.0, 2.0])
    model, ours = algorithms.MixtureOfNormals(tensor(weights), tensor(means), tensor(variances)), []
    for _ in range(STEPS + 1):
        ours.append(torch.cat([model.weights, model.means, model.variances]).numpy())
        model = model.step(tensor(x))
    theirs = textbook.gaussian_mixture_em(x, weights, means, variances, STEPS)
    family, how = "categorical; Dirichlet, Gaussian, Gamma", "conjugate, ρ = 1"
    return Derivation("EM", family, how, "numpy", np.array(ours), theirs, beyond="parameters read at the mode")


def message_passing(seed: int) -> Derivation:
    """Regression with unknown noise and unknown scale of the weights."""
    random = np.random.default_rng([seed, 15])
    x = random.normal(size=(25, 4))
    y = x @ random.normal(size=4) + 0.5 * random.normal(size=25)
    model = algorithms.Regression(tensor(x), tensor(y), shape=1.5, rate=0.8)
    naturals, ours = model.start(), []
    for _ in range(STEPS):
        naturals = model.step(naturals)
        mean = FullGaussian().mean(naturals[0])
        ours.append(torch.cat([mean, *(Gamma().mean(natural)[None] for natural in naturals[1:])]).numpy())
    theirs = textbook.variational_regression(x, y, (1.5, 0.8), STEPS)
    family = "Gaussian × Gamma × Gamma"
    return _exact("variational messages", family, "numpy, Bishop §10.3", np.array(ours), theirs)


def documents(seed: int) -> Array:
    """Counts of ten words in sixty documents of two topics."""
    random = np.random.default_rng([seed, 16])
    topics = np.array([[6, 5, 4, 3, 2, 1, 0.2, 0.2, 0.2, 0.2], [0.2, 0.2, 0.2, 0.2, 1, 2, 3, 4, 5, 6]])
    mixes = random.dirichlet(0.3 * np.ones(2), 60) @ (topics / topics.sum(1, keepdims=True))
    return np.array([random.multinomial(60, mix) for mix in mixes], dtype=np.float64)


def stochastic_inference(seed: int) -> Derivation:
    """Topics after each batch, against scikit-learn's; its state after one batch is the common start."""
    counts, random = documents(seed), np.random.default_rng([seed, 17])
    rows = [random.choice(60, 6, replace=False) for _ in range(STEPS + 1)]
    settings = {"n_components": 2, "doc_topic_prior": 0.4, "topic_word_prior": 0.3, "learning_decay": 0.7}
    patience = {"learning_offset": 5.0, "mean_change_tol": 1e-12, "max_doc_update_iter": 5000, "random_state": seed}
    theirs = np.array(list(textbook.online_lda(counts, [list(r) for r in rows], settings | patience)))
    topics = algorithms.Topics(60, mix=0.4, words=0.3, near=1e-8, rate=lambda done: (5.0 + done + 2) ** -0.7)
    state = State(Dirichlet.of(tensor(theirs[0])), (torch.zeros(2, 10, dtype=torch.float64),))
    ours = [theirs[0]]
    for row in rows[1:]:
        state = topics.step(state, tensor(counts[row]))
        ours.append(Dirichlet.concentration(state.natural).numpy())
    family, how = "Dirichlet; categorical, Dirichlet", "conjugate, of a batch, ρ = (5 + t)^−0.7"
    return Derivation("stochastic variational", family, how, "scikit-learn's LDA", np.array(ours), theirs)


POSTERIORS: tuple[Callable[[int], Derivation], ...] = (
    ridge,
    kalman_filter,
    kalman_smoother,
    forward_backward,
    baum_welch,
    mixture_em,
    stochastic_inference,
    message_passing,
    laplace,
)
