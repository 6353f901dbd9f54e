"""Counts: 0, 1, 2, ..."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar

import torch
from torch import Tensor

from bayesrule import tracing
from bayesrule.predictions import targets
from bayesrule.predictions.base import fraction, log_mean, sampled
from bayesrule.predictions.bisection import bisect
from bayesrule.predictions.numbers import Numbers

LEAST_DISPERSION = 1e-6
"""Below it a negative binomial distribution is as good as Poisson's, and 1/α too large to compute with."""


@dataclass(frozen=True, eq=False, repr=False)
class Counts(Numbers):
    """A mixture of S Poisson distributions, from log-rates ``[S, B, ...]``, or of S negative binomial ones.

    ``dispersions`` α broadcast to the rates: counts of mean ``rate`` have variance ``rate + α rate²``. None: Poisson.

    ::

        mean      = mean_s rate_s
        aleatoric = mean_s rate_s + α_s rate_s²             a Poisson variance is its mean
        epistemic = mean_s (rate_s − mean)²                 variance = aleatoric + epistemic

    >>> import torch
    >>> prediction = Counts(torch.tensor([[2.0], [4.0]]).log())
    >>> prediction.mean, prediction.variance
    (tensor([3.]), tensor([4.]))
    >>> prediction.interval(0.9)
    (tensor([0.]), tensor([7.]))
    >>> Counts(torch.tensor([[2.0], [4.0]]).log(), torch.tensor(0.5)).interval(0.9)
    (tensor([0.]), tensor([9.]))
    """

    searched: ClassVar[bool] = True

    log_rates: Tensor
    dispersions: Tensor | None = None

    def __post_init__(self) -> None:
        sampled("log_rates", self.log_rates, "S, B")
        if self.dispersions is None:
            return
        if not tracing.holds(self.dispersions > 0):
            worst = float(self.dispersions[~(self.dispersions > 0)][0])
            raise ValueError(f"dispersions must be positive: got {worst:g}; None is Poisson's, without any")
        try:
            spread = self.dispersions.to(self.log_rates).expand(self.log_rates.shape)
        except RuntimeError:
            shapes = f"{list(self.dispersions.shape)} and {list(self.log_rates.shape)}"
            raise ValueError(f"dispersions must broadcast to log_rates: got shapes {shapes}") from None
        object.__setattr__(self, "dispersions", spread)

    @property
    def shape(self) -> torch.Size:
        """Shape of the counts, ``[B, ...]``."""
        return self.log_rates.shape[1:]

    @cached_property
    def mean(self) -> Tensor:
        """Mean count."""
        return self.log_rates.exp().mean(0)

    @cached_property
    def aleatoric(self) -> Tensor:
        """Mean variance of the networks' own distributions; of Poisson's that is the mean rate."""
        if self.dispersions is None:
            return self.mean
        rates = self.log_rates.exp()
        return (rates + self.dispersions * rates.square()).mean(0)

    @cached_property
    def epistemic(self) -> Tensor:
        """Population variance of the networks' rates."""
        return self.log_rates.exp().var(0, correction=0)

    def target(self, y: Tensor) -> Tensor:
        """Whole numbers in the dtype of the log-rates."""
        return targets.counts(y, self.shape).to(self.log_rates)

    def log_prob(self, y: Tensor) -> Tensor:
        """Log of ``mean_s rate_s^y exp(−rate_s) / y!``, or of the mean negative binomial probability."""
        y = self.target(y)
        if self.dispersions is not None:
            return log_mean(log_negative_binomial(self.log_rates, self.dispersions, y))
        return log_mean(y * self.log_rates - self.log_rates.exp()) - torch.lgamma(y + 1)

    def cdf(self, y: float | Tensor) -> Tensor:
        """Probability of a count up to ``y``, a number or a tensor of the targets' shape."""
        if isinstance(y, Tensor) and y.ndim:
            y = targets.reals(y, self.shape)
        return self._cdf(torch.as_tensor(y, dtype=torch.float64)).to(self.log_rates)

    def quantile(self, q: float | Tensor) -> Tensor:
        """The least whole k with ``cdf(k) ≥ q``, of the targets' shape; ``[Q, B, ...]`` for a tensor ``[Q]``."""
        if isinstance(q, Tensor) and q.ndim:
            return torch.stack([self.quantile(float(level)) for level in q])
        level = fraction("q", float(q))
        # The median of a Poisson distribution is near its rate, but q may be near 1: double until it is below.
        high = self._rates.amax(0).ceil() + 1
        while (self._cdf(high) < level).any():
            high = 2 * high
        return bisect(torch.full_like(high, -1), high, lambda k: self._cdf(k) < level, whole=True).to(self.log_rates)

    def mean_distance(self, a: float | Tensor) -> Tensor:
        """E|y − a| = E y − a + 2 ∫₀ᵃ cdf(t) dt: a sum over the whole numbers below a."""
        a = torch.as_tensor(a, dtype=torch.float64).to(self._rates.device).expand(self.shape)
        below = torch.zeros_like(a)
        for k in range(max(0, math.ceil(float(a.max())))):
            below = below + (a - k).clamp(0, 1) * self._cdf(torch.full_like(a, k))
        return (self._rates.mean(0) - a + 2 * below).to(self.log_rates)

    def sample(self, n: int, generator: torch.Generator | None = None) -> Tensor:
        """Counts ``[n, B, ...]``; negative binomial ones are Poisson's of rates that are drawn themselves."""
        networks = self._networks(n, generator)
        rates = self.log_rates[networks].exp()
        if self.dispersions is not None:
            shapes = 1 / self.dispersions[networks].clamp(min=LEAST_DISPERSION)
            rates = rates / shapes * torch._standard_gamma(shapes, generator=generator)
        return torch.poisson(rates, generator=generator)

    @cached_property
    def _rates(self) -> Tensor:
        # Double precision: which whole number is a quantile hangs on which side of q a probability is.
        return self.log_rates.double().exp()

    def _cdf(self, y: Tensor) -> Tensor:
        # Of negative y the special functions are not defined, and nothing is that small.
        upto = y.floor().to(self._rates.device)
        chances = self._chances(upto.clamp(min=0)).mean(0)
        return torch.where(upto < 0, torch.zeros_like(chances), chances)

    def _chances(self, k: Tensor) -> Tensor:
        """P(count ≤ k) under each network, in double precision."""
        if self.dispersions is None:  # Q(k + 1, rate), the regularised upper incomplete gamma function
            return torch.special.gammaincc(k + 1, self._rates)
        # I_p(r, k + 1) with p = r/(r + rate), the regularised incomplete beta function, which torch does not have
        from scipy.special import betainc

        r = 1 / self.dispersions.double().clamp(min=LEAST_DISPERSION)
        parts = [t.cpu().numpy() for t in (r, k + 1, r / (r + self._rates))]
        return torch.from_numpy(betainc(*parts)).to(self._rates.device)


def log_negative_binomial(log_rates: Tensor, dispersions: Tensor, y: Tensor) -> Tensor:
    """``log Γ(y + r) − log Γ(r) − log y! − r log(1 + μ/r) − y log(1 + r/μ)``, r = 1/α, per element.

    >>> log_negative_binomial(torch.tensor(0.0), torch.tensor(1.0), torch.tensor(0.0)).exp()
    tensor(0.5000)
    """
    # Double precision: the two gamma functions of a large r are nearly equal, and large.
    r = 1 / dispersions.double().clamp(min=LEAST_DISPERSION)
    count, odds = y.double(), log_rates.double() - r.log()  # log(μ/r)
    ways = torch.lgamma(count + r) - torch.lgamma(r) - torch.lgamma(count + 1)
    zero = torch.zeros_like(odds)
    # log(1 + exp(±odds)) without overflow
    found = ways - r * torch.logaddexp(odds, zero) - count * torch.logaddexp(-odds, zero)
    return found.to(log_rates.dtype)
