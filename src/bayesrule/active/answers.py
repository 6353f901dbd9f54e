"""Answers to questions: labels of rows, or an error that says what is wrong with them."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from bayesrule.active.pools import Pool

Oracle = Callable[[Tensor], Any]
"""From rows of the pool to their labels, in the same order."""


def oracle_of(pool: Pool, given: Oracle | None) -> Oracle:
    """Whoever answers: the callable that was given, or the pool's own labels."""
    if given is not None:
        if not callable(given):
            raise TypeError(f"oracle must be a function of rows, got {type(given).__name__}")
        return given
    labels = pool.labels
    if labels is None:
        raise ValueError(
            "oracle must be given for a pool without labels: a function of rows that returns their labels; for a "
            "person who answers later, take br.active.Session"
        )
    return lambda rows: labels[rows]


def checked(given: Any, rows: Sequence[int], pool: Pool) -> list[float] | list[int]:
    """Labels of some rows as plain numbers, in their order.

    >>> pool = Pool(torch.zeros(9, 1), "classes", classes=("cat", "dog"))
    >>> checked([1, 0], [4, 7], pool)
    [1, 0]
    >>> checked([1, 2], [4, 7], pool)
    Traceback (most recent call last):
    ValueError: the label of row 7 must be a class from 0 to 1 (cat, dog), got 2: announce all classes ...
    """
    if given is None:
        raise ValueError(f"the oracle must return a label for each of {len(rows)} rows, got nothing: nothing was kept")
    values = _numbers(given, rows)
    if len(values) != len(rows):
        raise ValueError(f"the oracle must return a label for each of {len(rows)} rows, got {len(values)}")
    for row, value in zip(rows, values, strict=True):
        if not math.isfinite(value):
            raise ValueError(f"the label of row {row} must be a number, got {value}: every row asked for needs one")
    if pool.kind == "reals":
        return values
    for row, value in zip(rows, values, strict=True):
        if value != int(value) or value < 0:
            raise ValueError(f"the label of row {row} must be a whole number from 0, got {value:g}")
        if pool.kind == "classes" and value >= len(pool.classes):
            names = ", ".join(pool.classes[:20])
            raise ValueError(
                f"the label of row {row} must be a class from 0 to {len(pool.classes) - 1} ({names}), got {value:g}: "
                "announce all classes when the pool is made"
            )
    return [int(value) for value in values]


def _numbers(given: Any, rows: Sequence[int]) -> list[float]:
    """Numbers of whatever an oracle returned."""
    if isinstance(given, Tensor):
        given = given.detach().cpu().numpy()
    try:
        array = np.asarray(given, dtype=np.float64)
    except (ValueError, TypeError) as error:
        raise ValueError(
            f"the oracle must return {len(rows)} numbers, labels of the rows in their order, got {given!r:.60}: {error}"
        ) from error
    return array.reshape(-1).tolist()


def as_tensor(labels: Sequence[float] | Sequence[int], pool: Pool) -> Tensor:
    """Labels as a fit wants them."""
    if pool.kind == "reals":
        like = torch.get_default_dtype() if pool.labels is None else pool.labels.dtype
        return torch.tensor(labels, dtype=like)
    return torch.tensor(labels, dtype=torch.int64)
