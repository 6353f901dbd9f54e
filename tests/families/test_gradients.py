"""∇_μ E_q[ℓ]: quadrature against finite differences, every estimator against quadrature."""

import math

import pytest
import torch

from bayesrule import families as fam
from bayesrule.families import Estimator, Loss
from bayesrule.families.base import inner


def d(*numbers):
    return torch.tensor(numbers, dtype=torch.float64)


def direction_like(parts, seed):
    """Where to go from μ: small, and symmetric where a part is a matrix of second moments."""
    generator = torch.Generator().manual_seed(seed)
    found = [torch.randn(part.shape, generator=generator, dtype=part.dtype) for part in parts]
    return tuple(part + part.mT if part.ndim >= 2 and part.shape[-1] == part.shape[-2] else part for part in found)


@pytest.mark.parametrize("seed", [0, 1])
def test_exact_is_the_derivative_by_the_expectation_parameters(member, seed):
    """Along a random direction, by central differences of step 1e-4: an error of about 1e-8."""
    family, mu = member.family, member.family.expectation(member.natural)
    way = direction_like(mu, seed)

    def value(step):
        moved = tuple(part + step * change for part, change in zip(mu, way, strict=True))
        return float(family.expected(member.loss, family.natural(moved)))

    slope = (value(1e-4) - value(-1e-4)) / 2e-4
    gradient = family.gradient(member.loss, member.natural)
    assert float(inner(way, gradient)) == pytest.approx(slope, rel=1e-5, abs=1e-6)


def test_a_mixture_has_natural_gradients():
    """F⁻¹∇_λ E_q[ℓ] block by block, with ∇_λ by central differences."""
    family = fam.GaussianMixture()
    natural = family.of(d(0.2, 0.5, 0.3), d(-1.0, 0.0, 2.0)[:, None], d(0.5, 0.3, 1.0)[:, None, None])

    def loss(w):
        return torch.sin(2 * w[:, 0]) + w[:, 0] ** 2

    slopes = []
    for i, part in enumerate(natural):
        flat = torch.zeros(part.numel(), dtype=part.dtype)
        for j in range(part.numel()):
            change = torch.zeros_like(flat)
            change[j] = 1e-5
            ends = [(*natural[:i], part + sign * change.reshape(part.shape), *natural[i + 1 :]) for sign in (1, -1)]
            flat[j] = (family.expected(loss, ends[0]) - family.expected(loss, ends[1])) / 2e-5
        slopes.append(flat.reshape(part.shape))
    for found, expected in zip(
        family.gradient(loss, natural), family.fisher_solve(natural, tuple(slopes)), strict=True
    ):
        torch.testing.assert_close(found, expected, rtol=1e-6, atol=1e-7)


def test_the_entropy_gradient_of_a_mixture():
    """Alike components are one Gaussian: −λ, and nothing for the weights."""
    gaussian = fam.FullGaussian.of(d(0.5, 1.0), torch.tensor([[1.0, 0.2], [0.2, 0.5]], dtype=torch.float64))
    natural = (d(0.3), torch.stack([gaussian[0]] * 2), torch.stack([gaussian[1]] * 2))
    found = fam.GaussianMixture().entropy_gradient(natural)
    for part, expected in zip(found[1:], natural[1:], strict=True):
        torch.testing.assert_close(part, -expected, rtol=1e-9, atol=1e-9)
    assert float(found[0].abs()) < 1e-9


@pytest.mark.parametrize("seed", [0, pytest.param(1, marks=pytest.mark.slow)])
def test_estimators_agree_with_quadrature(estimate, seed):
    """The mean of 300 gradients of 20 draws, within 5 standard errors: by chance outside in less than 1 of 10⁴ runs."""
    case, how = estimate
    exact = case.family.gradient(case.loss, case.natural)
    generator = torch.Generator().manual_seed(seed)
    every = [case.family.gradient(case.loss, case.natural, Estimator(how, samples=20), generator) for _ in range(300)]
    for part, same in zip(exact, zip(*every, strict=True), strict=True):
        stacked = torch.stack(same)
        error = stacked.std(0) / math.sqrt(len(stacked))
        assert bool(((stacked.mean(0) - part).abs() <= 5 * error + 1e-9).all())


