import csv
import io
import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch

from bayesrule.cli import compare, predict
from bayesrule.cli.runs import checksum
from bayesrule.data import read_table
from bayesrule.methods import AVAILABLE
from bayesrule.predictions import Classes


def test_methods(bayesrule, as_json):
    code, out, _ = bayesrule("methods")
    assert code == 0
    assert all(name in out for name in AVAILABLE)
    assert as_json("methods")["swag"]["fields"]["rank"] == 20
    assert as_json("methods")["ensemble"]["fields"]["base"]["name"] == "map"


def test_data(bayesrule, as_json, tmp_path, monkeypatch):
    monkeypatch.delenv("BAYESRULE_DATA", raising=False)
    code, out, _ = bayesrule("data")
    assert code == 0
    assert "digits" in out
    assert "BAYESRULE_DATA" in out
    there = {entry["name"]: entry["available"] for entry in as_json("data", "--data-dir", tmp_path)}
    assert there["digits"]
    assert not there["mnist"]


def test_fit_on_a_name(bayesrule, tmp_path, painted):
    code, out, err = bayesrule(
        "fit", "moons", "--method", "map", "--epochs", 5, "--hidden", "8,8", "--prior", "kaiming"
    )
    assert code == 0
    assert "accuracy" in out
    assert "200 examples to train on, 200 held out" in err
    folder = tmp_path / "runs" / "moons-map"
    assert sorted(path.name for path in folder.iterdir()) == [
        "posterior.safetensors",
        "report.html",
        "run.json",
        "scores.json",
    ]
    saved = json.loads((folder / "run.json").read_text())
    assert saved["model"] == {"name": "tabular", "inputs": 2, "outputs": 2, "hidden": [8, 8]}
    assert saved["command"] == "bayesrule fit moons --method map --epochs 5 --hidden 8,8 --prior kaiming"


def test_fit_says_what_it_found(bayesrule, tables):
    _, out, err = bayesrule("fit", tables / "grades.csv", "--target", "grade", "--method", "map", "--epochs", 2)
    assert "accuracy" in out
    for note in (
        "120 examples to train on, 30 held out",
        "target 'grade': 3 classes",
        "'planet' dropped",
        "'id' dropped",
        "the prior's width was not settled from the data: a fit of ",
    ):
        assert note in err


def test_influence_is_in_the_report(bayesrule, tables):
    line = ("fit", tables / "grades.csv", "--target", "grade", "--method", "map", "--epochs", 2, "--influence")
    code, _, err = bayesrule(*line, "--out", "worth")
    assert code == 0, err
    page = Path("worth/report.html").read_text()
    assert "What the training examples are worth" in page
    assert "<b>high" not in page.split('id="worth"')[1]  # a class of the table, escaped
    stored = json.loads(Path("worth/scores.json").read_text())["influence"]
    assert set(stored) == {"influential", "suspicious"}
    nll = stored["suspicious"]["nll"]
    assert nll == sorted(nll, reverse=True)
    assert all(0 <= row < 120 for row in stored["influential"]["rows"])


def test_influence_of_the_usual_method(bayesrule, tables):
    """``auto`` is a mixture: its networks are asked one by one."""
    line = ("fit", tables / "houses.csv", "--target", "price", "--epochs", 1, "--influence", "--out", "worth")
    code, _, err = bayesrule(*line)
    assert code == 0, err
    assert "no influence" not in err
    stored = json.loads(Path("worth/scores.json").read_text())
    assert list(stored["methods"]) == ["auto"]
    nll = stored["influence"]["suspicious"]["nll"]
    assert nll == sorted(nll, reverse=True)
    assert all(0 <= row < 120 for row in stored["influence"]["suspicious"]["rows"])
    assert "What the training examples are worth" in Path("worth/report.html").read_text()


def test_influence_that_cannot_be_told_is_said(bayesrule):
    code, _, err = bayesrule("fit", "moons", "--method", "mc-dropout", "--epochs", 1, "--influence", "--out", "worth")
    assert code == 0
    assert "no influence of training examples: a dropout posterior has no network that stands for it" in err
    code, _, err = bayesrule("fit", "moons", "--weights", "w", "--influence", "--out", "other")
    assert code == 2
    assert "--influence does not know weights of rows" in err


