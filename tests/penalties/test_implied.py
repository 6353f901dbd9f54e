"""Verdicts, groups, bad input, and an implied prior at work."""

import math
import subprocess
import sys

import numpy as np
import pytest
import torch
from covering import first
from torch import nn

import bayesrule as br
from bayesrule import files, penalties
from bayesrule.naming import to_spec
from bayesrule.penalties import Implied, prior_of, translations
from bayesrule.penalties.functions import L1, L2, Cosine, GroupLasso, Polynomial
from bayesrule.priors import from_spec


def wavy():
    """Powers, a wave and a kink, as a point mass has them."""
    return prior_of(L2(0.5) + L1(0.7) + Cosine(0.3, 4.0), translations.PointMass())


def tabled():
    return prior_of(lambda mu: 2 * torch.log1p(mu**2 / 3), translations.Gaussian(0.1))


@pytest.mark.parametrize("make", [wavy, tabled])
def test_density_moments_and_draws_agree(make):
    """Draws: the mean of x² within five standard errors."""
    prior = make()
    x = torch.linspace(-4000, 4000, 4_000_001, dtype=torch.float64)
    density = prior.density(x)
    assert float(torch.trapezoid(density, x)) == pytest.approx(1, abs=1e-6)
    assert prior.mean == pytest.approx(0, abs=1e-8)
    assert float(torch.trapezoid(density * x**2, x)) == pytest.approx(prior.variance, rel=2e-3)
    draws = prior.sample(100_000, torch.Generator().manual_seed(0)).clamp(-3, 3)
    expected = float(torch.trapezoid(density * x.clamp(-3, 3) ** 2, x))
    assert abs(float((draws**2).mean()) - expected) < 5 * float((draws**2).std()) / math.sqrt(len(draws))


def test_moments_that_do_not_exist():
    prior = prior_of(lambda mu: 2 * torch.log1p(mu**2 / 3), translations.PointMass())  # Student's with df = 3
    assert prior.variance == pytest.approx(3, rel=1e-4)
    assert math.isnan(prior.moment(3))
    assert prior.moment(4) == math.inf


@pytest.mark.parametrize("make", [wavy, tabled])
def test_an_implied_prior_trains_saves_and_resumes(make, tmp_path):
    prior = make()
    data = br.data.moons(n=60)
    model = br.models.mlp(2, 2, hidden=(8,))
    found = br.fit(model, data, method="map", prior=prior, epochs=3)
    assert torch.isfinite(found.predict(data[0]).probs).all()
    br.fit(model, data, method="bbb", prior=prior, epochs=2)
    files.save(tmp_path / "prior.safetensors", to_spec(prior), "prior")
    again = from_spec(files.load(tmp_path / "prior.safetensors", "prior"))
    assert isinstance(again, Implied)
    named = dict(model.named_parameters())
    assert torch.equal(again.log_prob(named), prior.log_prob(named))


def test_log_prob_sums_over_weights_and_has_a_gradient():
    prior, layer = tabled(), nn.Linear(3, 2).double()
    named = dict(layer.named_parameters())
    whole = torch.cat([w.flatten() for w in named.values()])
    assert torch.allclose(prior.resolve(layer).log_prob(named), prior.log_density(whole).sum())
    x = torch.linspace(-2, 2, 9, dtype=torch.float64, requires_grad=True)
    (slope,) = torch.autograd.grad(prior.log_density(x).sum(), x)
    assert (slope + 4 * x / (3 + x**2)).abs().max().item() < 0.05  # that of Student's, hardly smoothed


