"""The textbook forms are right themselves: against brute force, and against scikit-learn and torch."""

import itertools

import numpy as np
import pytest
import torch
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import Ridge
from sklearn.mixture import GaussianMixture

from bayesrule.experiments.principles import textbook


@pytest.fixture
def random():
    return np.random.default_rng(0)


@pytest.fixture
def table(random):
    x = random.normal(size=(30, 3))
    return textbook.LogisticLoss(x, np.sign(x @ [1.0, -2.0, 0.5] + random.normal(size=30)), 0.7)


def test_slope_and_hessian_of_logistic_regression(table):
    x, y = torch.tensor(table.x), torch.tensor(table.y)
    w = torch.tensor([0.3, -0.2, 0.9], dtype=torch.float64)

    def loss(w):
        return torch.nn.functional.softplus(-y * (x @ w)).sum() + 0.5 * table.decay * w.square().sum()

    assert np.allclose(table.gradient(w.numpy()), torch.autograd.functional.jacobian(loss, w), rtol=1e-12)
    assert np.allclose(table.hessian(w.numpy()), torch.autograd.functional.hessian(loss, w), rtol=1e-12)
    assert np.abs(table.gradient(textbook.logistic_mode(table))).max() < 1e-10


def test_ridge_is_scikit_learns(table):
    want = Ridge(alpha=0.7, fit_intercept=False, solver="cholesky").fit(table.x, table.y).coef_
    assert np.allclose(textbook.ridge(table.x, table.y, 0.7), want, rtol=1e-12)


def chain(random, states=3, symbols=4):
    first, move, show = (
        random.dirichlet(np.ones(n), size) for n, size in ((states, 1), (states, states), (symbols, states))
    )
    return first[0], move, show


def test_forward_backward_is_the_sum_over_all_paths(random):
    first, move, show = chain(random)
    likelihood = show[:, [0, 3, 1, 1, 2]].T
    single, pairs, total = np.zeros((5, 3)), np.zeros((3, 3)), 0.0
    for path in itertools.product(range(3), repeat=5):
        steps = list(itertools.pairwise(path))
        p = first[path[0]] * np.prod([move[a, b] for a, b in steps]) * np.prod(likelihood[range(5), path])
        total += p
        single[range(5), path] += p
        for a, b in steps:
            pairs[a, b] += p
    got = textbook.forward_backward(first, move, likelihood)
    assert np.allclose(got[0], single / total, rtol=1e-12)
    assert np.allclose(got[1], pairs / total, rtol=1e-12)
    assert np.isclose(got[2], np.log(total), rtol=1e-12)


def test_baum_welch_never_lowers_the_likelihood(random):
    first, move, show = chain(random)
    symbols = random.integers(0, 4, 60)
    said = []
    for row in textbook.baum_welch(first, move, show, symbols, 50):
        first, move, show = row[:3], row[3:12].reshape(3, 3), row[12:].reshape(3, 4)
        said.append(textbook.forward_backward(first, move, show[:, symbols].T)[2])
    assert (np.diff(said) > -1e-9).all()
    assert said[-1] > said[0] + 1


@pytest.mark.filterwarnings(f"ignore::{ConvergenceWarning.__module__}.{ConvergenceWarning.__name__}")
def test_em_is_scikit_learns(random):
    x = np.concatenate([random.normal(-2, 1, 40), random.normal(1.5, 0.5, 30)])
    weights, means, variances = np.array([0.4, 0.6]), np.array([-1.0, 0.5]), np.array([1.0, 2.0])
    start = {"weights_init": weights, "means_init": means[:, None], "precisions_init": 1 / variances[:, None]}
    for steps in (1, 7, 30):
        model = GaussianMixture(2, covariance_type="diag", tol=0, reg_covar=0, max_iter=steps, **start)
        model.fit(x[:, None])
        got = textbook.gaussian_mixture_em(x, weights, means, variances, steps)[-1]
        want = np.concatenate([model.weights_, model.means_[:, 0], model.covariances_[:, 0]])
        assert np.allclose(got, want, rtol=1e-9)


def test_the_filter_and_the_smoother_are_one_large_gaussian(random):
    system = textbook.StateSpace(
        np.array([0.3, -0.1]), np.eye(2), np.array([[1.0, 0.5], [-0.2, 0.9]]), 0.1 * np.eye(2),
        np.array([[1.0, 0.3]]), np.array([[0.4]]),
    )  # fmt: skip
    seen = random.normal(size=(4, 1))
    mean, cov = [system.mean], np.zeros((8, 8))
    cov[:2, :2] = system.cov
    for t in range(1, 4):
        mean.append(system.move @ mean[-1])
        cov[2 * t : 2 * t + 2, : 2 * t] = system.move @ cov[2 * t - 2 : 2 * t, : 2 * t]
        cov[: 2 * t, 2 * t : 2 * t + 2] = cov[2 * t : 2 * t + 2, : 2 * t].T
        block = cov[2 * t - 2 : 2 * t, 2 * t - 2 : 2 * t]
        cov[2 * t : 2 * t + 2, 2 * t : 2 * t + 2] = system.move @ block @ system.move.T + system.drift
    look, flat = np.kron(np.eye(4), system.look), np.concatenate(mean)
    gain = cov @ look.T @ np.linalg.inv(look @ cov @ look.T + 0.4 * np.eye(4))
    want, spread = flat + gain @ (seen[:, 0] - look @ flat), cov - gain @ look @ cov
    means, covs = textbook.rauch_tung_striebel(system, seen)
    assert np.allclose(means.ravel(), want, rtol=1e-10)
    assert np.allclose(covs, [spread[2 * t : 2 * t + 2, 2 * t : 2 * t + 2] for t in range(4)], rtol=1e-10)
    assert np.allclose(textbook.kalman_filter(system, seen)[0][-1], means[-1])


def test_the_smoothed_ripple_is_an_average(random):
    ripple, nodes = textbook.Ripple(), np.polynomial.hermite_e.hermegauss(60)
    for deviation in (0.1, 0.7):
        theta = 0.8 + deviation * nodes[0]
        mean = (nodes[1] * ripple.smoothed(theta, 0.0)).sum() / nodes[1].sum()
        assert np.isclose(ripple.smoothed(np.array(0.8), deviation), mean, rtol=1e-9)
