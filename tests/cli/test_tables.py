"""Tables as people have them, on the command line."""

import io
import json

import numpy as np
import pandas as pd
import pytest

import bayesrule as br

LINE = ("--method", "map", "--epochs", 5)


def orders(n=80):
    """Ids with zeros in front, money, a category and a yes/no."""
    random = np.random.default_rng(0)
    size = random.uniform(10, 20, n).round(1)
    return pd.DataFrame(
        {
            "order": [f"{i:05d}" for i in range(n)],
            "size": size,
            "city": random.choice(["Rome", "Oslo"], n),
            "gift": random.choice(["yes", "no"], n),
            "note": [f"{i % 7} of them" for i in range(n)],
            "price": (2 * size + random.normal(0, 1, n)).round(2),
        }
    )


@pytest.fixture
def european(tmp_path):
    """With semicolons, decimal commas and letters of Windows."""
    frame = orders()
    frame["city"] = frame["city"].replace("Oslo", "Malmö")
    frame.to_csv(tmp_path / "orders.csv", sep=";", decimal=",", index=False, encoding="cp1252")
    return tmp_path / "orders.csv"


def test_a_european_file_from_fit_to_predictions(bayesrule, european):
    line = ("fit", european, "--target", "price", "--drop", "note", "--keep", "order", *LINE, "--out", "run")
    code, _, err = bayesrule(*line)
    assert code == 0
    assert "3 columns become 4 inputs" in err
    assert "the separator of columns is the semicolon" in err
    assert "cp1252" in err
    code, out, err = bayesrule("predict", "run", european, "--level", 0.95)
    assert code == 0
    table = pd.read_csv(io.StringIO(out), dtype={"order": str})
    assert list(table)[2:4] == ["lower_95", "upper_95"]
    assert list(table)[-2:] == ["unusual", "order"]
    assert table["order"].tolist() == [f"{i:05d}" for i in range(80)]
    assert table["unusual"].isna().all()
    assert "unlike anything in training" not in err
    widths = [(t.iloc[:, 3] - t.iloc[:, 2]).mean() for t in (table, narrow(bayesrule, european))]
    assert widths[0] == pytest.approx(widths[1] * 1.95996 / 1.64485, rel=1e-3)


def narrow(bayesrule, path):
    return pd.read_csv(io.StringIO(bayesrule("predict", "run", path)[1]))


def test_the_sentence_about_one_column(bayesrule, tmp_path):
    orders()[["size", "price"]].to_csv(tmp_path / "t.csv", index=False)
    assert (
        "64 examples to train on, 16 held out; 1 column becomes 1 input\n"
        in bayesrule("fit", "t.csv", "--target", "price", *LINE)[2]
    )


def test_whole_numbers_as_classes_are_said_without_code(bayesrule, tmp_path):
    orders().assign(n=np.arange(80) % 4)[["size", "n"]].to_csv(tmp_path / "t.csv", index=False)
    err = bayesrule("fit", "t.csv", "--target", "n", *LINE)[2]
    assert "target 'n': 4 classes (whole numbers; if they are amounts, choose the kind reals or counts)" in err


def test_kept_columns_are_safe_and_may_be_missing(bayesrule, as_json, tmp_path):
    frame = orders()
    frame["order"] = "=" + frame["order"]
    frame["std"] = 1
    frame.to_csv(tmp_path / "t.csv", index=False)
    assert bayesrule("fit", "t.csv", "--target", "price", "--keep", "order, std", *LINE, "--out", "run")[0] == 0
    assert bayesrule("predict", "run", "t.csv", "--out", "p.csv")[0] == 0
    raw = pd.read_csv(tmp_path / "p.csv")
    assert raw["order"][0] == "'=00000"
    assert raw["std (kept)"].tolist() == [1] * 80
    assert as_json("predict", "run", "t.csv")[0]["order"] == "=00000"
    assert bayesrule("predict", "run", "t.csv", "--out", "p.csv")[0] == 0  # over its own predictions
    frame.drop(columns="order").to_csv(tmp_path / "new.csv", index=False)
    code, _, err = bayesrule("predict", "run", "new.csv")
    assert code == 0
    assert "new.csv has no column 'order' to keep" in err
    assert "city" in as_json("predict", "run", "new.csv", "--keep", "city")[0]


def test_a_table_to_test_on(bayesrule, as_json, tmp_path):
    frame = orders()
    frame.head(60).to_csv(tmp_path / "train.csv", index=False)
    frame.tail(20).to_csv(tmp_path / "test.csv", index=False)
    line = ("fit", "train.csv", "--target", "price", "--test", "test.csv", *LINE, "--out", "run")
    code, _, err = bayesrule(*line)
    assert code == 0
    assert "60 examples to train on, 20 held out" in err
    scores = json.loads((tmp_path / "run" / "scores.json").read_text())["methods"]["map"]["scores"]
    assert as_json("evaluate", "run", "test.csv")["methods"]["map"]["scores"] == scores
    predicted = [row["prediction"] for row in as_json("predict", "run", "test.csv")]
    assert scores["rmse"] == pytest.approx(np.sqrt(np.mean((frame["price"][60:] - predicted) ** 2)), rel=1e-4)
    assert "trained on all rows of train.csv" in bayesrule("evaluate", "run", "train.csv")[2]
    assert bayesrule("fit", "--resume", "--out", "run")[0] == 0


