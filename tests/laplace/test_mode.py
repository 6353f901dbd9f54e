"""The mean is the mode of the prior that is reported, and the posterior as wide as the exact one."""

import pytest
import torch
from covering import later
from torch import nn

import bayesrule as br
from bayesrule.methods import Laplace

DOUBLE = torch.float64
SEEDS = range(6)
every_seed = pytest.mark.parametrize("seed", [seed if seed < 3 else later(seed) for seed in SEEDS])


def logistic(seed, n):
    """Five weights, drawn from N(0, 1); labels drawn from the model."""
    generator = torch.Generator().manual_seed(seed)
    x, w = torch.randn(n, 5, generator=generator, dtype=DOUBLE), torch.randn(5, generator=generator, dtype=DOUBLE)
    return x, (torch.rand(n, generator=generator, dtype=DOUBLE) < torch.sigmoid(x @ w)).long()


def slope(x, y, w, scale):
    """The gradient of −log p(D|w) − log N(w; 0, scale²), and its second derivative."""
    p = torch.sigmoid(x @ w)
    precision = (x * (p * (1 - p))[:, None]).T @ x + torch.eye(len(w), dtype=DOUBLE) / scale**2
    return x.T @ (p - y) + w / scale**2, precision


def exact_deviations(x, y, scale):
    """By importance sampling: 20 000 draws from a Gaussian 1.5 times as wide as the curvature at the mode says."""
    w = torch.zeros(x.shape[1], dtype=DOUBLE)
    for _ in range(30):
        gradient, precision = slope(x, y, w, scale)
        w = w - torch.linalg.solve(precision, gradient)
    noise = torch.randn(20_000, len(w), generator=torch.Generator().manual_seed(0), dtype=DOUBLE)
    drawn = w + noise @ torch.linalg.cholesky(1.5 * torch.linalg.inv(precision)).T
    logits = drawn @ x.T
    log_prob = (logits * y - nn.functional.softplus(logits)).sum(1) - 0.5 * drawn.square().sum(1) / scale**2
    weights = (log_prob + 0.5 * noise.square().sum(1)).softmax(0)
    assert 1 / weights.square().sum() > 10_000  # draws that it is worth
    mean = weights @ drawn
    return (weights @ (drawn - mean).square()).sqrt()


@pytest.mark.parametrize("n", [80, 200])
@every_seed
def test_logistic_regression_is_as_wide_as_the_exact_posterior(seed, n):
    """80 examples are too few to hold some out, and the evidence tunes; of 200 some are held out."""
    x, y = logistic(seed, n)
    found = br.fit(nn.Linear(5, 1, bias=False).double(), (x, y), "laplace", "bernoulli", seed=seed, epochs=40)
    scale = found.info["diagnostics"]["prior_scale"]["weight"]
    ratio = found.std["weight"][0] / exact_deviations(x, y, scale)
    assert ratio.min() > 0.7
    assert ratio.max() < 1.4


@pytest.mark.parametrize("tune", ["evidence", "held-out"])
@every_seed
def test_the_mean_is_the_mode_of_the_prior_that_is_reported(seed, tune):
    x, y = logistic(seed, 120)
    held = logistic(seed + 100, 40)
    model = nn.Linear(5, 1, bias=False).double()
    found = br.fit(model, (x, y), Laplace(tune=tune), "bernoulli", seed=seed, epochs=20, val=held)
    scale = found.info["diagnostics"]["prior_scale"]["weight"]
    gradient, precision = slope(x, y, found.mean["weight"][0], scale)
    off = float(torch.dot(gradient, torch.linalg.solve(precision, gradient)).sqrt())
    assert off < 0.08  # posterior deviations
    assert off == pytest.approx(found.info["diagnostics"]["off_mode"], abs=0.03)


def test_a_network_that_is_taken_as_it_is_says_how_far_it_is_from_a_mode():
    x, y = logistic(0, 120)
    model = nn.Linear(5, 1, bias=False).double()
    with torch.no_grad():
        model.weight.fill_(0.1)
    found = br.fit(model, (x, y), Laplace(tune="nothing"), "bernoulli", epochs=0)
    assert torch.equal(found.mean["weight"], model.weight.detach())
    assert found.info["diagnostics"]["off_mode"] > 1


def test_many_held_out_examples_do_narrow_a_posterior_that_is_far_too_wide():
    """A prior of 100 and 30 examples that a line separates: all but flat, and 500 others know better."""
    x = torch.randn(530, 2, generator=torch.Generator().manual_seed(0), dtype=DOUBLE)
    y = (x[:, 0] > 0).long()
    found = br.fit(
        nn.Linear(2, 1).double(),
        (x[:30], y[:30]),
        Laplace("all", predictive="weights"),
        "bernoulli",
        br.priors.Gaussian(100.0),
        val=(x[30:], y[30:]),
        epochs=20,
    )
    assert found.spread < 1
    assert found.info["diagnostics"]["prior_scale"]["weight"] == pytest.approx(100.0)
