"""From cells to a table: means, ratios, what validation chooses, ranks, failures."""

import json
import math
from dataclasses import replace

import pytest
import torch

from bayesrule.boards import BOARDS, page, published
from bayesrule.boards import cells as board_cells
from bayesrule.boards.base import chosen
from bayesrule.boards.cells import Cell, Simple, Terms
from bayesrule.boards.standings import CHOSEN, gains, plain_board, ranks, standings
from bayesrule.data import Split
from bayesrule.likelihoods import Heteroscedastic
from bayesrule.methods import HMC, MAP, Ensemble


def answer(nll, training=1.0, **more):
    return {"scores": {"nll": nll, **more}, "training": training, "prediction": 0.5, "likelihood": "gaussian"}


def cells(board, table, part="test"):
    """Questions and answers from NLLs by method and repetition; None: failed."""
    asked, found = [], []
    for method, runs in table.items():
        for repeat, value in enumerate(runs):
            asked.append(Cell(board, method, MAP(), repeat, part=part))
            found.append({"failed": "ValueError: no"} if value is None else answer(*value))
    return asked, found


def one_of(test, held=None, simple=()):
    asked, found = cells("uci/yacht", test)
    more, known = cells("uci/yacht", held or {}, "validation")
    baselines = [Simple("uci/yacht", repeat) for repeat in range(len(simple))]
    (one,) = standings([*asked, *more], [*found, *known], baselines, list(simple))
    return one


TEST = {"map": [(1.0, 2.0), (2.0, 4.0)], "swag": [(0.5, 4.0), (1.7, 4.0)], "ivon": [(1.2, 6.0), (1.0, 2.0)]}


def test_means_errors_and_ratios_to_map_on_the_same_repetition():
    rows = plain_board(one_of(TEST))["methods"]
    assert list(rows) == ["swag", "ivon", "map"]  # the lowest NLL first
    assert rows["swag"]["scores"]["nll"] == {"mean": pytest.approx(1.1), "error": pytest.approx(0.6)}
    assert rows["swag"]["training"]["mean"] == pytest.approx((4 / 2 + 4 / 4) / 2)
    assert rows["map"]["training"]["mean"] == 1
    # differences to map are paired: 0.5 and 0.3, though its own NLL scatters by far more
    assert rows["swag"]["gain"] == {"mean": pytest.approx(0.4), "error": pytest.approx(0.1)}


def test_validation_chooses_per_repetition_and_test_scores_are_what_counts():
    held = {"map": [(0.1,), (9.0,)], "swag": [(0.2,), (8.0,)], "ivon": [(0.3,), (7.0,)]}
    one = one_of(TEST, held)
    assert one.chosen.values("nll") == [
        1.0,
        1.0,
    ]  # map on the first, though swag tests better there; ivon on the second
    assert one.elected == {"map": 1, "ivon": 1}
    assert any(row.name == CHOSEN for row in one.ranked)
    assert one_of(TEST).chosen is None


def test_a_failure_is_said_and_leads_nothing():
    one = one_of({**TEST, "swag": [(0.1, 1.0), None]}, simple=[{"failed": "MemoryError: "}, {"baselines": {}}])
    assert [row.name for row in one.ranked][:2] == ["ivon", "map"]
    (swag,) = [row for row in one.rows if row.name == "swag"]
    assert swag.nll == math.inf
    assert page.failures([one]) == [
        "uci/yacht, swag, repetition 1: ValueError: no",
        "uci/yacht, baselines, repetition 0: MemoryError: ",
    ]
    (line,) = [line for line in page.lines(one) if line.name.startswith("swag")]
    assert "1 of 2 FAILED" in line.name
    assert not any(cell.best for cell in line.cells)
    json.dumps(plain_board(one), allow_nan=False)


def test_without_map_costs_are_seconds_and_nothing_is_compared_with_it():
    one = one_of({"swag": TEST["swag"]})
    (row,) = one.rows
    assert not one.relative
    assert list(row.training.values()) == [4.0, 4.0]
    assert gains(one, row) == []


def test_ranks_are_means_over_boards_of_the_methods_on_all_of_them():
    first = cells("uci/yacht", {"map": [(1.0,)], "swag": [(2.0,)], "ivon": [(0.0,)]})
    second = cells("uci/boston", {"map": [(1.0,)], "swag": [None]})
    found = standings(first[0] + second[0], first[1] + second[1], [], [])
    assert ranks(found) == {"map": 1.0, "swag": 2.0}


def test_ties_share_their_places():
    assert ranks([one_of({"map": [(1.0,)], "swag": [(1.0,)], "ivon": [(2.0,)]})]) == {
        "map": 1.5,
        "swag": 1.5,
        "ivon": 3,
    }


