"""How much of the divergence each mini-batch of an epoch bears."""

from __future__ import annotations

import math

import torch
from torch import Tensor


def kl_weights(batches: int, ratio: float = 1.0) -> Tensor:
    """π_i = λ^i / Σ_k λ^k for the batches i = 1 … M of an epoch and a ratio λ ≥ 0; zero for λ = 0.

    With λ = 1 every batch bears 1/M; with λ < 1 the first batches bear more, with λ > 1 the last. They are the softmax
    of i·log λ, so they are finite and sum to one for any M.

    >>> kl_weights(3, ratio=2.0)
    tensor([0.1429, 0.2857, 0.5714], dtype=torch.float64)
    """
    if batches < 1:
        raise ValueError(f"batches must be at least 1, not {batches}")
    if not (math.isfinite(ratio) and ratio >= 0):
        raise ValueError(f"the ratio of KL weights must be at least 0 and finite, not {ratio}")
    steps = torch.arange(batches, dtype=torch.float64)
    return torch.softmax(steps * math.log(ratio), 0) if ratio else torch.zeros_like(steps)
