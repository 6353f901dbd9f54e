"""Many processes that learn one thing, as ``torchrun`` starts them: who am I, how many are we, and averages over all.

Each process learns from its own share of every batch, with noise of its own; gradients and curvature are averaged, so
that all hold the same posterior. Without a process group there is one process, and nothing here does anything.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

_GROUPS = itertools.count()
"""Numbers the groups of this process. All processes run the same script, and so have the same number for a group."""


def rank() -> int:
    """The number of this process, from 0."""
    return dist.get_rank() if count() > 1 else 0


def count() -> int:
    """How many processes there are."""
    if not (dist.is_available() and dist.is_initialized()):
        return 1
    return dist.get_world_size()


@contextmanager
def joined() -> Iterator[None]:
    """A process group within this block, if ``torchrun`` started several processes and there is none yet.

    A script can have many such blocks, one after the other, as with several fits. No process leaves a block before all
    have come to its end. An error in one of them closes its connections at once, which is an error in all that wait for
    it, rather than a wait without end.
    """
    if (dist.is_available() and dist.is_initialized()) or int(os.environ.get("WORLD_SIZE", "1")) == 1:
        yield
        return
    backend = "gloo"
    if torch.cuda.is_available():
        # "cuda" without a number is then a GPU of this process's own.
        torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", "0")) % torch.cuda.device_count())
        backend = "cpu:gloo,cuda:nccl"
    store, own, total = _meeting_point()
    # Each group has keys of its own: under those of the group before, processes would find addresses that are closed.
    own_keys = dist.PrefixStore(f"bayesrule/{next(_GROUPS)}", store)  # type: ignore[attr-defined]
    dist.init_process_group(backend, store=own_keys, rank=own, world_size=total)
    try:
        yield
        any_of(False)  # who is first at the end waits: the others may still read what it has sent
    finally:
        dist.destroy_process_group()


@cache
def _meeting_point() -> tuple[Any, int, int]:
    """Where the processes find each other, the rank of this one and how many they are, as ``torchrun`` tells.

    Kept until the process ends: one of the processes may serve it, and others still be reading.
    """
    from torch.distributed.rendezvous import rendezvous  # not in a torch that was built without torch.distributed

    store, own, total = next(rendezvous("env://"))
    return store, own, total


def any_of(flag: bool) -> bool:
    """Whether some process says so: what one decides alone would leave the others waiting.

    >>> any_of(False)
    False
    """
    if count() == 1:
        return flag
    message = torch.tensor(float(flag))
    dist.all_reduce(message)
    return bool(message)


def average(tensors: Sequence[Tensor]) -> None:
    """Put the mean over all processes into each tensor; in one message for each dtype.

    >>> average([torch.ones(2)])
    """
    if count() == 1:
        return
    for dtype in dict.fromkeys(t.dtype for t in tensors):  # in an order that all processes share
        alike = [t for t in tensors if t.dtype == dtype]
        message = torch.cat([t.reshape(-1) for t in alike])
        dist.all_reduce(message)
        message /= count()
        start = 0
        for t in alike:
            t.copy_(message[start : start + t.numel()].view_as(t))
            start += t.numel()
