"""The arithmetic of a step in pieces, compiled, and where nothing can be compiled."""

import copy
import warnings

import pytest
import torch
from torch import nn

from bayesrule.optim import IVON, VOGN, passes


@pytest.fixture
def fresh():
    """Compiled functions of this test's own."""
    passes.compiled.cache_clear()
    yield
    passes.compiled.cache_clear()


def trained(kind=IVON, steps=20, **settings):
    """Parameters and deviations of a network of more than 10 000 weights, whose noise is turned."""
    torch.manual_seed(0)
    model, x = nn.Sequential(nn.Linear(100, 110), nn.Tanh(), nn.Linear(110, 2)), torch.randn(16, 100)
    if kind is VOGN:
        settings["model"] = model
    optimizer = kind(model.parameters(), lr=0.1, ess=100, betas=(0.9, 0.99), tempering=10, **settings)
    for _ in range(steps):
        with optimizer.sampled():
            model(x).square().mean().backward()
        optimizer.step()
    return [p.detach() for p in model.parameters()] + list(optimizer.deviations.values()), optimizer


def test_pieces_are_the_whole(monkeypatch):
    whole, _ = trained()
    monkeypatch.setattr(passes, "PIECE", 1000)
    pieces, _ = trained()
    assert all(torch.equal(a, b) for a, b in zip(whole, pieces, strict=True))


def test_without_a_compiler_the_update_goes_on_with_one_warning(fresh, monkeypatch):
    def broken(function, **_):
        def run(*_):
            raise RuntimeError("no C++ compiler\nand a long story")

        return run

    monkeypatch.setattr(torch, "compile", broken)
    plain, _ = trained()
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        found, _ = trained(compile=True)
        trained(compile=True)  # another optimiser of the process says nothing
    ours = [str(each.message) for each in said if "compile" in str(each.message)]
    assert len(ours) == 1
    assert "RuntimeError: no C++ compiler). It needs a C++ compiler" in ours[0]
    assert all(torch.equal(a, b) for a, b in zip(plain, found, strict=True))


def test_a_step_takes_one_vector_beside_its_state_and_its_noise():
    """From several draws one more."""
    flat = trained()[1]._flats[0]
    assert len(flat._rooms) == 1
    assert flat.noise is not None
    assert trained(refresh=1)[1]._flats[0].noise is None


def test_gradients_are_let_go_of_before_the_next_pass():
    _, optimizer = trained(steps=2)
    with optimizer.sampled():
        assert not optimizer._flats[0].left
        assert not optimizer._flats[0]._means


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of what torch.compile loads
@pytest.mark.parametrize("kind", [IVON, VOGN])
def test_a_compiled_update_has_the_same_numbers(fresh, kind):
    """But for rounding; and without a warning, so it was compiled."""
    plain, _ = trained(kind)
    found, optimizer = trained(kind, compile=True)
    for a, b in zip(plain, found, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-6)
    again = copy.deepcopy(optimizer)
    assert again.compile