@pytest.mark.parametrize("seed", [0, 1])
@pytest.mark.parametrize("kind", ["bernoulli", "categorical"])
def test_the_concrete_relaxation(kind, seed):
    """Unbiased for the relaxed loss E[ℓ(σ((λ + L)/τ))], within 5 standard errors of 40 000 draws; it tends to E[ℓ]."""
    logit, tau = 0.7, 0.3

    def loss(w):
        return torch.sin(2 * w[..., 0]) + w[..., 0] ** 2

    def relaxed(at, heat):  # over L, logistic: on a fine grid
        x = torch.linspace(-40, 40, 200_001, dtype=torch.float64)
        weights = torch.sigmoid(x) * torch.sigmoid(-x)
        w = torch.sigmoid((at + x) / heat)[:, None]
        return float((weights * loss(w)).sum() / weights.sum())

    family = {"bernoulli": fam.Bernoulli(), "categorical": fam.Categorical()}[kind]
    p = 1 / (1 + math.exp(-logit))
    slope = (relaxed(logit + 1e-3, tau) - relaxed(logit - 1e-3, tau)) / 2e-3 / (p * (1 - p))
    generator = torch.Generator().manual_seed(seed)
    how = Estimator("reparam", samples=100, relaxation=tau)
    draws = torch.stack([family.gradient(loss, (d(logit),), how, generator)[0] for _ in range(400)])
    assert abs(float(draws.mean()) - slope) < 5 * float(draws.std()) / math.sqrt(400) + 1e-6
    exact = float(family.gradient(loss, (d(logit),))[0])
    small = (relaxed(logit + 1e-3, 0.01) - relaxed(logit - 1e-3, 0.01)) / 2e-3 / (p * (1 - p))
    assert small == pytest.approx(exact, abs=0.01)  # a bias of the order of τ


def test_local_is_exact_for_a_quadratic_loss(gaussian):
    hessian = torch.tensor([[2.0, 0.7], [0.7, 1.0]], dtype=torch.float64)

    def loss(w):
        return 0.5 * torch.einsum("ni,ij,nj->n", w - 1, hessian, w - 1)

    exact, local = (gaussian.family.gradient(loss, gaussian.natural, how) for how in ("exact", "local"))
    for one, two in zip(exact, local, strict=True):
        torch.testing.assert_close(one, two, rtol=1e-10, atol=1e-10)


def test_local_is_the_slope_at_the_mean():
    """For μ = E[w] it is ∇ℓ(μ): straight-through for a Bernoulli, against the last for a categorical."""
    slope = d(1.0, -2.0, 3.0)
    p = d(0.2, 0.5, 0.3)

    def loss(w):
        return (w * slope).sum(-1) + (w[:, 0] * w[:, 1]) ** 2

    (found,) = fam.Bernoulli().gradient(loss, fam.Bernoulli.of(p), "local")
    at_mean = Loss(loss).gradient(p[None])[0]
    torch.testing.assert_close(found, at_mean)
    (found,) = fam.Categorical().gradient(loss, fam.Categorical.of(p), "local")
    torch.testing.assert_close(found, at_mean[:-1] - at_mean[-1])
    (_, found) = fam.Gamma().gradient(lambda w: (w**2).sum(-1), fam.Gamma.of(d(3.0), d(2.0)), "local")
    torch.testing.assert_close(found, d(3.0))  # E[w] = μ₂: 2·1.5
    natural = fam.DroppedGaussian(0.5, 1.0).of(d(2.0)[None])
    how = Estimator("local", samples=20_000)
    (found,) = fam.DroppedGaussian(0.5, 1.0).gradient(
        lambda w: w[:, 0, 0] ** 2, natural, how, torch.Generator().manual_seed(0)
    )
    assert float(found) == pytest.approx(4.0, abs=5 * 4 / math.sqrt(20_000))  # E[z·2m]/p = 4


def test_derivatives_by_hand_are_those_of_autograd():
    """A loss without a value, or with derivatives of its own, gives the same gradients."""
    natural = fam.FullGaussian.of(d(0.5, -1.0), torch.eye(2, dtype=torch.float64))
    by_hand = Loss(slope=lambda w: 4 * w**3, curvature=lambda w: 12 * w**2)  # of Σ w⁴, a diagonal Hessian
    half = Loss(slope=lambda w: 4 * w**3)
    auto = Loss(lambda w: (w**4).sum(-1))
    for how in ("local", Estimator("bonnet-price", samples=5)):
        found = [
            fam.FullGaussian().gradient(loss, natural, how, torch.Generator().manual_seed(0))
            for loss in (by_hand, half, auto)
        ]
        for one, two, three in zip(*found, strict=True):
            torch.testing.assert_close(one, three)
            torch.testing.assert_close(two, three)
    diagonal = fam.DiagonalGaussian.of(d(0.5, -1.0), d(1.0, 1.0))
    full = Loss(slope=lambda w: 4 * w**3, curvature=lambda w: (12 * w**2).diag_embed())
    for loss in (by_hand, full):
        found = fam.DiagonalGaussian().gradient(loss, diagonal, "local")
        for one, two in zip(found, fam.DiagonalGaussian().gradient(auto, diagonal, "local"), strict=True):
            torch.testing.assert_close(one, two)
    mean = fam.GaussianMean(d(1.0).squeeze())
    torch.testing.assert_close(
        mean.gradient(half, mean.of(d(0.5)))[0], mean.gradient(lambda w: (w**4).sum(-1), mean.of(d(0.5)))[0]
    )


