"""The bars of issue 6: what prior a penalty stands for, against closed forms and a direct numerical KL."""

import math

import numpy as np
import pytest
import torch
from covering import covering, later
from hypothesis import given
from hypothesis import strategies as st
from scipy import integrate

from bayesrule.penalties import penalty_of, prior_of, translations
from bayesrule.penalties.functions import L1, L2, Cosine, Polynomial
from bayesrule.priors import Gaussian, Laplace, ScaleMixture

TRAINED = translations.Gaussian((0.1, 2.0))
SCALES = (0.1, 0.37, 1.0, 2.0)


def line(low, high, count=201):
    return torch.linspace(low, high, count, dtype=torch.float64)


def divergence(prior, mu, nu):
    """KL(N(μ, ν²)‖α) by scipy's adaptive quadrature."""

    def inside(x):
        log_q = -0.5 * ((x - mu) / nu) ** 2 - math.log(nu * math.sqrt(2 * math.pi))
        log_p = prior.log_density(torch.from_numpy(np.atleast_1d(x))).numpy()
        return (np.exp(log_q) * (log_q - log_p)).reshape(np.shape(x))

    return float(integrate.quad_vec(inside, mu - 12 * nu, mu + 12 * nu, epsabs=1e-9, epsrel=1e-13, limit=2000)[0])


def spread_of_difference(penalty, prior):
    """How much r − KL(β‖α) changes over μ and ν."""
    differences = [
        float(penalty(torch.tensor([mu], dtype=torch.float64), nu)) - divergence(prior, mu, nu)
        for mu in (-1.7, -0.6, 0.0, 0.9, 2.1)
        for nu in SCALES
    ]
    return max(differences) - min(differences)


def complete(sigma0):
    """The erratum's a(σ²) and b(σ²)."""
    return Polynomial(lambda s: 0.5 * (s**2 / sigma0**2 + math.log(sigma0**2 / s**2) - 1), 0.0, 0.5 / sigma0**2)


@pytest.mark.parametrize("sigma0", [1e-3, 1e-2, 0.1, 0.5, 1.0, 3.0, 30.0, 1e3])
@pytest.mark.parametrize("form", ["named", "function"])
def test_the_complete_gaussian_penalty_is_a_gaussian_prior(sigma0, form):
    r = complete(sigma0)
    prior = prior_of(r if form == "named" else lambda mu, nu: r(mu, nu), TRAINED)
    assert prior.exists
    assert isinstance(prior.exact, Gaussian)
    assert abs(prior.exact.scale / sigma0 - 1) < 1e-8
    assert abs(prior.exact.mean) < 1e-8 * sigma0
    x = line(-5 * sigma0, 5 * sigma0)
    truth = torch.distributions.Normal(torch.tensor(0.0, dtype=torch.float64), sigma0).log_prob(x)
    assert float((prior.log_density(x) - truth).abs().max()) < 1e-8
    assert abs(prior.variance / sigma0**2 - 1) < 1e-8


@pytest.mark.parametrize("sigma0", [1e-3, 0.2, 1.0, 1e3])
@pytest.mark.parametrize("form", ["named", "function"])
def test_a_plain_square_with_a_trained_scale_lacks_a_term(sigma0, form):
    factor = 0.5 / sigma0**2
    family = translations.Gaussian((0.1 * sigma0, 3 * sigma0))
    verdict = prior_of(L2(factor) if form == "named" else lambda mu: factor * mu**2, family)
    assert not verdict.exists
    assert verdict.reason == "depends on ν"
    assert verdict.measure > 1
    sigma = torch.logspace(-1, math.log10(3), 50, dtype=torch.float64) * sigma0
    difference = verdict.completion(sigma) - (0.5 * sigma**2 / sigma0**2 - 0.5 * (sigma**2).log())
    assert float(difference.max() - difference.min()) < 1e-8
    assert abs(verdict.completed.exact.scale / sigma0 - 1) < 1e-8


