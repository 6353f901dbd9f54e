"""The experiments after Book (2020), chapters 1, 2 and 5 and appendix A, and after Romijnders."""

import functools
import io
import json
import math

import pytest
import torch
from covering import first
from matplotlib.image import imread

from bayesrule.experiments import EXPERIMENTS, Setting, book, findings, png, trials
from bayesrule.experiments.book import and_perceptron, initial_sigma, noise_confidence, path_derivative
from bayesrule.experiments.book.logistic import LogisticRegression, Normal, probability
from bayesrule.experiments.gaussian import sigma_pull
from bayesrule.methods import BBB, MAP, Ensemble

NAMES = ("and-perceptron", "initial-sigma", "kl-weights", "noise-confidence", "path-derivative", "sigma-pull")


@pytest.fixture
def short(monkeypatch):
    """Two seeds and few steps."""
    monkeypatch.setattr(findings, "seeds", lambda setting, count=2: range(setting.seed * 100, setting.seed * 100 + 2))
    monkeypatch.setattr(book, "data", lambda setting, epochs=2: {"digits": 2})
    monkeypatch.setattr(trials, "SAMPLES", 4)
    monkeypatch.setattr(noise_confidence, "LENGTHS", {False: ("digits", 2)})
    monkeypatch.setattr(noise_confidence, "NOISES", 50)
    monkeypatch.setattr(noise_confidence, "OTHERS", {"map": MAP(), "ensemble": Ensemble(members=2)})
    monkeypatch.setattr(noise_confidence, "SAMPLES", 4)
    monkeypatch.setattr(initial_sigma, "STARTS", (-2, -10, -12))
    monkeypatch.setattr(path_derivative, "DISTANCES", (0.0, 1.0))
    monkeypatch.setattr(path_derivative, "DRAWS", 10)
    monkeypatch.setattr(and_perceptron, "STEPS", {False: 100})
    monkeypatch.setattr(sigma_pull, "STEPS", 20)


@functools.cache
def answer(name):
    """What an experiment finds, for tests with ``short``."""
    return EXPERIMENTS[name](Setting())


def plain(result):
    return json.dumps(result.data, allow_nan=False)


@pytest.mark.parametrize("name", NAMES)
def test_an_experiment_answers_in_full(name, short):
    result = answer(name)
    picture = imread(io.BytesIO(png(result)), format="png")
    assert result.claims
    assert all(claim.source and claim.says and claim.measured for claim in result.claims)
    assert {claim.held for claim in result.claims} <= {True, False, None}
    assert all(result.notes) or result.notes == ()
    assert picture.std() > 0.01


@pytest.mark.parametrize("name", first(NAMES))
def test_an_experiment_repeats(name, short):
    assert plain(EXPERIMENTS[name](Setting())) == plain(answer(name))


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in NAMES if name != "sigma-pull"])  # sigma-pull draws nothing at random
def test_an_experiment_with_another_seed_answers_otherwise(name, short):
    assert plain(EXPERIMENTS[name](Setting(seed=1))) != plain(answer(name))


def held(result):
    return {claim.says: claim.held for claim in result.claims}


@pytest.mark.slow
def test_the_divergence_alone_pulls_q_to_the_prior():
    assert all(held(sigma_pull.run(Setting())).values())


@pytest.mark.slow
@pytest.mark.parametrize("seed", [0, 1])
def test_a_perceptron_learns_and(seed):
    """Seen sixteen times the table is learnt; seen once it is not, by the exact posterior either."""
    result = and_perceptron.run(Setting(seed=seed))
    once, often = result.data["arms"]
    assert once["probs_exact"][3] < 0.5 < often["probs_exact"][3]
    assert once["probs"][3] < 0.5 < often["probs"][3]
    assert list(held(result).values()) == [True, False, True, True, True, False]


def test_the_path_derivative_is_quiet_at_the_posterior_and_loud_from_a_narrow_start(short):
    """The variance vanishes at the exact posterior; far narrower than it, the noise is that of −(η/N)·ε/σ."""
    claims = answer("path-derivative").claims
    assert claims[0].held
    assert next(claim for claim in claims if claim.source == "closed form").held