def test_same_seed_same_scores(as_json):
    line = ("fit", "sine", "--method", "swag", "--set", "rank=4", "--epochs", 4)
    first, again = (as_json(*line, "--out", out)["methods"]["swag"] for out in "ab")
    other = as_json(*line, "--seed", 1, "--out", "c")["methods"]["swag"]
    assert first["scores"] == again["scores"]
    assert first["intervals"] == again["intervals"]
    assert first["scores"] != other["scores"]


@pytest.mark.parametrize(
    ("options", "score"),
    [
        (("--likelihood", "heteroscedastic"), "crps"),
        (("--likelihood", "poisson"), "coverage_90"),
        (("--kind", "classes"), "accuracy"),
    ],
)
def test_other_likelihoods_and_kinds(as_json, tmp_path, options, score, painted):
    x = np.random.default_rng(0).normal(size=80)
    table = tmp_path / "counts.csv"
    pd.DataFrame({"x": x, "n": np.round(np.exp(0.5 * x)).clip(0, 3).astype(int)}).to_csv(table, index=False)
    line = ("fit", table, "--target", "n", "--method", "map", "--epochs", 3, "--out", tmp_path / "run")
    assert score in as_json(*line, *options)["methods"]["map"]["scores"]
    assert len(as_json("predict", tmp_path / "run", table)) == 80


def test_a_noise_that_the_data_choose(bayesrule, as_json, tmp_path):
    rng = np.random.default_rng(0)
    x = rng.normal(size=200)
    table = tmp_path / "prices.csv"
    pd.DataFrame({"x": x, "price": 100 * np.exp(x + rng.normal(size=200))}).to_csv(table, index=False)
    line = ("fit", table, "--target", "price", "--method", "map", "--epochs", 3, "--likelihood", "auto")
    code, _, err = bayesrule(*line, "--out", tmp_path / "run")
    assert code == 0
    assert "likelihood log-normal, by held-out log-densities of a linear model: gaussian -" in err
    assert json.loads((tmp_path / "run" / "run.json").read_text())["settings"]["likelihood"] == "log-normal"
    assert all(row["lower_90"] > 0 for row in as_json("predict", tmp_path / "run", table))
    assert "nll" in as_json("evaluate", tmp_path / "run", table)["methods"]["map"]["scores"]
    classes = ("fit", "moons", "--method", "map", "--epochs", 2, "--likelihood", "auto", "--out", tmp_path / "moons")
    assert "accuracy" in as_json(*classes)["methods"]["map"]["scores"]


def test_bernoulli_is_two_classes(as_json):
    line = ("--method", "map", "--epochs", 3, "--likelihood", "bernoulli", "--out", "run")
    assert "ece" in as_json("fit", "moons", *line)["methods"]["map"]["scores"]
    assert {"p_upper", "p_lower"} <= set(as_json("predict", "run", "moons")[0])


def test_predict_numbers(bayesrule, runs, tables, tmp_path):
    code, out, _ = bayesrule("predict", runs / "houses", tables / "new.csv")
    assert code == 0
    table = pd.read_csv(io.StringIO(out))
    assert list(table) == ["prediction", "std", "lower_90", "upper_90", "aleatoric_std", "epistemic_std", "unusual"]
    assert len(table) == 7
    assert (table.lower_90 < table.prediction).all()
    assert (table.prediction < table.upper_90).all()
    np.testing.assert_allclose(table["std"] ** 2, table.aleatoric_std**2 + table.epistemic_std**2, rtol=1e-4)
    code, nothing, _ = bayesrule("predict", runs / "houses", tables / "new.csv", "--out", tmp_path / "p.csv")
    assert code == 0
    assert nothing == ""
    assert (tmp_path / "p.csv").read_text() == out
    assert bayesrule("predict", runs / "houses", tables / "new.csv", "--out", tmp_path / "p.csv")[0] == 0


