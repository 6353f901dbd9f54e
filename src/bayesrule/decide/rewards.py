"""Networks that expect a reward of a context and an arm."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from bayesrule import models


class WideAndDeep(nn.Module):
    """f([x, a]) = v·[h(x, a), a ⊗ x] + b, a one-hot: a linear layer of hidden units and of the context of each arm.

    A posterior of the last layer is then never sure of an arm in a context no part of which was met. Hidden units alone
    would not do: those of a network that has met few rewards may be the same in all contexts, or never at work again,
    and with them all doubt is gone after the first bad reward.

    >>> WideAndDeep(features=3, arms=2, hidden=(8, 5))(torch.zeros(7, 5)).shape
    torch.Size([7, 1])
    """

    def __init__(self, features: int, arms: int, hidden: Sequence[int]) -> None:
        super().__init__()
        self.arms = arms
        self.deep = nn.Sequential(models.mlp(features + arms, hidden[-1], hidden[:-1]), nn.ReLU())
        self.head = nn.Linear(hidden[-1] + features * arms, 1)

    def forward(self, x: Tensor) -> Tensor:
        """Rewards [B, 1] of inputs [B, features + arms]."""
        context, arm = x[:, : -self.arms], x[:, -self.arms :]
        wide = (arm[:, :, None] * context[:, None]).flatten(1)
        return self.head(torch.cat([self.deep(x), wide], 1))
