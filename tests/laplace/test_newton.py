"""Newton's steps to the mode: where they end, and on which networks, data and processes."""

import copy
import math

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import bayesrule as br
from bayesrule import modules
from bayesrule.methods import Laplace
from bayesrule.priors import Gaussian


class Shared(nn.Module):
    """One layer used twice, under two names."""

    def __init__(self):
        super().__init__()
        self.first = nn.Linear(3, 3)
        self.second = self.first
        self.head = nn.Linear(3, 2)

    def forward(self, x):
        return self.head(torch.tanh(self.second(torch.tanh(self.first(x)))))


def plain():
    return nn.Sequential(nn.Linear(3, 5), nn.Tanh(), nn.Linear(5, 2))


def batch_norm():
    return nn.Sequential(nn.Linear(3, 5), nn.BatchNorm1d(5), nn.Tanh(), nn.Linear(5, 2))


def frozen():
    network = plain()
    network[0].weight.requires_grad_(False)
    return network


NETWORKS = {"plain": plain, "batch norm": batch_norm, "frozen": frozen, "shared": Shared}


def made(name):
    torch.manual_seed(0)
    return NETWORKS[name]().double()


def data(n=60):
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(n, 3, generator=generator, dtype=torch.float64)
    return x, (x[:, 0] + 0.5 * torch.randn(n, generator=generator, dtype=torch.float64) > 0).long()


def loss_and_slope(network, x, y, temperature):
    """−Σ log p(y|f)/η − log N(w; mean, 1) in eval mode, and its gradient in all trained weights."""
    network = copy.deepcopy(network).eval()
    parameters = modules.parameters(network)
    loss = nn.functional.cross_entropy(network(x), y, reduction="sum") / temperature
    loss = loss - Gaussian(1.0).resolve(network).log_prob(parameters)
    slope = torch.cat([part.flatten() for part in torch.autograd.grad(loss, parameters.values())])
    return float(loss.detach()), slope


def fit(name, source, newton, **more):
    method = Laplace("all", tune="nothing", newton=newton)
    return br.fit(made(name), source, method, **{"prior": Gaussian(1.0), "epochs": 2, "val": 0, **more})


@pytest.mark.parametrize("temperature", [1.0, 0.25])
@pytest.mark.parametrize("name", NETWORKS)
def test_a_step_is_the_solution_of_the_quadratic_or_a_half_of_it_or_a_quarter(name, temperature):
    x, y = data()
    before = fit(name, (x, y), newton=0, temperature=temperature)
    after = fit(name, (x, y), newton=1, temperature=temperature)
    here, slope = loss_and_slope(before.at_mean(), x, y, temperature)
    there, _ = loss_and_slope(after.at_mean(), x, y, temperature)
    assert there < here
    whole = torch.linalg.solve(before.precision.dense(), slope)
    taken = modules.flatten(before.mean) - modules.flatten(after.mean)
    share = float(taken @ whole / (whole @ whole))
    assert math.log2(share) == pytest.approx(round(math.log2(share)), abs=1e-6)
    torch.testing.assert_close(taken, share * whole, rtol=1e-6, atol=1e-9)
    assert all(torch.equal(after.fixed[key], before.fixed[key]) for key in before.fixed)  # BatchNorm's statistics


@pytest.mark.parametrize("name", NETWORKS)
def test_many_steps_end_near_where_the_gradient_vanishes(name):
    x, y = data()
    slopes = [loss_and_slope(fit(name, (x, y), newton).at_mean(), x, y, 1.0)[1].norm() for newton in (0, 40)]
    assert slopes[1] < 0.1 * slopes[0]


def test_frozen_weights_stay_and_shared_ones_move_as_one():
    given = made("frozen")
    assert torch.equal(fit("frozen", data(), newton=2).at_mean()[0].weight, given[0].weight)
    shared = fit("shared", data(), newton=2)
    assert set(shared.mean) == {"first.weight", "first.bias", "head.weight", "head.bias"}
    assert torch.equal(shared.at_mean().second.weight, shared.mean["first.weight"])


def test_a_loader_gives_the_step_of_its_examples():
    x, y = data()
    rows = fit("plain", (x, y), newton=3, epochs=0)
    read = fit("plain", DataLoader(TensorDataset(x, y), batch_size=7, shuffle=True, drop_last=True), 3, epochs=0)
    for key, mean in rows.mean.items():
        torch.testing.assert_close(read.mean[key], mean, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("temperature", [1.0, 0.5])
def test_noise_that_is_unknown_is_that_about_the_mode_not_about_the_start(temperature):
    """A linear model from weights far off: one step is the mode under the noise of the start, more know better."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(200, 2, generator=generator, dtype=torch.float64)
    y = 3 * x[:, 0] - x[:, 1] + 0.1 * torch.randn(200, generator=generator, dtype=torch.float64)
    method = Laplace("all", tune="nothing", newton=3)
    model = nn.Linear(2, 1).double()
    found = br.fit(model, (x, y), method, prior=Gaussian(10.0), temperature=temperature, epochs=0)
    assert float(found.likelihood.noise) == pytest.approx(0.1, rel=0.1)
    design = torch.cat([x, torch.ones(200, 1, dtype=torch.float64)], 1)
    precision = design.T @ design / float(found.likelihood.noise) ** 2 / temperature + 0.01 * torch.eye(3).double()
    torch.testing.assert_close(found.precision.dense(), precision, rtol=1e-6, atol=1e-6)


def test_steps_that_train_a_network_do_not_warn_that_it_is_untrained():
    fit("plain", data(), newton=5, epochs=0)
    with pytest.warns(UserWarning, match="Laplace's method is for a trained network"):
        fit("plain", data(), newton=0, epochs=0)
