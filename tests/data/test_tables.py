import datetime
import json
import sys
from decimal import Decimal

import numpy as np
import pandas as pd
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from bayesrule.data import Schema, load_table, read_table, standardize
from bayesrule.data.cells import escaped, unescaped
from bayesrule.data.columns import content_of
from bayesrule.models import default_for

rng = np.random.default_rng(0)


def people(n=100):
    return pd.DataFrame(
        {
            "age": rng.integers(18, 80, n).astype(float),
            "member": rng.random(n) < 0.5,
            "city": rng.choice(["Rome", "Oslo", "Lima"], n),
            "id": [f"p{i}" for i in range(n)],
            "planet": "Earth",
            "zero": 0,
            "empty": np.nan,
            "born": pd.Timestamp("2000-01-01") + pd.to_timedelta(np.arange(n), unit="D"),
            "pay": rng.random(n),
        }
    )


def test_columns_become_numbers_and_the_rest_is_said():
    frame = people()
    frame.loc[[3, 5], "age"] = np.nan
    schema = Schema.learn(frame, "pay")
    turns = tuple(f"born: {side} of {turn}" for turn in ("year", "week") for side in ("sine", "cosine"))
    cities = ("city=Lima", "city=Oslo", "city=Rome")
    assert schema.features == ("age", "age is missing", "member", *cities, "born", *turns)
    x = schema.inputs(frame)
    assert x.dtype == np.float64
    assert x[3].tolist()[:2] == [frame["age"].median(), 1.0]
    np.testing.assert_array_equal(x[:, 3:6].sum(1), 1)
    assert schema.kind == "reals"
    assert schema.notes == (
        "target 'pay': real numbers",
        "column 'id' dropped: its 100 different values in 100 rows look like an id",
        "column 'planet' dropped: it is constant, 'Earth' in every row",
        "column 'zero' dropped: it is constant, 0 in every row",
        "column 'empty' dropped: it is empty",
        "column 'born' is read as dates",
    )


def test_new_tables():
    schema = Schema.learn(people().drop(columns="born"), "pay")
    new = pd.DataFrame({"extra": [1, 2], "city": ["Paris", None], "member": [None, True], "age": ["41", None]})
    x = schema.inputs(new)
    assert x[0].tolist() == [41, 0 if x[0, 1] == 0 else 1, 0, 0, 0]
    assert x[1, 2:].tolist() == [0, 0, 0]
    with pytest.raises(ValueError, match=r"must have the column 'city', known from training: .* is 'City'"):
        schema.inputs(new.rename(columns={"city": "City"}))
    with pytest.raises(ValueError, match=r"column 'age' must hold finite numbers, got '\?' in row 1 \(1 such rows\)"):
        schema.inputs(new.assign(age=["3", "?"]))
    with pytest.raises(ValueError, match="unknown target column 'pay'"):
        schema.targets(new)
    with pytest.raises(ValueError, match="must be known for every row, row 1 has none"):
        schema.targets(new.assign(pay=[1.0, None]))
    with pytest.raises(ValueError, match="different names, got 'age' more than once"):
        schema.inputs(pd.concat([new, new[["age"]]], axis=1))


@pytest.mark.parametrize(
    ("column", "features"),
    [
        (pd.Series([1, 2, None], dtype="Int64"), ["c", "c is missing"]),
        (pd.Series([True, None, False], dtype=object), ["c", "c is missing"]),
        (pd.Series([True, False, True], dtype="boolean"), ["c"]),
        (pd.Series([Decimal("1.5"), None, Decimal(2)]), ["c", "c is missing"]),
        (pd.Series([2, 1, 10], dtype="category"), ["c=1", "c=2", "c=10"]),
        (pd.Series(["b", None, "a"], dtype="category"), ["c=a", "c=b"]),
        (pd.Series(["x", None, "x"]), ["c=x"]),
        (pd.Series([1, "x", 2.0], dtype=object), ["c=1", "c=2", "c=x"]),
    ],
)
def test_dtypes_of_columns(column, features):
    frame = pd.DataFrame({"c": column, "y": [0.5, 1.5, 2.5]})
    schema = Schema.learn(frame, "y")
    assert list(schema.features) == features
    assert np.isfinite(schema.inputs(frame)).all()
    assert Schema.from_json(json.loads(json.dumps(schema.to_json()))) == schema


