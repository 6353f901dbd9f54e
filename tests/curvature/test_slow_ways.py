"""Modules that are called again: what they cost is said, what they give is right."""

import copy
import warnings

import pytest
import torch
from curvature_networks import (
    Attention,
    Centred,
    Decides,
    Functional,
    Positions,
    error,
    loss_of,
    normal,
    reference,
    tokens,
)
from torch import Tensor, nn

from bayesrule.curvature import SquaredGradients


def contributions(model: nn.Module, x: Tensor, seed: int) -> list[Tensor]:
    """(1/M) Σ_i (∂ℓ_i/∂p)² for ℓ_i from one pass over the batch, with its random numbers and statistics."""
    torch.manual_seed(seed)
    losses, parameters = loss_of(model(x)), list(model.parameters())
    found = [torch.zeros_like(p) for p in parameters]
    for loss in losses:
        for total, g in zip(found, torch.autograd.grad(loss, parameters, retain_graph=True), strict=True):
            total += g.square() / len(x)
    return found


def squares_of(model: nn.Module, x: Tensor, seed: int = 0) -> list[Tensor]:
    torch.manual_seed(seed)
    with SquaredGradients(model) as squares:
        loss_of(model(x)).mean().backward()
    return squares.mean()


def test_what_cannot_be_vectorised_is_a_loop_and_says_so_once():
    model, x = nn.Sequential(nn.Linear(4, 4), Decides()).double(), normal(6, 4)
    squares = SquaredGradients(model)
    with squares:
        loss_of(model(x)).mean().backward()
    with pytest.warns(
        UserWarning, match=r"layer '1' \(Decides\) cannot be vectorised .* take a loop over the examples"
    ):
        found = squares.mean()
    assert error(found, reference(model, x)) < 1e-8
    with warnings.catch_warnings(), squares:
        warnings.simplefilter("error")
        loss_of(model(x)).mean().backward()
        assert error(squares.mean(), reference(model, x)) < 1e-8


def test_examples_that_act_on_each_other_count_by_their_rows_of_the_output():
    model, x = Centred().double(), normal(6, 4)
    with pytest.warns(UserWarning, match=r"the model \(Centred\) cannot be .* the square of the batch size"):
        found = squares_of(model, x)
    assert error(found, contributions(model, x, 0)) < 1e-8


@pytest.mark.parametrize("seed", [0, 1])
def test_dropout_inside_attention_is_drawn_again(seed):
    """The same numbers are dropped when the layer is called again; torch's own random state goes on as without."""
    model, x = Attention(dropout=0.4).double().train(), normal(6, 3, 4)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = squares_of(model, x, seed)
    after = torch.randn(3)
    assert error(found, contributions(model, x, seed)) < 1e-8
    assert torch.equal(torch.randn(3), after)


def test_dropout_inside_recurrent_layers_is_drawn_again():
    class Last(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.lstm = nn.LSTM(4, 3, num_layers=2, dropout=0.5, batch_first=True)

        def forward(self, x: Tensor) -> Tensor:
            return self.lstm(x)[0]

    model, x = Last().double().train(), normal(6, 5, 4)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = squares_of(model, x, 3)
    assert error(found, contributions(model, x, 3)) < 1e-8


def test_a_weight_used_outside_of_its_layer_is_found():
    model, x = Functional().double(), tokens(6, 7)
    with pytest.warns(UserWarning, match=r"layer 'embed' \(Embedding\) has its weight used outside .* whole model"):
        found = squares_of(model, x)
    assert error(found, reference(model, x)) < 1e-8


@pytest.mark.parametrize("sequence_first", [True, False])
def test_positions_in_the_rows_are_told_apart(sequence_first):
    model, x = Positions(sequence_first).double(), normal(6, 5, 4)
    with pytest.warns(UserWarning, match=r"layer 'layer' \(Linear\) has inputs \[30, 4\] for 6 examples"):
        found = squares_of(model, x)
    assert error(found, reference(model, x)) < 1e-8


def test_what_a_later_pass_brings_up_is_found_in_that_pass():
    class Changes(Positions):
        flat = False

        def forward(self, x: Tensor) -> Tensor:
            x = nn.functional.dropout(x, 0.5)
            return super().forward(x) if self.flat else self.layer(x)

    model, x = Changes(sequence_first=True).double(), normal(6, 5, 4)
    squares, times = SquaredGradients(model), []
    for flat in (False, True, True):
        model.flat = flat
        torch.manual_seed(0)
        with warnings.catch_warnings(record=True) as said, squares:
            warnings.simplefilter("always")
            loss_of(model(x)).mean().backward()
            found = squares.mean()
        assert error(found, contributions(model, x, 0)) < 1e-8
        times.append(sum("whole model" in str(w.message) for w in said))
    assert times == [0, 1, 0]


def test_a_network_with_batch_norm_and_bare_parameters_in_training():
    class Scaled(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norm, self.scale = nn.BatchNorm1d(4), nn.Parameter(torch.ones(4))

        def forward(self, x: Tensor) -> Tensor:
            return self.norm(torch.tanh(x)) * self.scale

    model, x = Scaled().double().train(), normal(6, 4)
    with pytest.warns(UserWarning, match="square of the batch size"):
        found = squares_of(model, x)
    statistics = model.norm.running_mean.clone()
    assert int(model.norm.num_batches_tracked) == 1
    assert error(found, contributions(model, x, 0)) < 1e-8
    assert not torch.equal(statistics, model.norm.running_mean)


def test_outputs_without_examples_are_refused():
    class Penalised(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.w = nn.Parameter(torch.ones(4))

        def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
            return x * self.w, self.w.square().sum()

    model = Penalised()
    with SquaredGradients(model) as squares:
        outputs, penalty = model(torch.randn(6, 4))
        (outputs.square().mean() + penalty).backward()
    with pytest.raises(ValueError, match=r"the model \(Penalised\) gives an output \[\] for 6 examples.*freeze"):
        squares.mean()


def test_a_module_that_never_gives_the_same_output_is_refused():
    class Counts(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.w, self.calls = nn.Parameter(torch.ones(4)), 0

        def forward(self, x: Tensor) -> Tensor:
            self.calls += 1
            return x * self.w * self.calls

    model = Counts()
    with SquaredGradients(model) as squares:
        model(torch.randn(6, 4)).square().mean().backward()
    with pytest.raises(
        RuntimeError, match=r"no per-example gradients for the model \(Counts\): it gives another output"
    ):
        squares.mean()


def test_a_copy_of_the_model_after_the_slow_ways_is_clean():
    model, x = Functional().double(), tokens(6, 7)
    with pytest.warns(UserWarning, match="whole model"):
        squares_of(model, x)
    model.zero_grad()
    twin = copy.deepcopy(model)
    assert torch.equal(twin(x), model(x))
