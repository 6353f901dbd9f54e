"""Whether a computation is being traced into a program, and what stays out of the program.

A traced tensor has a shape, whose first dimension is not known, and no values. What needs values (checks, searches that
end when they are done) or the number of examples (how many are taken at a time) asks here. What is drawn, or follows
from constants alone, is computed once, `outside` of the program, which then holds the result.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor

_ACTIVE = ContextVar("tracing", default=False)


def active() -> bool:
    """Whether tensors have no values now.

    >>> with on():
    ...     inside = active()
    >>> inside, active()
    (True, False)
    """
    return _ACTIVE.get()


@contextmanager
def on() -> Iterator[None]:
    """Within this block a computation is traced."""
    token = _ACTIVE.set(True)
    try:
        yield
    finally:
        _ACTIVE.reset(token)


@contextmanager
def outside() -> Iterator[None]:
    """Within this block nothing is traced: what it makes is a constant of the program."""
    if not _ACTIVE.get():
        yield
        return
    # torch's compiler, which takes seconds to load, is there already while something is traced
    from torch._subclasses.fake_tensor import unset_fake_temporarily
    from torch.fx.experimental.proxy_tensor import disable_proxy_modes_tracing

    token = _ACTIVE.set(False)
    try:
        with disable_proxy_modes_tracing(), unset_fake_temporarily():
            yield
    finally:
        _ACTIVE.reset(token)


def holds(condition: Tensor) -> bool:
    """Whether a condition holds everywhere; taken for granted where it has no values.

    >>> import torch
    >>> holds(torch.tensor([True, False]))
    False
    """
    return _ACTIVE.get() or bool(condition.all())