def test_the_completed_penalty_has_the_prior_of_the_verdict():
    verdict = prior_of(L2(0.5), TRAINED)
    prior = prior_of(Polynomial(verdict.completion, 0.0, 0.5), TRAINED)
    assert prior.exists
    assert abs(prior.exact.scale - 1) < 1e-12


@pytest.mark.parametrize("factor", [1e-6, 0.5, 1e6])
@pytest.mark.parametrize("sigma", [1e-3, 1.0])
def test_a_plain_square_with_a_fixed_scale_is_a_gaussian(factor, sigma):
    prior = prior_of(L2(factor), translations.Gaussian(sigma))
    assert abs(prior.exact.scale**2 * 2 * factor - 1) < 1e-12
    assert abs(prior.variance * 2 * factor - 1) < 1e-8


FAMILIES = [translations.Gaussian, translations.Laplace, translations.Logistic, translations.Student]


SMOOTH = {str(family(scale)): family(scale) for family in FAMILIES for scale in (0.5, (0.1, 1.0))}
KINKS = {"named": L1(2.0), "function": lambda mu: 2 * mu.abs(), "function of both": lambda mu, nu: 2 * mu.abs()}


@pytest.mark.parametrize(("penalty", "family"), covering(KINKS, SMOOTH, whole=["named"]))
def test_an_absolute_value_has_no_prior_under_a_smooth_family(penalty, family):
    verdict = prior_of(KINKS[penalty], SMOOTH[family])
    assert verdict.reason == "no deconvolution"
    assert verdict.measure > 0
    assert "smooth" in str(verdict)


def test_a_kink_much_wider_than_the_family_is_seen():
    """At ν = 1e-4 the grid does not resolve the family, and the closer look does."""
    assert prior_of(lambda mu: 2 * mu.abs(), translations.Gaussian(0.001)).reason == "no deconvolution"


def test_an_absolute_value_on_a_point_is_laplace():
    for penalty in (L1(4.0), lambda mu: 4 * mu.abs()):
        prior = prior_of(penalty, translations.PointMass())
        x = line(-3, 3)
        truth = torch.distributions.Laplace(torch.tensor(0.0).double(), 0.25).log_prob(x)
        assert float((prior.log_density(x) - truth).abs().max()) <= max(prior.error, 1e-9)
    exact = prior_of(L1(4.0), translations.PointMass()).exact
    assert isinstance(exact, Laplace)
    assert exact.scale == 0.25


def gaussian_smoothing(power, mu, nu):
    """E (μ + νε)^power, by the moments of a normal: the tests' own formula."""
    double_factorial = {0: 1, 2: 1, 4: 3, 6: 15, 8: 105}
    return sum(math.comb(power, j) * double_factorial[j] * mu ** (power - j) * nu**j for j in range(0, power + 1, 2))


def smoothed(coefficients, wave=None):
    """The penalty KL(N(μ, ν²)‖α) up to a constant, −log α = Σ c_k x^k + a cos(kx)."""

    def r(mu, nu):
        total = sum(c * gaussian_smoothing(power, mu, nu) for power, c in coefficients.items()) - torch.log(nu)
        return total + (wave[0] * torch.exp(-0.5 * (wave[1] * nu) ** 2) * torch.cos(wave[1] * mu) if wave else 0)

    return r


def random_polynomial(seed):
    rng = np.random.default_rng(seed)
    degree = int(rng.choice([4, 6, 8]))
    return {power: float(rng.normal()) * 0.3 for power in range(2, degree, 2)} | {degree: float(rng.uniform(0.02, 0.3))}


POLYNOMIALS = {"quartic": {2: -0.5, 4: 0.25}} | {f"random {seed}": random_polynomial(seed) for seed in range(10)}


def named(coefficients):
    """The same with coefficients that are functions of ν: Σ_k c_k C(k, j) (k − j − 1)!! ν^{k−j} for μ^j."""

    def coefficient(j):
        def value(nu):
            found = sum(
                c * math.comb(k, j) * math.prod(range(1, k - j, 2)) * nu ** (k - j)
                for k, c in coefficients.items()
                if k >= j and (k - j) % 2 == 0
            )
            return found - math.log(nu) if j == 0 else found

        return value

    return Polynomial(*(coefficient(j) for j in range(max(coefficients) + 1)))


