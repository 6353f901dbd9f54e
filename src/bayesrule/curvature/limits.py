"""What is refused: more memory than there is, and numbers that are none."""

from __future__ import annotations

import os
from pathlib import Path

import torch
from torch import Tensor, nn

from bayesrule import modules, tracing
from bayesrule.curvature.records import label, tensors
from bayesrule.data import Inputs, inputs

UNKNOWN = 2**33
"""Bytes that are taken to be free where the system does not tell."""


def free(device: torch.device) -> int:
    """Bytes that can still be had on a device."""
    if device.type == "cuda":
        return torch.cuda.mem_get_info(device)[0]
    known = [number for number in (_meminfo(), _cgroup()) if number is not None]
    return min(known, default=UNKNOWN)


def _meminfo() -> int | None:
    """What the machine has."""
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
        return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable"))
    except (OSError, StopIteration, ValueError):
        pass
    try:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, OSError, ValueError):
        return None


def _cgroup() -> int | None:
    """What the container has."""
    try:
        folder = Path("/sys/fs/cgroup")
        return int((folder / "memory.max").read_text()) - int((folder / "memory.current").read_text())
    except (OSError, ValueError):
        return None


def check_memory(what: str, numbers: int, like: Tensor, instead: str) -> None:
    """An error before so many numbers of a tensor's dtype are asked for, if they do not fit.

    >>> check_memory("a matrix", 10**15, torch.zeros(1), instead="take a smaller one")
    Traceback (most recent call last):
    MemoryError: a matrix needs 4,000,000.0 GB, but only ... GB are free: take a smaller one
    """
    check_bytes(what, numbers * max(4, like.element_size()), like.device, instead)


def check_bytes(what: str, need: int, device: torch.device, instead: str) -> None:
    """The same for bytes on a device."""
    limit = free(device)
    if need > limit:
        raise MemoryError(f"{what} needs {need / 1e9:,.1f} GB, but only {limit / 1e9:,.1f} GB are free: {instead}")


def check_weights(model: nn.Module) -> None:
    """An error if a parameter is not finite."""
    for path, layer in model.named_modules():
        for name, p in layer.named_parameters(recurse=False):
            if not bool(p.isfinite().all()):
                raise FloatingPointError(
                    f"the {name} of {label(path, layer)} holds {_worst(p)}: the network diverged or was never trained; "
                    "train it again with a smaller learning rate"
                )


def check_outputs(model: nn.Module, x: Inputs, outputs: Tensor) -> None:
    """An error that names the layer in which outputs that are not finite began."""
    if tracing.holds(outputs.isfinite()):
        return
    for name, part in inputs.named(x):
        if part.is_floating_point() and not bool(part.isfinite().all()):
            raise FloatingPointError(f"{name} holds {_worst(part)}: take such examples out, or fill in the values")
    where, value = _first_bad(model, x) or ("the model", _worst(outputs))
    raise FloatingPointError(
        f"{where} gives {value} though its inputs and weights are finite: its numbers overflow; scale the inputs, or "
        "run the model in double precision"
    )


def _first_bad(model: nn.Module, x: Inputs) -> tuple[str, str] | None:
    """The first layer whose output is not finite, and what is in it."""
    found: list[tuple[str, str]] = []
    handles = []
    for path, layer in model.named_modules():

        def hook(layer: nn.Module, args: object, output: object, path: str = path) -> None:
            bad = [t for t in tensors(output) if t.is_floating_point() and not bool(t.isfinite().all())]
            if bad and not found:
                found.append((label(path, layer), _worst(bad[0])))

        handles.append(layer.register_forward_hook(hook))
    try:
        with torch.no_grad():
            modules.call(model, x)
    finally:
        for handle in handles:
            handle.remove()
    if not found:
        return None
    return found[0]


def _worst(values: Tensor) -> str:
    return "NaN" if bool(values.isnan().any()) else "infinite numbers"
