"""The experiments about active learning."""

import io
import json
from dataclasses import replace

import pytest
import torch
from matplotlib.image import imread

from bayesrule.active import Result, SimCLR
from bayesrule.data import load_set
from bayesrule.experiments import EXPERIMENTS, Setting, png
from bayesrule.experiments.active import active_features, active_mnist, active_moons, curves, repeated_mnist


@pytest.fixture
def short(monkeypatch):
    """Two seeds, few labels and steps."""
    monkeypatch.setattr(active_mnist, "SEEDS", 2)
    changes = {"budgets": (50, 40, 40, 40), "epochs": 5, "samples": 5, "pictures": 60, "test_samples": 4, "test": 100}
    monkeypatch.setattr(active_mnist, "QUICK", replace(active_mnist.QUICK, candidates=50, **changes))
    monkeypatch.setattr(repeated_mnist, "REPEATED", {False: replace(repeated_mnist.REPEATED[False], **changes)})
    monkeypatch.setattr(active_features, "SEEDS", 2)
    monkeypatch.setattr(active_features, "BUDGETS", (40, 30, 30))
    monkeypatch.setattr(active_features, "ENCODERS", {False: SimCLR(features=8, width=4, epochs=1, batch_size=128)})
    monkeypatch.setattr(active_moons, "SEEDS", {False: 2, True: 2})
    monkeypatch.setattr(active_moons, "EPOCHS", {False: 5, True: 5})
    monkeypatch.setattr(active_moons, "BUDGET", 12)
    monkeypatch.setattr(active_moons, "GRID", 12)


@pytest.mark.parametrize(
    ("name", "claims"),
    [
        ("active-moons", 3),
        pytest.param("repeated-mnist", 4, marks=pytest.mark.slow),
        pytest.param("active-mnist", 5, marks=pytest.mark.slow),
        pytest.param("active-features", 2, marks=pytest.mark.slow),
    ],
)
def test_claims_numbers_and_a_figure(name, claims, short):
    result = EXPERIMENTS[name](Setting())
    assert len(result.claims) == claims
    assert all(claim.source and claim.says and claim.measured for claim in result.claims)
    json.dumps(result.data, allow_nan=False)
    assert imread(io.BytesIO(png(result)), format="png").std() > 0.01


def runs(reached, last=100):
    """Runs that get to 95 % with so many labels; None: never."""
    found = []
    for labels in reached:
        accuracy = [float(labels is not None and at >= labels) for at in range(20, last + 1, 10)]
        found.append(Result("p", {}, 0, labels=list(range(20, last + 1, 10)), accuracy=accuracy))
    return found


@pytest.mark.parametrize(
    ("fast", "slow", "held"),
    [
        ([40, 40, 50], [80, 90, 100], True),
        ([40, 40, 50], [70, 70, 100], False),
        ([40, 40, 50], [None, None, 100], True),
        ([60, 60, 60], [None, None, None], None),  # random might get there with 110
        ([None, None, 60], [None, None, None], None),
    ],
)
def test_twice_the_labels(fast, slow, held):
    assert curves.twice({"batchbald": runs(fast), "random": runs(slow)}).held is held


def test_a_bound_on_labels():
    found = {"batchbald": runs([40, 60, 60]), "epig": runs([None, None, 50]), "bald": runs([None] * 3)}
    claim = curves.within(found, ("batchbald", "epig"), 60, "source")
    assert claim.held
    assert claim.measured == "median over 3 seeds: BatchBALD 60, EPIG > 100"
    assert curves.within(found, ("bald",), 100, "source").held is False


def test_curves_are_compared_as_far_as_all_of_them_go():
    long = Result("p", {}, 0, labels=[20, 30, 40], accuracy=[0.5, 0.7, 1.0])
    short = Result("p", {}, 0, labels=[20, 30], accuracy=[0.5, 0.7])
    assert curves.areas({"random": [long], "bald": [short]}) == {"random": [0.6], "bald": [0.6]}
    # one seed says nothing of the scatter
    assert curves.ahead({"random": [long], "bald": [short]}, "bald", "random", "source", "").held is None


def test_copies_of_pictures():
    scale = replace(active_mnist.QUICK, pictures=30, copies=3, noise=0.1, test=50)
    pool = active_mnist.pool_of(load_set("digits"), scale, seed=4)
    copies = pool.x.reshape(3, 30, -1)
    assert len(pool) == 90
    assert torch.equal(pool.labels[:30], pool.labels[30:60])
    assert len(pool.test[1]) == 50
    away = (copies[0] - copies[1]).std()
    assert away == pytest.approx(0.1 * 2**0.5, rel=0.08)  # 1920 numbers, five standard errors
    again = active_mnist.pool_of(load_set("digits"), scale, seed=4)
    assert torch.equal(pool.x, again.x)
