"""Weights of examples: one of weight w counts as w of them, or the method says that it knows none."""

import numpy as np
import pytest
import torch
from networks import classes, mlp
from torch import nn

import bayesrule as br
from bayesrule.data import as_data, standardize
from bayesrule.methods import AVAILABLE, MAP, Ensemble, Laplace
from bayesrule.posteriors.stacking import stacked

generator = torch.Generator().manual_seed(0)
X = torch.randn(60, 3, generator=generator, dtype=torch.float64)
TIMES = torch.randint(0, 4, (60,), generator=generator)
TIMES[0] = 3
MANY = X.repeat_interleave(TIMES, 0)
TARGETS = {
    "gaussian": X @ torch.tensor([1.0, -2.0, 0.5]).double() + 0.5 * torch.randn(60, generator=generator).double(),
    "bernoulli": (X[:, 0] + torch.randn(60, generator=generator).double() > 0).long(),
    "categorical": torch.randint(3, (60,), generator=generator),
    "poisson": torch.poisson(X[:, 0].exp(), generator=generator).long(),
}


def linear(likelihood):
    torch.manual_seed(0)
    return nn.Linear(3, 3 if likelihood == "categorical" else 1).double()


def both(method, likelihood, **settings):
    """Posteriors of weighted rows and of rows that are repeated."""
    y = TARGETS[likelihood]
    known = br.likelihoods.Gaussian(0.5) if likelihood == "gaussian" else likelihood
    settings |= {"prior": 1.0, "val": 0}
    weighted = br.fit(linear(likelihood), (X, y, TIMES), method, known, **settings)
    repeated = br.fit(linear(likelihood), (MANY, y.repeat_interleave(TIMES, 0)), method, known, **settings)
    return weighted, repeated


@pytest.mark.parametrize("likelihood", ["gaussian", "categorical"])
def test_the_mode_is_that_of_repeated_rows(likelihood):
    weighted, repeated = both("map", likelihood)
    found, wanted = (posterior.predict(X).log_prob(TARGETS[likelihood]) for posterior in (weighted, repeated))
    torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-4)
    assert weighted.info["diagnostics"]["converged"]


@pytest.mark.parametrize(
    ("likelihood", "structure"),
    [("bernoulli", "dense"), ("poisson", "dense"), ("categorical", "diagonal"), ("categorical", "lowrank")],
)
def test_laplaces_gaussian_is_that_of_repeated_rows(likelihood, structure):
    weighted, repeated = both(Laplace(structure=structure, tune="nothing"), likelihood)
    for name in weighted.mean:
        torch.testing.assert_close(weighted.mean[name], repeated.mean[name], rtol=1e-4, atol=1e-4)
        torch.testing.assert_close(weighted.std[name], repeated.std[name], rtol=1e-4, atol=1e-6)


