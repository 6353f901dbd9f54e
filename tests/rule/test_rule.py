"""The rule: Bayes' rule in one step where all is conjugate, the conditions of the optimum where it is not."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from bayesrule import families as fam
from bayesrule import files
from bayesrule.families import Estimator
from bayesrule.rule import Rule, State

EXACT = {"rtol": 1e-10, "atol": 1e-12}


def d(*numbers):
    return torch.tensor(numbers, dtype=torch.float64)


def draws(seed, *shape):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def one_step(family, start, **fields):
    rule = Rule(family, rate=1.0, **fields)
    return rule.step(rule.start(start)).natural


def assert_same(found, expected):
    for one, two in zip(found, expected, strict=True):
        torch.testing.assert_close(one, two, **EXACT)


# Bayes' rule in one step


@pytest.mark.parametrize("seed", [0, 1])
@pytest.mark.parametrize("how", ["exact", "local", "conjugate"])
def test_ridge_regression(how, seed):
    """w ~ N(0, I/δ), y = Xw + N(0, σ²): precision XᵀX/σ² + δI, mean by the normal equations."""
    x, y, noise, decay = draws(seed, 20, 3), draws(seed + 10, 20), 0.3, 2.0
    family, eye = fam.FullGaussian(), torch.eye(3, dtype=torch.float64)
    start = family.of(5 * draws(seed + 20, 3), 0.1 * eye)
    prior = torch.zeros(3, dtype=torch.float64), -0.5 * decay * eye
    likelihood = x.T @ y / noise, -0.5 * x.T @ x / noise

    def loss(w):
        return (y - w @ x.T).square().sum(-1) / (2 * noise)

    if how == "conjugate":
        terms = tuple(a + b for a, b in zip(prior, likelihood, strict=True))
        found = one_step(family, start, conjugate=terms)
    else:
        found = one_step(family, start, loss=loss, conjugate=prior, how=how)
    precision = x.T @ x / noise + decay * eye
    mean, covariance = family.mean_and_covariance(found)
    torch.testing.assert_close(mean, torch.linalg.solve(precision, x.T @ y / noise), **EXACT)
    torch.testing.assert_close(covariance, torch.linalg.inv(precision), **EXACT)


CONJUGATE = [
    (
        "Beta–Bernoulli",
        fam.Beta(),
        fam.Beta.of(d(0.5), d(2.0)),
        (d(7.0), d(3.0)),
        lambda w: -(7 * w.log() + 3 * torch.log1p(-w))[:, 0],
        fam.Beta.of(d(7.5), d(5.0)),
    ),
    (
        "Gamma–Poisson",
        fam.Gamma(),
        fam.Gamma.of(d(2.0), d(1.5)),
        (d(11.0), d(-4.0)),  # four counts that sum to eleven
        lambda w: (4 * w - 11 * w.log())[:, 0],
        fam.Gamma.of(d(13.0), d(5.5)),
    ),
    (
        "Dirichlet–categorical",
        fam.Dirichlet(),
        fam.Dirichlet.of(d(0.5, 1.0, 2.0)),
        (d(3.0, 0.0, 5.0),),
        lambda w: -(w.log() @ d(3.0, 0.0, 5.0)),
        fam.Dirichlet.of(d(3.5, 1.0, 7.0)),
    ),
]


@pytest.mark.parametrize(
    ("family", "prior", "counts", "loss", "posterior"), [c[1:] for c in CONJUGATE], ids=lambda _: ""
)
def test_counts_are_added(family, prior, counts, loss, posterior):
    """All terms conjugate; and the likelihood as a loss of which the rule knows nothing, by quadrature."""
    added = tuple(a + b for a, b in zip(prior, counts, strict=True))
    start = tuple(part + 0.3 for part in prior) if len(prior) == 1 else (prior[0] + 0.3, prior[1] - 0.3)
    assert_same(one_step(family, start, conjugate=added), posterior)
    assert_same(one_step(family, start, conjugate=prior, loss=loss), posterior)


def test_one_kalman_update():
    """x ~ N(m, P), y = Cx + N(0, R): the update with the Kalman gain."""
    m, c, y = draws(0, 3), draws(1, 2, 3), draws(2, 2)
    p = draws(3, 3, 3) @ draws(3, 3, 3).T + torch.eye(3, dtype=torch.float64)
    r = torch.tensor([[0.5, 0.1], [0.1, 0.3]], dtype=torch.float64)
    prior = fam.FullGaussian.of(m, p)
    seen = c.T @ torch.linalg.solve(r, y), -0.5 * c.T @ torch.linalg.solve(r, c)
    found = one_step(fam.FullGaussian(), prior, conjugate=tuple(a + b for a, b in zip(prior, seen, strict=True)))
    gain = p @ c.T @ torch.linalg.inv(c @ p @ c.T + r)
    mean, covariance = fam.FullGaussian.mean_and_covariance(found)
    torch.testing.assert_close(mean, m + gain @ (y - c @ m), **EXACT)
    torch.testing.assert_close(covariance, p - gain @ c @ p, **EXACT)


def test_a_spike_and_slab_prior_is_conjugate_to_a_gaussian_likelihood():
    """w = zv, y = xw + N(0, σ²): the odds of z = 1 change by the ratio of the evidences, the slab as a Gaussian."""
    keep, x, y, noise = 0.2, draws(0, 10), draws(1, 10), 0.5
    mean, variance = d(0.5)[None], d(2.0)[None]
    prior = fam.SpikeAndSlab.of(d(keep), mean, variance)
    seen = d(0.0), (x @ y / noise)[None, None], (-0.5 * x @ x / noise)[None, None]
    found = one_step(fam.SpikeAndSlab(), prior, conjugate=tuple(a + b for a, b in zip(prior, seen, strict=True)))
    eye = torch.eye(10, dtype=torch.float64)
    zero = torch.zeros(10, dtype=torch.float64)
    slab = torch.distributions.MultivariateNormal(0.5 * x, 2.0 * torch.outer(x, x) + noise * eye).log_prob(y)
    spike = torch.distributions.MultivariateNormal(zero, noise * eye).log_prob(y)
    precision = 1 / 2.0 + x @ x / noise
    expected = (
        torch.sigmoid(math.log(keep / (1 - keep)) + slab - spike)[None],
        ((0.5 / 2.0 + x @ y / noise) / precision)[None, None],
        (1 / precision)[None, None],
    )
    assert_same(fam.SpikeAndSlab.parts(found), expected)


def test_a_product_is_updated_factor_by_factor():
    """A Gaussian of unknown mean and precision, mean-field: the fixed point of coordinate ascent."""
    y = draws(2, 15) + 1
    family = fam.Product((fam.DiagonalGaussian(), fam.Gamma()))
    prior = (*fam.DiagonalGaussian.of(d(0.0), 10.0), *fam.Gamma.of(d(1.0), d(1.0)))

    def expected(mu):  # −E[log p(y|m, τ)] is linear in the statistics of each factor
        squares = y.square().sum() - 2 * y.sum() * mu[0] + len(y) * mu[1]
        return (0.5 * mu[3] * squares - 0.5 * len(y) * mu[2]).sum()

    rule = Rule(family, expected, prior, how="closed-form", rate=0.5)
    end = rule.run(rule.start(prior), 100).last.natural
    mean, variance = fam.DiagonalGaussian.mean_and_variance(end[:2])
    shape, rate = fam.Gamma.shape_and_rate(end[2:])
    tau = shape / rate
    torch.testing.assert_close(mean, tau * y.sum() / (0.1 + tau * len(y)))
    torch.testing.assert_close(variance, 1 / (0.1 + tau * len(y)))
    torch.testing.assert_close(shape, d(1 + len(y) / 2))
    torch.testing.assert_close(rate, 1 + 0.5 * ((y - mean).square().sum() + len(y) * variance))


# The optimum where nothing is conjugate


class Logistic:
    """−log p(y|w) of a logistic regression in two dimensions, prior N(0, I)."""

    x, y = draws(4, 40, 2), (draws(5, 40) + 2 * draws(4, 40, 2)[:, 0] > 0).double()

    def loss(self, w):
        logits = w @ self.x.T
        return (torch.nn.functional.softplus(logits) - self.y * logits).sum(-1)

    def derivatives(self, w):
        """Of the loss and the prior, at each w."""
        p = (w @ self.x.T).sigmoid()
        slope = (p - self.y) @ self.x + w
        return slope, torch.einsum("kn,ni,nj->kij", p * (1 - p), self.x, self.x) + torch.eye(2).double()

    def posterior(self):
        """Mean and covariance on a grid of 801² points, ±8 about the origin."""
        line = torch.linspace(-4, 8, 801, dtype=torch.float64)
        w = torch.cartesian_prod(line, line)
        weights = torch.cat([-self.loss(part) for part in w.split(50_000)]) - w.square().sum(-1) / 2
        weights = weights.softmax(0)
        mean = weights @ w
        return mean, (weights[:, None] * (w - mean)).T @ (w - mean)


PRIORS = {
    "full": (fam.FullGaussian(), fam.FullGaussian.of(torch.zeros(2).double(), torch.eye(2).double())),
    "diagonal": (fam.DiagonalGaussian(), fam.DiagonalGaussian.of(torch.zeros(2).double(), torch.ones(2).double())),
}


def fitted(kind):
    family, prior = PRIORS[kind]
    rule = Rule(family, Logistic().loss, prior, rate=0.5)
    return family, rule.run(rule.start(prior), 80).last.natural


@pytest.mark.parametrize("kind", ["full", "diagonal"])
def test_the_conditions_of_the_optimum(kind):
    """E_q[∇ℓ] = 0 and S = E_q[∇²ℓ] (its diagonal), by a quadrature other than the rule's, to 1e-3."""
    family, natural = fitted(kind)
    mean = family.mean(natural)
    precision = -2 * natural[1] if kind == "full" else torch.diag(-2 * natural[1])
    line = torch.linspace(-8, 8, 161, dtype=torch.float64)
    noise = torch.cartesian_prod(line, line)
    weights = (-noise.square().sum(-1) / 2).softmax(0)
    w = mean + torch.linalg.solve_triangular(torch.linalg.cholesky(precision).mT, noise.T, upper=True).T
    slope, hessian = Logistic().derivatives(w)
    expected = torch.einsum("k,kij->ij", weights, hessian)
    assert float((weights @ slope).abs().max()) < 1e-3
    gap = expected - precision if kind == "full" else expected.diag() - precision.diag()
    assert float(gap.abs().max()) < 1e-3


