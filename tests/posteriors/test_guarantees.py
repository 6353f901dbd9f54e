"""What a posterior promises holds, whatever its kind, and goes with its file."""

import math

import pytest
import scipy.stats
import torch
from torch import nn

import bayesrule as br
from bayesrule.files import FileError
from bayesrule.likelihoods import Heteroscedastic, LogNormal, Poisson, Student
from bayesrule.methods import IVON, MAP, Auto, Ensemble, Laplace, MCDropout
from bayesrule.posteriors import DistanceAware, Dropout, Gaussian, Guarantees, Linearised, Mixture, Particles
from bayesrule.predictions import Classes, calibrate, conformity, select, threshold

KINDS = {
    "gaussian": (IVON(), Gaussian),
    "linearised": (Laplace("all", "kronecker", tune="nothing"), Linearised),
    "particles": (MAP(), Particles),
    "dropout": (MCDropout(), Dropout),
    "mixture": (Ensemble(2), Mixture),
    "stack": (Auto(scales=(1.2, 5.0), folds=2, networks=6), Particles),
    "distance-aware": (MAP(), DistanceAware),
}
SPLITS, CALIBRATED, POOL, LEVEL = 200, 80, 800, 0.9
RATE = 1e-4  # that a bar of this file fails by chance


def world(n, kind, seed):
    """Two inputs; three classes that overlap, or numbers whose noise grows with the first input."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(n, 2, generator=generator)
    noise = torch.randn(n, 3, generator=generator)
    if kind == "classes":
        return x, (torch.stack([x[:, 0], x[:, 1], -x.sum(1)], 1) + 0.4 * noise).argmax(1)
    reals = x.sin().sum(1) + (0.3 + x[:, 0].abs()) * noise[:, 0]
    if kind == "positive":
        return x, reals.exp()
    if kind == "counts":
        return x, torch.poisson(x[:, 0].exp(), generator)
    return x, reals


def network(outputs):
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(2, 8), nn.Tanh(), nn.Dropout(0.1), nn.Linear(8, outputs))


@pytest.fixture(scope="module")
def fitted():
    """One posterior of each kind for classes and for reals, fitted once, with its prediction of a pool of new rows."""
    found = {}
    for kind, outputs in (("classes", 3), ("reals", 1)):
        for name, (method, expected) in KINDS.items():
            data = world(120, kind, 0)
            posterior = br.fit(network(outputs), data, method, epochs=10)
            if expected is DistanceAware:
                posterior = DistanceAware.around(posterior, data)
            assert type(posterior) is expected
            found[name, kind] = posterior, posterior.predict(world(POOL, kind, 1)[0])
    return found


def splits(seed=0):
    """Rows of each of 200 random splits of the pool, ``[POOL, 200]``: the first are to calibrate on."""
    generator = torch.Generator().manual_seed(seed)
    return torch.rand(POOL, SPLITS, generator=generator).argsort(0)


def holds(covered, level, most=None):
    """A binomial test of one new row in each of 200 independent splits, and one of all rows by their variance.

    Given the pool, the rank of a new score among n + 1 is uniform, splits are independent, and the number covered of m
    new rows is beta-binomial with parameters k and n + 1 − k. The first test is exact; the second is normal for a sum
    of 200. ``most``: the probability above which no exact score may be.
    """
    first = int(covered[0].sum())
    assert scipy.stats.binom.cdf(first, SPLITS, level) > RATE
    k, m = math.ceil((CALIBRATED + 1) * level), len(covered)
    law = scipy.stats.betabinom(m, k, CALIBRATED + 1 - k)
    error = law.std() / m / math.sqrt(SPLITS)
    share = float(covered.double().mean())
    assert share > level - 4 * error
    if most is not None:
        assert scipy.stats.binom.sf(first - 1, SPLITS, most) > RATE
        assert share < most + 4 * error


def test_a_stack_has_several_networks_and_distance_is_seen_in_the_pool(fitted):
    """Otherwise these two kinds would be others by another name."""
    x = world(POOL, "reals", 1)[0]
    assert len(fitted["stack", "reals"][0].predict(x).means) > 1
    assert int((fitted["distance-aware", "reals"][0].strangeness(x) > 0).sum()) > 0


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("target", ["classes", "reals"])
def test_the_promised_level_holds_over_200_splits(fitted, kind, target):
    _, prediction = fitted[kind, target]
    y, rows = world(POOL, target, 1)[1], splits()
    exact = math.ceil((CALIBRATED + 1) * LEVEL) / (CALIBRATED + 1)
    for score in ("aps", "randomised-aps") if target == "classes" else ("aps",):
        scores = conformity(prediction, y, LEVEL, score, seed=5)[rows]
        covered = scores[CALIBRATED:] <= threshold(scores[:CALIBRATED], LEVEL)
        holds(covered, LEVEL, None if score == "aps" and target == "classes" else exact)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("target", ["classes", "reals"])
def test_what_users_call_is_what_the_splits_have_shown(fitted, kind, target):
    posterior, prediction = fitted[kind, target]
    x, y = world(POOL, target, 1)
    held, new = splits()[:CALIBRATED, 0], splits()[CALIBRATED:, 0]
    promising = posterior.conformalize((x[held], y[held]), LEVEL)
    scores = conformity(prediction, y, LEVEL)
    covered = scores[new] <= threshold(scores[held], LEVEL)
    if target == "classes":
        found = promising.predict_set(x[new]).gather(1, y[new, None])[:, 0]
    else:
        low, high = promising.predict_interval(x[new])
        found = (low <= y[new]) & (y[new] <= high)
    assert float((found != covered).double().mean()) < 0.005  # scores at the threshold to the last bits
    assert not list(posterior.guarantees)


@pytest.mark.parametrize(
    ("likelihood", "target", "outputs"),
    [
        (Poisson(), "counts", 1),
        (LogNormal(), "positive", 1),
        (Heteroscedastic(), "reals", 2),
        pytest.param(Student(), "reals", 1, marks=pytest.mark.slow),  # whose quantiles take seconds
    ],
    ids=lambda value: getattr(value, "name", value),
)
def test_every_kind_of_number_is_covered(likelihood, target, outputs):
    posterior = br.fit(network(outputs), world(120, target, 0), MAP(), likelihood, epochs=10)
    x, y = world(POOL, target, 1)
    scores = conformity(posterior.predict(x), y, LEVEL)[splits()]
    covered = scores[CALIBRATED:] <= threshold(scores[:CALIBRATED], LEVEL)
    exact = math.ceil((CALIBRATED + 1) * LEVEL) / (CALIBRATED + 1)
    holds(covered, LEVEL, None if target == "counts" else exact)  # of which equal ones have equal scores


@pytest.mark.parametrize("target", ["classes", "reals"])
@pytest.mark.parametrize("kind", KINDS)
def test_the_promised_level_holds_in_every_group(fitted, kind, target):
    """Without groups it would not: the noise of reals grows with the first input."""
    _, prediction = fitted[kind, target]
    x, y = world(POOL, target, 1)
    scores = conformity(prediction, y, LEVEL)
    for seed, group in enumerate((x[:, 0].abs() > 1.2, x[:, 0].abs() <= 1.2)):
        mine = scores[group]
        rows = torch.rand(len(mine), SPLITS, generator=torch.Generator().manual_seed(seed)).argsort(0)
        covered = mine[rows[CALIBRATED:]] <= threshold(mine[rows[:CALIBRATED]], LEVEL)
        holds(covered, LEVEL)


def test_groups_have_thresholds_of_their_own(fitted):
    posterior, prediction = fitted["particles", "reals"]
    x, y = world(POOL, "reals", 1)
    names = ["wide" if far else "near" for far in (x[:, 0].abs() > 1.2).tolist()]
    promising = posterior.conformalize((x, y), LEVEL, groups=names)
    low, high = promising.predict_interval(x, groups=names)
    for name in ("wide", "near"):
        mine = torch.tensor([n == name for n in names])
        inside = (low[mine] <= y[mine]) & (y[mine] <= high[mine])
        alone = calibrate(prediction[mine], y[mine], LEVEL)
        assert promising.guarantees.conformal.thresholds[("near", "wide").index(name)] == alone.thresholds[0]
        assert abs(float(inside.double().mean()) - LEVEL) < 0.01
    one, other = promising.guarantees.conformal.thresholds.tolist()
    assert other > one + 0.3


@pytest.mark.parametrize("kind", KINDS)
def test_the_promised_error_holds_over_200_calibration_sets(fitted, kind):
    """New rows are the pool, and each set is drawn from it: how often answers are wrong is then known exactly."""
    prediction = Classes(fitted[kind, "classes"][1].probs.double().log()[None])  # the same, by one network: quick
    y, error, confidence = world(POOL, "classes", 1)[1], 0.2, 0.9
    wrong = prediction.label != y
    generator, broken, answering = torch.Generator().manual_seed(0), 0, 0
    for _ in range(SPLITS):
        rows = torch.randint(POOL, (200,), generator=generator)
        promise = select(prediction[rows], y[rows], error, confidence)
        answered = promise.answers(prediction).answered
        answering += bool(answered.any())
        broken += bool(answered.any()) and float(wrong[answered].double().mean()) > error
    assert scipy.stats.binom.sf(broken - 1, SPLITS, 1 - confidence) > RATE
    assert answering > SPLITS / 2  # or the promise would be empty


@pytest.mark.parametrize("target", ["classes", "reals"])
@pytest.mark.parametrize("kind", KINDS)
def test_promises_go_with_the_file_and_no_example_does(fitted, kind, target, tmp_path):
    posterior, _ = fitted[kind, target]
    x, y = world(400, target, 2)
    names = ["left" if first < 0 else "right" for first in x[:, 0].tolist()]
    promising = posterior.conformalize((x, y), 0.8, groups=names)
    if target == "classes":
        promising = promising.selective((x, y), 0.2)
    promising.save(tmp_path / "promising.safetensors")
    posterior.save(tmp_path / "plain.safetensors")
    more = (tmp_path / "promising.safetensors").stat().st_size - (tmp_path / "plain.safetensors").stat().st_size
    assert more < 3000  # 400 examples of three numbers are 4800 bytes
    again = br.load(tmp_path / "promising.safetensors", network(3 if target == "classes" else 1))
    assert [p.says for p in again.guarantees] == [p.says for p in promising.guarantees]
    if target == "reals":
        ends, expected = again.predict_interval(x, groups=names), promising.predict_interval(x, groups=names)
        assert all(torch.equal(one, other) for one, other in zip(ends, expected, strict=True))
        return
    assert torch.equal(again.predict_set(x, groups=names), promising.predict_set(x, groups=names))
    assert torch.equal(again.predict_or_abstain(x).answered, promising.predict_or_abstain(x).answered)
    assert [p.says for p in again.to("cpu").guarantees] == [p.says for p in promising.guarantees]
    assert not list(br.load(tmp_path / "plain.safetensors", network(3)).guarantees)


@pytest.mark.parametrize(
    ("edit", "words"),
    [
        (lambda state: state | {"extra": {}}, "promises what is not known: extra"),
        (lambda state: state | {"conformal": state["conformal"] | {"rows": [3]}}, "not those of 1 calibrated groups"),
        (
            lambda state: (
                state | {"conformal": state["conformal"] | {"thresholds": torch.tensor([torch.nan]).double()}}
            ),
            "not those of 1 calibrated groups",
        ),
        (lambda state: state | {"conformal": state["conformal"] | {"score": "none"}}, "conformal score is 'none'"),
        (lambda state: state | {"conformal": state["conformal"] | {"level": 2.0}}, "level must be between 0 and 1"),
        (lambda state: state | {"selective": state["selective"] | {"doubt": 0.3}}, "threshold of doubt is 0.3"),
        (lambda state: state | {"selective": state["selective"] | {"share": 7.0}}, "share of answers is 7"),
    ],
)
def test_a_file_whose_promises_were_edited_is_refused(fitted, edit, words, tmp_path):
    posterior, _ = fitted["particles", "classes"]
    held = world(400, "classes", 2)
    promising = posterior.conformalize(held).selective(held, 0.2)
    tree = promising.tree() | {"guarantees": edit(promising.guarantees.state())}
    br.files.save(tmp_path / "edited", br.files.sealed(tree), "posterior")
    with pytest.raises(FileError, match=words):
        br.load(tmp_path / "edited", network(3))


def test_what_the_posterior_becomes_keeps_no_promise_of_what_it_was(fitted):
    posterior, _ = fitted["particles", "reals"]
    promising = posterior.conformalize(world(100, "reals", 2))
    assert list(promising.with_context(info={"more": 1}).guarantees)
    assert not list(promising.with_context(likelihood=promising.likelihood).guarantees)
    assert "90 % of intervals hold the truth" in promising._repr_html_()


def test_predictions_are_those_that_were_calibrated(fitted):
    posterior, _ = fitted["gaussian", "classes"]
    held = world(200, "classes", 2)
    promising = posterior.conformalize(held, samples=3, seed=7)
    x = world(50, "classes", 3)[0]
    conformal = promising.guarantees.conformal
    assert torch.equal(promising.predict_set(x), conformal.sets(posterior.predict(x, samples=3, seed=7)))
    answers = posterior.selective(held, 0.3, samples=3, seed=7).predict_or_abstain(x)
    assert answers.prediction.samples == 3
    assert torch.equal(answers.prediction.probs, posterior.predict(x, samples=3, seed=7).probs)


@pytest.mark.parametrize("scaled", [False, True])
def test_data_that_it_was_trained_on_are_refused(scaled, tmp_path):
    train, val = world(120, "reals", 0), world(60, "reals", 5)
    given = br.data.standardize(train) if scaled else train
    posterior = br.fit(network(1), given, MAP(), epochs=2, out=tmp_path / "run", val=val)
    for seen, words in ((train, "that it was trained on"), (given, "trained on"), (val, "fitted with, as val")):
        with pytest.raises(ValueError, match=f"held must be data that the posterior has not seen.*{words}"):
            posterior.conformalize(seen)
    posterior.conformalize(world(60, "reals", 6))


@pytest.mark.parametrize(
    ("call", "error", "words"),
    [
        (lambda p, held: p.predict_set(held[0]), ValueError, r"take posterior.conformalize\(held, level=0.9\) first"),
        (lambda p, held: p.predict_or_abstain(held[0]), ValueError, r"take posterior.selective\(held, error=0.01\)"),
        (lambda p, held: p.conformalize(held, level=1.2), ValueError, "level must be between 0 and 1.*got 1.2"),
        (lambda p, held: p.conformalize((held[0][:5], held[1][:5])), ValueError, "at least 9 examples.*got 5"),
        (lambda p, held: p.selective(held, error=0.0), ValueError, "error must be between 0 and 1"),
        (lambda p, held: p.selective((held[0][:49], held[1][:49]), 0.1), ValueError, "at least 50 examples.*got 49"),
        (lambda p, held: p.conformalize((*held, torch.ones(100))), ValueError, "do not know weights of examples"),
        (lambda p, held: p.conformalize(held).predict_interval(held[0]), TypeError, "intervals are of numbers"),
        (lambda p, held: br.evaluate.guarantees(p, held), ValueError, "the posterior promises nothing"),
    ],
)
def test_errors_say_what_is_wrong(fitted, call, error, words):
    with pytest.raises(error, match=words):
        call(fitted["particles", "classes"][0], world(100, "classes", 2))


def test_what_is_seen_on_test_data(fitted):
    posterior, _ = fitted["mixture", "classes"]
    held, test = world(300, "classes", 2), world(200, "classes", 3)
    promising = posterior.conformalize(held, 0.9).selective(held, 0.2)
    found = br.evaluate.guarantees(promising, test, bootstrap=50)
    sets, answers = promising.predict_set(test[0]), promising.predict_or_abstain(test[0])
    assert found["coverage"] == pytest.approx(float(sets.gather(1, test[1][:, None]).double().mean()))
    assert found["set_size"] == pytest.approx(float(sets.sum(1).double().mean()))
    assert found["answered"] == pytest.approx(float(answers.answered.double().mean()))
    wrong = answers.prediction.label[answers.answered] != test[1][answers.answered]
    assert found["error"] == pytest.approx(float(wrong.double().mean()))
    assert found.interval("coverage")[0] < found["coverage"] < found.interval("coverage")[1]
    reals = fitted["mixture", "reals"][0].conformalize(world(100, "reals", 2))
    assert sorted(br.evaluate.guarantees(reals, world(100, "reals", 3), bootstrap=0)) == ["coverage", "width"]
    nothing = Guarantees(selective=select(answers.prediction[:99], 1 - answers.prediction.label[:99].clamp(max=1), 0.2))
    silent = br.evaluate.guarantees(posterior.with_context(guarantees=nothing), test, bootstrap=0)
    assert (silent["answered"], silent["error"]) == (0, 0)
