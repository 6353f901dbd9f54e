"""The experiment about Laplace's method: structures, and the tangent against drawn weights."""

import functools
import io
import json

import pytest
import torch
from matplotlib.image import imread

from bayesrule.data import load_set
from bayesrule.experiments import EXPERIMENTS, Setting, png
from bayesrule.experiments.laplace import laplace_structures
from bayesrule.experiments.laplace.laplace_structures import (
    DIAGONAL,
    KRONECKER,
    LAST,
    MAP,
    TANGENT,
    WEIGHTS,
    claims_of,
    collapse,
    column,
    diagonal_is_worse,
    framed,
    keeps,
    not_above,
    notices,
)

SEEDS = 3
GOOD = {"accuracy": 0.98, "nll": 0.08, "ece": 0.02, "confidence": 0.97, "auroc_ood": 0.9}


def scores(seed, **other):
    """Scores of a seed, each a little different."""
    return {name: value + 0.001 * seed for name, value in (GOOD | other).items()}


def rows(**changes):
    """What a run in which all claims hold would say, but for ``changes`` such as ``last={"nll": 0.1}``."""
    told = {
        LAST: {"nll": 0.07, "ece": 0.015, "auroc_ood": 0.93},
        KRONECKER: {"nll": 0.1, "auroc_ood": 0.95},
        DIAGONAL: {"nll": 0.3},
        WEIGHTS: {"accuracy": 0.5, "nll": 2.0},
    }
    for what, change in changes.items():
        told[{"last": LAST, "kronecker": KRONECKER, "diagonal": DIAGONAL, "weights": WEIGHTS}[what]] |= change

    def row(seed):
        about = {"log_evidence": -100.0, "prior_scale": 0.7, "epochs": 2.0}
        drawn = scores(seed, **told[WEIGHTS])
        names = (LAST, KRONECKER, DIAGONAL)
        return {
            MAP: scores(seed),
            "structures": {name: about | {TANGENT: scores(seed, **told[name]), WEIGHTS: drawn} for name in names},
        }

    return [row(seed) for seed in range(SEEDS)]


@pytest.fixture
def short(monkeypatch):
    """Two seeds, few steps, three structures and few draws."""
    monkeypatch.setattr(laplace_structures, "LENGTHS", {False: {"digits": 5}})
    monkeypatch.setattr(laplace_structures, "COMPARED", {"digits": laplace_structures.LARGE})
    monkeypatch.setattr(laplace_structures, "HIDDEN", [16])
    monkeypatch.setattr(laplace_structures, "SEEDS", 2)
    monkeypatch.setattr(laplace_structures, "SAMPLES", {False: 20})


def timeless(result):
    """The data without what the clock said."""
    plain = json.loads(json.dumps(result.data, allow_nan=False))
    for network in plain["networks"]:
        assert network[MAP].pop("seconds_per_epoch") > 0
        assert all(each.pop("epochs") > 0 for each in network["structures"].values())
    return plain


@functools.cache
def answer():
    """What the experiment finds, for tests with ``short``."""
    return EXPERIMENTS["laplace-structures"](Setting())


def test_the_experiment_answers_in_full(short):
    result = answer()
    assert len(result.claims) == 9
    assert all(claim.source and claim.says and claim.measured for claim in result.claims)
    assert {claim.held for claim in result.claims} <= {True, False, None}
    assert len(result.notes) == 4
    assert imread(io.BytesIO(png(result)), format="png").std() > 0.01


@pytest.mark.slow
def test_another_seed_is_another_answer(short):
    assert timeless(laplace_structures.run(Setting(seed=1))) != timeless(answer())


def test_a_run_repeats_and_goes_on_where_it_stopped(short, tmp_path):
    told = []
    setting = Setting(cache=tmp_path, tell=told.append)
    first = laplace_structures.run(setting)
    assert timeless(first) == timeless(answer())
    assert len(told) == 2
    for n, line in enumerate(told, 1):  # the time that is left may follow
        assert line.startswith(f"{n}/2 data digits, epochs 5, seed {n - 1}, samples 20")
    again = laplace_structures.run(setting)
    assert len(told) == 2
    assert again.data == first.data
    assert again.claims == first.claims