def test_the_full_gaussian_is_near_the_posterior():
    """Against quadrature: the posterior is skewed, so q is not exact: mean to 0.1 deviations, deviations to 10 %."""
    mean, covariance = fam.FullGaussian.mean_and_covariance(fitted("full")[1])
    true_mean, true_covariance = Logistic().posterior()
    deviations = true_covariance.diag().sqrt()
    assert float(((mean - true_mean) / deviations).abs().max()) < 0.1
    assert float((covariance.diag().sqrt() / deviations - 1).abs().max()) < 0.1


def test_a_mixture_finds_both_modes():
    """The posterior is a mixture of two: KL(q‖p) = E_q[ℓ] − H(q) falls to zero."""
    family = fam.GaussianMixture()
    truth = family.of(d(0.3, 0.7), d(-2.0, 2.0)[:, None], d(0.5, 0.3)[:, None, None])
    start = family.of(d(0.5, 0.5), d(-1.0, 1.0)[:, None], d(1.0, 1.0)[:, None, None])
    rule = Rule(family, lambda w: -family.log_prob(w, truth), rate=0.1, positive=True)
    end = rule.run(rule.start(start), 150).last.natural
    assert float(family.divergence(start, truth)) > 0.1
    assert float(family.divergence(end, truth)) < 1e-4


