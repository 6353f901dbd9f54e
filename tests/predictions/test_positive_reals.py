"""Mixtures of log-normal distributions."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy import integrate, stats

from bayesrule.predictions import PositiveReals

CASES = st.tuples(st.integers(1, 6), st.integers(1, 3), st.sampled_from([(), (2,)]), st.integers(0, 10_000))


def mixture(case, dtype=torch.float64):
    s, b, rest, seed = case
    g = torch.Generator().manual_seed(seed)
    means = 2 * torch.randn(s, b, *rest, generator=g, dtype=torch.float64)
    stds = 0.2 + torch.rand(s, b, *rest, generator=g, dtype=torch.float64)
    return PositiveReals(means.to(dtype), stds.to(dtype))


@given(CASES)
def test_variance_splits_by_the_law_of_total_variance(case):
    prediction = mixture(case)
    each = stats.lognorm(prediction.stds.numpy(), scale=prediction.means.exp().numpy())
    assert np.allclose(prediction.mean, each.mean().mean(0))
    assert np.allclose(prediction.aleatoric, each.var().mean(0))
    assert np.allclose(prediction.epistemic, each.mean().var(0))
    assert torch.equal(prediction.total, prediction.aleatoric + prediction.epistemic)
    if case[0] == 1:
        assert (prediction.epistemic == 0).all()


@given(CASES, st.floats(1e-6, 1 - 1e-6))
def test_quantile_undoes_cdf_and_is_positive(case, q):
    prediction = mixture(case)
    found = prediction.quantile(q)
    assert (found > 0).all()
    assert torch.allclose(prediction.cdf(found), torch.tensor(q, dtype=torch.float64), rtol=0, atol=1e-12)


def test_against_torch_distributions():
    prediction = mixture((4, 3, (2,), 0))
    reference = torch.distributions.MixtureSameFamily(
        torch.distributions.Categorical(torch.ones(3, 2, 4, dtype=torch.float64)),
        torch.distributions.LogNormal(prediction.means.movedim(0, -1), prediction.stds.movedim(0, -1)),
    )
    y = torch.randn(3, 2, dtype=torch.float64, generator=torch.Generator().manual_seed(0)).exp()
    assert torch.allclose(prediction.log_prob(y), reference.log_prob(y))
    assert torch.allclose(prediction.cdf(y), reference.cdf(y))
    assert torch.allclose(prediction.cdf(0.5), reference.cdf(torch.tensor(0.5).double()))
    assert torch.allclose(prediction.mean, reference.mean)
    assert torch.allclose(prediction.variance, reference.variance)
    assert (prediction.cdf(-1.0) == 0).all()
    assert (prediction.cdf(0.0) == 0).all()


@pytest.mark.parametrize("s", [1, 2, 5])
def test_crps_is_the_integral(s):
    prediction = mixture((s, 2, (), s))
    y = torch.tensor([0.7, 3.0], dtype=torch.float64)
    for b in range(2):
        each = stats.lognorm(prediction.stds[:, b].numpy(), scale=prediction.means[:, b].exp().numpy())

        def squared(u, step, each=each):  # over u = log t, where the integrand is smooth
            return (each.cdf(math.exp(u)).mean() - step) ** 2 * math.exp(u)

        split = math.log(y[b])
        numerical = sum(
            integrate.quad(squared, *ends, args=(step,), limit=400, epsabs=1e-11)[0]
            for ends, step in (((-30, split), 0.0), ((split, 20), 1.0))
        )
        assert prediction.crps(y)[b].item() == pytest.approx(numerical, rel=1e-7)


@pytest.mark.parametrize("seed", range(3))
def test_samples_follow_the_mixture(seed):
    # Kolmogorov–Smirnov with p > 1e-5 for each of 3 examples: the test fails by chance once in 33 000.
    prediction = mixture((4, 3, (), 11))
    drawn = prediction.sample(5000, torch.Generator().manual_seed(seed))
    for b in range(3):
        each = stats.lognorm(prediction.stds[:, b].numpy(), scale=prediction.means[:, b].exp().numpy())
        assert stats.kstest(drawn[:, b].numpy(), lambda t, each=each: each.cdf(t[:, None]).mean(1)).pvalue > 1e-5


def test_batches_join_and_errors_say_what_to_do():
    prediction = mixture((3, 4, (), 0))
    parts = [PositiveReals(prediction.means[:, k], prediction.stds[:, k]) for k in (slice(0, 1), slice(1, 4))]
    assert torch.equal(PositiveReals.cat(parts).quantile(0.2), prediction.quantile(0.2))
    with pytest.raises(ValueError, match=r"log-normal targets must be positive: got -1 at row 2; .*'gaussian'"):
        prediction.log_prob(torch.tensor([1.0, 1.0, -1.0, 1.0]))
    with pytest.raises(ValueError, match="stds must be positive: got 0"):
        PositiveReals(torch.zeros(2, 3), torch.zeros(()))
    with pytest.raises(TypeError, match="PositiveReals has no units to rescale"):
        prediction.rescaled(1.0, 2.0)
