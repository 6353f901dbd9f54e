"""Devices by name."""

from __future__ import annotations

import torch


def choose_device(name: str | torch.device = "auto") -> torch.device:
    """A device that this machine has: ``auto`` is the first of cuda, mps and cpu; else any name that torch knows.

    >>> choose_device("cpu")
    device(type='cpu')
    """
    if name == "auto":
        return _quickest()
    try:
        device = torch.device(name)
        torch.zeros(1, device=device).item()  # the only question that all kinds of devices answer; meta refuses it
    # Each kind of device has errors of its own: CUDA's absence is an AssertionError, that of a name a RuntimeError.
    except (RuntimeError, AssertionError, NotImplementedError, TypeError) as error:
        raise ValueError(
            f"device must be auto or one of this machine's, {', '.join(_present())}, got {name!r} "
            f"({str(error).splitlines()[0]})"
        ) from error
    return device


def _quickest() -> torch.device:
    if torch.cuda.is_available():
        return torch.device("cuda")
    if torch.backends.mps.is_available():
        return torch.device("mps")
    return torch.device("cpu")


def _present() -> list[str]:
    """The names of this machine's devices: the CPU and those of its kind of accelerator, of which torch knows one."""
    names = ["cpu"]
    kind = _quickest().type
    if kind == "cpu" and hasattr(torch, "accelerator") and torch.accelerator.is_available():  # torch >= 2.6
        accelerator = torch.accelerator.current_accelerator()
        assert accelerator is not None
        kind = accelerator.type
    if kind != "cpu":
        count = torch.get_device_module(kind).device_count()
        names += [f"{kind}:{index}" for index in range(count)]
    return names