# Step, schedule, momentum, temperature, constraint


def bowl(w):
    return 0.5 * (d(1.0, 4.0) * (w - 1).square()).sum(-1)


def test_momentum_is_the_heavy_ball_and_rates_may_be_functions():
    """m ← m − ρ_t∇ℓ(m) + γ(m_t − m_{t−1}) for a Gaussian of fixed covariance."""
    rule = Rule(fam.GaussianMean(), bowl, how="local", rate=lambda step: 0.2 / (1 + step), momentum=0.8)
    trace = rule.run(rule.start((d(3.0, -2.0),)), 50)
    m = last = d(3.0, -2.0)
    for step in range(50):
        m, last = m - 0.2 / (1 + step) * d(1.0, 4.0) * (m - 1) + 0.8 * (m - last), m
        torch.testing.assert_close(trace.states[step + 1].natural[0], m, rtol=1e-9, atol=1e-9)


def test_the_two_ways_to_write_the_rule_are_one():
    """(1 − ρ)λ + ρ(λ_conj − ∇_μ E[ℓ]) = λ − ρ(∇_μ E[ℓ] − λ_conj − ∇_μ H)."""
    family, prior = PRIORS["diagonal"]
    natural = family.of(d(0.5, 2.0), d(0.2, 0.4))
    rule = Rule(family, bowl, prior, rate=0.3)
    found = rule.step(rule.start(natural)).natural
    slopes, pulls = family.gradient(bowl, natural), family.entropy_gradient(natural)
    for new, old, slope, term, pull in zip(found, natural, slopes, prior, pulls, strict=True):
        torch.testing.assert_close(new, old - 0.3 * (slope - term - pull))
        torch.testing.assert_close(new, 0.7 * old + 0.3 * (term - slope))


