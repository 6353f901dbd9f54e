"""From the command line back to Python."""

import io

import numpy as np
import pandas as pd
import pytest

import bayesrule as br
from bayesrule.posteriors import Posterior


@pytest.mark.parametrize("name", ["houses", "grades"])
def test_the_columns_of_the_command_line(name, bayesrule, runs, tables):
    _, out, _ = bayesrule("predict", runs / name, tables / "new.csv")
    found = br.load_run(runs / name).predict(tables / "new.csv")
    pd.testing.assert_frame_equal(found, pd.read_csv(io.StringIO(out), keep_default_na=False), check_exact=True)


def test_a_frame_keeps_its_index(runs, tables):
    run = br.load_run(str(runs / "houses"))
    rows = pd.read_csv(tables / "new.csv")
    moved = rows.set_index(pd.Index(list("abcdefg")))
    found = run.predict(moved)
    assert list(found.index) == list("abcdefg")
    np.testing.assert_array_equal(found, run.predict(rows))


def test_levels(runs, tables):
    run = br.load_run(runs / "houses")
    wide, narrow = (run.predict(tables / "new.csv", level=level) for level in (0.9, 0.5))
    assert (wide.lower_90 < narrow.lower_50).all()
    assert (narrow.upper_50 < wide.upper_90).all()


def test_what_a_run_holds(runs):
    run = br.load_run(runs / "houses")
    assert isinstance(run.posterior, Posterior)
    assert run.schema.target == "price"
    assert "houses.csv" in repr(run)
    assert "method='swag'" in repr(run)


def test_a_named_data_set(bayesrule, tmp_path):
    assert bayesrule("fit", "moons", "--method", "map", "--epochs", 1, "--out", "run")[0] == 0
    run = br.load_run("run")
    assert run.schema is None
    assert len(run.predict("moons")) == 200
    with pytest.raises(ValueError, match="DATA must be a name, as the run was trained on 'moons', got 'a DataFrame'"):
        run.predict(pd.DataFrame({"x": [1.0]}))


def test_no_run_there(tmp_path):
    with pytest.raises(FileNotFoundError, match="RUN must be a directory that bayesrule fit wrote"):
        br.load_run(tmp_path)
