"""The verb ``active``: curves and files, questions for a person, and errors of one line."""

import json

import numpy as np
import pandas as pd
import pytest

from bayesrule.active import SimCLR, tables
from bayesrule.cli import active as verb
from bayesrule.data import load_set

SHORT = ("--method", "mc-dropout", "--epochs", "5", "--samples", "8", "--hidden", "8")
QUICK = ("active", "moons", *SHORT, "--start", "6", "--batch", "4", "--budget", "14")


@pytest.fixture(autouse=True)
def _fresh():
    verb.opened.cache_clear()


def cells(folder):
    """What was learnt, without what a clock says."""
    found = json.loads((folder / "result.json").read_text())["cells"]
    for cell in found:
        del cell["seconds"], cell["summary"]["seconds"]
    return found


def frame(rows=60):
    size = [(row * 7) % 23 for row in range(rows)]
    city = [("Rome", "Oslo", "<b>Ulm")[row % 3] for row in range(rows)]
    return pd.DataFrame({"size": size, "city": city, "sold": ["yes" if s > 11 else "no" for s in size]})


@pytest.fixture
def labelled(tmp_path):
    frame().to_csv(tmp_path / "sales.csv", index=False)
    return tmp_path / "sales.csv"


@pytest.fixture
def unlabelled(tmp_path):
    frame().drop(columns="sold").to_csv(tmp_path / "pool.csv", index=False)
    return tmp_path / "pool.csv"


PERSON = ("--target", "sold", "--classes", "yes,no", *SHORT, "--start", "6", "--batch", "3", "--out", "life")


def answer(tmp_path, name="labels.csv", change=lambda table: table):
    """Fill in the file of questions, as a person would who knows."""
    table = pd.read_csv(tmp_path / "queries.csv", dtype=str)
    table["sold"] = ["yes" if int(size) > 11 else "no" for size in table["size"]]
    change(table).to_csv(tmp_path / name, index=False)


def test_curves_and_files(bayesrule, tmp_path):
    code, out, err = bayesrule(*QUICK, "--acquire", "random,batchbald", "--seeds", "0,1", "--out", "life")
    assert code == 0, err
    for word in ("random", "batchbald", "labels to 90%", "±"):
        assert word in out
    for name in ("result.json", "report.html", "curves.png", "batchbald-1/result.json"):
        assert (tmp_path / "life" / name).is_file(), name
    plain = json.loads((tmp_path / "life" / "result.json").read_text())
    assert [cell["labels"] for cell in plain["cells"]] == [[6, 10, 14]] * 4
    assert plain["table"]["random"]["accuracy"]["error"] is not None
    page = (tmp_path / "life" / "report.html").read_text()
    assert "What was asked for" in page
    assert "http" not in page


def test_the_same_again_more_acquisitions_and_a_larger_budget(bayesrule, tmp_path):
    line = (*QUICK, "--acquire", "bald", "--out", "life")
    assert bayesrule(*line)[0] == 0
    before = (tmp_path / "life" / "result.json").read_bytes()
    (tmp_path / "life" / "result.json").unlink()
    assert bayesrule(*line)[0] == 0
    assert (tmp_path / "life" / "result.json").read_bytes() == before
    code, _, err = bayesrule(*QUICK, "--acquire", "bald,random", "--budget", "18", "--out", "life")
    assert code == 0, err
    assert "bald, seed 0: 14 labels" not in err
    assert bayesrule(*QUICK, "--acquire", "bald,random", "--budget", "18", "--out", "whole")[0] == 0
    assert cells(tmp_path / "life") == cells(tmp_path / "whole")


def test_a_table_of_classes_and_one_of_numbers(labelled, as_json):
    found = as_json("active", labelled, "--target", "sold", *SHORT, "--budget", "24", "--acquire", "epig", "--out", "a")
    assert found["pool"] == "sales.csv"
    assert found["cells"][0]["labels"] == [20, 24]
    line = ("--target", "size", "--kind", "reals", *SHORT, "--budget", "24", "--acquire", "expected-variance")
    found = as_json("active", labelled, *line, "--out", "b")
    assert found["table"]["expected-variance"]["RMSE"]["mean"] > 0


