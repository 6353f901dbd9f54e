"""The evidence and the posterior by Laplace's method, against closed forms and dense matrices."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from torch.distributions import MultivariateNormal

import bayesrule as br
from bayesrule.curvature import Curvature, Evidence, Scatter, Tuning, curvature
from bayesrule.curvature.parts import Part
from bayesrule.likelihoods import Gaussian
from bayesrule.methods import Laplace
from bayesrule.structures import Blocks, Dense, Diagonal, Kronecker, LowRank

DOUBLE = torch.float64
seeds = st.integers(0, 2**20)


def number(value):
    return torch.tensor(float(value), dtype=DOUBLE)


def normal(seed, *shape):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=DOUBLE)


def gram(seed, size):
    factor = normal(seed, size, size)
    return factor @ factor.T


CURVATURES = {
    "diagonal": lambda seed: Diagonal(normal(seed, 8).square()),
    "dense": lambda seed: Dense(gram(seed, 8)),
    "low rank": lambda seed: LowRank(normal(seed + 1, 8).square(), normal(seed, 8, 3)),
    "kronecker": lambda seed: Kronecker.of(gram(seed, 2), gram(seed + 1, 4), True),
}
"""Of a layer with a weight [2, 3] and a bias [2]."""
SHAPES = {"weight": torch.Size([2, 3]), "bias": torch.Size([2])}


def evidence_of(matrix, scales, shapes=SHAPES):
    """At the prior's mean."""
    found = Curvature(shapes, matrix, 1, 0.0, {})
    scale = torch.cat([torch.as_tensor(scales[k], dtype=DOUBLE).expand(s).flatten() for k, s in shapes.items()])
    return Evidence.of(found, Diagonal(scale**-2), {name: torch.zeros(shape) for name, shape in shapes.items()})


@pytest.mark.parametrize("kind", CURVATURES)
@given(seed=seeds, logs=st.lists(st.floats(-6, 6), min_size=3, max_size=3), shared=st.booleans())
def test_a_curvature_against_a_prior_is_its_dense_matrix(kind, seed, logs, shared):
    matrix = CURVATURES[kind](seed)
    first, second, noise = (number(math.exp(value)) for value in logs)
    tuning = Tuning({"weight": first, "bias": first if shared else second}, noise)
    evidence = evidence_of(matrix, {"weight": 0.5, "bias": 2.0})
    prior = torch.cat([(first * 0.25).expand(6), (tuning.variances["bias"] * 4).expand(2)])
    precision = matrix.dense() / noise + (1 / prior).diag()
    volume = precision.logdet() + prior.log().sum()
    torch.testing.assert_close(evidence.log(tuning), -0.5 * volume, rtol=1e-8, atol=1e-8)
    identity = torch.eye(8, dtype=DOUBLE)
    torch.testing.assert_close(evidence.precision(tuning).solve(identity) @ precision, identity, rtol=1e-6, atol=1e-6)


def regression(seed, outputs=1, n=12):
    """Data, a linear layer at the mode of its posterior, and the exact log evidence."""
    x, noise = normal(seed, n, 3), 0.6
    y = x @ normal(seed + 1, 3, outputs) + noise * normal(seed + 2, n, outputs)
    design = torch.cat([x, torch.ones(n, 1, dtype=DOUBLE)], 1)
    scale = torch.tensor([0.7, 0.7, 0.7, 1.5], dtype=DOUBLE)
    precision = design.T @ design / noise**2 + (1 / scale**2).diag()
    mode = torch.linalg.solve(precision, design.T @ y / noise**2)
    model = nn.Linear(3, outputs).double()
    with torch.no_grad():
        model.weight.copy_(mode[:3].T)
        model.bias.copy_(mode[3])
    prior = br.priors.Gaussian({"weight": 0.7, "bias": 1.5})
    marginal = design @ (scale**2).diag() @ design.T + noise**2 * torch.eye(n, dtype=DOUBLE)
    exact = MultivariateNormal(torch.zeros(n, dtype=DOUBLE), marginal).log_prob(y.T).sum()
    return (x, y), model, prior, noise, precision, float(exact)


