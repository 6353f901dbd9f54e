"""The experiment about sequential Bayes (Khan): a posterior after each batch."""

import io
import json

import pytest
import torch
from matplotlib.image import imread

from bayesrule.experiments import EXPERIMENTS, Setting, png
from bayesrule.experiments.principles import sequential_bayes


@pytest.fixture
def short(monkeypatch):
    """Two seeds and cuts, few steps of the network, a coarse grid."""
    monkeypatch.setattr(sequential_bayes, "SEEDS", {False: 2, True: 3})
    monkeypatch.setattr(sequential_bayes, "SPLITS", {False: 2, True: 3})
    monkeypatch.setattr(sequential_bayes, "EPOCHS", {False: 20, True: 30})
    monkeypatch.setattr(sequential_bayes, "NODES", 15)
    monkeypatch.setattr(sequential_bayes, "TEST", 200)
    monkeypatch.setattr(sequential_bayes, "GRID", 12)
    monkeypatch.setattr(sequential_bayes, "PLANE", 9)


def plain(result):
    return json.dumps(result.data, allow_nan=False)


@pytest.mark.parametrize("seed", [0, pytest.param(1, marks=pytest.mark.slow)])
def test_the_sequence_is_the_joint_posterior_where_it_should_be(seed, short):
    """Of the regression and the straight classifier, whatever the seed; the figure is drawn."""
    result = EXPERIMENTS["sequential-bayes"](Setting(seed=seed))
    assert [claim.held for claim in result.claims[:2]] == [True, True]
    assert len(result.claims) == 6
    assert all(claim.source and claim.says and claim.measured for claim in result.claims)
    assert len(result.data["networks"]["random order"][0]["nll"]) == sequential_bayes.BATCHES
    assert imread(io.BytesIO(png(result)), format="png").std() > 0.01


@pytest.mark.slow
def test_it_repeats_and_in_full_there_is_more_of_the_same(short):
    result = sequential_bayes.run(Setting())
    assert plain(result) == plain(sequential_bayes.run(Setting()))
    assert plain(result) != plain(sequential_bayes.run(Setting(seed=1)))
    assert len(sequential_bayes.run(Setting(full=True)).data["straight"]) == 3


def test_the_exact_posterior_of_one_example_is_that_of_draws_from_the_prior():
    """By the grid, against a million weights of the prior, weighted by their likelihood; error rate 1e-4 at 4 σ."""
    batch = torch.tensor([[1.0, -0.5]]).double(), torch.tensor([1])
    joint = sequential_bayes.fit(
        torch.nn.Linear(2, 1).double(),
        batch,
        sequential_bayes.Laplace("all", "dense", tune="nothing", newton=30),
        sequential_bayes.Bernoulli(),
        sequential_bayes.GaussianPrior(3.0),
        epochs=0,
    )
    plane = torch.tensor([[1.0, 0.0], [-1.0, 2.0]]).double()
    found = sequential_bayes._exact(sequential_bayes.Course([joint], joint, [batch]), plane)
    weights = 3 * torch.randn(1_000_000, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    share = sequential_bayes._logits(weights, batch[0])[:, 0].sigmoid()
    probs = sequential_bayes._logits(weights, plane).sigmoid()
    wanted = (share[:, None] * probs).sum(0) / share.sum()
    error = ((share[:, None] * (probs - wanted)).square().mean(0) / len(share)).sqrt() / share.mean()
    assert ((found - wanted).abs() < 4 * error + 1e-3).all()


def test_claims_that_fail_say_so():
    straight = [{"sequence_joint": 0.5, "sequence_exact": 0.5, "joint_exact": 0.0, "epistemic": [0.1, 0.2]}] * 3
    for judge in (sequential_bayes._alike, sequential_bayes._as_near, sequential_bayes._surer):
        assert judge(straight).held is False
    assert sequential_bayes._exactly([{"mean": 1e-3, "precision": 0.0}]).held is False
    better = [{"nll": [0.3], "joint_nll": 0.3, "accuracy": [0.9], "joint_accuracy": 0.9}] * 3
    first, last = (sequential_bayes._networks(order, better) for order in sequential_bayes.ORDERS)
    assert (first.held, last.held) == (True, False)
