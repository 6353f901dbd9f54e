"""Mixtures of Student distributions, and the t distribution itself."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy import integrate, stats

from bayesrule.predictions import TailedReals, t_distribution

CASES = st.tuples(st.integers(1, 6), st.integers(1, 3), st.sampled_from([(), (2,)]), st.integers(0, 10_000))
FREEDOMS = [2.1, 3.0, 4.7, 20.0, 100.0]


def mixture(case, dtype=torch.float64):
    s, b, rest, seed = case
    g = torch.Generator().manual_seed(seed)
    means = 3 * torch.randn(s, b, *rest, generator=g, dtype=torch.float64)
    scales = torch.randn(s, b, *rest, generator=g, dtype=torch.float64).exp()
    freedoms = 2.5 + 10 * torch.rand(rest, generator=g, dtype=torch.float64)
    return TailedReals(means.to(dtype), scales.to(dtype), freedoms.to(dtype))


def parts(prediction, b):
    return stats.t(prediction.freedoms[:, b].numpy(), prediction.means[:, b].numpy(), prediction.scales[:, b].numpy())


@pytest.mark.parametrize("freedom", FREEDOMS)
def test_the_t_distribution_against_scipys(freedom):
    t = np.concatenate([-np.logspace(4, -8, 100), [0.0], np.logspace(-8, 4, 100)])
    nu = torch.tensor(freedom, dtype=torch.float64)
    reference = stats.t(freedom)
    ours = torch.from_numpy(t)
    assert np.allclose(t_distribution.log_density(ours, nu), reference.logpdf(t), rtol=1e-11, atol=1e-12)
    assert np.allclose(t_distribution.cdf(ours, nu), reference.cdf(t), rtol=1e-11, atol=0)
    assert np.allclose(t_distribution.cdf(ours.float(), nu.float()), reference.cdf(t), rtol=0, atol=1e-5)
    q = np.array([1e-9, 0.01, 0.3, 0.5, 0.7, 0.999])
    assert np.allclose(t_distribution.quantile(torch.from_numpy(q), nu), reference.ppf(q), rtol=1e-10, atol=1e-10)
    expected = integrate.quad(lambda u: reference.cdf(u) * reference.sf(u), -np.inf, np.inf, limit=400)[0]
    assert t_distribution.half_difference(nu).item() == pytest.approx(expected, rel=1e-6)


@given(CASES)
def test_variance_splits_by_the_law_of_total_variance(case):
    prediction = mixture(case)
    each = stats.t(prediction.freedoms.numpy(), prediction.means.numpy(), prediction.scales.numpy())
    assert np.allclose(prediction.mean, each.mean().mean(0))
    assert np.allclose(prediction.aleatoric, each.var().mean(0))
    assert np.allclose(prediction.epistemic, each.mean().var(0))
    if case[0] == 1:
        assert (prediction.epistemic == 0).all()


@given(CASES, st.floats(1e-6, 1 - 1e-6))
def test_quantile_undoes_cdf(case, q):
    prediction = mixture(case)
    assert torch.allclose(
        prediction.cdf(prediction.quantile(q)), torch.tensor(q, dtype=torch.float64), rtol=0, atol=1e-12
    )


@given(CASES, st.floats(-3, 3), st.floats(0.1, 10))
def test_change_of_units(case, loc, scale):
    prediction = mixture(case)
    y = prediction.sample(1, torch.Generator().manual_seed(0))[0]
    other, z = prediction.rescaled(loc, scale), loc + scale * y
    assert torch.allclose(other.cdf(z), prediction.cdf(y), atol=1e-10)
    assert torch.allclose(other.log_prob(z), prediction.log_prob(y) - math.log(scale), atol=1e-8)


def test_crps_is_in_units_of_y():
    prediction = mixture((3, 2, (2,), 5))
    y = torch.ones(2, 2, dtype=torch.float64)
    assert torch.allclose(prediction.rescaled(2.0, 3.0).crps(2 + 3 * y), 3 * prediction.crps(y), atol=1e-8)


def test_against_scipy():
    prediction = mixture((4, 3, (), 0))
    y = torch.tensor([0.4, -2.0, 30.0], dtype=torch.float64)
    for b in range(3):
        each = parts(prediction, b)
        assert prediction.log_prob(y)[b].item() == pytest.approx(math.log(each.pdf(y[b].item()).mean()))
        assert prediction.cdf(y)[b].item() == pytest.approx(each.cdf(y[b].item()).mean())
        assert prediction.cdf(0.5)[b].item() == pytest.approx(each.cdf(0.5).mean())


@pytest.mark.parametrize(("s", "tolerance"), [(1, 1e-7), (2, 1e-3), (5, 1e-3)])
def test_crps_is_the_integral(s, tolerance):
    prediction = mixture((s, 2, (), s))
    y = torch.tensor([0.7, -3.0], dtype=torch.float64)
    for b in range(2):
        each = parts(prediction, b)
        numerical = 0.0
        for ends, step in (((-np.inf, y[b].item()), 0.0), ((y[b].item(), np.inf), 1.0)):

            def squared(t, step=step, each=each):
                return (each.cdf(t).mean() - step) ** 2

            numerical += integrate.quad(squared, *ends, limit=800, epsabs=1e-10)[0]
        assert prediction.crps(y)[b].item() == pytest.approx(numerical, rel=tolerance)


@pytest.mark.parametrize("seed", range(3))
def test_samples_follow_the_mixture(seed):
    # Kolmogorov–Smirnov with p > 1e-5 for each of 3 examples: the test fails by chance once in 33 000.
    prediction = mixture((4, 3, (), 11))
    drawn = prediction.sample(5000, torch.Generator().manual_seed(seed))
    for b in range(3):
        each = parts(prediction, b)
        assert stats.kstest(drawn[:, b].numpy(), lambda t, each=each: each.cdf(t[:, None]).mean(1)).pvalue > 1e-5


def test_batches_join_and_errors_say_what_to_do():
    prediction = mixture((3, 4, (), 0))
    both = []
    for k in (slice(0, 1), slice(1, 4)):
        both.append(TailedReals(prediction.means[:, k], prediction.scales[:, k], prediction.freedoms[:, k]))
    assert torch.equal(TailedReals.cat(both).scales, prediction.scales)
    one = torch.ones(())
    cases = [
        (lambda: TailedReals(torch.zeros(2, 3), 0 * one, 3 * one), "scales must be above 0: got 0"),
        (lambda: TailedReals(torch.zeros(2, 3), one, 2 * one), "freedoms must be above 2: got 2"),
        (lambda: TailedReals(torch.zeros(2, 3), torch.ones(2), 3 * one), r"broadcast to means: got scales \[2\]"),
        (lambda: prediction.log_prob(torch.tensor([0.0, math.nan, 1.0, 1.0])), "must be finite: got nan at row 1"),
    ]
    for call, message in cases:
        with pytest.raises(ValueError, match=message):
            call()
