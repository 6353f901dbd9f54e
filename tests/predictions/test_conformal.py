"""Conformal thresholds against enumeration, and what holds for every prediction."""

import itertools
import math
from fractions import Fraction

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from bayesrule.predictions import (
    Binary,
    Classes,
    Counts,
    PositiveReals,
    Reals,
    TailedReals,
    calibrate,
    class_scores,
    conformity,
    needed,
    threshold,
)

LEVELS = st.integers(1, 99).map(lambda percent: percent / 100)


def draw(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def numbers(n, seed=0):
    """A prediction of each kind of numbers for n examples by three networks, and targets with tails of their own."""
    means, noise = draw(3, n, seed=seed), draw(n, seed=seed + 1) * 3
    stds = 0.5 + draw(3, n, seed=seed + 2).abs()
    rates = means.exp()
    return {
        "reals": (Reals(means, stds), noise),
        "tailed reals": (TailedReals(means, stds, torch.tensor(4.0)), noise),
        "positive reals": (PositiveReals(means, stds), noise.exp()),
        "counts": (Counts(means), torch.poisson(rates[0] * noise.abs(), torch.Generator().manual_seed(seed))),
        "dispersed counts": (Counts(means, torch.tensor(0.5)), torch.poisson(rates[0], torch.Generator())),
    }


@pytest.mark.parametrize("level", [0.5, 0.7, 0.8])
@pytest.mark.parametrize("n", [4, 5, 6])
def test_coverage_is_exact_over_all_orders(n, level):
    """Of n + 1 exchangeable scores each is the new one as often: covered are ⌈(n + 1) level⌉ of n + 1."""
    covered = total = 0
    for order in itertools.permutations(range(n + 1)):
        scores = torch.tensor(order, dtype=torch.float64)
        covered += bool(scores[-1] <= threshold(scores[:-1], level))
        total += 1
    share = math.ceil((n + 1) * Fraction(str(level)))
    assert Fraction(covered, total) == Fraction(share, n + 1)
    assert level <= covered / total < level + 1 / (n + 1)


def test_equal_scores_are_covered_more_often_and_never_less():
    for values in itertools.product(range(3), repeat=5):
        covered = 0
        for new in range(5):
            rest = torch.tensor([v for place, v in enumerate(values) if place != new], dtype=torch.float64)
            covered += values[new] <= float(threshold(rest, 0.7))
        assert covered / 5 >= 0.7


@given(LEVELS)
def test_the_number_needed_is_the_least_that_works(level):
    n = needed(level)
    threshold(torch.arange(float(n)), level)
    with pytest.raises(ValueError, match=rf"held must have at least {n} examples for level={level:g}: got {n - 1}"):
        threshold(torch.arange(float(n - 1)), level)


def test_a_level_counts_as_it_was_typed():
    assert threshold(torch.arange(1.0, 100.0), 0.07) == 7  # in floats 0.07 · 100 is above 7


@given(st.lists(st.floats(-5, 5), min_size=9, max_size=30), st.randoms(use_true_random=False))
def test_thresholds_do_not_know_the_order_and_grow_with_the_level(scores, random):
    values, shuffled = torch.tensor(scores), scores[:]
    random.shuffle(shuffled)
    found = [threshold(values, level) for level in (0.5, 0.75, 0.9)]
    assert found == sorted(found)
    assert threshold(torch.tensor(shuffled), 0.75) == found[1]


@given(st.integers(0, 10_000), LEVELS.filter(lambda level: level <= 0.9))
def test_sets_are_nested_hold_the_best_class_and_are_those_of_the_posterior(seed, level):
    prediction, y = Classes(draw(3, 30, 4, seed=seed)), torch.arange(30) % 4
    smaller, larger = calibrate(prediction, y, level), calibrate(prediction, y, 0.95)
    sets = smaller.sets(prediction)
    assert bool((sets <= larger.sets(prediction)).all())
    assert bool(sets.gather(1, prediction.label[:, None]).all())
    calibrated = float(smaller.thresholds) + 1e-12
    assert torch.equal(sets, prediction.prediction_set(min(1.0, calibrated)))


@given(st.integers(0, 10_000), st.randoms(use_true_random=False))
def test_calibration_does_not_know_the_order_of_examples(seed, random):
    for kind in ("reals", "counts"):
        prediction, y = numbers(40, seed)[kind]
        order = torch.tensor(random.sample(range(40), 40))
        groups = [place % 3 for place in range(40)]
        one = calibrate(prediction, y, 0.8, groups=groups)
        other = calibrate(prediction[order], y[order], 0.8, groups=[groups[place] for place in order])
        assert torch.allclose(one.thresholds, other.thresholds, rtol=1e-6)
        assert (one.rows, one.groups) == (other.rows, other.groups) == ((14, 13, 13), (0, 1, 2))


TAILED = pytest.param("tailed reals", 0.8, marks=pytest.mark.slow)  # whose quantiles take seconds
PLAIN = [(kind, level) for kind in numbers(1) for level in (0.3, 0.8, 0.95) if kind != "tailed reals"]


@pytest.mark.parametrize(("kind", "level"), [*PLAIN, TAILED])
def test_a_number_is_in_its_interval_if_its_score_is_below_the_threshold(kind, level):
    prediction, y = numbers(60)[kind]
    promise = calibrate(prediction, y, level)
    low, high = promise.intervals(prediction)
    inside = (low - 1e-9 <= y) & (y <= high + 1e-9)
    scores = conformity(prediction, y, level)
    assert bool((inside >= (scores <= promise.thresholds)).all())
    clear = (scores - promise.thresholds).abs() > 1e-6
    if level > 0.5:  # a negative threshold may leave the middle alone
        assert torch.equal(inside[clear], (scores <= promise.thresholds)[clear])
    assert float(inside.double().mean()) >= level - 0.02
    assert bool((low <= high).all())
    if "counts" in kind:
        assert torch.equal(low, low.round())
        assert torch.equal(high, high.round())
        assert bool((low >= 0).all())
    if kind == "positive reals":
        assert bool((low > 0).all())


def test_a_normal_predictions_score_is_its_normalised_residual():
    means, stds, y = draw(1, 50), 0.1 + draw(50, seed=1).abs(), 3 * draw(50, seed=2)
    promise = calibrate(Reals(means, stds), y, 0.9)
    residual = ((y - means[0]) / stds).abs().sort().values[46 - 1]  # ⌈51 · 0.9⌉ = 46
    low, high = promise.intervals(Reals(means, stds))
    assert torch.allclose(low, means[0] - residual * stds)
    assert torch.allclose(high, means[0] + residual * stds)


def test_a_target_far_out_leaves_the_interval_finite():
    """A distribution function is 1 from nine deviations on, where a score by it could not go on."""
    promise = calibrate(Reals(torch.zeros(1, 20), torch.ones(())), torch.full((20,), 1e4), 0.9)
    assert promise.intervals(Reals(torch.zeros(1, 1), torch.ones(())))[1].item() == pytest.approx(1e4)


def test_every_target_of_an_example_has_a_threshold_of_its_own():
    y = torch.stack([draw(40), 10 * draw(40, seed=1)], 1)
    promise = calibrate(Reals(torch.zeros(1, 40, 2).double(), torch.ones(())), y, 0.8)
    assert promise.thresholds.shape == (1, 2)
    for place in (0, 1):
        alone = calibrate(Reals(torch.zeros(1, 40).double(), torch.ones(())), y[:, place], 0.8)
        assert promise.thresholds[0, place] == alone.thresholds[0]
    pixels = Classes(draw(2, 30, 3, 4, 5))
    assert calibrate(pixels, torch.zeros(30, 4, 5).long(), 0.8).sets(pixels).shape == (30, 3, 4, 5)


def test_yes_and_no_are_two_classes():
    logits, y = draw(3, 50), torch.arange(50) % 2
    sets = calibrate(Binary(logits), y, 0.9).sets(Binary(logits))
    both = Classes(torch.stack([torch.zeros_like(logits), logits], 2))
    assert torch.equal(sets, calibrate(both, y, 0.9).sets(both))


def test_randomised_sets_repeat_and_may_be_empty():
    sure, y = Classes(torch.tensor([9.0, 0.0]).expand(1, 200, 2)), torch.zeros(200).long()
    promise = calibrate(sure, y, 0.8, score="randomised-aps")
    sets = promise.sets(sure)
    assert torch.equal(sets, promise.sets(sure))
    assert 0.65 < float(sets[:, 0].double().mean()) < 0.95  # 0.8 ± 5 standard errors, where plain sets hold all
    assert bool(calibrate(sure, y, 0.8).sets(sure)[:, 0].all())
    scores = class_scores(sure, "randomised-aps", seed=3)
    assert bool(((scores[:, 0] >= 0) & (scores[:, 0] <= 1)).all())
    assert not torch.equal(scores, class_scores(sure, "randomised-aps", seed=4))


PREDICTION, Y = Reals(torch.zeros(1, 40), torch.ones(())), torch.zeros(40)
GROUPS = ["a"] * 20 + ["b"] * 20


@pytest.mark.parametrize(
    ("call", "error", "words"),
    [
        (lambda: calibrate(PREDICTION, Y, 1.0), ValueError, "level must be between 0 and 1, both excluded: got 1"),
        (lambda: calibrate(PREDICTION, Y, 0), ValueError, "level must be between 0 and 1, both excluded: got 0"),
        (lambda: calibrate(PREDICTION, Y, 0.99), ValueError, "at least 99 examples for level=0.99: got 40; hold out"),
        (lambda: calibrate(PREDICTION, Y, 0.96, GROUPS), ValueError, "group 'a': held must have at least 24 examples"),
        (lambda: calibrate(PREDICTION, Y, 0.9, ["a"]), ValueError, "group of each of the 40 examples, got 1 names"),
        (lambda: calibrate(PREDICTION, Y, 0.9, [0.5] * 40), TypeError, "whole numbers or booleans: got 0.5 in row 0"),
        (
            lambda: calibrate(PREDICTION, Y).sets(PREDICTION),
            TypeError,
            "sets are of classes, and this is about numbers",
        ),
        (
            lambda: calibrate(Binary(torch.zeros(1, 40)), Y).intervals(PREDICTION),
            TypeError,
            "intervals are of numbers",
        ),
        (
            lambda: calibrate(Binary(torch.zeros(1, 40)), Y, score="lac"),
            ValueError,
            "unknown score 'lac'",
        ),
        (
            lambda: calibrate(PREDICTION, Y, 0.9, GROUPS).intervals(PREDICTION, ["a"] * 39 + ["c"]),
            ValueError,
            r"group 'c' has no examples in the calibration set.*the groups are 'a', 'b'; hold out some of it",
        ),
        (
            lambda: calibrate(PREDICTION, Y, 0.9, GROUPS).intervals(PREDICTION),
            ValueError,
            "groups must name the group of each example, as in calibration: 'a', 'b'",
        ),
        (lambda: calibrate(PREDICTION, Y).intervals(PREDICTION, GROUPS), ValueError, "groups must be left out"),
    ],
)
def test_errors_say_what_is_wrong(call, error, words):
    with pytest.raises(error, match=words):
        call()


def test_promises_in_words():
    assert calibrate(PREDICTION, Y).says == "90 % of intervals hold the truth, as calibrated on 40 rows"
    said = calibrate(PREDICTION, Y, 0.9, ["a"] * 15 + ["b"] * 25).says
    assert said == "90 % of intervals hold the truth in each of 2 groups, as calibrated on 15 to 25 rows of each"
    assert calibrate(Binary(torch.zeros(1, 40)), Y).says.startswith("90 % of sets hold the truth")
