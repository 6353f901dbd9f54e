"""What a posterior from a file must be, beyond a file that is whole: all that its module needs, and nothing absurd."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from bayesrule import modules
from bayesrule.structures import Structure


def check_network(what: str, found: Mapping[str, Tensor], module: nn.Module) -> None:
    """Refuse tensors that are not all trainable parameters and buffers of a module, in its shapes and dtypes.

    Whatever is missing would be the caller's own, who may have any weights there. Parameters must be finite; buffers
    may be infinite on purpose, as masks are.
    """
    weights = modules.parameters(module)
    wanted = weights | dict(module.named_buffers())
    for name in sorted({*wanted, *found}):
        if name not in found:
            raise ValueError(f"{what} lacks {name!r}, which the model has")
        if name not in wanted:
            raise ValueError(f"{what} has {name!r}, which is no trainable parameter or buffer of the model")
        here, there = found[name], wanted[name]
        if not isinstance(here, Tensor) or here.shape != there.shape or here.dtype != there.dtype:
            raise ValueError(f"{name!r} of {what} is {_described(here)}, and {_described(there)} in the model")
        if name in weights:
            check_finite(f"{name!r} of {what}", here)
        elif bool(here.isnan().any()) or (name.endswith("running_var") and bool((here < 0).any())):
            raise ValueError(f"{name!r} of {what} holds NaN, or is a variance below zero")


def check_gaussian(mean: Mapping[str, Tensor], precision: Structure, module: nn.Module) -> None:
    """Refuse a precision that is not one of the mean's parameters, in their order, in digits that hold theirs.

    A prior's may be zero somewhere, where nothing is believed; that a posterior's has an inverse is another check.
    """
    weights = modules.parameters(module)
    order = [name for name in weights if name in mean]
    if list(mean) != order or not order:
        raise ValueError(f"the mean must be of parameters in the model's order, {order}, not {list(mean)}")
    size = sum(w.numel() for w in mean.values())
    if precision.size != size:
        raise ValueError(f"the precision is one of {precision.size} numbers, and the mean has {size}")
    least = modules.dtype_of(module)
    for tensor in precision.tensors():
        check_finite("the precision", tensor)
        if not tensor.is_floating_point() or torch.promote_types(tensor.dtype, least) != tensor.dtype:
            raise ValueError(f"the precision is in {tensor.dtype}, which does not hold the model's {least}")
    if not bool((precision.diagonal >= 0).all()):
        raise ValueError("the precision has negative numbers on its diagonal")


def check_finite(what: str, tensor: Tensor) -> None:
    """Refuse NaN and infinity."""
    if tensor.is_floating_point() and not bool(tensor.isfinite().all()):
        raise ValueError(f"{what} holds NaN or infinite values")


def _described(value: Any) -> str:
    if isinstance(value, Tensor):
        return f"{list(value.shape)} {value.dtype}"
    return type(value).__name__
