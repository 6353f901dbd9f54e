import io
import json
import subprocess
import sys

import numpy as np
import pandas as pd
import pytest

from bayesrule.methods import AVAILABLE


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


def test_fit_on_a_name(bayesrule, tmp_path):
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
    assert saved["model"] == {"name": "mlp", "inputs": 2, "outputs": 2, "hidden": [8, 8]}
    assert saved["command"] == "bayesrule fit moons --method map --epochs 5 --hidden 8,8 --prior kaiming"


def test_fit_says_what_it_found(bayesrule, tables):
    _, out, err = bayesrule("fit", tables / "grades.csv", "--target", "grade", "--method", "map", "--epochs", 2)
    assert "accuracy" in out
    for note in (
        "120 examples to train on, 30 held out",
        "target 'grade': 3 classes",
        "'planet' dropped",
        "'id' dropped",
    ):
        assert note in err


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
def test_other_likelihoods_and_kinds(as_json, tmp_path, options, score):
    x = np.random.default_rng(0).normal(size=80)
    table = tmp_path / "counts.csv"
    pd.DataFrame({"x": x, "n": np.round(np.exp(0.5 * x)).clip(0, 3).astype(int)}).to_csv(table, index=False)
    line = ("fit", table, "--target", "n", "--method", "map", "--epochs", 3, "--out", tmp_path / "run")
    assert score in as_json(*line, *options)["methods"]["map"]["scores"]
    assert len(as_json("predict", tmp_path / "run", table)) == 80


def test_bernoulli_is_two_classes(as_json):
    line = ("--method", "map", "--epochs", 3, "--likelihood", "bernoulli", "--out", "run")
    assert "ece" in as_json("fit", "moons", *line)["methods"]["map"]["scores"]
    assert {"p_upper", "p_lower"} <= set(as_json("predict", "run", "moons")[0])


def test_predict_numbers(bayesrule, runs, tables, tmp_path):
    code, out, _ = bayesrule("predict", runs / "houses", tables / "new.csv")
    assert code == 0
    table = pd.read_csv(io.StringIO(out))
    assert list(table) == ["prediction", "std", "lower_90", "upper_90", "aleatoric_std", "epistemic_std"]
    assert len(table) == 7
    assert (table.lower_90 < table.prediction).all()
    assert (table.prediction < table.upper_90).all()
    np.testing.assert_allclose(table["std"] ** 2, table.aleatoric_std**2 + table.epistemic_std**2, rtol=1e-4)
    code, nothing, _ = bayesrule("predict", runs / "houses", tables / "new.csv", "--out", tmp_path / "p.csv")
    assert code == 0
    assert nothing == ""
    assert (tmp_path / "p.csv").read_text() == out


def test_predict_classes(bayesrule, as_json, runs, tables):
    _, out, _ = bayesrule("predict", runs / "grades", tables / "new.csv")
    table = pd.read_csv(io.StringIO(out))
    probs = table[["p_<b>high", "p_low", "p_mid"]]
    assert list(table) == ["prediction", "confidence", *probs, "entropy", "aleatoric", "epistemic"]
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


def test_a_parquet_file(bayesrule, tables):
    line = ("fit", tables / "houses.parquet", "--target", "price", "--method", "map", "--epochs", 2)
    assert bayesrule(*line)[0] == 0


def test_compare(bayesrule, as_json, tmp_path):
    line = ("compare", "moons", "--methods", "map,swag", "--set", "swag.rank=5", "--epochs", 5, "--out", "both")
    code, out, _ = bayesrule(*line)
    assert code == 0
    assert "×" in out
    plain = json.loads((tmp_path / "both" / "scores.json").read_text())
    assert set(plain) == {"data", "command", "seed", "versions", "methods"}
    assert set(plain["methods"]["swag"]) == {"scores", "intervals", "seconds", "cost"}
    assert plain["methods"]["map"]["cost"] == 1
    assert json.loads((tmp_path / "both" / "swag" / "run.json").read_text())["settings"]["set"] == ["rank=5"]
    assert len(as_json("predict", "both/swag", "moons")) == 200
    assert bayesrule(*line)[0] == 2


def test_compare_without_map_has_no_ratio(as_json):
    plain = as_json("compare", "and", "--methods", "mle,swag", "--epochs", 20)
    assert plain["methods"]["mle"]["cost"] is None


def test_demo_twice_but_not_over_something_else(bayesrule, tmp_path, runs):
    code, out, err = bayesrule("demo", "--epochs", 1, "--hidden", 16)
    assert code == 0
    assert all(name in out for name in AVAILABLE)
    assert "report.html in a browser" in err
    assert set(json.loads((tmp_path / "demo" / "scores.json").read_text())["methods"]) == set(AVAILABLE)
    assert bayesrule("demo", "--epochs", 1, "--hidden", 16, "--json")[0] == 0
    assert "holds another run" in bayesrule("demo", "--out", runs / "houses")[2]


def test_the_command_itself():
    done = subprocess.run([sys.executable, "-m", "bayesrule", "--version"], capture_output=True, text=True, check=True)
    assert done.stdout.startswith("bayesrule 0.")


def test_a_terminal_gets_a_bar(bayesrule, monkeypatch):
    monkeypatch.setattr("sys.stderr.isatty", lambda: True, raising=False)
    code, _, err = bayesrule("fit", "moons", "--method", "map", "--epochs", 2)
    assert code == 0
    assert "NLL" in err