def test_predict_classes(bayesrule, as_json, runs, tables):
    _, out, _ = bayesrule("predict", runs / "grades", tables / "new.csv")
    table = pd.read_csv(io.StringIO(out))
    probs = table[["p_<b>high", "p_low", "p_mid"]]
    assert list(table) == ["prediction", "confidence", *probs, "entropy", "aleatoric", "epistemic", "unusual"]
    np.testing.assert_allclose(probs.sum(axis=1), 1, atol=1e-5)
    np.testing.assert_allclose(table.confidence, probs.max(axis=1))
    assert ("p_" + table.prediction == probs.idxmax(axis=1)).all()
    np.testing.assert_allclose(table.entropy, table.aleatoric + table.epistemic, atol=1e-5)
    assert [row["prediction"] for row in as_json("predict", runs / "grades", tables / "new.csv")] == list(
        table.prediction
    )


def test_evaluate_on_the_training_file_counts_held_out_rows(bayesrule, as_json, runs, tables, tmp_path):
    trained = json.loads((runs / "houses" / "scores.json").read_text())["methods"]["swag"]
    again = as_json("evaluate", runs / "houses", tables / "houses.csv")["methods"]["swag"]
    assert again["scores"] == trained["scores"]
    code, out, err = bayesrule("evaluate", runs / "houses", tables / "houses.parquet", "--out", tmp_path / "scores")
    assert code == 0
    assert "RMSE" in out
    assert "150 examples" in err
    assert {path.name for path in (tmp_path / "scores").iterdir()} == {"scores.json", "report.html"}


def trained(bayesrule, tmp_path, method="map"):
    """A run on a table of its own, whose categories are letters."""
    random = np.random.default_rng(0)
    frame = pd.DataFrame({"letter": random.choice(list("abc"), 60), "x": random.normal(size=60)})
    frame["y"] = (10.0 * (frame["letter"] == "a") + frame["x"]).round(3)
    frame.to_csv(tmp_path / "t.csv", index=False)
    line = ("fit", tmp_path / "t.csv", "--target", "y", "--method", method, "--epochs", 30, "--out", tmp_path / "run")
    assert bayesrule(*line)[0] == 0
    return frame, json.loads((tmp_path / "run" / "scores.json").read_text())["methods"][method]["scores"]


def test_evaluate_on_a_copy_counts_held_out_rows(bayesrule, as_json, tmp_path):
    _, scores = trained(bayesrule, tmp_path)
    (tmp_path / "t.csv").rename(tmp_path / "copy.csv")
    assert as_json("evaluate", "run", "copy.csv")["methods"]["map"]["scores"] == scores


def test_evaluate_on_the_training_file_after_a_change(bayesrule, as_json, tmp_path):
    frame, _ = trained(bayesrule, tmp_path)
    renamed = frame.assign(letter=frame["letter"].replace("a", "z"))
    for path in ("t.csv", "other.csv"):
        renamed.to_csv(tmp_path / path, index=False)
    code, _, err = bayesrule("evaluate", "run", "t.csv", "--out", "scores")
    assert code == 0
    assert "scored on 60 examples" in err
    assert "t.csv is not, byte for byte, the table that the run was trained on: all rows count" in err
    assert "byte for byte" in (tmp_path / "scores" / "report.html").read_text()
    now, other = (as_json("evaluate", "run", path)["methods"]["map"]["scores"] for path in ("t.csv", "other.csv"))
    assert now == other
    predicted = [row["prediction"] for row in as_json("predict", "run", "t.csv")]
    assert now["rmse"] == pytest.approx(np.sqrt(np.mean((frame["y"] - predicted) ** 2)), rel=1e-4)


def test_resume_after_a_change_is_refused(bayesrule, tmp_path):
    frame, _ = trained(bayesrule, tmp_path)
    before = {path: path.read_bytes() for path in (tmp_path / "run").iterdir()}
    frame.assign(y=frame["y"] + 1).to_csv(tmp_path / "t.csv", index=False)
    code, out, err = bayesrule("fit", "--resume", "--out", "run")
    assert (code, out) == (2, "")
    assert "t.csv is not, byte for byte, that one any more: put the old file back, or start a new run" in err
    assert {path: path.read_bytes() for path in (tmp_path / "run").iterdir()} == before
    frame.to_csv(tmp_path / "t.csv", index=False)
    assert bayesrule("fit", "--resume", "--out", "run")[0] == 0


