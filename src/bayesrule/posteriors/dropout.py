"""Dropout left on: a posterior over which parts of one network are at work."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from itertools import repeat
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.modules.conv import _ConvNd
from torch.nn.modules.dropout import _DropoutNd

from bayesrule import modules, seeds
from bayesrule.data import Inputs
from bayesrule.files import Tree
from bayesrule.modules import Parameters
from bayesrule.posteriors.base import Context, Posterior, stack


class Dropout(Posterior):
    """q(w) is the law of the trained weights times random masks (Gal 2016); masks are drawn for each example.

    A module with dropout layers of its own uses those. In one without, the inputs of its hidden linear and
    convolutional layers are dropped with probability ``rate``.
    """

    kind: ClassVar[str] = "dropout"

    def __init__(self, weights: Parameters, rate: float, context: Context) -> None:
        super().__init__(context)
        self.weights, self.rate = weights, rate

    def outputs(self, x: Inputs, samples: int, generator: torch.Generator) -> Tensor:
        """S passes with dropout on and everything else, BatchNorm included, in eval mode."""
        seed = int(torch.randint(2**62, (), generator=generator, device=generator.device))
        network = partial(modules.try_call, self.model, state=self.weights)
        with seeds.untouched(modules.device_of(self.model)), dropping(self.model, self.rate):
            torch.manual_seed(seed)
            return stack(repeat(network, samples), x, samples)

    def state(self) -> Tree:
        """The weights and the rate."""
        return {"weights": self.weights, "rate": self.rate}

    @classmethod
    def from_state(cls, state: Tree, context: Context) -> Dropout:
        """From the weights and the rate."""
        return cls(state["weights"], state["rate"], context)


def own_dropout(module: nn.Module) -> list[nn.Module]:
    """The layers that drop by themselves when they train."""
    found = []
    for layer in module.modules():
        rate = layer.p if isinstance(layer, _DropoutNd) else 0.0
        if isinstance(layer, nn.MultiheadAttention | nn.RNNBase):
            rate = layer.dropout
        if rate > 0:
            found.append(layer)
    return found


def hidden_layers(module: nn.Module) -> list[nn.Module]:
    """The linear and convolutional layers but the first layer of weights, which reads the data."""
    layers = [m for m in module.modules() if isinstance(m, nn.Linear | _ConvNd | nn.Embedding | nn.RNNBase)]
    found: list[nn.Module] = [layer for layer in layers[1:] if isinstance(layer, nn.Linear | _ConvNd)]
    if not found:
        raise ValueError(
            "mc-dropout needs a module with dropout layers, or with a linear or convolutional layer after the first "
            f"layer; {type(module).__name__} has neither"
        )
    return found


@contextmanager
def dropping(module: nn.Module, rate: float) -> Iterator[None]:
    """Within this block the module drops, whether it trains or not; what else it does is left as it is."""
    own = own_dropout(module)
    fast = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)  # it skips the dropout within nn.TransformerEncoderLayer
    before = [(layer, layer.training) for layer in own]
    hooks = []
    for layer in own:
        layer.training = True  # this layer alone: children, such as attention's projections, have nothing to drop
    if not own:
        hooks = [layer.register_forward_pre_hook(_drop(rate)) for layer in hidden_layers(module)]
    try:
        yield
    finally:
        torch.backends.mha.set_fastpath_enabled(fast)
        for hook in hooks:
            hook.remove()
        for layer, training in before:
            layer.training = training


def _drop(rate: float) -> Any:
    def hook(layer: nn.Module, args: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        return (F.dropout(args[0], rate, training=True), *args[1:])

    return hook
