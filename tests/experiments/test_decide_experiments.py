"""The experiments about acts and about the worth of examples."""

import io
import json

import pytest
from matplotlib.image import imread

from bayesrule.decide import Retraining
from bayesrule.experiments import EXPERIMENTS, Setting, png
from bayesrule.experiments.principles import bandit, leave_one_out
from bayesrule.methods import Laplace


@pytest.fixture
def short(monkeypatch):
    """Few steps, rows and epochs."""
    monkeypatch.setattr(bandit, "LENGTHS", {False: ("foraging", 30)})
    monkeypatch.setattr(bandit, "SEEDS", {False: 2})
    monkeypatch.setattr(bandit, "HIDDEN", (4,))
    monkeypatch.setattr(bandit, "RETRAINING", Retraining(every=20, warmup=10, updates=4, unit=10.0))
    monkeypatch.setattr(leave_one_out, "ROWS", {False: 4})
    monkeypatch.setattr(leave_one_out, "EPOCHS", 20)
    monkeypatch.setattr(leave_one_out, "MOMENTS", (1, 2))
    few = Laplace(structure="dense", tune="nothing", newton=3, lr=1e-2)
    monkeypatch.setattr(leave_one_out, "TO_THE_MODE", few)
    monkeypatch.setattr(leave_one_out, "AGAIN", few)


@pytest.mark.parametrize(("name", "claims"), [("bandit", 3), pytest.param("leave-one-out", 4, marks=pytest.mark.slow)])
def test_claims_numbers_and_a_figure(name, claims, short):
    result = EXPERIMENTS[name](Setting())
    assert len(result.claims) == claims
    assert all(claim.source and claim.says and claim.measured for claim in result.claims)
    json.dumps(result.data, allow_nan=False)
    assert imread(io.BytesIO(png(result)), format="png").std() > 0.01


def test_labels_are_flipped_to_others():
    labels = leave_one_out.load_set("digits").train[1]
    rows, flipped = leave_one_out.flip(labels, seed=0)
    assert len(rows) == round(0.05 * len(labels))
    assert (flipped != labels).nonzero().flatten().tolist() == sorted(rows.tolist())
