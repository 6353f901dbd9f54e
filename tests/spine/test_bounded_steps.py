"""Natural gradients' means stay where their prior expects them."""

import math

import pytest
import torch
from sklearn.datasets import load_breast_cancer

import bayesrule as br
from bayesrule.methods import IVON, OGN, VOGN, VON, Noise, Plan

STD = 0.5  # of the prior


def furthest_step(method, steps=60):
    """The longest step of any mean, on a table that a network soon is sure of."""
    x, y = load_breast_cancer(return_X_y=True)
    x = torch.from_numpy((x - x.mean(0)) / x.std(0)).float()
    torch.manual_seed(0)
    task = br.Task.create(br.models.mlp(30, 2, hidden=(32,)), (x, torch.from_numpy(y)), prior=STD)
    learner = method.start(task, Plan(1, steps, 32), Noise.on(task.device))
    longest = 0.0
    for batch in list(task.batches(32, seed=0)) * math.ceil(steps * 32 / len(y)):
        before = [p.detach().clone() for p in learner.network.parameters()]
        learner.step(batch)
        steps_taken = [
            float((p.detach() - q).abs().max()) for p, q in zip(learner.network.parameters(), before, strict=True)
        ]
        longest = max(longest, *steps_taken)
        if learner.steps == steps:
            return longest
    raise AssertionError("too few batches")


@pytest.mark.parametrize("kind", [IVON, VOGN, VON], ids=lambda kind: kind.name)
def test_no_step_goes_beyond_the_rates_share_of_the_priors_deviation(kind):
    """Where a network is sure of its examples the curvature is next to nothing: steps without a bound go far."""
    assert furthest_step(kind(lr=0.5)) <= 0.5 * STD * 1.0001


def test_without_a_bound_they_do():
    assert furthest_step(IVON(lr=0.5, clip_radius=math.inf)) > 2 * 0.5 * STD
    assert furthest_step(OGN(lr=50.0, clip_radius=math.inf)) > 2 * STD


@pytest.mark.parametrize("initial_std", [0.02, None])
def test_nor_do_those_of_sgd_go_beyond_it(initial_std):
    """At whatever rate: this one is a hundred times the usual."""
    assert furthest_step(OGN(lr=50.0, initial_std=initial_std)) <= STD * 1.0001


def test_a_prior_by_weight_bounds_each_step_of_sgd_by_its_own_deviation():
    deviations = torch.tensor([[0.01, 0.1, 1.0]])
    prior = br.priors.Gaussian({"weight": deviations})
    task = br.Task.create(torch.nn.Linear(3, 1, bias=False), (torch.eye(3) * 10, torch.full((3,), 0.5)), prior=prior)
    learner = OGN(lr=1e3).start(task, Plan(1, 10, 3), Noise.on(task.device))
    for batch in list(task.batches(3, seed=0)) * 10:
        before = learner.network.weight.detach().clone()
        learner.step(batch)
        assert ((learner.network.weight.detach() - before).abs() <= deviations * 1.0001).all()


def test_each_weight_may_have_a_bound_of_its_own():
    weight, bounds = torch.nn.Parameter(torch.zeros(3)), torch.tensor([0.01, 0.1, 0.5])
    settings = {"newton": True, "betas": (0.0, 0.9), "hess_init": 1e-6}
    optimizer = br.optim.IVON([weight], lr=1.0, ess=1.0, clip_radius=[bounds], **settings)
    with optimizer.sampled():
        (1e3 * weight).sum().backward()
    optimizer.step()
    assert (weight.detach().abs() <= bounds * 1.0001).all()
    assert float(weight[0].detach()) == pytest.approx(-0.01)
