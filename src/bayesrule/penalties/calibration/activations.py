"""Activations: by name, as functions to integrate, and where they are in a network."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from typing import TypeAlias

import torch
from torch import Tensor, nn

from bayesrule.naming import unknown
from bayesrule.priors import fans

Function: TypeAlias = Callable[[Tensor], Tensor]
Activation: TypeAlias = str | Function | nn.Module

NAMED: dict[str, Function] = {
    "tanh": torch.tanh,
    "erf": torch.erf,
    "relu": torch.relu,
    "leaky-relu": nn.functional.leaky_relu,
    "elu": nn.functional.elu,
    "selu": nn.functional.selu,
    "gelu": nn.functional.gelu,
    "silu": nn.functional.silu,
    "swish": nn.functional.silu,
    "mish": nn.functional.mish,
    "softplus": nn.functional.softplus,
    "sigmoid": torch.sigmoid,
    "sin": torch.sin,
    "identity": torch.clone,
}

# Layers between a weight and its activation that leave the order of things as it is.
_PASSED = {"dropout", "flatten", "pooling", "batchnorm", "instancenorm", "normalization", "padding", "upsampling"}
_NOT_ALONE = (nn.MultiheadAttention, nn.Softmax, nn.Softmax2d, nn.LogSoftmax, nn.Softmin, nn.GLU)


def function(activation: Activation) -> Function:
    """The activation as a function of float64 numbers, checked to act on each alone.

    >>> function("relu")(torch.tensor([-1.0, 2.0]))
    tensor([0., 2.])
    """
    if isinstance(activation, str):
        if activation not in NAMED:
            raise unknown("activation", activation, NAMED)
        return NAMED[activation]
    if isinstance(activation, type) or not callable(activation):
        raise TypeError(f"activation must be a name, a function or a module such as nn.Tanh(), not {activation!r}")
    found = activation
    if isinstance(activation, nn.Module):
        found = copy.deepcopy(activation).double().eval().requires_grad_(False)
    _check(found, title(activation))
    return found


def title(activation: Activation) -> str:
    """What to call an activation in a message."""
    if isinstance(activation, str):
        return activation
    return getattr(activation, "__name__", type(activation).__name__)


def _check(phi: Function, name: str) -> None:
    x = torch.tensor([-2.0, -0.5, 0.25, 1.5], dtype=torch.float64)
    try:
        y, some = phi(x), phi(x[:2])
    except (RuntimeError, ValueError, IndexError) as error:
        raise ValueError(f"activation {name} cannot take a vector of numbers: {error}") from error
    if isinstance(y, Tensor) and not bool(y.isfinite().all()):
        raise ValueError(f"activation {name} must be finite at all numbers: at {x.tolist()} it is {y.tolist()}")
    if not isinstance(y, Tensor) or y.shape != x.shape or some.shape != x[:2].shape or not torch.equal(y[:2], some):
        raise ValueError(
            f"activation {name} must act on each number alone, as tanh does: on a vector it changes the shape or mixes "
            "the numbers"
        )


def neighbours(model: nn.Module) -> dict[nn.Module, nn.Module]:
    """For each layer with weights, the activation it reads; for one that reads none, the activation it feeds.

    Only where `nn.Sequential` says what comes after what.

    >>> first, last = nn.Linear(2, 3), nn.Linear(3, 1)
    >>> found = neighbours(nn.Sequential(first, nn.Tanh(), nn.Dropout(), last))
    >>> found[first], found[last]
    (Tanh(), Tanh())
    """
    found: dict[nn.Module, nn.Module] = {}
    for chain in _chains(model):
        for place, layer in enumerate(chain):
            activation = _first(chain[:place][::-1]) or _first(chain[place + 1 :])
            if _has_weights(layer) and activation is not None:
                found.setdefault(layer, activation)
    return found


def _chains(module: nn.Module) -> Iterator[list[nn.Module]]:
    """The layers of each outermost Sequential, in order."""
    if isinstance(module, nn.Sequential):
        chain = list(_flat(module))
        yield chain
        for layer in chain:
            yield from _chains(layer)
    else:
        for child in module.children():
            yield from _chains(child)


def _flat(module: nn.Sequential) -> Iterator[nn.Module]:
    for child in module:
        if isinstance(child, nn.Sequential):
            yield from _flat(child)
        else:
            yield child


def _first(layers: list[nn.Module]) -> nn.Module | None:
    """The activation that comes before anything else does that counts."""
    for layer in layers:
        if _is_activation(layer):
            return layer
        if not (isinstance(layer, nn.Identity) or _home(layer) in _PASSED):
            return None
    return None


def _is_activation(layer: nn.Module) -> bool:
    return _home(layer) == "activation" and not isinstance(layer, _NOT_ALONE)


def _home(layer: nn.Module) -> str:
    """The file of torch.nn that a layer is from, or nothing."""
    package, _, file = type(layer).__module__.rpartition(".")
    return file if package == "torch.nn.modules" else ""


def _has_weights(layer: nn.Module) -> bool:
    return any(fans(layer, w) is not None for w in layer.parameters(recurse=False))
