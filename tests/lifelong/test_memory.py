"""Which examples are kept."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from bayesrule.lifelong.memory import RULES, Memory, _quotas, choose, outputs_of
from bayesrule.likelihoods import Categorical


@pytest.fixture
def task():
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(60, 3, generator=generator)
    return x, torch.tensor([0] * 40 + [1] * 18 + [2] * 2)


def network():
    torch.manual_seed(0)
    return nn.Linear(3, 3)


def kept(rule, count, task, seed=0):
    return choose(rule, count, network(), task, Categorical(), torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("rule", RULES)
def test_each_class_has_its_share_and_no_example_is_kept_twice(rule, task):
    rows = kept(rule, 20, task)
    assert len(set(rows.tolist())) == 20
    assert torch.bincount(task[1][rows]).tolist() == [9, 9, 2]


@pytest.mark.parametrize("rule", RULES)
def test_the_same_seed_keeps_the_same(rule, task):
    assert torch.equal(kept(rule, 10, task), kept(rule, 10, task))


def test_relevance_keeps_those_of_which_the_network_is_least_sure(task):
    p = outputs_of(network(), task[0]).softmax(1)
    unsure = (p * (1 - p)).sum(1)
    rows = set(kept("relevance", 20, task).tolist())
    for label in (0, 1):
        own = [k for k in range(60) if task[1][k] == label]
        inside = [float(unsure[k]) for k in own if k in rows]
        outside = [float(unsure[k]) for k in own if k not in rows]
        assert min(inside) >= max(outside)


@pytest.mark.parametrize("seed", range(3))
def test_k_centre_covers_within_twice_the_best_radius(seed):
    """Greedy choice is within a factor two of the best (Gonzalez 1985); six points, three kept, all choices tried."""
    x = torch.randn(6, 2, generator=torch.Generator().manual_seed(seed))
    task = x, torch.zeros(6, dtype=torch.long)
    at = outputs_of(network := nn.Identity(), x)
    rows = choose("k-centre", 3, network, task, Categorical(), torch.Generator().manual_seed(seed))
    distances = torch.cdist(at, at)
    best = min(
        float(distances[:, list(pick)].min(1).values.max()) for pick in torch.combinations(torch.arange(6), 3).tolist()
    )
    assert float(distances[:, rows].min(1).values.max()) <= 2 * best + 1e-6


@given(st.lists(st.integers(1, 30), min_size=1, max_size=8), st.data())
def test_quotas_are_as_equal_as_the_sizes_allow(sizes, data):
    count = data.draw(st.integers(1, sum(sizes)))
    shares = _quotas(sizes, count)
    assert sum(shares) == count
    assert all(0 <= share <= size for share, size in zip(shares, sizes, strict=True))
    unfilled = [share for share, size in zip(shares, sizes, strict=True) if share < size]
    if unfilled:  # none has more than one above any that could still take more
        assert max(shares) <= min(unfilled) + 1


def test_bad_input(task):
    with pytest.raises(ValueError, match="unknown rule of a memory 'randon': did you mean 'random'"):
        kept("randon", 3, task)
    for count in (0, 61):
        with pytest.raises(ValueError, match=f"from 1 to all 60 examples of a task, not {count}"):
            kept("random", count, task)


def test_bytes():
    assert Memory(((torch.zeros(2, 3), torch.zeros(2, dtype=torch.long)),)).bytes == 2 * 3 * 4 + 2 * 8
