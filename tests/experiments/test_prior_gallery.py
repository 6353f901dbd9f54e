"""The gallery of penalties and priors (Wolinski), against closed forms and scipy's quadrature."""

import dataclasses
import io
import json
import math

import numpy as np
import pytest
import torch
from matplotlib.image import imread
from scipy import integrate, stats

from bayesrule.experiments import EXPERIMENTS, Claim, Setting, png
from bayesrule.experiments.penalties import prior_gallery
from bayesrule.penalties import Implied, Radial, prior_of
from bayesrule.penalties.functions import L1, L2, GroupLasso
from bayesrule.penalties.translations import Gaussian, PointMass

NUS = prior_gallery.SCALES[False]


@pytest.fixture(scope="module")
def result():
    return EXPERIMENTS["prior-gallery"](Setting())


def rows_of(result, penalty, family=""):
    """The rows of a penalty, by its name or the beginning of it."""
    return [row for row in result.data["gallery"] if row["penalty"].startswith(penalty) and family in row["family"]]


def kl(log_prior, mu, nu):
    """KL(N(μ, ν²)‖α) by scipy's adaptive quadrature."""

    def inside(x):
        log_q = stats.norm.logpdf(x, mu, nu)
        return math.exp(log_q) * (log_q - log_prior(x))

    return integrate.quad(inside, mu - 12 * nu, mu + 12 * nu, epsabs=1e-11, epsrel=1e-11, limit=500)[0]


def changes(row, log_prior):
    """How much r − KL(β‖α) of a row changes over its μ and ν."""
    x = row["x"][0]
    apart = [
        row["r"][place][at] - kl(log_prior, x[at], nu) for place, nu in enumerate(NUS) for at in (0, 37, 60, 75, 120)
    ]
    return max(apart) - min(apart)


def test_every_claim_holds_and_the_answer_is_plain(result):
    assert [claim.held for claim in result.claims] == [True] * 10
    assert all(type(claim.held) is bool for claim in result.claims)
    assert json.loads(json.dumps(result.data, allow_nan=False)) == result.data
    assert imread(io.BytesIO(png(result)), format="png").std() > 0.01


def test_each_row_has_its_answer(result):
    """Priors, completions and the three verdicts, in the order of the gallery."""
    reasons = [row["verdict"] and row["verdict"]["reason"] for row in result.data["gallery"]]
    depends, none, mass = "depends on ν", "no deconvolution", "not integrable"
    assert reasons == [None, depends, depends, None, none, None, None, None, mass, None]
    for row in result.data["gallery"]:
        assert bool(row["alpha"]) == (row["verdict"] is None or "a term in ν alone is missing" in row["says"])
        assert len(row["r"]) == len(row["lines"])
        assert len(row["A"]) == len(row["A_lines"]) > 0


def test_priors_of_the_rows_against_scipy(result):
    """Each α by its closed form, normalised by quadrature."""
    truths = {
        "a(ν)": stats.norm.logpdf,
        "½μ²": stats.norm.logpdf,
        "a square": lambda x: -0.5 * x**2 - 0.6 * math.cos(4 * x),
        "a double well": lambda x: x**2 - 0.25 * x**4,
    }
    for name, exponent in truths.items():
        log_mass = math.log(integrate.quad(lambda x, f=exponent: math.exp(f(x)), -10, 10, epsabs=1e-12)[0])
        for row in rows_of(result, name, "Gaussian"):
            truth = [math.exp(exponent(x) - log_mass) for x in row["x"][0]]
            np.testing.assert_allclose(row["alpha"][0], truth, rtol=1e-5)  # of seven digits
    (point,) = rows_of(result, "2|μ|", "point")
    np.testing.assert_allclose(point["alpha"][0], stats.laplace.pdf(point["x"][0], scale=0.5), rtol=1e-6)


