"""The experiments about active learning."""

import io
import json
from dataclasses import replace

import pytest
from matplotlib.image import imread

from bayesrule.active import Result
from bayesrule.experiments import EXPERIMENTS, Setting, png
from bayesrule.experiments.active import active_mnist, active_moons


@pytest.fixture
def short(monkeypatch):
    """Two seeds, few labels and steps."""
    monkeypatch.setattr(active_mnist, "SEEDS", 2)
    changes = {"budget": 40, "epochs": 5, "samples": 5, "candidates": 50, "test_samples": 4}
    monkeypatch.setattr(active_mnist, "QUICK", replace(active_mnist.QUICK, **changes))
    monkeypatch.setattr(active_moons, "SEEDS", {False: 2, True: 2})
    monkeypatch.setattr(active_moons, "EPOCHS", {False: 5, True: 5})
    monkeypatch.setattr(active_moons, "BUDGET", 12)
    monkeypatch.setattr(active_moons, "GRID", 12)


@pytest.mark.parametrize(
    ("name", "claims"), [("active-moons", 3), pytest.param("active-mnist", 5, marks=pytest.mark.slow)]
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
    assert active_mnist._fewer({"batchbald": runs(fast), "random": runs(slow)}).held is held
