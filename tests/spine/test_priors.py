import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from torch.distributions import Normal

from bayesrule import priors
from bayesrule.modules import flatten, parameters
from bayesrule.naming import to_spec
from bayesrule.priors import Flat, Gaussian, Structured
from bayesrule.structures import Diagonal, LowRank


def network():
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(3, 8, 5), nn.BatchNorm2d(8), nn.Flatten(), nn.Linear(8, 4)).double()


@given(st.floats(1e-3, 1e3), st.floats(-5, 5))
def test_log_prob_is_the_sum_of_normals(scale, mean):
    module = network()
    prior = Gaussian(scale, mean).resolve(module)
    reference = Normal(torch.tensor(mean, dtype=torch.float64), scale).log_prob(flatten(parameters(module))).sum()
    torch.testing.assert_close(prior.log_prob(parameters(module)), reference, rtol=1e-10, atol=1e-8)


@pytest.mark.parametrize("scale", [0.7, "kaiming", {"": 1.0, "3.weight": torch.rand(4, 8) + 0.5}])
def test_the_gradient_is_that_of_autograd(scale):
    module = network()
    prior, weights = Gaussian(scale).resolve(module), parameters(module)
    simple = sum(-(((w - prior.mean[k]) / prior.scale[k]) ** 2).sum() / 2 for k, w in weights.items())
    expected = torch.autograd.grad(3 * simple, list(weights.values()))
    found = torch.autograd.grad(3 * prior.log_prob(weights), list(weights.values()))
    for a, b in zip(found, expected, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-12, atol=1e-12)


def test_scale_by_layer_parameter_and_rest():
    module = network()
    tensor = torch.rand(4, 8, dtype=torch.float64) + 0.5
    prior = Gaussian({"": 1.0, "0": 0.3, "0.bias": 2.0, "3.weight": tensor}, mean=0.0).resolve(module)
    assert {k: v for k, v in prior.scale.items() if k != "3.weight"} == {
        "0.weight": 0.3,
        "0.bias": 2.0,
        "1.weight": 1.0,
        "1.bias": 1.0,
        "3.bias": 1.0,
    }
    reference = sum(Normal(0.0, prior.scale[k]).log_prob(w).sum() for k, w in parameters(module).items())
    torch.testing.assert_close(prior.log_prob(parameters(module)), reference)


@pytest.mark.parametrize(
    ("rule", "conv", "linear"),
    [("fan-in", 1 / 75, 1 / 8), ("glorot", 2 / (75 + 200), 2 / 12), ("kaiming", 2 / 75, 2 / 8)],
)
def test_rules(rule, conv, linear):
    scale = priors.choose(rule).resolve(network()).scale
    assert scale["0.weight"] == pytest.approx(math.sqrt(conv))
    assert scale["3.weight"] == pytest.approx(math.sqrt(linear))
    assert scale["0.bias"] == scale["1.weight"] == 1.0


@pytest.mark.parametrize(
    ("layer", "fan_in"),
    [
        (nn.ConvTranspose2d(6, 4, 3), 6 * 9),
        (nn.Conv2d(6, 4, 3, groups=2), 3 * 9),
        (nn.Embedding(10, 4), 1),
        (nn.Conv1d(2, 4, 7), 14),
    ],
)
def test_fan_in_counts_what_an_output_sums_over(layer, fan_in):
    scale = Gaussian("fan-in").resolve(layer).scale["weight"]
    assert scale == pytest.approx(math.sqrt(1 / fan_in))


def test_norm_layers_are_believed_to_do_nothing():
    prior = Gaussian().resolve(network())
    assert prior.mean["1.weight"] == 1.0
    assert prior.mean["1.bias"] == prior.mean["0.weight"] == 0.0


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_draws_have_the_scale(seed):
    """z-test of the variance of 40 000 draws at |z| < 5: error rate < 1e-5 in all."""
    module = nn.Linear(400, 100)
    draw = Gaussian("fan-in").sample(module, torch.Generator().manual_seed(seed))["weight"]
    z = (draw.var() * 400 - 1) / math.sqrt(2 / draw.numel())
    assert abs(z) < 5


@pytest.mark.parametrize("kind", [Diagonal, LowRank])
def test_structured_prior_is_its_gaussian(kind):
    module = nn.Linear(2, 2).double()
    mean = {k: torch.ones_like(w) for k, w in parameters(module).items()}
    variance = torch.linspace(0.5, 2, 6, dtype=torch.float64)
    few = torch.zeros(6, 1, dtype=torch.float64)
    structure = Diagonal(1 / variance) if kind is Diagonal else LowRank(variance, few, of="covariance")
    prior = priors.from_spec(to_spec(Structured(mean, structure))).resolve(module)
    reference = Normal(1.0, variance.sqrt()).log_prob(flatten(parameters(module))).sum()
    torch.testing.assert_close(prior.log_prob(parameters(module)), reference)


def test_flat_believes_nothing():
    assert Flat().resolve(network()).log_prob(parameters(network())) == 0


@pytest.mark.parametrize(
    ("make", "match"),
    [
        (lambda: Gaussian(0.0), "positive and finite, not 0.0"),
        (lambda: Gaussian({"0": -1.0}), "of '0' must be positive"),
        (lambda: Gaussian(math.inf), "finite"),
        (lambda: Gaussian("kaming"), "did you mean 'kaiming'"),
        (lambda: priors.choose("gausian"), "did you mean 'gaussian'"),
        (lambda: Gaussian({"0": 1.0}).resolve(network()), "no scale for parameter '1.weight'"),
        (lambda: Gaussian({"": 1.0, "7": 1.0}).resolve(network()), "unknown name in the prior's scale '7'"),
        (lambda: Gaussian({"": torch.ones(3)}).resolve(network()), "has shape"),
        (lambda: Gaussian().log_prob({}), "resolve"),
        (lambda: Structured({"w": torch.zeros(1)}, Diagonal(torch.ones(1))).resolve(network()), "does not fit"),
    ],
)
def test_errors_teach(make, match):
    with pytest.raises(ValueError, match=match):
        make()
