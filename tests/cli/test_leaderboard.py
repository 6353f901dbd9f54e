"""The verb ``leaderboard``: files, cells that are kept, failures that stop nobody, references, and bad input."""

import json
from dataclasses import replace

import pytest

from bayesrule.boards import base, cells
from bayesrule.cli import leaderboard as verb
from bayesrule.likelihoods import Heteroscedastic
from bayesrule.methods import Ensemble
from bayesrule.training import fit

QUICK = ("leaderboard", "--boards", "tables/few-rows", "--epochs", "1", "--out", "board")


def result(tmp_path):
    return json.loads((tmp_path / "board" / "result.json").read_text())


def test_tables_files_and_what_is_kept(bayesrule, tmp_path, monkeypatch):
    line = (*QUICK, "--methods", "map,swag", "--splits", "2")
    code, out, err = bayesrule(*line)
    assert code == 0, err
    for word in ("few-rows", "swag", "best by validation", "boosting (baseline)", "NLL", "±", "1.0 ×"):
        assert word in out, word
    assert "8/8" in err
    plain = result(tmp_path)
    board = plain["boards"]["tables/few-rows"]
    assert board["repeats"] == [0, 1]
    assert board["methods"]["swag"]["scores"]["nll"]["error"] > 0
    assert sum(board["chosen"]["methods"].values()) == 2
    assert (tmp_path / "board" / "leaderboard.png").is_file()
    page = (tmp_path / "board" / "report.html").read_text()
    assert "mean rank" not in page  # of one board
    assert "http" not in page

    asked = []
    monkeypatch.setattr(cells, "fit", lambda *args, **more: asked.append(args) or fit(*args, **more))
    code, _, err = bayesrule(*line[:-2], "--splits", "2", "--methods", "map,swag,ivon", "--no-validation")
    assert code == 0, err
    cells._warm_up.cache_clear()
    assert {args[2].name for args in asked if not isinstance(args[2], str)} == {"ivon"}  # all else was kept


def test_a_failed_cell_is_said_stops_nobody_and_is_tried_again(bayesrule, tmp_path, monkeypatch):
    def broken(model, train, method, *args, **more):
        if getattr(method, "name", "") == "swag":
            raise FloatingPointError("the loss is NaN")
        return fit(model, train, method, *args, **more)

    line = (*QUICK, "--methods", "swag,map", "--splits", "1", "--no-validation")
    with monkeypatch.context() as patched:
        patched.setattr(cells, "fit", broken)
        code, out, err = bayesrule(*line)
    assert code == 0, err
    assert "1 of 1 FAILED" in out
    assert "swag, repetition 0: FloatingPointError: the loss is NaN" in err
    assert result(tmp_path)["failures"]
    assert "What failed" in (tmp_path / "board" / "report.html").read_text()
    code, out, err = bayesrule(*line)
    assert code == 0, err
    assert "FAILED" not in out + err
    assert "2/2" in err  # one was kept, and one asked again


def test_agreement_with_a_method_that_is_measured(bayesrule, tmp_path, monkeypatch):
    monkeypatch.setattr(verb, "REFEREE", "ensemble")
    line = (*QUICK, "--methods", "map,ensemble", "--set", "ensemble.members=2", "--splits", "1", "--no-validation")
    code, out, err = bayesrule(*line)
    assert code == 0, err
    methods = result(tmp_path)["boards"]["tables/few-rows"]["methods"]
    assert 0 <= methods["map"]["scores"]["agreement"]["mean"] <= 1
    assert "agreement" not in methods["ensemble"]["scores"]
    assert "agree" in out


def test_agreement_with_a_run(bayesrule, tmp_path):
    code, _, err = bayesrule("fit", "digits", "--method", "map", "--epochs", "1", "--hidden", "8", "--out", "run")
    assert code == 0, err
    line = ("leaderboard", "--boards", "digits", "--methods", "map", "--epochs", "1", "--splits", "1", "--out", "board")
    code, _, err = bayesrule(*line, "--hidden", "8", "--no-validation", "--reference", "run")
    assert code == 0, err
    scores = result(tmp_path)["boards"]["digits"]["methods"]["map"]["scores"]
    assert scores["agreement"]["mean"] == 1.0  # the same network, data, seed and epochs: the same run
    assert scores["total_variation"]["mean"] < 1e-6
    code, _, err = bayesrule(*QUICK, "--methods", "map", "--splits", "1", "--reference", "run")
    assert code == 2
    assert "--reference must be runs on the boards, but run is on digits" in err


def test_a_method_with_a_network_and_a_noise_for_itself(bayesrule, tmp_path, monkeypatch):
    own = base.Own(
        Ensemble(members=3),
        Heteroscedastic(deviation=True),
        {"name": "mlp", "hidden": [4], "activation": "silu"},
        prior=1.0,
        samples=3,
    )
    name = "tables/diabetes"
    monkeypatch.setitem(base.BOARDS, name, replace(base.BOARDS[name], own={"ensemble": own}))
    line = ("leaderboard", "--boards", name, "--epochs", "1", "--out", "board", "--splits", "1", "--no-validation")
    code, out, err = bayesrule(*line, "--methods", "map,ensemble", "--set", "ensemble.members=2")
    assert code == 0, err
    assert "ensemble: members=3, network mlp 4 silu, noise heteroscedastic deviation=True, prior 1" in out
    kept = [json.loads(path.read_text()) for path in (tmp_path / "board" / "cells").glob("*.json")]
    (found,) = [answer for answer in kept if answer.get("method", {}).get("name") == "ensemble"]
    assert found["method"]["fields"]["members"] == 2  # --set is on top of what the method has for itself
    assert found["network"]["hidden"] == [4]
    assert found["likelihood"] == "heteroscedastic"
    (other,) = [answer for answer in kept if answer.get("method", {}).get("name") == "map"]
    assert other["network"]["hidden"] == [64, 64]
    assert other["likelihood"] != "heteroscedastic"

    code, out, err = bayesrule(*line, "--methods", "map", "--likelihood", "heteroscedastic:deviation=true")
    assert code == 0, err
    assert "noise heteroscedastic deviation=True" in out


@pytest.mark.parametrize(
    ("line", "says"),
    [
        (("--boards", "uci/yachts"), "unknown board 'uci/yachts': did you mean 'uci/yacht'?"),
        (("--boards", ""), "--boards must name at least one board"),
        (("--methods", "swagg"), "unknown method 'swagg'"),
        (("--set", "swag.ranks=3", "--methods", "swag"), "unknown field of swag 'ranks'"),
        (("--splits", "0"), "--splits must be at least 1, got 0"),
        (("--jobs", "0"), "--jobs must be at least 1, got 0"),
        (("--epochs", "0"), "--epochs must be at least 1, got 0"),
        (("--likelihood", "heteroscedastic:deviation"), "--likelihood must be NAME or NAME:FIELD=VALUE,FIELD=VALUE"),
        (("--likelihood", "poisson"), "--likelihood must be for reals, got poisson"),
        (("--boards", "uci/yacht"), "uci/yacht is read from files, and no directory was given"),
        (("--boards", "digits", "--splits", "1", "--reference", "nowhere"), "RUN must be a directory"),
    ],
)
def test_bad_input_is_one_line_before_anything_is_trained(bayesrule, monkeypatch, line, says):
    monkeypatch.delenv("BAYESRULE_DATA", raising=False)
    code, out, err = bayesrule("leaderboard", "--out", "board", *line)
    assert code == 2
    assert not out
    assert says in err.splitlines()[-1]
