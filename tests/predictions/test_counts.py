"""Mixtures of Poisson and of negative binomial distributions."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from bayesrule.predictions import Counts

CASES = st.tuples(st.integers(1, 5), st.integers(1, 3), st.sampled_from([(), (2,)]), st.integers(0, 10_000))


def mixture(case):
    s, b, rest, seed = case
    g = torch.Generator().manual_seed(seed)
    return Counts(1 + 1.5 * torch.randn(s, b, *rest, generator=g, dtype=torch.float64))


@given(CASES)
def test_variance_splits(case):
    prediction = mixture(case)
    rates = prediction.log_rates.exp()
    assert torch.equal(prediction.aleatoric, prediction.mean)
    assert torch.equal(prediction.total, prediction.aleatoric + prediction.epistemic)
    assert torch.allclose(prediction.variance, (rates + rates.square()).mean(0) - prediction.mean.square())
    assert prediction.uncertainty.shape == (len(prediction),)
    if case[0] == 1:
        assert (prediction.epistemic == 0).all()


@given(CASES, st.floats(1e-6, 1 - 1e-6))
def test_quantile_is_the_least_count_that_reaches_the_level(case, q):
    prediction = mixture(case)
    k = prediction.quantile(q)
    assert torch.equal(k, k.round())
    assert (k >= 0).all()
    assert (prediction.cdf(k) >= q).all()
    assert (prediction.cdf(k - 1) < q).all()


def test_against_scipy():
    prediction = mixture((4, 3, (), 0))
    rates = prediction.log_rates.exp().numpy()
    y = torch.tensor([0, 3, 11])
    assert np.allclose(prediction.log_prob(y).exp(), stats.poisson.pmf(y.numpy(), rates).mean(0))
    assert np.allclose(prediction.cdf(y), stats.poisson.cdf(y.numpy(), rates).mean(0))
    assert np.allclose(prediction.cdf(2.5), stats.poisson.cdf(2, rates).mean(0))
    assert (prediction.cdf(-0.5) == 0).all()
    one = Counts(prediction.log_rates[:1])
    levels = torch.tensor([0.05, 0.5, 0.999])
    assert np.array_equal(one.quantile(levels), stats.poisson.ppf(levels.double().numpy()[:, None], rates[:1]))
    assert torch.equal(prediction.point, prediction.mean)


@pytest.mark.parametrize("rate", [1e-8, 1.0, 1e3, 1e9])
def test_quantiles_over_many_magnitudes(rate):
    prediction = Counts(torch.tensor([[rate]]).log())
    lower, upper = prediction.interval(0.95)
    exact = stats.poisson.ppf([0.025, 0.975], float(prediction.log_rates.double().exp()))
    assert lower.item() == pytest.approx(exact[0], rel=1e-6)
    assert upper.item() == pytest.approx(exact[1], rel=1e-6)


@pytest.mark.parametrize("seed", range(3))
def test_sample_moments(seed):
    # z of 3 means; beyond 4.5 has chance 2e-5 in all.
    prediction, n = mixture((3, 3, (), 4)), 20_000
    drawn = prediction.sample(n, torch.Generator().manual_seed(seed))
    assert drawn.shape == (n, 3)
    assert ((drawn.mean(0) - prediction.mean) / (prediction.variance / n).sqrt()).abs().max() < 4.5


def dispersed(case):
    prediction = mixture(case)
    g = torch.Generator().manual_seed(case[-1])
    return Counts(prediction.log_rates, 0.05 + torch.rand(prediction.log_rates.shape, generator=g, dtype=torch.float64))


def scipys(prediction):
    """The same distributions by scipy."""
    rates, r = prediction.log_rates.double().exp().numpy(), 1 / prediction.dispersions.double().numpy()
    return stats.nbinom(r, r / (r + rates))


@given(CASES)
def test_dispersed_counts_split_their_variance(case):
    prediction = dispersed(case)
    rates = prediction.log_rates.exp()
    assert torch.allclose(prediction.aleatoric, torch.from_numpy(scipys(prediction).var()).mean(0))
    assert torch.allclose(prediction.epistemic, rates.var(0, correction=0))
    assert torch.equal(prediction.total, prediction.aleatoric + prediction.epistemic)


@given(CASES, st.floats(1e-6, 1 - 1e-6))
def test_dispersed_quantile_is_the_least_count_that_reaches_the_level(case, q):
    prediction = dispersed(case)
    k = prediction.quantile(q)
    assert torch.equal(k, k.round())
    assert (prediction.cdf(k) >= q).all()
    assert (prediction.cdf(k - 1) < q).all()


def test_dispersed_counts_against_scipy():
    prediction = dispersed((4, 3, (), 0))
    y = torch.tensor([0, 3, 11])
    exact = scipys(prediction)
    assert np.allclose(prediction.log_prob(y).exp(), exact.pmf(y.numpy()).mean(0))
    assert np.allclose(prediction.cdf(y), exact.cdf(y.numpy()).mean(0))
    assert (prediction.cdf(-0.5) == 0).all()
    one = Counts(prediction.log_rates[:1], prediction.dispersions[:1])
    levels = torch.tensor([0.05, 0.5, 0.999])
    assert np.array_equal(one.quantile(levels), scipys(one).ppf(levels.double().numpy()[:, None]))


@pytest.mark.parametrize("rate", [1e-8, 1.0, 1e3, 1e9])
@pytest.mark.parametrize("dispersion", [1e-5, 1.0, 50.0])
def test_dispersed_counts_over_many_magnitudes(rate, dispersion):
    prediction = Counts(torch.tensor([[rate]]).log(), torch.tensor(dispersion))
    exact = scipys(prediction)
    lower, upper = prediction.interval(0.95)
    assert lower.item() == pytest.approx(exact.ppf(0.025).item(), rel=1e-6)
    assert upper.item() == pytest.approx(exact.ppf(0.975).item(), rel=1e-6)
    y = prediction.mean.round()
    assert prediction.log_prob(y).item() == pytest.approx(exact.logpmf(y.numpy()).item(), rel=1e-4, abs=1e-6)


def test_hardly_dispersed_counts_are_poissons():
    log_rates, y = torch.randn(3, 5, dtype=torch.float64), torch.arange(5)
    almost = Counts(log_rates, torch.tensor(1e-6))
    assert torch.allclose(almost.log_prob(y), Counts(log_rates).log_prob(y), atol=1e-4)


@pytest.mark.parametrize("seed", range(3))
def test_dispersed_sample_moments(seed):
    # z of 3 means; beyond 4.5 has chance 2e-5 in all.
    prediction, n = dispersed((3, 3, (), 4)), 20_000
    drawn = prediction.sample(n, torch.Generator().manual_seed(seed))
    assert ((drawn.mean(0) - prediction.mean) / (prediction.variance / n).sqrt()).abs().max() < 4.5
    assert torch.allclose(drawn.var(0), prediction.variance, rtol=0.15)


def test_errors_say_what_to_do():
    with pytest.raises(ValueError, match="dispersions must be positive: got 0; None is Poisson's"):
        Counts(torch.zeros(1, 3), torch.zeros(3))
    with pytest.raises(ValueError, match=r"dispersions must broadcast to log_rates: got shapes \[2\] and \[1, 3\]"):
        Counts(torch.zeros(1, 3), torch.ones(2))
    prediction = Counts(torch.zeros(1, 3))
    for bad, got in ((-1.0, "-1"), (0.5, "0.5"), (math.nan, "nan"), (math.inf, "inf")):
        with pytest.raises(ValueError, match=f"counts must be whole numbers from 0 up: got {got} at row 2; for real"):
            prediction.log_prob(torch.tensor([0.0, 1.0, bad]))
    with pytest.raises(ValueError, match="log_rates must be a floating-point tensor"):
        Counts(torch.zeros(3))
    with pytest.raises(ValueError, match="q must be between 0 and 1"):
        prediction.quantile(0.0)
