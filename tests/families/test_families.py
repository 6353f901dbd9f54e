"""What every exponential family must give: dual parameters, densities, entropies, divergences, draws."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import distributions as dist

from bayesrule import families as fam
from bayesrule.families import quadrature
from bayesrule.families.base import inner


def d(*numbers):
    return torch.tensor(numbers, dtype=torch.float64)


def random_positive(shape, seed, low=0.05, high=50.0):
    """Log-uniform numbers."""
    u = torch.rand(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    return low * (high / low) ** u


def random_natural(kind, seed):
    """A member of each family, drawn."""
    g = torch.Generator().manual_seed(seed)
    mean = 3 * torch.randn(3, generator=g, dtype=torch.float64)
    variance = random_positive(3, seed + 1)
    factor = torch.randn(3, 3, generator=g, dtype=torch.float64)
    covariance = factor @ factor.T + 0.1 * torch.eye(3, dtype=torch.float64)
    p = 0.02 + 0.96 * torch.rand(3, generator=g, dtype=torch.float64)
    members = {
        "fixed": (fam.GaussianMean(covariance), lambda f: f.of(mean)),
        "diagonal": (fam.DiagonalGaussian(), lambda f: f.of(mean, variance)),
        "full": (fam.FullGaussian(), lambda f: f.of(mean, covariance)),
        "mixture": (
            fam.GaussianMixture(),
            lambda f: f.of(d(0.3, 0.7), torch.stack([mean, -mean]), torch.stack([covariance, variance.diag()])),
        ),
        "bernoulli": (fam.Bernoulli(), lambda f: f.of(p)),
        "categorical": (fam.Categorical(), lambda f: f.of(torch.stack([p, p.flip(0)]) / p.sum())),
        "beta": (fam.Beta(), lambda f: f.of(variance, random_positive(3, seed + 2))),
        "gamma": (fam.Gamma(), lambda f: f.of(variance, random_positive(3, seed + 2))),
        "dirichlet": (fam.Dirichlet(), lambda f: f.of(random_positive((2, 4), seed + 2))),
        "spike": (fam.SpikeAndSlab(), lambda f: f.of(p, mean[:, None], variance[:, None])),
        "dropped": (fam.DroppedGaussian(0.7, 0.3), lambda f: f.of(mean[:, None])),
    }
    family, make = members[kind]
    return family, make(family)


KINDS = [
    "fixed",
    "diagonal",
    "full",
    "mixture",
    "bernoulli",
    "categorical",
    "beta",
    "gamma",
    "dirichlet",
    "spike",
    "dropped",
]
seeds = st.integers(0, 2**20)


@pytest.mark.parametrize("kind", KINDS)
@given(seed=seeds)
def test_natural_to_expectation_and_back(kind, seed):
    family, natural = random_natural(kind, seed)
    family.check(natural)
    back = family.natural(family.expectation(natural))
    for part, again in zip(natural, back, strict=True):
        torch.testing.assert_close(again, part, rtol=1e-8, atol=1e-8)


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "mixture"])
@given(seed=seeds)
def test_expectation_is_the_slope_of_the_log_partition(kind, seed):
    family, natural = random_natural(kind, seed)
    leaves = tuple(part.requires_grad_() for part in natural)
    slopes = torch.autograd.grad(family.log_partition(leaves), leaves)
    for part, slope in zip(family.expectation(natural), slopes, strict=True):
        torch.testing.assert_close(part.detach(), slope, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "mixture"])
@given(seed=seeds)
def test_divergence_is_positive_and_zero_at_home(kind, seed):
    family, natural = random_natural(kind, seed)
    _, other = random_natural(kind, seed + 7)
    if kind == "fixed":  # the covariance belongs to the family
        other = tuple(part + 1 for part in natural)
    assert float(family.divergence(natural, other)) > 0
    assert abs(float(family.divergence(natural, natural))) < 1e-9


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "mixture"])
@given(seed=seeds)
def test_the_fisher_information_is_the_curvature_of_the_log_partition(kind, seed):
    """F(F⁻¹g) = g, with F by autograd; a full Gaussian's second part moves within the symmetric matrices."""
    family, natural = random_natural(kind, seed)
    generator = torch.Generator().manual_seed(seed)
    gradient = tuple(torch.randn(part.shape, generator=generator, dtype=part.dtype) for part in natural)
    if kind == "full":
        gradient = gradient[0], gradient[1] + gradient[1].mT
    solved = family.fisher_solve(natural, gradient)
    _, back = torch.autograd.functional.jvp(lambda *parts: family.expectation(parts), natural, solved)
    for part, again in zip(gradient, back, strict=True):
        scale = max(float(s.abs().max()) for s in solved) + 1
        torch.testing.assert_close(again, part, rtol=1e-6, atol=1e-9 * scale)


