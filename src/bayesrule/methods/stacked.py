"""Networks of linear layers side by side, as products of stacked matrices."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch
from torch import Tensor, nn

from bayesrule.data import Inputs
from bayesrule.models import Tabular
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
        return _chained(module, "", x)
    parts = []
    for name, child in module.named_children():
        if not isinstance(child, Nothing):
            parts.append(_chained(child, f"{name}.", x.flatten(1)))
    return _added_up(parts)


def _added_up(parts: list[Layers | None]) -> Layers | None:
    """The sum of the outputs of several chains, all of which must be there."""
    chains = [part for part in parts if part is not None]
    if not chains or len(chains) < len(parts):
        return None

    def forward(weights: Parameters, x: Tensor) -> Tensor:
        total = chains[0](weights, x)
        for chain in chains[1:]:
            total = total + chain(weights, x)
        return total

    return forward


def _chained(module: nn.Module, prefix: str, x: Tensor) -> Layers | None:
    """The forward of a chain of layers, the names of whose weights begin with a prefix."""
    chain = list(_chain(module, prefix))
    linear = [name for name, layer in chain if isinstance(layer, nn.Linear)]
    owners = {id(layer) for _, layer in chain if isinstance(layer, nn.Linear)}
    if any(layer is None for _, layer in chain) or not linear or len(owners) != len(linear):
        return None
    if not isinstance(chain[0][1], nn.Flatten) and x.ndim != 2:
        return None

    def forward(weights: Parameters, x: Tensor) -> Tensor:
        hidden = x.flatten(1).T.expand(len(next(iter(weights.values()))), -1, -1)
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
