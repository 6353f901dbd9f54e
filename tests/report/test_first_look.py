"""What a report says first, what it says of classes and columns, and what it folds away."""

import json
import re

import pandas as pd
import pytest
import torch

import bayesrule as br
from bayesrule.cli import main
from bayesrule.data import Split
from bayesrule.evaluate import score
from bayesrule.predictions import Classes, Reals
from bayesrule.report import Comparison, Entry, verdict
from bayesrule.report.by_class import by_class
from bayesrule.report.effects import effects
from bayesrule.report.page import render
from bayesrule.report.verdict import gain

Y = torch.tensor([0, 1] * 20)
X = torch.randn(40, 3, generator=torch.Generator().manual_seed(0))
SPLIT = Split("forty", "classes", "forty rows", (X, Y), (X, Y), ("no", "yes"))


def entry(name, sure, y=Y):
    """A method that gives every label the probability e^sure to 1."""
    prediction = Classes(sure * torch.eye(2)[y][None])
    return Entry(name, score(prediction, y, bootstrap=10), prediction)


def test_the_verdict_compares_with_the_best_baseline_example_by_example():
    good, plain = entry("ours", 3.0), entry("linear", 1.0)
    said = verdict(Comparison(SPLIT, [good], baselines=[plain, entry("base rate", 0.0)]))
    assert said.startswith(
        "ours is right in 100.0 % of cases on 40 test examples, and is better than the best baseline"
    )
    assert "linear" in said
    assert verdict(Comparison(SPLIT, [plain], baselines=[good])).count("worse than") == 1
    assert "not distinguishable from" in verdict(Comparison(SPLIT, [plain], baselines=[plain]))
    assert verdict(Comparison(SPLIT, [plain])).endswith("test examples.")


def test_the_gain_is_that_of_pairs():
    """Two that err on the same examples differ by a constant, which is certain although each NLL is not."""
    y = torch.randn(50, generator=torch.Generator().manual_seed(1)).double()
    one, other = (Reals(torch.zeros(1, 50).double(), torch.tensor(s).double()) for s in (1.0, 2.0))
    entries = [Entry(name, score(p, y, bootstrap=10), p) for name, p in (("one", one), ("other", other))]
    found = gain(*entries, y)
    per_example = torch.distributions.Normal(0.0, 1.0).log_prob(y) - torch.distributions.Normal(0.0, 2.0).log_prob(y)
    assert found.mean == pytest.approx(float(per_example.mean()), abs=1e-6)
    assert found.half == pytest.approx(1.96 * float(per_example.std()) / 50**0.5, rel=1e-6)


def test_confusions_agree_with_scikit_learn():
    from sklearn.metrics import confusion_matrix, precision_score, recall_score

    generator = torch.Generator().manual_seed(2)
    y = torch.randint(3, (60,), generator=generator)
    prediction = Classes(torch.randn(1, 60, 3, generator=generator))
    split = Split("s", "classes", "", (torch.zeros(60, 1), y), classes=("a", "b", "c"))
    found = by_class(prediction, split)
    assert found.counts == confusion_matrix(y, prediction.label).tolist()
    for average, shown in ((recall_score, "recall"), (precision_score, "precision")):
        expected = [f"{100 * value:.0f} %" for value in average(y, prediction.label, average=None)]
        assert [getattr(row, shown) for row in found.rows] == expected


def test_many_classes_are_listed_by_their_confusions():
    y = torch.arange(20)
    split = Split("s", "classes", "", (torch.zeros(20, 1), y), classes=tuple(f"c{i}" for i in range(20)))
    said = y.clone()
    said[3] = 4
    found = by_class(Classes(9.0 * torch.eye(20)[said][None]), split)
    assert found.counts == []
    assert [pair._asdict() for pair in found.pairs] == [{"true": "c3", "predicted": "c4", "examples": 1}]


def test_r2_is_scikit_learns():
    from sklearn.metrics import r2_score

    y = 1e6 + torch.randn(30, generator=torch.Generator().manual_seed(3)).double()
    mean = y + 0.3 * torch.randn(30, generator=torch.Generator().manual_seed(4)).double()
    scores = score(Reals(mean[None], torch.ones(()).double()), y, bootstrap=20)
    assert scores["r2"] == pytest.approx(r2_score(y, mean), rel=1e-6)
    low, high = scores.interval("r2")
    assert low < scores["r2"] < high <= 1
    constant = score(Reals(mean[None], torch.ones(()).double()), torch.full((30,), 7.0).double(), bootstrap=0)
    assert constant["r2"] == 0
    several = score(Reals(torch.zeros(1, 5, 2), torch.ones(())), torch.zeros(5, 2), bootstrap=0)
    assert "r2" not in several


