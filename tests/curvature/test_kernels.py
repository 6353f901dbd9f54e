"""Kernels of outputs, against the Jacobians that they are made of."""

import pytest
import torch
from torch import nn

import bayesrule as br
from bayesrule.curvature import jacobians, kernels

NETWORKS = {
    "linear": lambda: nn.Linear(4, 3),
    "mlp": lambda: br.models.mlp(4, 3, hidden=(5, 6)),
    "a weight used twice": lambda: nn.Sequential(*[layer := nn.Linear(4, 4), nn.Tanh(), layer]),
    "conv": lambda: nn.Sequential(nn.Unflatten(1, (1, 2, 2)), nn.Conv2d(1, 2, 2, padding=1), nn.Flatten(), nn.Tanh()),
    "norm": lambda: nn.Sequential(nn.Linear(4, 4), nn.LayerNorm(4), nn.ReLU(), nn.Linear(4, 2)),
}


@pytest.mark.parametrize("name", NETWORKS)
def test_a_kernel_is_the_product_of_jacobians(name):
    torch.manual_seed(0)
    model, x = NETWORKS[name]().double(), torch.randn(7, 4, dtype=torch.float64)
    j = jacobians(model, x)
    variances = torch.rand(j.shape[-1], dtype=torch.float64)
    expected = torch.einsum("acp,p,bcp->cab", j, variances, j)
    torch.testing.assert_close(kernels(model, x, variances), expected, rtol=1e-12, atol=1e-12)


def test_a_kernel_of_many_heads():
    torch.manual_seed(0)
    model = br.models.MultiHead(br.models.mlp(4, 5, hidden=()), 5, 3, 2).double()
    x = torch.randn(6, 4, dtype=torch.float64), torch.tensor([0, 1, 2, 0, 1, 2])
    j = jacobians(model, x)
    variances = torch.rand(j.shape[-1], dtype=torch.float64)
    expected = torch.einsum("acp,p,bcp->cab", j, variances, j)
    torch.testing.assert_close(kernels(model, x, variances), expected, rtol=1e-12, atol=1e-12)
