"""Files as people have them: separators, decimals, encodings, signs, spaces, ids."""

import gzip

import numpy as np
import pandas as pd
import pytest

from bayesrule.data import Schema, delimited, load_table, read_table
from bayesrule.data.reading import open_table
from bayesrule.data.written import numbers_in


def written(tmp_path, content, name="t.csv"):
    path = tmp_path / name
    content = content.encode() if isinstance(content, str) else content
    path.write_bytes(gzip.compress(content) if name.endswith(".gz") else content)
    return path


@pytest.mark.parametrize(
    ("content", "names", "values"),
    [
        ("a,b\n1.5,x\n2.5,y\n", ["a", "b"], [1.5, 2.5]),
        ("a;b\n1.5;x, y\n2.5;y, z\n", ["a", "b"], [1.5, 2.5]),
        ("a;b\n1,5;x\n2,5;y\n", ["a", "b"], [1.5, 2.5]),
        ("a\tb\n1,5\tx\n2,5\ty\n", ["a", "b"], [1.5, 2.5]),
        ("a|b\n1.5|x\n2.5|y\n", ["a", "b"], [1.5, 2.5]),
        ("a, EUR;b, m\n1,5;x, y\n2,5;y, z\n", ["a, EUR", "b, m"], [1.5, 2.5]),
        ('a,"b;c"\n1.5,"x;y"\n2.5,"y;z"\n', ["a", "b;c"], [1.5, 2.5]),
        ("a;b\n1.234,5;x\n2,5;y\n", ["a", "b"], [1234.5, 2.5]),
        ("a;b\n1,234.5;x\n2.5;y\n", ["a", "b"], [1234.5, 2.5]),
        (" a , b \n 1.5 , x \n 2.5 , y \n", ["a", "b"], [1.5, 2.5]),
        ("\ufeffa,b\n1.5,x\n2.5,y\n", ["a", "b"], [1.5, 2.5]),
    ],
)
def test_separators_and_decimals(tmp_path, content, names, values):
    for name, encoding in (("t.csv", "utf-8"), ("u.csv", "utf-16"), ("t.csv.gz", "utf-8"), ("t.tsv", "utf-8")):
        if encoding == "utf-16" and content.startswith("\ufeff"):
            continue
        frame = read_table(written(tmp_path, content.encode(encoding), name))
        assert list(frame) == names
        assert frame[names[0]].tolist() == values
        assert frame[names[1]].str.strip().tolist() == frame[names[1]].tolist()
        assert frame.index.tolist() == [2, 3]


def test_what_was_recognised_is_said(tmp_path):
    table = open_table(written(tmp_path, "a;b\n1,5;Käse\n2,5;Öl\n".encode("cp1252")))
    assert table.frame["b"].tolist() == ["Käse", "Öl"]
    assert table.notes == (
        "the file is not UTF-8: its letters are read as Windows writes them (cp1252)",
        "the separator of columns is the semicolon",
        "numbers have decimal commas",
    )
    assert open_table(written(tmp_path, "a,b\n1.5,Käse\n")).notes == ()


def test_the_separator_can_be_given(tmp_path):
    path = written(tmp_path, "a;b,c\n1;2,3\n4;5,6\n")
    assert list(read_table(path)) == ["a", "b,c"]
    assert list(read_table(path, sep=",")) == ["a;b", "c"]
    with pytest.raises(ValueError, match=r"sep must be one sign that separates cells, such as ';', got ';;'"):
        read_table(path, sep=";;")


def test_lines_of_packed_files_and_others(tmp_path):
    for name in ("t.csv", "t.csv.gz"):
        path = written(tmp_path, 'a;y\n\n"1\n2";1\n3;inf\n', name)
        assert read_table(path).index.tolist() == [3, 5]


def test_a_bomb_and_a_damaged_file_are_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(delimited, "UNPACKED", 2**21)
    rows = b"a,b\n" + b"0,0\n" * 2**20
    with pytest.raises(ValueError, match=r"must unpack to at most 2097152 bytes, .* unpack it yourself"):
        read_table(written(tmp_path, rows, "bomb.csv.gz"))
    packed = gzip.compress(b"a,b\n" + np.random.default_rng(0).bytes(1000).hex().encode())
    for name, content in (("cut.csv.gz", packed[:-20]), ("plain.csv.gz", b"a,b\n1,2\n")):
        (tmp_path / name).write_bytes(content)
        with pytest.raises(ValueError, match="is damaged or not a gzip file"):
            read_table(tmp_path / name)


