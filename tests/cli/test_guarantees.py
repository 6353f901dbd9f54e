"""`bayesrule fit --guarantee`: rows that training never sees, promises in words, columns of predictions."""

import io
import json
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
import torch

import bayesrule as br
from bayesrule.cli.guarantees import spared_rows, told_apart
from bayesrule.cli.options import RunSettings
from bayesrule.cli.runs import Run
from bayesrule.data import Split
from bayesrule.data.splits import Groups

LINE = ("--method", "map", "--epochs", 3)


def table(path, n=400):
    """Numbers, and a class that is mostly right to guess from the first of them."""
    random = np.random.default_rng(0)
    size = random.normal(10, 3, n)
    pay = (2 * size + random.normal(0, 1, n)).round(3)
    grade = np.where(pay + random.normal(0, 1, n) > 20, "=high", "low, or so")
    pd.DataFrame({"size": size, "pay": pay, "grade": grade}).to_csv(path, index=False)
    return path


@pytest.fixture
def finished(bayesrule, tmp_path):
    """Finished runs with a promise: of numbers and of classes."""

    def run(target, *more, n=400):
        data = table(tmp_path / "t.csv", n)
        drop = "grade" if target == "pay" else "pay"
        code, _, err = bayesrule("fit", data, "--target", target, "--drop", drop, *LINE, *more, "--out", target)
        return code, err, tmp_path / target, data

    return run


def test_numbers_from_fit_to_predictions(bayesrule, finished):
    code, err, run, data = finished("pay", "--guarantee", 0.9)
    assert code == 0
    assert "256 examples to train on, 80 held out, 64 to calibrate the guarantee on" in err
    sentence = "90 % of intervals hold the truth, as calibrated on 64 rows; on the 80 test examples"
    assert sentence in err
    assert sentence in (run / "report.html").read_text()
    assert json.loads((run / "scores.json").read_text())["methods"]["map"]["promises"][0].startswith(sentence)
    loaded = br.load_run(run)
    held = loaded.posterior.info["n"]
    assert held <= 256  # what was trained on: neither test nor calibration rows
    predictions = pd.read_csv(io.StringIO(bayesrule("predict", run, data)[1]))
    ends = predictions[["guaranteed_lower_90", "guaranteed_upper_90"]].to_numpy()
    pay = pd.read_csv(data)["pay"].to_numpy()
    assert 0.8 < ((ends[:, 0] <= pay) & (pay <= ends[:, 1])).mean() < 0.99
    again = loaded.predict(pd.read_csv(data))
    assert again["guaranteed_lower_90"].to_numpy() == pytest.approx(ends[:, 0])
    assert "promises nothing" not in err


def test_classes_from_fit_to_predictions(bayesrule, finished):
    code, err, run, data = finished("grade", "--guarantee", 0.8)
    assert code == 0
    assert "80 % of sets hold the truth, as calibrated on 64 rows; on the 80 test examples" in err
    assert "of 100 answers given, at most 20 wrong, with 95 % confidence, as calibrated on 64 rows" in err
    assert "of the 80 test examples" in err
    predictions = bayesrule("predict", run, data, "--json")[1]
    rows = json.loads(predictions)
    sets = {row["guaranteed_set_80"] for row in rows}
    assert sets <= {"=high", "low, or so", "=high | low, or so"}
    assert {row["answered"] for row in rows} <= {True, False}
    text = bayesrule("predict", run, data)[1]
    assert list(pd.read_csv(io.StringIO(text)))[-3:] == ["guaranteed_set_80", "answered", "unusual"]
    assert ",'=high" in text  # safe for spreadsheets
    entry = bayesrule("evaluate", run, data)
    assert entry[0] == 0


def test_too_few_rows_for_answers_are_told(finished):
    code, err, _, _ = finished("grade", "--guarantee", 0.95)
    assert code == 0
    assert "how often answers are wrong is not promised: 104 rows to calibrate on are needed" in err
    assert "95 % of sets hold the truth" in err


