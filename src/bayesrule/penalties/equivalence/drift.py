"""Whether one A does for all ν: r(μ, ν) + Ent(β_{0,ν}) + (A ∗ β̌_{0,ν})(μ) is a constant if and only if it does."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from bayesrule.penalties.equivalence.implied import Implied
from bayesrule.penalties.equivalence.lines import not_finite
from bayesrule.penalties.functions import Penalty
from bayesrule.penalties.translations import Translation

NODES = 1001


class Drift(NamedTuple):
    """How that sum changes, in nats.

    ``first``: over μ, at the smallest ν. ``shape``: over μ, at the worst ν. ``constant``: its mean, over ν.
    ``rounding``: what is no change.
    """

    first: float
    shape: float
    constant: float
    rounding: float


def drift(prior: Implied, penalty: Penalty, family: Translation, low: float, high: float) -> Drift:
    """The change over μ from ``low`` to ``high`` and all ν that are checked; convolution is always well-posed."""
    mu = 0.5 * (low + high) + 0.4935 * (high - low) * torch.linspace(-1, 1, 61, dtype=torch.float64)
    sums, size = [], 1.0
    for nu in family.scales:
        r, smooth = _finite(penalty, mu, nu), smoothed(prior, family, mu, nu)
        sums.append(r + float(family.entropy(nu)) + smooth)
        size = max(size, float(r.abs().max()), prior.terms.size(float(mu.abs().max()) + 4 * nu))
    spreads = [float(each.max() - each.min()) for each in sums]
    means = torch.stack([each.mean() for each in sums])
    rounding = 1e-12 * size if prior.table is None else 1e-9 * size + 1e-7
    return Drift(spreads[0], max(spreads), float(means.max() - means.min()), rounding)


def smoothed(prior: Implied, family: Translation, mu: Tensor, nu: float) -> Tensor:
    """(A ∗ β̌_{0,ν})(μ) = E A(μ + νε)."""
    total = prior.terms.expectation(family, mu, nu)
    if prior.table is None:
        return total
    points, weights = family.nodes(NODES)
    return total + (prior.table(mu[:, None] + nu * points) * weights).sum(-1)


def _finite(penalty: Penalty, mu: Tensor, nu: float) -> Tensor:
    values = penalty(mu, nu)
    if not bool(values.isfinite().all()):
        raise not_finite(float(mu[~values.isfinite()][0]), nu)
    return values
