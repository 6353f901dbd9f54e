"""Pictures of doubt: columns that tell, rows and why they are uncertain, strangers and shifts in the report."""

import json

import pandas as pd
import pytest
import torch

import bayesrule as br
from bayesrule.cli import main
from bayesrule.data import Split
from bayesrule.predictions import Classes, Reals
from bayesrule.report import Comparison, examine
from bayesrule.report.doubt import doubt, parts
from bayesrule.report.page import render

GENERATOR = torch.Generator().manual_seed(0)
X = torch.randn(80, 3, generator=GENERATOR)
SPLIT = Split("rows", "reals", "rows", (X[:40], X[:40, 1]), (X[40:], X[40:, 1]), features=("a", "b", "c"))


def by_second(x):
    """A law whose mean is the second column and whose noise grows with the third."""
    return Reals(x[None, :, 1], (1 + x[:, 2].abs())[None])


def test_the_telling_column_and_the_one_that_makes_rows_uncertain():
    found = doubt(by_second, by_second(SPLIT.test[0]), SPLIT, None)
    assert found.columns == ("b",)
    assert found.prediction.mean.numpy() == pytest.approx(found.axes[0], abs=1e-6)
    # the other columns are at their medians
    assert found.prediction.std.numpy() == pytest.approx(1 + abs(float(X[40:, 2].median())), abs=1e-5)
    assert found.axes[0][0] < float(X[:, 1].min()) < float(X[:, 1].max()) < found.axes[0][-1]
    least = X[:40, 2].abs().argsort(descending=True)[:5].tolist()
    assert sorted(found.causes) == sorted(least)
    assert all(why.startswith("c: typical there") for why in found.causes.values())


def test_no_column_is_blamed_where_none_is_to_blame():
    def constant(x):
        return Reals(x[None, :, 1], torch.ones(()))

    assert set(doubt(constant, constant(X[:40]), SPLIT, None).causes.values()) == {"no single column"}


def test_pictures_one_column_and_very_many_have_none():
    def two(x):
        return Classes(x[None, :, :2])

    wide = torch.zeros(10, 41)
    for split in (
        Split("p", "classes", "", (X, X[:, 0] > 0), classes=("0", "1"), image_shape=(1, 1, 3)),
        Split("one", "reals", "", (X[:, :1], X[:, 0])),
        Split("wide", "reals", "", (wide, wide[:, 0])),
    ):
        assert doubt(two, two(X), split, None) is None


def test_categories_are_at_the_most_frequent_one(tmp_path):
    frame = pd.DataFrame({"n": range(60), "c": ["x", "y", "y"] * 20, "t": [0.5 * i for i in range(60)]})
    frame.to_csv(tmp_path / "t.csv", index=False)
    split, schema = br.data.load_table(tmp_path / "t.csv", "t")[:2]
    number, category = parts(split, schema)
    assert (number.name, number.numeric, category.name, category.numeric) == ("n", True, "c", False)
    names = schema.columns[1].categories
    assert [names[i] for i in category.typical.nonzero()[:, 0].tolist()] == ["y"]


def test_a_report_of_a_table_has_its_pictures_escaped():
    odd = ("<b>", "x_1$", "c")
    split = Split("rows", "reals", "rows", SPLIT.test, SPLIT.training, features=odd, ood=X[:20] + 9)
    posterior = br.fit(br.models.mlp(3, 1, hidden=(4,)), br.data.standardize(split.train), "ensemble", epochs=2)
    curves = br.evaluate.under_shift({"ensemble": posterior}, split.test, "noise")
    comparison = Comparison(split, [examine("ensemble", posterior, split)], shifts=[curves])
    page = render(comparison)
    for id in ("bands", "strangers", "shift-noise"):
        assert f'<section id="{id}">' in page
    assert "most of the doubt" in page
    assert "<b>: typical" not in page
    plain = comparison.to_json()
    assert plain["shifts"][0]["shift"] == "noise"
    assert "epistemic variance" in plain["methods"]["ensemble"]["strangers"]


def test_compare_with_shifts_and_strangers(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    frame = pd.DataFrame(X.numpy(), columns=["a", "b", "c"])
    frame["t"] = (frame.a + frame.b > 0).map({True: "yes", False: "no"})
    frame.to_csv("rows.csv", index=False)
    frame.drop(columns="t").add(9).to_csv("odd.csv", index=False)
    line = "compare rows.csv --target t --methods map --epochs 2 --hidden 4 --shift missing,tilt --ood odd.csv"
    assert main([*line.split(), "--distance-aware", "--out", "out"]) == 0
    plain = json.loads((tmp_path / "out/scores.json").read_text())
    assert [curves["shift"] for curves in plain["shifts"]] == ["missing", "tilt"]
    assert set(plain["methods"]) == {"map", "map, distance-aware"}
    after = plain["methods"]["map, distance-aware"]["strangers"]["mutual information"]["auroc"]["value"]
    assert after > 0.9
    assert '<section id="regions">' in (tmp_path / "out/report.html").read_text()


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("compare digits --methods map --shift rotatoin", "did you mean 'rotation'"),
        ("compare moons --methods map --shift fog", "each input is of shape [2]"),
        ("compare digits --methods map --ood moons", "inputs of the shape of DATA, [64], but those of moons are [2]"),
        ("compare digits --methods map --ood odd.csv", "--ood must be the name of a set"),
        ("fit digits --augment flip", "did you mean 'flips'"),
    ],
)
def test_bad_input_is_told_before_training(line, message, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert main([*line.split(), "--out", "out"]) != 0
    assert message in capsys.readouterr().err


def test_a_fit_knows_less_far_away_and_keeps_it(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    line = "fit moons --method map --epochs 2 --hidden 8 --distance-aware --out out"
    assert main(line.split()) == 0
    assert main(["predict", "out", "moons", "--out", "p.csv"]) == 0
    found = br.load("out/posterior.safetensors", br.models.tabular(2, 2, hidden=(8,)))
    assert type(found).__name__ == "DistanceAware"
