"""One wide hidden layer: moments and functionals against sampling, quadrature and closed forms."""

import math

import pytest
import torch
from torch import nn
from torch.distributions import Normal, kl_divergence

import bayesrule as br
from bayesrule import mean_field
from bayesrule.likelihoods import Bernoulli, Categorical, Gaussian
from bayesrule.mean_field import Neurons

DOUBLE = torch.float64


def inputs(count, seed=0, width=3):
    return torch.randn(count, width, generator=torch.Generator().manual_seed(seed), dtype=DOUBLE)


def test_the_network_is_a_mean_over_neurons():
    network = br.models.MeanFieldNet(3, 2, neurons=7, activation="tanh").double()
    x = inputs(5)
    each = [
        torch.outer(torch.tanh(x @ b), a) for b, a in zip(network.hidden.weight, network.outer.weight.T, strict=True)
    ]
    torch.testing.assert_close(network(x), torch.stack(each).mean(0))
    assert br.temperatures.hidden_neurons(network) == 7
    spec = {"name": "mean-field", "inputs": 3, "outputs": 2, "neurons": 7}
    assert isinstance(br.models.build(spec), br.models.MeanFieldNet)


def test_the_first_weights_do_not_depend_on_the_width():
    torch.manual_seed(0)
    few, many = (br.models.MeanFieldNet(3, 1, n).outer.weight.detach().std() for n in (2000, 20_000))
    assert float(few) == pytest.approx(1, abs=0.08)  # five standard errors
    assert float(many) == pytest.approx(1, abs=0.03)


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_moments_are_those_of_drawn_networks(seed):
    """Within 4.5 standard errors of 4000 draws: 10⁻⁵ for each of 10 numbers."""
    neurons, x = Neurons.drawn(6, 3, outputs=2, seed=seed), inputs(5, seed)
    mean, variance = neurons.moments(x)
    draws = neurons.draws(x, 4000, torch.Generator().manual_seed(seed))
    off = (draws.mean(0) - mean) / (draws.std(0) / math.sqrt(4000))
    assert float(off.abs().max()) < 4.5
    squares = (draws - mean).square()
    off = (squares.mean(0) - variance) / (squares.std(0) / math.sqrt(4000))
    assert float(off.abs().max()) < 4.5


def test_the_mean_output_of_one_neuron_by_quadrature():
    one = torch.ones(1, 1, dtype=DOUBLE)
    neurons = Neurons(0.3 * one, 0.5 * one, 2.0 * one, 0.7 * one)
    u = torch.linspace(-4, 5, 200_001, dtype=DOUBLE)
    density = Normal(0.3 * one[0], 0.5 * one[0]).log_prob(u).exp()
    first = torch.trapezoid(u.relu() * density, u)
    second = torch.trapezoid(u.relu().square() * density, u)
    mean, variance = neurons.moments(one)
    assert float(mean) == pytest.approx(2.0 * float(first), rel=1e-8)
    assert float(variance) == pytest.approx((2.0**2 + 0.7**2) * float(second) - (2 * float(first)) ** 2, rel=1e-8)


def test_divergences_are_those_of_normals():
    neurons = Neurons.drawn(4, 2, outputs=3)
    expected = kl_divergence(Normal(neurons.in_mean, neurons.in_std), Normal(0.0, 0.7)).sum(1)
    expected = expected + kl_divergence(Normal(neurons.out_mean, neurons.out_std), Normal(0.0, 0.7)).sum(1)
    torch.testing.assert_close(neurons.divergences(0.7), expected)


def targets(likelihood, count):
    generator = torch.Generator().manual_seed(5)
    if isinstance(likelihood, Gaussian):
        return torch.randn(count, generator=generator, dtype=DOUBLE), 1
    if isinstance(likelihood, Bernoulli):
        return (torch.rand(count, generator=generator) < 0.5).double(), 1
    return torch.randint(3, (count,), generator=generator), 3


@pytest.mark.parametrize("likelihood", [Gaussian(0.5), Bernoulli(), Categorical()], ids=lambda each: each.name)
def test_the_elbo_by_sampling(likelihood):
    """What is taken off from the draws has the mean zero: plain draws agree, with a far larger error."""
    x = inputs(20)
    y, outputs = targets(likelihood, 20)
    neurons = Neurons.drawn(8, 3, outputs)
    found = mean_field.elbo(neurons, x, y, likelihood, 1.0, 0.3, samples=1000)
    plain = torch.stack(
        [likelihood.log_prob(f, y).sum() for f in neurons.draws(x, 1000, torch.Generator().manual_seed(9))]
    )
    value = float(plain.mean()) - 0.3 * float(neurons.divergences(1.0).sum())
    error = math.hypot(found.error, float(plain.std()) / math.sqrt(1000))
    assert abs(found.value - value) < 4.5 * error
    assert found.error < float(plain.std()) / math.sqrt(1000)