@pytest.fixture(scope="module")
def linear():
    """A posterior over straight lines y = 3a + 0b, learnt in the user's units from rows that scatter little."""
    generator = torch.Generator().manual_seed(5)
    x = 10 * torch.randn(120, 2, generator=generator)
    y = 3 * x[:, 0] + 0.5 * torch.randn(120, generator=generator) + 100
    split = Split("line", "reals", "", (x[:60], y[:60]), (x[60:], y[60:]), features=("a", "b"))
    train, model = br.data.standardize(split.train), torch.nn.Linear(2, 1)
    batch = train.all()
    best = torch.linalg.lstsq(batch.x, batch.y.reshape(-1, 1)).solution  # of standardised columns: no bias
    with torch.no_grad():
        model.weight.copy_(best.T)
        model.bias.zero_()
    return br.fit(model, train, "laplace", epochs=0), split


def test_the_effect_of_a_column_is_that_of_the_line(linear):
    posterior, split = linear
    first, second = effects(posterior, split, None, samples=200, seed=0)
    assert (first.column, second.column) == ("a", "b")
    low, high = (float(step) for step in first.step)
    assert first.change == pytest.approx(3 * (high - low), rel=0.02)
    assert first.low < 3 * (high - low) < first.high
    assert second.low < 0.3
    assert second.high > -0.3
    assert first.lost > first.half > 0
    assert abs(second.lost) < first.lost / 50


def test_one_network_has_no_interval(linear):
    posterior, split = linear
    one = br.posteriors.Particles([posterior.mean], posterior.context)
    found = effects(one, split, None, samples=8, seed=0)
    assert {effect.interval for effect in found} == {"one network"}


def test_columns_of_a_table_go_between_values_that_rows_have(tmp_path):
    n = 80
    frame = pd.DataFrame(
        {
            "when": pd.date_range("2024-01-01", periods=n).strftime("%Y-%m-%d"),
            "plan": ["basic", "basic", "plus", "business"] * (n // 4),
            "asked": ["yes", "no"] * (n // 2),
            "spent": [float(i % 7) if i % 9 else None for i in range(n)],
            "left": ["stays", "goes"] * (n // 2),
        }
    )
    frame.to_csv(tmp_path / "t.csv", index=False)
    line = ["fit", str(tmp_path / "t.csv"), "--target", "left", "--method", "map", "--epochs", "2"]
    assert main([*line, "--out", str(tmp_path / "run")]) == 0
    scores = json.loads((tmp_path / "run/scores.json").read_text())
    (method,) = scores["methods"].values()
    steps = {effect["column"]: effect["step"] for effect in method["effects"]}
    assert steps["plan"] in (["basic", "plus"], ["basic", "business"])
    assert sorted(steps["asked"]) == ["no", "yes"]
    assert all(re.fullmatch(r"2024-\d\d-\d\d", day) for day in steps["when"])
    assert steps["spent"] == ["0", "6"]
    assert scores["verdict"].startswith("map is right in ")
    page = (tmp_path / "run/report.html").read_text()
    assert scores["verdict"] in page.replace("&#39;", "'")
    assert "Leaderboard" not in page  # of one method
    assert all(f'id="{section}"' in page for section in ("classes", "effects", "operating", "training"))


def test_many_methods_fold_away(unpainted):
    entries = [entry(f"method {i}", 1 + i / 10) for i in range(9)]
    page = render(Comparison(SPLIT, entries, baselines=[entry("linear", 0.5)]))
    board = page[page.index('id="leaderboard"') : page.index('id="classes"')]
    first, rest = board.split("<summary>3 more methods</summary>")
    assert "method 8" in first
    assert "method 3" in first
    assert "linear (baseline)" in first
    assert "method 2" not in first
    assert "method 0" in rest
    seven = render(Comparison(SPLIT, entries[:7]))
    assert "more method" not in seven  # a fold of one is worth nothing


NARROW, LEAST = 380, 9


@pytest.mark.parametrize("width", [NARROW, 1200])
def test_the_page_fits_and_its_letters_can_be_read(width, fitting):
    """Nothing sticks out to the right, and no letter of a figure is smaller than nine pixels."""
    entries = [entry("a method of a long name", 3.0), entry("b", 1.0)]
    found = fitting(render(Comparison(SPLIT, entries, baselines=[entry("linear", 0.5)])), width)
    assert found["texts"] > 20
    assert found["wide"] <= width
    assert found["least"] >= LEAST
