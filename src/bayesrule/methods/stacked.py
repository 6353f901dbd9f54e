"""Networks of linear layers side by side, as products of stacked matrices."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bayesrule.data import Inputs
from bayesrule.models import Embedded, Tabular, learnt_where
from bayesrule.modules import Parameters

# Layers that do the same to every number, whatever the shape; those of dropout do nothing in eval mode.
ELEMENTWISE = (
    nn.ReLU,
    nn.Tanh,
    nn.SiLU,
    nn.GELU,
    nn.Sigmoid,
    nn.ELU,
    nn.SELU,
    nn.CELU,
    nn.LeakyReLU,
    nn.Softplus,
    nn.Softsign,
    nn.Hardtanh,
    nn.Mish,
    nn.Identity,
)
STILL = (nn.Dropout, nn.AlphaDropout)

Layers = Callable[[Parameters, Tensor], Tensor]
"""From weights ``[C, ...]`` by name and inputs ``[B, ...]`` to outputs ``[C, B, K]``."""


class Nothing(nn.Module):
    """In the place of a part that adds nothing to the outputs."""

    def forward(self, *args: Tensor, **kwargs: Tensor) -> Tensor:
        """Zero."""
        return torch.zeros(())


def stacked(module: nn.Module, x: Inputs) -> Layers | None:
    """The forward of C networks like a module at once, or None: it is no chain of linear and elementwise layers.

    Features come first, ``[C, H, B]``, so that rows of memory are long: products of small matrices and activations
    take two thirds of the time that they take in torch's order, and half of `torch.vmap`'s. A `br.models.Tabular` is
    the sum of two such chains. Layers are as they are in eval mode.

    >>> net = nn.Sequential(nn.Linear(2, 3), nn.Tanh(), nn.Linear(3, 1))
    >>> weights = {name: torch.stack([p, 2 * p]).detach() for name, p in net.named_parameters()}
    >>> outputs = stacked(net, torch.zeros(5, 2))(weights, torch.ones(5, 2))
    >>> outputs.shape, torch.allclose(outputs[0], net(torch.ones(5, 2)), atol=1e-6)
    (torch.Size([2, 5, 1]), True)
    """
    if not isinstance(x, Tensor) or not x.is_floating_point():
        return None
    if type(module) is not Tabular or module._forward_hooks or module._forward_pre_hooks:
        chain = _chained(module, "", x)
        return None if chain is None else lambda weights, x: chain(weights, _for_all(weights, x.flatten(1)))
    return _tabular(module, x)


def _tabular(module: Tabular, x: Tensor) -> Layers | None:
    """The sum of the outputs of both paths, of which the network's may be `Nothing`."""
    linear, network = _chained(module.linear, "linear.", x.flatten(1)), None
    if isinstance(module.network, Embedded):
        network = _chained(module.network.layers, "network.layers.", x.flatten(1))
    elif not isinstance(module.network, Nothing):
        network = _chained(module.network, "network.", x.flatten(1))
    if linear is None or (network is None and not isinstance(module.network, Nothing)):
        return None

    def forward(weights: Parameters, x: Tensor) -> Tensor:
        numbers, rows, known = module.parts(x)
        inputs = _for_all(weights, numbers)
        total = linear(weights, inputs)
        if module.categories:
            total = total + learnt_where(known, _vectors(weights["effects.weight"], rows)).sum(2)
        if network is None:
            return total
        if module.categories:
            vectors = learnt_where(known, _vectors(weights["network.embedding.weight"], rows))
            inputs = torch.cat([inputs, vectors.flatten(2).mT], 1)
        return total + network(weights, inputs)

    return forward


def _for_all(weights: Parameters, x: Tensor) -> Tensor:
    """The same inputs [B, H] for each of C networks, features first: [C, H, B]."""
    return x.T.expand(len(next(iter(weights.values()))), -1, -1)


def _vectors(tables: Tensor, rows: Tensor) -> Tensor:
    """Vectors [C, B, columns, width] of the rows [B, columns] of each of C tables."""
    count, size, width = tables.shape
    first = size * torch.arange(count, device=rows.device)
    return F.embedding(rows + first[:, None, None], tables.reshape(-1, width))


def _chained(module: nn.Module, prefix: str, x: Tensor) -> Layers | None:
    """The forward of a chain of layers, from inputs [C, H, B]; the names of its weights begin with a prefix."""
    chain = list(_chain(module, prefix))
    linear = [name for name, layer in chain if isinstance(layer, nn.Linear)]
    owners = {id(layer) for _, layer in chain if isinstance(layer, nn.Linear)}
    if any(layer is None for _, layer in chain) or not linear or len(owners) != len(linear):
        return None
    if not isinstance(chain[0][1], nn.Flatten) and x.ndim != 2:
        return None

    def forward(weights: Parameters, hidden: Tensor) -> Tensor:
        for name, layer in chain:
            if isinstance(layer, nn.Linear):
                hidden = _linear(name, layer, weights, hidden)
            elif isinstance(layer, ELEMENTWISE):
                hidden = layer(hidden)
        return hidden.mT

    return forward


def _linear(name: str, layer: nn.Linear, weights: Parameters, hidden: Tensor) -> Tensor:
    """W h + b of every network; what is frozen is the same in all."""
    weight = weights.get(f"{name}weight")
    if weight is None:
        weight = layer.weight.expand(len(hidden), -1, -1)
    if layer.bias is None:
        return torch.bmm(weight, hidden)
    bias = weights.get(f"{name}bias")
    if bias is None:
        bias = layer.bias.expand(len(hidden), -1)
    return torch.baddbmm(bias[:, :, None], weight, hidden)


def _chain(module: nn.Module, prefix: str) -> Iterator[tuple[str, nn.Module | None]]:
    """The layers of nested sequences with the prefixes of their parameters; None stands for one that is no such."""
    hooks = (module._forward_hooks, module._forward_pre_hooks)
    if any(hooks):
        yield prefix, None
    elif type(module) is nn.Sequential:
        for name, layer in module._modules.items():  # also those that are there twice
            assert layer is not None
            yield from _chain(layer, f"{prefix}{name}.")
    elif type(module) is nn.Linear or type(module) in ELEMENTWISE or type(module) in STILL or _flattens(module):
        yield prefix, module
    else:
        yield prefix, None


def _flattens(module: nn.Module) -> bool:
    return type(module) is nn.Flatten and (module.start_dim, module.end_dim) == (1, -1)
