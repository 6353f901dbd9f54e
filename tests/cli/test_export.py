"""`bayesrule export`: a run as one program, with what its numbers mean."""

import json

import numpy as np
import pandas as pd
import pytest
import torch

import bayesrule as br


def test_a_run_of_a_table(bayesrule, runs, tables, tmp_path):
    code, out, err = bayesrule("export", runs / "grades", "--out", "grades.pt2", "--samples", "4", "--json")
    assert code == 0, err
    assert json.loads(out)["bytes"] == (tmp_path / "grades.pt2").stat().st_size
    told = json.loads((tmp_path / "grades.pt2.json").read_text())
    run = br.load_run(runs / "grades")
    assert told["inputs of the table"] == list(run.schema.features)
    assert told["classes"] == list(run.run.classes)
    again = br.data.Schema.from_json(told["schema"])
    x = torch.from_numpy(again.inputs(pd.read_csv(tables / "new.csv")))
    found = torch.export.load(tmp_path / "grades.pt2").module()(x)
    wanted = run.posterior.predict(x, samples=4, seed=run.run.settings.seed)
    np.testing.assert_allclose(found["probs"], wanted.probs, atol=1e-5)
    code, _, err = bayesrule("export", runs / "grades", "--out", "grades.pt2")
    assert code == 2
    assert "--out must be a new file, got grades.pt2" in err


@pytest.mark.parametrize(
    ("options", "error"),
    [
        (["--out", "a.bin"], "path must end in .pt2 (torch.export) or .onnx, got a.bin"),
        (["--out", "a.pt2", "--level", "90"], "--level must be between 0 and 1, got 90: for 95 % give 0.95"),
    ],
)
def test_what_is_asked_wrongly(options, error, bayesrule, runs):
    code, _, err = bayesrule("export", runs / "houses", *options)
    assert code == 2
    assert error in err
