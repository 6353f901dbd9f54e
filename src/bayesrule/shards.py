"""Parameters of which each process holds a share: ``torch.distributed.fsdp.fully_shard`` makes them, as `DTensor`.

A whole tensor is its own share everywhere here, so that who calls these needs to know of none.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor


def layout(p: Tensor) -> tuple[Any, ...] | None:
    """The processes and the way in which a tensor is spread over them; None if it is whole.

    >>> layout(torch.zeros(2)) is None
    True
    """
    # Where nobody has loaded that module nothing is spread, and loading it takes half a second.
    module = sys.modules.get("torch.distributed.tensor")
    if module is None or not isinstance(p, module.DTensor):
        return None
    return p.device_mesh, p.placements


def number(p: Tensor) -> int | None:
    """Which share of a tensor this process holds; None if it is whole. Replicas of a share have the same number."""
    spread = layout(p)
    if spread is None:
        return None
    mesh, placements = spread
    found = 0
    for size, own, placement in zip(mesh.shape, mesh.get_coordinate(), placements, strict=True):
        if placement.is_shard():
            found = found * size + own
    return found


def local(p: Tensor) -> Tensor:
    """What this process holds of a tensor, in the same memory."""
    if layout(p) is None:
        return p
    with torch.no_grad():
        share: Tensor = p.to_local()  # type: ignore[attr-defined]
    return share


def like(p: Tensor, share: Tensor) -> Tensor:
    """A tensor of which this process holds ``share``, in its memory, spread as ``p`` is."""
    spread = layout(p)
    if spread is None:
        return share
    from torch.distributed.tensor import DTensor

    mesh, placements = spread
    return DTensor.from_local(share, mesh, placements, run_check=False, shape=p.shape, stride=p.stride())


def part(whole: Tensor, p: Tensor) -> Tensor:
    """The share of a whole tensor, which all processes know, where ``p`` has its own."""
    spread = layout(p)
    if spread is None:
        return whole
    if layout(whole) is not None:
        return local(whole)
    from torch.distributed.tensor import distribute_tensor

    mesh, placements = spread
    return local(distribute_tensor(whole.contiguous(), mesh, placements))


def total(own: Tensor, p: Tensor) -> float:
    """The sum over all shares of a number that each process has of its share of ``p``."""
    spread = layout(p)
    if spread is None:
        return float(own)
    from torch.distributed.tensor import DTensor, Partial

    mesh, placements = spread
    summands = [Partial() if placement.is_shard() else placement for placement in placements]
    return float(DTensor.from_local(own, mesh, summands, run_check=False).full_tensor())


def whole(p: Tensor) -> Tensor:
    """All of a tensor; processes that hold shares of it have to ask for it together."""
    return p if layout(p) is None else p.full_tensor()  # type: ignore[attr-defined]


def any_of(tensors: Iterable[Tensor]) -> bool:
    """Whether one of them is a share.

    >>> any_of([torch.zeros(2)])
    False
    """
    return any(layout(p) is not None for p in tensors)
