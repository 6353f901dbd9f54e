"""A step of Gauss–Newton, through the Gaussian process."""

import pytest
import torch
from gp_reference import Dense, flat
from torch import nn
from torch.testing import assert_close

import bayesrule as br
from bayesrule.families import FullGaussian, Loss
from bayesrule.rule import Rule


def problem(seed=0):
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(2, 3), nn.Tanh(), nn.Linear(3, 3)).double()
    x = torch.randn(20, 2, dtype=torch.float64)
    return model, x, (x.sum(1) > 0).long() + (x[:, 0] > 1).long()


@pytest.mark.parametrize("solve", ["primal", "dual"])
@pytest.mark.parametrize("temperature", [1.0, 2.5])
def test_a_step_is_that_of_gauss_and_newton(solve, temperature):
    """w − (G/η + S⁻¹)⁻¹ ∇ with a P × P matrix by autograd."""
    model, x, y = problem()
    likelihood = br.likelihoods.Categorical()
    scale = torch.full((flat(model).numel(),), 0.8, dtype=torch.float64)
    before = flat(model)
    after = br.gp.iterate(model, (x, y), likelihood, br.priors.Gaussian(0.8), temperature, solve=solve)
    assert_close(flat(after), Dense(model, x, y, likelihood, scale, temperature).step, rtol=1e-8, atol=1e-9)
    assert torch.equal(flat(model), before)


def test_steps_lead_to_the_mode():
    """Logistic regression: the gradient of the loss vanishes, and the next step does nothing."""
    _, x, y = problem()
    model, prior = nn.Linear(2, 3).double(), br.priors.Gaussian(2.0)
    for _ in range(15):
        model = br.gp.iterate(model, (x, y), prior=prior)
    loss = nn.functional.cross_entropy(model(x), y, reduction="sum") + sum(
        p.square().sum() / 8 for p in model.parameters()
    )
    gradient = torch.autograd.grad(loss, list(model.parameters()))
    assert max(float(g.abs().max()) for g in gradient) < 1e-10
    assert_close(flat(br.gp.iterate(model, (x, y), prior=prior)), flat(model), rtol=1e-10, atol=1e-10)


def test_a_step_of_the_learning_rule_is_a_step_of_the_process():
    """`br.rule` with a full Gaussian, E_q at the mean and ρ = 1, for yes or no, where Gauss–Newton is the Hessian."""
    _, x, y = problem()
    y = (y > 0).long()
    model = nn.Linear(2, 1, bias=False).double()

    def loss(w):
        signs = 2.0 * y - 1
        return nn.functional.softplus(-signs * (w @ x.mT)).sum(-1) + 0.5 * w.square().sum(-1) / 0.5**2

    rule = Rule(FullGaussian(), Loss.of(loss), how="local", rate=1.0)
    state = rule.start(FullGaussian.of(flat(model), torch.eye(2, dtype=torch.float64)))
    for _ in range(4):
        state, model = rule.step(state), br.gp.iterate(model, (x, y), "bernoulli", br.priors.Gaussian(0.5))
        assert_close(flat(model), FullGaussian().mean(state.natural), rtol=1e-8, atol=1e-10)


def test_a_subset_moves_alone_and_dtype_and_mode_stay():
    model, x, y = problem()
    model = model.float().train()
    after = br.gp.iterate(model, (x.float(), y), subset=["2"])
    assert after.training
    assert after[2].weight.dtype == torch.float32
    assert torch.equal(after[0].weight, model[0].weight)
    assert not torch.equal(after[2].weight, model[2].weight)
    assert after[2].weight.requires_grad