def test_laplace_of_a_line_is_the_exact_posterior():
    y, w = TARGETS["gaussian"], TIMES.double() * 0.37  # no whole numbers
    design = torch.cat([X, torch.ones(60, 1).double()], 1)
    precision = design.T @ (w[:, None] * design) / 0.25 + torch.eye(4).double() / 4
    mean = torch.linalg.solve(precision, design.T @ (w * y) / 0.25)
    method = Laplace(structure="dense", tune="nothing", predictive="weights")
    found = br.fit(linear("gaussian"), (X, y, w), method, br.likelihoods.Gaussian(0.5), prior=2.0, val=0)
    deviations = precision.inverse().diagonal().sqrt()
    torch.testing.assert_close(found.mean["weight"][0], mean[:3], rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(found.std["weight"][0], deviations[:3], rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(found.std["bias"], deviations[3:], rtol=1e-5, atol=1e-6)


def test_evidence_and_noise_are_those_of_repeated_rows():
    y = TARGETS["gaussian"]
    method = Laplace(structure="dense", tune="evidence")
    weighted = br.fit(linear("gaussian"), (X, y, TIMES), method, prior=1.0, val=0)
    repeated = br.fit(linear("gaussian"), (MANY, y.repeat_interleave(TIMES, 0)), method, prior=1.0, val=0)
    for name in weighted.std:
        torch.testing.assert_close(weighted.std[name], repeated.std[name], rtol=1e-3, atol=1e-6)
    torch.testing.assert_close(weighted.likelihood.noise, repeated.likelihood.noise, rtol=1e-3, atol=1e-6)


# Not exact: batches differ. A third of the rows says the opposite of the others, and counts for ten or for nothing.
@pytest.mark.parametrize("name", sorted(name for name, kind in AVAILABLE.items() if kind.weighs))
def test_every_method_that_weighs_does(name):
    g = torch.Generator().manual_seed(1)
    x = torch.randn(90, 2, generator=g)
    y = (x[:, 0] > 0).long()
    y[:30] = 1 - y[:30]
    heavy = torch.ones(90)
    heavy[:30] = 10.0
    light = torch.ones(90)
    light[:30] = 0.0
    shares = []
    for weight in (heavy, light):
        posterior = br.fit(br.models.tabular(2, 2, hidden=(4,)), (x, y, weight), name, epochs=25)
        shares.append(float((posterior.predict(x[30:]).label == y[30:]).float().mean()))
    assert shares[0] < 0.3
    assert shares[1] > 0.8


@pytest.mark.parametrize("name", sorted(name for name, kind in AVAILABLE.items() if not kind.weighs))
def test_other_methods_say_so(name):
    x, y = classes()
    with pytest.raises(ValueError, match=f"{name} does not know weights of examples"):
        br.fit(mlp(), (x, y, torch.ones(len(x))), name, epochs=1)


def test_within_an_ensemble_and_elsewhere_they_are_refused_too():
    x, y = classes()
    given = (x, y, torch.ones(len(x)))
    with pytest.raises(ValueError, match="vogn does not know weights"):
        br.fit(mlp(), given, Ensemble(2, AVAILABLE["vogn"]()), epochs=1)
    with pytest.raises(ValueError, match=r"scores do not know weights of examples: give test=\(X, y\)"):
        br.evaluate(br.fit(mlp(), (x, y), "map", epochs=1), given)
    with pytest.raises(ValueError, match=r"structure must be 'dense', 'diagonal' or 'lowrank' .* not 'kronecker'"):
        br.fit(mlp(), given, Laplace(structure="kronecker"), epochs=1)
    with pytest.raises(ValueError, match="Gaussian process of a network does not know weights"):
        br.gp.from_network(mlp(), given)


def test_weights_of_one_change_nothing():
    x, y = classes(200)
    plain = br.fit(mlp(), (x, y), MAP(), epochs=3)
    weighted = br.fit(mlp(), (x, y, np.ones(200)), MAP(), epochs=3)
    torch.testing.assert_close(weighted.predict(x).probs, plain.predict(x).probs, rtol=1e-5, atol=1e-6)


def test_units_noise_and_stacking_count_examples_as_often():
    y = TARGETS["gaussian"]
    one, other = standardize((X, y, TIMES)), standardize((MANY, y.repeat_interleave(TIMES, 0)))
    for side in ("inputs", "targets"):
        a, b = getattr(one.scaling, side), getattr(other.scaling, side)
        torch.testing.assert_close(a.loc, b.loc)
        torch.testing.assert_close(a.scale, b.scale)
    assert one.total == other.n == other.total
    assert one.take(torch.arange(5)).total == float(TIMES[:5].sum())
    posterior = br.fit(linear("gaussian"), one, "map", prior=1.0, val=(X, y, TIMES))
    again = br.fit(linear("gaussian"), other, "map", prior=1.0, val=(MANY, y.repeat_interleave(TIMES, 0)))
    torch.testing.assert_close(posterior.likelihood.noise, again.likelihood.noise, rtol=1e-3, atol=1e-5)
    log_probs = torch.randn(3, 60, generator=torch.Generator().manual_seed(0)).double()
    torch.testing.assert_close(stacked(log_probs, TIMES), stacked(log_probs.repeat_interleave(TIMES, 1)))


def test_a_fit_with_weights_is_resumed_with_them(tmp_path):
    def cut(at):
        if at.step == 3:
            raise InterruptedError

    x, y = classes()
    given = (x, y, torch.rand(len(x)))
    with pytest.raises(InterruptedError):
        br.fit(mlp(), given, MAP(), epochs=2, callbacks=[cut], out=br.training.Folder(tmp_path, interval=0))
    with pytest.raises(ValueError, match="training data are not those of the run"):
        br.resume(tmp_path, mlp(), (x, y))
    found = br.resume(tmp_path, mlp(), given)
    assert torch.equal(found.predict(x).probs, br.fit(mlp(), given, MAP(), epochs=2).predict(x).probs)


@pytest.mark.parametrize(
    ("weight", "match"),
    [
        (torch.ones(3), r"one number for each of the 48 examples, got shape \[3\]"),
        (-torch.ones(48), "weight must not be negative, got -1 in row 0"),
        (torch.zeros(48), "weight must be above zero for some example, but all 48 are zero"),
        (torch.full((48,), torch.nan), "weight must be finite"),
    ],
)
def test_wrong_weights(weight, match):
    x, y = classes()
    with pytest.raises(ValueError, match=match):
        as_data((x, y, weight))
