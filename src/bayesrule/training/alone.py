"""Batches of one example, which not every module can train on."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from bayesrule import modules, seeds
from bayesrule.task import Task


def check_alone(task: Task) -> None:
    """Refuse, before any training, a module that cannot train on a single example, by the layer that cannot."""
    network = modules.training_mode(modules.twin(task.model))
    running: list[str] = []  # layers whose forward has begun and not ended, the innermost last
    for name, layer in network.named_modules():
        where = f"layer {name!r} ({type(layer).__name__})" if name else type(layer).__name__

        def begins(layer: nn.Module, args: Any, where: str = where) -> None:
            running.append(where)

        def ends(layer: nn.Module, args: Any, output: Any) -> None:
            running.pop()

        layer.register_forward_pre_hook(begins)
        layer.register_forward_hook(ends)
    first = next(task.ordered(1)).x
    with torch.no_grad(), seeds.untouched(task.device):
        try:
            modules.call(network, first)
        except ValueError as error:
            raise ValueError(
                f"the fit has batches of one example, which {running[-1]} cannot train on ({error}): choose a "
                "batch_size that leaves no single example, or drop_last=True for a loader; or freeze the layer"
            ) from error
