"""Search without slopes and among many minima: exponential weights, evolution, homotopy, an ensemble of Newtons."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from bayesrule.families import (
    Categorical,
    DiagonalGaussian,
    Estimator,
    GaussianMean,
    GaussianMixture,
    LossLike,
    Natural,
)
from bayesrule.rule.base import Rule, Scheduled


def exponential_weights(rate: float) -> Rule:
    """w_k ← w_k exp(−ηℓ_t(k))/Σ: categorical, without the entropy, a new loss at each step.

    The entropy is left out because the last weights stand in the place of a prior: it is Bayes' rule with likelihood
    exp(−ηℓ_t), step after step.

    >>> rule = exponential_weights(rate=1.0)
    >>> costs = torch.tensor([0.0, 1.0, 1.0])
    >>> state = rule.step(rule.start(Categorical.of(torch.ones(3) / 3)), lambda w: w @ costs)
    >>> Categorical().mean(state.natural)
    tensor([0.5761, 0.2119, 0.2119])
    """
    return Rule(Categorical(), how="exact", rate=rate, temperature=0.0)


def evolution(loss: LossLike, rate: Scheduled, draws: int = 20, seed: int = 0, positive: bool = False) -> Rule:
    """λ ← λ − ρF⁻¹ mean_k (ℓ(θ_k) − ℓ̄)∇_λ log q(θ_k): a diagonal Gaussian, no entropy, no derivatives of ℓ.

    Natural evolution strategies, for the mean and the deviations. ``positive`` keeps precisions positive at any rate.
    """
    how = Estimator("score", samples=draws)
    return Rule(DiagonalGaussian(), loss, how=how, rate=rate, temperature=0.0, positive=positive, seed=seed)


def homotopy(loss: LossLike, start: Tensor, deviations: Sequence[float], rate: float, nodes: int = 64) -> Tensor:
    """m ← m − ρ∇_m E_{N(m, σ²)}[ℓ], with the next σ at each step: the means, [steps + 1, ...].

    A Gaussian of fixed covariance, E_q by quadrature. That σ shrinks is not the rule's doing but a schedule's.

    >>> bowl = lambda w: 0.5 * w.square().sum(-1)
    >>> homotopy(bowl, torch.tensor([8.0], dtype=torch.float64), [2.0, 1.0], rate=0.5).flatten()
    tensor([8.0000, 4.0000, 2.0000], dtype=torch.float64)
    """
    path = [start]
    for deviation in deviations:
        variance = torch.tensor(deviation**2, dtype=start.dtype)
        family = GaussianMean(variance)
        rule = Rule(family, loss, how=Estimator("exact", nodes=nodes), rate=rate / float(variance))
        path.append(family.mean(rule.step(rule.start(family.of(path[-1]))).natural))
    return torch.stack(path)


def newton_ensemble(loss: LossLike, rate: Scheduled = 0.5) -> Rule:
    """S_c ← (1 − ρ)S_c + ρ∇²ℓ(m_c), m_c ← m_c − ρS_c⁻¹∇ℓ(m_c): a mixture of Gaussians, everything at their means.

    So it is while the components are apart; where they meet, the entropy of the mixture keeps them from becoming one.
    The weights are held equal.
    """
    return Rule(GaussianMixture(), loss, how="local", rate=rate, constraint=_equal)


def _equal(natural: Natural) -> Natural:
    return torch.zeros_like(natural[0]), *natural[1:]
