"""The experiments about the Bayesian learning rule (Khan)."""

import dataclasses
import io
import json

import pytest
import torch
from matplotlib.image import imread

from bayesrule.experiments import EXPERIMENTS, Setting, png
from bayesrule.experiments.principles import derivations, flat_minima, learning_rule


@pytest.fixture
def brief(monkeypatch):
    """Few starts and temperatures, in full too."""
    monkeypatch.setattr(flat_minima, "STARTS", {False: 2, True: 3})
    monkeypatch.setattr(flat_minima, "TEMPERATURES", {False: (0.4, 1.0), True: (0.4, 0.6, 1.0)})
    monkeypatch.setattr(flat_minima, "DEVIATIONS", {False: (0.1,), True: (0.1, 1.0)})
    monkeypatch.setattr(flat_minima, "NODES", 300)
    monkeypatch.setattr(flat_minima, "LONG", 500)


def plain(result):
    return json.dumps(result.data, allow_nan=False)


@pytest.mark.parametrize("seed", [0, pytest.param(1, marks=pytest.mark.slow)])
def test_bayes_prefers_the_flat_minimum(seed, brief):
    """Every claim holds, whatever the starts."""
    result = flat_minima.run(Setting(seed=seed))
    assert [claim.held for claim in result.claims] == [True] * 5
    assert imread(io.BytesIO(png(result)), format="png").std() > 0.01


@pytest.mark.slow
def test_flat_minima_repeat(brief):
    assert plain(flat_minima.run(Setting())) == plain(flat_minima.run(Setting()))


@pytest.mark.slow
def test_in_full_there_is_more_of_the_same(brief):
    result = flat_minima.run(Setting(full=True))
    assert all(claim.held for claim in result.claims)
    assert len(result.data["starts"]) == 3
    assert len(result.data["temperatures"]) == 6
    wide = [row for row in result.data["temperatures"] if row["start_deviation"] == 1.0]
    assert all(abs(row["mean"] - flat_minima.FLAT) < flat_minima.NEAR for row in wide)  # too wide to see the dent


def test_a_claim_that_fails_says_so(brief, monkeypatch):
    """Without steps all are where they started, and the claims about their ends do not hold."""
    monkeypatch.setattr(flat_minima, "STEPS", 0)
    result = flat_minima.run(Setting())
    assert [claim.held for claim in result.claims] == [False, False, False, False, True]
    assert result.data["starts"] != flat_minima.run(Setting(seed=1)).data["starts"]
    assert "flat-minima" in EXPERIMENTS


def test_the_loss_and_its_derivatives():
    """By autograd; and the average in closed form against draws on a grid."""
    w = torch.linspace(-2, 2, 41, dtype=torch.float64, requires_grad=True)
    (slope,) = torch.autograd.grad(flat_minima.loss(w).sum(), w, create_graph=True)
    (curvature,) = torch.autograd.grad(slope.sum(), w)
    torch.testing.assert_close(flat_minima.derivatives(w.detach()), (slope.detach(), curvature))
    noise = torch.linspace(-10, 10, 40_001, dtype=torch.float64)
    weights = (-0.5 * noise.square()).softmax(0)
    average = torch.stack([weights @ flat_minima.loss(m + 0.3 * noise) for m in w.detach()])
    torch.testing.assert_close(flat_minima.smoothed(w.detach(), 0.3), average)
    assert flat_minima.lowest(flat_minima.SHARP)["loss"] < flat_minima.lowest(flat_minima.FLAT)["loss"]


@pytest.fixture
def few(monkeypatch):
    """Without the two that take seconds."""
    quick = [each for each in learning_rule.POSTERIORS if each.__name__ != "stochastic_inference"]
    monkeypatch.setattr(learning_rule, "POSTERIORS", quick)
    some = [each for each in learning_rule.DERIVATIONS if each.__name__ != "newton_ensemble"]
    monkeypatch.setattr(learning_rule, "DERIVATIONS", some)


@pytest.mark.slow
def test_every_algorithm_is_its_textbook_form():
    told = []
    result = EXPERIMENTS["learning-rule"](Setting(tell=told.append))
    assert [claim.held for claim in result.claims] == [True] * 6
    assert len(result.data["algorithms"]) == len(told) == 22
    assert all(row["error"] <= row["bar"] for row in result.data["algorithms"])
    assert len(result.notes) == sum(bool(row["beyond"]) for row in result.data["algorithms"]) == 9
    assert imread(io.BytesIO(png(result)), format="png").std() > 0.01


@pytest.mark.slow
def test_most_algorithms_are_their_textbook_form(few):
    result = learning_rule.run(Setting(seed=1))
    assert all(claim.held for claim in result.claims)
    assert len(result.data["algorithms"]) == 20
    assert imread(io.BytesIO(png(result)), format="png").std() > 0.01


@pytest.mark.slow
def test_it_repeats_and_another_seed_is_another_run(few):
    result = learning_rule.run(Setting(seed=1))
    assert plain(result) == plain(learning_rule.run(Setting(seed=1)))
    assert plain(result) != plain(learning_rule.run(Setting(seed=2)))


def test_an_algorithm_that_differs_is_told(monkeypatch):
    """One of each section: tests/rule has them all."""
    monkeypatch.setattr(learning_rule, "DERIVATIONS", learning_rule.DERIVATIONS[:7])
    monkeypatch.setattr(learning_rule, "POSTERIORS", learning_rule.POSTERIORS[:1])

    def wrong(seed):
        found = derivations.homotopy(seed)
        return dataclasses.replace(found, ours=found.ours + 1e-5)

    monkeypatch.setattr(learning_rule, "SEARCHES", [wrong])
    held = [claim.held for claim in learning_rule.run(Setting()).claims]
    assert held == [True, True, True, False, True, True]
