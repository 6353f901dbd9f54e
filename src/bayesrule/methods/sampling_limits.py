"""What a sampler refuses before its first step: tasks that chains cannot follow, or not on this machine."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from bayesrule import modules, processes
from bayesrule.data import Arrays, inputs
from bayesrule.task import Task

if TYPE_CHECKING:
    from bayesrule.methods.sampling import Sampler

MOST = 2**32  # bytes of chains at work and draws that are kept
AT_WORK = 12  # copies of all chains that a transition and its tuning have in memory


def check(method: Sampler, task: Task) -> None:
    """Refuse what cannot be sampled, or not on this machine."""
    check_dtype(method, task)
    check_memory(method, task)
    check_processes(method, task)


def check_dtype(method: Sampler, task: Task) -> None:
    """Refuse numbers of so few digits that differences of log densities are all rounding."""
    dtype = modules.dtype_of(task.model)
    if dtype not in (torch.float32, torch.float64):
        raise TypeError(f"{method.name} takes a model in float32 or float64, not {dtype}: model.float()")
    if task.autocast is not None:
        raise ValueError(f"autocast must be None for {method.name}, which follows densities to many digits")


def check_memory(method: Sampler, task: Task) -> None:
    """Refuse chains that would not fit into memory, before the first step."""
    numbers = sum(p.numel() for p in task.parameters().values())
    each = numbers * modules.dtype_of(task.model).itemsize
    need = method.chains * (AT_WORK + method.draws) * each
    if method.processes > 1 and isinstance(task.data, Arrays):  # of which each has its own
        parts = [part for _, part in inputs.named(task.data.x)]
        need += method.processes * sum(part.nbytes for part in (*parts, task.data.y))
    if need > MOST:
        raise MemoryError(
            f"{method.name} keeps {method.draws} draws of {method.chains} chains of {numbers:,} weights, and "
            f"{AT_WORK} copies of the chains to work with, which takes {need / 2**30:.1f} GiB, over the limit of "
            f"{MOST / 2**30:.0f} GiB: give fewer draws or chains, freeze layers, or take method 'ensemble' or 'swag'"
            f"{', or fewer processes, each of which has the data' if method.processes > 1 else ''}"
        )


def check_processes(method: Sampler, task: Task) -> None:
    """Refuse processes of its own where there are several already, or where one device does all the work."""
    if method.processes == 1:
        return
    if processes.count() > 1:
        raise ValueError(
            f"processes must be 1 under torchrun, not {method.processes}: its {processes.count()} processes share the "
            "data already"
        )
    if task.device.type != "cpu":
        raise ValueError(
            f"processes must be 1 on device {task.device}, not {method.processes}: they would share it, and only "
            "those of a CPU have cores of their own"
        )
