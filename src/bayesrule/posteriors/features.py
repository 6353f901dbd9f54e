"""What a network makes of inputs before its last layer, and how far they are there from examples that it knows."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from bayesrule import modules, tracing
from bayesrule.curvature import last_layer
from bayesrule.data import Inputs, inputs
from bayesrule.modules import Parameters
from bayesrule.posteriors.base import Posterior
from bayesrule.posteriors.central import central_state
from bayesrule.posteriors.dropout import Dropout
from bayesrule.posteriors.mixture import Mixture

ROOM = 2**24
"""Distances that are held at a time."""


@dataclass(frozen=True, eq=False)
class Features:
    """Inputs ``[B, F]`` of a network's last layer; ``layer`` None: the inputs of the network itself.

    ``state``: weights and buffers of the one network that is looked at.
    """

    model: nn.Module
    state: Parameters
    layer: str | None

    @classmethod
    def of(cls, posterior: Posterior, x: Inputs) -> Features:
        """Those of the network at the centre of a posterior; its inputs, where its outputs are no one layer's.

        ``x``: some inputs in the network's units. Of posteriors without a centre an error says what to take.
        """
        state = standing(posterior)
        model = modules.shell(posterior.model)
        try:
            with torch.enable_grad():
                names = last_layer(modules.twin(posterior.context.model), inputs.each(lambda t: t[:2], x))
        except ValueError:
            return cls(model, state, None)
        return cls(model, state, names[0].rpartition(".")[0])

    @torch.no_grad()
    def __call__(self, x: Inputs) -> Tensor:
        """Of inputs in the network's units, some at a time; where a layer has positions, their mean."""
        if tracing.active():
            return self._some(x)
        n, size = inputs.length(x), inputs.block(x)
        parts = []
        for start in range(0, n, size):
            rows = slice(start, start + size)
            parts.append(self._some(inputs.each(lambda t, rows=rows: t[rows], x)))
        return torch.cat(parts)

    def _some(self, x: Inputs) -> Tensor:
        if self.layer is None:
            return torch.cat([part.flatten(1) for _, part in inputs.named(x)], 1)
        seen: list[Tensor] = []

        def see(module: nn.Module, args: tuple[Any, ...]) -> None:
            seen.append(args[0])

        layer = self.model.get_submodule(self.layer)
        handle = layer.register_forward_pre_hook(see)
        try:
            modules.try_call(self.model, x, self.state)
        finally:
            handle.remove()
        found = seen[-1]
        if isinstance(layer, nn.Linear):
            return found.flatten(1, -2).mean(1) if found.ndim > 2 else found
        return found.flatten(2).mean(2) if found.ndim > 2 else found


def standing(posterior: Posterior) -> Parameters:
    """Weights and buffers of the network at the centre of a posterior; that of dropout drops nothing."""
    if isinstance(posterior, Dropout):
        return posterior.weights
    if isinstance(posterior, Mixture):  # whose components may be dropout, too
        return standing(posterior.components[0])
    return central_state(posterior)


def nearest(x: Tensor, references: Tensor, neighbours: int, leave_out: bool = False) -> Tensor:
    """The distance [B] of rows from the k-th nearest of the references; ``leave_out``: rows are the references.

    >>> nearest(torch.tensor([[0.0], [5.0]]), torch.tensor([[1.0], [2.0]]), 1)
    tensor([1., 3.])
    """
    count = neighbours + leave_out  # the nearest of all is the row itself
    if not 1 <= count <= len(references):
        raise ValueError(f"neighbours must be from 1 to {len(references) - leave_out}, not {neighbours}")
    if tracing.active():
        return _kth(x, references, count)
    size = max(1, ROOM // len(references))
    return torch.cat([_kth(rows, references, count) for rows in torch.split(x, size)])


def _kth(x: Tensor, references: Tensor, count: int) -> Tensor:
    if not tracing.active():
        return torch.cdist(x, references).kthvalue(count, dim=1).values
    # the same by operations that ONNX has
    squares = x.square().sum(1, keepdim=True) + references.square().sum(1) - 2 * x @ references.T
    return squares.clamp(min=0).sqrt().topk(count, dim=1, largest=False).values[:, -1]
