"""Weights of two values and weights that are dropped: the straight-through estimator, BayesBiNN, dropout."""

from __future__ import annotations

import torch
from torch import Tensor

from bayesrule.families import Bernoulli, DroppedGaussian, Estimator, Loss, LossLike
from bayesrule.rule.base import Rule, Scheduled


def signs(natural: tuple[Tensor, ...]) -> Tensor:
    """The likelier of −1 and 1 for each weight.

    >>> signs((torch.tensor([-0.3, 0.2]),))
    tensor([-1.,  1.])
    """
    return torch.where(natural[0] >= 0, 1.0, -1.0).to(natural[0])


def at_signs(loss: LossLike) -> Loss:
    """For ℓ of weights ±1: at a mean p its slope by p, 2∇ℓ(w), taken at the likelier w = sign(2p − 1)."""
    given = Loss.of(loss)
    return Loss(slope=lambda p: 2 * given.gradient(torch.where(p >= 0.5, 1.0, -1.0).to(p)))


def straight_through(loss: LossLike, rate: Scheduled, decay: float = 0.0) -> Rule:
    """r ← (1 − ρ·decay)r − ρ∇ℓ(sign r): Bernoulli weights w = ±1 with log-odds 2r, all taken at the likelier value.

    ``decay`` is the weight of the entropy: 1 is the rule for E_q[ℓ] − H(q), 0 the estimator as it is mostly printed.

    >>> rule = straight_through(lambda w: 0.5 * (w - 0.4).square().sum(-1), rate=0.5)
    >>> state = rule.start((torch.tensor([2 * -0.3]),))
    >>> rule.step(state).natural[0] / 2  # −0.3 + 0.5·1.4
    tensor([0.4000])
    """
    return Rule(Bernoulli(), at_signs(loss), how="local", rate=rate, temperature=decay)


def bayesbinn(loss: LossLike, rate: Scheduled, relaxation: float = 1.0, seed: int = 0) -> Rule:
    """λ ← (1 − ρ)λ − ρs∇ℓ(w) with w = tanh((λ + δ)/τ), λ half the log-odds and s = (1 − w²)/(τ(1 − tanh²λ)).

    Bernoulli weights w = ±1, E_q[ℓ] by one relaxed draw at the temperature τ, ``relaxation``.
    """
    given = Loss.of(loss)
    shifted = Loss(slope=lambda p: 2 * given.gradient(2 * p - 1))
    return Rule(Bernoulli(), shifted, how=Estimator("reparam", relaxation=relaxation), rate=rate, seed=seed)


def dropout(loss: LossLike | None = None, rate: float = 0.1, keep: float = 0.5, seed: int = 0) -> Rule:
    """m ← m − ρ z∘∇ℓ(z∘m), each row of m there with probability ``keep``: spike and slab, the slab taken at its mean.

    The rule's own rate is ρ·keep, since ∂m/∂μ = 1/keep.

    >>> rule = dropout(lambda w: w.sum((-2, -1)), rate=0.5)
    >>> rule.step(rule.start((torch.ones(4, 1),))).natural[0].flatten()  # one of four was there
    tensor([1.0000, 1.0000, 1.0000, 0.5000])
    """
    return Rule(DroppedGaussian(keep=keep), loss, how="local", rate=rate * keep, seed=seed)
