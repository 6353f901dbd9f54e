"""Relevance of examples."""

import pytest
import torch
from gp_reference import Dense
from torch import nn
from torch.testing import assert_close

import bayesrule as br


def problem(seed=0):
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(2, 4), nn.Tanh(), nn.Linear(4, 3)).double()
    x = torch.randn(15, 2, dtype=torch.float64)
    return model, x, torch.randint(3, (15,))


@pytest.mark.parametrize("temperature", [1.0, 0.5])
def test_leverages_add_up_to_the_effective_number_of_weights(temperature):
    """Σ h_i = P − tr(Σ S⁻¹), each between 0 and C; Σ by a dense inverse."""
    model, x, y = problem()
    scale = torch.full((27,), 1.5, dtype=torch.float64)
    dense = Dense(model, x, y, br.likelihoods.Categorical(), scale, temperature)
    prior = br.priors.Gaussian(1.5)
    found = br.gp.relevance(model, (x, y), prior=prior, method="leverage", temperature=temperature)
    assert float(found.leverage.sum()) == pytest.approx(27 - float(dense.covariance.trace()) / 1.5**2, rel=1e-9)
    assert bool(((found.leverage >= 0) & (found.leverage <= 3)).all())
    h = torch.einsum("ncd,ndp,pq,ncq->n", dense.hessians, dense.j, dense.covariance, dense.j)
    assert_close(found.leverage, h, rtol=1e-9, atol=1e-12)
    assert_close(found.hessian, dense.hessians.diagonal(dim1=1, dim2=2).sum(1), rtol=1e-9, atol=1e-12)
    assert found.order.tolist() == h.argsort(descending=True).tolist()


def test_linear_regression_has_the_hat_matrix():
    """h_i = [X(XᵀX + λ)⁻¹Xᵀ]_ii, λ = noise²/s²; and the Hessian is the same everywhere."""
    torch.manual_seed(0)
    x, y = torch.randn(10, 3).double(), torch.randn(10).double()
    model = nn.Linear(3, 1, bias=False).double()
    found = br.gp.relevance(model, (x, y), br.likelihoods.Gaussian(0.5), br.priors.Gaussian(2.0), "leverage")
    hat = x @ torch.linalg.solve(x.T @ x + 0.25 / 4 * torch.eye(3), x.T)
    assert_close(found.leverage, hat.diagonal(), rtol=1e-10, atol=1e-12)
    assert_close(found.hessian, torch.full((10,), 4.0).double())


def test_the_undecided_and_the_lonely_are_relevant():
    """By the Hessian the examples at the boundary; by leverage an example far from the others."""
    x = torch.tensor([[-3.0], [-2.9], [0.01], [2.9], [3.0]]).double()
    model = nn.Linear(1, 1, bias=False).double()
    nn.init.ones_(model.weight)
    found = br.gp.relevance(model, (x, torch.tensor([0, 0, 1, 1, 1])), prior=br.priors.Gaussian(1.0))
    assert found.order[0] == 2
    assert found.leverage is None
    assert_close(found.score, found.hessian)
    x = torch.cat([torch.linspace(-0.1, 0.1, 9), torch.tensor([2.0])])[:, None].double()
    found = br.gp.relevance(model, (x, x[:, 0]), br.likelihoods.Gaussian(0.1), br.priors.Gaussian(1.0), "leverage")
    assert found.order[0] == 9
    assert float(found.leverage[9]) > 0.9


def test_leverage_of_the_last_layer_and_in_the_models_dtype():
    model, x, y = problem()
    last = br.gp.relevance(model.float(), (x.float(), y), method="leverage", subset="last-layer")
    named = br.gp.relevance(model, (x.float(), y), method="leverage", subset=["2"])
    whole = br.gp.relevance(model, (x.float(), y), method="leverage")
    assert last.leverage.dtype == last.hessian.dtype == torch.float32
    assert_close(last.leverage, named.leverage)
    assert float(last.leverage.sum()) < float(whole.leverage.sum())
    with pytest.raises(ValueError, match="unknown method 'leverages': did you mean 'leverage'"):
        br.gp.relevance(model, (x, y), method="leverages")