@pytest.mark.parametrize("temperature", [0.5, 1.0, 3.0])
def test_the_temperature_widens_q(temperature):
    """On a quadratic loss of Hessian H the precision tends to H/τ, and the mean to the minimum."""
    rule = Rule(fam.DiagonalGaussian(), bowl, rate=0.3, temperature=temperature)
    end = rule.run(rule.start(PRIORS["diagonal"][1]), 150).last
    mean, variance = fam.DiagonalGaussian.mean_and_variance(end.natural)
    torch.testing.assert_close(mean, d(1.0, 1.0))
    torch.testing.assert_close(variance, temperature / d(1.0, 4.0))


def test_without_temperature_the_entropy_has_no_say():
    family = fam.DiagonalGaussian()
    start = PRIORS["diagonal"][1]
    rule = Rule(family, bowl, rate=0.3, temperature=0)
    found = rule.step(rule.start(start)).natural
    for new, old, slope in zip(found, start, family.gradient(bowl, start), strict=True):
        torch.testing.assert_close(new, old - 0.3 * slope)


def test_a_constraint_is_applied_to_every_step():
    def at_least_one(natural):
        return natural[0], natural[1].clamp_max(-0.5)

    rule = Rule(fam.DiagonalGaussian(), lambda w: 0.1 * bowl(w), rate=0.5, constraint=at_least_one)
    trace = rule.run(rule.start(PRIORS["diagonal"][1]), 20)
    assert float((-2 * trace.natural(1)).min()) == 1.0


@given(seed=st.integers(0, 2**20), rate=st.floats(0.01, 2))
def test_positive_steps_keep_any_precision_positive(seed, rate):
    """Any Hessians, of any sign: S' = ½(S + (S + ρG)S⁻¹(S + ρG)) ≥ ½S. And for one number it is IVON's update."""
    for family, start in PRIORS.values():
        hessian = 5 * draws(seed, 2, 2)

        def loss(w, hessian=hessian):
            return 0.5 * torch.einsum("ni,ij,nj->n", w, hessian + hessian.T, w)

        rule = Rule(family, loss, rate=rate, how="local", positive=True)
        family.check(rule.step(rule.start(start)).natural)
    curvature = (hessian + hessian.T).diag()
    s = torch.ones(2).double()
    expected = s + rate * (curvature - s) + (rate * (curvature - s)) ** 2 / (2 * s)
    found = rule.step(rule.start(start)).natural  # the diagonal one
    torch.testing.assert_close(-2 * found[1], expected)


def test_a_step_out_of_the_domain_is_an_error_that_names_it():
    rule = Rule(fam.DiagonalGaussian(), lambda w: -bowl(w), rate=0.9)
    state = rule.run(rule.start(PRIORS["diagonal"][1]), 0).last
    with pytest.raises(FloatingPointError, match=r"step 1 of rate 0.9 left the domain.*precision.*smaller rate"):
        rule.step(state)
    broken = Rule(fam.Beta(), lambda w: w[:, 0] * math.nan, rate=0.1)
    with pytest.raises(FloatingPointError, match="a − 1 must be finite, not nan"):
        broken.step(broken.start(fam.Beta.of(d(1.0), d(1.0))))


# State, trace, randomness


