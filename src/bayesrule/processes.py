"""Many processes that learn one thing, as ``torchrun`` starts them: who am I, how many are we, and averages over all.

Each process learns from its own share of every batch, with noise of its own; gradients and curvature are averaged, so
that all hold the same posterior if they were given the same, which they compare before they begin. Without a process
group there is one process, and nothing here does anything.
"""

from __future__ import annotations

import itertools
import os
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import cache
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

_GROUPS = itertools.count()
"""Numbers the groups of this process. All processes run the same script, and so have the same number for a group."""


class Disagreement(ValueError):
    """What must be the same in all processes is not, or one of them has failed. All are told, and none waits."""


def rank() -> int:
    """The number of this process, from 0."""
    return dist.get_rank() if count() > 1 else 0


def say(line: str) -> None:
    """A line for people, on stderr; of many processes the first one speaks."""
    if rank() == 0:
        print(line, file=sys.stderr, flush=True)


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


def check_alike(facts: Mapping[str, str], advice: Mapping[str, str]) -> None:
    """Refuse, in all processes, facts that are not the same in all; ``advice`` is what to do about one, by its name.

    >>> check_alike({"seed": "3"}, {})
    """
    everyone = _told(dict(facts))
    for name in dict.fromkeys(name for each in everyone for name in each):  # in an order that all processes share
        values = [each.get(name, "nothing") for each in everyone]
        if len(set(values)) > 1:
            first = next(number for number, value in enumerate(values) if value != values[0])
            hint = f": {advice[name]}" if name in advice else ""
            raise Disagreement(
                f"{name} must be the same in all processes, not {values[0]} in process 0 and {values[first]} in "
                f"process {first}{hint}"
            )


def tell_failure(error: Exception) -> None:
    """Let the others know, where they are to compare next, that this process has come to an error before that."""
    if count() > 1 and not isinstance(error, Disagreement):  # which all of them have
        with suppress(Disagreement, RuntimeError):  # others may have failed as well; the error at hand is what counts
            _told(None)


def _told(facts: dict[str, str] | None) -> list[dict[str, str]]:
    """What each process says of itself; an error if it is None, as that process has failed."""
    if count() == 1:
        return [facts or {}]
    everyone: list[dict[str, str] | None] = [None] * count()
    dist.all_gather_object(everyone, facts)
    failed = [number for number, each in enumerate(everyone) if each is None]
    if failed:
        raise Disagreement(f"process {failed[0]} has failed before the first step: see its own error")
    return [each for each in everyone if each is not None]


def send_from_first(tensors: Iterable[Tensor]) -> None:
    """Put what the first process holds into each tensor."""
    if count() == 1:
        return
    for t in tensors:
        if t.numel():
            message = t.detach().reshape(-1).clone().view(torch.uint8)  # as bytes: not every dtype can be sent
            dist.broadcast(message, 0)
            t.detach().copy_(message.view(t.dtype).view_as(t))


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
