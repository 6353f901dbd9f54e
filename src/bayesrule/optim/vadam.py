"""Vadam: Adam that draws its weights."""

from __future__ import annotations

import torch
from torch import Tensor

from bayesrule.optim.flat import FlatGroup, pulled, step
from bayesrule.optim.natural import Natural, NaturalSettings


class Vadam(Natural):
    """Adam at weights from q, whose deviations come from Adam's own second moment (Khan et al. 2018).

        m̄ ← β₁m̄ + (1 − β₁)(ĝ + δm),    s ← β₂s + (1 − β₂)ĝ²,    m ← m − lr·(m̄/(1 − β₁ᵗ))/(√ŝ + δ)

    with ŝ = (s − β₂ᵗs₀)/(1 − β₂ᵗ) and σ² = 1/(λ(s + δ)); the paper's ŝ is that of s₀ = 0. The squared gradient of a
    batch is close to the curvature for batches of one example only: the larger the batch, the smaller the square and
    the wider q.

    Its arguments are those of `Natural`; ``hess_init`` is the first s.

    >>> model, x = torch.nn.Linear(3, 1), torch.randn(8, 3)
    >>> optimizer = Vadam(model.parameters(), lr=1e-3, ess=8)
    >>> with optimizer.sampled():
    ...     model(x).square().mean().backward()
    >>> optimizer.step()
    """

    own_defaults = NaturalSettings(betas=(0.9, 0.999))

    def _observe(self, flat: FlatGroup) -> Tensor:
        seen = flat.room()
        for grad, square in zip(flat.grads(), flat.views(seen), strict=True):
            torch.mul(grad, grad, out=square)
        return seen

    def _learn(self, flat: FlatGroup) -> None:
        group, (beta1, beta2) = flat.group, flat.group["betas"]
        flat.precision.lerp_(flat.seen.add_(flat.decay), 1 - beta2)
        settings = flat.by_parameter(flat.momentum, flat.seen, flat.decay, flat.centre)
        for p, grad, (slope, out, pull, centre) in zip(flat.held(), flat.grads(), settings, strict=True):
            slope.lerp_(pulled(grad, p, pull, centre, out), 1 - beta1)
        left = beta2 ** (self.steps + 1)
        second = torch.sub(flat.precision, flat.decay + left * flat.first, out=flat.seen)
        second.clamp_min_(4 * torch.finfo(second.dtype).eps * flat.first).div_(1 - left)  # s₀'s rounding
        share = 1 - beta1 ** (self.steps + 1)
        by = second.sqrt_().add_(flat.decay + group["damping"])
        direction = flat.weights.copy_(flat.momentum)
        settings = flat.by_parameter(direction, by, group["lr"] / share, flat.radius * share)
        for p, each in zip(flat.held(), settings, strict=True):
            step(p, *each)
