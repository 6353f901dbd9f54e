"""The watch over a stream: its p-values, its false alarms, its delays, and that it can be cut, saved and resumed."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

import bayesrule as br
from bayesrule.files import FileError
from bayesrule.lifelong import load_watch, watch
from bayesrule.lifelong.martingale import BLOCK, SIDE, Martingale, least_reference, log_bets
from bayesrule.methods import Laplace

ERROR = 1e-4
"""The probability that a statistical test here fails although all is right, over seeds."""


def start(seed, size=100, level=0.01, round_to=None):
    return Martingale.start(draws(seed, size, round_to), level, seed)


def draws(seed, size, round_to=None):
    found = np.random.default_rng([seed, size]).normal(size=size)
    return found if round_to is None else found.round(round_to)


def p_values(martingale, scores):
    found = []
    for part in np.split(scores, range(BLOCK, len(scores), BLOCK)):
        found.append(martingale.p_values(part))
        martingale = martingale.after(part)
    return np.concatenate(found)


# The law of the p-values


@pytest.mark.parametrize("round_to", [None, 0], ids=["no ties", "ties"])
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_p_values_are_uniform_and_independent(seed, round_to):
    """By Kolmogorov's test, and by the rank correlation of neighbours."""
    p = p_values(start(seed, 30, round_to=round_to), draws(seed + 9, 4000, round_to))
    assert stats.kstest(p, "uniform").pvalue > ERROR
    assert stats.spearmanr(p[:-1], p[1:]).pvalue > ERROR
    assert stats.spearmanr(p[:-1] > 0.5, p[1:] > 0.9).pvalue > ERROR


def test_p_values_of_two_examples_are_independent_over_references():
    """What ranks among a fixed reference are not: of a small one they share what it happens to be."""
    first, last, fixed = [], [], []
    for seed in range(2000):
        martingale, scores = start(seed, 5), draws(seed + 5000, 2)
        p = martingale.p_values(scores)
        first.append(p[0])
        last.append(p[1])
        fixed.append((martingale.past[None] > scores[:, None]).mean(1))
    assert stats.kstest(last, "uniform").pvalue > ERROR
    assert stats.spearmanr(first, last).pvalue > ERROR
    assert stats.spearmanr(*np.transpose(fixed)).pvalue < 1e-6


def test_p_values_against_the_definition():
    martingale, scores = start(3, 20, round_to=0), draws(4, 40, 0)
    uniform = np.random.Generator(np.random.PCG64(3)).random(40)
    every = [*martingale.past, *scores]
    for n, (p, u) in enumerate(zip(martingale.p_values(scores), uniform, strict=True), 21):
        own, seen = every[n - 1], np.array(every[:n])
        assert p == ((seen > own).sum() + u * (seen == own).sum()) / n


def test_bets_are_fair_and_look_both_ways():
    """Each integrates to 1 but for the edges, where it pays less; and each side grows where its scores lie."""
    edges = np.geomspace(1e-15, 0.5, 200_001)
    grid = np.concatenate([edges, 1 - edges[::-1]])
    middle = (grid[1:] + grid[:-1]) / 2
    total = np.exp(log_bets(middle)) @ np.diff(grid)
    assert (total <= 1 + 1e-4).all()
    assert (total > 0.9).all()
    small, large = log_bets(np.array([0.01, 0.99])).T
    assert (small[:SIDE] > small[SIDE:]).all()
    assert (large[:SIDE] < large[SIDE:]).all()


def test_the_wealth_is_the_mixture_of_its_definition():
    """Every bet from every beginning, one by one, and what waits."""
    martingale, scores = start(1, 50), draws(8, 30)
    gains = np.exp(log_bets(p_values(martingale, scores)))
    entry = [1 / math.log2(k + 1) - 1 / math.log2(k + 2) for k in range(1, 31)]
    begun = sum(entry[k] * gains[:, k:].prod(1).mean() for k in range(30))
    assert math.isclose(martingale.after(scores).log_wealth, math.log(begun + 1 / math.log2(32)), rel_tol=1e-9)
    assert start(1).log_wealth == 0


