"""Counts that scatter more than Poisson's: what is learnt of it, whole fits, and the choice between the two."""

import math

import numpy as np
import pytest
import torch
from covering import later
from scipy import stats
from torch.func import vmap

import bayesrule as br
from bayesrule.likelihoods import AVAILABLE, NegativeBinomial, best
from bayesrule.naming import from_spec, to_spec

Y = torch.tensor([[0, 10], [4, 10], [0, 10], [4, 10]])


def test_starts_at_the_dispersion_of_the_targets():
    # of (0, 4, 0, 4) mean 2, variance 4: (4 − 2)/4; a constant has less than Poisson's, and begins at the least
    matched = NegativeBinomial().matched(torch.zeros(4, 2), Y)
    assert matched.dispersion.tolist() == pytest.approx([0.5, 0.01])
    assert NegativeBinomial(torch.tensor(3.0)).matched(torch.zeros(4, 2), Y).dispersion.tolist() == [3.0, 3.0]
    assert NegativeBinomial(0.5).matched(torch.zeros(4, 2), Y).unknowns() == {}
    kept = matched.kept()
    assert kept.unknowns() == {}
    assert kept.matched(torch.zeros(4, 2), 3 * Y).dispersion is matched.dispersion


@pytest.mark.parametrize("move", [-1e3, -3.0, 3.0, 50.0])
def test_unknowns_go_in_and_out_and_stay_finite(move):
    learnt = NegativeBinomial().matched(torch.zeros(4, 2), Y)
    moved = learnt.with_unknowns({name: u + move for name, u in learnt.unknowns().items()})
    assert (moved.dispersion > 0).all()
    assert moved.log_prob(torch.zeros(4, 2), learnt.check(torch.zeros(4, 2), Y)).isfinite().all()
    again = moved.with_unknowns(moved.unknowns())
    assert torch.allclose(again.dispersion, moved.dispersion)


def test_all_of_it_is_saved_and_pooled():
    learnt = NegativeBinomial().matched(torch.zeros(4, 2), Y)
    again = from_spec("likelihood", to_spec(learnt), AVAILABLE)
    again.verify()
    assert torch.equal(again.dispersion, learnt.dispersion)
    pooled = NegativeBinomial.pooled([NegativeBinomial(torch.tensor(1.0)), NegativeBinomial(torch.tensor(2.0))])
    assert pooled.dispersion.item() == 1.5
    assert NegativeBinomial.pooled([NegativeBinomial(0.5)] * 2).dispersion == 0.5


def test_many_networks_at_once_give_what_each_gives_alone():
    outputs = torch.randn(3, 4, 2, generator=torch.Generator().manual_seed(0))
    likelihood = NegativeBinomial().matched(outputs[0], Y)
    y = likelihood.check(outputs[0], Y)
    several = {name: torch.stack([u, u + 1, u - 1]) for name, u in likelihood.unknowns().items()}

    def log_prob(f, unknowns):
        return likelihood.with_unknowns(unknowns).log_prob(f, y)

    alone = [log_prob(outputs[k], {name: u[k] for name, u in several.items()}) for k in range(3)]
    assert torch.allclose(vmap(log_prob)(outputs, several), torch.stack(alone))


def test_extreme_outputs_stay_finite():
    wild = torch.tensor([[300.0], [-300.0]])
    likelihood = NegativeBinomial(0.5)
    assert likelihood.log_prob(wild, torch.tensor([3.0, 3.0])).isfinite().all()
    assert likelihood.hessian(wild).isfinite().all()


def test_errors_say_what_to_do():
    cases = [
        (lambda: NegativeBinomial(0.0), "dispersion must be positive and finite: got 0; None learns it, .*'poisson'"),
        (lambda: NegativeBinomial().unknowns(), r"dispersion is None: .*matched\(outputs, y\)"),
        (lambda: NegativeBinomial().verify(), "dispersion is None"),
        (lambda: NegativeBinomial(torch.tensor(math.nan)).verify(), "dispersion must be positive and finite: got nan"),
        (lambda: NegativeBinomial(0.5).with_unknowns({"log_dispersion": Y}), r"values must be of \[\] for"),
    ]
    for call, message in cases:
        with pytest.raises(ValueError, match=message):
            call()
    with pytest.raises(TypeError, match=r"dispersion must be a number, a tensor or None: got '3'"):
        NegativeBinomial(dispersion="3")