QUICK = ("quartic", "random 0")


@pytest.mark.parametrize("form", ["named", "function"])
@pytest.mark.parametrize("name", [pytest.param(n, marks=() if n in QUICK else pytest.mark.slow) for n in POLYNOMIALS])
def test_even_polynomials_are_recovered(name, form):
    coefficients = POLYNOMIALS[name]
    r = smoothed(coefficients)
    prior = prior_of(r if form == "function" else named(coefficients), TRAINED)
    assert prior.exists
    x = line(-2.5, 2.5)
    truth = -sum(c * x**power for power, c in coefficients.items())
    difference = prior.log_density(x) - truth
    assert float(difference.max() - difference.min()) < 1e-8
    assert spread_of_difference(lambda mu, nu: r(mu, torch.tensor(nu, dtype=torch.float64)), prior) < 1e-6


@pytest.mark.parametrize("form", ["named", "function"])
def test_a_square_with_a_cosine_is_recovered(form):
    r = smoothed({2: 0.5}, wave=(0.3, 2.0))
    wave = Cosine(lambda s: 0.3 * math.exp(-2 * s**2), 2.0)
    prior = prior_of(named({2: 0.5}) + wave if form == "named" else r, TRAINED)
    assert prior.exists
    x = line(-4, 4)
    difference = prior.log_density(x) + 0.5 * x**2 + 0.3 * torch.cos(2 * x)
    assert float(difference.max() - difference.min()) < max(2 * prior.error, 1e-9)
    assert prior.error < 1e-6
    assert spread_of_difference(lambda mu, nu: r(mu, torch.tensor(nu, dtype=torch.float64)), prior) < 1e-6


def mixture():
    parts = torch.distributions.Normal(torch.tensor([-1.0, 1.0]).double(), torch.tensor([0.5, 0.7]).double())
    return torch.distributions.MixtureSameFamily(
        torch.distributions.Categorical(torch.tensor([0.3, 0.7]).double()), parts
    )


def student(df):
    df, zero, one = (torch.tensor(value, dtype=torch.float64) for value in (df, 0.0, 1.0))
    return torch.distributions.StudentT(df, zero, one)


PRIORS = {
    "gaussian": torch.distributions.Normal(torch.tensor(0.2).double(), 0.8),
    "student 3": student(3.0),
    "student 1": student(1.0),
    "mixture": mixture(),
}


@pytest.mark.parametrize(
    ("name", "scale"),
    [
        ("gaussian", 0.1),
        ("student 3", (0.1, 1.0)),
        ("student 1", (0.1, 1.0)),
        later("gaussian", (0.1, 1.0)),
        later("student 3", 0.1),
        later("student 1", 0.1),
        *(later("mixture", scale) for scale in (0.1, (0.1, 1.0))),
        *(later(name, 0.05) for name in PRIORS),
    ],
    ids=str,
)
def test_round_trip(name, scale):
    """Within 1e-4 of α where α > 1e-6, and within the stated error of log α."""
    truth, family = PRIORS[name], translations.Gaussian(scale)
    prior = prior_of(penalty_of(truth, family), family)
    assert prior.exists
    x = line(-900, 900, 200_001)
    x = torch.cat([x, line(-10, 10, 20_001)])
    x = x[truth.log_prob(x) > math.log(1e-6)]
    assert float((prior.density(x) - truth.log_prob(x).exp()).abs().max()) < 1e-4
    likely = x[truth.log_prob(x) > truth.log_prob(x).max() + math.log(1e-6)]
    assert float((prior.log_density(likely) - truth.log_prob(likely)).abs().max()) <= prior.error + 1e-9
    assert prior.error < 1e-3


