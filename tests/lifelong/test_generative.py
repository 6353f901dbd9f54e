"""Classes as Gaussians: the closed forms, order, and what they are for."""

import math

import pytest
import torch
from scipy.stats import multivariate_t
from torch import nn

import bayesrule as br
from bayesrule import lifelong
from bayesrule.lifelong.fits import Fits
from bayesrule.lifelong.generative import MEAN_WORTH, ClassGaussians, log_student


def examples(n=60, seed=0, classes=3):
    generator = torch.Generator().manual_seed(seed)
    y = torch.arange(n) % classes
    x = torch.randn(n, 4, generator=generator, dtype=torch.float64) * torch.tensor([1.0, 2.0, 0.5, 1.0]).double()
    return x + 2.0 * y[:, None], y


def empty(classes=3, worth=5.0):
    torch.manual_seed(0)
    return ClassGaussians(nn.Sequential(nn.Linear(4, classes)).double(), 0, 4, classes, worth)


def test_student_is_that_of_scipy():
    x, _ = examples(5)
    root = torch.linalg.cholesky(torch.cov(x.T) + torch.eye(4).double())
    mine = log_student(x, x[:1], root[None], torch.tensor([3.5]).double())[:, 0]
    theirs = multivariate_t(x[0].numpy(), (root @ root.T).numpy(), df=3.5).logpdf(x.numpy())
    torch.testing.assert_close(mine, torch.as_tensor(theirs))


@pytest.mark.parametrize("cuts", [(60,), (20, 40), (1,) * 60])
def test_any_split_in_any_order_gives_the_sums_of_all_examples(cuts):
    x, y = examples()
    whole, parts = empty(), empty()
    whole.observe(x, y)
    order = torch.randperm(60, generator=torch.Generator().manual_seed(1))
    for rows in order.split(list(cuts)):
        parts.observe(x[rows], y[rows])
    for name in ("count", "mean", "scatter"):
        torch.testing.assert_close(getattr(parts, name), getattr(whole, name), rtol=1e-10, atol=1e-10)


def test_the_predictive_density_is_the_ratio_of_evidences():
    """p(φ | D) = p(D, φ)/p(D), with the evidence of the normal–inverse-Wishart model in closed form."""
    x, _ = examples(12)
    worth, spread, width = 5.0, 1.7, 4

    def evidence(data):
        n = len(data)
        centre = data.mean(0)
        away = centre[:, None] @ centre[None]  # the prior's centre is zero
        shape = worth * spread * torch.eye(width).double() + (data - centre).T @ (data - centre)
        shape += MEAN_WORTH * n / (MEAN_WORTH + n) * away
        nu = width + 1 + worth
        found = -0.5 * n * width * math.log(math.pi) + torch.mvlgamma(torch.tensor((nu + n) / 2).double(), width)
        found -= torch.mvlgamma(torch.tensor(nu / 2).double(), width)
        found += 0.5 * nu * width * math.log(worth * spread) - 0.5 * (nu + n) * torch.logdet(shape)
        return found + 0.5 * width * math.log(MEAN_WORTH / (MEAN_WORTH + n))

    model = empty(classes=1, worth=worth)
    model.spread.fill_(spread)
    model.observe(x[:11], torch.zeros(11, dtype=torch.long))
    mine = model.log_joint(x[11:])[0, 0]  # of one class, whose probability is 1
    torch.testing.assert_close(mine, evidence(x) - evidence(x[:11]))


def test_the_temperature_makes_kept_examples_most_probable():
    x, y = examples(300)
    model = empty()
    wide = x.repeat(1, 2)[:, :4] * 3  # no draws of the Gaussians that were observed
    model.observe(x, y)
    model.settle(wide, y)
    found = float(model.temperature)
    assert found > 1
    f = model.log_joint(wide)
    losses = [float(nn.functional.cross_entropy(f / (found * factor), y)) for factor in (0.95, 1.0, 1.05)]
    assert losses[1] == min(losses)
    model.settle(
        x[:30], (f[:30] * 0 + model.log_joint(x[:30])).argmax(1)
    )  # all right: as sure as Bayes' rule, no surer
    assert float(model.temperature) == pytest.approx(1.0)


def test_what_a_task_teaches_is_the_same_whatever_comes_later():
    """The density of a class is its own: learning others does not move it."""
    stream = lifelong.streams.digits("class-il", 3)
    torch.manual_seed(0)
    model = br.models.mlp(64, 10, hidden=(16,))
    past, strategy = lifelong.Past(), lifelong.Generative(points=10)
    means = []
    for index, chapter in enumerate(stream):
        past = strategy.learn(past, chapter, Fits(model, br.likelihoods.Categorical(), 3, 32, index, 200))
        means.append(past.posterior.states[0]["mean"][:2])
    assert torch.equal(means[0], means[2])
    assert (past.posterior.states[0]["count"] > 0).tolist() == [True] * 6 + [False] * 4


def test_classes_that_were_never_seen_together_are_told_apart():
    stream = lifelong.streams.digits("class-il")
    result = lifelong.run(stream, lifelong.Generative(points=20), epochs=5, hidden=(50,), batch_size=32)
    assert result.average > 0.9
    assert result.backward_transfer > -0.1
    assert max(result.nll[-1]) < 1.0


def test_what_it_is_not_for_is_refused():
    x = torch.randn(20, 2)
    with pytest.raises(ValueError, match="generative is for classes, but 'a' has numbers for targets"):
        lifelong.run([("a", (x, x[:, 0]), (x, x[:, 0]))], lifelong.Generative(points=5), epochs=1, hidden=(4,))
    with pytest.raises(ValueError, match="depth must be from 0 to 1, the network's linear layers, not 2"):
        lifelong.run(lifelong.streams.toy(1), lifelong.Generative(depth=2, points=5), epochs=1, hidden=(4,))
    with pytest.raises(ValueError, match="generative is for streams with one head for all tasks"):
        lifelong.run(lifelong.streams.digits("task-il"), "generative")
    with pytest.raises(ValueError, match="worth must be positive, not 0"):
        lifelong.Generative(worth=0)
    with pytest.raises(ValueError, match="depth must be at least 0, not -1"):
        lifelong.Generative(depth=-1)
