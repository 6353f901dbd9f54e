"""The arithmetic of a step over flat vectors, as it stands or compiled into one pass over memory."""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor

BOUNDS = 1e-30, 1e30  # of h + δ
PIECE = 2**17  # numbers at a time, so that what one operation writes is in the cache for the next


class Passes(NamedTuple):
    """Functions that write to their last argument: `deviate` and `curve`."""

    deviate: Callable[[Tensor, Tensor, Tensor], None]
    curve: Callable[[Tensor, Tensor | float, float, float, Tensor], None]


def deviate(noise: Tensor, precision: Tensor, out: Tensor) -> None:
    """ε/√(h + δ)."""
    torch.mul(noise, precision.rsqrt(), out=out)


def curve(change: Tensor, decay: Tensor, factor: float, weight: float, precision: Tensor) -> None:
    """h + δ ← (h + δ)(1 + e + ½e²), for the relative change e = (1 − β)(ĥ − h)/(h + δ); ``change`` is gone.

    The same as h ← βh + (1 − β)ĥ + ½(1 − β)²(h − ĥ)²/(h + δ), and positive by construction, as 1 + e + ½e² ≥ ½; the
    bounds are for what numbers of finite size cannot hold. ``change`` is (1 − β)ĥ/(h + δ)/factor, ``weight`` 1 − β.
    """
    change.mul_(factor).sub_(weight).addcdiv_(decay, precision, value=weight)
    change.addcmul_(change, change, value=0.5)
    precision.addcmul_(precision, change).clamp_(*BOUNDS)


def _in_pieces(function: Callable[..., None]) -> Callable[..., None]:
    """The function of vectors, a piece of them at a time; other arguments are the same for all pieces."""

    @functools.wraps(function)
    def over_pieces(*arguments: Any) -> None:
        size = len(arguments[-1])
        if size <= PIECE:
            return function(*arguments)
        for start in range(0, size, PIECE):
            part = slice(start, start + PIECE)
            function(*(a[part] if isinstance(a, Tensor) and a.dim() else a for a in arguments))
        return None

    return over_pieces


PLAIN = Passes(_in_pieces(deviate), _in_pieces(curve))


def _compiled(function: Callable[..., None], failed: list[Exception]) -> Callable[..., None]:
    """The function by ``torch.compile``; as it stands once anything has failed, of which there is one warning."""
    quick, plain = torch.compile(function, dynamic=True), _in_pieces(function)  # one program for any length

    @functools.wraps(function)
    def run(*arguments: Any) -> None:
        if failed:
            return plain(*arguments)
        try:
            return quick(*arguments)
        except Exception as error:  # whatever a compiler says: it does so before anything is written
            failed.append(error)
            warnings.warn(_apology(error), stacklevel=2)
            return plain(*arguments)

    return run


@functools.cache
def compiled() -> Passes:
    """The passes by ``torch.compile``, for all optimisers of this process: they are compiled once, when first used."""
    failed: list[Exception] = []
    return Passes(_compiled(deviate, failed), _compiled(curve, failed))


def _apology(error: Exception) -> str:
    said = str(error).strip().partition("\n")[0]
    return (
        f"compile=True has no effect: torch.compile does not work here ({type(error).__name__}: {said}). It needs a "
        "C++ compiler, g++ or what the variable CXX names; the update goes on as it is without"
    )