@pytest.mark.parametrize("scale", [0.05, 0.3, 1.0, (0.1, 1.0)], ids=str)
@pytest.mark.parametrize("width", [0.3, 1.0, 5.0])
def test_the_stated_error_holds_for_a_kink(width, scale):
    family, truth = translations.Gaussian(scale), torch.distributions.Laplace(torch.tensor(0.0).double(), width)
    prior = prior_of(penalty_of(Laplace(width), family), family)
    if not prior.exists:  # so much smoothing that a kink may be anything
        assert scale == 1.0
        assert width == 0.3
        return
    x = line(-13 * width, 13 * width, 4001)
    assert float((prior.log_density(x) - truth.log_prob(x)).abs().max()) <= prior.error


def test_the_stated_error_holds_for_a_spike_and_slab():
    family = translations.Gaussian((0.05, 1.0))
    spike = ScaleMixture(0.5, 1.0, 0.1)
    prior = prior_of(penalty_of(spike, family), family)
    x = line(-5, 5, 4001)
    assert float((prior.log_density(x) - spike._log_density(x)).abs().max()) <= prior.error < 1e-3


@pytest.mark.parametrize("family", [translations.Laplace(0.2), translations.Logistic(0.1), translations.Uniform(0.3)])
def test_round_trip_under_other_families(family):
    truth = student(3.0)
    prior = prior_of(penalty_of(truth, family), family)
    x = line(-20, 20, 4001)
    assert float((prior.log_density(x) - truth.log_prob(x)).abs().max()) <= prior.error < 1e-4


even = st.tuples(st.floats(-2, 2), st.floats(0.05, 2))


@given(even, st.floats(0.1, 10), st.floats(0.05, 1))
def test_scaling_weights_scales_the_prior(coefficients, by, sigma):
    """r(μ/s) under β_{ν s} is the prior of r under β_ν, stretched by s."""
    square, quartic = coefficients
    plain = prior_of(Polynomial(0, 0, square, 0, quartic), translations.Gaussian(sigma))
    wide = prior_of(Polynomial(0, 0, square / by**2, 0, quartic / by**4), translations.Gaussian(sigma * by))
    x = line(-2, 2, 41)
    difference = wide.log_density(by * x) + math.log(by) - plain.log_density(x)
    assert float(difference.abs().max()) < 1e-6


@given(even, st.floats(-3, 3), st.floats(0.05, 1))
def test_moving_a_penalty_moves_the_prior(coefficients, by, sigma):
    square, quartic = coefficients
    family = translations.Gaussian(sigma)
    plain = prior_of(lambda mu: square * mu**2 + quartic * mu**4, family)
    moved = prior_of(lambda mu: square * (mu - by) ** 2 + quartic * (mu - by) ** 4, family)
    x = line(-2, 2, 41)
    assert float((moved.log_density(x + by) - plain.log_density(x)).abs().max()) < 1e-5


@given(st.floats(0.2, 3), st.floats(-2, 2), st.floats(0.02, 2))
def test_round_trip_of_gaussians(scale, mean, sigma):
    family = translations.Gaussian((sigma, 4 * sigma))
    prior = prior_of(penalty_of(Gaussian(scale, mean), family), family)
    assert abs(prior.exact.scale / scale - 1) < 1e-8
    assert abs(prior.exact.mean - mean) < 1e-7


@given(st.lists(st.floats(0.01, 1), min_size=1, max_size=3), st.floats(0.05, 1))
def test_smoothing_undoes_the_deconvolution(coefficients, sigma):
    """r + Ent + (A ∗ β̌) = 0 for every family with moments, by sampling-free sums."""
    polynomial = Polynomial(*(c for value in coefficients for c in (0.0, 0.0, value)))
    for family in (translations.Laplace(sigma), translations.Uniform(sigma), translations.Logistic(sigma)):
        answer = prior_of(polynomial, family)
        if not answer.exists:
            continue
        points, weights = family.nodes(400)
        mu = line(-2, 2, 9)
        smooth = (answer.exponent(mu[:, None] + sigma * points) * weights).sum(-1)
        rest = polynomial(mu) + family.entropy() + smooth
        assert float(rest.abs().max()) < 1e-11 * answer.terms.size(2 + 30 * sigma) + 1e-9