def test_training_never_sees_the_rows(finished, tmp_path):
    """Neither the network nor the recipe for the columns changes when their cells do."""
    finished("pay", "--guarantee", 0.9)
    first = Run.read(tmp_path / "pay")
    split = br.data.load_table(tmp_path / "t.csv", "pay", without=("grade",), calibration=lambda n: 64)[0]
    spared = split.calibration[0][:, 0].numpy()
    frame = pd.read_csv(tmp_path / "t.csv")
    mine = frame["size"].isin(spared)
    assert mine.sum() >= 64
    frame.loc[mine, "size"] = 1e6 + np.arange(mine.sum())
    frame.to_csv(tmp_path / "t.csv", index=False)
    other, schema = br.data.load_table(tmp_path / "t.csv", "pay", without=("grade",), calibration=lambda n: 64)
    assert schema.columns == first.schema.columns
    assert float(other.calibration[0].min()) >= 1e6 - 1
    assert float(other.train[0].max()) < 1e6


def test_a_finished_run_keeps_its_promise_and_an_interrupted_one_gets_it(bayesrule, finished):
    code, _, run, data = finished("pay", "--guarantee", 0.9)
    first = bayesrule("predict", run, data)[1]
    before = (run / "posterior.safetensors").read_bytes()
    code, _, err = bayesrule("fit", "--resume", "--out", run)
    assert code == 0
    assert "90 % of intervals hold the truth" in err
    assert (run / "posterior.safetensors").read_bytes() == before
    loaded = br.load_run(run).posterior  # as if it had been killed between the posterior and its promise
    loaded.with_context(guarantees=br.posteriors.Guarantees()).save(run / "posterior.safetensors")
    assert bayesrule("fit", "--resume", "--out", run)[0] == 0
    assert bayesrule("predict", run, data)[1] == first


def test_a_named_set_has_a_promise_too(bayesrule):
    code, _, err = bayesrule("fit", "moons", *LINE, "--guarantee", 0.9, "--out", "moons")
    assert code == 0
    assert "to calibrate the guarantee on" in err
    assert "90 % of sets hold the truth" in err


@pytest.mark.parametrize(
    ("level", "words"),
    [
        (1.5, "--guarantee must be between 0 and 1, both excluded, got 1.5: for 90 % give 0.9"),
        (0, "--guarantee must be between 0 and 1, both excluded, got 0"),
        (0.999, "--guarantee 0.999 needs at least 999 rows to calibrate on, and of 320 training rows at most half"),
    ],
)
def test_promises_that_cannot_be_made(finished, level, words):
    code, err, run, _ = finished("pay", "--guarantee", level)
    assert code == 2
    assert words in err
    assert not (run / "run.json").exists()


def test_runs_without_a_promise_have_no_such_columns(bayesrule, finished):
    _, err, run, data = finished("pay")
    assert "hold the truth" not in err
    assert "guaranteed" not in bayesrule("predict", run, data)[1]
    assert "What is promised" not in (run / "report.html").read_text()


def test_a_promise_for_each_group_from_fit_to_predictions(bayesrule, finished, tmp_path):
    code, err, run, data = finished("pay", "--guarantee", 0.8, "--groups", "grade")
    assert code == 0, err
    assert "80 % of intervals hold the truth in each of 2 groups, as calibrated on" in err
    assert "on the 80 test examples" in err
    promise = br.load_run(run).posterior.guarantees.conformal
    assert promise.groups == ("=high", "low, or so")
    frame = pd.read_csv(data)
    out = pd.read_csv(io.StringIO(bayesrule("predict", run, data)[1]))
    width = out["guaranteed_upper_80"] - out["guaranteed_lower_80"]
    low, high = br.load_run(run).posterior.predict_interval(frame[["size"]].to_numpy(), frame["grade"].tolist())
    assert width.to_numpy() == pytest.approx((high - low).numpy(), rel=1e-4)

    frame.loc[:4, "grade"] = "none of these"
    some = br.load_run(run).predict(frame)
    assert some["guaranteed_lower_80"].isna().tolist() == [True] * 5 + [False] * 395
    assert some["guaranteed_lower_80"][5:].to_numpy(dtype=float) == pytest.approx(out["guaranteed_lower_80"][5:])
    frame.to_csv(tmp_path / "new.csv", index=False)
    code, out, err = bayesrule("evaluate", run, tmp_path / "new.csv")
    assert code == 0, err
    frame.drop(columns="grade").to_csv(tmp_path / "less.csv", index=False)
    code, _, err = bayesrule("predict", run, tmp_path / "less.csv")
    assert code == 2
    assert "unknown column of groups 'grade'" in err


