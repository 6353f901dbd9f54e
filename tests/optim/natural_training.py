"""Small networks for VON, OGN, VOGN, Vadam and IVON, and their loop."""

import warnings

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from bayesrule.optim import IVON, OGN, VOGN, VON, Vadam

N = 50
KINDS = {"ivon": IVON, "von": VON, "vogn": VOGN, "ogn": OGN, "vadam": Vadam}
every = pytest.mark.parametrize("kind", KINDS)


def network(seed=0, dtype=torch.float64):
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1)).to(dtype)


def examples(seed=0, n=20, dtype=torch.float64):
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(n, 3, generator=generator, dtype=dtype)
    return x, x.sum(1, keepdim=True).sin()


def build(kind, model, lr=0.05, ess=N, **options):
    extra = {"model": model} if kind in ("vogn", "ogn") else {}
    params = options.pop("params", None) or list(model.named_parameters())
    return KINDS[kind](params, lr=lr, ess=ess, **extra, **options)


def descend(optimizer, loss):
    """Backward as each of them needs it."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Using backward")  # of gradients that can be differentiated: VON's
        loss.backward(create_graph=optimizer.twice)


def train(optimizer, model, steps=5, data=None, draws=1):
    x, y = data or examples(dtype=next(model.parameters()).dtype)
    for _ in range(steps):
        optimizer.zero_grad()
        for _ in range(draws):
            with optimizer.sampled():
                descend(optimizer, F.mse_loss(model(x), y))
        optimizer.step()
    return [p.detach().clone() for p in model.parameters()]
