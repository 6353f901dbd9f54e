"""Columns of many categories: a vector for each."""

import pytest
import torch
from torch.nn.functional import one_hot

import bayesrule as br
from bayesrule.methods import Auto, Noise, Plan
from bayesrule.task import Task


def shops(n=240, count=12, seed=0, unknown=0.0):
    """A number, the number of a shop, and what it sold; some shops are not known."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(n, generator=generator)
    shop = 1 + torch.randint(count, (n,), generator=generator)
    effects = torch.randn(1 + count, generator=generator)
    y = x + effects[shop] + 0.2 * torch.randn(n, generator=generator)
    shop = torch.where(torch.rand(n, generator=generator) < unknown, 0, shop)
    return torch.stack([x, shop.float()], 1), y


def drawn(*args, **settings):
    """A network whose weights are far from zero, also those of what is not known."""
    torch.manual_seed(0)
    network = br.models.tabular(*args, hidden=(5,), **settings).double()
    with torch.no_grad():
        for p in network.parameters():
            p.normal_()
    return network


def test_an_effect_is_a_weight_of_a_one_hot_input_and_a_vector_is_a_linear_layer_of_it():
    network = drawn(3, 2, categories=[4, 2])
    codes = torch.tensor([[1, 2], [4, 0], [0, 1], [3, 2]])
    numbers = torch.randn(4, 1, dtype=torch.float64)
    first, second = one_hot(codes[:, 0], 5).double(), one_hot(codes[:, 1], 3).double()
    hot = torch.cat([first, second], 1)
    table = network.network.embedding.weight
    inside = torch.cat([numbers, first @ table[:5], second @ table[5:]], 1)
    wanted = network.linear(numbers) + hot @ network.effects.weight + network.network.layers(inside)
    torch.testing.assert_close(network(torch.cat([numbers, codes], 1)), wanted)


def test_what_is_not_known_starts_at_zero_and_is_not_learnt():
    torch.manual_seed(0)
    network = br.models.tabular(1, 1, hidden=(5,), categories=[3])  # no numbers at all
    x = torch.tensor([[0.0], [2.0]])
    network(x).sum().backward()
    for vectors in (network.effects, network.network.embedding):
        assert (vectors.weight[0] == 0).all()
        assert vectors.weight.grad.abs().sum(1).bool().tolist() == [False, False, True, False]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"inputs": 2, "categories": [3, 0]}, "categories must be whole and at least 1, got 0"),
        ({"inputs": 1, "categories": [3, 3]}, "categories must be of some of the 1 inputs, got 2"),
    ],
)
def test_categories_are_checked(settings, message):
    with pytest.raises(ValueError, match=message):
        br.models.tabular(outputs=1, **settings)


def test_numbers_of_categories_are_not_scaled():
    x, y = shops()
    data = br.data.standardize((x, y), codes=1)
    torch.testing.assert_close(data.x[:, 1], x[:, 1])
    assert abs(float(data.x[:, 0].std(correction=0)) - 1) < 1e-5
    assert data.scaling.inputs.loc.tolist()[1] == 0


def test_networks_side_by_side_learn_what_a_loop_over_them_does():
    ends = []
    for way in ("products", "loop"):
        torch.manual_seed(0)
        network = br.models.tabular(2, 1, hidden=(8,), categories=[12]).double()
        task = Task.create(network, shops(unknown=0.1))
        method = Auto(scales=(1.0,), columns=(1.0,), ridges=(0.5,), lassos=())
        own = method.start(task, Plan(epochs=1, steps_per_epoch=7, batch_size=32), Noise.on(task.device, seed=1))
        for team in own.teams:
            assert team.layers is not None
            if way == "loop":
                team.layers, team.at_once = None, False
        for step, batch in enumerate(task.batches(32, 0)):
            torch.manual_seed(step)
            own.step(batch)
        ends.append(own.tensors())
    for name, wanted in ends[1].items():
        torch.testing.assert_close(ends[0][name], wanted, rtol=1e-7, atol=1e-9)
        if "effects" in name or "embedding" in name:
            assert (wanted[:, 0] == 0).all()


def test_a_category_never_seen_may_be_like_any_of_those_that_were(tmp_path):
    """Of 60 new shops nearly all lie in intervals of 90 %; around the mean of the known ones hardly a half would."""
    x, y = shops(n=300, count=30)
    generator = torch.Generator().manual_seed(5)
    new = torch.randn(60, generator=generator)
    sold = new + torch.randn(60, generator=generator)  # an effect of its own for each
    network = br.models.tabular(2, 1, hidden=(8,), categories=[30])
    method = Auto(scales=(1.2,), columns=(), ridges=(0.7,), lassos=(), folds=3)
    posterior = br.fit(network, br.data.standardize((x, y), codes=1), method, epochs=60)
    at = torch.stack([new, torch.zeros(60)], 1)
    low, high = posterior.predict(at).interval(0.9)
    assert float(((sold > low) & (sold < high)).float().mean()) > 0.8
    known = posterior.predict(x)
    assert float(posterior.predict(at).std.mean()) > 2 * float(known.std.mean())
    posterior.save(tmp_path / "posterior.safetensors")
    again = br.load(tmp_path / "posterior.safetensors", network)
    assert torch.equal(again.predict(at).mean, posterior.predict(at).mean)


@pytest.mark.parametrize("method", ["map", "laplace", "ivon", "bbb", "vogn", "swag", "hmc"])
def test_any_method_learns_vectors(method):
    x, y = shops(n=120, unknown=0.05)
    network = br.models.tabular(2, 1, hidden=(4,), categories=[12])
    posterior = br.fit(network, br.data.standardize((x, y), codes=1), method, epochs=3)
    assert posterior.predict(x[:5]).std.isfinite().all()