@pytest.mark.parametrize(
    ("values", "kind", "classes"),
    [
        (["no", "yes"] * 30, "classes", ("no", "yes")),
        ([True, False] * 30, "classes", ("False", "True")),
        ([0, 1] * 3, "classes", ("0", "1")),
        ([0.0, 1.0, 1.0] * 20, "classes", ("0", "1")),
        ([10, 9, 8] * 20, "classes", ("8", "9", "10")),
        ([1, 2, 3, 4] * 10, "reals", ()),
        (list(range(21)) * 30, "reals", ()),
        ([0.5, 1.5] * 30, "reals", ()),
        (pd.Series([3, 5] * 30, dtype="category"), "classes", ("3", "5")),
    ],
)
def test_the_kind_of_the_target(values, kind, classes):
    frame = pd.DataFrame({"x": np.arange(len(values)), "y": values})
    schema = Schema.learn(frame, "y")
    assert (schema.kind, schema.classes) == (kind, classes)
    assert "target 'y'" in schema.notes[0]
    y = schema.targets(frame)
    assert y.dtype == (np.int64 if kind == "classes" else np.float64)
    if kind == "classes":
        assert [classes[i] for i in y[:3]] == [str(v) if isinstance(v, str | bool) else str(int(v)) for v in values[:3]]


def test_kind_can_be_chosen():
    frame = pd.DataFrame({"x": range(60), "y": [0, 1, 2] * 20})
    assert Schema.learn(frame, "y", "reals").targets(frame).dtype == np.float64
    assert Schema.learn(frame, "y", "counts").targets(frame).dtype == np.int64
    halves = frame.assign(y=frame["y"] / 2)
    assert Schema.learn(halves, "y", "classes").classes == ("0", "0.5", "1")


FRAME = pd.DataFrame({"x": range(60), "y": range(60)})


@pytest.mark.parametrize(
    ("frame", "kind", "message"),
    [
        (FRAME.rename(columns={"y": "Y"}), None, "unknown target column 'y': .*Valid: Y, x"),
        (FRAME.assign(y=1), None, "target 'y' must have different values, but all 60 rows have 1"),
        (FRAME.assign(y=np.nan), None, "target 'y' must have values, but every row of the table is empty there"),
        (FRAME.assign(y=[f"{i}?" for i in range(60)]), None, r"got 60 different values in 60 rows, such as '0\?'"),
        (FRAME.assign(y=["a", "b"] * 30), "reals", "column 'y' must hold finite numbers, got 'a' in row 0"),
        (FRAME.assign(y=-FRAME["y"]), "counts", "whole numbers from 0 for the kind counts, got -59"),
        (FRAME, "class", "unknown kind 'class': did you mean 'classes'"),
        (FRAME.assign(x=1), None, "usable column beside 'y': column 'x' dropped: it is constant"),
        (FRAME[["y"]], None, "usable column beside 'y': none"),
        (FRAME.assign(x=np.inf), None, r"column 'x' must hold finite numbers, got inf in row 0 \(60 such rows\)"),
    ],
)
def test_learning_errors(frame, kind, message):
    with pytest.raises(ValueError, match=message):
        Schema.learn(frame, "y", kind)


def test_unseen_class():
    frame = pd.DataFrame({"x": range(4), "y": ["cat", "dog"] * 2})
    with pytest.raises(ValueError, match="row 1 of the target: unknown class 'cats': did you mean 'cat'"):
        Schema.learn(frame, "y").targets(pd.DataFrame({"y": ["dog", "cats"]}))


cells = st.one_of(st.none(), st.integers(-5, 5), st.floats(-5, 5), st.booleans(), st.text(max_size=3), st.dates())


def _usable(column):
    dates = column.dropna().map(lambda value: isinstance(value, datetime.date)).mean() >= 0.9
    texts = set(column.dropna().map(str))
    if content_of(column) == "texts" and len(texts) == column.notna().sum() >= 10:  # an id
        return False
    return column.notna().any() and not dates and len(set(column.dropna().map(str))) + column.isna().any() > 1


@given(st.lists(st.tuples(cells, cells, st.integers(0, 1000)), min_size=2, max_size=30))
def test_any_table_gives_finite_inputs_or_a_clear_error(rows):
    frame = pd.DataFrame(rows, columns=["a", "b", "y"])
    if frame["y"].nunique() < 2 or not any(_usable(frame[name]) for name in "ab"):
        with pytest.raises(ValueError, match=r"must have (different values|a usable column)"):
            Schema.learn(frame, "y")
        return
    schema = Schema.learn(frame, "y")
    x = schema.inputs(frame)
    assert x.shape == (len(rows), len(schema.features))
    assert np.isfinite(x).all()
    assert Schema.from_json(json.loads(json.dumps(schema.to_json()))) == schema


