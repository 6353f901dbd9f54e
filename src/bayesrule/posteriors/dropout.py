"""Dropout left on: a posterior over which parts of one network are at work."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from functools import partial
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.modules.conv import _ConvNd
from torch.nn.modules.dropout import _DropoutNd

from bayesrule import modules
from bayesrule.data import Inputs, inputs
from bayesrule.files import Tree
from bayesrule.modules import Parameters
from bayesrule.posteriors.base import Context, Posterior
from bayesrule.posteriors.masks import Masks, Shape, shapes_alone
from bayesrule.posteriors.networks import Network, Runner
from bayesrule.posteriors.soundness import check_network


class Dropout(Posterior):
    """q(w) is the law of the trained weights times random masks (Gal 2016): one mask a network, for all examples.

    A module with dropout layers of its own uses those. In one without, the inputs of its hidden linear and
    convolutional layers are dropped with probability ``rate``. What a layer of a class that is not torch's drops in
    training, by ``F.dropout(h, p, self.training)``, is dropped either way.
    """

    kind: ClassVar[str] = "dropout"

    def __init__(self, weights: Parameters, rate: float, context: Context) -> None:
        super().__init__(context)
        self.weights, self.rate = weights, rate
        self._runner = Runner(let_drop(modules.shell(self.model), rate), self._output)
        self._functional: list[str] | None = None  # layers that call functions to drop; None: nobody has looked
        self._shapes: dict[tuple[Shape, ...], list[Shape]] = {}

    def networks(self, count: int, generator: torch.Generator) -> Iterator[Network]:
        """The module with dropout on, under masks from a seed of its own; everything else is in eval mode."""
        for seed in torch.randint(2**62, (count,), generator=generator, device=generator.device).tolist():
            yield partial(self._runner.one, seed, seed=seed)

    def _output(self, module: nn.Module, seed: int, x: Inputs) -> Tensor:
        """The masks of an example depend on its shape alone: found out once for each."""
        if self._functional is None:
            self._functional = functional_dropout(module, self.weights, x)
        for name in self._functional:  # of this shell, which may be new
            module.get_submodule(name).training = True
        shape = tuple(tuple(part.shape[1:]) for _, part in inputs.named(x))
        if shape not in self._shapes:
            self._shapes[shape] = shapes_alone(module, self.weights, x)
        with Masks(seed, self._shapes[shape]):
            return modules.try_call(module, x, self.weights)

    def verify(self) -> None:
        """All of the module, and a probability."""
        check_network("the network", self.weights, self.context.model)
        if not 0 < self.rate < 1:
            raise ValueError(f"rate must lie between 0 and 1, not {self.rate}")

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


def functional_dropout(module: nn.Module, weights: Parameters, x: Inputs) -> list[str]:
    """Names of layers that drop when they train by calling a function, found by passes of the first example.

    Only layers of classes that are not torch's can: what torch's own layers drop is known, see `own_dropout`.
    """
    # twice: normalisation that trains refuses a single example
    first = inputs.each(lambda t: t[:1].expand(2, *t.shape[1:]).contiguous(), x)
    wanted = _masks(module, weights, first)
    buffers = {name: weights[name] for name, _ in module.named_buffers() if name in weights}
    found = []
    for name, layer in module.named_modules():
        if layer.training or type(layer).__module__.startswith("torch."):
            continue
        where = f"{name or 'the module'} ({type(layer).__name__})"
        trial = modules.copies(buffers)
        layer.training = True  # this layer alone: its children are layers of their own
        try:
            drops = _masks(module, weights | trial, first) > wanted
        except (ValueError, TypeError) as error:
            drops = False
            message = f"{where} cannot run in training mode: {error}; if it calls F.dropout there, use nn.Dropout"
            warnings.warn(message, stacklevel=2)
        finally:
            layer.training = False
        if not drops:
            continue
        for key, value in buffers.items():
            if not torch.equal(trial[key], value):
                raise ValueError(
                    f"the dropout of {where} cannot be left on alone: in training mode the layer changes {key!r} too; "
                    "use nn.Dropout layers"
                )
        found.append(name)
    return found


def _masks(module: nn.Module, weights: Parameters, x: Inputs) -> int:
    """How many masks a pass draws."""
    with torch.no_grad(), Masks(0) as masks:
        modules.try_call(module, x, weights)
    return len(masks.shapes)


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


def let_drop(module: nn.Module, rate: float) -> nn.Module:
    """Make a module drop from now on, whether it trains or not; what else it does is left as it is. Gives it back."""
    own = own_dropout(module)
    for layer in own:
        layer.training = True  # this layer alone: children, such as attention's projections, have nothing to drop
    for layer in module.modules():
        if own and isinstance(layer, nn.TransformerEncoderLayer):
            layer.training = True  # out of training it takes a shortcut around its dropout
    if not own:
        for layer in hidden_layers(module):
            layer.register_forward_pre_hook(partial(_drop, rate))
    return module


def _drop(rate: float, layer: nn.Module, args: tuple[Any, ...]) -> tuple[Any, ...]:
    return (F.dropout(args[0], rate, training=True), *args[1:])
