"""The experiments about life-long learning (Khan)."""

import io
import json

import pytest
from matplotlib.image import imread

from bayesrule.experiments import EXPERIMENTS, Setting, png
from bayesrule.experiments.principles import fromp_against_ewc, more_accurate_posterior, toy_lifelong


@pytest.fixture
def short(monkeypatch):
    """Two seeds, few steps and draws, two tasks."""
    for module in (toy_lifelong, more_accurate_posterior):
        monkeypatch.setattr(module, "SEEDS", {False: 2, True: 2})
        monkeypatch.setattr(module, "EPOCHS", {False: 12, True: 12})
        monkeypatch.setattr(module, "TASKS", 2)
    monkeypatch.setattr(toy_lifelong, "GRID", 12)
    monkeypatch.setattr(more_accurate_posterior, "DRAWS", 4)
    monkeypatch.setattr(fromp_against_ewc, "SEEDS", 2)
    monkeypatch.setattr(fromp_against_ewc, "FACTORS", (1.0,))
    monkeypatch.setattr(fromp_against_ewc, "LONGEST", 0)
    both = fromp_against_ewc.STREAMS
    own = dict.fromkeys(both, fromp_against_ewc._at(1e-2, 10))
    quick = fromp_against_ewc.Scale("digits", 2, 2, 64, dict.fromkeys(both, (16, 16)), own)
    monkeypatch.setattr(fromp_against_ewc, "QUICK", quick)


SLOW = pytest.mark.slow


@pytest.mark.parametrize(
    ("name", "claims"),
    [
        ("toy-lifelong", 6),
        pytest.param("more-accurate-posterior", 3, marks=SLOW),
        pytest.param("fromp-against-ewc", 2, marks=SLOW),
    ],
)
def test_claims_numbers_and_a_figure(name, claims, short):
    result = EXPERIMENTS[name](Setting())
    assert len(result.claims) == claims
    assert all(claim.source and claim.says and claim.measured for claim in result.claims)
    json.dumps(result.data, allow_nan=False)
    assert imread(io.BytesIO(png(result)), format="png").std() > 0.01


def test_all_data_at_once_knows_the_border_and_training_on_forgets_it():
    """Three tasks of the toy in few epochs: far apart for any seed, since whole stretches are forgotten."""
    averages = {name: toy_lifelong.ask(toy_lifelong.Question(name, 0, 30))["average"] for name in ("finetune", "joint")}
    assert averages["joint"] > averages["finetune"] + 0.1
