"""Experiments about wide networks and temperatures: small runs, and the rules behind their verdicts."""

import pytest
import torch

from bayesrule.experiments import Setting, png
from bayesrule.experiments.mean_field import (
    cold_posterior,
    collapse,
    langevin_hmc,
    limit_functional,
    temperature_cifar,
    temperature_curve,
    temperature_mnist,
)


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
    assert all(claim.held for claim in temperature_mnist.claims_of(own))
    assert not temperature_curve.best(curve(at_5={"expected_nll": 0.01}), "").held
    assert not temperature_mnist._chance(curve(at_50={"confidence": 0.2})).held
    assert not temperature_curve.falls(curve(at_1={"confidence": 0.99}), "").held
    assert not temperature_curve.falls(curve(at_1={"confidence_outside": 0.99}), "").held
    assert not temperature_mnist.claims_of(curve(at_50={"collapsed": False}))[-1].held
    assert not temperature_mnist.claims_of(curve(at_1={"collapsed": True}))[-1].held


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


def residual_curve(**changes):
    """What the authors have found with ResNet-20, as rows of ours."""
    found = []
    for tau, (accuracy, ece, nll, confidence) in temperature_cifar.AUTHORS.items():
        row = {"tau": tau, "accuracy": accuracy, "ece": ece, "expected_nll": nll, "confidence": confidence}
        found.append(row | {"collapsed": False} | changes.get(f"at_{tau:g}", {}))
    return found


@pytest.mark.parametrize(
    ("at", "changes"),
    [
        (0, {"at_50": {"expected_nll": 0.1}}),
        (1, {"at_10": {"accuracy": 0.8}}),
        (2, {"at_10": {"accuracy": 0.8}}),
        (3, {"at_100": {"confidence": 0.9}}),
        (4, {"at_1": {"collapsed": True}}),
    ],
)
def test_verdicts_on_the_authors_own_curve_of_a_residual_network(at, changes):
    own = residual_curve(**{"at_0.01": {"confidence": 0.9205}})  # theirs is .002 above that of τ = 0.005
    assert [claim.held for claim in temperature_cifar.claims_of(own)] == [True] * 5
    assert not temperature_cifar.claims_of(residual_curve(**changes))[at].held


@pytest.mark.slow  # the sweep itself is that of digits
def test_a_sweep_of_temperatures_with_a_residual_network(monkeypatch):
    monkeypatch.setattr(temperature_cifar, "TAUS", {False: (0.01, 100.0)})
    result = temperature_cifar.run(Setting())
    low, high = result.data["curve"]
    assert low["accuracy"] > 0.8 > 0.5 > high["confidence"]
    assert low["eta"] == pytest.approx(0.01 * 1438 / low["weights"])
    assert png(result).startswith(b"\x89PNG")


def problem(r_hat=1.002, between=0.3, **distances):
    """A problem as it is stored, of methods at these distances from the reference."""
    near = {"hmc": 0.01, "mclmc": 0.02, "ensemble": 0.1, "sgld": 0.1, "bbb": 0.2, "mc-dropout": 0.3} | distances
    found = {}
    for name, distance in near.items():
        found[name] = {"wasserstein": distance, langevin_hmc.BETWEEN: {"deviation_ratio": between}}
    return {"reference": {"r_hat": r_hat}, "found": found}


@pytest.mark.parametrize(
    ("at", "changes"),
    [
        (0, {"r_hat": 1.02}),
        (1, {"mclmc": 0.11}),
        (2, {"ensemble": 0.21, "sgld": 0.21}),
        (3, {"sgld": 0.06}),
        (4, {"between": 0.8}),
    ],
)
def test_verdicts_on_distances_from_the_reference(at, changes):
    """Each claim is held, undecided or not held by itself, whatever the others are."""
    for rows, held in (([{}, {}], True), ([{}, changes], None), ([changes, changes], False)):
        claims = langevin_hmc.claims_of([problem(**each) for each in rows])
        assert [claim.held for claim in claims] == [held if index == at else True for index in range(5)]


def test_what_is_the_reference_itself_is_at_no_distance():
    reference = langevin_hmc._fitted(langevin_hmc.HMC(chains=2, draws=20, warm_up=20, leaps=8), 0)
    found = langevin_hmc.beside(reference, reference)
    assert found["wasserstein"] == pytest.approx(0, abs=1e-6)
    for region in langevin_hmc.regions():
        assert found[region]["mean_error"] == 0
        assert found[region]["deviation_ratio"] == 1


