"""What happens around the squares: blocks, passes, hooks, modes, and what is refused."""

import copy
import gc
import pickle
import weakref
from dataclasses import dataclass

import pytest
import torch
import torch.nn.functional as F
from curvature_networks import Bare, Functional, error, loss_of, networks, normal, reference, tokens
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from bayesrule.curvature import SquaredGradients


def mlp() -> nn.Module:
    return copy.deepcopy(networks()["mlp"][0])


def hooks(model: nn.Module) -> int:
    return sum(len(m._forward_hooks) + len(m._forward_pre_hooks) + len(m._backward_hooks) for m in model.modules())


def test_passes_whose_losses_add_up_to_a_mean_are_one():
    """Four examples and two, each loss with its share of the mean over six; in one block or in two."""
    model, x = mlp(), normal(6, 4)
    squares = SquaredGradients(model)
    with squares:
        (loss_of(model(x[:4])).sum() / 6).backward()
        (loss_of(model(x[4:])).mean() * 2 / 6).backward()
    assert error(squares.mean(), reference(model, x)) < 1e-10
    with squares:
        (loss_of(model(x[:4])).sum() / 6).backward()
    with squares:
        (loss_of(model(x[4:])).sum() / 6).backward()
    assert error(squares.mean(), reference(model, x)) < 1e-10


def test_forward_twice_then_backward_is_two_passes_too():
    model, x = mlp(), normal(6, 4)
    with SquaredGradients(model) as squares:
        ((loss_of(model(x[:4])).sum() + loss_of(model(x[4:])).sum()) / 6).backward()
    assert error(squares.mean(), reference(model, x)) < 1e-10


def test_two_losses_of_one_pass_are_added_before_squaring():
    model, x = mlp(), normal(6, 4)
    with SquaredGradients(model) as squares:
        losses = loss_of(model(x))
        (0.3 * losses.mean()).backward(retain_graph=True)
        (0.7 * losses.mean()).backward()
    assert error(squares.mean(), reference(model, x)) < 1e-10


@pytest.mark.parametrize("passes", [1, 2, 3])
@pytest.mark.parametrize("divided", [True, False])
def test_gradients_may_be_accumulated(passes, divided):
    model, x = mlp(), normal(6, 4)
    with SquaredGradients(model) as squares:
        for part in x.chunk(passes):
            (loss_of(model(part)).mean() / (passes if divided else 1)).backward()
    assert error(squares.mean(loss_scale=1 if divided else passes), reference(model, x)) < 1e-10


@pytest.mark.parametrize("passes", [1, 2])
def test_losses_may_be_sums(passes):
    model, x = mlp(), normal(6, 4)
    with SquaredGradients(model, reduction="sum") as squares:
        for part in x.chunk(passes):
            loss_of(model(part)).sum().backward()
    assert error(squares.mean(), reference(model, x)) < 1e-10


@pytest.mark.parametrize("passes", [1, 2])
def test_squares_are_written_where_they_are_wanted(passes):
    model, x = mlp(), normal(6, 4)
    model[2].requires_grad_(False)
    parameters = list(model.parameters())
    flat = torch.full((sum(p.numel() for p in parameters),), torch.nan, dtype=torch.float64)
    places = [
        part.view(p.shape) for part, p in zip(flat.split([p.numel() for p in parameters]), parameters, strict=True)
    ]
    with SquaredGradients(model) as squares:
        for part in x.chunk(passes):
            (loss_of(model(part)).mean() / passes).backward()
    found = squares.mean(parameters, out=places)
    assert all(a is b for a, b in zip(found, places, strict=True))
    assert error([found[0], found[1], found[4], found[5]], reference(model, x)) < 1e-10
    assert not found[2].any()
    assert not flat.isnan().any()


def test_gradients_are_the_usual_ones_and_the_model_is_left_alone():
    model, x = networks()["cnn"]
    model = copy.deepcopy(model).train()
    plain, watched = copy.deepcopy(model), copy.deepcopy(model)
    loss_of(plain(x)).mean().backward()
    with SquaredGradients(watched) as squares:
        loss_of(watched(x)).mean().backward()
    squares.mean()
    for p, q in zip(plain.parameters(), watched.parameters(), strict=True):
        assert torch.equal(p.grad, q.grad)
    assert all(torch.equal(a, b) for a, b in zip(plain.buffers(), watched.buffers(), strict=True))


@pytest.mark.parametrize("name", ["mlp", "bare parameters", "a recurrent cell twice"])
def test_hooks_are_there_inside_the_block_only_and_copies_are_clean(name):
    model, x = networks()[name]
    squares = SquaredGradients(model)
    for _ in range(3):
        with squares:
            assert hooks(model) > 0
            loss_of(model(x)).mean().backward()
        assert hooks(model) == 0
        squares.mean()
    model.zero_grad()
    for twin in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        assert torch.equal(twin(x), model(x))


