"""Families against scipy's distributions."""

import math

import numpy as np
import pytest
import torch
from scipy import integrate, special, stats

from bayesrule.penalties import translations

FAMILIES = {
    "gaussian": (translations.Gaussian(), stats.norm()),
    "laplace": (translations.Laplace(), stats.laplace()),
    "uniform": (translations.Uniform(), stats.uniform(-1, 2)),
    "logistic": (translations.Logistic(), stats.logistic()),
    "student": (translations.Student(df=9.5), stats.t(9.5)),
    "cauchy": (translations.Student(df=1.0), stats.t(1)),
}


@pytest.fixture(params=FAMILIES)
def pair(request):
    return FAMILIES[request.param]


def test_density_and_entropy(pair):
    family, truth = pair
    x = torch.linspace(-0.95, 4, 40, dtype=torch.float64)
    x = x[x.abs() < 0.29] if isinstance(family, translations.Uniform) else x
    scaled = torch.from_numpy(truth.logpdf((x / 0.3).numpy()) - math.log(0.3))
    torch.testing.assert_close(family.log_density(x, 0.3), scaled, rtol=1e-10, atol=1e-10)
    assert abs(family.entropy(0.3) - truth.entropy() - math.log(0.3)) < 1e-9


@pytest.mark.filterwarnings("ignore::scipy.integrate.IntegrationWarning")
def test_moments(pair):
    family, truth = pair
    for order in (0, 1, 2, 3, 4, 6, 8):
        expected = float(truth.moment(order)) if order < getattr(family, "df", math.inf) else math.inf
        assert family.moment(order, 2.0) == pytest.approx(expected * 2.0**order, rel=1e-6, abs=1e-12)


def test_characteristic_function(pair):
    family, truth = pair
    k = torch.tensor([0.0, 1e-7, 0.3, 1.0, 4.0], dtype=torch.float64)
    if isinstance(family, translations.Student):
        a, z = family.df / 2, math.sqrt(family.df) * k[2:]
        expected = special.kv(a, z.numpy()) * z.numpy() ** a * 2 ** (1 - a) / special.gamma(a)
        torch.testing.assert_close(family.characteristic(k[2:], 1.0), torch.from_numpy(expected), rtol=1e-10, atol=0)
    else:
        for value in k:
            expected = integrate.quad(lambda x, v=float(value): truth.pdf(x) * math.cos(v * x), -40, 40, limit=500)[0]
            assert abs(float(family.characteristic(value, 1.0)) - expected) < 1e-7
    assert abs(float(family.characteristic(k[:1], 1.0)) - 1) < 1e-8


def test_nodes_and_draws(pair):
    """Draws: Kolmogorov–Smirnov at 1e-6."""
    family, truth = pair
    points, weights = family.nodes(400)
    assert float(weights.sum()) == pytest.approx(1, abs=1e-12)
    expected = 1 - integrate.quad(lambda x: truth.pdf(x) / math.cosh(x) ** 2, -30, 30, limit=500, points=[-1, 0, 1])[0]
    assert float(weights @ points.tanh().square()) == pytest.approx(expected, abs=1e-4)
    draws = family.sample((20_000,), 2.0, torch.Generator().manual_seed(0))
    assert stats.kstest((draws / 2).numpy(), truth.cdf).pvalue > 1e-6


def test_your_own_density_characteristic_function_and_draws():
    normal = translations.Gaussian(0.5)
    draws = torch.randn(50_000, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    own = {
        translations.Density(0.5, function=lambda x: -0.5 * x**2 + 7): 1e-9,
        translations.Density(0.5, function=lambda x, mu: -0.5 * (x - mu) ** 2): 1e-9,
        translations.Characteristic(0.5, function=lambda k: torch.exp(-0.5 * k**2)): 1e-8,
        translations.Samples(0.5, draws=draws): 0.03,
    }
    x = torch.linspace(-1, 1, 9, dtype=torch.float64)
    k = torch.linspace(0, 3, 7, dtype=torch.float64)
    for family, tolerance in own.items():
        assert abs(family.entropy() - normal.entropy()) < tolerance
        assert abs(family.moment(2) - normal.moment(2)) < tolerance
        spectrum = family.characteristic(k)
        assert float((spectrum - normal.characteristic(k)).abs().max()) < tolerance
        assert float((family.log_density(x) - normal.log_density(x)).abs().max()) < max(10 * tolerance, 1e-4)
        assert abs(float(family.sample((4000,), generator=torch.Generator().manual_seed(1)).std()) - 0.5) < 0.05


@pytest.mark.parametrize(
    ("family", "text"),
    [
        (translations.Density(function=lambda x: -torch.log1p(x**2)), "not fallen off within ±50.*reach=500"),
        (translations.Characteristic(function=lambda k: torch.exp(-k)), "not fallen off within ±15.*reach=150"),
        (translations.Characteristic(function=lambda k: torch.exp(-(k**4))), "no density has this"),
        (
            translations.Samples(draws=torch.tensor([*torch.linspace(-1, 1, 1000).tolist(), 1e6])),
            "too far apart.*outliers",
        ),
    ],
)
def test_shapes_that_their_numbers_do_not_hold(family, text):
    with pytest.raises(ValueError, match=text):
        family.entropy()


def test_a_skewed_shape():
    """Gumbel's, whose characteristic function Γ(1 − ik) is complex."""
    family = translations.Density(function=lambda x: -x - torch.exp(-x), reach=60.0)
    k = torch.tensor([0.5, 2.0], dtype=torch.float64)
    expected = torch.from_numpy(special.gamma(1 - 1j * k.numpy()))
    torch.testing.assert_close(family.characteristic(k), expected, rtol=1e-8, atol=1e-8)
    assert abs(family.entropy() - (1 + 0.5772156649)) < 1e-8


@pytest.mark.parametrize("family", [translations.Gaussian(), translations.Laplace(), translations.Logistic()])
def test_the_mean_size_by_halves_is_the_closed_form(family):
    mu = torch.linspace(-9, 9, 37, dtype=torch.float64)
    by_halves = translations.base.Translation.absolute(family, mu, 0.7)
    assert float((by_halves - family.absolute(mu, 0.7)).abs().max()) < 1e-13


@pytest.mark.parametrize("df", [1.5, 3.0, 8.0])
def test_the_mean_size_under_students(df):
    """E|m + T| = m(2F(m) − 1) + 2f(m)(df + m²)/(df − 1)."""
    m = np.array([-15.0, -0.5, 0.0, 1.5, 25.0])
    truth = m * (2 * stats.t.cdf(m, df) - 1) + 2 * stats.t.pdf(m, df) * (df + m**2) / (df - 1)
    found = translations.Student(0.2, df=df).absolute(torch.from_numpy(0.2 * m), 0.2)
    np.testing.assert_allclose(found.numpy(), 0.2 * truth, atol=1e-10)