def test_a_saved_state_goes_on_to_the_bit(tmp_path):
    rule = Rule(
        fam.FullGaussian(), Logistic().loss, how=Estimator("reparam", 5), rate=0.05, momentum=0.5, positive=True
    )
    start = rule.start(PRIORS["full"][1])
    whole = rule.run(start, 12).last
    half = rule.run(start, 5).last
    files.save(tmp_path / "state.safetensors", half.state_dict(), "rule")
    again = State.of(files.load(tmp_path / "state.safetensors", "rule"))
    resumed = rule.run(again, 7).last
    assert resumed.step == whole.step == 12
    assert all(torch.equal(a, b) for a, b in zip(resumed.natural, whole.natural, strict=True))


def test_the_seed_is_the_randomness():
    start, how = PRIORS["full"][1], Estimator("reparam", 2)
    ends = [Rule(fam.FullGaussian(), Logistic().loss, how=how, rate=0.01, seed=seed) for seed in (0, 0, 1)]
    a, b, c = (rule.run(rule.start(start), 3).last.natural[0] for rule in ends)
    assert torch.equal(a, b)
    assert not torch.equal(a, c)


def test_losses_may_differ_from_step_to_step():
    rule = Rule(fam.GaussianMean(), rate=0.5)
    targets = d(1.0, 3.0, 5.0)
    trace = rule.run(rule.start((d(0.0),)), 3, losses=lambda step: lambda w: 0.5 * (w[:, 0] - targets[step]) ** 2)
    assert [round(float(state.natural[0]), 6) for state in trace.states] == [0.0, 0.5, 1.75, 3.375]
    assert rule.step(rule.start((d(0.0),)), lambda w: w[:, 0]).natural[0].item() == pytest.approx(-0.5)


def test_a_trace_is_a_table():
    rule = Rule(fam.GaussianMean(), bowl, rate=0.1)
    trace = rule.run(rule.start((d(0.0, 0.0),)), 100, watch=lambda natural: {"first": float(natural[0][0])})
    lines = str(trace).splitlines()
    assert lines[0].split() == ["step", "change", "first"]
    assert len(lines) == 12
    assert lines[-1].split()[0] == "100"
    assert trace.column("first")[-1] == pytest.approx(1 - 0.9**100)
    assert trace.natural().shape == (101, 2)
    assert trace.last is trace.states[-1]
    with pytest.raises(ValueError, match=r"no column 'second'.*change, first"):
        trace.column("second")


def test_nothing_of_the_users_changes():
    start = PRIORS["full"][1]
    before, random = [part.clone() for part in start], torch.get_rng_state()
    rule = Rule(fam.FullGaussian(), Logistic().loss, how=Estimator("bonnet-price", 2), rate=0.01)
    rule.run(rule.start(start), 2)
    assert all(torch.equal(a, b) for a, b in zip(before, start, strict=True))
    assert torch.equal(random, torch.get_rng_state())


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Rule(fam.Beta(), rate=0), "rate must be positive, not 0"),
        (lambda: Rule(fam.Beta(), momentum=1.0), r"momentum must be in \[0, 1\), not 1.0"),
        (lambda: Rule(fam.Beta(), temperature=-1), "temperature must be at least 0, not -1"),
        (lambda: Rule(fam.Beta(), positive=True), "positive=True is for Gaussians"),
        (lambda: Rule(fam.GaussianMixture(), conjugate=(d(0.0),)), "put it into the loss"),
        (lambda: Rule(fam.Bernoulli(), conjugate=(d(0.0),)).start((d(0.0, 1.0),)), r"\[\[2\]\], not \[\[1\]\]"),
        (lambda: Rule(fam.Beta()).start((d(-2.0), d(0.0))), "a .* must be positive"),
        (lambda: Rule(fam.Bernoulli()).run(Rule(fam.Bernoulli()).start((d(0.0),)), -1), "steps must be at least 0"),
        (lambda: State.of({"natural": (d(0.0),)}), r"\['step', 'velocity'\] is missing"),
        (lambda: State.of({"natural": (d(0.0),), "velocity": (), "step": 0}), "shapes of natural"),
    ],
)
def test_bad_input_is_named(make, message):
    with pytest.raises(ValueError, match=message):
        make()
