"""Stacking: how much each of several predictions should count, by what they say of data that they have not seen."""

from __future__ import annotations

import math

from torch import Tensor

ROUNDS = 1000  # of expectation and maximisation; each makes the data more probable
SETTLED = 1e-7  # change of a weight that does not matter
PRIOR = 1.0  # examples that are taken to speak for all candidates alike


def stacked(log_probs: Tensor, weight: Tensor | None = None) -> Tensor:
    """Weights π [C] of C predictions from log p_c(y_i) [C, N] of N unseen examples (Yao et al. 2018).

    ::

        π = argmax Σ_i log Σ_c π_c p_c(y_i) + (a/C) Σ_c log π_c

    The problem is convex, and EM goes uphill: π_c ← mean_i of c's share of the density of y_i. The last term, a = 1
    example in all, keeps few examples from ruling a candidate out. One whose density is not finite counts for nothing.
    ``weight``: how many times each example counts.

    >>> import torch
    >>> good, bad = torch.full((50,), -1.0), torch.full((50,), -3.0)
    >>> stacked(torch.stack([good, bad])).round(decimals=2)
    tensor([0.9900, 0.0100], dtype=torch.float64)
    """
    log_probs = log_probs.double()
    sound = log_probs.isfinite().all(1)
    if not bool(sound.any()):
        raise FloatingPointError("no candidate gives finite probabilities to the data that were held out from it")
    log_probs = log_probs[sound]
    count, n = log_probs.shape
    weights = log_probs.new_full((count,), 1 / count)
    times = log_probs.new_ones(n) if weight is None else weight.to(log_probs)
    for _ in range(ROUNDS):
        shares = (log_probs + weights.log()[:, None]).softmax(0)
        before, weights = weights, (shares @ times + PRIOR / count) / (times.sum() + PRIOR)
        if float((weights - before).abs().max()) < SETTLED:
            break
    found = weights.new_zeros(len(sound))
    found[sound] = weights
    return found


def seats(weights: Tensor, count: int) -> list[int]:
    """Whole numbers that add up to ``count``, as near to weights·count as can be: by largest remainders.

    >>> import torch
    >>> seats(torch.tensor([0.62, 0.28, 0.1]), 5)
    [3, 1, 1]
    """
    quotas = [float(w) * count for w in weights]
    found = [math.floor(quota) for quota in quotas]
    by_remainder = sorted(range(len(quotas)), key=lambda c: found[c] - quotas[c])
    for c in by_remainder[: count - sum(found)]:
        found[c] += 1
    return found
