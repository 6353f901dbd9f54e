"""The calibration error of a perfectly calibrated prediction is not zero: scores say what it is."""

import json

import pytest
import torch

from bayesrule.evaluate import score
from bayesrule.evaluate.null import calibration_null, confidences
from bayesrule.evaluate.weighted import calibration_error, calibration_gaps
from bayesrule.predictions import Binary, Classes, Reals


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


def calibrated(n, seed):
    """Yes/no predictions of any confidence, and targets that are drawn from them."""
    logits = 3 * torch.randn(1, n, generator=generator(seed), dtype=torch.float64)
    return Binary(logits), torch.bernoulli(logits[0].sigmoid(), generator=generator(seed + 1)).long()


def drawn_errors(confidence, count):
    """Calibration errors of labels drawn from the confidences, one loop for each."""
    g, ones = generator(7), torch.ones(1, len(confidence), dtype=torch.float64)
    errors = []
    for _ in range(count):
        correct = torch.bernoulli(confidence, generator=g)
        errors.append(float(calibration_error(calibration_gaps(confidence, correct, 15))(ones)))
    return torch.tensor(errors, dtype=torch.float64)


@pytest.mark.parametrize("power", [1.0, 0.05])  # confidences all over, and nearly all close to one
def test_the_null_is_the_law_of_the_error_under_calibration(power):
    """Mean within 4 standard errors of both; the share above the 95 % quantile is 5 ± 2.5 %, 4 deviations of each."""
    confidence = 0.1 + 0.9 * torch.rand(359, generator=generator(), dtype=torch.float64) ** power
    null = calibration_null(confidences(confidence, 15), 2000, generator(1))
    errors = drawn_errors(confidence, 2000)
    assert abs(null.mean - errors.mean()) <= 4 * errors.std() * (2 / 2000) ** 0.5
    assert 0.025 <= (errors > null.upper).double().mean() <= 0.075


def test_few_examples_have_a_large_null_and_many_a_small_one():
    few, many = (torch.linspace(0.1, 1, n, dtype=torch.float64) for n in (359, 359_000))
    assert calibration_null(confidences(few, 15), 1000, generator()).mean == pytest.approx(0.065, abs=0.004)
    assert calibration_null(confidences(many, 15), 1000, generator()).mean < 0.003


def test_scores_of_classes_show_their_calibration_error_with_its_null():
    prediction, y = calibrated(400, 0)
    scores = score(prediction, y)
    null = scores.null("ece")
    assert 0 < null.mean < null.upper
    assert scores["ece"] < 2 * null.mean
    assert f"if calibrated: {null.mean:.4g}, 95 % below {null.upper:.4g}" in repr(scores)
    plain = json.loads(json.dumps(scores.to_json()))
    assert (plain["ece"]["null"], plain["ece"]["null_95"]) == null
    assert score(prediction, y).null("ece") == null
    assert score(prediction.classes, y).null("ece") == null
    assert score(Classes(2 * prediction.classes.logits), y)["ece"] > null.upper  # overconfident


def test_there_is_no_null_without_simulations_nor_of_other_scores():
    prediction, y = calibrated(30, 0)
    for scores, name in ((score(prediction, y), "nll"), (score(prediction, y, bootstrap=0), "ece")):
        with pytest.raises(ValueError, match=f"'{name}' has no null: only 'ece' has one"):
            scores.null(name)
    with pytest.raises(ValueError, match="unknown score 'ecce': did you mean 'ece'"):
        score(prediction, y).null("ecce")
    assert not score(Reals(torch.zeros(1, 4), torch.ones(())), torch.zeros(4)).nulls