@pytest.mark.parametrize("structure", ["dense", "kronecker", "lowrank"])
@pytest.mark.parametrize("outputs", [1, 2])
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_linear_models_are_exact(structure, outputs, seed):
    """The evidence is the density of the data; so is the posterior, in weights and in outputs."""
    (x, y), model, prior, noise, precision, exact = regression(seed, outputs)
    method = Laplace("all", structure, tune="nothing")
    posterior = br.fit(model, (x, y.squeeze(1)), method, Gaussian(noise), prior, epochs=0)
    assert abs(posterior.info["diagnostics"]["log_evidence"] - exact) < 1e-8 * abs(exact)
    order = torch.arange(4 * outputs).view(outputs, 4)
    place = torch.cat([order[:, :3].flatten(), order[:, 3]])
    wanted = torch.block_diag(*[precision.inverse()] * outputs)[place][:, place]
    found = posterior.precision.solve(torch.eye(4 * outputs, dtype=DOUBLE))
    torch.testing.assert_close(found, wanted, rtol=1e-8, atol=1e-8)
    assert all(torch.equal(posterior.mean[name], w) for name, w in model.named_parameters())
    new = normal(9, 5, 3)
    prediction = posterior.predict(new)
    design = torch.cat([new, torch.ones(5, 1, dtype=DOUBLE)], 1)
    epistemic = ((design @ precision.inverse()) * design).sum(1)
    wanted = epistemic if outputs == 1 else epistemic[:, None].expand(5, outputs)
    torch.testing.assert_close(prediction.epistemic, wanted, rtol=1e-8, atol=1e-8)
    torch.testing.assert_close(prediction.mean, model(new).squeeze(1).detach())
    assert (prediction.aleatoric - noise**2).abs().max() < 1e-12


@given(seed=seeds, variance=st.floats(0.05, 20), noise=st.floats(0.1, 10))
def test_factors_on_prior_and_noise_give_the_evidence_under_them(seed, variance, noise):
    """At the mode under the new prior and noise the formula is that of a fresh start."""
    x, y = normal(seed, 10, 2), normal(seed + 1, 10)
    base, deviation = 0.5, math.sqrt(variance) * 0.8
    sigma = base * math.sqrt(noise)
    mode = torch.linalg.solve(x.T @ x / sigma**2 + torch.eye(2, dtype=DOUBLE) / deviation**2, x.T @ y / sigma**2)
    model = nn.Linear(2, 1, bias=False).double()
    with torch.no_grad():
        model.weight.copy_(mode[None])
    found = curvature(model, [(x, y)], Gaussian(base), structure="dense")
    misfit = float(0.5 * ((y - x @ mode) / base).square().sum())
    prior = Diagonal(torch.full((2,), 0.8**-2, dtype=DOUBLE))
    evidence = Evidence.of(found, prior, {"weight": model.weight}, Scatter(found.loss, misfit, 10))
    marginal = deviation**2 * x @ x.T + sigma**2 * torch.eye(10, dtype=DOUBLE)
    exact = MultivariateNormal(torch.zeros(10, dtype=DOUBLE), marginal).log_prob(y)
    torch.testing.assert_close(
        evidence.log(Tuning({"weight": number(variance)}, number(noise))), exact, rtol=1e-7, atol=1e-7
    )


@pytest.mark.parametrize("grouping", ["one", "layer", "parameter"])
@pytest.mark.parametrize("structure", ["diagonal", "kronecker", "lowrank", "dense"])
def test_tuning_finds_a_maximum(structure, grouping):
    """No step of any factor goes up from there; and it is above the start."""
    x, y = br.data.moons(seed=0)
    model = nn.Sequential(nn.Linear(2, 8), nn.Tanh(), nn.Linear(8, 2))
    point = br.fit(model, (x, y), "map", epochs=10)
    model.load_state_dict(point.states[0])
    found = curvature(model, [(x, y)], br.likelihoods.Categorical(), structure=structure, rank=8)
    weights = dict(model.named_parameters())
    evidence = Evidence.of(found, Diagonal(torch.ones(found.matrix.size)), weights)
    tuning = evidence.tuned(grouping)
    best = evidence.log(tuning)
    assert best > evidence.log()
    assert len({id(t) for t in tuning.variances.values()}) == {"one": 1, "layer": 2, "parameter": 4}[grouping]
    for moved in {id(t): t for t in tuning.variances.values()}.values():
        for factor in (0.97, 1.03):
            other = {name: t * factor if t is moved else t for name, t in tuning.variances.items()}
            assert evidence.log(Tuning(other, tuning.noise)) < best


def test_the_noise_of_the_largest_evidence_is_mackays():
    """noise² = Σ (y − f)²/(N − γ), γ = P − tr Σ S⁻¹ the number of weights that the data determine."""
    torch.manual_seed(0)
    x = torch.linspace(-1, 1, 60, dtype=DOUBLE)[:, None]
    y = torch.sin(3 * x[:, 0]) + 0.2 * normal(0, 60)
    model = nn.Sequential(nn.Linear(1, 6), nn.Tanh(), nn.Linear(6, 1)).double()
    posterior = br.fit(model, (x, y), Laplace("all"), prior=br.priors.Gaussian(1.0), epochs=100)
    scale = posterior.info["diagnostics"]["prior_scale"]["0.weight"]
    gamma = posterior.precision.size - float(posterior.precision.variances.sum()) / scale**2
    residual = y - posterior.predict(x).mean
    assert abs(float(posterior.likelihood.noise) ** 2 / float(residual.square().sum() / (60 - gamma)) - 1) < 1e-4