@pytest.mark.parametrize("name", published.SETS)
def test_every_published_source_has_every_set(name):
    found = published.on(f"uci/{name}")
    lacking = name in ("kin8nm", "naval", "power", "protein")  # of CatBoost
    assert len(found) == len(published.UCI) - lacking
    assert [one.how for one in found[-2 + lacking :]] == ["measured elsewhere", "aim"][lacking:]
    ll = -found[0].value
    assert {"boston": -2.574, "naval": 3.731, "yacht": -1.634}.get(name, ll) == ll


def test_tables_that_need_no_file_have_rows_of_their_kind_and_other_ones_for_another_repetition():
    for board in chosen(["tables"]):
        split, other = board.load(0), board.load(1)
        assert split.kind == ("classes" if split.classes else "reals")
        assert len(split.train[1]) == pytest.approx(4 * len(split.test[1]), abs=4)
        assert not (split.train[0].shape == other.train[0].shape and (split.train[0] == other.train[0]).all())


def test_a_residual_network_is_measured_where_it_is_asked_for():
    assert "cifar10/resnet-20" in BOARDS
    assert [board.name for board in chosen(["cifar10"])] == ["cifar10/lenet-5"]
    assert [board.name for board in chosen(["cifar10"], full=True)] == ["cifar10/lenet-5", "cifar10/resnet-20"]
    assert [board.name for board in chosen(["cifar10/resnet-20"])] == ["cifar10/resnet-20"]


def test_chains_are_as_long_as_their_fields_say_and_all_else_as_the_board_has_it():
    terms = Terms(full=True)
    assert Cell("mnist", "map", MAP(), 0, terms).epochs == 20
    assert Cell("mnist", "map", MAP(), 0, Terms(epochs=3)).epochs == 3
    assert Cell("digits", "map", MAP(), 0, terms).epochs is None
    for method in (HMC(), Ensemble(base=HMC())):
        assert Cell("mnist", "hmc", method, 0, Terms(epochs=3)).epochs is None


def test_what_one_source_says_of_a_board_stands_in_one_line():
    asked, answers = cells("cifar10/lenet-5", {"map": [(1.0,)]})
    answers[0]["scores"] |= {"accuracy": 0.7, "ece": 0.03}
    (one,) = standings(asked, answers, [], [])
    (vogn,) = [line for line in page.lines(one) if line.name.startswith("VOGN")]
    assert "not checked" in vogn.name
    assert [cell.text for cell in vogn.cells[:3]] == ["0.673", "0.938", "0.046"]
    assert "VOGN, LeNet-5 (Osawa et al. 2019), published, not checked" in page.literature(one)


def test_the_regularised_baseline_is_named():
    names = [line.name for line in page.lines(one_of(TEST))]
    assert "map (regularised baseline)" in names


def test_a_method_may_have_a_network_a_noise_and_settings_for_itself(monkeypatch):
    own = BOARDS["uci/yacht"].own["mclmc"]
    mine = Cell("uci/yacht", "mclmc", own.method, 0, own=own)
    assert mine.likelihood is own.likelihood
    assert mine.samples == 400
    assert Cell("uci/yacht", "map", MAP(), 0).likelihood == "auto"
    assert Cell("uci/yacht", "mclmc", own.method, 0, Terms(likelihood="gaussian"), own=own).likelihood == "gaussian"
    monkeypatch.setattr(board_cells, "fingerprint", lambda *place: "")
    assert mine.key(None)["terms"]["likelihood"] is own.likelihood
    assert mine.key(None) != replace(mine, own=replace(own, prior=2.0)).key(None)
    split = Split("t", "reals", "", (torch.zeros(4, 3), torch.zeros(4)))
    shared = BOARDS["uci/yacht"].spec(split, Heteroscedastic())
    spec = BOARDS["uci/yacht"].spec(split, Heteroscedastic(), own=own)
    assert spec == {"inputs": 3, "outputs": 2, "name": "mlp", "hidden": [16, 16], "activation": "silu"}
    assert (shared["name"], shared["hidden"]) == ("tabular", [64, 64])
    assert BOARDS["uci/yacht"].spec(split, Heteroscedastic(), (8,), own)["hidden"] == [8]
    assert str(own) == (
        "chains=8, draws=50, thin=110, warm_up=30, training=20, network mlp 16-16 silu, "
        "noise heteroscedastic deviation=True, prior 1, 400 networks of a prediction"
    )


def test_large_sets_have_the_noise_that_held_out_training_rows_preferred():
    named = {name for name, board in BOARDS.items() if board.likelihood != "auto"}
    assert named == {f"uci/{name}" for name in ("kin8nm", "naval", "power", "protein")}
    assert Cell("uci/power", "map", MAP(), 0).likelihood == "heteroscedastic"
    assert Cell("uci/power", "map", MAP(), 0, Terms(likelihood="auto")).likelihood == "auto"
    assert {name: board.epochs for name, board in BOARDS.items() if "uci/" in name and board.epochs} == {
        "uci/naval": 60,
        "uci/power": 100,
    }
    assert Cell("uci/kin8nm", "map", MAP(), 0).epochs is None
    assert board_cells._noise("heteroscedastic") == "noise heteroscedastic"
