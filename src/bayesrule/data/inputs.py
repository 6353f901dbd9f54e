"""What a model takes: one tensor, a tuple or a dict of tensors, the first dimension being the example.

The model is called as ``model(x)``, ``model(*x)`` or ``model(**x)``. These functions are the only place that tells the
three kinds apart.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TypeAlias, cast

import numpy as np
import torch
from torch import Tensor

from bayesrule import tracing

Inputs: TypeAlias = Tensor | tuple[Tensor, ...] | dict[str, Tensor]
LINE = 64  # bytes of a line of the cache


def each(f: Callable[..., Tensor], x: Inputs, *others: Inputs) -> Inputs:
    """``f`` of the corresponding tensors of inputs of one kind.

    >>> each(torch.add, {"a": torch.ones(2)}, {"a": torch.ones(2)})
    {'a': tensor([2., 2.])}
    """
    if isinstance(x, Tensor):
        return f(x, *others)
    if isinstance(x, tuple):
        return tuple(f(*parts) for parts in zip(x, *cast("tuple[tuple[Tensor, ...], ...]", others), strict=True))
    rest = cast("tuple[dict[str, Tensor], ...]", others)
    return {key: f(part, *(other[key] for other in rest)) for key, part in x.items()}


def named(x: Inputs) -> Iterator[tuple[str, Tensor]]:
    """The tensors of ``x`` with the names that errors give them: ``X``, ``X[1]`` or ``X['image']``."""
    if isinstance(x, Tensor):
        yield "X", x
    elif isinstance(x, tuple):
        for index, part in enumerate(x):
            yield f"X[{index}]", part
    else:
        for key, part in x.items():
            yield f"X[{key!r}]", part


def length(x: Inputs) -> int:
    """How many examples there are; an error if the parts disagree."""
    sizes: dict[str, int | None] = {}
    for name, part in named(x):
        sizes[name] = None
        if part.ndim:
            sizes[name] = part.shape[0]
    if not sizes or None in sizes.values():
        raise ValueError(f"X must have the examples along its first dimension, got {sizes or 'no tensors'}")
    first = next(iter(sizes.values()))
    if any(size != first for size in sizes.values()):
        raise ValueError(f"all parts of X must have the same number of examples, got {sizes}")
    return cast(int, first)


def block(x: Inputs, most: int = 1024, size: int = 2**25) -> int:
    """How many examples like these to pass through a network at a time: ``most``, or what ``size`` bytes hold.

    >>> block(torch.zeros(4, 3, 1000, 1000))
    2
    """
    each_example = sum(part[:1].numel() * part.element_size() for _, part in named(x))
    return max(1, min(most, size // max(each_example, 1)))


def take(x: Inputs, index: Tensor) -> Inputs:
    """The examples of ``x`` at ``index``.

    >>> take((torch.arange(3), torch.eye(3)), torch.tensor([2]))
    (tensor([2]), tensor([[0., 0., 1.]]))
    """
    return each(lambda t: t.index_select(0, index.to(t.device)), x)


def to(x: Inputs, dtype: torch.dtype, device: torch.device | None = None) -> Inputs:
    """``x`` on a device, None for where it is, with its floating tensors in ``dtype``; indices stay whole numbers.

    >>> to((torch.ones(2), torch.arange(2)), torch.float64, torch.device("cpu"))
    (tensor([1., 1.], dtype=torch.float64), tensor([0, 1]))
    """
    return each(lambda t: t.to(device, dtype if t.is_floating_point() else t.dtype), x)


def join(parts: Sequence[Inputs]) -> Inputs:
    """Inputs of one kind, one after the other."""
    return each(lambda *tensors: torch.cat(tensors), *parts)


def duplicate(t: Tensor) -> Tensor:
    """A copy that others may write into, at the same place in a line of the cache.

    What kernels give depends, in the last bits, on where in such a line the numbers start: at the place of a plain
    copy a network would not give quite the outputs that it gives for ``t``.

    >>> t = torch.arange(6.0)[1:]
    >>> other = duplicate(t)
    >>> torch.equal(other, t), (other.data_ptr() - t.data_ptr()) % LINE
    (True, 0)
    """
    spread = 0 not in t.stride() and t.numel() > 0  # an expanded tensor has one number in several places
    elsewhere = t.device.type != "cpu" or tracing.active()
    if elsewhere or not spread or t.requires_grad or torch._C._functorch.is_functorch_wrapped_tensor(t):
        return t.clone()
    span = 1 + sum((size - 1) * step for size, step in zip(t.shape, t.stride(), strict=True))
    # memory of numpy's: within a derivative torch's own tensors do not tell where they are
    memory = np.empty(span * t.element_size() + LINE, np.uint8)
    first = (t.data_ptr() - memory.ctypes.data) % LINE
    numbers = torch.from_numpy(memory[first : first + span * t.element_size()]).view(t.dtype)
    return numbers.as_strided(t.shape, t.stride()).copy_(t)