def test_a_point_estimate_has_no_deviation_and_the_distance_of_one(monkeypatch):
    """Of two normal laws the distance is √((m − m')² + (s − s')²), which one network beside a narrow q must come to."""
    monkeypatch.setattr(langevin_hmc, "SAMPLES", 100)
    point = langevin_hmc._fitted("map", 0)
    wide = langevin_hmc._fitted("laplace", 0)
    found = langevin_hmc.beside(point, wide)
    x = langevin_hmc.regions()[langevin_hmc.INSIDE]
    one, other = point.predict(x), langevin_hmc._predicted(wide, x)
    exact = torch.hypot(one.mean - other.mean, one.std - other.std).mean()
    assert found[langevin_hmc.INSIDE]["deviation_ratio"] == 0
    assert found[langevin_hmc.INSIDE]["wasserstein"] == pytest.approx(float(exact), rel=0.05)


@pytest.mark.slow
def test_methods_against_a_long_run(monkeypatch):
    monkeypatch.setattr(langevin_hmc, "DRAWS", {False: 60})
    result = langevin_hmc.run(Setting())
    _, _, closer, _, between = result.claims
    assert closer.held
    assert between.held
    assert result.data["problems"][0]["reference"]["r_hat"] < 1.05
    found = result.data["mean"]
    assert found["hmc"]["wasserstein"] < 0.5 * found["map"]["wasserstein"]
    assert found["map"]["outside"]["deviation_ratio"] == 0
    assert png(result).startswith(b"\x89PNG")


def temperatures(nll, accuracy=0.9, r_hat=1.01, scatter=0.001):
    """Fits of five seeds as they are stored; ``nll`` and ``accuracy`` by temperature or the same at all of them."""
    rows = []
    for seed in range(5):
        for T in cold_posterior.TEMPERATURES:
            row = {"data": "moons", "T": T, "seed": seed, "r_hat": r_hat}
            row["nll"] = nll.get(T, 0.3) + scatter * (-1) ** seed * T
            row["accuracy"] = accuracy[T] if isinstance(accuracy, dict) else accuracy
            rows.append(row)
    return rows


def held(rows):
    return [claim.held for claim in cold_posterior.claims_of(rows)]


def test_verdicts_on_cold_posteriors():
    """In the order mixed, cold is better, no effect in NLL, none in accuracy."""
    worse = {0.03: 0.5, 0.1: 0.4, 0.3: 0.35}
    assert held(temperatures(worse)) == [True, False, True, True]
    assert held(temperatures(worse | {0.1: 0.25})) == [True, True, False, True]
    assert held(temperatures(worse | {0.1: 0.295})) == [True, True, True, True]  # lower, by less than the margin
    assert held(temperatures({}, scatter=0.05)) == [True, None, None, True]  # seeds scatter by more than the margin
    assert held(temperatures(worse, r_hat=1.06))[0] is False
    sharper = dict.fromkeys(cold_posterior.TEMPERATURES, 0.9) | {0.3: 0.91}
    assert held(temperatures(worse, sharper))[3] is False


def test_nothing_is_trained_on_and_tested_on():
    for name in ("moons", "digits"):
        (x, y), (x_test, y_test) = cold_posterior.data(name, 1)
        assert (len(y), len(y_test)) == (cold_posterior.EXAMPLES, cold_posterior.TESTED)
        assert not torch.cdist(x, x_test).eq(0).any()
        assert not torch.equal(x, cold_posterior.data(name, 2)[0][0])


def test_colder_chains_agree_more(monkeypatch):
    """Weights scatter as √T about a mode, so that the information that a class has of the network falls as T does."""
    for name, value in {"CHAINS": 2, "DRAWS": 20, "LEAPS": 16, "SEEDS": {False: 1}}.items():
        monkeypatch.setattr(cold_posterior, name, value)
    result = cold_posterior.run(Setting())
    cold, *_, bayes, warm = result.data["fits"]
    assert min(cold["accuracy"], bayes["accuracy"]) > 0.75
    assert cold["epistemic"] < 0.3 * bayes["epistemic"] < 0.3 * warm["epistemic"]
    # of 200 trajectories; which of them is a matter of rounding, and so of the processor
    assert sum(row["divergences"] for row in result.data["fits"]) <= 4
    assert png(result).startswith(b"\x89PNG")
