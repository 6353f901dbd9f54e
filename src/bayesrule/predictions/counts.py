"""Counts: 0, 1, 2, ..."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from bayesrule.predictions import targets
from bayesrule.predictions.base import fraction, log_mean, sampled
from bayesrule.predictions.bisection import bisect
from bayesrule.predictions.numbers import Numbers


@dataclass(frozen=True, eq=False, repr=False)
class Counts(Numbers):
    """A mixture of S Poisson distributions, from log-rates ``[S, B, ...]``.

    ::

        aleatoric = mean      = mean_s rate_s               a Poisson variance is its mean
        epistemic = mean_s (rate_s − mean)²                 variance = aleatoric + epistemic

    >>> import torch
    >>> prediction = Counts(torch.tensor([[2.0], [4.0]]).log())
    >>> prediction.mean, prediction.variance
    (tensor([3.]), tensor([4.]))
    >>> prediction.interval(0.9)
    (tensor([0.]), tensor([7.]))
    """

    log_rates: Tensor

    def __post_init__(self) -> None:
        sampled("log_rates", self.log_rates, "S, B")

    @property
    def shape(self) -> torch.Size:
        """Shape of the counts, ``[B, ...]``."""
        return self.log_rates.shape[1:]

    @cached_property
    def mean(self) -> Tensor:
        """Mean count."""
        return self.log_rates.exp().mean(0)

    @property
    def aleatoric(self) -> Tensor:
        """Mean Poisson variance, which is the mean rate."""
        return self.mean

    @cached_property
    def epistemic(self) -> Tensor:
        """Population variance of the networks' rates."""
        return self.log_rates.exp().var(0, correction=0)

    def target(self, y: Tensor) -> Tensor:
        """Whole numbers in the dtype of the log-rates."""
        return targets.counts(y, self.shape).to(self.log_rates)

    def log_prob(self, y: Tensor) -> Tensor:
        """Log of ``mean_s rate_s^y exp(−rate_s) / y!``."""
        y = self.target(y)
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

    def sample(self, n: int, generator: torch.Generator | None = None) -> Tensor:
        """Counts ``[n, B, ...]``."""
        return torch.poisson(self.log_rates[self._networks(n, generator)].exp(), generator=generator)

    @cached_property
    def _rates(self) -> Tensor:
        # Double precision: which whole number is a quantile hangs on which side of q a probability is.
        return self.log_rates.double().exp()

    def _cdf(self, y: Tensor) -> Tensor:
        # P(k ≤ y) = Q(⌊y⌋ + 1, rate), the regularised upper incomplete gamma function; of negative y it is not defined.
        upto = y.floor().to(self._rates.device)
        chances = torch.special.gammaincc(upto.clamp(min=0) + 1, self._rates).mean(0)
        return torch.where(upto < 0, torch.zeros_like(chances), chances)
