"""Mixtures of normal distributions."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy import integrate, stats

from bayesrule import predictions
from bayesrule.predictions import Reals

CASES = st.tuples(st.integers(1, 6), st.integers(1, 3), st.sampled_from([(), (2,)]), st.integers(0, 10_000))


def mixture(case, dtype=torch.float64):
    s, b, rest, seed = case
    g = torch.Generator().manual_seed(seed)
    means = 5 * torch.randn(s, b, *rest, generator=g, dtype=torch.float64)
    stds = torch.randn(s, b, *rest, generator=g, dtype=torch.float64).exp()
    return Reals(means.to(dtype), stds.to(dtype))


@given(CASES)
def test_variance_splits(case):
    prediction = mixture(case)
    assert (prediction.epistemic >= 0).all()
    assert torch.equal(prediction.total, prediction.aleatoric + prediction.epistemic)
    second = (prediction.means.square() + prediction.stds.square()).mean(0)
    assert torch.allclose(prediction.variance, second - prediction.mean.square())
    assert torch.allclose(prediction.std.square(), prediction.variance)
    assert prediction.uncertainty.shape == (len(prediction),)
    if case[0] == 1:
        assert (prediction.epistemic == 0).all()


@given(CASES, st.floats(1e-6, 1 - 1e-6))
def test_quantile_undoes_cdf(case, q):
    prediction = mixture(case)
    assert torch.allclose(
        prediction.cdf(prediction.quantile(q)), torch.tensor(q, dtype=torch.float64), rtol=0, atol=1e-13
    )


@given(CASES, st.floats(0.01, 0.98))
def test_intervals_are_ordered_nested_and_hold_their_level(case, level):
    prediction = mixture(case)
    lower, upper = prediction.interval(level)
    wider = prediction.interval(level + 0.01)
    assert (wider[0] < lower).all()
    assert (lower < upper).all()
    assert (upper < wider[1]).all()
    held = prediction.cdf(upper) - prediction.cdf(lower)
    assert torch.allclose(held, torch.full_like(held, level), atol=1e-12)


@given(CASES, st.floats(-3, 3), st.floats(0.1, 10))
def test_change_of_units(case, loc, scale):
    prediction = mixture(case)
    y = prediction.sample(1, torch.Generator().manual_seed(0))[0]
    other, z = prediction.rescaled(loc, scale), loc + scale * y
    assert torch.allclose(other.cdf(z), prediction.cdf(y), atol=1e-10)
    assert torch.allclose(other.log_prob(z), prediction.log_prob(y) - math.log(scale), atol=1e-8)
    assert torch.allclose(other.crps(z), scale * prediction.crps(y), atol=1e-8)
    assert torch.allclose(other.epistemic, scale**2 * prediction.epistemic, atol=1e-8)


@given(CASES)
def test_order_of_networks_and_of_examples_does_not_matter(case):
    prediction = mixture(case)
    y = torch.zeros(prediction.shape, dtype=torch.float64)
    swapped = Reals(prediction.means.flip(0), prediction.stds.flip(0))
    moved = Reals(prediction.means.flip(1), prediction.stds.flip(1))
    for name in ("log_prob", "cdf", "crps"):
        value = getattr(prediction, name)(y)
        assert torch.allclose(value, getattr(swapped, name)(y), atol=1e-12)
        assert torch.allclose(value.flip(0), getattr(moved, name)(y), atol=1e-12)
    assert torch.allclose(prediction.quantile(0.3), swapped.quantile(0.3))


def test_against_torch_distributions():
    prediction = mixture((4, 3, (2,), 0))
    reference = torch.distributions.MixtureSameFamily(
        torch.distributions.Categorical(torch.ones(3, 2, 4, dtype=torch.float64)),
        torch.distributions.Normal(prediction.means.movedim(0, -1), prediction.stds.movedim(0, -1)),
    )
    y = torch.randn(3, 2, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    assert torch.allclose(prediction.log_prob(y), reference.log_prob(y))
    assert torch.allclose(prediction.cdf(y), reference.cdf(y))
    assert torch.allclose(prediction.mean, reference.mean)
    assert torch.equal(prediction.point, prediction.mean)
    assert torch.allclose(prediction.variance, reference.variance)
    assert torch.allclose(prediction.cdf(0.5), prediction.cdf(torch.full((3, 2), 0.5)))


def test_one_network_has_normal_quantiles():
    levels = torch.tensor([0.001, 0.025, 0.5, 0.9], dtype=torch.float64)
    prediction = Reals(torch.tensor([[1.0, -2.0]], dtype=torch.float64), torch.tensor([0.5, 3.0]))
    expected = stats.norm.ppf(levels.numpy()[:, None], [1.0, -2.0], [0.5, 3.0])
    assert np.allclose(prediction.quantile(levels), expected, rtol=1e-14)


def test_median_of_a_symmetric_mixture_is_its_centre():
    prediction = Reals(torch.tensor([[-1.0], [1.0]], dtype=torch.float64), torch.tensor(0.3))
    assert prediction.quantile(0.5).abs().item() < 1e-13  # rounding of the cdf over the density there


def test_float32_quantiles_are_good_to_its_precision():
    single, double = mixture((5, 3, (), 7), torch.float32), mixture((5, 3, (), 7))
    assert single.quantile(0.9).dtype == torch.float32
    assert torch.allclose(single.quantile(0.9).double(), double.quantile(0.9), rtol=1e-5)


@pytest.mark.parametrize("s", [1, 2, 5])
def test_crps_is_the_integral(s):
    prediction = mixture((s, 2, (), s))
    y = torch.tensor([0.7, -3.0], dtype=torch.float64)
    for b in range(2):
        means, stds = prediction.means[:, b].numpy(), prediction.stds[:, b].numpy()

        def squared(t, step, means=means, stds=stds):
            return (stats.norm.cdf(t, means, stds).mean() - step) ** 2

        low, high = means.min() - 12 * stds.max(), means.max() + 12 * stds.max()
        numerical = sum(
            integrate.quad(squared, *ends, args=(step,), limit=400, epsabs=1e-11)[0]
            for ends, step in (((low, y[b].item()), 0.0), ((y[b].item(), high), 1.0))
        )
        assert prediction.crps(y)[b].item() == pytest.approx(numerical, abs=1e-8)


@pytest.mark.parametrize("seed", range(3))
def test_samples_follow_the_mixture(seed):
    # Kolmogorov–Smirnov with p > 1e-5 for each of 3 examples: the test fails by chance once in 33 000.
    prediction = mixture((4, 3, (), 11))
    drawn = prediction.sample(5000, torch.Generator().manual_seed(seed))
    for b in range(3):
        means, stds = prediction.means[:, b].numpy(), prediction.stds[:, b].numpy()
        p = stats.kstest(
            drawn[:, b].numpy(), lambda t, m=means, s=stds: stats.norm.cdf(t[:, None], m, s).mean(1)
        ).pvalue
        assert p > 1e-5


def test_stds_broadcast_and_batches_join():
    means = torch.randn(3, 4, 2, generator=torch.Generator().manual_seed(0))
    prediction = Reals(means, torch.tensor([0.5, 2.0]))
    joined = Reals.cat([Reals(means[:, :1], prediction.stds[:, :1]), Reals(means[:, 1:], prediction.stds[:, 1:])])
    assert torch.equal(joined.stds, prediction.stds)
    assert torch.equal(joined.means, means)
    assert torch.equal(prediction.aleatoric, torch.tensor([[0.25, 4.0]]).expand(4, 2))


def test_units_given_in_double_keep_the_dtype():
    prediction = Reals(torch.zeros(2, 3, 1), torch.ones(())).rescaled(torch.ones(1).double(), torch.ones(1).double())
    assert prediction.means.dtype == prediction.stds.dtype == torch.float32


def test_a_column_of_targets_is_taken_and_a_silent_broadcast_is_not():
    prediction = Reals(torch.zeros(2, 3), torch.ones(()))
    assert prediction.log_prob(torch.zeros(3, 1)).shape == (3,)
    with pytest.raises(ValueError, match=r"real targets must have shape \[3\].*got \[1, 3\]; reshape"):
        prediction.log_prob(torch.zeros(1, 3))


def test_errors_say_what_to_do():
    prediction = Reals(torch.zeros(2, 3), torch.ones(()))
    cases = [
        (lambda: Reals(torch.zeros(3), torch.ones(())), r"means must be a floating-point tensor \[S, B, ...\]"),
        (lambda: Reals(torch.zeros(2, 3), torch.zeros(3)), "stds must be positive: got 0; floor"),
        (lambda: Reals(torch.zeros(2, 3), torch.tensor(math.nan)), "stds must be positive: got nan"),
        (lambda: Reals(torch.zeros(2, 3), torch.ones(2)), r"broadcast to means: got stds \[2\] and means \[2, 3\]"),
        (lambda: prediction.quantile(1.0), "q must be between 0 and 1, both excluded: got 1"),
        (lambda: prediction.quantile(torch.tensor([0.5, 0.0])), "q must be between 0 and 1"),
        (lambda: prediction.interval(90), "level must be between 0 and 1, both excluded: got 90; 90 % is level=0.9"),
        (lambda: prediction.log_prob(torch.tensor([0.0, math.nan, 1.0])), "must be finite: got nan at row 1; drop"),
    ]
    for call, message in cases:
        with pytest.raises(ValueError, match=message):
            call()


@pytest.mark.parametrize(
    "prediction",
    [
        Reals(torch.zeros(2, 3), torch.tensor(1.0)),
        predictions.Counts(torch.zeros(2, 3)),
        predictions.Binary(torch.zeros(2, 3)),
        predictions.Classes(torch.zeros(2, 3, 2)),
    ],
    ids=lambda prediction: type(prediction).__name__,
)
def test_complex_targets_are_refused(prediction):
    """Their imaginary part went into the density."""
    with pytest.raises(TypeError, match=r"got torch\.complex64"):
        prediction.log_prob(torch.zeros(3, dtype=torch.complex64))