def test_closed_form_takes_the_expectation_parameters(member):
    """E_q[⟨a, T⟩] = ⟨a, μ⟩ has the gradient a."""
    weights = direction_like(member.natural, 0)
    found = member.family.gradient(lambda mu: inner(weights, mu), member.natural, "closed-form")
    for part, expected in zip(found, weights, strict=True):
        torch.testing.assert_close(part, expected)
    value = member.family.expected(lambda mu: inner(weights, mu), member.natural, "closed-form")
    torch.testing.assert_close(value, inner(weights, member.family.expectation(member.natural)))


def test_expected_by_draws_and_at_the_mean():
    natural = fam.Gamma.of(d(3.0), d(2.0))
    generator = torch.Generator().manual_seed(0)
    drawn = fam.Gamma().expected(lambda w: w[:, 0], natural, Estimator("score", samples=10_000), generator)
    assert float(drawn) == pytest.approx(1.5, abs=5 * math.sqrt(0.75 / 10_000))
    assert float(fam.Gamma().expected(lambda w: w[:, 0] ** 2, natural, "local")) == 1.5**2


def test_gradients_leave_the_parameters_and_the_random_state_alone():
    natural = fam.Gamma.of(d(3.0), d(2.0))
    before, state = [part.clone() for part in natural], torch.get_rng_state()
    fam.Gamma().gradient(lambda w: w[:, 0], natural, Estimator("reparam", 5), torch.Generator().manual_seed(0))
    assert all(torch.equal(one, two) for one, two in zip(before, natural, strict=True))
    assert not any(part.requires_grad for part in natural)
    assert torch.equal(state, torch.get_rng_state())


def test_single_precision_stays():
    natural = fam.DiagonalGaussian.of(torch.zeros(2), torch.ones(2))
    for how in ("exact", "local", "reparam", "bonnet-price", Estimator("score", 5)):
        found = fam.DiagonalGaussian().gradient(lambda w: (w**2).sum(-1), natural, how)
        assert {part.dtype for part in found} == {torch.float32}
    beta = fam.Beta.of(torch.tensor(2.0), torch.tensor(3.0))
    assert fam.Beta().gradient(lambda w: w**2, beta)[0].dtype == torch.float32


NORMAL = fam.DiagonalGaussian.of(d(0.0), d(1.0))
WIDE = fam.DiagonalGaussian.of(torch.zeros(12).double(), torch.ones(12).double())


def one(w):
    return w[:, 0]


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: fam.DiagonalGaussian().gradient(one, NORMAL, "exat"), ValueError, "did you mean 'exact'"),
        (lambda: fam.Gamma().gradient(one, fam.Gamma.of(d(1.0), d(1.0)), "bonnet-price"), ValueError, "Gamma family"),
        (lambda: fam.DiagonalGaussian().gradient(one, WIDE), ValueError, "12 dimensions .* take an estimator"),
        (lambda: fam.DiagonalGaussian().gradient(one, NORMAL, "score"), ValueError, "samples must be at least 2"),
        (lambda: fam.DiagonalGaussian().gradient(lambda w: w, NORMAL), ValueError, "one number a point"),
        (lambda: fam.DiagonalGaussian().gradient(3.0, NORMAL), TypeError, "loss must be a function"),
        (lambda: fam.DiagonalGaussian().gradient(Loss(), NORMAL, "local"), ValueError, "neither value nor slope"),
        (lambda: fam.DiagonalGaussian().gradient(Loss(slope=one), NORMAL, "local"), ValueError, "shape of w"),
        (lambda: fam.DiagonalGaussian().gradient(Loss(slope=one), NORMAL), ValueError, "loss has no value"),
        (lambda: fam.DiagonalGaussian().gradient(one, (d(0.0), d(1.0))), ValueError, "must be positive"),
        (lambda: fam.Gamma().gradient(lambda mu: mu[0], (d(1, 1), d(-1, -1)), "closed-form"), ValueError, "one number"),
        (lambda: Estimator(samples=0), ValueError, "samples must be at least 1, not 0"),
        (lambda: Estimator(nodes=0), ValueError, "nodes must be at least 1, not 0"),
        (lambda: Estimator(relaxation=0), ValueError, "relaxation must be positive, not 0"),
    ],
)
def test_bad_requests_are_named(call, error, message):
    with pytest.raises(error, match=message):
        call()
