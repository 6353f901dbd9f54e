"""Coordinates in which a Gaussian is independent: the same network and the same density in other numbers."""

import pytest
import torch
from torch import nn

import bayesrule as br
from bayesrule import lifelong, modules
from bayesrule.lifelong.coordinates import Rotated, has_coordinates
from bayesrule.structures import Blocks, Dense, Diagonal


@pytest.fixture(scope="module")
def known():
    x, y = br.data.moons(seed=0)
    torch.manual_seed(0)
    model = br.models.mlp(2, 2, hidden=(6, 5)).double()
    laplace = br.methods.Laplace("all", "kronecker", tune="nothing", predictive="weights")
    posterior = br.fit(model, (x.double(), y), laplace, "categorical", br.priors.Gaussian(2.0), 1.0, epochs=3)
    assert has_coordinates(posterior.precision)
    return posterior


def test_at_zero_it_is_the_network_at_the_mean(known):
    x = torch.randn(5, 2, dtype=torch.float64)
    expected = modules.call(known.at_mean(known.context.model), x)
    rotated = Rotated(known.context.model, known)
    assert rotated.first == 1  # after the Flatten
    torch.testing.assert_close(rotated(rotated.inputs(x)), expected)


def test_the_density_of_z_is_that_of_the_weights(known):
    rotated, prior = Rotated(known.context.model, known), known.as_prior()
    with torch.no_grad():
        rotated.z.copy_(torch.randn_like(rotated.z))
    mine = rotated.prior.log_prob({"z": rotated.z}) - rotated.prior.log_prob({"z": torch.zeros_like(rotated.z)})
    theirs = prior.log_prob(rotated.weights()) - prior.log_prob(known.mean)
    torch.testing.assert_close(mine, theirs, rtol=1e-8, atol=1e-8)


@pytest.mark.parametrize("nested", [False, True])
def test_the_network_at_z_is_that_of_its_weights(known, nested):
    """With rotated inputs where the first layer is at hand, and with rotated weights where it is not."""
    model = known.context.model
    if nested:
        mean = {f"0.{name}": w for name, w in known.mean.items()}
        known = br.posteriors.Gaussian(mean, known.precision, {}, known.context)
        model = nn.Sequential(model)
    rotated = Rotated(model, known)
    assert (rotated.first is None) == nested
    with torch.no_grad():
        rotated.z.copy_(torch.randn_like(rotated.z))
    x = torch.randn(5, 2, dtype=torch.float64)
    torch.testing.assert_close(rotated(rotated.inputs(x)), modules.call(model, x, rotated.weights()))


def test_the_user_module_and_the_posterior_stay_as_they_are(known):
    before, state = modules.copies(known.mean), torch.get_rng_state()
    rotated = Rotated(known.context.model, known)
    assert torch.equal(torch.get_rng_state(), state)
    assert [name for name, p in rotated.named_parameters() if p.requires_grad] == ["z"]
    assert all(p.requires_grad for p in known.context.model.parameters())
    assert all(torch.equal(before[name], mean) for name, mean in known.mean.items())


def test_coordinates_are_of_products_alone():
    """A diagonal has its own already, and of a dense matrix they would be as large as the matrix."""
    assert not has_coordinates(Diagonal(torch.ones(3)))
    assert not has_coordinates(Blocks([Dense(torch.eye(2)), Diagonal(torch.ones(3))]))


def test_a_linear_model_ends_at_the_same_mode_in_both(monkeypatch):
    """Under a quadratic loss there is one minimum, whatever the coordinates."""
    x = torch.randn(64, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    y = x @ torch.tensor([[1.0], [-2.0], [0.5]], dtype=torch.float64)
    tasks = [("one", (x[:32], y[:32]), (x, y)), ("two", (x[32:], y[32:] + 1), (x, y + 1))]
    strategy = lifelong.Weighted("kronecker", 1.0, lr=0.05)
    settings = {"epochs": 400, "batch_size": 32, "likelihood": br.likelihoods.Gaussian(1.0)}
    torch.manual_seed(0)
    model = nn.Linear(3, 1).double()
    found = lifelong.run(tasks, strategy, model, **settings)
    monkeypatch.setattr("bayesrule.lifelong.strategies.has_coordinates", lambda precision: False)
    plain = lifelong.run(tasks, strategy, model, **settings)
    assert found.nll[1] == pytest.approx(plain.nll[1], rel=1e-4)
