import math
import sys
from dataclasses import replace

import numpy as np
import pytest
import torch

from bayesrule.data import Split
from bayesrule.evaluate import baselines, score
from bayesrule.evaluate.baselines import Baseline
from bayesrule.predictions import Classes, Counts, Reals
from bayesrule.report import Comparison, Entry, board, examine_baselines


def split(kind, x, y, classes=()):
    """The first two thirds to train on, the others to test on."""
    n = 2 * len(y) // 3
    x, y = torch.from_numpy(x), torch.from_numpy(y)
    return Split("made", kind, "made up", (x[n:], y[n:]), (x[:n], y[:n]), classes)


def line(n=600, noise=0.5):
    """A straight line: x, y."""
    random = np.random.default_rng(0)
    x = random.normal(size=(n, 3))
    return x, 10 + 2 * x[:, 0] + noise * random.normal(size=n)


def scores(data):
    return {b.name: score(b.predict(data.test[0]), data.test[1], bootstrap=0) for b in baselines(data)}


def test_the_mean_is_the_normal_law_of_the_training_targets():
    data = split("reals", *line())
    found = next(baselines(data)).predict(data.test[0])
    assert isinstance(found, Reals)
    y = data.train[1]
    torch.testing.assert_close(found.mean, y.mean().expand(200))
    torch.testing.assert_close(found.std, y.std(correction=0).expand(200))
    assert found.epistemic.abs().max() == 0


def test_the_base_rate_is_the_entropy_of_the_labels():
    y = np.tile([0, 0, 1, 2], 60)
    found = scores(split("classes", np.zeros((240, 1)) + np.arange(240)[:, None] % 2, y, ("a", "b", "c")))
    assert found["base rate"]["nll"] == pytest.approx(1.5 * math.log(2), rel=1e-5)
    assert found["base rate"]["accuracy"] == 0.5


def test_a_line_is_best_by_the_linear_model_and_its_noise_is_right():
    found = scores(split("reals", *line()))
    truth = 0.5 * math.log(2 * math.pi * math.e * 0.25)  # the entropy of N(0, 0.5²)
    # 200 test examples: the mean of (z² − 1)/2 has the standard deviation 0.05; the seed is fixed, four of it
    assert found["linear"]["nll"] == pytest.approx(truth, abs=0.2)
    assert found["linear"]["nll"] < found["boosting"]["nll"] < found["mean"]["nll"]


def test_the_noise_of_many_rows_is_that_of_one_fold(monkeypatch):
    monkeypatch.setattr(sys.modules[Baseline.__module__], "MANY", 300)
    truth = 0.5 * math.log(2 * math.pi * math.e * 0.25)
    assert scores(split("reals", *line()))["linear"]["nll"] == pytest.approx(truth, abs=0.2)


def test_a_corner_is_best_by_boosting():
    x = np.random.default_rng(0).uniform(-1, 1, size=(900, 2))
    found = scores(split("classes", x, ((x[:, 0] > 0) ^ (x[:, 1] > 0)).astype(int), ("no", "yes")))
    assert found["boosting"]["nll"] < 0.5 * found["linear"]["nll"]
    assert found["linear"]["nll"] == pytest.approx(math.log(2), abs=0.05)


def test_counts():
    random = np.random.default_rng(0)
    x = random.normal(size=(600, 1))
    data = split("counts", x, random.poisson(np.exp(1 + x[:, 0])))
    assert all(isinstance(b.predict(data.test[0]), Counts) for b in baselines(data))
    found = scores(data)
    assert found["linear"]["nll"] < 0.7 * found["mean"]["nll"]
    assert found["boosting"]["nll"] < 0.7 * found["mean"]["nll"]


def test_a_class_that_no_training_row_has():
    x, y = np.random.default_rng(0).normal(size=(90, 2)), np.arange(90) % 2
    y[80] = 2
    for found in scores(split("classes", x, y, ("a", "b", "c"))).values():
        assert np.isfinite(found["nll"])


@pytest.mark.parametrize("n", [4, 12])
def test_few_rows_have_a_base_rate_only(n):
    x, y = line(n)
    assert [b.name for b in baselines(split("reals", x, y))] == ["mean"]


def test_pictures_and_targets_in_single_precision():
    x = np.random.default_rng(0).random((60, 1, 4, 4), dtype=np.float32)
    data = split("classes", x, (x.mean((1, 2, 3)) > 0.5).astype(int), ("dark", "bright"))
    assert all(isinstance(b.predict(data.test[0]), Classes) for b in baselines(data))


def test_the_same_seed_gives_the_same():
    data = split("reals", *line())
    first, again = ([b.predict(data.test[0]).mean for b in baselines(data, seed=3)] for _ in range(2))
    assert all(torch.equal(a, b) for a, b in zip(first, again, strict=True))