def test_a_person_answers_day_after_day(bayesrule, unlabelled, labelled, tmp_path):
    line = ("active", unlabelled, *PERSON, "--test", labelled)
    code, _, err = bayesrule(*line, "--ask", "queries.csv")
    assert code == 0, err
    first = pd.read_csv(tmp_path / "queries.csv")
    assert list(first.columns) == ["question", "row", "size", "city", "sold"]
    assert len(first) == 6
    assert not (tmp_path / "life" / "report.html").exists()  # nothing is known yet
    assert bayesrule(*line, "--ask", "queries.csv")[0] == 0  # asked again, the question is the same
    pd.testing.assert_frame_equal(pd.read_csv(tmp_path / "queries.csv"), first)
    for _ in range(3):
        answer(tmp_path)
        code, _, err = bayesrule(*line, "--tell", "labels.csv", "--ask", "queries.csv")
        assert code == 0, err
        assert len(pd.read_csv(tmp_path / "queries.csv")) == 3
    result = json.loads((tmp_path / "life" / "bald-0" / "result.json").read_text())
    assert result["labels"] == [6, 9, 12]
    assert len(result["accuracy"]) == 3
    truth = frame()["sold"].map({"no": 0, "yes": 1})
    for rows, labels in zip(result["rows"], result["answers"], strict=True):
        assert labels == truth[rows].tolist()
    page = (tmp_path / "life" / "report.html").read_text()
    assert "answered by a person" in page
    assert "<b>Ulm" not in page


def test_a_table_with_some_labels_asks_for_the_others(bayesrule, tmp_path):
    table = frame()
    table.loc[8:, "sold"] = None
    table.to_csv(tmp_path / "pool.csv", index=False)
    line = ("active", "pool.csv", "--target", "sold", *SHORT, "--batch", "3", "--out", "life")
    code, _, err = bayesrule(*line, "--ask", "queries.csv")
    assert code == 0, err
    asked = pd.read_csv(tmp_path / "queries.csv")
    assert len(asked) == 3
    assert asked["row"].min() >= 8
    assert (tmp_path / "life" / "report.html").is_file()
    answer(tmp_path)
    assert bayesrule(*line, "--tell", "labels.csv")[0] == 0


def test_numbers_of_a_person(bayesrule, unlabelled, tmp_path):
    line = ("active", unlabelled, "--target", "price", "--kind", "reals", *SHORT, "--start", "6", "--out", "life")
    assert bayesrule(*line, "--ask", "queries.csv")[0] == 0
    table = pd.read_csv(tmp_path / "queries.csv")
    table["price"] = 3.5 * table["size"]
    table.to_csv(tmp_path / "labels.csv", index=False)
    code, _, err = bayesrule(*line, "--tell", "labels.csv", "--ask", "queries.csv")
    assert code == 0, err
    result = json.loads((tmp_path / "life" / "bald-0" / "result.json").read_text())
    assert result["answers"][0] == table["price"].tolist()


@pytest.mark.parametrize("text", ["many", "inf", "1,5 or 2"])
def test_an_answer_that_is_no_number_is_one_line_and_loses_nothing(text, bayesrule, unlabelled, tmp_path):
    line = ("active", unlabelled, "--target", "price", "--kind", "reals", *SHORT, "--start", "6", "--out", "life")
    assert bayesrule(*line, "--ask", "queries.csv")[0] == 0
    before = (tmp_path / "queries.csv").read_text()
    table = pd.read_csv(tmp_path / "queries.csv").astype({"price": object})
    table["price"] = ["1.5"] * 5 + [text]
    table.to_csv(tmp_path / "labels.csv", index=False)
    code, _, err = bayesrule(*line, "--tell", "labels.csv")
    assert code == 2
    assert f"row {table['row'][5]}: the label must be a number, got '{text}'" in err.splitlines()[-1]
    assert bayesrule(*line, "--ask", "queries.csv")[0] == 0
    assert (tmp_path / "queries.csv").read_text() == before


