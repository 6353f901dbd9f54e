"""FRCL: divergences of functions, and closed forms of linear models."""

import pytest
import torch
from torch import nn
from torch.distributions import MultivariateNormal, kl_divergence

import bayesrule as br
from bayesrule import lifelong
from bayesrule.lifelong.fits import Fits
from bayesrule.lifelong.inducing import function_at
from bayesrule.lifelong.streams import Chapter
from bayesrule.priors import Flat, Gaussian, Inducing, kernel, with_one

NOISE = br.likelihoods.Gaussian(0.3)


def network(body, features, heads=2, outputs=1):
    torch.manual_seed(0)
    return br.models.MultiHead(body, features, heads, outputs).double()


def task(index, n=12):
    generator = torch.Generator().manual_seed(index)
    x = torch.randn(n, 3, generator=generator, dtype=torch.float64)
    y = x @ torch.randn(3, generator=generator, dtype=torch.float64) + 0.5
    y = y + 0.3 * torch.randn(n, generator=generator, dtype=torch.float64)
    return (x, torch.full((n,), index)), y


def exact(x, y, scale):
    """The posterior of a linear model with bias under N(0, scale²)."""
    phi = with_one(x)
    precision = torch.eye(4).double() / scale**2 + phi.T @ phi / 0.3**2
    return torch.linalg.solve(precision, phi.T @ y / 0.3**2), torch.linalg.inv(precision)


def test_the_density_is_minus_the_divergence_but_for_a_constant():
    net = network(nn.Linear(3, 5), 5, outputs=2)
    points = torch.randn(4, 3).double()
    means, root = torch.randn(4, 2).double(), torch.randn(2, 4, 4).double()
    covariances = root @ root.mT + 0.1 * torch.eye(4).double()
    prior = Inducing([points], [means], [covariances], Flat(), scale=1.3, jitter=0.01).resolve(net)

    def divergence(weights):
        phi = with_one(points @ weights["body.weight"].T + weights["body.bias"])
        theirs = MultivariateNormal(torch.zeros(4).double(), kernel(phi, 1.3, 0.01))
        return sum(kl_divergence(MultivariateNormal(means[:, c], covariances[c]), theirs) for c in range(2))

    at = [{name: torch.randn_like(p) for name, p in net.named_parameters()} for _ in range(2)]
    mine = prior.log_prob(at[0]) - prior.log_prob(at[1])
    torch.testing.assert_close(mine, divergence(at[1]) - divergence(at[0]))


def test_its_gradient():
    net = network(nn.Linear(3, 2), 2)
    prior = Inducing([torch.randn(3, 3)], [torch.randn(3, 1)], [torch.eye(3)[None]], Gaussian(1.0)).resolve(net)
    weights = {name: p.detach() for name, p in net.named_parameters()}
    at = weights["body.weight"].clone().requires_grad_()
    assert torch.autograd.gradcheck(lambda w: prior.log_prob(weights | {"body.weight": w}), (at,))


def test_a_linear_task_has_its_exact_law_at_the_points():
    (x, t), y = task(0)
    net = network(nn.Flatten(), 3)
    mean, covariance = exact(x, y, scale=2.0)
    with torch.no_grad():
        net.heads.weight[0], net.heads.bias[0] = mean[:-1], mean[-1]
    found = function_at(net, (x[:5], t[:5]), ((x, t), y), NOISE, scale=2.0)
    phi = with_one(x[:5])
    torch.testing.assert_close(found[0][:, 0], phi @ mean)
    torch.testing.assert_close(found[1][0], phi @ covariance @ phi.T)


def test_linear_tasks_in_sequence_each_keep_their_exact_posterior_mean():
    """Features that cannot change, and as many points as weights: the first head, read off its inducing points after
    the second task, is still the posterior mean given the first task's data alone."""
    net = network(nn.Flatten(), 3)
    strategy = lifelong.InducingPoints(points=6, scale=2.0, jitter=1e-8, lr=0.1)
    past = lifelong.Past()
    for index in range(2):
        x, y = task(index)
        past = strategy.learn(past, Chapter(f"task {index}", (x, y), (x, y)), Fits(net, NOISE, 600, 12, index, 12))
    heads = past.posterior.states[0]
    for index in range(2):
        (x, _), y = task(index)
        mean = torch.cat([heads["heads.weight"][index], heads["heads.bias"][index : index + 1]])
        torch.testing.assert_close(mean, exact(x, y, 2.0)[0], rtol=1e-4, atol=1e-4)


def test_what_it_is_not_for_is_refused():
    with pytest.raises(ValueError, match="frcl is for streams with a head for each task, which toy is not"):
        lifelong.run(lifelong.streams.toy(2), "frcl")
    with pytest.raises(ValueError, match=r"must have a br.models.MultiHead, not a Linear"):
        Inducing([], [], [], Flat()).resolve(nn.Linear(1, 1))
    with pytest.raises(ValueError, match="points, means and covariances must be of as many sets, got 1, 0 and 0"):
        Inducing([torch.ones(1, 1)], [], [], Flat())
    with pytest.raises(ValueError, match="jitter must be positive, not 0"):
        lifelong.InducingPoints(jitter=0.0)