@pytest.mark.parametrize("suffix", ["csv", "parquet"])
def test_load_table(tmp_path, suffix):
    frame = people(200).drop(columns="born")
    frame["job"] = rng.choice(["cook"] * 8 + ["smith"] * 2, 200)
    frame.loc[:4, "job"] = None
    frame.loc[7, "job"] = "pope"
    path = tmp_path / f"people.{suffix}"
    frame.to_csv(path, index=False) if suffix == "csv" else frame.to_parquet(path)
    split, schema = load_table(path, "job", test=0.25, seed=1)
    assert (split.kind, split.classes, split.name) == ("classes", ("cook", "pope", "smith"), "people")
    assert (len(split.train[1]), len(split.test[1])) == (146, 49)
    assert split.train[0].shape[1] == len(split.features) == len(schema.features)
    cooks = [(y == 0).float().mean().item() for _, y in (split.train, split.test)]
    assert cooks[0] == pytest.approx(cooks[1], abs=0.03)
    assert schema.notes[:2] == ("5 of 200 rows left out: no value of target 'job'", "target 'job': 3 classes")
    assert torch.equal(load_table(path, "job", test=0.25, seed=1)[0].test[0], split.test[0])
    assert standardize(split.train).n == 146
    assert len(load_table(path, "pay", test=0.0)[0].test[1]) == 0


def test_the_schema_is_learnt_on_training_rows_only(tmp_path):
    frame = pd.DataFrame({"x": np.arange(50.0), "word": [f"w{max(i, 10)}" for i in range(50)], "y": np.arange(50.0)})
    frame.to_csv(tmp_path / "t.csv", index=False)
    split, schema = load_table(tmp_path / "t.csv", "y")
    trained = {f"word=w{max(int(x), 10)}" for x in split.train[0][:, 0]}
    held = [f"word=w{max(int(x), 10)}" for x in split.test[0][:, 0]]
    assert set(schema.features) == {"x", *trained}
    assert split.test[0][:, 1:].sum(1).tolist() == [float(word in trained) for word in held]
    assert not set(held) <= trained


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("t.txt", b"", "must end in .csv or .parquet"),
        ("t.csv", None, "existing file, got .*t.csv, looked for in"),
        ("t.csv", b"", "t.csv must have a header and rows, but it is empty"),
        ("t.csv", b"a,b\n", "must have rows, got only the columns a, b"),
        ("t.csv", b"a,b\n1,2,3\n", "rows have more values than its first line"),
        (
            "t.csv",
            b"a,b\n1,2\n1,2,3\n",
            "line 3 has 3 cells, and there are 2 columns: put texts that hold",
        ),
        ("t.csv", b"a\n\xff\x81\n", "cannot be read as csv"),
        (
            "t.csv",
            b"y,a,y\n1,2,1\n",
            "t.csv must have columns with different names, got 'y' 2 times .*: rename or remove",
        ),
        ("t.csv", b'\xef\xbb\xbf\n"y, z",a,"y, z"\n1,2,1\n', "different names, got 'y, z' 2 times"),
        ("t.parquet", b"nonsense", "cannot be read as parquet"),
    ],
)
def test_reading_errors(tmp_path, name, content, message):
    if content is not None:
        (tmp_path / name).write_bytes(content)
    with pytest.raises((ValueError, FileNotFoundError), match=message):
        read_table(tmp_path / name)


def test_parquet_without_pyarrow(tmp_path, monkeypatch):
    (tmp_path / "t.parquet").write_bytes(b"")
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    monkeypatch.setitem(sys.modules, "fastparquet", None)
    with pytest.raises(ImportError, match=r"needs pyarrow: pip install bayesrule\[parquet\]"):
        read_table(tmp_path / "t.parquet")


def test_dates_become_days_and_turns_and_lengths_of_time_are_dropped():
    dates = [datetime.date(1970, 1, 1), datetime.date(1970, 1, 8)]
    frame = pd.DataFrame({"x": [1, 2], "d": dates, "t": pd.to_timedelta([1, 2], unit="h"), "y": [0.5, 1.5]})
    schema = Schema.learn(frame, "y")
    assert schema.features[:2] == ("x", "d")
    assert "column 't' dropped: it holds times or lengths of time" in schema.notes[2]
    x = schema.inputs(frame)[:, 1:]
    angle = 2 * np.pi * 7 / 365.2425
    np.testing.assert_allclose(x, [[0, 0, 1, 0, 1], [7, np.sin(angle), np.cos(angle), 0, 1]], atol=1e-12)
    assert Schema.from_json(json.loads(json.dumps(schema.to_json()))) == schema
    later = pd.DataFrame({"x": [1, 1], "d": [datetime.date(1970, 1, 12), datetime.date(2020, 1, 1)]})
    assert schema.unusual(later) == [(), ("d",)]