def test_of_very_many_rows_a_share(monkeypatch):
    monkeypatch.setattr(sys.modules[Baseline.__module__], "MOST_VALUES", 300)
    data = split("reals", *line())
    assert [b.rows for b in baselines(data)] == [100, 100, 100]
    entries = examine_baselines(data)
    found = board(Comparison(data, entries[:1], baselines=entries))
    assert [row.name for row in found.rows if row.name.startswith("linear")] == ["linear (baseline, 100 rows)"]


def test_a_method_that_is_not_better_than_a_baseline_is_told_so():
    data = split("reals", *line())
    entries = examine_baselines(data)
    mean, linear, _ = entries

    def comparison(like):
        return Comparison(data, [Entry("swag", like.scores, like.prediction)], baselines=entries)

    (said,) = comparison(mean).warnings
    assert said.startswith("swag is not better than the baselines mean (")
    assert "linear (" in said
    assert said.count("boosting") == 1
    assert comparison(mean).to_json()["warnings"] == [said]
    (said,) = comparison(linear).warnings
    assert said.startswith("swag is not better than the baseline linear (")
    truth = Reals(data.test[1][None], torch.tensor(0.1))
    entry = Entry("swag", score(truth, data.test[1]), truth)
    assert Comparison(data, [entry], baselines=entries).warnings == []
    assert board(Comparison(data, [entry], baselines=entries)).rows[0].name == "swag"


def weighted_and_repeated(kind, x, y, classes=()):
    """The same data twice: rows with weights 0 to 3, and rows that are there so many times."""
    data = split(kind, x, y, classes)
    weight = torch.from_numpy(np.random.default_rng(1).integers(0, 4, len(data.train[1])))
    rows = torch.arange(len(weight)).repeat_interleave(weight)
    repeated = replace(data, training=(data.train[0][rows], data.train[1][rows]))
    return replace(data, weight=weight.double()), repeated


def test_a_row_of_weight_w_counts_as_w_rows():
    """Exactly, but for boosting, whose leaves hold twenty rows of whatever weight, and for what folds are made of."""
    random = np.random.default_rng(0)
    x = random.normal(size=(600, 2))
    labels = (x[:, 0] + random.normal(size=600) > 0).astype(int)
    cases = {
        "classes": (labels, ("no", "yes"), ("base rate", "linear")),
        "counts": (random.poisson(np.exp(1 + x[:, 0])), (), ("mean", "linear")),
        "reals": (3 + x[:, 0] + random.normal(size=600), (), ("mean",)),
    }
    for kind, (y, classes, names) in cases.items():
        weighted, repeated = weighted_and_repeated(kind, x, y, classes)
        one, other, plain = scores(weighted), scores(repeated), scores(replace(weighted, weight=None))
        for name in names:
            assert one[name]["nll"] == pytest.approx(other[name]["nll"], rel=1e-4), (kind, name)
            assert abs(one[name]["nll"] - plain[name]["nll"]) > 1e-4, (kind, name)


def test_weights_decide_between_two_lines_for_every_baseline():
    """Half of the rows are of one line, half of another; those of the second weigh nearly nothing."""
    x, y = line()
    other = np.arange(600) % 2 == 1
    y = np.where(other, -y, y)
    data = split("reals", x, y)
    counts = torch.from_numpy(np.where(other[:400], 1e-6, 1.0))
    test = ~other[400:]
    found = {b.name: b.predict(data.test[0][test]) for b in baselines(replace(data, weight=counts))}
    truth = 10 + 2 * data.test[0][test, 0]
    assert (found["linear"].mean - truth).abs().max() < 0.5
    assert (found["boosting"].mean - truth).abs().mean() < 0.7
    assert found["mean"].mean[0] == pytest.approx(10, abs=0.5)
    assert float(found["linear"].std[0]) == pytest.approx(0.5, abs=0.1)


@pytest.mark.parametrize("weighted", [False, True])
def test_categories_by_their_number_are_told_apart(weighted):
    """Effects of 40 categories that their order says nothing of: the errors are hardly larger than the noise."""
    random = np.random.default_rng(0)
    codes = random.integers(1, 41, 800)
    x = torch.from_numpy(np.stack([random.normal(size=800), codes], 1))
    y = torch.from_numpy(random.normal(size=41)[codes] + 0.1 * random.normal(size=800))
    weight = torch.ones(600) if weighted else None
    split = Split("t", "reals", "", (x[600:], y[600:]), (x[:600], y[:600]), weight=weight, categories=(40,))
    for baseline in list(baselines(split))[1:]:
        error = float((baseline.predict(x[600:]).mean - y[600:]).square().mean().sqrt())
        assert error < 0.35, baseline.name
