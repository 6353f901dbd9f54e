"""Known algorithms as the rule: iterates equal those of the textbook form, or of another library."""

import dataclasses
import math
from functools import cache

import numpy as np
import pytest
import torch
from covering import first
from sklearn.linear_model import Ridge

from bayesrule.experiments.principles import derivations, textbook
from bayesrule.experiments.principles.derivations import DERIVATIONS, SEARCHES, Points, tensor
from bayesrule.experiments.principles.derivations_of_posteriors import (
    EXACT,
    POSTERIORS,
    hidden_markov,
    linear_system,
    swing,
)
from bayesrule.families import (
    Categorical,
    DiagonalGaussian,
    DroppedGaussian,
    FullGaussian,
    GaussianMean,
    GaussianMixture,
)
from bayesrule.rule import Rule, algorithms

ALL = (*DERIVATIONS, *POSTERIORS, *SEARCHES)
ONCE = {"ridge regression", "Laplace's method"}  # an answer, not a path
MODELS = {"ridge regression", "Kalman filter", "Kalman smoother", "forward–backward", "variational messages"}


@cache
def derived(derive, seed):
    return derive(seed)


@pytest.mark.parametrize("seed", first([0, 1]))
@pytest.mark.parametrize("derive", ALL, ids=lambda derive: derive.__name__)
def test_the_rule_is_the_textbook_form(derive, seed):
    found = derived(derive, seed)
    assert found.error <= found.bar <= 1e-6
    assert found.steps >= 50 or found.name in ONCE
    assert (found.bar <= EXACT) == (found.name in MODELS)
    assert np.isfinite(found.ours).all()


# A bar that anything passes says nothing: there is something to compare.
paths = pytest.mark.parametrize(
    "derive", [d for d in ALL if d.__name__ not in ("ridge", "laplace")], ids=lambda d: d.__name__
)


@paths
def test_a_path_moves(derive):
    theirs = derived(derive, 0).theirs
    assert np.abs(theirs[0] - theirs[-1]).max() > 1e-3


@pytest.mark.slow
@paths
def test_paths_differ_from_seed_to_seed(derive):
    assert np.abs(derived(derive, 0).theirs - derived(derive, 1).theirs).max() > 1e-3


def test_a_difference_is_seen():
    found = derivations.gradient_descent(0)
    assert not dataclasses.replace(found, ours=found.ours + 1e-5).held
    assert not dataclasses.replace(found, ours=found.ours * np.nan).held
    with pytest.raises(ValueError, match="shapes"):
        _ = dataclasses.replace(found, ours=found.ours[1:]).error


def test_every_algorithm_of_the_seed_is_there():
    assert {derived(derive, 0).name for derive in ALL} >= {
        "gradient descent", "SGD", "Newton's method", "RMSprop", "Adam", "Laplace's method", "ridge regression",
        "Kalman filter", "Kalman smoother", "forward–backward", "Baum–Welch", "EM", "stochastic variational",
        "variational messages", "dropout", "ensemble of Newton", "straight-through", "BayesBiNN",
        "exponential weights", "natural evolution", "Gaussian homotopy",
    }  # fmt: skip


# What a row of the table does not say


@pytest.mark.parametrize("how", ["exact", "local"])
def test_ridge_in_one_step_from_any_start(how):
    """The loss is quadratic, so that the delta method is as exact as quadrature."""
    random = np.random.default_rng(0)
    x, y = random.normal(size=(20, 2)), random.normal(size=20)

    def loss(w):
        return 0.5 * (tensor(y) - w @ tensor(x).mT).square().sum(-1) + 0.5 * 0.3 * w.square().sum(-1)

    start = FullGaussian.of(tensor([3.0, -1.0]), 0.5 * torch.eye(2, dtype=torch.float64))
    rule = Rule(FullGaussian(), loss, how=how, rate=1.0)
    mean, cov = FullGaussian.mean_and_covariance(rule.step(rule.start(start)).natural)
    want = Ridge(alpha=0.3, fit_intercept=False, solver="cholesky").fit(x, y).coef_
    assert np.allclose(mean, want, rtol=1e-10)
    assert np.allclose(torch.linalg.inv(cov), x.T @ x + 0.3 * np.eye(2), rtol=1e-10)
    assert torch.allclose(mean, FullGaussian().mean(algorithms.ridge(tensor(x), tensor(y), 0.3).natural), rtol=1e-10)


def test_laplace_says_when_it_does_not_settle():
    with pytest.raises(FloatingPointError, match="did not settle in 3 steps"):
        algorithms.laplace(Points(derivations.logistic(0)[0]), torch.zeros(3, dtype=torch.float64), steps=3)