def test_copies_of_a_recurrent_network_are_clean():
    model = nn.LSTM(4, 3, batch_first=True)
    with SquaredGradients(model) as squares:
        model(torch.randn(5, 2, 4))[0].square().mean().backward()
    squares.mean()
    assert all(a is b for a, b in zip(model._flat_weights, model.parameters(), strict=True))
    copy.deepcopy(model)


def test_nothing_is_held_after_the_mean():
    model, x = mlp(), normal(6, 4)
    with SquaredGradients(model) as squares:
        loss = loss_of(model(x)).mean()
        loss.backward()
        inside = weakref.ref(squares._recorder.passes[0].uses[1].inputs[0])
    assert inside() is not None
    squares.mean()
    gc.collect()
    assert inside() is None


def test_an_exception_takes_the_hooks_off_and_drops_the_records():
    model, x = mlp(), normal(6, 4)
    squares = SquaredGradients(model)

    def failing() -> None:
        with squares:
            loss_of(model(x)).mean().backward()
            _ = 1 / 0

    with pytest.raises(ZeroDivisionError):
        failing()
    assert hooks(model) == 0
    with pytest.raises(RuntimeError, match=r"no gradients were recorded.*inside the block"):
        squares.mean()
    with squares:
        loss_of(model(x)).mean().backward()
    assert error(squares.mean(), reference(model, x)) < 1e-10


def test_passes_without_gradients_do_not_count():
    model, x = mlp(), normal(6, 4)
    with SquaredGradients(model) as squares:
        with torch.no_grad():
            model(x[:3])
        model(x[:2])
        loss_of(model(x)).mean().backward()
    assert error(squares.mean(), reference(model, x)) < 1e-10


def test_what_autograd_grad_asks_is_no_pass():
    """A loop over the examples inside the block, as a check would have it."""
    model, x = mlp(), normal(6, 4)
    with SquaredGradients(model) as squares:
        wanted = reference(model, x)
        losses = loss_of(model(x))
        wanted_too = reference(model, x)
        torch.autograd.grad(losses.sum(), list(model.parameters()), retain_graph=True)
        losses.mean().backward()
        torch.autograd.grad(loss_of(model(x)).sum(), list(model.parameters()))
    assert error(squares.mean(), wanted) < 1e-10
    assert error(wanted, wanted_too) == 0


def test_gradients_may_be_taken_away_before_the_mean():
    model, x = mlp(), normal(6, 4)
    with SquaredGradients(model) as squares:
        loss_of(model(x)).mean().backward()
        model.zero_grad()
    assert error(squares.mean(), reference(model, x)) < 1e-10


def test_second_derivatives_are_refused():
    model, x = mlp(), normal(6, 4)
    with SquaredGradients(model):
        loss = loss_of(model(x)).mean()
        with pytest.raises(RuntimeError, match=r"layer '4' .* differentiated again .* outside of the block"):
            torch.autograd.grad(loss, list(model.parameters()), create_graph=True)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_places_of_another_dtype_are_copied_to(dtype):
    model, x = mlp(), normal(6, 4)
    places = [torch.empty_like(p, dtype=dtype) for p in model.parameters()]
    with SquaredGradients(model) as squares:
        loss_of(model(x)).mean().backward()
    assert error([p.double() for p in squares.mean(out=places)], reference(model, x)) < 0.02


def test_frozen_and_unused_parameters_have_zeros():
    model, x = mlp(), normal(6, 4)
    model.append(nn.Identity())
    model.spare = nn.Linear(2, 2)
    model.forward = lambda x: model[4](torch.relu(model[2](torch.relu(model[0](x)))))
    model[0].weight.requires_grad_(False)
    with SquaredGradients(model) as squares:
        loss_of(model(x)).mean().backward()
    found = dict(zip(dict(model.named_parameters()), squares.mean(model.parameters()), strict=True))
    assert not found["0.weight"].any()
    assert not found["spare.weight"].any()
    kept = [value for name, value in found.items() if name != "0.weight"]
    assert error(kept, reference(model, x)) < 1e-10


def test_values_of_the_weights_may_change_between_backward_and_mean():
    """An optimiser puts the mean back in the place of a sample before it asks for the squares."""
    model, x = networks()["bare parameters"]
    wanted = reference(model, x)
    with SquaredGradients(model) as squares:
        loss_of(model(x)).mean().backward()
    kept = copy.deepcopy(model.state_dict())
    with torch.no_grad():
        for p in model.parameters():
            p.data.normal_()
    model.train()
    assert error(squares.mean(), wanted) < 1e-10
    assert model.training
    model.load_state_dict(kept)


@pytest.mark.parametrize("name", ["mlp", "cnn", "words", "bare parameters", "a layer twice"])
def test_autocast(name):
    """bfloat16 activations, squares in float32, as exact as the pass was."""
    model, x = networks()[name]
    wanted = reference(model, x)
    single = copy.deepcopy(model).float()
    x = x.float() if x.is_floating_point() else x
    with SquaredGradients(single) as squares:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            loss = loss_of(single(x).float())
        loss.mean().backward()
        with torch.autocast("cpu", dtype=torch.bfloat16):
            found = squares.mean()
    assert {f.dtype for f in found} == {torch.float32}
    assert error([f.double() for f in found], wanted) < 0.1