def test_a_last_layer_is_linear_in_its_weights(short):
    """Both ways to predict say the same of it, up to the draws; a whole network's drawn weights are another thing."""
    question = laplace_structures.StructuresQuestion("digits", 40, 0, 400)
    found = laplace_structures.look(question, None)
    assert abs(found["structures"][LAST][TANGENT]["nll"] - found["structures"][LAST][WEIGHTS]["nll"]) < 0.02
    products = found["structures"][KRONECKER]
    assert products[WEIGHTS]["nll"] > products[TANGENT]["nll"] + 0.2
    assert found[MAP]["accuracy"] > 0.9
    assert 0 < products["prior_scale"] < 2


def test_all_claims_can_hold():
    claims = claims_of(rows(), "digits")
    assert len(claims) == 9
    assert all(claim.held for claim in claims)
    assert all("digits" in claim.says for claim in claims)


@pytest.mark.parametrize(
    ("claim", "change"),
    [
        (lambda found: collapse(found, "d", KRONECKER), {"weights": {"accuracy": 0.94}}),
        (lambda found: collapse(found, "d", KRONECKER), {"weights": {"nll": 0.09}}),
        (lambda found: collapse(found, "d", DIAGONAL), {"diagonal": {"nll": 3.0}}),
        (lambda found: keeps(found, "d", KRONECKER), {"kronecker": {"accuracy": 0.974}}),
        (lambda found: keeps(found, "d", DIAGONAL), {"diagonal": {"accuracy": 0.5}}),
        (lambda found: not_above(found, "d", "nll"), {"last": {"nll": 0.09}}),
        (lambda found: not_above(found, "d", "ece"), {"last": {"ece": 0.03}}),
        (lambda found: diagonal_is_worse(found, "d"), {"diagonal": {"nll": 0.1}}),
        (lambda found: notices(found, "d", LAST), {"last": {"auroc_ood": 0.9}}),
        (lambda found: notices(found, "d", KRONECKER), {"kronecker": {"auroc_ood": 0.8}}),
    ],
)
def test_a_claim_follows_the_numbers(claim, change):
    assert claim(rows()).held
    assert not claim(rows(**change)).held


def test_one_seed_without_a_collapse_is_enough():
    found = rows()
    found[1]["structures"][KRONECKER][WEIGHTS]["accuracy"] = 0.97
    claim = collapse(found, "digits", KRONECKER)
    assert not claim.held
    assert "the first in 2 and the second in 3 of 3 seeds" in claim.measured


def test_seeds_are_counted():
    found = rows()
    found[0]["structures"][LAST][TANGENT]["nll"] = 0.09
    assert "not above in 2 of 3 seeds" in not_above(found, "digits", "nll").measured
    found[2]["structures"][KRONECKER][TANGENT]["accuracy"] -= 0.006
    claim = keeps(found, "digits", KRONECKER)
    assert "within in 2 of 3 seeds" in claim.measured
    assert claim.held is None  # 0.2 points on average, and as uncertain as that


def test_columns_are_by_seed():
    found = rows()
    assert column(found, MAP, "nll") == pytest.approx([0.08, 0.081, 0.082])
    assert column(found, LAST, "nll", WEIGHTS) == pytest.approx([2.0, 2.001, 2.002])


def test_inputs_from_elsewhere():
    """Those of digits come with them; others are framed to the pictures' size."""
    split = load_set("digits")
    assert laplace_structures._outside(split, None) is split.ood
    pictures = torch.rand(2, 1, 28, 28)
    assert torch.equal(framed(pictures, 1, 28), pictures)
    photographs = framed(pictures, 3, 32)
    assert photographs.shape == (2, 3, 32, 32)
    assert torch.equal(photographs[:, 1:2, 2:-2, 2:-2], pictures)
