"""Schedules against torch's, and the robust region against eigenvalues."""

import math

import numpy as np
import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st

from bayesrule import naming
from bayesrule.optim import (
    SCHEDULES,
    Constant,
    Cosine,
    Cyclic,
    Plateau,
    Ramp,
    Schedule,
    WarmUp,
    robust_region,
    schedule,
)

shares = st.floats(0, 1)


def optimizer(lr=1.0):
    return torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=lr)


@given(shares)
def test_constant(done):
    assert Constant()(done) == 1.0


@given(shares)
def test_cosine_is_a_rise_times_half_a_cosine(done):
    """To the bit: fits of earlier versions repeat."""
    assert Cosine()(done) == min(done / 0.1, 1.0) * (0.5 * (1 + math.cos(math.pi * min(done, 1.0))))


def test_cosine_without_a_rise_is_torchs():
    sgd = optimizer()
    torchs = torch.optim.lr_scheduler.CosineAnnealingLR(sgd, T_max=50)
    for step in range(50):
        assert Cosine(warm_up=0.0)(step / 50) == pytest.approx(sgd.param_groups[0]["lr"], abs=1e-12)
        sgd.step()
        torchs.step()


@given(shares, st.floats(0.01, 1))
def test_warm_up_rises_in_a_line_and_stays(done, share):
    assert WarmUp(share)(done) == pytest.approx(done / share if done < share else 1.0)
    assert WarmUp(0.0)(done) == 1.0


@given(st.integers(1, 6), st.integers(1, 9), shares)
def test_cyclic_is_torchs_triangle(cycles, half, low):
    sgd = optimizer()
    torchs = torch.optim.lr_scheduler.CyclicLR(sgd, low, 1.0, step_size_up=half, cycle_momentum=False)
    steps = 2 * half * cycles
    for step in range(steps):
        assert Cyclic(cycles, low)(step / steps) == pytest.approx(sgd.param_groups[0]["lr"], abs=1e-9)
        sgd.step()
        torchs.step()


metrics = st.lists(
    st.one_of(st.floats(0, 3), st.sampled_from([0.0, 1.0, 0.9999, 0.5, math.inf, math.nan])), max_size=40
)


@given(metrics, st.integers(0, 4), st.floats(0.1, 0.9), st.sampled_from([0.0, 1e-4, 0.1, 0.5]))
def test_plateau_is_torchs(values, patience, factor, threshold):
    sgd = optimizer()
    torchs = torch.optim.lr_scheduler.ReduceLROnPlateau(
        sgd, factor=factor, patience=patience, threshold=threshold, eps=0.0
    )
    mine, history = Plateau("nll", patience, factor, threshold), []
    for value in values:
        torchs.step(value)
        history.append({"nll": value, "penalty": 1.0})
        assert mine(0.5, history) == pytest.approx(sgd.param_groups[0]["lr"], rel=1e-12)


def test_plateau_of_a_negative_metric():
    """torch would call standing still an improvement here; a likelihood of real targets has a negative NLL often."""
    still = [{"nll": -1.0}] * 4
    better = [{"nll": -1.0 - 0.01 * epoch} for epoch in range(4)]
    worse = [{"nll": -1.0 + 5e-5 * epoch} for epoch in range(4)]
    assert [Plateau("nll")(0.5, history) for history in (still, better, worse)] == [0.1, 1.0, 0.1]


def test_plateau_begins_at_one():
    assert Plateau()(0.0) == 1.0


def test_plateau_looks_at_its_metric():
    history = [{"loss": 1.0, "nll": 1.0 / (epoch + 1)} for epoch in range(9)]
    assert Plateau("nll")(0.5, history) == 1.0
    assert Plateau("loss")(0.5, history) == pytest.approx(1e-4)


@given(st.floats(-8, -0.1), shares)
def test_ramp_is_a_line_in_the_logarithm(exponent, done):
    assert math.log10(Ramp(10**exponent)(done)) == pytest.approx(exponent * (1 - done), abs=1e-9)