def test_half_precision_weights_have_squares_in_single():
    model, x = mlp().bfloat16(), normal(6, 4).bfloat16()
    with SquaredGradients(model) as squares:
        loss_of(model(x)).mean().backward()
    assert {f.dtype for f in squares.mean()} == {torch.float32}


@pytest.mark.parametrize("reentrant", [True, False])
def test_checkpointed_parts(reentrant):
    model, x = mlp(), normal(6, 4).requires_grad_()
    wanted = reference(model, x)
    plain = model.forward
    model.forward = lambda x: checkpoint(plain, x, use_reentrant=reentrant)
    with SquaredGradients(model) as squares:
        loss_of(model(x)).mean().backward()
    assert error(squares.mean(), wanted) < 1e-10


class Out(nn.Module):
    """A layer that gives something without tensors to be seen."""

    @dataclass
    class Box:
        value: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.ones(4))

    def forward(self, x: Tensor) -> Box:
        return Out.Box(x * self.w)


def test_wrong_calls_are_refused():
    model, x = mlp(), normal(6, 4)
    with pytest.raises(ValueError, match=r"reduction must be one of \('mean', 'sum'\), not 'max'"):
        SquaredGradients(model, reduction="max")
    squares = SquaredGradients(model)
    with pytest.raises(RuntimeError, match="inside itself"), squares, squares:
        pass
    with squares:
        loss_of(model(x)).mean().backward()
    with pytest.raises(ValueError, match=r"parameter 1 .*\[2\], is not one of the model's"):
        squares.mean([model[0].weight, torch.zeros(2)])
    with pytest.raises(RuntimeError, match="layer '0' \\(Linear\\) is called by itself"), SquaredGradients(model):
        model[0](x)
    with pytest.raises(RuntimeError, match="layer '0' \\(Linear\\) runs under other tensors"), SquaredGradients(model):
        torch.func.functional_call(model, {"0.weight": torch.ones(5, 4, dtype=torch.float64)}, x)
    with pytest.raises(ValueError, match="without a tensor whose first dimension"), SquaredGradients(model):
        model(torch.tensor(1.0))
    box = Out()
    with pytest.raises(ValueError, match=r"the model \(Out\) gives a Box.*must take and"), SquaredGradients(box):
        box(x)


def test_inputs_changed_in_place_are_refused():
    class Careless(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.bias = nn.Parameter(torch.zeros(4))

        def forward(self, x: Tensor) -> Tensor:
            return x + self.bias

    model = nn.Sequential(Careless(), nn.Tanh())
    x = torch.randn(6, 4)
    with SquaredGradients(model) as squares:
        model(x).square().mean().backward()
        x.add_(1)
    with pytest.raises(RuntimeError, match="input of layer '0' \\(Careless\\) was changed in place"):
        squares.mean()


def test_gradients_that_come_too_late_are_refused():
    model, x = mlp(), normal(6, 4)
    with SquaredGradients(model) as squares:
        losses = loss_of(model(x))
        losses[:3].sum().backward(retain_graph=True)
        squares.mean()
        with pytest.raises(RuntimeError, match="after its squares were counted"):
            losses.sum().backward()


def test_terms_of_the_loss_without_examples_are_not_seen():
    """A penalty on the weights is no gradient of an example."""
    model, x = mlp(), normal(6, 4)
    with SquaredGradients(model) as squares:
        (loss_of(model(x)).mean() + sum(p.square().sum() for p in model.parameters())).backward()
    assert error(squares.mean(), reference(model, x)) < 1e-10


def test_likelihoods_of_classes():
    model, x, y = nn.Linear(4, 3).double(), normal(6, 4), tokens(6, count=3)
    with SquaredGradients(model) as squares:
        F.cross_entropy(model(x), y).backward()
    residual = model(x).softmax(1) - F.one_hot(y, 3)
    wanted = [(residual.square().T @ x.square()) / 6, residual.square().mean(0)]
    assert error(squares.mean(), [w.detach() for w in wanted]) < 1e-12


def test_uses_outside_of_a_layer_are_looked_for_when_more_is_trainable():
    model = Functional().double()
    x, squares = tokens(6, 7), SquaredGradients(model)
    model.embed.requires_grad_(False)
    with squares:
        loss_of(model(x)).mean().backward()
    assert error(squares.mean(), reference(model, x)) < 1e-10
    model.embed.requires_grad_(True)
    with pytest.warns(UserWarning, match="layer 'embed'"), squares:
        loss_of(model(x)).mean().backward()
    assert error(squares.mean(), reference(model, x)) < 1e-10


def test_the_collector_follows_freezing():
    model = Bare().double()
    x = normal(6, 3, 4)
    squares = SquaredGradients(model)
    for frozen in (True, False):
        model.front.requires_grad_(not frozen)
        with squares:
            loss_of(model(x)).mean().backward()
        assert error(squares.mean(), reference(model, x)) < 1e-10
