"""Dropout with one mask for all examples: what makes a module that drops one function."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from bayesrule import modules, tracing
from bayesrule.data import Inputs, inputs
from bayesrule.modules import Parameters

Shape = tuple[int, ...]


class Inconsistent(ValueError):
    """Dropout whose masks cannot be made the same for every example."""


class Masks(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Within this block every mask that torch draws comes from a seed, and is that of one example, repeated.

    All dropout of torch, that within attention and between recurrent layers too, fills a mask by ``bernoulli_``; the
    calls of a pass come in the same order every time. ``alone``: the shapes of the masks in a pass of one example. In
    a pass of B examples one dimension of each is B times as long; a mask is drawn in its shape alone, and repeated
    along that dimension. The mode is the thread's own, and torch's random state is not touched.

    A dispatch mode sees the operation itself, below any layer. Patching ``F.dropout`` would miss attention and
    recurrent layers, which call no Python for it, and would hold for all threads.
    """

    def __init__(self, seed: int, alone: list[Shape] | None = None, check: bool = False) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        # on the CPU, whatever the device: a network's masks are the same on all of them
        self.generator = torch.Generator().manual_seed(seed)
        self.alone, self.check = alone, check
        self.shapes: list[Shape] = []

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # or torch imports its compiler for the first mask, for a second or more

    def __torch_dispatch__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Fill masks, and leave everything else as it is."""
        if func is torch.ops.aten.bernoulli_.float:
            given = _arguments(func, args, kwargs)
            return self._fill(given["self"], given["p"])
        if func is torch.ops.aten.native_dropout.default:  # what accelerators have instead
            given = _arguments(func, args, kwargs)
            x, rate = given["input"], given["p"]
            mask = self._fill(torch.empty_like(x), 1 - rate)
            return x * mask / (1 - rate), mask.bool()
        return func(*args, **(kwargs or {}))

    def _fill(self, mask: Tensor, keep: float) -> Tensor:
        """Draw one example's mask, and repeat it for the batch."""
        call = len(self.shapes)
        self.shapes.append(tuple(mask.shape))
        alone = self.shapes[call] if self.alone is None else self._known(call)
        with tracing.outside():
            drawn = self._drawn(alone, mask.dtype, keep)
        return mask.copy_(repeated(drawn, tuple(mask.shape)))

    def _drawn(self, shape: Shape, dtype: torch.dtype, keep: float) -> Tensor:
        drawn = torch.empty(shape, dtype=dtype)
        if self.check:  # numbers that all differ show every mask that is misaligned; zeros and ones may agree by chance
            return drawn.uniform_(0.5, 1.5, generator=self.generator)
        return drawn.bernoulli_(keep, generator=self.generator)

    def _known(self, call: int) -> Shape:
        """The shape for one example of the mask that is drawn in this call."""
        assert self.alone is not None
        if call >= len(self.alone):
            raise Inconsistent("it drops more often for some batches than for one example")
        return self.alone[call]


def _arguments(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any] | None) -> dict[str, Any]:
    """What an operation is called with, by name.

    torch leaves out every argument that has its default value: ``bernoulli_`` at p = 0.5 comes without p.
    """
    defaults = _defaults(func)
    return defaults | dict(zip(defaults, args, strict=False)) | (kwargs or {})


@cache
def _defaults(func: Any) -> dict[str, Any]:
    """The arguments of an operation by name, in their order; kept, since torch makes the list anew every time."""
    return {argument.name: argument.default_value for argument in func._schema.arguments}


def repeated(mask: Tensor, shape: Shape) -> Tensor:
    """One example's mask for a batch: repeated along the dimension that is longer, if it is a multiple.

    >>> repeated(torch.tensor([[1.0, 0.0]]), (3, 2))
    tensor([[1., 0.],
            [1., 0.],
            [1., 0.]])
    """
    times, longer = [], 0
    whole = len(shape) == mask.ndim
    for own, given in zip(mask.shape, shape, strict=False):
        times.append(given // max(own, 1))
        longer += own != given
        whole = whole and given == own * times[-1]
    # Two longer dimensions would say nothing of which is the examples': attention drops [B·heads, T, T], and a mask of
    # another T is another mask.
    if not whole or longer > 1:
        raise Inconsistent(f"it drops numbers of shape {list(shape)}, for one example {list(mask.shape)}")
    return mask.repeat(times)


def shapes_alone(module: nn.Module, weights: Parameters, x: Inputs) -> list[Shape]:
    """The masks of one example, if the module is the same function of it in any batch; an error that says why not.

    Checked on the first example alone and three times over, under masks that differ everywhere.
    """
    first = inputs.each(lambda t: t[:1], x)
    thrice = inputs.each(lambda t: t[:1].expand(3, *t.shape[1:]).contiguous(), x)
    with _reasons(module):
        with Masks(0, check=True) as masks:
            one = modules.try_call(module, first, weights)
        with Masks(0, masks.shapes, check=True):
            three = modules.try_call(module, thrice, weights)
        near = 1e-4 * float(one.abs().max()) + 1e-6  # kernels add in another order for another batch
        if not torch.allclose(three, one.expand_as(three), rtol=1e-3, atol=near, equal_nan=True):
            raise Inconsistent("an example's output depends on the batch that it is in")
    return masks.shapes


@contextmanager
def _reasons(module: nn.Module) -> Iterator[None]:
    """Say which layers drop in an error."""
    try:
        yield
    except ValueError as error:
        # `modules.try_call` says that the inputs do not fit, and has the reason for its cause
        reason = error if isinstance(error, Inconsistent) else error.__cause__
        if not isinstance(reason, Inconsistent):
            raise
        names = []
        for name, layer in module.named_modules():
            if layer.training:  # only what drops is: see `let_drop`
                names.append(f"{name or 'the module'} ({type(layer).__name__})")
        where = ", ".join(names) or type(module).__name__
        raise Inconsistent(
            f"the dropout of {where} cannot have one mask for all examples: {reason}; give it the examples along one "
            "dimension, the first of a mask that is flattened"
        ) from error
