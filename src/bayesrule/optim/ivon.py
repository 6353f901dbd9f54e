"""IVON: the improved variational online Newton method."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from bayesrule.optim.flat import FlatGroup
from bayesrule.optim.natural import Natural

BOUNDS = 1e-30, 1e30  # of h + δ


class IVON(Natural):
    """Newton's method for the mean of a Gaussian, its curvature from the same gradients (Shen et al. 2024).

    At w = m + σε the gradient is ĝ, and ĥ = ĝ·ε/σ is on average over ε the mean of the Hessian's diagonal. Then

        ḡ ← β₁ḡ + (1 − β₁)ĝ
        h ← β₂h + (1 − β₂)ĥ + ½(1 − β₂)²(h − ĥ)²/(h + δ)
        m ← m − α·clip((ḡ/(1 − β₁ᵗ) + δm)/(h + δ), ξ)

    with σ² = 1/(λ(h + δ)) and α = lr·(h₀ + δ). The last term of h, from the geometry of Gaussians (Lin et al. 2020),
    keeps h + δ positive whatever the gradients: it at most halves in a step.

    Its arguments are those of `Natural`.

    >>> from torch import nn
    >>> model, x = nn.Linear(3, 1), torch.randn(8, 3)
    >>> optimizer = IVON(model.parameters(), lr=0.1, ess=8)
    >>> with optimizer.sampled():
    ...     model(x).square().mean().backward()
    >>> optimizer.step()
    """

    def _observe(self, flat: FlatGroup) -> Tensor:
        """ĝ·ε/√(h + δ), which is ĥ/((h + δ)√λ)."""
        torch._foreach_mul_(flat.views(flat.delta), flat.grads())
        return flat.delta

    def _learn(self, flat: FlatGroup) -> None:
        weight = 1 - flat.group["betas"][1]
        change = flat.seen.mul_(weight * math.sqrt(flat.examples))
        if isinstance(flat.decay, Tensor):
            change.addcmul_(flat.inverse.square_(), flat.decay, value=weight)  # `curve` writes to the inverse anyway
        else:
            change.addcmul_(flat.inverse, flat.inverse, value=weight * flat.decay)
        curve(flat, change.sub_(weight))
        self._move(flat)


def curve(flat: FlatGroup, change: Tensor) -> None:
    """h + δ ← (h + δ)(1 + e + ½e²), for the relative change e = (1 − β)(ĥ − h)/(h + δ).

    The same as h ← βh + (1 − β)ĥ + ½(1 − β)²(h − ĥ)²/(h + δ), and positive by construction, as 1 + e + ½e² ≥ ½; the
    bounds are for what numbers of finite size cannot hold.
    """
    flat.precision.addcmul_(flat.precision, torch.addcmul(change, change, change, value=0.5, out=flat.inverse))
    flat.precision.clamp_(*BOUNDS)