def test_times_of_day_count_where_there_are_some():
    times = pd.to_datetime(["2020-01-01 00:00", "2020-01-02 06:00"])
    frame = pd.DataFrame({"d": times, "y": [0.5, 1.5]})
    schema = Schema.learn(frame, "y")
    assert schema.features[-2:] == ("d: sine of day", "d: cosine of day")
    np.testing.assert_allclose(schema.inputs(frame)[:, -2:], [[0, 1], [1, 0]], atol=1e-9)


def test_excel_writes_dates_as_numbers_of_days(tmp_path):
    days = pd.Series(pd.Timestamp("2020-01-01") + pd.to_timedelta(np.arange(30) * 9, unit="D"))
    serial = (days - pd.Timestamp("1899-12-30")).dt.days
    frame = pd.DataFrame({"Order Date": serial, "amount": serial, "y": np.random.default_rng(0).random(30)})
    frame.to_csv(tmp_path / "t.csv", index=False)
    _, schema = load_table(tmp_path / "t.csv", "y")
    assert "column 'Order Date' is read as dates, which Excel writes as numbers of days" in schema.notes
    assert "amount: sine of year" not in schema.features
    plain = Schema.learn(frame.assign(**{"Order Date": days}), "y")
    np.testing.assert_allclose(schema.inputs(frame), plain.inputs(frame.assign(**{"Order Date": days})))


@pytest.mark.parametrize(
    ("texts", "read"),
    [
        (["03/04/2020", "13/04/2020"], "day before the month"),
        (["03/04/2020", "03/14/2020"], "month before the day"),
        (["03.04.2020", "05.06.2020"], "day before the month"),
        (["03/04/2020", "05/06/2020"], "month before the day"),
    ],
)
def test_the_order_of_day_and_month_is_one_and_said(texts, read):
    frame = pd.DataFrame({"when": texts * 6, "y": np.arange(12) / 3})
    schema = Schema.learn(frame, "y")
    assert read in schema.notes[1]
    first = datetime.date(2020, 4, 3) if "day" in read[:3] else datetime.date(2020, 3, 4)
    found = schema.inputs(pd.DataFrame({"when": ["03/04/2020", "2020/03/04"]}))[:, 0]
    assert found.tolist() == [(d - datetime.date(1970, 1, 1)).days for d in (first, datetime.date(2020, 3, 4))]


@pytest.mark.parametrize(
    "written",
    [
        "%Y-%m-%d",
        "%Y-%m-%dT%H:%M:%S+01:00",
        "%Y-%m-%d %H:%M:%S.%f",
        "%Y/%m/%d",
        "%d/%m/%Y",
        "%m/%d/%y",
        "%d.%m.%Y",
        "%d %b %Y",
        "%d-%b-%y",
        "%B %d, %Y",
        "%a, %d %b %Y %H:%M",
    ],
)
def test_dates_as_texts_are_dates(tmp_path, written):
    days = pd.Timestamp("2020-01-01") + pd.to_timedelta(np.arange(40) * 5, unit="D")
    frame = pd.DataFrame({"x": np.arange(40), "day": days.strftime(written), "y": rng.random(40)})
    frame.loc[3, "day"], frame.loc[7, "day"] = "unknown", None
    frame.to_csv(tmp_path / "t.csv", index=False)
    _, schema = load_table(tmp_path / "t.csv", "y")
    assert schema.features[:3] == ("x", "day", "day is missing")
    assert "column 'day' is read as dates" in " ".join(schema.notes)
    found = schema.inputs(read_table(tmp_path / "t.csv"))
    known = found[:, 2] == 0
    assert known.sum() == 38
    origin = days[0] - pd.Timestamp("1970-01-01")
    assert np.abs(found[known, 1] - origin.days - 5 * np.arange(40)[known]).max() < 0.1  # of a day: time zones


@pytest.mark.parametrize(
    "texts",
    [
        ["1.2.3", "1.10.0", "2.0.1"],
        ["2011/12", "2012/13", "2013/14"],
        ["12", "13", "20200131"],
        ["May", "June", "July"],
        ["10-20", "20-30", "30-40"],
        ["2020-13-45", "2020-99-99", "2020-40-40"],
        ["09:00", "12:00", "18:00"],
        ["2020-01-01", "2020-01-02", "never"],
    ],
)
def test_texts_that_are_no_dates_are_categories(texts):
    frame = pd.DataFrame({"c": texts * 5, "y": rng.random(15)})
    assert set(Schema.learn(frame, "y").columns[0].categories) == set(texts)