def test_the_smoother_ends_where_the_filter_does():
    seen = tensor(swing(0)[1])
    filtered, smoothed = linear_system().filter(seen), linear_system().smooth(seen)
    assert torch.allclose(filtered.means[-1], smoothed.means[-1], rtol=1e-10)
    assert torch.allclose(filtered.covs[-1], smoothed.covs[-1], rtol=1e-10)
    assert (smoothed.covs[:-1, 0, 0] < filtered.covs[:-1, 0, 0]).all()


def test_baum_welch_takes_what_never_happens():
    """A symbol that one class never shows, and a first class that never is."""
    first, move, show, symbols = hidden_markov(0)
    show = np.array([[0.5, 0.5, 0.0, 0.0], [0.0, 0.5, 0.5, 0.0], [0.25, 0.25, 0.25, 0.25]])
    first = np.array([0.0, 0.5, 0.5])
    model = algorithms.HiddenMarkov(tensor(first), tensor(move), tensor(show)).step(torch.tensor(symbols))
    want = textbook.baum_welch(first, move, show, symbols, 1)[1]
    got = torch.cat([part.flatten() for part in (model.first, model.move, model.show)])
    assert np.allclose(got, want, rtol=1e-10, atol=1e-200)


def test_topics_stop_at_the_most_rounds():
    logs = torch.tensor([[0.7, 0.3], [0.4, 0.6]], dtype=torch.float64).log()
    counts = torch.tensor([[5.0, 3.0]], dtype=torch.float64)
    few, many = (algorithms.Topics(1, most=most).infer(logs, counts) for most in (1, 500))
    assert few.shape == many.shape == (1, 2, 2)
    assert not torch.allclose(few, many)


def test_dropout_on_average_is_ridge_with_the_scale_of_the_inputs():
    """Srivastava et al. 2014, §9.1: E‖y − X(z∘w)/p‖² = ‖y − Xw‖² + (1 − p)/p ‖Γw‖² with Γ² = diag(XᵀX)."""
    random, keep, rate = np.random.default_rng(0), 0.6, 0.01
    x, y = random.normal(size=(20, 2)), random.normal(size=20)

    def loss(w):
        return 0.5 * (tensor(y) - w[..., 0] @ tensor(x).mT / keep).square().sum(-1)

    rule = Rule(DroppedGaussian(keep=keep), loss, how="exact", rate=rate * keep)
    ours = rule.run(rule.start((torch.zeros(2, 1, dtype=torch.float64),)), 60).natural()[..., 0].numpy()
    gram = x.T @ x
    hessian = gram + (1 - keep) / keep * np.diag(np.diag(gram))
    theirs = textbook.gradient_descent([lambda w: hessian @ w - x.T @ y] * 60, np.zeros(2), rate)
    assert np.abs(ours - theirs).max() < 1e-10


@pytest.mark.parametrize("seed", range(3))
def test_dropout_draws_masks_of_the_right_rate(seed):
    """Steps of a linear loss count the masks: z within 4.5 deviations of the binomial, an error rate of 7e-6."""
    steps, keep = 400, 0.3
    rule = algorithms.dropout(lambda w: w.sum((-2, -1)), rate=1.0, keep=keep, seed=seed)
    moved = -rule.run(rule.start((torch.zeros(10, 1, dtype=torch.float64),)), steps).last.natural[0].sum()
    n = 10 * steps
    assert abs(float(moved) - n * keep) < 4.5 * math.sqrt(n * keep * (1 - keep))


def test_straight_through_with_entropy_is_weight_decay():
    network, start = derivations.binary_network(0)
    rule = algorithms.straight_through(network, rate=0.03, decay=1.0)
    ours = rule.run(rule.start((tensor(2 * start),)), 60).natural().numpy() / 2
    losses = [lambda w: network(textbook.straight_through(w)[None])[0]] * 60
    theirs = textbook.torch_optimiser(lambda w: torch.optim.SGD(w, lr=0.03, weight_decay=1.0), losses, start)
    assert np.abs(ours - theirs).max() < 1e-10


@pytest.mark.parametrize("name", ["straight_through", "bayesbinn"])
@pytest.mark.parametrize("seed", range(3))
def test_a_binary_network_learns(name, seed):
    """Signs flip to the end, as is known of the straight-through estimator: the last hundred steps together."""
    network, start = derivations.binary_network(seed)
    rule = getattr(algorithms, name)(network, rate=0.03)
    trace = rule.run(rule.start((tensor(start),)), 300)
    networks = torch.stack([algorithms.signs(state.natural) for state in trace.states])
    losses, right = network(networks), (network.outputs(networks) * tensor(network.y) > 0).double().mean(1)
    assert losses[-100:].mean() < 0.75 * losses[0]
    assert right[-100:].max() >= 0.9