def test_empty_cells_are_filled_in_as_in_a_fit(bayesrule, tmp_path):
    """The median and an input that says so for numbers, no category for texts; a person sees that they are empty."""
    table = frame().drop(columns="sold").assign(planet=None)
    table["size"] = table["size"].where(table.index % 7 > 0)
    table["city"] = table["city"].where(table.index % 11 > 0)
    table.to_csv(tmp_path / "pool.csv", index=False)
    line = ("active", "pool.csv", *PERSON, "--acquire", "random", "--batch", "54")
    code, _, err = bayesrule(*line, "--ask", "queries.csv")
    assert code == 0, err
    assert "column 'planet' dropped: it is empty" in err
    pool = tables.asked(tmp_path / "pool.csv", "sold", classes=("yes", "no"))
    assert pool.schema.features == ("size", "size is missing", "city=<b>Ulm", "city=Oslo", "city=Rome")
    filled = pool.schema.inputs(pool.frame)
    assert filled[::7, 0].tolist() == [table["size"].median()] * 9
    assert filled[::7, 1].tolist() == [1.0] * 9
    assert filled[::11, 2:].sum() == 0
    assert bool(pool.pool.x.isfinite().all())
    told = pd.read_csv(tmp_path / "queries.csv").assign(sold=["yes", "no"] * 3)
    told.to_csv(tmp_path / "labels.csv", index=False)
    code, _, err = bayesrule(*line, "--tell", "labels.csv", "--ask", "queries.csv")
    assert code == 0, err
    assert (tmp_path / "queries.html").read_text().count('"\\u2013"') > 9  # all other rows: their holes are dashes


def test_pictures_are_asked_for_told_and_gone_on_with(bayesrule, tmp_path):
    line = ("active", "digits", *SHORT, "--start", "12", "--batch", "3", "--candidates", "50", "--out", "life")
    code, _, err = bayesrule(*line, "--ask", "queries.csv")
    assert code == 0, err
    truth, rounds = load_set("digits").train[1], []
    for _ in range(2):
        asked = pd.read_csv(tmp_path / "queries.csv")
        assert list(asked.columns) == ["question", "row", "label"]
        page = (tmp_path / "queries.html").read_text()
        assert page.count('"png": "') == len(asked)
        assert '"classes": ["0", "1", "2", ' in page
        rounds.append(asked["row"].tolist())
        asked.assign(label=truth[rounds[-1]].tolist()).to_csv(tmp_path / "labels.csv", index=False)
        code, _, err = bayesrule(*line, "--tell", "labels.csv", "--ask", "queries.csv")
        assert code == 0, err
    result = json.loads((tmp_path / "life" / "bald-0" / "result.json").read_text())
    assert result["rows"] == rounds
    assert result["answers"] == [truth[rows].tolist() for rows in rounds]
    assert result["labels"] == [12, 15]
    asked = pd.read_csv(tmp_path / "queries.csv")
    assert not set(asked["row"]) & {row for rows in rounds for row in rows}


@pytest.fixture
def photos(tmp_path):
    """Bright and dark files, of which a few are in directories named by class already."""
    from PIL import Image

    random = np.random.default_rng(0)
    for place in range(30):
        bright = place % 2
        folder = tmp_path / "photos" / (("dark", "bright")[bright] if place < 4 else "new")
        folder.mkdir(parents=True, exist_ok=True)
        pixels = 120 * bright + random.integers(0, 130, (12, 16, 3))
        Image.fromarray(pixels.astype(np.uint8)).save(folder / f"{'b' if bright else 'd'}{place:02}.png")
    return tmp_path / "photos"


PHOTOS = ("--classes", "bright,dark", "--size", "8", *SHORT, "--batch", "3", "--out", "life")


def test_a_persons_own_pictures_day_after_day(bayesrule, photos, tmp_path):
    line = ("active", photos, *PHOTOS, "--test", photos)
    code, _, err = bayesrule(*line, "--ask", "queries.html")
    assert code == 0, err
    assert "30 pictures of 8 x 8 pixels, in colour" in err
    assert "4 rows have a value already; classes bright, dark" in err
    for told in (1, 2):
        asked = pd.read_csv(tmp_path / "queries.csv")
        assert list(asked.columns) == ["question", "row", "file", "label"]
        assert asked["file"].str.startswith("new/").all()
        page = (tmp_path / "queries.html").read_text()
        assert page.count('"png": "') == 3
        assert asked["file"][0] in page
        asked["label"] = ["bright" if "/b" in name else "dark" for name in asked["file"]]
        asked.to_csv(tmp_path / "labels.csv", index=False)
        code, _, err = bayesrule(*line, "--tell", "labels.csv", "--ask", "queries.html")
        assert code == 0, err
        result = json.loads((tmp_path / "life" / "bald-0" / "result.json").read_text())
        assert result["labels"] == [4, 7, 10][: told + 1]
    assert result["answers"][0] == [0, 0, 1, 1]  # bright/, dark/ by the order of names
    assert len(result["accuracy"]) == 3
    assert "data:image/png" in (tmp_path / "life" / "report.html").read_text()
    (photos / "new" / "b99.png").write_bytes((photos / "new" / "b05.png").read_bytes())
    code, _, err = bayesrule(*line, "--ask", "queries.html")
    assert code == 2
    assert "another content of the table" in err


