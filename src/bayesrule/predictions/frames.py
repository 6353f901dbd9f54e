"""Columns of a table of predictions."""

from __future__ import annotations

import torch
from torch import Tensor


def columns(name: str, values: Tensor) -> dict[str, list[float]]:
    """A column of values ``[B]``; of ``[B, ...]`` one for each target of an example, numbered.

    >>> columns("std", torch.tensor([1.0, 2.0]))
    {'std': [1.0, 2.0]}
    >>> columns("std", torch.tensor([[1.0, 2.0]]))
    {'std_0': [1.0], 'std_1': [2.0]}
    """
    if values.ndim == 1:
        return {name: _cells(values)}
    return {f"{name}_{number}": _cells(part) for number, part in enumerate(values.flatten(1).unbind(1))}


def percent(level: float) -> str:
    """A share as a column's name has it.

    >>> percent(0.9), percent(0.999)
    ('90', '99.9')
    """
    return f"{100 * level:.10g}"


def _cells(values: Tensor) -> list[float]:
    """Numbers with all the digits that their dtype holds, and no more."""
    if values.dtype == torch.float64 or not values.is_floating_point():
        return values.tolist()
    return [float(f"{value:.7g}") for value in values.tolist()]