def test_at_most_100_categories():
    def learnt(n):
        frame = pd.DataFrame({"x": range(3 * n), "c": [f"c{i}" for i in range(n)] * 3, "y": rng.random(3 * n)})
        return Schema.learn(frame, "y")

    assert len(learnt(100).features) == 101
    assert learnt(101).features == ("x",)
    assert learnt(101).notes[1].startswith("column 'c' dropped: its 101 categories are more than 100; put rare ones")


def test_few_categories_are_one_hot_for_any_network():
    frame = pd.DataFrame({"c": [f"c{i:02d}" for i in range(10)] * 3, "y": rng.random(30)})
    assert len(Schema.learn(frame, "y", embed=True).features) == 10


def test_many_categories_become_their_numbers_for_a_network_that_embeds_them(tmp_path):
    texts = [f"c{i:02d}" for i in range(11)] * 3
    frame = pd.DataFrame({"c": texts, "x": range(33), "y": rng.random(33)})
    schema = Schema.learn(frame, "y", embed=True)
    assert schema.names == schema.features == ("x", "c")
    assert schema.categories == (11,)
    assert "column 'c' has 11 categories: a vector is learnt for each" in schema.notes
    again = Schema.from_json(json.loads(json.dumps(schema.to_json())))
    assert again == schema
    few = pd.DataFrame({"c": ["c00", "c10", "new", None], "x": 1.0})
    assert again.inputs(few)[:, 1].tolist() == [1, 11, 0, 0]
    assert again.unusual(few) == [(), (), ("c",), ()]
    path = tmp_path / "t.csv"
    frame.to_csv(path, index=False)
    split, _ = load_table(path, "y", test=path, embed=True)  # all rows are trained on
    assert split.categories == (11,)
    assert default_for(split)["categories"] == [11]


def test_schemas_of_older_files_are_one_hot():
    old = {"target": "y", "kind": "reals", "columns": [{"name": "c", "categories": ["a", "b"]}], "classes": []}
    schema = Schema.from_json(old | {"notes": []})
    assert schema.inputs(pd.DataFrame({"c": ["b", None]})).tolist() == [[0, 1], [0, 0]]


def test_a_schema_that_is_given_is_kept(tmp_path):
    path = tmp_path / "t.csv"
    people().to_csv(path, index=False)
    split, schema = load_table(path, "pay")
    own = Schema(schema.target, schema.kind, schema.columns[::-1], notes=("mine",))
    again, kept = load_table(path, "pay", schema=own)
    assert kept == own
    assert again.features == own.features
    assert torch.equal(again.test[1], split.test[1])
    assert torch.equal(again.test[0][:, -1], split.test[0][:, 0])


@pytest.mark.parametrize(
    ("before", "line"),
    [("", 12), ("\n\n", 14), ('"two\nlines",1,3\n', 14), ("\r\n", 13)],
    ids=["plain", "empty lines", "a cell of two lines", "an empty line of Windows"],
)
def test_errors_name_the_line_of_the_file(tmp_path, before, line):
    rows = [f"a,{i},{i}" for i in range(10)]
    path = tmp_path / "t.csv"
    path.write_bytes(("name,size,price\n" + before + "\n".join([*rows, "b,inf,3", *rows]) + "\n").encode())
    frame = read_table(path)
    for find in (lambda: Schema.learn(frame, "price"), lambda: load_table(path, "price", seed=1)):
        with pytest.raises(ValueError, match=f"column 'size' must hold finite numbers, got inf in line {line} "):
            find()


def test_errors_about_targets_name_the_line_of_the_file(tmp_path):
    frame = pd.DataFrame({"x": range(9), "kind": list("aabbaabba")})
    schema = Schema.learn(frame, "kind")
    (tmp_path / "new.csv").write_text("x,kind\n1,a\n\n2,c\n")
    with pytest.raises(ValueError, match="line 4 of the target: unknown class 'c'"):
        schema.targets(read_table(tmp_path / "new.csv"))
    (tmp_path / "new.csv").write_text("x,kind\n1,a\n2,\n")
    with pytest.raises(ValueError, match="line 3 has none"):
        schema.targets(read_table(tmp_path / "new.csv"))
    with pytest.raises(ValueError, match="row 7 of the target"):  # of a table in memory, its own label
        schema.targets(frame.iloc[6:].assign(kind=["a", "c", "b"]))


@pytest.mark.parametrize("text", ["=1", "-2+3", "-1", "cat", "'tis", "''=1", "' -1", "' =1", "", "'", "\n", "＋1"])
def test_cells_come_back(text):
    written = escaped(text)
    assert unescaped(written) == text
    assert unescaped(escaped(written)) == written
