"""Squared gradients against a loop over the examples, for every layer and every way to use one."""

import pytest
import torch
from curvature_networks import call, error, layers, loss_of, networks, normal, reference, rows, tokens
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from bayesrule import curvature
from bayesrule.curvature import SquaredGradients, forms

LAYERS, NETWORKS = layers(), networks()
TABLE = LAYERS | NETWORKS
pytestmark = pytest.mark.filterwarnings("ignore:Using padding='same'")  # torch's own


def squares_of(model: nn.Module, x: object, **settings: object) -> list[Tensor]:
    model.zero_grad()
    with SquaredGradients(model) as squares:
        loss_of(call(model, x)).mean().backward()
    return squares.mean(**settings)


@pytest.mark.parametrize("name", TABLE)
def test_squares_are_those_of_a_loop_over_examples(name):
    model, x = TABLE[name]
    assert error(squares_of(model, x), reference(model, x)) < 1e-8


@pytest.mark.parametrize("name", TABLE)
def test_gradients_of_the_examples_add_up_to_the_gradient(name, monkeypatch):
    """Summed before squaring, they are the gradient that autograd gives; so the pieces are those of a whole."""
    model, x = TABLE[name]
    found: dict[int, Tensor] = {}
    plain = curvature.squares._form

    def summing(use, parameter, repeated):
        form = plain(use, parameter, repeated)
        p = use.owned[parameter]
        found[id(p)] = found.get(id(p), 0) + form.gradients(slice(0, use.examples)).sum(0)
        return form

    monkeypatch.setattr(curvature.squares, "_form", summing)
    squares_of(model, x)
    for p in model.parameters():
        assert error([found.get(id(p), torch.zeros_like(p))], [p.grad]) < 1e-8


@pytest.mark.parametrize("name", ["linear on sequences", "conv2d, all settings", "embedding", "tied embedding"])
def test_little_room_changes_nothing(name, monkeypatch):
    model, x = TABLE[name]
    wanted = squares_of(model, x)
    monkeypatch.setattr(forms, "ROOM", 50)
    assert error(squares_of(model, x), wanted) < 1e-12


@pytest.mark.parametrize("name", ["mlp", "cnn", "words", "tied embedding", "bare parameters", "a layer twice"])
@given(order=st.permutations(range(6)))
def test_the_order_of_the_examples_does_not_matter(name, order):
    model, x = TABLE[name]
    assert error(squares_of(model, rows(x, list(order))), squares_of(model, x)) < 1e-10


@given(batch=st.integers(1, 5), scale=st.floats(0.1, 10), seed=st.integers(0, 100))
def test_squares_scale_with_the_loss_squared_and_are_at_least_the_squared_gradient(batch, scale, seed):
    model, _ = NETWORKS["mlp"]
    x = normal(batch, 4, seed=seed)
    plain = squares_of(model, x)
    for squares, p in zip(plain, model.parameters(), strict=True):  # E[g²] ≥ E[g]²
        assert (squares - p.grad.square() > -1e-12).all()
    model.zero_grad()
    with SquaredGradients(model) as collector:
        (scale * loss_of(model(x)).mean()).backward()
    assert error(collector.mean(loss_scale=scale), plain) < 1e-10


def test_frequencies_of_tokens_scale_what_the_examples_give():
    """`scale_grad_by_freq` divides by a count over the batch: contributions are divided by the same."""
    layer = nn.Embedding(5, 3, scale_grad_by_freq=True).double()
    index = tokens(6, 7)
    (found,) = squares_of(layer, index)
    out = layer.weight.detach()[index].requires_grad_()
    (g,) = torch.autograd.grad(loss_of(out).mean(), out)
    g = g / torch.bincount(index.flatten())[index].unsqueeze(-1)
    each = torch.stack([torch.zeros(5, 3, dtype=torch.float64).index_add_(0, index[i], g[i]) for i in range(6)])
    assert error([found], [6 * each.square().sum(0)]) < 1e-10
    assert error([each.sum(0)], [layer.weight.grad]) < 1e-10


@pytest.mark.parametrize("layer", [nn.BatchNorm2d(4), nn.BatchNorm2d(4, track_running_stats=False)])
def test_batch_norm_in_training_gives_each_example_what_flows_through_its_rows(layer):
    """g_i·x̂_i summed over positions, x̂ by the statistics of the batch; running statistics move by one pass only."""
    layer, x = layer.double().train(), normal(6, 4, 3, 2)
    found = squares_of(layer, x)
    centred = (x - x.mean((0, 2, 3), keepdim=True)) / (x.var((0, 2, 3), keepdim=True, correction=0) + layer.eps).sqrt()
    out = (centred * layer.weight.detach()[:, None, None] + layer.bias.detach()[:, None, None]).requires_grad_()
    (g,) = torch.autograd.grad(loss_of(out).mean(), out)
    weight, bias = (g * centred).sum((2, 3)), g.sum((2, 3))
    assert error(found, [6 * weight.square().sum(0), 6 * bias.square().sum(0)]) < 1e-8
    assert error([weight.sum(0), bias.sum(0)], [layer.weight.grad, layer.bias.grad]) < 1e-8
    assert not layer.track_running_stats or int(layer.num_batches_tracked) == 1


def test_means_over_positions_belong_to_the_example():
    """cross_entropy over pixels: the mean over examples of the mean over pixels."""
    model, x, y = nn.Conv2d(1, 3, 3, padding=1).double(), normal(6, 1, 4, 4), tokens(6, 4, 4, count=3)
    with SquaredGradients(model) as squares:
        nn.functional.cross_entropy(model(x), y).backward()
    wanted = [torch.zeros_like(p) for p in model.parameters()]
    for i in range(6):
        loss = nn.functional.cross_entropy(model(x[i : i + 1]), y[i : i + 1])
        for total, g in zip(wanted, torch.autograd.grad(loss, list(model.parameters())), strict=True):
            total += g.square() / 6
    assert error(squares.mean(), wanted) < 1e-10