def test_a_run_keeps_its_own_schema(bayesrule, as_json, tmp_path):
    """Also where this version would learn another one from the same table."""
    _, scores = trained(bayesrule, tmp_path)
    path = tmp_path / "run" / "run.json"
    plain = json.loads(path.read_text())
    plain["schema"]["columns"][0]["categories"].reverse()
    path.write_text(json.dumps(signed(plain)))
    assert as_json("evaluate", "run", "t.csv")["methods"]["map"]["scores"]["rmse"] > 2 * scores["rmse"]


def signed(plain):
    """With the checksum of what is in it now."""
    rest = {key: value for key, value in plain.items() if key != "sha256"}
    return rest | {"sha256": checksum(rest)}


def test_a_run_without_the_fingerprint_of_its_table(bayesrule, tmp_path):
    trained(bayesrule, tmp_path)
    path = tmp_path / "run" / "run.json"
    plain = json.loads(path.read_text())
    del plain["table"]
    path.write_text(json.dumps(signed(plain)))
    assert "all rows count" in bayesrule("evaluate", "run", "t.csv")[2]
    assert bayesrule("fit", "--resume", "--out", "run")[0] == 2


def test_a_parquet_file(bayesrule, tables):
    line = ("fit", tables / "houses.parquet", "--target", "price", "--method", "map", "--epochs", 2)
    assert bayesrule(*line)[0] == 0


def test_compare(bayesrule, as_json, tmp_path, painted):
    line = ("compare", "moons", "--methods", "map,swag", "--set", "swag.rank=5", "--epochs", 5, "--out", "both")
    code, out, _ = bayesrule(*line)
    assert code == 0
    assert "×" in out
    plain = json.loads((tmp_path / "both" / "scores.json").read_text())
    about = {"data", "command", "commit", "seed", "date", "machine", "versions"}
    assert set(plain) == {*about, "verdict", "methods", "baselines", "warnings"}
    assert plain["verdict"] in out.replace("\n", " ")
    assert set(plain["baselines"]) == {"base rate", "linear", "boosting"}
    assert out.count("(baseline)") == 3
    assert "boosting (baseline)" in (tmp_path / "both" / "report.html").read_text()
    assert set(plain["methods"]["swag"]) == {
        "scores",
        "intervals",
        "nulls",
        "seconds",
        "cost",
        "choices",
        "promises",
        "strangers",
        "effects",
    }
    assert plain["methods"]["map"]["cost"] == 1
    assert json.loads((tmp_path / "both" / "swag" / "run.json").read_text())["settings"]["set"] == ["rank=5"]
    assert len(as_json("predict", "both/swag", "moons")) == 200
    assert bayesrule(*line)[0] == 2


def test_compare_refuses_early_stopping_of_a_sampler_before_any_method_is_trained(bayesrule):
    code, _, err = bayesrule("compare", "moons", "--methods", "map,hmc", "--early-stopping", 3, "--out", "both")
    assert code == 2
    assert "early stopping must be left out with hmc" in err
    assert "map: epoch" not in err


def test_compare_with_a_reference(bayesrule, as_json, tmp_path):
    assert bayesrule("fit", "moons", "--method", "ensemble", "--epochs", 3, "--out", "long")[0] == 0
    line = ("compare", "moons", "--methods", "map,ensemble", "--epochs", 3, "--reference", "long")
    code, out, _ = bayesrule(*line, "--out", "both")
    assert code == 0
    assert "agree TV" in " ".join(out.split())
    assert "…" not in out  # no column is cut
    methods = json.loads((tmp_path / "both" / "scores.json").read_text())["methods"]
    assert methods["ensemble"]["scores"]["total_variation"] == 0  # the same method, data and seed as the reference
    assert methods["ensemble"]["scores"]["agreement"] == 1
    assert methods["map"]["scores"]["total_variation"] > 0
    code, _, err = bayesrule(
        "compare", "moons", "--methods", "map", "--seed", 1, "--reference", "long", "--out", "other"
    )
    assert code != 0
    assert "--reference must be a run on the same data, but its seed is 0, not 1" in err