def test_r_is_the_divergence_in_the_rows_that_have_a_prior(result):
    """And not in those where a term is missing or two are exchanged."""
    (complete,), (printed,) = rows_of(result, "a(ν)"), rows_of(result, "½ + a(ν)")
    plain = rows_of(result, "½μ²", "trained")[0]
    assert changes(complete, stats.norm.logpdf) < 1e-5  # the rows have seven digits
    assert changes(printed, stats.norm.logpdf) > 1
    assert abs(changes(plain, stats.norm.logpdf) - plain["verdict"]["measure"]) < 1e-5
    assert changes(rows_of(result, "a square")[0], lambda x: -0.5 * x**2 - 0.6 * math.cos(4 * x)) < 1e-5
    assert changes(rows_of(result, "a double well")[0], lambda x: x**2 - 0.25 * x**4) < 1e-5


def test_a_of_the_rows_smoothed_again_is_the_penalty():
    """−Ent − (A ∗ β̌)(μ) = r(μ, ν), where A_ν is one function and where it is not."""
    for exhibit in prior_gallery.exhibits(full=False):
        if not isinstance(exhibit.family, Gaussian) or isinstance(exhibit.penalty, L1):
            continue
        for nu in exhibit.family.scales:
            x = nu * torch.linspace(-12, 12, 4001, dtype=torch.float64) + 0.7
            found = prior_gallery.exponent(exhibit.penalty, exhibit.family, nu, x).numpy()
            smooth = integrate.simpson(found * stats.norm.pdf(x, 0.7, nu), x=x)
            r = float(exhibit.penalty(torch.tensor([0.7], dtype=torch.float64), nu))
            assert abs(-stats.norm.entropy(0.7, nu) - smooth - r) < 1e-8, exhibit.name
    assert prior_gallery.exponent(L1(1.0), Gaussian(0.5), 0.5, x) is None


@pytest.mark.parametrize("nu", [0.3, 1.0])
def test_a_cut_spectrum_is_that_of_the_absolute_value(nu):
    """Against scipy with the family; and without smoothing (φ = 1) it comes to −|x|, as far as 2/π top."""
    top, x = 3.0 / nu, 0.4
    inside = lambda k: (1 - math.cos(k * x) * math.exp(0.5 * (k * nu) ** 2)) / k**2  # noqa: E731
    truth = integrate.quad(inside, 0, top)[0] + 1 / top
    found = prior_gallery.cut(2.0, Gaussian(nu), nu, top, torch.tensor([x], dtype=torch.float64))
    assert abs(float(found) + stats.norm.entropy(0, nu) + 4 / math.pi * truth) < 1e-5
    point = prior_gallery.cut(1.0, PointMass(), 1.0, 200.0, torch.tensor([0.0, 0.5, 2.0], dtype=torch.float64))
    torch.testing.assert_close(point, torch.tensor([0.0, -0.5, -2.0], dtype=torch.float64), atol=0.004, rtol=0)


@pytest.mark.parametrize("n", [2, 5])
def test_the_prior_of_groups_is_a_density_of_the_stated_variance(n):
    """Mass 1 and variance (n + 1)/λ² of each weight, by an integral over the length of a group."""
    prior = prior_of(GroupLasso(3.0), PointMass())
    assert isinstance(prior, Radial)
    sphere = 2 * math.pi ** (n / 2) / math.gamma(n / 2)

    def density(length):
        group = torch.tensor([length] + [0.0] * (n - 1), dtype=torch.float64)
        return sphere * length ** (n - 1) * math.exp(float(prior.log_density(group)))

    assert abs(integrate.quad(density, 0, 30)[0] - 1) < 1e-8
    assert abs(integrate.quad(lambda s: s**2 * density(s), 0, 30)[0] / n - (n + 1) / 9) < 1e-8


def test_gap_is_the_change_of_r_minus_the_divergence():
    """By hand: ½μ² differs from KL(N(μ, ν²)‖N(0, 1)) by a term that changes by ½(1 − ν²) + log ν."""
    low = NUS[0]
    found = prior_gallery.gap(L2(0.5), Gaussian(NUS), prior_gallery.normal(1.0), 1.0)
    assert abs(found - (-math.log(low) - 0.5 * (1 - low**2))) < 1e-12
    laplace = prior_gallery.gap(L1(1.0), Gaussian(0.5), lambda x: -x.abs() - math.log(2), 1.0)  # E|μ + νε| − |μ| at 0
    assert 0.3 < laplace < 0.5 * math.sqrt(2 / math.pi) + 1e-6


