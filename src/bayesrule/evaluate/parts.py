"""Examples in parts, each small enough that the outputs of all networks for it have room in memory."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from bayesrule.data import Arrays, Batch, Data, as_inputs, inputs

READ = 256
"""Examples of a data set or loader that are read at a time."""
ROOM = 2**26
"""Numbers that the outputs of a prediction may take: more examples are predicted in parts."""
OUTPUTS = 10
"""Outputs for each target that are reckoned with, since a predictor does not say how many it has."""


def of_data(data: Data, samples: int) -> Iterator[Batch]:
    """All examples in the user's units; those of a data set or loader as they come, a few at a time."""
    size = _size(samples, targets_of(data))
    if isinstance(data, Arrays):
        return iter([data.raw()]) if data.n <= size else data.raw_batches(size)
    return data.raw_batches(min(size, READ))  # as they come, since batches may be padded to lengths of their own


def of_batch(batch: Batch, samples: int) -> Iterator[Batch]:
    """The same of examples that are in the user's units already."""
    for part, index in _cut(batch.x, _size(samples, batch.y[:1].numel())):
        yield Batch(part, batch.y if index is None else batch.y[index.to(batch.y.device)])


def of_inputs(x: Any, samples: int, targets: int) -> Iterator[Any]:
    """The same of inputs without targets, of which there are so many for an example."""
    return (part for part, _ in _cut(as_inputs(x), _size(samples, targets)))


def targets_of(data: Data) -> int:
    """Targets of an example."""
    return next(iter(data.ordered(1))).y[0].numel()


def _size(samples: int, targets: int) -> int:
    return max(1, ROOM // (samples * OUTPUTS * max(1, targets)))


def _cut(x: inputs.Inputs, size: int) -> Iterator[tuple[inputs.Inputs, torch.Tensor | None]]:
    """Parts of the inputs, and which rows each has; None: all."""
    count = inputs.length(x)
    if count <= size:
        yield x, None
        return
    for start in range(0, count, size):
        index = torch.arange(start, min(start + size, count))
        yield inputs.take(x, index), index
