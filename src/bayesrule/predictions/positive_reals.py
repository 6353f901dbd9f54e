"""Positive real numbers."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor
from torch.special import ndtr

from bayesrule.predictions import targets
from bayesrule.predictions.numbers import Continuous
from bayesrule.predictions.reals import Reals


@dataclass(frozen=True, eq=False, repr=False)
class PositiveReals(Continuous):
    """A mixture of S log-normal distributions: ``log y ~ N(means_s, stds_s²)`` with ``means`` ``[S, B, ...]``.

    ``means`` and ``stds`` are those of log y; all else is of y itself. With ``μ_s = exp(means_s + ½ stds_s²)``, the
    mean of y under one network::

        mean      = mean_s μ_s
        aleatoric = mean_s μ_s² (exp(stds_s²) − 1)          the noise of y
        epistemic = mean_s (μ_s − mean)²                    the networks' disagreement

    Quantiles are exponentials of those of log y, so that no end of an interval is at zero or below.

    >>> import torch
    >>> prediction = PositiveReals(torch.tensor([[0.0], [2.0]]), torch.tensor(0.5))
    >>> prediction.mean, prediction.quantile(0.5)
    (tensor([4.7530]), tensor([2.7183]))
    >>> prediction.interval(0.9)
    (tensor([0.5269]), tensor([14.0241]))
    """

    means: Tensor
    stds: Tensor

    def __post_init__(self) -> None:
        object.__setattr__(self, "stds", self.logs.stds)  # as large as the means

    @cached_property
    def logs(self) -> Reals:
        """The prediction of log y."""
        return Reals(self.means, self.stds)

    @property
    def shape(self) -> torch.Size:
        """Shape of the targets, ``[B, ...]``."""
        return self.means.shape[1:]

    @cached_property
    def centres(self) -> Tensor:
        """The mean of y under each network, ``exp(means + ½ stds²)``."""
        return (self.means + self.stds.square() / 2).exp()

    @cached_property
    def mean(self) -> Tensor:
        """Mean of y."""
        return self.centres.mean(0)

    @cached_property
    def aleatoric(self) -> Tensor:
        """Mean variance of the networks' own distributions."""
        return (self.centres.square() * torch.expm1(self.stds.square())).mean(0)

    @cached_property
    def epistemic(self) -> Tensor:
        """Population variance of the networks' means."""
        return self.centres.var(0, correction=0)

    def target(self, y: Tensor) -> Tensor:
        """Positive numbers in the dtype of the means."""
        return targets.positives(y, self.shape).to(self.means)

    def log_prob(self, y: Tensor) -> Tensor:
        """Log of ``mean_s N(log y; means_s, stds_s²) / y``."""
        log_y = self.target(y).log()
        return self.logs.log_prob(log_y) - log_y

    def cdf(self, y: float | Tensor) -> Tensor:
        """Probability of a value up to ``y``, a number or a tensor of the targets' shape; none up to zero."""
        if isinstance(y, Tensor) and y.ndim:
            y = targets.reals(y, self.shape)
        log_y = torch.as_tensor(y).to(self.means).clamp(min=0).log()  # −∞ up to zero
        return ndtr((log_y - self.means) / self.stds).mean(0)

    def quantile(self, q: float | Tensor) -> Tensor:
        """``exp`` of the quantile of log y, of the targets' shape; ``[Q, B, ...]`` for a tensor ``[Q]``."""
        return self.logs.quantile(q).exp()

    def crps(self, y: Tensor) -> Tensor:
        """Continuous ranked probability score, in units of y; less is better. In closed form::

            crps      = E|Y − y| − ½ E|Y − Y'|
            E|Y_s − y|    = y (2Φ(z) − 1) + μ_s (1 − 2Φ(z − stds_s)),     z = (log y − means_s) / stds_s
            E|Y_s − Y'_t| = μ_s (2Φ((d + stds_s²)/h) − 1) + μ_t (2Φ((stds_t² − d)/h) − 1)

        with ``d = means_s − means_t`` and ``h² = stds_s² + stds_t²``.
        """
        y = self.target(y)
        between = torch.zeros_like(y)
        for s in range(self.samples):  # of E|Y − Y'| the part where Y is the greater, and by symmetry all of it
            d = self.means[s] - self.means
            share = (d + self.stds[s].square()) / torch.hypot(self.stds[s], self.stds)
            between = between + self.centres[s] * (2 * ndtr(share) - 1).sum(0)
        return self.mean_distance(y) - between / self.samples**2

    def mean_distance(self, a: float | Tensor) -> Tensor:
        """E|y − a|, in closed form; see `crps`."""
        a = torch.as_tensor(a).to(self.means)
        z = (a.clamp(min=0).log() - self.means) / self.stds  # −∞ up to zero
        return (a * (2 * ndtr(z) - 1) + self.centres * (1 - 2 * ndtr(z - self.stds))).mean(0)

    def sample(self, n: int, generator: torch.Generator | None = None) -> Tensor:
        """Values ``[n, B, ...]``."""
        return self.logs.sample(n, generator).exp()
