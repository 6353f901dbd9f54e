"""What curvature costs, in epochs of plain training on the same examples, taken in turns."""

import statistics
import time

import pytest
import torch
from torch import nn

from bayesrule.curvature import curvature
from bayesrule.likelihoods import Categorical
from bayesrule.models import build

NETWORKS = {
    "mlp": ({"name": "mlp", "inputs": 784, "outputs": 10, "hidden": [400, 400]}, 128),
    "lenet5": ({"name": "lenet5", "channels": 1, "side": 28, "outputs": 10}, 100),
}
RUNS = {
    "last layer": {"structure": "dense", "subset": "last-layer"},
    "kronecker": {"structure": "kronecker"},
    "diagonal": {"structure": "diagonal"},
    "kronecker, drawn labels": {"structure": "kronecker", "labels": "sampled"},
    "diagonal, drawn labels": {"structure": "diagonal", "labels": "sampled"},
}


def epoch(model, batches):
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    for x, y in batches:
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()


def seconds(call):
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


def cost(name, run, count=20, rounds=5):
    """The median over rounds of the ratio of times."""
    spec, size = NETWORKS[name]
    model, draw = build(spec, seed=0), torch.Generator().manual_seed(0)
    batches = [
        (torch.rand(size, 1, 28, 28, generator=draw), torch.randint(10, (size,), generator=draw)) for _ in range(count)
    ]
    settings = RUNS[run] | {"generator": draw}
    ratios = []
    for _ in range(rounds + 1):
        plain = seconds(lambda: epoch(model, batches))
        ratios.append(seconds(lambda: curvature(model, batches, Categorical(), **settings)) / plain)
    return statistics.median(ratios[1:])


@pytest.mark.slow
@pytest.mark.parametrize("name", NETWORKS)
@pytest.mark.parametrize(
    ("run", "most"),
    [("kronecker", 8), ("diagonal", 8), ("kronecker, drawn labels", 2), ("diagonal, drawn labels", 2)],
)
def test_curvature_in_epochs_of_training(name, run, most):
    assert cost(name, run) <= most


@pytest.mark.slow
def test_a_dense_last_layer_costs_at_most_an_epoch():
    """LeNet-5, 850 parameters in the last layer, with the time to put the matrix together."""
    assert cost("lenet5", "last layer", count=60) <= 1


@pytest.mark.slow
@pytest.mark.xfail(reason="55 products of 401 × 401 for each example are more than all of its training")
def test_and_so_does_a_larger_one():
    """The MLP with 4010 parameters in its last layer. Not met: 4 epochs were seen untrained, 1.1 to 1.4 trained."""
    assert cost("mlp", "last layer", count=60) <= 1
