"""One body, a head for each task."""

from __future__ import annotations

import torch
from torch import Tensor, nn


class MultiHead(nn.Module):
    """f(x, t) = head t of body(x): ``heads`` linear heads of ``outputs`` outputs each, one for each task.

    The heads are one linear layer whose outputs are cut into tasks, so that a batch may hold examples of several tasks,
    ``task`` ``[B]`` saying which.

    >>> net = MultiHead(nn.Flatten(), features=4, heads=3, outputs=2)
    >>> net(torch.zeros(5, 2, 2), torch.tensor([0, 0, 1, 2, 2])).shape
    torch.Size([5, 2])
    """

    def __init__(self, body: nn.Module, features: int, heads: int, outputs: int) -> None:
        super().__init__()
        for name, value in (("features", features), ("heads", heads), ("outputs", outputs)):
            if value < 1:
                raise ValueError(f"{name} must be at least 1, got {value}")
        self.body, self.heads, self.outputs = body, nn.Linear(features, heads * outputs), outputs

    def forward(self, x: Tensor, task: Tensor) -> Tensor:
        """The outputs of each example's own head, [B, C]."""
        every = self.heads(self.body(x)).unflatten(1, (-1, self.outputs))
        own = task.long().reshape(-1, 1, 1).expand(-1, 1, self.outputs)
        return torch.gather(every, 1, own).squeeze(1)
