"""The layers whose per-example gradients have a closed form: from a layer's input x and its output's gradient g.

| layer | weight | bias |
| --- | --- | --- |
| Linear | Σ_t g_t x_tᵀ over the positions t of the example | Σ_t g_t |
| Conv | Σ_t g_t patch_t(x)ᵀ | Σ_t g_t |
| ConvTranspose | Σ_t x_t patch_t(g)ᵀ | Σ_t g_t |
| Embedding | Σ_t g_t in row x_t | |
| norms | Σ_t g_t x̂_t, x̂ the normalised input | Σ_t g_t |

BatchNorm in training mode normalises with statistics of the batch, so that examples act on each other. What counts as
the gradient of example i is then what flows through its own rows of the output, g_i·x̂_i; they add up to the gradient.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.instancenorm import _InstanceNorm

from bayesrule.curvature.forms import Explicit, GradientForm, Outer, OuterSum, Rows, wide


@dataclass(frozen=True)
class Call:
    """One call of a layer: its input, the gradient of its output, and whether it was in training mode.

    ``kept``: what follows from the input alone, for calls with the same input and other gradients.
    """

    x: Tensor
    g: Tensor
    training: bool
    kept: dict[str, Tensor] = field(default_factory=dict)

    def once(self, name: str, make: Callable[[], Tensor]) -> Tensor:
        """What ``make`` gives, made once for all calls with this input."""
        if name not in self.kept:
            self.kept[name] = make()
        return self.kept[name]


Rule = Callable[[Any, str, Call], GradientForm]
"""The form of the gradients of a layer's parameter by name."""


def _linear(layer: nn.Linear, name: str, call: Call) -> GradientForm:
    g = wide(call.g)
    if name == "bias" and g.ndim > 2:
        return Explicit(g.flatten(1, -2).sum(1))
    if name == "bias":
        return Explicit(g)
    if g.ndim == 2:
        return Outer(g, call.once("x", lambda: wide(call.x)), layer.weight.shape)
    g = g.flatten(1, -2)
    right = call.once("x", lambda: wide(call.x).flatten(1, -2).transpose(1, 2)[:, None])
    return OuterSum(g.transpose(1, 2)[:, None], right, layer.weight.shape)


def _conv(layer: nn.Conv1d | nn.Conv2d | nn.Conv3d, name: str, call: Call) -> GradientForm:
    g = wide(call.g)
    if name == "bias":
        return Explicit(g.flatten(2).sum(2))
    count = g.shape[2:].numel()

    def seen() -> Tensor:
        around: list[int] = layer._reversed_padding_repeated_twice
        mode = "constant" if layer.padding_mode == "zeros" else layer.padding_mode
        x = wide(call.x)
        if any(around):
            x = F.pad(x, around, mode=mode)
        patches = _patches(x, layer, g.shape[2:])
        if layer.groups > 1:
            return _grouped(patches, layer.groups, count)
        # in memory [K, B, T]: as good for products by example, and better for one over all examples
        return patches.movedim(0, g.ndim - 1).reshape(-1, g.shape[0], count).transpose(0, 1)[:, None]

    return OuterSum(_grouped(g, layer.groups, count), call.once("patches", seen), layer.weight.shape)


_Transposed = nn.ConvTranspose1d | nn.ConvTranspose2d | nn.ConvTranspose3d


def _conv_transpose(layer: _Transposed, name: str, call: Call) -> GradientForm:
    g, x = wide(call.g), wide(call.x)
    if name == "bias":
        return Explicit(g.flatten(2).sum(2))
    around: list[int] = []
    for axis in reversed(range(len(layer.kernel_size))):  # F.pad takes the last dimension first
        before = int(layer.padding[axis])
        # what of the uncut output the kernels reach; output_padding may add rows that none of them does
        reach = (x.shape[2 + axis] - 1) * layer.stride[axis] + (layer.kernel_size[axis] - 1) * layer.dilation[axis] + 1
        around += [before, max(0, reach - before - g.shape[2 + axis])]
    right = _patches(F.pad(g, around), layer, x.shape[2:])
    count = x.shape[2:].numel()
    return OuterSum(_grouped(x, layer.groups, count), _grouped(right, layer.groups, count), layer.weight.shape)


def _patches(x: Tensor, layer: nn.Conv2d | _Transposed | nn.Conv1d | nn.Conv3d, positions: torch.Size) -> Tensor:
    """What the kernel sees: [B, C, *kernel, *positions], a view.

    By strides, where F.unfold knows images alone and copies.
    """
    batch, channel, *steps = x.stride()
    inside = [step * int(d) for step, d in zip(steps, layer.dilation, strict=True)]
    between = [step * int(s) for step, s in zip(steps, layer.stride, strict=True)]
    sizes = (x.shape[0], x.shape[1], *layer.kernel_size, *positions)
    return x.as_strided(sizes, (batch, channel, *inside, *between))


def _grouped(x: Tensor, groups: int, positions: int) -> Tensor:
    """[B, C, *kernel, *positions] as [B, groups, C/groups·kernel, T]."""
    return x.reshape(x.shape[0], groups, -1, positions)


def _embedding(layer: nn.Embedding, name: str, call: Call) -> GradientForm:
    index, g = call.x.reshape(call.x.shape[0], -1), wide(call.g)
    g = g.reshape(*index.shape, -1)
    if layer.scale_grad_by_freq:
        g = g / torch.bincount(index.flatten(), minlength=layer.num_embeddings)[index].unsqueeze(-1)
    if layer.padding_idx is not None:
        g = g.masked_fill((index == layer.padding_idx).unsqueeze(-1), 0)
    return Rows(index, g, layer.num_embeddings)


