"""The table of penalties: usual factors against those of the initialisation, over the global factor."""

import json
import math

import pytest
import torch
from torch import nn

from bayesrule.experiments import Setting, findings, png, trials
from bayesrule.experiments.penalties import penalty_table
from bayesrule.experiments.penalties.penalty_table import BAYESIAN, COLUMNS, USUAL, Measured, setups
from bayesrule.experiments.trials import Outcome, Training
from bayesrule.methods import MAP
from bayesrule.penalties import calibrate

MODEL = nn.Sequential(nn.Conv2d(3, 6, 5), nn.ReLU(), nn.Flatten(), nn.Linear(54, 7))


@pytest.mark.parametrize("column", COLUMNS, ids=lambda column: column.kind)
def test_factors_of_the_two_setups(column):
    """Those of the initialisation by the document's formulas, the usual ones equal but for √n of a group of n."""
    made = setups(calibrate(MODEL, column.kind), MODEL)
    fans, sizes = (75, 54), {"group": (75, 54), "group-transposed": (150, 7)}.get(column.kind)
    formula = {"l2": lambda p, n: p / 2, "l1": lambda p, n: math.sqrt(2 * p)}
    by_layer = formula.get(column.kind, lambda p, n: math.sqrt((n + 1) * p))
    names = ("0.weight", "3.weight")
    groups = sizes or (1, 1)
    want = [by_layer(p, n) for p, n in zip(fans, groups, strict=True)]
    assert [made[BAYESIAN].strengths[name] for name in names] == pytest.approx(want)
    usual = [made[USUAL].strengths[name] for name in names]
    assert usual[0] / usual[1] == pytest.approx(math.sqrt(groups[0] / groups[1]))
    assert math.prod(usual) == pytest.approx(math.prod(want))
    assert made[USUAL].strengths["0.bias"] == made[BAYESIAN].strengths["0.bias"] == 0.5


def test_the_temperature_is_the_global_factor():
    """MAP at temperature T minimises the mean loss plus T/N of the penalty: its penalty has the gradient of T·r/N."""
    calibrated = calibrate(MODEL, "group")
    weights = {name: w.detach().double() for name, w in MODEL.named_parameters()}
    for w in weights.values():
        w.requires_grad_()
    ours = torch.autograd.grad(-calibrated.log_prob(weights), list(weights.values()))
    theirs = torch.autograd.grad(calibrated.penalty(weights), list(weights.values()))
    assert all(torch.allclose(a, b) for a, b in zip(ours, theirs, strict=True))


def test_kept_examples_are_not_trained_on():
    split, data, held = trials._data("digits", None, 0.1)
    assert len(held[0]) == round(0.1 * len(split.train[0]))
    assert data.n + len(held[0]) == len(split.train[0])
    pixels = data.scaling.inputs.forward(held[0]).flatten(1).unsqueeze(1)
    assert (data.x.flatten(1) - pixels).abs().amax(2).min() > 1e-3  # no training example is one of them
    whole = Training("a", "digits", MAP(), 1, 0)
    assert whole.key() != Training("a", "digits", MAP(), 1, 0, held=0.1).key()


def row(usual=0.9, best=0.9, at_theory=0.9, best_factor=0.1):
    return Measured("‖w‖₁", *([mid - 0.001, mid + 0.001] for mid in (usual, best, at_theory)), 1.0, best_factor)


def test_claims_can_fail():
    good = [row()] * 4
    for claim, bad in (
        (penalty_table._no_worse, row(best=0.8)),
        (penalty_table._too_strong, row(best_factor=1.0)),
        (penalty_table._cost, row(at_theory=0.86)),
    ):
        assert claim(good).held
        assert not claim([*good[:3], bad]).held


def test_the_factor_is_chosen_by_what_was_kept_apart():
    """Not by the test accuracy, which is highest elsewhere."""
    exponents, column = (-1.0, 0.0), COLUMNS[0]

    def trial(setup, exponent, accuracy, held):
        what = penalty_table._named(column.kind, setup, exponent)
        return Outcome(what, "digits", 0, accuracy, 1.0, 0.0, 1.0, 1.0, [], None, held)

    found = [
        trial(setup, exponent, accuracy=0.5 - exponent / 10, held=0.9 + exponent / 10)
        for setup in (USUAL, BAYESIAN)
        for exponent in exponents
    ]
    best = penalty_table._chosen(found, "digits", column.kind, BAYESIAN, exponents)
    assert best == 0.0
    row = penalty_table._row(found, "digits", column, -1.0, best)
    assert (row.usual, row.best, row.best_factor) == ([0.6], [0.5], 1.0)


@pytest.mark.parametrize("searched", [1, 2])
def test_quick(monkeypatch, tmp_path, searched):
    """The whole grid with some seeds, and what was chosen with the others."""
    monkeypatch.setattr(penalty_table, "SEARCHED", {False: searched})
    monkeypatch.setattr(penalty_table, "EXPONENTS", {False: (-2.0, 0.0)})
    monkeypatch.setattr(penalty_table, "DATA", {False: ("digits", 1)})
    monkeypatch.setattr(findings, "seeds", lambda setting, count=3: range(2))
    result = penalty_table.run(Setting(cache=tmp_path))
    again = sum(2 + (measured["best_factor"] != 1) for measured in (row["measured"] for row in result.data["table"]))
    assert len(list(tmp_path.iterdir())) == 4 * 2 * 2 * searched + again * (2 - searched)
    assert all(len(row["measured"]["at_theory"]) == 2 for row in result.data["table"])
    json.dumps(result.data, allow_nan=False)
    assert len(result.claims) == 3
    assert len(result.notes) == 5  # λ* is at an end of a grid of two
    assert png(result).startswith(b"\x89PNG")
