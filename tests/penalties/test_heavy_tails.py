"""The stated error holds where the mass is far out: the normaliser is known in closed form."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from bayesrule.penalties import penalty_of, prior_of, translations
from bayesrule.penalties.functions import Function

X = torch.cat([torch.linspace(-3, 3, 61), torch.logspace(-4, 5, 91)]).double()
POINT = translations.PointMass()


def log_beta(a, b):
    return math.lgamma(a) + math.lgamma(b) - math.lgamma(a + b)


def true_error(prior, penalty, log_normaliser, width=1.0):
    return float((prior.log_density(width * X) + penalty(width * X) + log_normaliser).abs().max())


@given(st.floats(-4, 0.5), st.floats(-4, 4))
def test_powers_of_one_plus_a_square(log_excess, log_width):
    """κ = B(½, c − ½) for c from 0.0001 above the ½ where the integral ends to exist."""
    c, width = 0.5 + 10**log_excess, 10**log_width
    penalty = lambda mu: c * torch.log1p((mu / width) ** 2)  # noqa: E731
    prior = prior_of(penalty, POINT)
    assert true_error(prior, penalty, log_beta(0.5, c - 0.5) + math.log(width), width) <= prior.error < 1e-5


SLOW = {
    "one plus a distance": (lambda x, c: c * torch.log1p(x.abs()), lambda c: math.log(2 / (c - 1))),
    "asinh": (lambda x, c: c * torch.asinh(x.abs()), lambda c: math.log(1 / (c - 1) + 1 / (c + 1))),
    "a fourth power": (
        lambda x, c: c / 4 * torch.log1p(x**4),
        lambda c: log_beta(0.25, (c - 1) / 4) - math.log(2),
    ),
}


@pytest.mark.parametrize("c", [1.0003, 1.02, 1.3])
@pytest.mark.parametrize("name", SLOW)
def test_other_slow_tails(name, c):
    function, normaliser = SLOW[name]
    prior = prior_of(lambda mu: function(mu, c), POINT)
    assert true_error(prior, lambda x: function(x, c), normaliser(c)) <= prior.error < 1e-2


def test_a_heavy_tail_under_gaussians():
    family = translations.Gaussian(0.1)
    divergence = penalty_of(lambda x: -0.51 * torch.log1p(x**2), family)
    prior = prior_of(lambda mu, nu: divergence(mu, nu), family)
    assert true_error(prior, lambda x: 0.51 * torch.log1p(x**2), log_beta(0.5, 0.01)) <= prior.error < 1e-5


@pytest.mark.parametrize("power", [1.1, 2.0])
def test_a_tail_that_is_no_power_is_refused(power):
    """1/(|x| log^p|x|) has an integral, of which what can be seen tells too little."""
    slow = lambda mu: torch.log(math.e + mu.abs()) + power * torch.log(torch.log(math.e + mu.abs()))  # noqa: E731
    with pytest.raises(ValueError, match=r"grows so slowly .* penalties\.L2\(1e-6\)"):
        prior_of(slow, POINT)
    assert prior_of(Function(slow) + Function(lambda mu: 1e-6 * mu**2), POINT).error < 0.01


def test_a_variance_that_hardly_exists():
    """Student's with df = 2.02 has df/(df − 2)."""
    prior = prior_of(lambda mu: 1.51 * torch.log1p(mu**2 / 2.02), POINT)
    assert prior.variance == pytest.approx(101, rel=1e-6)


def test_draws_of_a_heavy_tail_are_numbers_of_the_dtype():
    prior = prior_of(lambda mu: 0.51 * torch.log1p(mu**2), POINT)
    drawn = prior.draw(torch.nn.Linear(50, 50), torch.Generator().manual_seed(0))["weight"].detach()
    assert bool(drawn.isfinite().all())
    # P(|x| > t) = 2∫ x^(−1.02)/κ from t on
    share = float((drawn.abs() > 1e10).double().mean())
    expected = math.exp(-0.02 * math.log(1e10) - math.log(0.01) - log_beta(0.5, 0.01))
    assert abs(share - expected) < 5 * math.sqrt(expected * (1 - expected) / drawn.numel())