@given(st.sampled_from(sorted(SCHEDULES)), shares)
def test_every_schedule_is_a_factor_of_at_most_one(name, done):
    assert 0 <= schedule(name)(done) <= 1


@pytest.mark.parametrize("name", sorted(SCHEDULES))
def test_by_name_and_as_plain_data(name):
    kind = schedule(name)
    assert isinstance(kind, Schedule)
    assert schedule(kind) is kind
    assert naming.from_spec("schedule", naming.to_spec(kind), SCHEDULES) == kind


# --- the robust region ---


def radius(rate, momentum, curvature):
    """The spectral radius of w_{t+1} = w_t − αh w_t + μ(w_t − w_{t−1})."""
    return np.abs(np.linalg.eigvals([[1 - rate * curvature + momentum, -momentum], [1, 0]])).max()


@given(st.floats(1e-4, 0.99), st.floats(1e-3, 1e3), st.floats(0.001, 0.999), st.floats(1e-3, 3))
def test_momentum_sets_the_pace_within_the_region_and_only_there(momentum, curvature, within, beyond):
    low, high = robust_region(momentum, curvature)
    inside = low + within * (high - low)
    assert radius(inside, momentum, curvature) == pytest.approx(math.sqrt(momentum), rel=1e-9)
    assert radius(high * (1 + beyond), momentum, curvature) > math.sqrt(momentum) * (1 + 1e-9)
    assume(low * curvature > 1e-3)  # else below the region and inside it look alike
    assert radius(low / (1 + beyond), momentum, curvature) > math.sqrt(momentum) * (1 + 1e-9)


def test_without_momentum_the_region_is_newtons_step():
    assert robust_region(0.0, 4.0) == (0.25, 0.25)
    assert radius(0.25, 0.0, 4.0) == 0


# --- errors ---


@pytest.mark.parametrize(
    ("make", "match"),
    [
        (lambda: schedule("cosin"), "unknown schedule 'cosin': did you mean 'cosine'"),
        (lambda: Constant()(1.5), "done must be the share of all steps done, from 0 to 1, not 1.5"),
        (lambda: Cosine()(-0.1), "not -0.1"),
        (lambda: Cosine()(math.nan), "not nan"),
        (lambda: Cosine(warm_up=2.0), "warm_up must be from 0 to 1, not 2.0"),
        (lambda: WarmUp(share=-0.1), "share must be from 0 to 1, not -0.1"),
        (lambda: Cyclic(cycles=0), "cycles must be a whole number of at least 1, not 0"),
        (lambda: Cyclic(cycles=2.5), "not 2.5"),
        (lambda: Cyclic(low=1.5), "low must be from 0 to 1, not 1.5"),
        (lambda: Plateau(patience=-1), "patience must be a whole number of at least 0, not -1"),
        (lambda: Plateau(factor=1.0), "factor must be between 0 and 1, not 1.0"),
        (lambda: Plateau(threshold=math.nan), "threshold must be"),
        (lambda: Plateau("los")(0.5, [{"loss": 1.0, "nll": 1.0}]), "logs of epoch 0 'los': did you mean 'loss'"),
        (lambda: Ramp(low=0.0), "low must be between 0 and 1, not 0.0"),
        (lambda: robust_region(1.0, 1.0), "momentum must be at least 0 and less than 1, not 1.0"),
        (lambda: robust_region(0.5, 0.0), "curvature must be positive and finite, not 0.0"),
        (lambda: robust_region(0.5, math.inf), "curvature must be positive and finite, not inf"),
    ],
)
def test_errors_teach(make, match):
    with pytest.raises(ValueError, match=match):
        make()


def test_other_things_are_refused():
    with pytest.raises(TypeError, match="schedule must be a name or a schedule object, not float"):
        schedule(0.5)