@pytest.mark.parametrize("structure", ["diagonal", "kronecker", "dense"])
def test_temperature_divides_the_curvature(structure):
    (x, y), model, prior, noise, *_ = regression(0)
    settings = {"likelihood": Gaussian(noise), "prior": prior, "epochs": 0}
    cold = br.fit(model, (x, y[:, 0]), Laplace("all", structure, tune="nothing"), temperature=0.25, **settings)
    narrow = {**settings, "likelihood": Gaussian(noise / 2)}
    other = br.fit(model, (x, y[:, 0]), Laplace("all", structure, tune="nothing"), **narrow)
    torch.testing.assert_close(cold.precision.variances, other.precision.variances)


def test_a_curvature_that_is_not_finite_is_named():
    part = Part({"0.weight": torch.zeros(2)}, Diagonal(torch.tensor([1.0, float("nan")])))
    with pytest.raises(FloatingPointError, match=r"the curvature of 0\.weight is not finite"):
        part.result()


def test_eigenvalues_below_zero_count_as_zero():
    """As rounding leaves them in a sum in single precision."""
    matrix = torch.diag(torch.tensor([1e6, -1e-3]))
    evidence = evidence_of(Dense(matrix), {"w": 100.0}, {"w": torch.Size([2])})
    assert abs(float(evidence.precision().variances[1]) / 1e4 - 1) < 1e-6
    assert math.isfinite(float(evidence.log()))


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_curvature_far_above_the_prior(seed):
    """Twenty orders of magnitude: more than double precision holds beside 1."""
    factor = normal(seed, 8, 3)
    evidence = evidence_of(Dense(1e20 * factor @ factor.T), {"weight": 1.0, "bias": 1.0})
    tuning = Tuning({"weight": number(1.0), "bias": number(2.0)}, number(1.0))
    assert bool(evidence.precision(tuning).variances.isfinite().all())
    assert math.isfinite(float(evidence.log(tuning)))


def test_a_prior_that_is_cut_within_a_parameter():
    """Its parts share the parameter's factor, and the evidence is that of the whole matrices."""
    prior = Blocks([Diagonal(torch.ones(3)), Dense(torch.eye(2) + 1)])
    found = Curvature({"w": torch.Size([5])}, Diagonal(torch.arange(1.0, 6.0)), 1, 0.0, {})
    evidence = Evidence.of(found, prior, {"w": torch.zeros(5)})
    whole = Evidence.of(found, Dense(prior.dense()), {"w": torch.zeros(5)})
    tuning = Tuning({"w": number(2.0)}, number(1.0))
    torch.testing.assert_close(evidence.log(tuning), whole.log(tuning))
    torch.testing.assert_close(evidence.precision(tuning).dense(), whole.precision(tuning).dense())


def test_a_prior_of_other_weights_than_the_curvature_is_refused():
    found = Curvature({"w": torch.Size([2])}, Diagonal(torch.ones(2)), 1, 0.0, {})
    with pytest.raises(ValueError, match="the prior is over 3 weights and the curvature over 2"):
        Evidence.of(found, Diagonal(torch.ones(3)), {"w": torch.zeros(2)})
    with pytest.raises(ValueError, match="temperature must be positive, not 0"):
        Evidence.of(found, Diagonal(torch.ones(2)), {"w": torch.zeros(2)}, temperature=0.0)


@pytest.mark.parametrize("likelihood", ["categorical", "bernoulli", "poisson", "gaussian"])
def test_dense_laplace_is_the_gaussian_process_of_the_network(likelihood):
    """`br.gp` solves in the space of the data: the same variances, and at the mode the same evidence."""
    torch.manual_seed(0)
    x, outputs = normal(0, 15, 2), 3 if likelihood == "categorical" else 1
    y = {"categorical": torch.arange(15) % 3, "bernoulli": torch.arange(15) % 2, "poisson": torch.arange(15) % 4}
    chosen = Gaussian(0.5) if likelihood == "gaussian" else likelihood
    data, prior = (x, y.get(likelihood, normal(1, 15))), br.priors.Gaussian(0.5)
    model = nn.Sequential(nn.Linear(2, 4), nn.Tanh(), nn.Linear(4, outputs)).double()
    method = Laplace("all", tune="nothing", lr=0.05, newton=10)
    laplace = br.fit(model, data, method, chosen, prior, epochs=500, batch_size=15)
    model.load_state_dict(laplace.mean)
    process = br.gp.from_network(model, data, laplace.likelihood, prior, solve="dual")
    new = normal(2, 6, 2)
    torch.testing.assert_close(
        laplace.moments(new)[1].reshape(6, outputs, outputs), process.posterior(new).covariance, rtol=1e-7, atol=1e-9
    )
    assert abs(laplace.info["diagnostics"]["log_evidence"] - process.log_marginal_likelihood()) < 1e-5
