"""Methods against answers that are known."""

import dataclasses
import math

import pytest
import torch
from covering import later
from networks import classes, generator, mlp
from torch import nn

import bayesrule as br
from bayesrule import modules
from bayesrule.methods import MAP, SWAG, Noise, Plan
from bayesrule.methods.ensemble import EnsembleLearner
from bayesrule.posteriors import Context, Dropout


def linear_data(n=40, features=3, seed=0):
    x = torch.randn(n, features, generator=generator(seed), dtype=torch.float64)
    y = x @ torch.arange(1.0, features + 1, dtype=torch.float64) + torch.randn(n, generator=generator(seed + 1))
    return x, y.double()


@pytest.mark.parametrize(
    ("n", "scale", "noise", "temperature"),
    [
        (10, 1.0, 0.5, 1.0),
        (40, 0.1, 1.0, 1.0),
        (10, 0.3, 1.0, 4.0),
        later(40, 1.0, 0.5, 1.0),
        later(10, 0.1, 1.0, 1.0),
        later(40, 0.3, 1.0, 4.0),
    ],
)
def test_map_is_ridge_regression(n, scale, noise, temperature):
    """w* = (XᵀX/noise² + η/scale² I)⁻¹ Xᵀy/noise², whatever the batch size: N is counted once."""
    x, y = linear_data(n)
    model = nn.Linear(3, 1, bias=False, dtype=torch.float64)
    posterior = br.fit(
        model,
        (x, y),
        MAP(lr=0.1),
        br.likelihoods.Gaussian(noise),
        br.priors.Gaussian(scale),
        temperature,
        epochs=600,
        batch_size=n,
    )
    precision = x.T @ x / noise**2 + temperature / scale**2 * torch.eye(3, dtype=torch.float64)
    exact = torch.linalg.solve(precision, x.T @ y / noise**2)
    torch.testing.assert_close(posterior.states[0]["weight"][0], exact, rtol=1e-6, atol=1e-8)


def test_the_loss_of_all_batches_is_minus_the_log_joint():
    """N · mean over equal batches of the loss = −log p(D|w) − η log p(w)."""
    x, y = classes(48)
    model = mlp().double()
    task = br.Task.create(model, (x, y), prior=br.priors.Gaussian(0.7), temperature=0.3)
    parameters = modules.parameters(task.model)
    penalty = -task.prior.log_prob(parameters)
    losses = [task.loss(task.model(b.x), b.y, task.likelihood, penalty)[0] for b in task.batches(8, 0)]
    log_likelihood = -nn.functional.cross_entropy(model(x.double()), y, reduction="sum")
    log_prior = sum(torch.distributions.Normal(0, 0.7).log_prob(w).sum() for w in parameters.values())
    torch.testing.assert_close(48 * torch.stack(losses).mean(), -log_likelihood - 0.3 * log_prior)


def test_learnt_noise_is_the_residuals():
    """At the maximum of the likelihood noise² is the mean squared residual."""
    x, y = linear_data(200)
    posterior = br.fit(nn.Linear(3, 1).double(), (x, y), br.methods.MLE(lr=0.1), epochs=600, batch_size=200, val=0)
    residual = y - posterior.predict(x).mean
    torch.testing.assert_close(posterior.likelihood.noise, residual.square().mean().sqrt(), rtol=1e-5, atol=0)
    torch.testing.assert_close(posterior.predict(x).std, posterior.likelihood.noise.expand(200))


def test_noise_is_in_the_users_units():
    x, y = linear_data(200)
    data = br.data.standardize((10 * x + 3, 100 * y - 7))
    posterior = br.fit(nn.Linear(3, 1).double(), data, br.methods.MLE(lr=0.1), epochs=600, batch_size=200, val=0)
    prediction = posterior.predict(10 * x + 3)
    residual = 100 * y - 7 - prediction.mean
    torch.testing.assert_close(prediction.std[0], residual.square().mean().sqrt(), rtol=1e-5, atol=0)


@pytest.mark.parametrize("method", ["map", "ensemble", "swag", "mc-dropout"])
def test_noise_is_settled_on_what_was_held_out(method):
    """No other noise makes the held-out part more probable."""
    x, y = linear_data(120)
    held = linear_data(30, seed=7)
    model = nn.Sequential(nn.Linear(3, 8), nn.Tanh(), nn.Linear(8, 1)).double()
    posterior = br.fit(model, (x, y), method, epochs=10, val=held)
    best = posterior.predict(held[0]).log_prob(held[1]).mean()
    assert posterior.info["history"][-1]["val_nll"] == pytest.approx(-float(best))
    context = posterior.context
    for factor in (0.97, 1.03):
        posterior.context = dataclasses.replace(
            context, likelihood=br.likelihoods.Gaussian(context.likelihood.noise * factor)
        )
        assert posterior.predict(held[0]).log_prob(held[1]).mean() < best


@pytest.mark.parametrize(
    ("n", "val", "left"),
    [(500, None, 450), (250, None, 210), (100, None, 80), (99, None, 99), (200, 0.25, 150), (200, 0, 200)],
)
def test_how_much_is_held_out(n, val, left):
    assert br.fit(nn.Linear(3, 1).double(), linear_data(n), "map", epochs=1, val=val).info["n"] == left


def test_nothing_is_held_out_where_nothing_is_unknown():
    assert br.fit(mlp(), classes(200), "map", epochs=1).info["n"] == 200


