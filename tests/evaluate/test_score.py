"""Scores against scikit-learn, torchmetrics and loops."""

import inspect
import json
import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from sklearn.metrics import log_loss, roc_auc_score
from torchmetrics.functional.classification import binary_calibration_error, multiclass_calibration_error

from bayesrule.evaluate import Scores, evaluate, quantile_calibration, reliability, risk_coverage, score, weighted
from bayesrule.evaluate import scores as scores_module
from bayesrule.predictions import Binary, Classes, Counts, Prediction, Reals

N = 300


def randn(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def labels(classes, *shape, seed=1):
    return torch.randint(classes, shape, generator=torch.Generator().manual_seed(seed))


CLASSES = Classes(randn(4, N, 5))
Y = labels(5, N)


def brute_aurc(confidence, wrong):
    """Each example's risk is that of all examples at least as confident; ties are thereby accepted together."""
    return np.mean([wrong[confidence >= c].mean() for c in confidence])


def brute_ece(confidence, correct, bins=15):
    total = 0.0
    for b in range(bins):
        inside = (confidence > b / bins) & (confidence <= (b + 1) / bins)
        total += abs((confidence[inside] - correct[inside]).sum())
    return total / confidence.size


def test_classification():
    scores = score(CLASSES, Y, bootstrap=0)
    probs, confidence = CLASSES.probs.numpy(), CLASSES.confidence.numpy()
    correct = (CLASSES.label == Y).numpy()
    assert scores["accuracy"] == pytest.approx(correct.mean())
    assert scores["nll"] == pytest.approx(log_loss(Y, probs, labels=range(5)))
    assert scores["brier"] == pytest.approx(((probs - np.eye(5)[Y]) ** 2).sum(1).mean())
    assert scores["ece"] == pytest.approx(brute_ece(confidence, correct))
    assert scores["ece"] == pytest.approx(float(multiclass_calibration_error(CLASSES.probs, Y, 5)))
    assert scores["confidence"] == pytest.approx(confidence.mean())
    assert scores["entropy"] == pytest.approx(CLASSES.entropy.mean().item())
    assert scores["epistemic"] == pytest.approx(CLASSES.epistemic.mean().item())
    assert scores["aurc"] == pytest.approx(brute_aurc(confidence, ~correct))
    # without ties, the usual definition: the mean over k of the error rate of the k most confident
    order = np.argsort(-confidence)
    assert scores["aurc"] == pytest.approx(np.mean(np.cumsum(~correct[order]) / np.arange(1, N + 1)))


def test_binary():
    prediction, y = Binary(2 * randn(4, N)), labels(2, N)
    scores = score(prediction, y, bootstrap=0)
    probs, confidence = prediction.probs.numpy(), prediction.confidence
    assert scores["nll"] == pytest.approx(log_loss(y, probs))
    assert scores["brier"] == pytest.approx(2 * np.mean((probs - y.numpy()) ** 2))  # both classes count
    assert scores["ece"] == pytest.approx(brute_ece(confidence.numpy(), (prediction.label == y).numpy()))
    of_confidence = binary_calibration_error(confidence, (prediction.label == y).long(), n_bins=15)
    assert scores["ece"] == pytest.approx(float(of_confidence))
    assert scores["accuracy"] == pytest.approx(((probs > 0.5) == y.numpy()).mean())


def test_multi_label_and_segmentation_are_per_example_means_and_ece_is_over_pixels():
    prediction, y = Classes(randn(3, 20, 4, 2, 3)), labels(4, 20, 2, 3)
    scores = score(prediction, y, bootstrap=50)
    correct = (prediction.label == y).numpy()
    assert scores["accuracy"] == pytest.approx(correct.mean())
    assert scores["ece"] == pytest.approx(brute_ece(prediction.confidence.numpy().ravel(), correct.ravel()))
    assert scores["nll"] == pytest.approx(-prediction.log_prob(y).mean().item())
    per_example = prediction.confidence.flatten(1).mean(1).numpy()
    assert scores["aurc"] == pytest.approx(brute_aurc(per_example, (~correct).reshape(20, -1).mean(1)))
    several = score(Binary(randn(3, 20, 6)), labels(2, 20, 6), bootstrap=0)
    assert 0 <= several["accuracy"] <= 1


def test_ood_separation_with_ties():
    ood = Classes(randn(4, 80, 5, seed=3).round())
    inside = Classes(CLASSES.logits.round())
    scores = score(inside, Y, ood, bootstrap=20)
    u, v = inside.uncertainty, ood.uncertainty
    assert scores["auroc_ood"] == pytest.approx(roc_auc_score([0] * N + [1] * 80, torch.cat([u, v])))
    wins = (v[:, None] > u).double() + 0.5 * (v[:, None] == u)
    assert scores["auroc_ood"] == pytest.approx(wins.mean().item())
    same = Classes(torch.zeros(1, 3, 2))
    assert score(same, torch.zeros(3, dtype=torch.long), same, bootstrap=0)["auroc_ood"] == 0.5


def test_ties_in_confidence_make_no_order():
    prediction = Classes(torch.zeros(1, 4, 2))
    assert score(prediction, torch.tensor([0, 0, 0, 1]), bootstrap=0)["aurc"] == 0.25


@given(st.integers(0, 1000), st.sampled_from([0, 1]))
def test_order_of_examples_does_not_matter(seed, decimals):
    logits = randn(3, 40, 3, seed=seed).round(decimals=decimals)  # rounding makes ties
    y = labels(3, 40, seed=seed)
    order = torch.randperm(40, generator=torch.Generator().manual_seed(seed))
    a, b = (score(Classes(f), t, bootstrap=0) for f, t in ((logits, y), (logits[:, order], y[order])))
    assert dict(a) == pytest.approx(dict(b), abs=1e-12)


def test_regression():
    prediction, y = Reals(randn(4, N), torch.tensor(0.8)), randn(N, seed=2)
    scores = score(prediction, y, bootstrap=0)
    error = (prediction.mean - y).numpy()
    assert scores["rmse"] == pytest.approx(np.sqrt((error**2).mean()))
    assert scores["mae"] == pytest.approx(np.abs(error).mean())
    assert scores["nll"] == pytest.approx(-prediction.log_prob(y).mean().item())
    assert scores["crps"] == pytest.approx(prediction.crps(y).mean().item())
    for level in (50, 90, 95):
        lower, upper = prediction.interval(level / 100)
        assert scores[f"coverage_{level}"] == pytest.approx(((lower <= y) & (y <= upper)).double().mean().item())
    lower, upper = prediction.interval(0.9)
    assert scores["width_90"] == pytest.approx((upper - lower).mean().item())
    assert scores["std"] == pytest.approx(prediction.std.mean().item())
    assert dict(score(prediction, y[:, None], bootstrap=0)) == dict(scores)


def test_counts():
    prediction, y = Counts(randn(4, N)), labels(4, N)
    scores = score(prediction, y, bootstrap=0)
    lower, upper = prediction.interval(0.9)
    assert scores["rmse"] == pytest.approx((prediction.mean - y).square().mean().sqrt().item())
    assert scores["nll"] == pytest.approx(-prediction.log_prob(y).mean().item())
    assert scores["coverage_90"] == pytest.approx(((lower <= y) & (y <= upper)).double().mean().item())


def test_the_bootstrap_is_the_score_of_resamples(monkeypatch):
    """Every statistic under resample counts equals the score computed anew on the repeated examples."""
    logits, ood = CLASSES.logits[:, :30].round(), Classes(randn(4, 20, 5, seed=3).round())
    drawn, outside = labels(30, 30, seed=5), labels(20, 20, seed=6)
    counts = torch.cat([torch.bincount(drawn, minlength=30), torch.bincount(outside, minlength=20)]).double()
    parts = {30: counts[:30], 20: counts[30:]}
    monkeypatch.setattr(scores_module, "_resample", lambda own, numbers, _: own.copy_(parts[own.shape[1]]))
    ends = score(Classes(logits), Y[:30], ood, bootstrap=1)
    again = score(Classes(logits[:, drawn]), Y[:30][drawn], Classes(ood.logits[:, outside]), bootstrap=0)
    for name, value in again.items():
        assert ends.interval(name) == pytest.approx((value, value)), name


def test_resamples_are_multinomial_and_memory_is_bounded(monkeypatch):
    whole = score(CLASSES, Y, bootstrap=64)
    assert score(CLASSES, Y, bootstrap=64).intervals == whole.intervals
    assert score(CLASSES, Y, bootstrap=64, seed=1).intervals != whole.intervals
    sizes = []
    original = scores_module._resample
    monkeypatch.setattr(scores_module, "CELLS", 10 * N)
    monkeypatch.setattr(scores_module, "_resample", lambda *a: sizes.append(len(a[0])) or original(*a))
    chunked = score(CLASSES, Y, bootstrap=64)
    for name in whole:  # chunks do not change the draws
        assert chunked.interval(name) == pytest.approx(whole.interval(name))
    assert sizes == [10] * 6 + [4]
    weights = torch.empty(5, 7)
    original(weights, torch.empty(5, 7, dtype=torch.int64), torch.Generator().manual_seed(0))
    assert weights.sum(1).tolist() == [7.0] * 5


@pytest.mark.parametrize("seed", range(3))
def test_intervals_cover_the_truth_as_often_as_they_say(seed):
    # 200 tests of a score of known mean; coverage of nominal 95 % intervals at n = 100 is about 0.94 ± 0.017: below
    # 0.87 or above 0.995 has a chance under 1e-4.
    hits = 0
    g = torch.Generator().manual_seed(seed)
    for repeat in range(200):
        y = torch.randn(100, generator=g)
        scores = scores_module.scored({"m": weighted.mean(y)}, [100], 200, repeat)
        hits += scores.interval("m")[0] <= 0 <= scores.interval("m")[1]
    assert 0.87 <= hits / 200 <= 0.995


def test_scores_are_a_mapping_that_prints_and_saves():
    scores = score(CLASSES, Y, bootstrap=100)
    assert list(scores)[:2] == ["accuracy", "nll"]
    for name in scores:
        low, high = scores.interval(name)
        assert low <= high
    plain = json.loads(json.dumps(scores.to_json()))
    assert plain["nll"]["low"] <= plain["nll"]["value"] <= plain["nll"]["high"]
    assert repr(scores).splitlines()[0].split() == ["score", "value", "95", "%", "interval"]
    assert len(repr(scores).splitlines()) == len(scores) + 1
    bare = score(CLASSES, Y, bootstrap=0)
    assert bare.to_json()["nll"] == {"value": bare["nll"]}
    assert "interval" not in repr(bare)
    with pytest.raises(ValueError, match="has no interval because bootstrap was 0: evaluate with bootstrap=1000"):
        bare.interval("nll")
    with pytest.raises(ValueError, match="unknown score 'accurracy': did you mean 'accuracy'"):
        scores.interval("accurracy")


class Fixed:
    """A posterior whose prediction depends on samples and seed."""

    def predict(self, x, samples=32, seed=0):
        if isinstance(x, np.ndarray):
            x = torch.from_numpy(x)
        return Classes(x.expand(samples, *x.shape) + randn(samples, *x.shape, seed=seed))


def test_evaluate_shows_its_arguments():
    assert list(inspect.signature(evaluate).parameters)[:3] == ["posterior", "test", "ood"]


def test_evaluate_predicts_and_scores():
    x, y = randn(30, 3), labels(3, 30)
    elsewhere = randn(20, 3, seed=9)
    expected = score(Fixed().predict(x, 8, 1), y, Fixed().predict(elsewhere, 8, 1), bootstrap=10, seed=1)
    for ood in (elsewhere, elsewhere.numpy(), (elsewhere, y[:20])):
        got = evaluate(Fixed(), (x, y), ood, samples=8, bootstrap=10, seed=1)
        assert isinstance(got, Scores)
        assert dict(got) == pytest.approx(dict(expected))
        assert got.intervals == expected.intervals
    assert "auroc_ood" not in evaluate(Fixed(), (x, y), bootstrap=0)


def test_curves():
    confidence, accuracy, share = reliability(CLASSES, Y)
    scores = score(CLASSES, Y, bootstrap=0)
    filled = share > 0
    gap = np.abs(confidence - accuracy)[filled] @ share[filled]
    assert gap == pytest.approx(scores["ece"])
    assert share.sum() == pytest.approx(1)
    assert share[filled] @ accuracy[filled] == pytest.approx(scores["accuracy"])
    coverage, risk = risk_coverage(CLASSES, Y)
    assert coverage[-1] == pytest.approx(1)
    assert risk[-1] == pytest.approx(1 - scores["accuracy"])
    assert (np.diff(coverage) > 0).all()
    assert np.diff(coverage, prepend=0) @ risk == pytest.approx(scores["aurc"])
    assert (reliability(Binary(randn(1, 5)), labels(2, 5), bins=2).share == [0, 1]).all()


@pytest.mark.parametrize("seed", range(3))
def test_quantiles_of_the_truth_are_calibrated(seed):
    # Dvoretzky–Kiefer–Wolfowitz: an empirical cdf of n = 4000 strays by 0.04 with chance 2 exp(−2 n 0.04²) = 6e-6.
    prediction = Reals(randn(3, 4000, seed=seed), torch.tensor(0.5))
    rows, network = torch.arange(4000), labels(3, 4000, seed=seed + 10)  # one network per row: independent rows
    y = prediction.means[network, rows] + 0.5 * randn(4000, seed=seed + 20)
    nominal, empirical = quantile_calibration(prediction, y)
    assert len(nominal) == 19
    assert np.abs(nominal - empirical).max() < 0.04


def test_errors_say_what_to_do():
    class Other(Prediction):
        shape = torch.Size([1])
        aleatoric = epistemic = uncertainty = point = torch.zeros(1)

        def target(self, y):
            return y

        log_prob = sample = summary = target

    cases = [
        (lambda: score(CLASSES, Y, bootstrap=-1), "bootstrap must be a number of resamples, 0 or more: got -1"),
        (lambda: score(CLASSES, Y[:3]), r"must have shape \[300\].*got \[3\]"),
        (lambda: score(Classes(torch.zeros(1, 0, 3)), Y[:0]), "at least one example: got none"),
        (
            lambda: score(CLASSES, Y, Reals(randn(1, 3), torch.ones(()))),
            r"ood must be a Classes .*got Reals of 3 examples",
        ),
        (lambda: reliability(CLASSES, Y, bins=0), "bins must be at least 1: got 0"),
        (
            lambda: quantile_calibration(Reals(randn(1, 3), torch.ones(())), randn(3), levels=0),
            "levels must be at least 1",
        ),
        (lambda: score(Reals(randn(1, 2), torch.ones(())), torch.tensor([0.0, math.nan])), "got nan at row 1"),
    ]
    for call, message in cases:
        with pytest.raises(ValueError, match=message):
            call()
    with pytest.raises(TypeError, match="prediction must be Classes, Binary, Reals or Counts: got Other"):
        score(Other(), torch.zeros(1))


def test_scores_in_a_notebook_are_escaped():
    page = Scores({"<b>": 0.9}, {"<b>": (0.85, 0.94)})._repr_html_()
    assert "<td>&lt;b&gt;</td><td>0.9</td><td>0.85 to 0.94</td>" in page
    assert "<b>" not in page
