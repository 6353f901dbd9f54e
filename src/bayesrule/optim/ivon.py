"""IVON: the improved variational online Newton method."""

from __future__ import annotations

import torch
from torch import Tensor

from bayesrule.optim.flat import FlatGroup
from bayesrule.optim.natural import Natural


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
        """ĝ·(w − m), which is ĥ/(λ(h + δ))."""
        torch._foreach_mul_(flat.deviations(), flat.grads())
        return flat.weights

    def _learn(self, flat: FlatGroup) -> None:
        self._curve(flat, flat.examples)
        self._move(flat)