def test_rows_unlike_training_are_marked(bayesrule, as_json, tmp_path):
    frame = orders().drop(columns=["order", "note"])
    frame.to_csv(tmp_path / "t.csv", index=False)
    assert bayesrule("fit", "t.csv", "--target", "price", *LINE, "--out", "run")[0] == 0
    new = frame.head(6).copy()
    new.loc[1, "size"] = 1e6
    new.loc[2, "size"] = 24  # outside, but not far: the range is 10 to 20
    new.loc[3, "city"] = "Lima"
    new.loc[4, "gift"] = "perhaps"
    new.loc[5, ["size", "city", "gift"]] = [-5, "Lima", None]
    new.to_csv(tmp_path / "new.csv", index=False)
    marks = [row["unusual"] for row in as_json("predict", "run", "new.csv")]
    assert marks == ["", "size", "", "city", "gift", "size, city"]
    assert "4 of 6 rows are unlike anything in training" in bayesrule("predict", "run", "new.csv")[2]


def test_many_categories_have_vectors_from_fit_to_predictions(bayesrule, as_json, tmp_path):
    random = np.random.default_rng(0)
    shops = np.repeat([f"shop {i}" for i in range(22)], 5)
    frame = pd.DataFrame({"shop": shops, "size": random.random(110), "weight": 1.0, "sold": random.random(110)})
    frame.to_csv(tmp_path / "shops.csv", index=False)
    line = ("fit", tmp_path / "shops.csv", "--target", "sold", "--weights", "weight", "--hidden", "4")
    line = (*line, "--test", tmp_path / "shops.csv", "--method", "auto")
    code, _, err = bayesrule(*line, "--epochs", 2, "--out", "run")
    assert code == 0
    assert "2 columns become 2 inputs" in err
    assert "column 'shop' has 22 categories: a vector is learnt for each" in err
    saved = json.loads((tmp_path / "run" / "run.json").read_text())
    assert saved["model"] == {"name": "tabular", "inputs": 2, "outputs": 1, "hidden": [4], "categories": [22]}
    rows = pd.DataFrame({"shop": ["shop 3", "a new one"], "size": [0.5, 0.5]})
    found = br.load_run(tmp_path / "run").predict(rows)
    assert found["unusual"].tolist() == ["", "shop"]
    assert found["std"][1] > found["std"][0]
    assert as_json("evaluate", "run", tmp_path / "shops.csv")


def test_a_target_with_holes_is_the_same_everywhere(bayesrule, as_json, tmp_path):
    frame = orders()
    frame.loc[::8, "price"] = np.nan
    frame.to_csv(tmp_path / "t.csv", index=False)
    code, _, err = bayesrule("fit", "t.csv", "--target", "price", *LINE, "--out", "run")
    assert code == 0
    assert "10 of 80 rows left out: no value of target 'price'" in err
    frame.tail(40).to_csv(tmp_path / "other.csv", index=False)
    code, _, err = bayesrule("evaluate", "run", "other.csv")
    assert code == 0
    assert "5 of 40 rows left out: no value of target 'price'" in err
    assert "scored on 35 examples" in err
    assert bayesrule("evaluate", "run", "t.csv")[0] == 0
    assert len(as_json("predict", "run", "t.csv")) == 80


def test_rows_count_as_often_as_their_weight_says(bayesrule, as_json, tmp_path):
    frame = orders().assign(times=np.where(np.arange(80) % 2, 1.0, 0.0))
    frame.loc[::2, "price"] += 1000  # rows that do not count
    frame.to_csv(tmp_path / "t.csv", index=False)
    line = ("fit", "t.csv", "--target", "price", "--weights", "times", "--drop", "order,note", *LINE, "--epochs", 60)
    code, _, err = bayesrule(*line, "--out", "run")
    assert code == 0, err
    assert "3 columns become" in err  # the weights are no input
    assert "weights count in training, also in that of the baselines" in err
    predicted = [row["prediction"] for row in as_json("predict", "run", "t.csv")]
    assert np.mean(predicted) < 100
    assert bayesrule("fit", "--resume", "--out", "run")[0] == 0


@pytest.mark.parametrize(
    ("line", "error"),
    [
        ("fit moons --weights w", "--weights is for .csv and .parquet files"),
        ("fit t.csv --target price --weights price", "--weights must not name the target"),
        ("fit t.csv --target price --weights wieght", "unknown column 'wieght'"),
        ("fit t.csv --target price --weights size --method vogn", "vogn does not know weights of examples"),
        ("compare t.csv --target price --weights size", "does not know weights of examples"),
        ("sweep t.csv --target price --weights size", "--weights is for fit and compare"),
        ("fit t.csv --target price --weights city", "column 'city' must hold finite numbers"),
        ("fit t.csv --target price --weights minus", "weights 'minus' must be numbers from 0 up, got -1.0 in line"),
        ("fit t.csv --target price --early-stopping 0", "--early-stopping must be at least 1 epoch, got 0"),
    ],
)
def test_weights_that_are_none(bayesrule, tmp_path, line, error):
    orders().assign(minus=-1.0).to_csv(tmp_path / "t.csv", index=False)
    code, _, err = bayesrule(*line.split())
    assert code == 2
    assert error in err.splitlines()[-1]


def test_early_stopping_ends_a_fit_that_gains_nothing(bayesrule, tmp_path):
    frame = pd.DataFrame({"x": np.arange(200) % 17, "y": np.random.default_rng(0).normal(size=200)})
    frame.to_csv(tmp_path / "t.csv", index=False)
    line = ("fit", "t.csv", "--target", "y", "--method", "map", "--epochs", 300, "--early-stopping", 2)
    code, _, err = bayesrule(*line, "--out", "run")
    assert code == 0, err
    history = br.load_run(tmp_path / "run").posterior.info["history"]
    assert len(history) < 300
    assert "val_nll" in history[0]
    assert bayesrule("fit", "--resume", "--out", "run")[0] == 0