def test_the_hand_made_gradient_of_the_binary_network():
    network, start = derivations.binary_network(0)
    by_torch = torch.autograd.functional.jacobian(lambda w: network(w[None])[0], tensor(start))
    assert np.allclose(network.gradient(start), by_torch, rtol=1e-10)


def test_exponential_weights_are_bayes_rule_again_and_again():
    costs = tensor(np.random.default_rng(0).uniform(size=(60, 4)))
    rule = algorithms.exponential_weights(rate=0.7)
    natural = Categorical.of(torch.full((4,), 0.25, dtype=torch.float64))
    path = rule.run(rule.start(natural), 60, losses=lambda step: lambda w: w @ costs[step])
    for cost in costs:
        bayes = Rule(Categorical(), lambda w, cost=cost: 0.7 * (w @ cost), conjugate=natural, rate=1.0)
        natural = bayes.step(bayes.start(natural)).natural
    assert torch.allclose(path.last.natural[0], natural[0], rtol=1e-10)


@pytest.mark.parametrize("seed", range(3))
def test_evolution_estimates_the_natural_gradient(seed):
    """The mean over 400 steps of one state against quadrature: |z| < 4.5 in each of 4 numbers, error rate 3e-5."""
    family = DiagonalGaussian()
    start = family.of(tensor([0.5, -1.0]), tensor([0.8, 0.3]))

    def loss(w):
        return (w.cos() + 0.3 * w**2).sum(-1) + 0.2 * w[:, 0] * w[:, 1]

    exact = torch.cat(family.gradient(loss, start, "exact"))
    steps = []
    for draw in range(400):
        rule = algorithms.evolution(loss, rate=1e-3, draws=10, seed=1000 * seed + draw)
        state = rule.start(start)
        steps.append(torch.cat(rule.step(state).velocity) / -1e-3)
    steps = torch.stack(steps)
    z = (steps.mean(0) - exact) / (steps.std(0) / math.sqrt(400))
    assert (z.abs() < 4.5).all()


def test_evolution_at_a_large_rate_needs_the_correction():
    """A concave loss lowers precisions by a whole step at once."""
    start = DiagonalGaussian.of(torch.zeros(1, dtype=torch.float64), torch.ones(1, dtype=torch.float64))
    plain, kept = (
        algorithms.evolution(lambda w: -(w[:, 0] ** 2), rate=2.0, draws=50, positive=positive)
        for positive in (False, True)
    )
    with pytest.raises(FloatingPointError, match="left the domain"):
        plain.step(plain.start(start))
    assert DiagonalGaussian.mean_and_variance(kept.step(kept.start(start)).natural)[1] > 0


def test_homotopy_without_smoothing_is_descent():
    loss, start = derivations.rippled(textbook.Ripple()), tensor([3.3])
    rule = algorithms.gradient_descent(loss, rate=0.03)
    plain = rule.run(rule.start((start,)), 60).natural()
    assert (plain - algorithms.homotopy(loss, start, [1e-3] * 60, rate=0.03)).abs().max() < 1e-4


def test_an_ensemble_keeps_its_members_apart():
    """Two Newtons in one valley end as one; two components of a mixture do not."""
    starts = np.array([[2.6, 2.6], [3.4, 3.4]])
    trace = algorithms.newton_ensemble(derivations.valleys, rate=0.1).run(derivations.ensemble_start(starts), 100)
    weights, means, _ = GaussianMixture().parts(trace.last.natural)
    assert torch.equal(weights, torch.full((2,), 0.5, dtype=torch.float64))
    assert (means[0] - means[1]).abs().min() > 0.01
    alone = algorithms.newton(derivations.valleys, rate=0.1)
    ends = [alone.run(alone.start(FullGaussian.of(tensor(s), torch.eye(2).double() / 20)), 100).last for s in starts]
    assert torch.allclose(*(FullGaussian().mean(end.natural) for end in ends), atol=1e-3)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_adam_leaves_alone_what_has_no_gradient(dtype):
    """However long, and however fast its average decays."""
    path = algorithms.adam(rate=0.1, betas=(0.5, 0.01)).path(torch.ones(2, dtype=dtype), [lambda w: w[:, 0] ** 2] * 200)
    assert path.dtype == dtype
    assert path[-1, 1] == 1
    assert path[-1, 0].abs() < 0.2


def test_descent_with_a_covariance_is_preconditioned():
    covariance = tensor([[2.0, 0.5], [0.5, 1.0]])
    rule = algorithms.gradient_descent(lambda w: 0.5 * w.square().sum(-1), rate=0.1, covariance=covariance)
    family = GaussianMean(covariance)
    start = tensor([1.0, -2.0])
    after = family.mean(rule.step(rule.start(family.of(start))).natural)
    assert torch.allclose(after, start - 0.1 * covariance @ start, rtol=1e-12)