def test_the_divergence_of_powers_waves_and_kinks_is_exact():
    prior, layer = wavy(), nn.Linear(2, 1).double()
    like = dict(layer.named_parameters())
    mean, std = torch.tensor([0.3, -1.0, 0.2]).double(), torch.tensor([0.2, 0.5, 1.0]).double()
    noise = torch.randn(200_000, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    logs = -0.5 * noise**2 - std.log() - 0.5 * math.log(2 * math.pi) - prior.log_density(mean + std * noise)
    doubt = float(logs.sum(1).std()) / math.sqrt(len(logs))
    assert abs(float(prior.divergence(mean, std, like)) - float(logs.sum(1).mean())) < 5 * doubt
    assert tabled().divergence(mean, std, like) is None


def test_an_exact_gaussian_serves_methods_that_want_one():
    prior = prior_of(L2(2.0), translations.Gaussian(0.1))
    assert isinstance(prior.resolve(nn.Linear(2, 1)), br.priors.Gaussian)
    data = br.data.moons(n=60)
    br.fit(br.models.mlp(2, 2, hidden=(4,)), data, method="ivon", prior=prior, epochs=1)


@pytest.mark.parametrize("axis", [0, 1])
def test_groups_on_a_point(axis):
    prior = prior_of(GroupLasso(3.0, axis), translations.PointMass())
    assert prior.exists
    draws = prior.sample(200_000, 5, torch.Generator().manual_seed(0))
    squares = draws.square().mean(1)
    assert abs(float(squares.mean()) - 6 / 9) < 5 * float(squares.std()) / math.sqrt(len(squares))
    assert prior.variance(5) == pytest.approx(6 / 9)
    layer = nn.Linear(4, 3, bias=False).double()
    with torch.no_grad():
        drawn = prior.resolve(layer).log_prob(dict(layer.named_parameters()))
        rows = layer.weight if axis == 0 else layer.weight.T
        torch.testing.assert_close(drawn, prior.log_density(rows).sum())
        penalty = GroupLasso(3.0, axis).total(layer.weight)
        zero = prior.log_density(torch.zeros_like(rows)).sum()
        torch.testing.assert_close(drawn, zero - penalty)
    with pytest.raises(ValueError, match="resolve"):
        prior.log_prob({})


def test_the_density_of_a_group_of_two_integrates_to_one():
    prior = prior_of(GroupLasso(2.0), translations.PointMass())
    x = torch.linspace(-12, 12, 1201, dtype=torch.float64)
    grid = torch.stack(torch.meshgrid(x, x, indexing="ij"), -1)
    total = torch.trapezoid(torch.trapezoid(prior.log_density(grid).exp(), x), x)
    assert float(total) == pytest.approx(1, abs=1e-3)


def test_groups_under_gaussians_have_no_prior():
    verdict = prior_of(GroupLasso(1.0), translations.Gaussian(0.5))
    assert verdict.reason == "no deconvolution"
    with pytest.raises(ValueError, match="radial"):
        prior_of(GroupLasso(1.0), translations.Logistic(0.5))
    with pytest.raises(ValueError, match="stands alone"):
        GroupLasso(1.0) + L2(1.0)


@pytest.mark.parametrize(
    ("penalty", "family", "reason"),
    [
        (L2(-1.0), translations.Gaussian(0.5), "not integrable"),
        (Polynomial(0.0, 1.0), translations.Gaussian(0.5), "not integrable"),
        (Polynomial(0.0, 0.0, 1.0, 0.5), translations.Gaussian(0.5), "not integrable"),
        (Cosine(1.0, 2.0), translations.Gaussian(0.5), "not integrable"),
        (lambda mu: torch.log1p(mu**2) / 4, translations.Gaussian(0.1), "not integrable"),
        (lambda mu: torch.log1p(mu**2) / 4, translations.PointMass(), "not integrable"),
        (lambda mu: torch.sin(mu), translations.Gaussian(0.1), "not integrable"),
        (lambda mu: torch.sin(mu), translations.PointMass(), "not integrable"),
        (lambda mu: torch.exp(mu), translations.PointMass(), "not integrable"),
        (lambda mu: mu**2 / (1 + mu**2), translations.Gaussian(0.1), "not integrable"),
        (lambda mu: 1 - torch.exp(-(mu**2)), translations.Gaussian(0.1), "not integrable"),
        (L2(1.0), translations.Student(0.5, df=2.0), "no deconvolution"),
        (L2(1.0) + Cosine(1.0, math.pi), translations.Uniform(1.0), "no deconvolution"),
        (lambda mu: mu.abs() ** 1.5, translations.Gaussian(0.2), "no deconvolution"),
        (lambda mu: mu**2 + 0.5 * torch.cos(500 * mu), translations.Gaussian(0.1), "no deconvolution"),
        (lambda mu, nu: nu * mu**2, translations.Gaussian((0.1, 1.0)), "depends on ν"),
        (L2(1.0) + Cosine(0.1, 2.0), translations.Gaussian((0.1, 1.0)), "depends on ν"),
        (lambda mu: 2 * torch.log1p(mu**2), translations.Gaussian((0.1, 1.0)), "depends on ν"),
    ],
)
def test_verdicts(penalty, family, reason):
    verdict = prior_of(penalty, family)
    assert not verdict.exists
    assert verdict.reason == reason
    assert verdict.completion is None
    assert math.isfinite(verdict.measure)
    assert str(verdict).startswith(f"no prior ({reason})")


def heights(function):
    """A few likely points, and the true log-density there, by a sum over a fine grid out to 1e6."""
    t = torch.linspace(-14.5, 14.5, 1_000_001, dtype=torch.float64)
    total = float(torch.trapezoid((-function(t.sinh())).exp() * t.cosh(), t))
    x = torch.cat([torch.linspace(-5, 5, 2001), torch.logspace(-7, 0, 701)]).double()
    return x, -function(x) - math.log(total)


@pytest.mark.parametrize(
    "penalty",
    [
        lambda mu: torch.log(torch.cosh(mu)),  # overflows far out
        lambda mu: torch.cosh(mu),
        lambda mu: torch.where(mu.abs() < 1, 0.5 * mu**2, mu.abs() - 0.5),
        lambda mu: mu.abs() ** 1.5,
        lambda mu: mu.abs() ** 0.5,
        lambda mu: 0.5 * mu**2 + mu.abs(),
        lambda mu: 2 * torch.log1p(mu**2) + 0.5 * torch.cos(4 * mu),
    ],
)
def test_the_stated_error_holds_on_a_point(penalty):
    prior = prior_of(penalty, translations.PointMass())
    assert prior.exists
    x, truth = heights(penalty)
    assert float((prior.log_density(x) - truth).abs().max()) <= prior.error + 1e-8
    assert prior.error < 0.05


@pytest.mark.parametrize("frequency", first([8.84, 1.31, 4.83]))
def test_waves_with_a_long_tail_have_a_prior(frequency):
    """−log α = 2.4 log(1 + x²) + 0.3 cos(kx), smoothed: a table does not make the tail of a wave rise."""
    family = translations.Gaussian(0.2)
    prior = prior_of(
        br.penalties.penalty_of(lambda x: -2.4 * torch.log1p(x**2) - 0.3 * torch.cos(frequency * x), family), family
    )
    assert prior.exists
    assert prior.tail == pytest.approx(-4.8, abs=0.1)
    x, truth = heights(lambda x: 2.4 * torch.log1p(x**2) + 0.3 * torch.cos(frequency * x))
    assert float((prior.log_density(x) - truth).abs().max()) <= prior.error < 0.05


def test_a_penalty_that_overflows_far_out_has_a_prior_under_gaussians():
    """(cosh ∗ β)(μ) = exp(½ν²) cosh μ."""
    prior = prior_of(lambda mu: torch.cosh(mu), translations.Gaussian(0.1))
    x = torch.linspace(-3, 3, 61, dtype=torch.float64)
    difference = prior.log_density(x) + math.exp(-0.005) * torch.cosh(x)
    assert float(difference.max() - difference.min()) < 2 * prior.error < 1e-6


def test_a_default_is_not_a_scale():
    """A function with an argument of its own, such as its threshold or its factor, keeps it."""
    family = translations.Gaussian(0.1)
    assert prior_of(lambda mu, factor=2.0: factor * mu**2, family).exact.scale == pytest.approx(0.5)
    assert prior_of(lambda mu, nu=None: mu**2 / (2 * nu**2), family).exact.scale == pytest.approx(0.1)
    own = translations.Density(0.1, function=lambda x, power=2.0: -(x.abs() ** power) / 2)
    assert own.moment(2) == pytest.approx(0.01)


@pytest.mark.parametrize("number", [np.float32, np.float64, torch.tensor, lambda value: torch.tensor(value).double()])
def test_numbers_of_numpy_and_torch(number):
    prior = prior_of(L2(number(0.5)), translations.Gaussian(number(0.25)))
    assert prior.log_density(torch.zeros(1)).item() == pytest.approx(-0.5 * math.log(2 * math.pi))
    assert prior_of(L1(number(0.5)), translations.PointMass()).exact.scale == 2.0
    assert prior_of(GroupLasso(number(0.5)), translations.PointMass()).factor == 0.5
    assert translations.Gaussian(np.array([0.1, 1.0])).scales[-1] == 1.0


def test_a_kink_far_from_the_mass():
    prior = prior_of(Polynomial(0.0, -2000.0, 1.0) + L1(1.0), translations.PointMass())  # (x − 999.5)² where x > 0
    assert prior.mean == pytest.approx(999.5)
    assert prior.variance == pytest.approx(0.5, rel=1e-6)
    assert prior.error < 1e-9


def test_a_missing_term_is_found_beside_a_kink():
    """A is only known to 0.04 nats there, and r in ν much better."""
    family = translations.Gaussian((0.1, 1.0))
    divergence = br.penalties.penalty_of(br.priors.Laplace(1.0), family)
    verdict = prior_of(lambda mu, nu: divergence(mu, nu) + 0.05 * nu, family)
    assert verdict.reason == "depends on ν"
    assert verdict.measure == pytest.approx(0.045, rel=1e-3)
    assert verdict.completed is not None


def test_a_missing_term_of_a_numeric_penalty_is_found():
    """Student's without −Ent(ν): the completion is that entropy, up to a constant."""
    family = translations.Gaussian((0.1, 1.0))
    divergence = br.penalties.penalty_of(lambda x: -2 * torch.log1p(x**2 / 3), family)
    verdict = prior_of(lambda mu, nu: divergence(mu, nu) + torch.log(nu), family)
    assert verdict.reason == "depends on ν"
    nu = torch.tensor([0.15, 0.4, 0.9], dtype=torch.float64)
    difference = verdict.completion(nu) + nu.log()
    assert float(difference.max() - difference.min()) < 1e-6


def test_families_of_your_own_give_the_same_answers():
    own = translations.Characteristic(0.5, function=lambda k: torch.exp(-0.5 * k**2))
    assert prior_of(L2(2.0), own).exact.scale == pytest.approx(0.5, rel=1e-8)
    assert prior_of(lambda mu: mu.abs(), own).reason == "no deconvolution"
    draws = torch.randn(20_000, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    prior = prior_of(Polynomial(0, 0, 0, 0, 1.0), translations.Samples(0.1, draws=draws))
    exact = prior_of(Polynomial(0, 0, 0, 0, 1.0), translations.Gaussian(0.1))
    x = torch.linspace(-1, 1, 9, dtype=torch.float64)
    assert float((prior.log_density(x) - exact.log_density(x)).abs().max()) < 0.02
    skewed = translations.Density(0.2, function=lambda x: -x - torch.exp(-x), reach=60.0)
    moved = prior_of(L2(0.5), skewed).exact  # E (μ + ν ε)² has its least at −ν E ε
    assert moved.mean == pytest.approx(0.2 * 0.5772156649, rel=1e-6)


def test_plots():
    assert len(wavy().plot().axes) == 2
    for penalty, family in (
        (L2(0.5), translations.Gaussian((0.1, 1.0))),
        (L1(0.5), translations.Gaussian(0.1)),
        (GroupLasso(1.0), translations.PointMass()),
    ):
        assert len(br.penalties.equivalence.pictures.plot_belief(penalty, family).axes) == 3


@pytest.mark.parametrize(
    ("call", "error", "text"),
    [
        (lambda: prior_of(lambda mu: 1 / mu * 0, translations.Gaussian(0.1)), ValueError, "not finite"),
        (lambda: prior_of(lambda mu: torch.log(mu), translations.Gaussian(0.1)), ValueError, "not finite"),
        (
            lambda: prior_of(lambda mu, nu: mu**2 + torch.log(nu - 1), translations.Gaussian((0.1, 1))),
            ValueError,
            "not finite",
        ),
        (lambda: prior_of(Polynomial(lambda nu: math.nan, 0, 1), translations.Gaussian(0.1)), ValueError, "not finite"),
        (lambda: prior_of(lambda mu: torch.zeros(3), translations.Gaussian(0.1)), ValueError, "one number for each"),
        (lambda: prior_of(lambda mu: (mu**2).sum(), translations.Gaussian(0.1)), ValueError, r"leave out \.sum\(\)"),
        (lambda: prior_of(lambda mu: math.cos(mu), translations.Gaussian(0.1)), ValueError, "functions of torch"),
        (lambda: prior_of(lambda mu: mu**2 * 1j, translations.Gaussian(0.1)), ValueError, "complex"),
        (
            lambda: prior_of(lambda mu: torch.log1p(mu**2) + torch.cos(8 * mu), translations.PointMass()),
            ValueError,
            "penalties.Cosine",
        ),
        (lambda: L2("1"), ValueError, "finite number, not '1'"),
        (lambda: prior_of(L2(math.inf), translations.Gaussian(0.1)), ValueError, "finite number"),
        (lambda: prior_of(3.0, translations.Gaussian(0.1)), TypeError, "penalty must be"),
        (lambda: prior_of(L2(1.0), br.priors.Gaussian(1.0)), TypeError, "which μ moves"),
        (lambda: prior_of(L2(1.0), lambda x: -(x**2)), TypeError, "translations.Density"),
        (
            lambda: translations.Density(function=lambda x, mu: -((x - mu) ** 2) * (1 + mu**2)),
            ValueError,
            "not translation-invariant",
        ),
        (lambda: prior_of(L2(1.0), translations.Gaussian(0.1), points=3), ValueError, "at least 64"),
        (
            lambda: prior_of(lambda mu: mu**2 + 0.5 * torch.cos(80 * mu), translations.Gaussian(0.01), points=200),
            ValueError,
            "too coarse .* points=800",
        ),
        (lambda: Polynomial(), ValueError, "at least one coefficient"),
        (lambda: Polynomial(lambda nu: nu)(torch.zeros(1)), ValueError, "say which ν"),
        (lambda: penalties.Function(lambda mu, nu: mu)(torch.zeros(1)), ValueError, "say which ν"),
        (lambda: GroupLasso(1.0, axis=2), ValueError, "axis must be 0"),
    ],
)
def test_bad_input(call, error, text):
    with pytest.raises(error, match=text):
        call()


def test_a_finer_grid_finds_what_a_coarse_one_refused():
    family = translations.Gaussian(0.01)
    prior = prior_of(lambda mu: mu**2 + 0.5 * torch.cos(80 * mu), family)
    x = torch.linspace(-1, 1, 201, dtype=torch.float64)
    truth = -(x**2) - 0.5 * math.exp(0.5 * 0.64) * torch.cos(80 * x)
    difference = prior.log_density(x) - truth
    assert float(difference.max() - difference.min()) / 2 < max(prior.error, 1e-6) < 1e-2


def test_a_file_with_an_implied_prior_loads_the_room_that_it_needs(tmp_path):
    inside = br.priors.Product.of((prior_of(L2(0.5), translations.Gaussian(0.1)), ["weight", "bias"]))
    files.save(tmp_path / "prior.safetensors", to_spec(inside), "prior")
    code = "import sys; from bayesrule import files, priors; assert 'bayesrule.penalties' not in sys.modules; "
    code += "print(priors.from_spec(files.load('prior.safetensors', 'prior')).parts[0].name)"
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, check=True, capture_output=True, text=True)
    assert done.stdout.strip() == "implied"
