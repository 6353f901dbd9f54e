"""What is refused, and how it is said."""

import math

import pytest
import torch
from torch import nn

import bayesrule as br
from bayesrule.curvature import limits
from bayesrule.gp import features

X, Y = torch.randn(6, 2), torch.randn(6)


def made(**options):
    return br.gp.from_network(nn.Linear(2, 1), (X, Y), **options)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"prior": "laplace"}, r"must be Gaussian here, not 'laplace': take br.priors.Gaussian"),
        ({"prior": "flat"}, "must be Gaussian here, not 'flat'"),
        ({"prior": br.priors.ScaleMixture()}, "must be Gaussian here, not 'scale-mixture'"),
        ({"subset": "lastlayer"}, r"subset must be 'all', 'last-layer' or a list of names, not 'lastlayer'"),
        ({"subset": ["wieght"]}, r"unknown parameter or layer 'wieght': did you mean 'weight'"),
        ({"subset": []}, r"no parameter takes part: Linear has no trainable one, or subset is empty"),
        ({"solve": "duel"}, r"unknown solve 'duel': did you mean 'dual'\? Valid: auto, dual, primal"),
        ({"temperature": 0.0}, r"temperature must be positive and finite, not 0.0"),
        ({"likelihood": "gausian"}, r"unknown likelihood 'gausian': did you mean 'gaussian'"),
    ],
)
def test_wrong_arguments(options, message):
    with pytest.raises(ValueError, match=message):
        made(**options)


def test_networks_and_data_that_are_none():
    broken = nn.Linear(2, 1)
    nn.init.constant_(broken.bias, math.nan)
    with pytest.raises(ValueError, match="parameter 'bias' of the model holds NaN"):
        br.gp.from_network(broken, (X, Y))
    with pytest.raises(ValueError, match="X and y must hold at least one example, got none"):
        br.gp.from_network(nn.Linear(2, 1), (X[:0], Y[:0]))
    with pytest.raises(ValueError, match="must be finite: 1 of 12 values are NaN"):
        br.gp.from_network(nn.Linear(2, 1), (X.masked_fill(X[0, 0] == X, math.nan), Y))
    with pytest.raises(TypeError, match=r"model must be a torch\.nn\.Module, not function"):
        br.gp.from_network(lambda x: x, (X, Y))


def test_outputs_that_overflow_name_the_layer():
    class Reciprocal(nn.Module):
        def forward(self, x):
            return 1 / x.clamp(min=0)

    model = nn.Sequential(nn.Linear(2, 2), Reciprocal())
    with torch.no_grad():
        model[0].weight.fill_(1.0)
        model[0].bias.fill_(1.0)
    gp = br.gp.from_network(model, (X.abs(), torch.randn(6, 2)), prior=br.priors.Gaussian(1.0))
    with pytest.raises(FloatingPointError, match="layer '1' \\(Reciprocal\\) gives infinite numbers"):
        gp.posterior([[-3.0, -3.0]])


@pytest.mark.parametrize("call", ["kernel", "posterior", "network", "prior_mean", "predict"])
def test_inputs_that_do_not_fit(call):
    ask = getattr(made(prior=br.priors.Gaussian(1.0)), call)
    with pytest.raises(ValueError, match="X must be finite"):
        ask([[math.nan, 0.0]])
    with pytest.raises(ValueError, match="X must hold at least one example, got none"):
        ask(X[:0])
    with pytest.raises(ValueError, match=r"the model cannot take the inputs \(X: \[[12], 5\]"):
        ask(torch.zeros(2, 5))


def test_an_unknown_aggregate():
    with pytest.raises(ValueError, match="unknown aggregate 'diag': Valid: class, full, sum"):
        made().kernel(X, aggregate="diag")


def test_targets_in_other_units():
    data = br.data.standardize((X, Y))
    with pytest.raises(ValueError, match=r"likelihood 'heteroscedastic' are not all in units of y.*targets=\"keep\""):
        br.gp.from_network(nn.Linear(2, 2), data, "heteroscedastic")


def test_too_large_for_memory(monkeypatch):
    """Before anything is allocated: by what it needs, what there is, and what to take instead."""
    gp = made()
    many = torch.zeros(1_000_000, 2)
    with pytest.raises(MemoryError, match=r"kernel of 1,000,000 and 1,000,000 examples.*take fewer examples at a time"):
        gp.kernel(many, aggregate="sum")
    with pytest.raises(MemoryError, match=r"joint covariance of 1,000,000 examples.*or joint=False"):
        gp.posterior(many, joint=True)
    gps = [br.gp.from_network(nn.Linear(2, 1), (X.repeat(10, 1), Y.repeat(10)), solve=s) for s in ("primal", "dual")]
    monkeypatch.setattr(limits, "free", lambda device: 50)
    for gp, what in zip(gps, ("3 × 3 matrix of the weights", "60 × 60 kernel matrix"), strict=True):
        with pytest.raises(MemoryError, match=rf"the {what}.*subset='last-layer', or fewer examples"):
            gp.log_marginal_likelihood()
    with pytest.raises(MemoryError, match="the Hessian of the likelihood at 60 examples with 1 outputs each needs"):
        br.gp.from_network(nn.Linear(2, 1), (X.repeat(10, 1), Y.repeat(10)))


def test_features_are_never_kept_at_once(monkeypatch):
    """No piece of features is larger than there is room for, unless one parameter of one example is."""
    seen = []
    made_by = features.jacobians
    monkeypatch.setattr(features, "ROOM", 400)
    monkeypatch.setattr(features, "jacobians", lambda *a: seen.append(made_by(*a)) or seen[-1])
    model = nn.Sequential(nn.Linear(2, 10), nn.Tanh(), nn.Linear(10, 3))
    gp = br.gp.from_network(model, (X, torch.tensor([0, 1, 2, 0, 1, 2])), prior=br.priors.Gaussian(1.0), solve="dual")
    gp.kernel(X)
    gp.posterior(X)
    assert max(j.numel() for j in seen) <= 400