def test_an_ensemble_pools_the_noise():
    x, y = linear_data(60)
    posterior = br.fit(nn.Linear(3, 1).double(), (x, y), "ensemble", epochs=20)
    noises = torch.stack([member.likelihood.noise for member in posterior.components])
    torch.testing.assert_close(posterior.likelihood.noise, noises.square().mean(0).sqrt())


def test_swag_has_the_moments_of_its_snapshots():
    method, plan = SWAG(rank=3, snapshots=5, burn_in=0.5), Plan(epochs=4, steps_per_epoch=5, batch_size=8)
    task = br.Task.create(mlp().double(), classes(40))
    learner = method.start(task, plan, Noise.on(task.device))
    path = []
    for epoch in range(4):
        for batch in task.batches(8, epoch):
            learner.step(batch)
            path.append(modules.flatten(learner.base.parameters).detach().clone())
    snapshots = torch.stack([path[i] for i in (11, 13, 15, 17, 19)])
    posterior = learner.posterior()
    running = [snapshots[: k + 1].mean(0) for k in range(5)]
    deviations = torch.stack([snapshots[k] - running[k] for k in (2, 3, 4)], 1)
    torch.testing.assert_close(modules.flatten(posterior.mean), snapshots.mean(0))
    torch.testing.assert_close(posterior.precision.values, snapshots.var(0, correction=0) / 2)
    torch.testing.assert_close(posterior.precision.factor, deviations / math.sqrt(2 * 2))


def test_swag_before_its_first_snapshots_is_a_point():
    task = br.Task.create(mlp(), classes(40))
    learner = SWAG().start(task, Plan(epochs=4, steps_per_epoch=5, batch_size=8), Noise.on(task.device))
    assert learner.posterior().kind == "particles"


def test_swag_refreshes_batch_norm_for_every_network():
    model = nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.ReLU(), nn.Linear(6, 3))
    x, y = classes(64)
    posterior = br.fit(model, (x, y), SWAG(rank=2, snapshots=4), epochs=4, batch_size=64)
    assert posterior.kind == "particles"
    for state in posterior.states[:3]:
        hidden = x @ state["0.weight"].T + state["0.bias"]
        torch.testing.assert_close(state["1.running_mean"], hidden.mean(0), rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(state["1.running_var"], hidden.var(0), rtol=1e-4, atol=1e-5)
    assert not torch.equal(posterior.states[0]["0.weight"], posterior.states[1]["0.weight"])


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_dropout_has_the_variance_of_its_masks(seed):
    """Var f = rate/(1 − rate) Σ_j (v_j h_j)². 3 seeds, |z| < 5 for a variance of 20 000 near-normal draws.

    Each of 20 outputs reads 200 hidden units of its own, so that a draw of the masks gives 20 independent numbers.
    """
    outputs, units, count = 20, 200, 1000
    model = nn.Sequential(nn.Linear(1, outputs * units), nn.Tanh(), nn.Linear(outputs * units, outputs)).double()
    with torch.no_grad():
        own = torch.eye(outputs, dtype=torch.float64).repeat_interleave(units, 1)
        model[2].weight.uniform_(-(units**-0.5), units**-0.5, generator=generator()).mul_(own)
    posterior = Dropout(modules.copies(modules.parameters(model)), 0.2, Context(model, br.likelihoods.Gaussian(1.0)))
    x = torch.ones(1, 1, dtype=torch.float64)
    draws = posterior.outputs(x, count, generator(seed))[:, 0]
    products = model[2].weight * torch.tanh(model[0](x))
    exact = 0.2 / 0.8 * products.square().sum(1)
    z = (draws - model(x)) / exact.sqrt()
    assert abs(z.var() - 1) < 5 * math.sqrt(2.2 / 20_000)
    assert abs(z.mean()) < 5 / math.sqrt(20_000)


def test_members_start_apart():
    task = br.Task.create(mlp(), classes())
    learner = br.methods.Ensemble(members=3).start(task, Plan(1, 1, 48), Noise.on(task.device))
    assert isinstance(learner, EnsembleLearner)
    first = [modules.flatten(member.parameters) for member in learner.members]
    assert not torch.equal(first[0], first[1])
    assert not torch.equal(first[1], first[2])
    assert all(abs(w.std() / modules.flatten(task.parameters()).std() - 1) < 0.5 for w in first)


def test_the_posterior_of_the_past_is_the_prior_of_the_next():
    """Exact sequential Bayes for a linear model: the MAP under the Gaussian of the first half is the MAP of all."""
    x, y = linear_data(40)
    noise, model = br.likelihoods.Gaussian(1.0), nn.Linear(3, 1, bias=False, dtype=torch.float64)

    def precision(rows):
        return x[rows].T @ x[rows] + torch.eye(3, dtype=torch.float64)

    half = slice(0, 20)
    mean = torch.linalg.solve(precision(half), x[half].T @ y[half])
    covariance = torch.linalg.inv(precision(half))
    factor = torch.linalg.cholesky(covariance - 1e-6 * torch.eye(3, dtype=torch.float64))
    structure = br.structures.LowRank(torch.full((3,), 1e-6, dtype=torch.float64), factor, of="covariance")
    past = br.posteriors.Gaussian({"weight": mean[None]}, structure, {}, Context(model, noise))
    rest = (x[20:], y[20:])
    posterior = br.fit(model, rest, MAP(lr=0.1), noise, past.as_prior(), epochs=800, batch_size=20)
    everything = torch.linalg.solve(precision(slice(None)), x.T @ y)
    torch.testing.assert_close(posterior.states[0]["weight"][0], everything, rtol=1e-5, atol=1e-6)