def test_compare_without_map_has_no_ratio(as_json):
    plain = as_json("compare", "and", "--methods", "mle,swag", "--epochs", 20)
    assert plain["methods"]["mle"]["cost"] is None


EVERY = [name for name in AVAILABLE if name not in ("hmc", "mala", "lmc", "mclmc", "sgld", "sghmc")]


@pytest.mark.parametrize("names", [["mle", "ensemble", "ivon"], pytest.param(EVERY, marks=pytest.mark.slow)])
def test_demo_twice_but_not_over_something_else(bayesrule, tmp_path, runs, monkeypatch, names):
    assert compare.every_method() == EVERY
    monkeypatch.setattr(compare, "every_method", lambda: names)
    code, out, err = bayesrule("demo", "--epochs", 1, "--hidden", 4)
    assert code == 0
    assert all(name in out for name in names)
    assert "One plain network is over 90 % sure" in " ".join(out.split())
    assert "report.html in a browser" in err
    scores = json.loads((tmp_path / "demo" / "scores.json").read_text())
    assert set(scores["methods"]) == set(names)
    assert set(scores["scenes"]) == {"mistakes", "strangers", "promise"}
    assert bayesrule("demo", "--epochs", 1, "--hidden", 4, "--json")[0] == 0
    assert "holds another run" in bayesrule("demo", "--out", runs / "houses")[2]


def test_the_command_itself():
    done = subprocess.run([sys.executable, "-m", "bayesrule", "--version"], capture_output=True, text=True, check=True)
    assert done.stdout.startswith("bayesrule 0.")


def test_a_terminal_gets_a_bar(bayesrule, monkeypatch):
    monkeypatch.setattr("sys.stderr.isatty", lambda: True, raising=False)
    code, _, err = bayesrule("fit", "moons", "--method", "map", "--epochs", 2)
    assert code == 0
    assert "NLL" in err


FORMULAS = ("=cmd|' /C calc'!A0", "+SUM(1)", "-2+3", "@x", "\tx", "\rx", "'=1", "＝1", " =1", "plain", "'tis")


def test_labels_are_no_formulas_to_a_spreadsheet_and_come_back(tmp_path):
    certain = Classes(100 * torch.eye(len(FORMULAS))[None])
    path = tmp_path / "p.csv"
    path.write_text(predict.csv_of(certain.to_frame(classes=FORMULAS)), newline="")
    with open(path, newline="") as file:
        header, *rows = csv.reader(file)
    cells = [row[0] for row in rows]
    assert not [cell for cell in (*cells, *header) if cell[0] in "=+-@\t\r＝ "]
    assert {"'=cmd|' /C calc'!A0", "''=1", "plain", "'tis"} <= set(cells)
    assert tuple(read_table(path)["prediction"]) == FORMULAS


def test_predictions_of_labels_that_look_like_formulas_or_numbers(bayesrule, as_json, tmp_path):
    labels = ("=1+1", "-1", "+2.5e3")
    frame = pd.DataFrame({"x": np.arange(3).repeat(30) * 5.0, "label": np.repeat(labels, 30)})
    frame.to_csv(tmp_path / "t.csv", index=False)
    line = ("fit", "t.csv", "--target", "label", "--method", "map", "--epochs", 40, "--set", "lr=0.03", "--out", "run")
    assert bayesrule(*line)[0] == 0
    assert bayesrule("predict", "run", "t.csv", "--out", "p.csv")[0] == 0
    with open(tmp_path / "p.csv", newline="") as file:
        cells = {row["prediction"] for row in csv.DictReader(file)}
    assert cells == {"'=1+1", "-1", "+2.5e3"}  # numbers stay numbers
    assert tuple(read_table(tmp_path / "p.csv")["prediction"]) == tuple(frame["label"])
    assert {row["prediction"] for row in as_json("predict", "run", "t.csv")} == set(labels)  # JSON needs none of it