def test_quadrature_agrees_with_draws():
    """P(1) and its deviation, to five standard errors of 10⁵ draws; the bound stays below the evidence."""
    table = and_perceptron._table(3)
    q = Normal([0.5, -0.2, 0.1], [0.3, 0.7, 1.1])
    mean, std = q.tensors()
    draws = torch.randn(100_000, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    probs = ((mean + std * draws) @ table.x.T).sigmoid()
    exact = probability(q, table.x)
    assert torch.allclose(probs.mean(0), exact[0], atol=5 * 0.5 / math.sqrt(100_000))
    assert torch.allclose(probs.std(0), exact[1], atol=5 * 0.5 / math.sqrt(100_000))
    _, evidence, _ = table.exact()
    best = table.bound(*table.best().tensors())
    assert table.bound(mean, std) < best < evidence


def test_the_exact_posterior_without_data_is_the_prior():
    empty = LogisticRegression(torch.zeros(0, 2, dtype=torch.float64), torch.zeros(0, dtype=torch.float64))
    posterior, evidence, _ = empty.exact()
    assert evidence == pytest.approx(0, abs=1e-9)
    assert posterior.mean == pytest.approx([0, 0], abs=1e-9)
    assert posterior.std == pytest.approx([1, 1], abs=1e-9)
    assert empty.best().std == pytest.approx([1, 1], abs=1e-6)


def seen(posterior, split):
    return {"kind": posterior.kind, "classes": len(split.classes)}


def test_a_look_is_kept_with_its_trial(tmp_path):
    """The cache holds what a look saw, under a name of its own."""
    plain_job = trials.Training("a", "digits", BBB(**book.METHOD), 1, 0)
    job = trials.Training("a", "digits", BBB(**book.METHOD), 1, 0, look=seen)
    setting = Setting(cache=tmp_path)
    (trial,) = trials.run([job], setting)
    assert trial.seen == {"kind": "gaussian", "classes": 10}
    assert trials.run([job], setting) == [trial]
    assert len(list(tmp_path.iterdir())) == 1
    assert job.key() != plain_job.key()


def test_a_training_that_broke_off_is_plain_too():
    broken = trials.Outcome("a", "digits", 0, 0.1, 2.3, 0.0, math.inf, math.inf, [], "it broke off")
    whole = trials.Outcome("b", "digits", 0, 0.9, 0.3, 0.0, 1.0, 0.5, [])
    assert findings.plain(broken)["loss"] is None
    assert findings.gains([broken, whole], "digits", "b", "a", "accuracy") == [pytest.approx(0.8)]
    assert math.isnan(trials.average([1.0, math.inf])[1])
    assert not findings.better([1.0, math.inf])


def test_kl_weights_count_the_whole_divergence(short):
    """Loss and divergence are with full weight, whatever λ: without the divergence in training, too."""
    for trial in answer("kl-weights").data["trials"]:
        assert trial["loss"] == pytest.approx(trial["history"][-1]["nll"] + trial["history"][-1]["penalty"])
        assert trial["divergence"] > 100


def noisy(scatter, centre=0.0):
    """Three gains about a centre."""
    return [centre - scatter, centre, centre + scatter]


def test_more_noise_never_makes_a_method_not_worse():
    """Two standard errors about the mean would let any loss pass that is noisy enough."""
    assert findings.not_worse(noisy(0.001), margin=0.005) is True
    assert findings.not_worse(noisy(0.5), margin=0.005) is None
    assert findings.not_worse(noisy(0.001, -0.05), margin=0.005) is False
    assert findings.not_worse(noisy(0.1, -0.05), margin=0.005) is None
    for centre in (-0.02, -0.004, 0.0, 0.004):
        verdicts = [findings.not_worse(noisy(scatter, centre), margin=0.005) for scatter in (0, 0.001, 0.01, 0.1)]
        undecided = verdicts.index(None)
        assert set(verdicts[undecided:]) == {None}
        assert len(set(verdicts[:undecided])) == 1


def test_one_seed_or_a_training_that_broke_off_leaves_a_comparison_undecided():
    assert findings.not_worse([0.1], margin=0.005) is None
    assert findings.not_worse([0.1, -math.inf, 0.1], margin=0.005) is None
    assert findings.alike([0.0], margin=0.005) is None


def test_a_truly_worse_method_passes_for_not_worse_in_five_of_a_hundred_runs():
    """At the margin itself: of 2000 runs of three seeds 5 % are expected, and 130 once in ten thousand times."""
    generator = torch.Generator().manual_seed(0)
    gains = -0.005 + 0.01 * torch.randn(2000, 3, generator=generator, dtype=torch.float64)
    passed = sum(findings.not_worse(row, margin=0.005) is True for row in gains.tolist())
    assert 65 <= passed <= 140


def test_alike_is_a_test_on_both_sides():
    assert findings.alike(noisy(0.001), margin=0.005) is True
    assert findings.alike(noisy(0.001, 0.02), margin=0.005) is False
    assert findings.alike(noisy(0.001, -0.02), margin=0.005) is False
    assert findings.alike(noisy(0.01), margin=0.005) is None