def test_labels_of_pictures_from_a_table_and_pictures_in_an_array(bayesrule, tmp_path):
    x = np.random.default_rng(0).integers(0, 256, (20, 6, 5), dtype=np.uint8)
    np.savez(tmp_path / "pool.npz", X=x)
    pd.DataFrame({"file": [3, 7, 5], "label": ["yes", "no", None]}).to_csv(tmp_path / "known.csv", index=False)
    line = ("active", "pool.npz", "--labels", "known.csv", "--classes", "maybe", *SHORT, "--out", "life")
    code, _, err = bayesrule(*line, "--ask", "queries.csv")
    assert code == 0, err
    assert "20 pictures of 5 x 6 pixels, grey" in err
    assert "classes maybe, no, yes" in err
    result = json.loads((tmp_path / "life" / "bald-0" / "result.json").read_text())
    assert (result["rows"], result["answers"]) == ([[3, 7]], [[2, 1]])
    assert "5" in pd.read_csv(tmp_path / "queries.csv", dtype=str)["file"].tolist() or len(result["asked"]) < 18


WRONG = {
    "was not asked for: is it the answer to another question": lambda t: t.drop(columns="question").assign(row=59),
    "answers question 00000000, but the open one is": lambda t: t.assign(question="00000000"),
    "every row asked for must have a sold, but 2 of 6 have none": lambda t: t.assign(sold=["yes"] * 4 + ["", ""]),
    "but 3 of 6 have none": lambda t: t.iloc[:3],
    "must be answered once": lambda t: t.iloc[[0, 0, 1, 2, 3, 4, 5]],
    "unknown class 'maybe'": lambda t: t.assign(sold="maybe"),
    "must have the columns row and sold": lambda t: t.drop(columns="sold"),
    "row must be a whole number": lambda t: t.assign(row="x"),
}


@pytest.mark.parametrize("message", WRONG)
def test_a_wrong_file_of_answers_is_one_line_and_loses_nothing(message, bayesrule, unlabelled, tmp_path):
    line = ("active", unlabelled, *PERSON)
    assert bayesrule(*line, "--ask", "queries.csv")[0] == 0
    answer(tmp_path, "bad.csv", WRONG[message])
    code, _, err = bayesrule(*line, "--tell", "bad.csv")
    assert code == 2
    assert message in err.splitlines()[-1]
    before = (tmp_path / "queries.csv").read_text()
    assert bayesrule(*line, "--ask", "queries.csv")[0] == 0
    assert (tmp_path / "queries.csv").read_text() == before  # the question is still open


def test_answers_that_were_told_already(bayesrule, unlabelled, tmp_path):
    line = ("active", unlabelled, *PERSON)
    assert bayesrule(*line, "--ask", "queries.csv")[0] == 0
    answer(tmp_path)
    assert bayesrule(*line, "--tell", "labels.csv", "--ask", "next.csv")[0] == 0
    code, _, err = bayesrule(*line, "--tell", "labels.csv")
    assert code == 2
    assert "which was told already" in err
    assert bayesrule(*line, "--tell", "nothing.csv")[0] == 2


def test_what_was_told_under_another_rule_is_not_left_behind(bayesrule, unlabelled):
    line = ("active", unlabelled, *PERSON)
    assert bayesrule(*line, "--ask", "queries.csv")[0] == 0
    code, _, err = bayesrule(*line, "--acquire", "entropy", "--ask", "queries.csv")
    assert code == 2
    assert "holds runs with acquire 'bald', not 'entropy'" in err