def _over_last(normalise: Callable[[Any, Tensor], Tensor]) -> Rule:
    """Norms whose parameters have the shape of the last dimensions of the input."""

    def rule(layer: nn.Module, name: str, call: Call) -> GradientForm:
        g = wide(call.g)
        if name != "bias":
            g = g * call.once("normal", lambda: normalise(layer, wide(call.x)))
        positions = tuple(range(1, g.ndim - layer.get_parameter(name).ndim))
        if positions:  # the sum over no dimensions would be over all
            g = g.sum(positions)
        return Explicit(g)

    return rule


def _over_channels(normalise: Callable[[Any, Tensor, bool], Tensor]) -> Rule:
    """Norms with one parameter for each channel, dimension 1."""

    def rule(layer: nn.Module, name: str, call: Call) -> GradientForm:
        g = wide(call.g)
        if name != "bias":
            g = g * call.once("normal", lambda: normalise(layer, wide(call.x), call.training))
        if g.ndim > 2:
            g = g.flatten(2).sum(2)
        return Explicit(g)

    return rule


def _layer_norm(layer: nn.LayerNorm, x: Tensor) -> Tensor:
    return F.layer_norm(x, layer.normalized_shape, None, None, layer.eps)


def _rms_norm(layer: nn.RMSNorm, x: Tensor) -> Tensor:
    return F.rms_norm(x, list(layer.normalized_shape), None, layer.eps)


def _group_norm(layer: nn.GroupNorm, x: Tensor, training: bool) -> Tensor:
    return F.group_norm(x, layer.num_groups, None, None, layer.eps)


def _running(layer: _BatchNorm | _InstanceNorm, x: Tensor) -> Tensor:
    """x̂ by the running statistics."""
    assert layer.running_mean is not None
    assert layer.running_var is not None
    return F.batch_norm(x, wide(layer.running_mean), wide(layer.running_var), None, None, False, 0.0, layer.eps)


def _batch_norm(layer: _BatchNorm, x: Tensor, training: bool) -> Tensor:
    if not training and layer.running_mean is not None:
        return _running(layer, x)
    return F.batch_norm(x, None, None, None, None, True, 0.0, layer.eps)


def _instance_norm(layer: _InstanceNorm, x: Tensor, training: bool) -> Tensor:
    if not training and layer.running_mean is not None:
        return _running(layer, x)
    return F.instance_norm(x, None, None, None, None, True, 0.0, layer.eps)


RULES: dict[type[nn.Module], Rule] = {
    nn.Linear: _linear,
    nn.Conv1d: _conv,
    nn.Conv2d: _conv,
    nn.Conv3d: _conv,
    nn.ConvTranspose1d: _conv_transpose,
    nn.ConvTranspose2d: _conv_transpose,
    nn.ConvTranspose3d: _conv_transpose,
    nn.Embedding: _embedding,
    nn.LayerNorm: _over_last(_layer_norm),
    nn.RMSNorm: _over_last(_rms_norm),
    nn.GroupNorm: _over_channels(_group_norm),
    nn.BatchNorm1d: _over_channels(_batch_norm),
    nn.BatchNorm2d: _over_channels(_batch_norm),
    nn.BatchNorm3d: _over_channels(_batch_norm),
    nn.InstanceNorm1d: _over_channels(_instance_norm),
    nn.InstanceNorm2d: _over_channels(_instance_norm),
    nn.InstanceNorm3d: _over_channels(_instance_norm),
}
"""Closed forms by the kind of layer."""


def rule_of(layer: nn.Module) -> Rule | None:
    """The closed form for a layer that computes what torch's own layer of its kind does, or None.

    >>> rule_of(nn.Linear(2, 3)) is not None, rule_of(nn.Bilinear(2, 2, 3)) is None
    (True, True)
    """
    if "forward" in vars(layer) or layer._parameters.get("weight") is None:
        return None
    for kind in type(layer).__mro__:
        if kind in RULES:
            # a subclass that computes something else has no closed form, though it is a Linear by name
            same = all(getattr(type(layer), name, None) is getattr(kind, name, None) for name in _COMPUTE)
            return RULES[kind] if same else None
    return None


_COMPUTE = ("forward", "_conv_forward", "_check_input_dim")


def batched(layer: nn.Module, x: Tensor) -> bool:
    """Whether a layer with a closed form takes x for a batch."""
    if isinstance(layer, nn.Conv1d | nn.Conv2d | nn.Conv3d | _Transposed):
        return x.ndim == layer.weight.ndim
    if isinstance(layer, _InstanceNorm):
        return x.ndim > 2 and x.shape[1] == layer.num_features
    return x.ndim >= (1 if isinstance(layer, nn.Embedding) else 2)


def separates(layer: nn.Module, rule: Rule | None) -> bool:
    """Whether a weight's gradients are Σ_t g_t a_tᵀ, g of the output and a of the input: two Kronecker factors.

    >>> layer = nn.Linear(2, 3)
    >>> separates(layer, rule_of(layer)), separates(nn.LayerNorm(3), rule_of(nn.LayerNorm(3)))
    (True, False)
    """
    return rule is _linear or (rule is _conv and getattr(layer, "groups", 1) == 1)