@pytest.mark.parametrize(
    ("line", "words"),
    [
        (("--groups", "grade"), "--groups grade needs --guarantee P: groups are what it is calibrated for"),
        (("--guarantee", 0.9, "--groups", "grad"), "unknown column of groups 'grad': did you mean 'grade'?"),
        (("--guarantee", 0.9, "--groups", "pay"), "--groups must not name the target, got 'pay'"),
        (
            ("--guarantee", 0.97, "--groups", "grade"),
            "--groups must have at least 33 rows of each group to calibrate --guarantee 0.97 on, but of",
        ),
    ],
)
def test_groups_that_nothing_can_be_promised_for(finished, line, words):
    code, err, run, _ = finished("pay", *line)
    assert code == 2
    assert words in err
    assert not (run / "run.json").exists()


def test_a_group_must_be_known_and_a_named_set_has_none(bayesrule, finished, tmp_path):
    data = table(tmp_path / "t.csv")
    frame = pd.read_csv(data)
    frame.loc[3, "grade"] = None
    frame.to_csv(tmp_path / "holes.csv", index=False)
    line = ("fit", data, "--target", "pay", "--drop", "grade", *LINE, "--out", "holes")
    code, _, err = bayesrule(*line, "--guarantee", 0.8, "--groups", "grade", "--test", tmp_path / "holes.csv")
    assert code == 2
    assert "groups 'grade' must be known for every row" in err
    code, _, err = bayesrule("fit", "moons", *LINE, "--guarantee", 0.9, "--groups", "x1", "--out", "moons")
    assert code == 2
    assert "--groups is for .csv and .parquet files, but DATA is the name 'moons'" in err


def test_recalibrated_on_rows_of_its_own(bayesrule, finished):
    code, err, run, _ = finished("grade", "--recalibrate", "all", "--guarantee", 0.8)
    assert code == 0, err
    assert "192 examples to train on, 80 held out, 128 to recalibrate and to calibrate the guarantee on" in err
    posterior = br.load_run(run).posterior
    assert posterior.info["calibration"]["examples"] == 64
    assert sorted(posterior.info["calibration"]["tried"]) == ["isotonic", "temperature", "vector"]
    assert posterior.guarantees.conformal.rows == (64,)
    assert "temperature of the classes" in err
    before = (run / "posterior.safetensors").read_bytes()
    assert bayesrule("fit", "--resume", "--out", run)[0] == 0
    assert (run / "posterior.safetensors").read_bytes() == before


def test_recalibrated_without_a_promise_and_in_groups(bayesrule, finished):
    code, err, run, _ = finished("pay", "--recalibrate", "scale", "--likelihood", "heteroscedastic")
    assert code == 0, err
    assert "64 to recalibrate on" in err
    assert br.load_run(run).posterior.info["calibration"]["examples"] == 64
    before = (run / "posterior.safetensors").read_bytes()
    assert bayesrule("fit", "--resume", "--out", run)[0] == 0
    assert (run / "posterior.safetensors").read_bytes() == before


def test_rows_to_recalibrate_on_have_no_say_in_the_promise():
    x = torch.arange(100.0)[:, None]
    groups = Groups((), tuple(str(int(row) % 2) for row in x[:, 0]))
    split = Split("t", "reals", "", (x, x[:, 0]), (x[:60], x[:60, 0]), calibration=(x, x[:, 0]), groups=groups)
    settings = RunSettings("t", guarantee=0.8, recalibrate="all")
    (mine, _), left = told_apart(split, settings)
    assert len(mine) == 32  # a fifth of 160
    rows = left.calibration[0]
    assert sorted([*mine[:, 0].tolist(), *rows[:, 0].tolist()]) == list(range(100))
    assert left.groups.calibration == tuple(str(int(row) % 2) for row in rows[:, 0])
    with pytest.raises(ValueError, match="--recalibrate and --guarantee together need 22 rows"):
        spared_rows(replace(settings, guarantee=0.93), 40)


@pytest.mark.parametrize(
    ("target", "kind", "words"),
    [
        ("pay", "all", "--recalibrate must be one that likelihood gaussian has (none, since its noise is settled"),
        ("grade", "scale", "--recalibrate must be one that likelihood categorical has (temperature, vector, isotonic)"),
    ],
)
def test_what_a_likelihood_cannot_be_recalibrated_by(finished, target, kind, words):
    code, err, run, _ = finished(target, "--recalibrate", kind)
    assert code == 2
    assert words in err
    assert not (run / "run.json").exists()
