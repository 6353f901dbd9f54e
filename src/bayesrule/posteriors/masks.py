"""Dropout with one mask for all examples: what makes a module that drops one function."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from bayesrule import modules
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
    """

    def __init__(self, seed: int, alone: list[Shape] | None = None, check: bool = False) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.generator, self.alone, self.check = torch.Generator().manual_seed(seed), alone, check
        self.shapes: list[Shape] = []

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # or torch imports its compiler for the first mask, for a second or more

    def __torch_dispatch__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Fill masks, and leave everything else as it is."""
        if func is torch.ops.aten.bernoulli_.float:
            return self._fill(*args[:2])
        if func is torch.ops.aten.native_dropout.default:  # what accelerators have instead
            x, rate, _ = args
            mask = self._fill(torch.empty_like(x), 1 - rate)
            return x * mask / (1 - rate), mask.bool()
        return func(*args, **(kwargs or {}))

    def _fill(self, mask: Tensor, keep: float) -> Tensor:
        self.shapes.append(tuple(mask.shape))
        alone = self.shapes[-1] if self.alone is None else self._known(len(self.shapes) - 1)
        drawn = torch.empty(alone, dtype=mask.dtype)
        if self.check:  # any numbers show a mask in the wrong place; zeros and ones may hide it
            drawn.uniform_(0.5, 1.5, generator=self.generator)
        else:
            drawn.bernoulli_(keep, generator=self.generator)
        return mask.copy_(repeated(drawn, tuple(mask.shape)))

    def _known(self, call: int) -> Shape:
        assert self.alone is not None
        if call >= len(self.alone):
            raise Inconsistent("it drops in more places for some batches than for one example")
        return self.alone[call]


def repeated(mask: Tensor, shape: Shape) -> Tensor:
    """One example's mask for a batch: repeated along the dimension that is longer, if it is a multiple.

    >>> repeated(torch.tensor([[1.0, 0.0]]), (3, 2))
    tensor([[1., 0.],
            [1., 0.],
            [1., 0.]])
    """
    longer = [d for d, (own, given) in enumerate(zip(mask.shape, shape, strict=False)) if own != given]
    if len(shape) != mask.ndim or len(longer) > 1 or any(shape[d] % max(mask.shape[d], 1) for d in longer):
        raise Inconsistent(f"it drops numbers of shape {list(shape)}, for one example {list(mask.shape)}")
    return mask.repeat([given // max(own, 1) for own, given in zip(mask.shape, shape, strict=True)])


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
        near = 1e-4 * float(one.abs().max()) + 1e-6
        if not torch.allclose(three, one.expand_as(three), rtol=1e-3, atol=near, equal_nan=True):
            raise Inconsistent("an example's output depends on the batch that it is in")
    return masks.shapes


@contextmanager
def _reasons(module: nn.Module) -> Iterator[None]:
    """Say which layers drop in an error."""
    try:
        yield
    except ValueError as error:
        reason = error if isinstance(error, Inconsistent) else error.__cause__
        if not isinstance(reason, Inconsistent):
            raise
        names = [f"{name or 'the module'} ({type(m).__name__})" for name, m in module.named_modules() if m.training]
        raise Inconsistent(
            f"the dropout of {', '.join(names) or type(module).__name__} cannot have one mask for all examples: "
            f"{reason}; give it the examples along one dimension, the first of a mask that is flattened"
        ) from error
