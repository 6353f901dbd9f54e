import json

import numpy as np
import pandas as pd
import pytest

from bayesrule.cli import main


def houses(n=150):
    """Numbers, categories, missing values, a constant, an id, and names that are code in HTML and in matplotlib."""
    random = np.random.default_rng(0)
    size, city = random.normal(100, 30, n).round(1), random.choice(["Rome", "Oslo", "$\\alpha$"], n)
    price = 3 * size + 50 * (city == "Rome") + random.normal(0, 20, n)
    frame = pd.DataFrame({"size": size, "city": city, "<script>x</script>": random.normal(size=n), "planet": "Earth"})
    frame.loc[::17, "size"] = np.nan
    frame.loc[::29, "city"] = None
    frame["id"] = [f"house {i}" for i in range(n)]
    frame["price"] = price.round(2)
    frame["grade"] = np.where(price > 330, "<b>high", np.where(price < 280, "low", "mid"))
    return frame


@pytest.fixture(scope="session")
def tables(tmp_path_factory):
    """A directory with tables in files."""
    folder = tmp_path_factory.mktemp("tables")
    frame = houses()
    frame.drop(columns="grade").to_csv(folder / "houses.csv", index=False)
    frame.drop(columns="price").to_csv(folder / "grades.csv", index=False)
    frame.drop(columns="grade").to_parquet(folder / "houses.parquet")
    frame.drop(columns=["price", "grade"]).head(7).to_csv(folder / "new.csv", index=False)
    frame.drop(columns=["price", "city"]).to_csv(folder / "no-city.csv", index=False)
    (folder / "empty.csv").touch()
    (folder / "twice.csv").write_text("size,price,price\n1,2,2\n3,4,4\n")
    (folder / "header.csv").write_text("size,price\n")
    return folder


@pytest.fixture(scope="session")
def runs(tables, tmp_path_factory):
    """A directory with the finished runs ``houses`` (regression) and ``grades`` (classes)."""
    folder = tmp_path_factory.mktemp("runs")
    for name, target in (("houses", "price"), ("grades", "grade")):
        table = str(tables / f"{name}.csv")
        line = ["fit", table, "--target", target, "--method", "swag", "--epochs", "10", "--out", str(folder / name)]
        assert main(line) == 0
    return folder


@pytest.fixture
def painted():
    """For tests that want their figures as users see them; those of ``runs`` are."""


@pytest.fixture(autouse=True)
def _figures(request, few_trees):
    if "painted" not in request.fixturenames:
        request.getfixturevalue("unpainted")


@pytest.fixture
def bayesrule(capsys, tmp_path, monkeypatch):
    """Run a command line in an empty directory: exit code, stdout, stderr."""
    monkeypatch.chdir(tmp_path)

    def run(*line):
        code = main([str(word) for word in line])
        return code, *capsys.readouterr()

    return run


@pytest.fixture
def as_json(bayesrule):
    """Run a command line with ``--json``: what it printed."""

    def run(*line):
        code, out, err = bayesrule(*line, "--json")
        assert code == 0, err
        return json.loads(out)

    return run
