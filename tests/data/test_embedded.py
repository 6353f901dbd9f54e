import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from bayesrule.data import load_set
from bayesrule.data.embedded import SPLITS, digits, gap, moons, scrambled, sine
from bayesrule.data.splits import hold_out


@pytest.mark.parametrize("name", SPLITS)
def test_a_split_is_a_function_of_the_seed(name):
    a, b, c = load_set(name, seed=1), load_set(name, seed=1), load_set(name, seed=2)
    assert all(torch.equal(s, t) for s, t in zip((*a.train, *a.test), (*b.train, *b.test), strict=True))
    assert name == "and" or not torch.equal(a.train[0], c.train[0])
    assert a.what
    assert a.train[0].dtype == torch.float32
    assert a.ood is None or a.ood.shape[1:] == a.train[0].shape[1:]


def test_digits_are_stratified_and_scrambled():
    split = load_set("digits")
    shares = split.test[1].bincount() / digits()[1].bincount()
    assert ((shares - 0.2).abs() < 0.01).all()
    assert torch.equal(split.ood.sort(1).values, split.test[0].sort(1).values)
    assert (split.ood != split.test[0]).any(1).all()
    assert torch.equal(digits(image=True)[0].flatten(1), digits()[0])


@given(st.integers(0, 1000))
def test_every_quadrant_moves(seed):
    places = torch.arange(4.0).reshape(1, 1, 2, 2).repeat_interleave(3, 2).repeat_interleave(3, 3)
    moved = scrambled(places, seed)
    assert (moved != places).all()
    assert torch.equal(moved.flatten().sort().values, places.flatten().sort().values)


def test_curves_follow_their_equations():
    x, y = sine(5000)
    clean = x + 0.3 * torch.sin(2 * torch.pi * x) + 0.3 * torch.sin(4 * torch.pi * x)
    slope = 1 + 0.6 * torch.pi * torch.cos(2 * torch.pi * x) + 1.2 * torch.pi * torch.cos(4 * torch.pi * x)
    noise = ((y - clean[:, 0]) / slope[:, 0])[slope[:, 0].abs() > 2]
    assert noise.std().item() == pytest.approx(0.02, rel=0.1)
    x, y = gap(5000)
    assert ((x.abs() >= 0.7) & (x.abs() <= 2)).all()
    assert (y - torch.sin(2 * x[:, 0]) - x[:, 0] / 2).std().item() == pytest.approx(0.1, rel=0.1)
    x, y = moons(4, noise=0.0)
    assert torch.allclose((x[y == 0] ** 2).sum(1), torch.ones(2))
    assert torch.allclose(((x[y == 1] - torch.tensor([1.0, 0.5])) ** 2).sum(1), torch.ones(2))


@given(st.lists(st.integers(0, 4), min_size=2, max_size=60), st.floats(0, 0.9), st.integers(0, 100))
def test_hold_out(labels, test, seed):
    y = torch.tensor(labels)
    train, held = hold_out(y, test, seed)
    assert sorted([*train.tolist(), *held.tolist()]) == list(range(len(y)))
    assert set(y[held].tolist()) <= set(y[train].tolist()) == set(labels)
    spare = len(y) - len(set(labels))
    assert len(held) == min(max(round(test * len(y)), int(test > 0)), spare)
    for c in set(labels):
        expected = len(held) / max(spare, 1) * ((y == c).sum().item() - 1)
        assert abs((y[held] == c).sum().item() - expected) <= 1


def test_hold_out_of_reals_and_its_error():
    train, held = hold_out(torch.rand(10), 0.2, seed=0)
    assert (len(train), len(held)) == (8, 2)
    with pytest.raises(ValueError, match=r"test must be a share of the rows, .* got 1\.5"):
        hold_out(torch.rand(10), 1.5, seed=0)