def held(monkeypatch, name, value):
    """The claims of a run with one thing of the experiment changed, but for the last one, which takes a second."""
    monkeypatch.setattr(prior_gallery, "exhibits", lambda full: [])
    monkeypatch.setattr(prior_gallery, "_refused", lambda family: Claim("", "", "", True))
    monkeypatch.setattr(prior_gallery, name, value)
    return [claim.held for claim in prior_gallery.run(Setting()).claims][:-1]


def test_claims_fail_with_a_and_b_the_other_way_round(monkeypatch):
    real = prior_gallery.corollary
    found = held(monkeypatch, "corollary", lambda sigma0, printed=False: real(sigma0, not printed))
    assert found == [False, False] + [True] * 7


def test_claims_fail_with_another_term_or_other_variances(monkeypatch):
    real = prior_gallery.missing
    wrong = held(monkeypatch, "missing", lambda nu, variance, sigma0=1.0: real(nu, 1.1 * variance, sigma0))
    assert wrong == [False, True, True, False, False, True, True, False, False]
    monkeypatch.undo()
    assert not held(monkeypatch, "VARIANCES", dict.fromkeys(prior_gallery.VARIANCES, 1.0))[4]


@pytest.mark.parametrize("extra", [-1e-7, math.nan])
def test_claims_fail_with_a_prior_that_is_off(extra, monkeypatch):
    """A log-density with a little too much of x², or none; verdicts as they are."""

    def off(given, family, points=16384):
        answer = prior_of(given, family, points)
        if not isinstance(answer, Implied):
            return answer
        powers = [*answer.polynomial, *[0.0] * (3 - len(answer.polynomial))]
        powers[2] += extra
        return dataclasses.replace(answer, polynomial=tuple(powers), exact=None)

    assert held(monkeypatch, "prior_of", off) == [False, True, False, True, True, True, False, False, False]


def test_claims_about_verdicts_fail_if_there_is_a_prior(monkeypatch):
    """An answer N(0, 1) to every question is right about ½μ² with fixed scales, and about nothing else."""
    always = prior_of(L2(0.5), Gaussian(0.5))
    real = prior_gallery._refused
    found = held(monkeypatch, "prior_of", lambda given, family, points=16384: always)
    assert found == [False, False, True, False, False, False, False, False, False]
    assert not real(Gaussian(NUS)).held


def test_the_measure_of_the_lasso_is_checked(monkeypatch):
    real = prior_gallery.cut
    found = held(monkeypatch, "cut", lambda *given: 1.1 * real(*given))
    assert [place for place, right in enumerate(found) if not right] == [5]


@pytest.mark.slow
def test_an_integrable_penalty_in_place_of_one_that_is_not_is_noticed(monkeypatch):
    real = prior_gallery.logarithm
    monkeypatch.setattr(prior_gallery, "logarithm", lambda power, family: real(power + 0.2, family))
    claim = prior_gallery._refused(Gaussian(0.5))
    assert not claim.held
    assert "2 of 3 refused" in claim.measured


def test_in_full_there_are_more_families_and_scales():
    exhibits = prior_gallery.exhibits(full=True)
    kinds = {type(each.family).__name__ for each in exhibits}
    assert kinds == {"Gaussian", "Laplace", "Logistic", "Student", "Uniform", "PointMass"}
    told = {(each.name, row["family"]): row for each in exhibits[14:17] for row in [prior_gallery.row(each)]}
    assert "smooth" in told["2|μ|", "Laplace, ν = 0.5"]["says"]
    assert "power 4" in told["¼μ⁴ − μ²", "Student, ν = 0.5"]["says"]
    assert "6.283" in told["½μ² + ½ cos 2πμ", "Uniform, ν = 0.5"]["says"]
    assert len(told["2|μ|", "Laplace, ν = 0.5"]["A"]) == len(prior_gallery.CUTS)
    assert len(exhibits[0].family.scales) > len(NUS)
