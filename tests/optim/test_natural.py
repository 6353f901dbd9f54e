"""VON, OGN, VOGN, Vadam and IVON against their equations."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from natural_training import N, build, descend, examples, network, train
from torch import nn
from torch.nn import functional as F

from bayesrule.optim import IVON, VON


def example_squares(model, x, y):
    """(1/M) Σ_i g_i² by a loop over examples."""
    total = [torch.zeros_like(p) for p in model.parameters()]
    for i in range(len(x)):
        grads = torch.autograd.grad(F.mse_loss(model(x[i : i + 1]), y[i : i + 1]), list(model.parameters()))
        total = [t + g.square() / len(x) for t, g in zip(total, grads, strict=True)]
    return total


def textbook(kind, model, optimizer, steps, δ0, betas, h0, η=lambda t: 1.0, m0=0.0, damping=0.0, ξ=math.inf):
    """The equations of the papers, tensor by tensor, at the weights that the optimiser draws."""
    (x, y), (β1, β2), lr = examples(n=8), betas, 0.05
    m = [p.detach().clone() for p in model.parameters()]
    h, g = [torch.full_like(p, h0) for p in m], [torch.zeros_like(p) for p in m]
    for t in range(1, steps + 1):
        λ, δ = N / η(t), η(t) * δ0
        with optimizer.sampled():
            w = [p.detach().clone() for p in model.parameters()]
            fresh = torch.autograd.grad(F.mse_loss(model(x), y), list(model.parameters()))
            squares = example_squares(model, x, y) if kind in ("vogn", "ogn") else None
            descend(optimizer, F.mse_loss(model(x), y))
        optimizer.step()
        for i in range(len(m)):
            s = h[i] + δ
            if kind == "vadam":
                g[i] = β1 * g[i] + (1 - β1) * (fresh[i] + δ * (m[i] - m0))
                h[i] = β2 * h[i] + (1 - β2) * fresh[i] ** 2
                second = (h[i] - β2**t * h0) / (1 - β2**t)
                m[i] = m[i] - lr * g[i] / (1 - β1**t) / (second.sqrt() + δ + damping)
                continue
            g[i] = β1 * g[i] + (1 - β1) * fresh[i]
            if kind == "ivon":
                ĥ = fresh[i] * (w[i] - m[i]) * λ * s
                h[i] = β2 * h[i] + (1 - β2) * ĥ + 0.5 * (1 - β2) ** 2 * (h[i] - ĥ) ** 2 / s
            else:
                h[i] = β2 * h[i] + (1 - β2) * squares[i]
            rate = lr * (h0 + δ)
            move = (g[i] / (1 - β1**t) + δ * (m[i] - m0)) / (h[i] + δ + damping)
            m[i] = m[i] - rate * move.clamp(-ξ, ξ)
    return m, h


@pytest.mark.parametrize("refresh", [1, 8])
@pytest.mark.parametrize("kind", ["ivon", "vogn", "ogn", "vadam"])
def test_iterates_are_those_of_the_equations(kind, refresh):
    """Over 60 steps, float64."""
    model, δ, betas, h0 = network(), 0.02, (0.9, 0.99), 0.3
    optimizer = build(kind, model, weight_decay=δ, betas=betas, hess_init=h0, refresh=refresh)
    m, h = textbook(kind, model, optimizer, 60, δ, betas, h0)
    deviations = list(optimizer.deviations.values())
    for p, s, mean, curvature in zip(model.parameters(), deviations, m, h, strict=True):
        assert torch.allclose(p, mean, rtol=1e-9, atol=1e-12)
        assert torch.allclose(s, (N * (curvature + δ)).rsqrt(), rtol=1e-9)


def test_temperature_damping_prior_mean_and_clipping_are_in_the_equations():
    model = network()
    options = {"temperature": 0.4, "tempering": 20, "damping": 0.1, "prior_mean": 0.5, "clip_radius": 0.2}
    optimizer = build("ivon", model, weight_decay=0.02, betas=(0.8, 0.99), hess_init=0.3, **options)

    def temperature(t):
        return 0.4 * (0.1 + 0.9 * min((t - 1) / 20, 1))

    m, _ = textbook("ivon", model, optimizer, 30, 0.02, (0.8, 0.99), 0.3, temperature, m0=0.5, damping=0.1, ξ=0.2)
    assert all(torch.allclose(p, mean, rtol=1e-9) for p, mean in zip(model.parameters(), m, strict=True))


def test_von_has_the_hessian_of_a_diagonal_loss():
    """ĥ is exact there: h ← βh + (1 − β)H + ½(1 − β)²(h − H)²/(h + δ)."""
    w, a = nn.Parameter(torch.ones(3, dtype=torch.float64)), torch.tensor([1.0, 2.0, 5.0], dtype=torch.float64)
    optimizer = VON([w], lr=0.1, ess=N, weight_decay=0.1, betas=(0.0, 0.9), hess_init=0.5)
    h = torch.full_like(a, 0.5)
    for _ in range(50):
        with optimizer.sampled():
            descend(optimizer, 0.5 * (a * w.square()).sum())
        optimizer.step()
        h = 0.9 * h + 0.1 * a + 0.5 * 0.01 * (h - a) ** 2 / (h + 0.1)
    assert torch.allclose(optimizer.deviations["0"], (N * (h + 0.1)).rsqrt(), rtol=1e-10)


def logistic(n=60, seed=0):
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(n, 2, generator=generator, dtype=torch.float64)
    y = torch.rand(n, generator=generator, dtype=torch.float64).lt(
        torch.sigmoid(x @ torch.tensor([1.5, -1.0]).double())
    )
    return x, y.double()


@pytest.mark.slow
def test_von_on_logistic_regression_meets_the_optimality_conditions():
    """E_q[∇ℓ] = 0 and S = E_q[H], by quadrature at what VON has converged to with falling rates.

    ℓ is the whole loss, of likelihood and prior, over N. Its gradient is of order one where training starts.
    """
    x, y = logistic()
    w = nn.Parameter(torch.zeros(2, dtype=torch.float64))
    δ = 1 / len(x)  # a prior N(0, 1)
    optimizer = VON([w], lr=1.0, ess=len(x), weight_decay=δ, betas=(0.0, 0.9), hess_init=1.0 - δ)
    means, precisions = [], []
    for t in range(6000):
        optimizer.param_groups[0].update(lr=1 / (1 + 0.1 * t), betas=(0.0, 1 - 1 / (2 + 0.1 * t)))
        with optimizer.sampled():
            descend(optimizer, F.binary_cross_entropy_with_logits(x @ w, y))
        optimizer.step()
        if t >= 3000:
            means.append(w.detach().clone())
            precisions.append(optimizer.deviations["0"] ** -2)
    m, s = torch.stack(means).mean(0), torch.stack(precisions).mean(0)
    nodes, weights = map(torch.from_numpy, np.polynomial.hermite_e.hermegauss(40))
    grid = torch.cartesian_prod(nodes, nodes) / s.sqrt() + m
    mass = torch.cartesian_prod(weights, weights).prod(1) / (2 * math.pi)
    p = torch.sigmoid(grid @ x.T)
    slope = ((p - y) @ x / len(x) + δ * grid).mul(mass[:, None]).sum(0)
    curve = ((p * (1 - p)) @ x.square() / len(x) + δ).mul(mass[:, None]).sum(0)
    assert slope.abs().max() < 1e-3
    assert (s / len(x) - curve).abs().max() < 1e-3
    mean, covariance = moments(x, y)
    assert ((m - mean) / covariance.diagonal().sqrt()).abs().max() < 0.05
    assert (s.rsqrt() / torch.linalg.inv(covariance).diagonal().rsqrt() - 1).abs().max() < 0.05


def moments(x, y):
    """Mean and covariance of the exact posterior under N(0, 1), on a grid.

    A mean-field q has the deviations of one weight given the others, not the marginal ones; the posterior is a little
    skewed, so that both agree to a few hundredths.
    """
    line = torch.linspace(-6, 6, 601, dtype=torch.float64)
    grid = torch.cartesian_prod(line, line)
    log_p = -F.softplus(-(2 * y - 1) * (grid @ x.T)).sum(1) - 0.5 * grid.square().sum(1)
    mass = torch.softmax(log_p, 0)
    mean = mass @ grid
    return mean, (grid - mean).T @ ((grid - mean) * mass[:, None])


def test_draws_are_from_q():
    """Noise of every place in a cycle is standard normal; a weight's draws are pairs of negatives, else independent.

    20 000 numbers: mean, variance and fourth moment within 4.5 standard errors, and correlations of draws; 2 seeds.
    24 tests each: a false alarm in 3 000 runs.
    """
    for seed in (0, 1):
        w = nn.Parameter(torch.zeros(20_000))
        optimizer = IVON([w], lr=0.1, ess=4.0, weight_decay=0.5, hess_init=0.5, seed=seed)
        draws = []
        for _ in range(9):
            with optimizer.sampled(), torch.no_grad():
                draws.append(w.detach().clone() * 2)  # σ = 1/√(4·1)
        n = len(w)
        for ε in draws:
            for power, moment, variance in ((1, 0, 1), (2, 1, 2), (4, 3, 96)):
                assert abs(float((ε.double() ** power).mean()) - moment) < 4.5 * math.sqrt(variance / n)
        for a in range(0, 8, 2):
            assert torch.equal(draws[a], -draws[a + 1])
            for b in range(a + 2, 9, 2):
                assert abs(float(draws[a] @ draws[b]) / n) < 4.5 / math.sqrt(n)


def test_noise_is_used_twice_only_where_that_pays():
    w = nn.Parameter(torch.zeros(10))
    optimizer = IVON([w], lr=0.1, ess=4.0)
    draws = []
    for _ in range(4):
        with optimizer.sampled():
            draws.append(w.detach().clone())
    assert torch.equal(draws[0], -draws[1])
    assert not {*draws[0].abs().tolist()} & {*draws[2].abs().tolist()}


@given(
    st.lists(st.lists(st.floats(-1e30, 1e30), min_size=3, max_size=3), min_size=1, max_size=12),
    st.floats(0, 0.99999),
    st.floats(0, 1),
    st.sampled_from([torch.float32, torch.float64]),
)
def test_ivons_precision_stays_positive_whatever_the_gradients(slopes, beta, decay, dtype):
    w = nn.Parameter(torch.zeros(3, dtype=dtype))
    optimizer = IVON([w], lr=0.0, ess=10.0, weight_decay=decay, betas=(0.9, beta), hess_init=1e-3)
    for slope in slopes:
        with optimizer.sampled():
            (w * torch.tensor(slope, dtype=dtype)).sum().backward()
        before = optimizer.state[w]["precision"].clone()
        optimizer.step()
        after = optimizer.state[w]["precision"]
        assert (after > 0).all()
        assert after.isfinite().all()
        assert (after >= 0.499 * before).all() or (before > 1e29).any()  # the bound is ½, but for rounding
        assert w.isfinite().all()
    descend_by_ones(optimizer, w)


def descend_by_ones(optimizer, w):
    """What comes after a wild gradient is finite too."""
    for _ in range(3):
        with optimizer.sampled():
            w.sum().backward()
        optimizer.step()
    assert w.isfinite().all()


def test_ivons_precision_stays_positive_if_it_is_halved_time_and_again():
    """The worst case: ĥ such that 1 + e + ½e² is ½, 300 times, without a prior."""
    w = nn.Parameter(torch.zeros(4))
    optimizer = IVON([w], lr=0.0, ess=10.0, weight_decay=0.0, betas=(0.9, 0.9), hess_init=1.0, refresh=1)
    for _ in range(300):
        with optimizer.sampled():
            slope = -0.9 / w.detach()  # ĥ/h = 10·w·slope at a mean of zero, so that e = 0.1(ĥ/h − 1) = −1
            (w * slope).sum().backward()
        optimizer.step()
        assert (optimizer.state[w]["precision"] > 0).all()
    assert (optimizer.state[w]["precision"] < 1e-20).all()


def test_tempering_warms_up():
    """σ² = η/(N(h + ηδ)): narrower by ten where it starts."""
    model = network()
    optimizer = build(
        "ivon", model, temperature=0.5, tempering=10, weight_decay=0.0, hess_init=0.1, betas=(0.9, 1 - 1e-15)
    )
    first = optimizer.deviations["0.weight"].clone()
    train(optimizer, model, steps=10)
    last = optimizer.deviations["0.weight"]
    assert torch.allclose(first, torch.full_like(first, math.sqrt(0.05 / (N * 0.1))))
    assert torch.allclose(last, torch.full_like(first, math.sqrt(0.5 / (N * 0.1))), rtol=1e-6)


def test_augmentation_is_a_factor_on_the_number_of_examples():
    a, b = network(), network()
    train(build("ivon", a, ess=20.0, augmentation=5.0), a)
    train(build("ivon", b, ess=100.0), b)
    assert all(torch.equal(p, q) for p, q in zip(a.parameters(), b.parameters(), strict=True))


def test_the_prior_shows_where_there_are_no_data():
    """Without a likelihood IVON ends at the prior, N(prior_mean, 1/(Nδ))."""
    w = nn.Parameter(torch.full((2000,), 3.0))
    optimizer = IVON([w], lr=0.2, ess=100, weight_decay=0.04, prior_mean=1.0, betas=(0.9, 0.9), hess_init=0.5)
    for _ in range(400):
        with optimizer.sampled():
            (0 * w).sum().backward()
        optimizer.step()
    assert torch.allclose(w, torch.ones_like(w), atol=1e-4)
    assert torch.allclose(optimizer.deviations["0"], torch.full_like(w, 0.5), rtol=1e-3)
