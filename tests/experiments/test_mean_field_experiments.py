"""Experiments about wide networks and temperatures: small runs, and the rules behind their verdicts."""

import pytest
import torch

from bayesrule.experiments import Setting, png
from bayesrule.experiments.mean_field import collapse, limit_functional, temperature_mnist


def test_the_best_q_goes_back_to_the_prior_unless_it_is_balanced(monkeypatch):
    monkeypatch.setattr(collapse, "WIDTHS", {False: (100, 1000, 5000)})
    result = collapse.run(Setting())
    assert [claim.held for claim in result.claims] == [True] * 4
    bayes, balanced = result.data["fits"][::2], result.data["fits"][1::2]
    assert bayes[0]["kl"] == pytest.approx(balanced[0]["kl"])  # at 100 neurons both are the same problem
    assert bayes[-1]["kl"] < 1 < balanced[-1]["kl_per_neuron"]
    assert png(result).startswith(b"\x89PNG")


def test_the_optimum_is_one():
    """No small step from the end of the optimisation is better."""
    asked = collapse.Fit(50, 1.0, collapse.EXAMPLES, collapse.NOISE, 200, 0)
    x, y = collapse.data(0)
    elbo, found = collapse._learn(asked, x, y, 1.0)
    generator = torch.Generator().manual_seed(1)
    for _ in range(20):
        away = [1e-3 * torch.randn(t.shape, generator=generator, dtype=t.dtype) for t in vars(found).values()]
        moved = collapse.Neurons(*(t + step for t, step in zip(vars(found).values(), away, strict=True)))
        assert float(collapse.gaussian_elbo(moved, x, y, collapse.NOISE, collapse.SCALE, 1.0)) < elbo + 1e-4


def test_verdicts_of_the_collapse():
    def rows(values):
        return [{"neurons": 10 ** (2 + k), "kl": kl, "kl_per_neuron": kl} for k, kl in enumerate(values)]

    assert collapse._collapse(rows([5.0, 1.0, 0.1, 0.01])).held
    assert collapse._collapse(rows([0.5, 1.0, 0.1, 0.01])).held  # before 1000 it may rise
    assert not collapse._collapse(rows([5.0, 1.0, 0.1, 0.2])).held
    assert not collapse._collapse(rows([5.0, 1.0, 0.8, 0.7])).held
    assert collapse._kept(rows([1.0, 1.9, 1.5, 1.2])).held
    assert not collapse._kept(rows([1.0, 2.1, 1.5, 1.2])).held


def test_the_gap_has_the_slopes_of_the_theorem(monkeypatch):
    monkeypatch.setattr(limit_functional, "WIDTHS", {False: (10, 100, 500)})
    monkeypatch.setattr(limit_functional, "SIZES", {False: (10, 100, 500)})
    result = limit_functional.run(Setting())
    assert all(claim.held for claim in result.claims)
    assert len(result.data["slopes"]["bernoulli"]["neurons"]) == 3
    assert png(result).startswith(b"\x89PNG")


def test_verdicts_of_the_gap():
    def rows(power, constant=1.0):
        found = []
        for neurons in (10, 100, 1000):
            found.append({"neurons": neurons, "examples": 100, "seed": 0, "gap": constant * 100 / neurons**power})
        return found

    assert limit_functional._claim(rows(1.0), "gaussian", "neurons", -1).held
    assert limit_functional._claim(rows(1.14), "gaussian", "neurons", -1).held
    assert not limit_functional._claim(rows(0.8), "gaussian", "neurons", -1).held
    assert limit_functional._bound(rows(1.0), "gaussian").held
    assert not limit_functional._bound(rows(0.6), "gaussian").held


def curve(**changes):
    """What the authors have found, as rows of ours."""
    found = []
    for tau, (accuracy, ece, nll, confidence) in temperature_mnist.AUTHORS.items():
        row = {"tau": tau, "accuracy": accuracy, "ece": ece, "expected_nll": nll, "confidence": confidence}
        found.append(row | {"confidence_outside": 0.9 * confidence, "collapsed": tau >= 50, "eta": tau})
    found[-1]["confidence"] -= 1e-4  # theirs are equal to three digits
    for row in found:
        row |= changes.get(f"at_{row['tau']:g}", {})
    return found


def test_verdicts_on_the_authors_own_curve():
    own = curve()
    assert all(temperature_mnist._beside(own, tau).held for tau in temperature_mnist.COMPARED)
    assert not temperature_mnist._beside(curve(at_1={"accuracy": 0.93}), 1.0).held
    for judge in ("_best", "_chance", "_falls", "_told"):
        assert getattr(temperature_mnist, judge)(own).held, judge
    assert not temperature_mnist._best(curve(at_5={"expected_nll": 0.01})).held
    assert not temperature_mnist._chance(curve(at_50={"confidence": 0.2})).held
    assert not temperature_mnist._falls(curve(at_1={"confidence": 0.99})).held
    assert not temperature_mnist._told(curve(at_50={"collapsed": False})).held
    assert not temperature_mnist._told(curve(at_1={"collapsed": True})).held


def test_a_sweep_of_temperatures_on_digits(monkeypatch):
    monkeypatch.setattr(temperature_mnist, "QUICK", (0.01, 100.0))
    monkeypatch.setattr(temperature_mnist, "EPOCHS", {False: 8})
    result = temperature_mnist.run(Setting())
    low, high = result.data["curve"]
    assert low["accuracy"] > 0.9 > 0.5 > high["confidence"]
    assert low["eta"] == pytest.approx(0.01 * 1438 / 7400)
    assert (low["collapsed"], high["collapsed"]) == (False, True)
    assert low["nll"] <= low["expected_nll"]  # the mean of densities is never worse than that of their logs
    assert png(result).startswith(b"\x89PNG")
