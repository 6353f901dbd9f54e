"""A step of an optimiser reads no number: an accelerator's queue never runs dry for it.

Two means. Fake tensors hold no numbers, so that reading one is an error, and so is a tensor of another device. They are
of the second device and not of cuda, as torch built for the CPU alone aborts in the backward pass of the latter. And
the second device, which holds numbers, refuses to be waited for.
"""

import pytest
import second_device
import torch
from networks import mlp
from torch import Tensor, nn
from torch._subclasses.fake_tensor import DataDependentOutputException, FakeTensorMode
from torch.nn import functional as F

from bayesrule.optim import IVON, OGN, VOGN, VON, Natural, Vadam, YellowFin

KINDS = [IVON, VON, VOGN, OGN, Vadam, YellowFin]
READS = pytest.mark.xfail(
    strict=True,
    raises=(DataDependentOutputException, RuntimeError),
    reason="YellowFin's rates are Python numbers, tuned by the norms of each step's gradients",
)
every = pytest.mark.parametrize("kind", [*KINDS[:-1], pytest.param(YellowFin, marks=READS)], ids=lambda k: k.__name__)


def build(kind, model: nn.Module) -> torch.optim.Optimizer:
    if kind is YellowFin:
        return YellowFin(model.parameters())
    extra = {"model": model} if issubclass(kind, VOGN) else {}
    return kind(model.parameters(), lr=0.1, ess=16, **extra)


def step(optimizer: torch.optim.Optimizer, model: nn.Module, x: Tensor, y: Tensor) -> None:
    def loss() -> Tensor:
        optimizer.zero_grad()
        value = F.cross_entropy(model(x), y)
        value.backward(create_graph=getattr(optimizer, "twice", False))
        return value

    optimizer.step(loss)


@pytest.mark.filterwarnings("ignore:Accessing the data pointer of FakeTensor")  # which VOGN compares, and reads not
@every
def test_a_step_on_fake_tensors_reads_no_number(kind, second):
    with FakeTensorMode():
        with second:
            model, x, y = mlp(), torch.randn(8, 4), torch.zeros(8, dtype=torch.long)
        optimizer = build(kind, model)
        for _ in range(2):
            step(optimizer, model, x, y)
        assert all(p.device == second for p in model.parameters())


@every
def test_a_step_on_the_second_device_does_not_wait(kind, second):
    model, (x, y) = mlp().to(second), (torch.randn(8, 4).to(second), torch.arange(8).remainder(3).to(second))
    optimizer = build(kind, model)
    step(optimizer, model, x, y)  # the first one lays out the state
    with second_device.no_waits():
        step(optimizer, model, x, y)


@pytest.mark.parametrize("kind", KINDS, ids=lambda k: k.__name__)
def test_steps_on_the_second_device_are_those_on_the_cpu(kind, second):
    x, y = torch.randn(8, 4, generator=torch.Generator().manual_seed(0)), torch.arange(8).remainder(3)
    weights = []
    for device in (torch.device("cpu"), second):
        model = mlp().to(device)
        optimizer = build(kind, model)
        for _ in range(3):
            step(optimizer, model, x.to(device), y.to(device))
        weights.append(torch.nn.utils.parameters_to_vector(model.parameters()).detach().cpu())
        if isinstance(optimizer, Natural):
            assert all(s.device == device for s in optimizer.deviations.values())
    torch.testing.assert_close(weights[1], weights[0])