def test_the_gap_of_squared_errors_is_half_the_variance():
    """ELBO − F̃ = −Σ_i Var f(x_i)/2σ²: exactly −p/N times a mean over the measure."""
    x, neurons = inputs(30), Neurons.drawn(40, 3)
    y = torch.randn(30, dtype=DOUBLE, generator=torch.Generator().manual_seed(3))
    exact = float(mean_field.gaussian_elbo(neurons, x, y, 0.5, 1.0, 0.2))
    limit = mean_field.limit_functional(neurons, x, y, Gaussian(0.5), 1.0, 0.2)
    assert exact - limit == pytest.approx(-float(neurons.moments(x)[1].sum()) / (2 * 0.25), rel=1e-9)


@pytest.mark.parametrize("likelihood", [Gaussian(0.5), Categorical()], ids=lambda each: each.name)
def test_the_bound_falls_with_neurons_and_grows_with_examples(likelihood):
    """log |ELBO − F̃| has the slopes −1 over log N and +1 over log p, within 0.15."""
    x = inputs(320)
    y, outputs = targets(likelihood, 320)

    def gap(count, examples):
        neurons = Neurons.drawn(count, 3, outputs, seed=count)
        few = x[:examples], y[:examples]
        found = mean_field.elbo(neurons, *few, likelihood, 1.0, 1.0, samples=300)
        value = abs(found.value - mean_field.limit_functional(neurons, *few, likelihood, 1.0, 1.0))
        assert found.error < 0.15 * value
        return value

    widths, sizes = torch.tensor([20, 60, 200, 600]), torch.tensor([10, 40, 160, 320])
    by_width = torch.tensor([gap(int(n), 100) for n in widths])
    by_size = torch.tensor([gap(100, int(p)) for p in sizes])
    assert mean_field.slope(widths, by_width) == pytest.approx(-1, abs=0.15)
    assert mean_field.slope(sizes, by_size) == pytest.approx(1, abs=0.15)


@pytest.mark.slow
def test_a_fit_reaches_the_best_elbo():
    """Bayes by Backprop of the library and gradients of the exact ELBO end at the same divergence."""
    x = torch.stack([torch.linspace(-1, 1, 30, dtype=DOUBLE), torch.ones(30, dtype=DOUBLE)], 1)
    y = torch.sin(3 * x[:, 0])
    torch.manual_seed(0)
    model = br.models.MeanFieldNet(2, 1, 30).double()
    temperature = br.Balanced(0.02, count="neurons")
    method = br.methods.BBB(lr=0.03, sigma_lr_ratio=1.0, estimator="local-reparam", initial_std=0.3)
    settings = {"prior": 1.0, "temperature": temperature, "epochs": 1500, "batch_size": 30, "val": 0}
    posterior = br.fit(model, (x, y), method, Gaussian(0.3), **settings)
    found = Neurons.of(posterior.mean, posterior.std)
    eta = posterior.info["temperature"]
    reached = mean_field.gaussian_elbo(found, x, y, 0.3, 1.0, eta)
    parts = [nn.Parameter(t.clone()) for t in (found.in_mean, found.in_std.log(), found.out_mean, found.out_std.log())]
    optimizer = torch.optim.LBFGS(parts, max_iter=300, line_search_fn="strong_wolfe")

    def loss():
        optimizer.zero_grad()
        at = Neurons(parts[0], parts[1].exp(), parts[2], parts[3].exp())
        value = -mean_field.gaussian_elbo(at, x, y, 0.3, 1.0, eta)
        value.backward()
        return value

    optimizer.step(loss)
    best = -float(loss().detach())
    first = {name: w.detach() for name, w in model.named_parameters()}
    narrow = {name: torch.full_like(w, 0.3) for name, w in first.items()}
    began = mean_field.gaussian_elbo(Neurons.of(first, narrow), x, y, 0.3, 1.0, eta)
    assert 0 <= best - float(reached) < 0.05 * (best - float(began))
    kl = float(Neurons(parts[0], parts[1].exp(), parts[2], parts[3].exp()).divergences(1.0).sum())
    assert br.evaluate.collapse(posterior).end.kl == pytest.approx(float(found.divergences(1.0).sum()), rel=1e-4)
    assert float(found.divergences(1.0).sum()) == pytest.approx(kl, rel=0.2)


def test_neurons_of_another_network():
    with pytest.raises(ValueError, match="mean must be that of a"):
        Neurons.of({"weight": torch.zeros(1)}, {"weight": torch.ones(1)})
    with pytest.raises(ValueError, match="neurons must be whole and at least 1, got 0"):
        br.models.MeanFieldNet(2, 1, 0)
    with pytest.raises(ValueError, match="unknown activation"):
        br.models.MeanFieldNet(2, 1, 3, "sine")