# False alarms and delays, on scores


@pytest.mark.parametrize("level", [0.05, 0.2])
def test_false_alarms_over_1000_null_streams_stay_below_the_promise(level):
    """The promise is a bound, for streams of any length: what is tested is that the share is not above it."""
    alarms = sum(start(seed, 50, level).after(draws(seed + 10_000, 300)).alarm > 0 for seed in range(1000))
    assert stats.binomtest(alarms, 1000, level, alternative="greater").pvalue > ERROR
    assert alarms > 0  # it is not that nothing is ever told


@pytest.mark.parametrize(("shift", "delay"), [(2.0, 25), (1.0, 100), (-1.0, 100), (-2.0, 25)])
def test_a_planted_change_is_told_soon_and_dated(shift, delay):
    """After 1000 quiet examples, scores that shift by so many deviations: in 18 of 20 streams within the delay."""
    found = []
    for seed in range(20):
        scores = draws(seed + 100, 1500)
        scores[1000:] += shift
        found.append(start(seed, 300).after(scores))
    assert sum(1000 < each.alarm <= 1000 + delay for each in found) >= 18
    assert abs(np.median([each.since for each in found]) - 1001) < 10
    assert sum(each.larger == (shift > 0) for each in found) >= 18


@pytest.mark.parametrize("level", [0.1, 0.01])
def test_the_least_reference_is_where_the_plainest_change_is_told(level):
    """In more than nine of ten streams, and with a fourth of it in fewer."""
    for size, told in ((least_reference(level), True), (least_reference(level) // 4, False)):
        alarms = [start(seed, size, level).after(9 + draws(seed + 50, 10 * size)).alarm > 0 for seed in range(100)]
        assert (np.mean(alarms) > 0.9) == told


# However it is cut


def same(one, other):
    for name in ("past", "grown", "begun", "lowest", "turn"):
        assert np.array_equal(getattr(one, name), getattr(other, name)), name
    assert (one.alarm, one.since, one.larger) == (other.alarm, other.since, other.larger)
    assert one.log_wealth == other.log_wealth


@settings(deadline=None, max_examples=25)
@given(
    cuts=st.lists(st.integers(0, 1200), max_size=12),
    shift=st.sampled_from([0.0, 1.0]),
    round_to=st.sampled_from([None, 1]),
)
def test_a_stream_cut_anyhow_is_the_same_martingale_to_the_bit(cuts, shift, round_to):
    scores = draws(5, 1200, round_to)
    scores[700:] += shift
    whole, cut = start(2).after(scores), start(2)
    for part in np.split(scores, sorted(cuts)):
        cut = cut.after(part)
    same(whole, cut)
    assert bool(whole.alarm) == bool(shift)


def test_the_order_of_the_reference_does_not_matter():
    reference, scores = draws(0, 100), draws(1, 200)
    one, other = (Martingale.start(given, 0.01, 7).after(scores) for given in (reference, reference[::-1]))
    same(one, other)


# With a posterior


def network(hidden=8):
    """Its start is a seed's, so that tests do not hang on what was drawn before them."""
    return br.models.build({"name": "mlp", "inputs": 2, "outputs": 2, "hidden": [hidden]}, seed=0).double()


@pytest.fixture(scope="module")
def fitted():
    x, y = br.data.moons(n=200, seed=1)
    return br.fit(network(), (x.double(), y), Laplace("all", "dense"), epochs=30)


def examples(n, seed):
    """Draws from the world of the fit, in random order."""
    x, y = br.data.moons(n=n, seed=seed + 1000)
    order = torch.randperm(n, generator=torch.Generator().manual_seed(seed))
    return x[order].double(), y[order]


def test_false_alarms_of_a_posterior():
    """1000 streams of 100 examples, each with a reference of its own."""
    posterior = br.fit(network(), examples(200, 1), "swag", epochs=10)
    alarms, (x, y) = 0, examples(1000 * 150, 0)
    losses = -posterior.predict(x, samples=8).log_prob(y).numpy()
    for part in losses.reshape(1000, 150):
        alarms += Martingale.start(part[:50], 0.05, 0).after(part[50:]).alarm > 0
    assert stats.binomtest(alarms, 1000, 0.05, alternative="greater").pvalue > ERROR


def test_a_quiet_stream_then_a_changed_one(fitted):
    guard = watch(fitted, examples(300, 1))
    x, y = examples(400, 2)
    quiet = guard.update(x[:200], y[:200])
    assert str(quiet) == "no sign of change in 200 examples"
    assert not quiet.alarmed
    assert quiet.since is quiet.alarm_at is quiet.larger is None
    assert abs(quiet.batch.log_density - quiet.reference.log_density) < 0.2
    changed = guard.update(x[200:], 1 - y[200:])
    assert changed.alarmed
    assert changed.larger
    assert 200 < changed.alarm_at < 230
    assert abs(changed.since - 201) < 10
    assert changed.log_wealth >= math.log(100)
    assert changed.batch.log_density < changed.reference.log_density - 1
    assert str(changed).startswith(f"the world has changed since about example {changed.since}: losses are larger")
    assert str(changed).endswith("false alarm in at most 1 of 100 streams")
    assert "alarmed=True" in repr(guard)
    again = guard.update(*examples(50, 3))
    assert again.alarm_at == changed.alarm_at  # it stays


def test_repeated_easy_examples_are_a_change_too(fitted):
    x, y = examples(300, 4)
    easy = (-fitted.predict(x).log_prob(y)).argsort()[:30].repeat(5)
    report = watch(fitted, (x, y)).update(x[easy], y[easy])
    assert report.alarmed
    assert report.larger is False
    assert "losses are smaller" in str(report)


@pytest.mark.parametrize("score", ["epistemic", "uncertainty"])
def test_inputs_alone_are_enough_for_scores_without_labels(fitted, score):
    x, y = examples(400, 5)
    guard, other = watch(fitted, x, score=score), watch(fitted, (x, y), score=score)
    same(guard.martingale, other.martingale)
    x, y = examples(300, 6)
    quiet = guard.update(x)
    assert not quiet.alarmed
    assert quiet.batch.log_density is quiet.reference.log_density is None
    assert other.update(x, y).batch.log_density < 0
    same(guard.martingale, other.martingale)
    assert 0 < quiet.batch.epistemic_share < 1
    moved = guard.update(x - 1.5)
    assert moved.alarmed
    assert moved.batch.epistemic_share > moved.reference.epistemic_share


def test_a_posteriors_stream_cut_anyhow_is_the_same(fitted):
    x, y = examples(90, 7)
    whole, cut = (watch(fitted, examples(60, 8)) for _ in range(2))
    whole.update(x, y)
    for rows in torch.arange(90).split([1, 13, 50, 26]):
        cut.update(x[rows], y[rows])
    same(whole.martingale, cut.martingale)
    loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(x, y), batch_size=7)
    loaded = watch(fitted, examples(60, 8))
    loaded.update(loader)
    same(whole.martingale, loaded.martingale)


def test_a_watch_is_saved_and_resumed_to_the_bit(fitted, tmp_path):
    guard, (x, y) = watch(fitted, examples(100, 9), seed=3), examples(200, 10)
    guard.update(x[:80], y[:80])
    guard.save(tmp_path / "watch")
    fitted.save(tmp_path / "posterior")
    posterior = br.load(tmp_path / "posterior", network())
    again = load_watch(tmp_path / "watch", posterior)
    assert repr(again) == repr(guard)
    assert again.update(x[80:], 1 - y[80:]) == guard.update(x[80:], 1 - y[80:])
    same(again.martingale, guard.martingale)
    assert watch(fitted, examples(100, 9), seed=4).martingale.seed == 4


def test_a_watch_of_another_posterior_is_refused(fitted, tmp_path):
    watch(fitted, examples(100, 9)).save(tmp_path / "watch")
    other = br.fit(network(), examples(50, 0), "swag", epochs=2)
    with pytest.raises(FileError, match="of another posterior; load the one it was made with, or make a new watch"):
        load_watch(tmp_path / "watch", other)


def test_real_targets_of_several_outputs_in_users_units():
    """Data that hold their scaling come back in the user's units; an example's score is the mean of its targets'."""
    x = torch.from_numpy(draws(0, 600)).reshape(300, 2)
    y = 50 + 20 * x + torch.from_numpy(draws(1, 600)).reshape(300, 2)
    data = br.data.standardize((x[:100], y[:100]))
    posterior = br.fit(network(4), data, "laplace", epochs=20)
    guard, other = (
        watch(posterior, br.data.standardize((x[100:200], y[100:200]))),
        watch(posterior, (x[100:200], y[100:200])),
    )
    assert guard.reference.log_density == pytest.approx(other.reference.log_density)
    report = guard.update(x[200:], y[200:] + 60)
    assert report.alarmed
    assert report.batch.log_density < report.reference.log_density


# What is refused


@pytest.mark.parametrize("level", [0.0, 1.0, -0.1, 5.0, math.nan])
def test_a_false_alarm_rate_that_is_none_is_refused(fitted, level):
    with pytest.raises(
        ValueError, match=r"false_alarms must be between 0 and 1, both excluded: got .*; 1 of 100 streams"
    ):
        watch(fitted, examples(100, 0), false_alarms=level)


def test_a_bad_reference_is_refused(fitted):
    x, y = examples(100, 0)
    with pytest.raises(
        ValueError, match=r"reference must hold at least 17 examples where .* 0.01, .*: got 9; hold out"
    ):
        watch(fitted, (x[:9], y[:9]))
    with pytest.raises(
        ValueError, match=r"reference must hold .*not trained on: X and y must hold at least one example"
    ):
        watch(fitted, (x[:0], y[:0]))
    with pytest.raises(ValueError, match=r"reference must hold .*: X must hold at least one example, got none"):
        watch(fitted, x[:0], score="uncertainty")
    with pytest.raises(TypeError, match=r"reference must hold .*: train must be a pair \(X, y\)"):
        watch(fitted, x)
    with pytest.raises(ValueError, match="reference must have no weights, since ranks do not know them"):
        watch(fitted, (x, y, torch.ones(100)))
    with pytest.raises(
        ValueError, match=r"unknown score 'los': did you mean 'loss'\? Valid: epistemic, loss, uncertainty"
    ):
        watch(fitted, (x, y), score="los")


def test_missing_labels_and_bad_rows_leave_the_watch_as_it_was(fitted):
    guard, (x, y) = watch(fitted, examples(100, 0)), examples(10, 1)
    before = guard.martingale
    with pytest.raises(ValueError, match=r"y must be the labels of x where score is 'loss': got None; .*'epistemic'"):
        guard.update(x)
    with pytest.raises(ValueError, match=r"categorical labels must be integers in \[0, 2\): got 7"):
        guard.update(x, y * 0 + 7)
    with pytest.raises(ValueError, match="X and y must have the same number of examples, got 10 in X and 5 in y"):
        guard.update(x, y[:5])
    assert guard.martingale is before


def test_scores_that_are_no_numbers_are_refused():
    """An example so far away that its density underflows to nothing."""
    posterior = br.fit(torch.nn.Linear(1, 1), ([[0.0], [1.0], [2.0]], [0.1, 0.9, 2.1]), "map", epochs=5)
    x = torch.linspace(0, 2, 40)[:, None]
    guard = watch(posterior, (x, x[:, 0]))
    with pytest.raises(ValueError, match=r"scores must be finite to be ranked: the loss of row 1 is inf; look at this"):
        guard.update(x[:2], torch.tensor([0.0, 1e30]))


def test_disagreement_of_a_single_network_is_refused():
    x, y = examples(60, 0)
    posterior = br.fit(network(4), (x, y), "map", epochs=2)
    with pytest.raises(ValueError, match=r"score 'epistemic' needs networks that disagree: got 0 for all .*Particles"):
        watch(posterior, (x, y), score="epistemic")
