"""Noise on outputs in the place of noise on weights.

A layer that is linear in its weights and called once in a pass may run with its mean weights and have the effect of
the weights' noise added to its output. Two ways, for weight deviations σ:

- *local reparameterisation* (Kingma 2015): output + √layer(x²; σ²)·ε with its own ε for every number of the output.
  For an output that uses a weight at one position only (Linear on a matrix, a kernel as large as its input) this is
  the distribution under q; over several positions the marginals are q's, but not the correlations between positions.
- *Flipout* (Wen 2018): output + s·layer(x∘r; σε), with one ε for the batch and random signs r, s for each example.
  Each example sees weights that are distributed as q, whatever the layer.

Both draw noise for each example, where sampled weights share theirs over the batch.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn
from torch.func import functional_call

from bayesrule import modules

Layer: TypeAlias = Callable[[Tensor, Mapping[str, Tensor]], Tensor]
"""A layer as a function of its input and of its weights by name."""
Perturbation: TypeAlias = Callable[[Layer, Tensor, Tensor, Mapping[str, Tensor]], Tensor]
"""The output with noise, from the layer, its input, its output under the mean and its weights' deviations."""

LINEAR = (
    nn.Linear,
    nn.Conv1d,
    nn.Conv2d,
    nn.Conv3d,
    nn.ConvTranspose1d,
    nn.ConvTranspose2d,
    nn.ConvTranspose3d,
)


def local_reparameterisation(layer: Layer, x: Tensor, output: Tensor, std: Mapping[str, Tensor]) -> Tensor:
    """f + √layer(x²; σ²)·ε: each output number is normal with the mean and variance that q gives it."""
    variance = layer(x.square(), {name: s.square() for name, s in std.items()})
    deviation = variance.clamp_min(torch.finfo(variance.dtype).tiny).sqrt()  # √ has no derivative at 0
    return torch.addcmul(output, deviation, torch.randn_like(output))


def flipout(layer: Layer, x: Tensor, output: Tensor, std: Mapping[str, Tensor]) -> Tensor:
    """f + s·layer(x∘r; σε): one perturbation for the batch, turned around by random signs for each example."""
    features = 1 - std["weight"].ndim  # Linear [B, ..., F]: −1; Conv2d [B, C, H, W]: −3
    perturbation = {name: s * torch.randn_like(s) for name, s in std.items()}
    return output + _signs(output, features) * layer(x * _signs(x, features), perturbation)


def _signs(x: Tensor, features: int) -> Tensor:
    """±1 for each example and feature, the same at all positions."""
    shape = [1] * x.ndim
    shape[0] = x.shape[0]  # examples come first; of a lone example this is the features' own dimension
    shape[features] = x.shape[features]
    return x.new_empty(shape).bernoulli_().mul_(2).sub_(1)


ESTIMATORS: dict[str, Perturbation | None] = {
    "weight": None,
    "local-reparam": local_reparameterisation,
    "flipout": flipout,
}


def fast_layers(module: nn.Module) -> dict[str, nn.Module]:
    """The layers whose noise can be moved to their outputs: linear in weights that are theirs alone and trainable."""
    slots: dict[int, int] = {}
    for _, p in module.named_parameters(remove_duplicate=False):
        slots[id(p)] = slots.get(id(p), 0) + 1
    found = {}
    for path, layer in module.named_modules():
        # by the very type: a subclass, or a forward of the layer's own, may compute anything
        if type(layer) not in LINEAR or "forward" in vars(layer) or modules.computed(layer):
            continue
        alone = all(slots[id(p)] == 1 for p in layer.parameters())
        if alone and isinstance(layer.weight, nn.Parameter) and layer.weight.requires_grad:
            found[path] = layer
    return found


class Bare:
    """A layer's settings without its weights and hooks: the layer as a function of its weights."""

    def __init__(self, layer: nn.Module) -> None:
        self.layer = copy.deepcopy(layer).to("meta")
        for hooks in (self.layer._forward_hooks, self.layer._forward_pre_hooks, self.layer._backward_hooks):
            hooks.clear()

    def __call__(self, weights: Mapping[str, Tensor], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Tensor:
        """The output under these weights."""
        return functional_call(self.layer, dict(weights), args, kwargs)