BAD = {
    "active moon": "unknown data set 'moon'",
    "active moons --acquire bold": "did you mean 'bald'",
    "active moons --acquire ,": "--acquire must name at least one acquisition",
    "active moons --acquire expected-variance": "is for reals and counts, not for classes",
    "active moons --target y": "--target is for .csv and .parquet files",
    "active moons --budget 100000": "budget must be at most the",
    "active moons --start 50 --budget 40": "start must be at most the budget of 40 labels",
    "active moons --batch 0": "batch must be at least 1",
    "active moons --jobs 0": "--jobs must be at least 1",
    "active moons --reach 2": "must be shares above 0",
    "active moons --classes a,b": "--classes is for --ask",
    "active moons --ask q.txt": "--ask must be a file that ends in .csv or .html",
    "active moons --ask q.csv --seeds 0,1": "a person answers once",
    "active moons --method maap": "did you mean 'map'",
    "active moons --features simclr": "--features simclr is for pictures, which the rows of moons are not",
    "active TABLE --target sold --features simclr": "is for pictures, which the rows of sales are not",
    "active mnist": "no directory was given",
    "active TABLE": "a table needs --target COLUMN",
    "active TABLE --target sold --ask q.csv": "must be empty in some rows to be asked for",
    "active PHOTOS": "--ask or --tell must be given for pictures of your own",
    "active PHOTOS --ask q.csv": "classes must be at least two, got none: announce them (--classes)",
    "active PHOTOS --target y --ask q.csv": "--target is for .csv and .parquet files",
    "active PHOTOS --classes a,b --size 0 --ask q.csv": "size must be at least 1 pixel",
    "active PHOTOS --classes a,b --test PHOTOS --ask q.csv": "must hold pictures in directories named by class (a, b)",
    "active PHOTOS --classes a,b --labels POOL --ask q.csv": "must have the columns file and label, but has size, city",
    "active EMPTY --classes a,b --ask q.csv": "must hold pictures, files that end in .png, .jpg, .jpeg, but has none",
    "active none.npz --classes a,b --ask q.csv": "path must be an existing file",
    "active moons --size 8": "--size is for a directory of pictures, which moons is not",
    "active POOL --target sold --ask q.csv": "classes must be announced (--classes yes,no)",
    "active POOL --target sold --classes yes --ask q.csv": "classes must be at least two",
    "active POOL --target sold --classes a,b --kind reals --ask q.csv": "the kind is reals: leave one of them out",
    "active POOL --target sold --classes yes,no --tell TABLE": "none is open: ask first",
}


@pytest.mark.parametrize("line", BAD)
def test_what_a_user_gets_wrong_is_one_line(line, bayesrule, labelled, unlabelled, photos, tmp_path, monkeypatch):
    monkeypatch.delenv("BAYESRULE_DATA", raising=False)
    (tmp_path / "empty").mkdir()
    files = {"TABLE": str(labelled), "POOL": str(unlabelled), "PHOTOS": str(photos), "EMPTY": str(tmp_path / "empty")}
    code, out, err = bayesrule(*[files.get(word, word) for word in line.split()])
    assert code == 2
    assert out == ""
    assert BAD[line] in err.splitlines()[-1]


def test_a_directory_of_other_settings_is_refused(bayesrule):
    assert bayesrule(*QUICK, "--acquire", "random", "--out", "life")[0] == 0
    code, _, err = bayesrule(*QUICK, "--acquire", "random", "--batch", "5", "--out", "life")
    assert code == 2
    assert "holds runs with batch 4, not 5" in err


def test_features_without_labels(bayesrule, tmp_path, monkeypatch):
    """One encoder for all acquisitions, which the next call reads."""
    small = SimCLR(features=8, width=4, epochs=1, batch_size=128)
    monkeypatch.setattr("bayesrule.active.encoders.SimCLR", lambda: small)
    command = ("active", "digits", *SHORT, "--features", "simclr", "--start", "10", "--budget", "20", "--out", "life")
    code, _, err = bayesrule(*command, "--acquire", "random")
    assert code == 0, err
    assert "SimCLR, epoch 1 of 1" in err
    code, out, err = bayesrule(*command, "--acquire", "random,bald")
    assert code == 0, err
    assert "SimCLR" not in err
    assert "bald" in out
    assert "data:image/png" in (tmp_path / "life" / "report.html").read_text()  # pictures, not features
