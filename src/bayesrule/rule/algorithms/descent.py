"""Gradient descent, Newton's method, RMSprop and Adam: a Gaussian q, and E_q[ℓ] ≈ ℓ(m)."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import Tensor

from bayesrule.families import DiagonalGaussian, FullGaussian, GaussianMean, Loss, LossLike
from bayesrule.rule.base import Rule, Scheduled
from bayesrule.rule.trace import State

FLAT = 1e-30  # the precision of a q that knows nothing yet


def gradient_descent(loss: LossLike | None = None, rate: Scheduled = 0.1, covariance: Tensor | None = None) -> Rule:
    """m ← m − ρΣ∇ℓ(m): a Gaussian of fixed covariance Σ (the identity, unless given), everything at its mean.

    With another loss at each step, that of a batch, this is stochastic gradient descent.

    >>> rule = gradient_descent(lambda w: w.square().sum(-1), rate=0.25)
    >>> trace = rule.run(rule.start((torch.tensor([4.0]),)), steps=2)
    >>> trace.natural().flatten()
    tensor([4., 2., 1.])
    """
    family = GaussianMean()
    if covariance is not None:
        family = GaussianMean(covariance)
    return Rule(family, loss, how="local", rate=rate)


def newton(loss: LossLike | None = None, rate: Scheduled = 1.0) -> Rule:
    """S ← (1 − ρ)S + ρ∇²ℓ(m), m ← m − ρS⁻¹∇ℓ(m): a full Gaussian, everything at its mean. ρ = 1 is Newton's method.

    >>> rule = newton(lambda w: (w.exp() - w).sum(-1))  # lowest at 0
    >>> state = rule.start(FullGaussian.of(torch.ones(1), torch.eye(1)))
    >>> round(float(FullGaussian().mean(rule.step(state).natural)), 4)  # 1 − (e − 1)/e
    0.3679
    """
    return Rule(FullGaussian(), loss, how="local", rate=rate)


@dataclass(frozen=True)
class Scaled:
    """Descent in the scale of running squared gradients: the rule twice, for the precision and for the mean.

    1. A diagonal Gaussian, with ∇ℓ² in the place of its Hessian, at the rate 1 − β₂: s ← β₂s + (1 − β₂)∇ℓ(m)².
    2. A Gaussian of fixed covariance 1/(√s + δ), rate α, momentum β₁: m ← m − α r/(√s + δ), r ← β₁r + (1 − β₁)∇ℓ(m).

    Beyond the rule: the squared gradient, the square root with δ, a rate for each of the two, and, if ``corrected``,
    r/(1 − β₁ᵗ) and s/(1 − β₂ᵗ) in the places of r and s. The precision starts from `FLAT` rather than from 0, and never
    falls below it.
    """

    rate: float
    momentum: float  # β₁
    average: float  # β₂
    damping: float  # δ
    corrected: bool

    def start(self, mean: Tensor) -> ScaledState:
        """Before the first step."""
        return ScaledState(mean, torch.full_like(mean, FLAT), torch.zeros_like(mean))

    def step(self, now: ScaledState, loss: LossLike) -> ScaledState:
        """One step of each of the two rules."""
        precision = self._precision(now, loss)
        done = now.step + 1
        first, second = 1.0, 1.0
        if self.corrected:
            first, second = 1 - self.momentum**done, 1 - self.average**done
        # Adam's r/(1 − β₁ᵗ) goes into the covariance, since the rule's momentum is the heavy ball without it.
        family = GaussianMean(1 / (((precision / second).sqrt() + self.damping) * first))
        rule = Rule(family, loss, how="local", rate=self.rate * (1 - self.momentum), momentum=self.momentum)
        after = rule.step(State(family.of(now.mean), (now.velocity,), now.step))
        return ScaledState(family.mean(after.natural), precision, after.velocity[0], done)

    def _precision(self, now: ScaledState, loss: LossLike) -> Tensor:
        rule = Rule(DiagonalGaussian(), squared(loss), how="local", rate=1 - self.average)
        after = rule.step(rule.start(DiagonalGaussian.of(now.mean, 1 / now.precision)))
        return (-2 * after.natural[1]).clamp_min(FLAT)

    def path(self, mean: Tensor, losses: Iterable[LossLike]) -> Tensor:
        """The means, [steps + 1, ...]."""
        states = [self.start(mean)]
        for loss in losses:
            states.append(self.step(states[-1], loss))
        return torch.stack([state.mean for state in states])


@dataclass(frozen=True, eq=False)
class ScaledState:
    """Mean, running squared gradient, and the last change of the mean's natural parameter, −αr."""

    mean: Tensor
    precision: Tensor
    velocity: Tensor
    step: int = 0


def squared(loss: LossLike) -> Loss:
    """The same loss, its Hessian replaced by the square of its gradient.

    >>> squared(lambda w: (3 * w).sum(-1)).hessian_diagonal(torch.zeros(1, 2))
    tensor([[9., 9.]])
    """
    given = Loss.of(loss)
    return Loss(given.value, given.slope, lambda w: given.gradient(w).square())


def rmsprop(rate: float = 1e-2, average: float = 0.99, damping: float = 1e-8) -> Scaled:
    """s ← βs + (1 − β)∇ℓ², m ← m − α∇ℓ/(√s + δ)."""
    return Scaled(rate, momentum=0.0, average=average, damping=damping, corrected=False)


def adam(rate: float = 1e-3, betas: tuple[float, float] = (0.9, 0.999), damping: float = 1e-8) -> Scaled:
    """RMSprop with momentum (heavy ball) and correction of both averages for their start at zero.

    >>> path = adam(rate=0.5).path(torch.tensor([3.0]), [lambda w: w.square().sum(-1)] * 2)
    >>> path.flatten()  # the first step is the rate itself
    tensor([3.0000, 2.5000, 2.0044])
    """
    return Scaled(rate, momentum=betas[0], average=betas[1], damping=damping, corrected=True)