def test_log_prob_is_that_of_torch(case):
    w = case.family.sample(case.natural, 50, torch.Generator().manual_seed(0))
    torch.testing.assert_close(case.family.log_prob(w, case.natural), case.density(w), rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("seed", [0, 1])
def test_draws_have_the_expectation_parameters(member, seed):
    """Every mean of T within 5 standard errors of 40 000 draws: fails by chance in less than 1 of 10⁵ runs."""
    w = member.family.sample(member.natural, 40_000, torch.Generator().manual_seed(seed))
    for stat, expected in zip(member.family.statistics(w), member.family.expectation(member.natural), strict=True):
        z = (stat.mean(0) - expected) / (stat.std(0) / math.sqrt(len(stat)))
        assert float(z.abs().max()) < 5


@pytest.mark.parametrize("seed", [0, 1])
def test_draws_of_a_mixture_have_its_moments(seed):
    """Mean and second moments within 5 standard errors of 40 000 draws."""
    family, natural = random_natural("mixture", seed)
    w = family.sample(natural, 40_000, torch.Generator().manual_seed(seed))
    square = w[:, :, None] * w[:, None, :]
    for stat, expected in ((w, family.mean(natural)), (square, family.expectation(natural)[2].sum(0))):
        z = (stat.mean(0) - expected) / (stat.std(0) / math.sqrt(len(stat)))
        assert float(z.abs().max()) < 5
    # the same sum, which processors may take in another order
    torch.testing.assert_close(family.mean(natural), family.expectation(natural)[1].sum(0), rtol=1e-12, atol=1e-12)


def test_entropy_is_minus_the_mean_log_density(case):
    expected = -case.family.expected(lambda w: case.density(w), case.natural)
    torch.testing.assert_close(case.family.entropy(case.natural), expected, rtol=1e-7, atol=1e-8)


def test_mean_is_the_mean(case):
    if case.name == "product":
        means = [case.family.expected(lambda w, i=i: w[i][:, 0], case.natural) for i in range(2)]
        torch.testing.assert_close(torch.cat(case.family.mean(case.natural)), torch.stack(means))
        return
    mean = case.family.mean(case.natural).flatten()
    for j, entry in enumerate(mean):
        found = case.family.expected(lambda w, j=j: w.flatten(1)[:, j], case.natural)
        torch.testing.assert_close(found, entry, rtol=1e-8, atol=1e-10)


@pytest.mark.parametrize(
    ("family", "first", "second", "pair"),
    [
        (
            fam.DiagonalGaussian(),
            fam.DiagonalGaussian.of(d(0.5), d(2.0)),
            fam.DiagonalGaussian.of(d(-1.0), d(0.3)),
            (dist.Normal(d(0.5), d(2.0).sqrt()), dist.Normal(d(-1.0), d(0.3).sqrt())),
        ),
        (
            fam.Beta(),
            fam.Beta.of(d(0.5), d(2.0)),
            fam.Beta.of(d(3.0), d(1.0)),
            (dist.Beta(d(0.5), d(2.0)), dist.Beta(d(3.0), d(1.0))),
        ),
        (
            fam.Gamma(),
            fam.Gamma.of(d(0.5), d(2.0)),
            fam.Gamma.of(d(3.0), d(1.0)),
            (dist.Gamma(d(0.5), d(2.0)), dist.Gamma(d(3.0), d(1.0))),
        ),
        (
            fam.Dirichlet(),
            fam.Dirichlet.of(d(0.5, 1.0, 2.0)),
            fam.Dirichlet.of(d(3.0, 2.0, 1.0)),
            (dist.Dirichlet(d(0.5, 1.0, 2.0)), dist.Dirichlet(d(3.0, 2.0, 1.0))),
        ),
        (
            fam.Categorical(),
            fam.Categorical.of(d(0.5, 0.2, 0.3)),
            fam.Categorical.of(d(0.1, 0.1, 0.8)),
            (dist.Categorical(d(0.5, 0.2, 0.3)), dist.Categorical(d(0.1, 0.1, 0.8))),
        ),
    ],
    ids=["diagonal", "beta", "gamma", "dirichlet", "categorical"],
)
def test_entropy_and_divergence_are_those_of_torch(family, first, second, pair):
    torch.testing.assert_close(family.entropy(first), pair[0].entropy().sum(), rtol=1e-10, atol=1e-10)
    divergence = dist.kl_divergence(*pair).sum()
    torch.testing.assert_close(family.divergence(first, second), divergence, rtol=1e-10, atol=1e-10)


def test_divergence_of_full_gaussians_and_of_mixtures():
    (full, one), (_, two) = random_natural("full", 0), random_natural("full", 1)
    parts = [dist.MultivariateNormal(*full.mean_and_covariance(natural)) for natural in (one, two)]
    torch.testing.assert_close(full.divergence(one, two), dist.kl_divergence(*parts), rtol=1e-9, atol=0)
    mixture = fam.GaussianMixture()
    twice = [(d(0.0), torch.stack([n[0]] * 2), torch.stack([n[1]] * 2)) for n in (one, two)]  # both components alike
    found = mixture.divergence(*twice, how=fam.Estimator("exact", nodes=8))
    torch.testing.assert_close(found, dist.kl_divergence(*parts), rtol=1e-9, atol=0)


def test_a_unit_of_the_slab_is_a_gaussian():
    """As p → 1 the family is a diagonal Gaussian: same moments, same entropy."""
    whole = fam.SpikeAndSlab().of(d(1 - 1e-12), d(0.5, -1.0)[None], d(2.0, 0.3)[None])
    gaussian = fam.DiagonalGaussian.of(d(0.5, -1.0), d(2.0, 0.3))
    torch.testing.assert_close(fam.SpikeAndSlab().expectation(whole)[1][0], fam.DiagonalGaussian().mean(gaussian))
    entropies = fam.SpikeAndSlab().entropy(whole), fam.DiagonalGaussian().entropy(gaussian)
    torch.testing.assert_close(*entropies, rtol=1e-9, atol=1e-9)


@given(a=st.floats(0.05, 2000), b=st.floats(0.05, 2000))
def test_quadrature_is_exact_on_means_of_logs(a, b):
    """E[log w], E[log(1 − w)], E[w²] for Beta and E[log w], E[w²] for Gamma, at the default number of points."""
    nodes = fam.Beta()._nodes(fam.Beta.of(d(a), d(b)), None)
    expected = fam.Beta().expectation(fam.Beta.of(d(a), d(b)))
    found = tuple(nodes.weights @ stat for stat in nodes.statistics)
    for one, two in zip(found, expected, strict=True):
        torch.testing.assert_close(one, two, rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(nodes.weights @ nodes.w**2, d(a * (a + 1) / ((a + b) * (a + b + 1))), rtol=1e-9, atol=0)
    nodes = fam.Gamma()._nodes(fam.Gamma.of(d(a), d(b)), None)
    torch.testing.assert_close(
        nodes.weights @ nodes.statistics[0], torch.digamma(d(a)) - math.log(b), rtol=1e-9, atol=1e-9
    )
    torch.testing.assert_close(nodes.weights @ nodes.w**2, d(a * (a + 1) / b**2), rtol=1e-9, atol=0)


@pytest.mark.parametrize("count", [1, 7, 40, 150])
def test_gauss_hermite_has_the_moments_of_a_normal(count):
    x, weights = quadrature.hermite(count)
    for power in range(0, min(2 * count, 20), 2):
        exact = math.prod(range(1, power, 2))
        assert float(weights @ x**power) == pytest.approx(exact, rel=1e-10)


def test_inner_keeps_leading_dimensions():
    natural = d(1.0, 2.0), d(3.0).squeeze()
    statistics = torch.ones(5, 2, dtype=torch.float64), torch.ones(5, dtype=torch.float64)
    assert inner(natural, statistics).tolist() == [6.0] * 5


GOOD = fam.DiagonalGaussian.of(d(0.0), d(1.0))


@pytest.mark.parametrize(
    ("family", "natural", "message"),
    [
        (fam.DiagonalGaussian(), (d(0.0),), "takes 2 tensors"),
        (fam.DiagonalGaussian(), [d(0.0), d(-1.0)], "takes 2 tensors"),
        (fam.DiagonalGaussian(), (d(0.0), d(0.5)), "precision .* must be positive, not -1"),
        (fam.DiagonalGaussian(), (d(math.nan), d(-1.0)), "precision·mean must be finite, not nan"),
        (fam.DiagonalGaussian(), (d(0.0, 1.0), d(-1.0)), "one shape"),
        (fam.GaussianMean(), (d(math.inf),), "must be finite, not inf"),
        (fam.FullGaussian(), (d(0.0), d(-1.0)), "shapes must be"),
        (fam.FullGaussian(), (d(0.0, 0.0), torch.eye(2).double()), "lowest eigenvalue is -2"),
        (fam.GaussianMixture(), (d(0.0), torch.zeros(3, 1), -torch.ones(3, 1, 1)), r"shapes must be \[K − 1\]"),
        (fam.Bernoulli(), (), "takes 1 tensors"),
        (fam.Categorical(), (d(1.0).squeeze(),), r"\[..., K − 1\]"),
        (fam.Beta(), (d(-1.5), d(0.0)), "a .* must be positive, not -0.5"),
        (fam.Gamma(), (d(0.0), d(1.0)), "rate .* must be positive, not -1"),
        (fam.Dirichlet(), (d(0.0, -2.0),), "concentration .* must be positive, not -1"),
        (fam.Dirichlet(), (d(0.0),), "K ≥ 2"),
        (fam.SpikeAndSlab(), (d(0.0), d(0.0), d(-1.0)), r"shapes must be \[U\]"),
        (fam.SpikeAndSlab(), (d(0.0), d(0.0)[None], d(1.0)[None]), "precision .* must be positive, not -2"),
        (fam.DroppedGaussian(), (d(0.0).squeeze(),), r"\[U, d\]"),
        (fam.Product((fam.Bernoulli(), fam.DiagonalGaussian())), (d(0.0), d(0.0), d(1.0)), "must be positive, not -2"),
    ],
)
def test_parameters_outside_the_domain_are_named(family, natural, message):
    with pytest.raises(ValueError, match=message):
        family.check(natural)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: fam.DiagonalGaussian.of(d(0.0), d(-1.0)), "variance must be positive, not -1"),
        (lambda: fam.DiagonalGaussian().natural((d(2.0), d(1.0))), "variance must be positive, not -3"),
        (lambda: fam.FullGaussian.of(d(0.0), d(-1.0)[None]), "covariance must be positive definite"),
        (lambda: fam.GaussianMean(torch.zeros(1, 1, 1)), "number, a vector or a matrix"),
        (lambda: fam.GaussianMean(d(0.0)), "lowest eigenvalue is 0"),
        (lambda: fam.Bernoulli.of(d(1.0)), "between 0 and 1"),
        (lambda: fam.Categorical.of(d(1.0, 0.0)), "must be positive"),
        (lambda: fam.Dirichlet().natural((d(-0.1, -0.1),)), "sum to less than 1"),
        (lambda: fam.Gamma().natural((d(1.0), d(1.0))), "must exceed"),
        (lambda: fam.Gamma().natural((d(1.0), d(-1.0))), r"E\[w\] must be positive"),
        (lambda: fam.SpikeAndSlab.of(d(1.0), d(0.0)[None], d(1.0)[None]), "keep must be between"),
        (lambda: fam.DroppedGaussian(keep=0), "keep must be above 0"),
        (lambda: fam.DroppedGaussian(variance=0), "variance must be positive"),
        (lambda: fam.Product(()), "at least one family"),
        (lambda: fam.DroppedGaussian(keep=1.0).log_prob(d(0.0)[None], (d(0.0)[None],)), "keep must be below 1"),
        (lambda: quadrature.hermite(0), "nodes must be at least 1"),
    ],
)
def test_bad_members_are_refused(make, message):
    with pytest.raises(ValueError, match=message):
        make()


def test_a_mixture_says_what_it_has_not():
    with pytest.raises(NotImplementedError, match="use log_prob"):
        fam.GaussianMixture().statistics(torch.zeros(1, 2))
    with pytest.raises(NotImplementedError, match="use log_prob"):
        fam.GaussianMixture().log_partition(())