def generated(seed, n, dispersion):
    """Counts whose log-mean is a line of two inputs; no dispersion is Poisson's."""
    rng = np.random.default_rng([seed, 2])
    x = rng.normal(size=(n, 2))
    rates = np.exp(1.5 + 0.5 * x[:, 0] - 0.3 * x[:, 1])
    if dispersion:
        rates = rates * rng.gamma(1 / dispersion, dispersion, n)
    return x, rng.poisson(rates)


@pytest.mark.parametrize("method", ["map", "laplace", later("auto")])
def test_as_good_as_the_truth_and_better_than_poisson(method, tmp_path):
    (x, y), (new, truth) = generated(0, 500, 0.8), generated(1, 500, 0.8)
    model = br.models.tabular(2, 1, hidden=(8,))
    likelihood = NegativeBinomial()
    posterior = br.fit(model, likelihood.standardized((x, y)), method, likelihood, epochs=40)
    scores = br.evaluate(posterior, (new, truth), bootstrap=0)
    rates = np.exp(1.5 + 0.5 * new[:, 0] - 0.3 * new[:, 1])
    exact = -stats.nbinom.logpmf(truth, 1 / 0.8, 1 / (1 + 0.8 * rates)).mean()
    assert scores["nll"] < exact + 0.06
    assert 0.5 < float(posterior.likelihood.dispersion) < 1.2
    assert abs(scores["coverage_90"] - 0.92) < 0.07  # that of counts holds 90 % or more
    posterior.save(tmp_path / "p.safetensors")
    again = br.load(tmp_path / "p.safetensors", model)
    few = torch.tensor(truth[:9])
    assert torch.equal(again.predict(new[:9]).log_prob(few), posterior.predict(new[:9]).log_prob(few))


def test_the_noise_of_counts_is_found():
    found = {a: [best(generated(seed, 400, a), kind="counts").name for seed in range(10)] for a in (0, 0.3)}
    assert found[0].count("poisson") >= 9
    assert found[0.3].count("negative-binomial") >= 9


def test_probabilities_of_counts_are_those_of_the_truth():
    x, y = generated(0, 2000, 0.3)
    rates = np.exp(1.5 + 0.5 * x[:, 0] - 0.3 * x[:, 1])
    exact = stats.nbinom.logpmf(y, 1 / 0.3, 1 / (1 + 0.3 * rates)).mean()
    choice = best((x, y), kind="counts")
    assert choice.densities["negative-binomial"] == pytest.approx(exact, abs=0.02)
    assert "likelihood negative-binomial, by held-out log-densities of a linear model: poisson -" in str(choice)
    assert "whole numbers" not in str(choice)


def test_few_rows_many_columns_and_constants():
    wide = np.random.default_rng(0).normal(size=(30, 200))
    y = np.arange(30) % 4
    assert math.isfinite(best((wide, y), kind="counts").densities["poisson"])
    assert best((np.ones((20, 2)), np.ones(20)), kind="counts").name == "poisson"
    assert math.isfinite(best((wide, np.zeros(30)), kind="counts").densities["negative-binomial"])
    both = best((wide[:, :2], np.column_stack([y, y])), kind="counts")
    assert both.densities["poisson"] == pytest.approx(2 * best((wide[:, :2], y), kind="counts").densities["poisson"])


def test_a_kind_without_noise_is_refused():
    x, y = generated(0, 50, 0)
    with pytest.raises(ValueError, match="unknown kind 'classes'"):
        best((x, y), kind="classes")
    with pytest.raises(ValueError, match="y must hold whole numbers from 0 up to be counts"):
        best((x, y + 0.5), kind="counts")


@pytest.mark.parametrize("standardised", [False, True])
def test_small_whole_numbers_taken_for_reals_are_said(standardised):
    x, y = generated(0, 50, 0)
    data = (torch.tensor(x).float(), torch.tensor(y).float())
    if standardised:
        data = br.data.standardize(data)
    model = torch.nn.Linear(2, 1)
    with pytest.warns(UserWarning, match=r'whole numbers from 0 up.* pass likelihood="poisson" or "neg'):
        br.Task.create(model, data)
    br.Task.create(model, data, "gaussian")  # the user has said so: warnings are errors here
    br.Task.create(model, br.data.standardize((x, 100.0 + y)))  # nearly normal
    br.Task.create(model, br.data.standardize((x, 0.5 + y)))