@pytest.mark.parametrize(
    ("texts", "values"),
    [
        (["1,234.50", "-12", "1,000,000"], [1234.5, -12, 1e6]),
        (["€ 12", "-€ 3.50", "€ 1,000"], [12, -3.5, 1000]),
        (["12 EUR", "3.5 eur", "7"], [12, 3.5, 7]),
        (["$-5", "$5"], [-5, 5]),
        (["45 %", "7%", "-0.5 %"], [45, 7, -0.5]),
        (["1 234", "12 345,5"], [1234, 12345.5]),
        (["1'234.5", "2"], [1234.5, 2]),
        (["1.234.567,89 €", "2,5 €"], [1234567.89, 2.5]),
        (["1,5", "1,234"], [1.5, 1.234]),
        (["−3", "1e3"], [-3, 1000]),
        ([".5", "5."], [0.5, 5]),
        (["€ 12", "$ 12"], None),
        (["45 %", "45"], None),
        (["12", "x"], None),
        (["1.2.3", "1.10.0"], None),
        (["31.01.2020"], None),
        (["12,34,56"], None),
        (["€ 5 %"], None),
        (["10-20"], None),
        ([], None),
    ],
)
def test_numbers_as_people_write_them(texts, values):
    found = numbers_in(texts)
    assert (found and found.values) == values


def test_columns_of_written_numbers(tmp_path):
    rows = "".join(f'"€ {i},{i % 10}00.50",{i} %,{"x" if i else "12 %"},{i}\n' for i in range(1, 30))
    table = open_table(written(tmp_path, "price,share,mixed,y\n" + rows + ",,,\n"))
    assert table.frame["price"].tolist()[:2] == [1100.5, 2200.5]
    assert table.frame["share"].tolist()[:2] == [1, 2]
    assert table.frame["mixed"].tolist()[:2] == ["x", "x"]
    assert table.frame["price"].isna().sum() == 1
    assert table.notes == (
        "column 'price' is read as numbers: the sign €, thousands apart, as in '€ 1,100.50'",
        "column 'share' is read as numbers: the sign %, as in '1 %'",
    )
    assert load_table(tmp_path / "t.csv", "price")[0].kind == "reals"


def test_the_cell_that_is_no_number_is_named_among_written_ones(tmp_path):
    schema = Schema.learn(pd.DataFrame({"price": [1.0, 2.0, 3.0], "y": [0.5, 1.5, 2.5]}), "y")
    path = written(tmp_path, "price\n€ 12\n€ 13\nfree\n")
    with pytest.raises(ValueError, match=r"got 'free' in line 4 \(1 such rows\)"):
        schema.inputs(read_table(path))
    with pytest.raises(ValueError, match=r"got '€ 12' in line 2 \(2 such rows\)"):
        schema.inputs(read_table(written(tmp_path, "price\n€ 12\n$ 12\n")))


def test_columns_that_are_asked_for_stay_as_written(tmp_path):
    path = written(tmp_path, " zip ,x\n007,€ 1\n012,€ 2\n")
    assert open_table(path, texts=["zip"]).frame["zip"].tolist() == ["007", "012"]
    assert open_table(path, texts=["x"]).frame["x"].tolist() == ["€ 1", "€ 2"]


@pytest.mark.parametrize("pair", [("no", "yes"), ("False", "TRUE"), ("N", "Y"), ("f", "t")])
def test_answers_are_zero_and_one(pair):
    frame = pd.DataFrame({"a": [pair[0], pair[1], pair[1].upper(), None] * 5, "y": np.arange(20.0) / 3})
    schema = Schema.learn(frame, "y")
    assert schema.features == ("a", "a is missing")
    assert schema.inputs(frame)[:4].tolist() == [[0, 0], [1, 0], [1, 0], [1, 1]]
    assert Schema.from_json(schema.to_json()) == schema
    assert Schema.learn(frame.dropna(), "a").classes == tuple(
        sorted(set(frame["a"].dropna()))
    )  # a target keeps its names


def table(**columns):
    random = np.random.default_rng(0)
    return pd.DataFrame({"x": random.normal(size=40), **columns, "y": random.normal(size=40)})


SHUFFLED = np.random.default_rng(1).permutation(40)


@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("name", [f"person {i}" for i in range(40)]),
        ("", range(40)),
        ("", range(1, 41)),
        ("", SHUFFLED),
        ("id", SHUFFLED),
        ("customer_id", SHUFFLED * 17 + 1003),
        ("CustomerID", SHUFFLED),
    ],
)
def test_ids_and_unnamed_indices_are_dropped_and_said(tmp_path, name, values):
    table(**{"t": values}).rename(columns={"t": name}).to_csv(tmp_path / "t.csv", index=False)
    schema = load_table(tmp_path / "t.csv", "y")[1]
    assert schema.features == ("x",)
    assert "look like an id" in schema.notes[-1]
    assert repr(name or "Unnamed: 1") in schema.notes[-1]


@pytest.mark.parametrize(
    ("name", "values", "said"),
    [("year", range(1980, 2020), True), ("id", [1, 2] * 20, False), ("amount", SHUFFLED * 17, False)],
)
def test_whole_numbers_that_may_mean_something_stay(name, values, said):
    schema = Schema.learn(table(**{name: values}), "y")
    assert name in schema.features
    assert ("one after another: drop it if it is an id" in schema.notes[-1]) == said
