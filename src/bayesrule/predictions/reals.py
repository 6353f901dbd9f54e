"""Real numbers."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from functools import cached_property

import torch
from torch import Tensor
from torch.special import ndtr, ndtri

from bayesrule import tracing
from bayesrule.data import Affine
from bayesrule.predictions import targets
from bayesrule.predictions.base import fraction, log_mean, sampled
from bayesrule.predictions.bisection import bisect
from bayesrule.predictions.numbers import Continuous


@dataclass(frozen=True, eq=False, repr=False)
class Reals(Continuous):
    """A mixture of S normal distributions, from means ``[S, B, ...]`` and standard deviations that broadcast to them.

    ``stds`` are those of the noise. A sample may stand for a whole Gaussian of networks, such as those of a linearised
    one: ``spreads`` are the standard deviations of its mean, 0 for a single network.

    ::

        mean      = mean_s means_s
        aleatoric = mean_s stds_s²                               the noise of y
        epistemic = mean_s (means_s − mean)² + spreads_s²        the networks' disagreement
        variance  = aleatoric + epistemic                        all three in units of y²

    Quantiles and intervals are of the mixture itself, not of a normal distribution with its moments.

    >>> import torch
    >>> prediction = Reals(torch.tensor([[1.0], [3.0]]), torch.tensor(0.5))
    >>> prediction.mean, prediction.aleatoric, prediction.epistemic
    (tensor([2.]), tensor([0.2500]), tensor([1.]))
    >>> prediction.interval(0.9)
    (tensor([0.3592]), tensor([3.6408]))
    """

    means: Tensor
    stds: Tensor
    spreads: Tensor = field(default_factory=lambda: torch.zeros(()))

    def __post_init__(self) -> None:
        sampled("means", self.means, "S, B")
        if not tracing.holds(self.stds > 0):
            worst = float(self.stds[~(self.stds > 0)][0])
            raise ValueError(f"stds must be positive: got {worst:g}; floor them above 0")
        if not tracing.holds(self.spreads >= 0):
            raise ValueError(f"spreads must not be negative: got {float(self.spreads.min()):g}")
        for name in ("stds", "spreads"):
            object.__setattr__(self, name, self._like_means(name, getattr(self, name)))

    def _like_means(self, name: str, values: Tensor) -> Tensor:
        try:
            return values.to(self.means).expand(self.means.shape)
        except RuntimeError:
            shapes = f"{name} {list(values.shape)} and means {list(self.means.shape)}"
            raise ValueError(f"{name} must broadcast to means: got {shapes}") from None

    @cached_property
    def widths(self) -> Tensor:
        """The standard deviation of y under each sample, noise and spread."""
        return torch.hypot(self.stds, self.spreads)  # independent: variances add

    @property
    def shape(self) -> torch.Size:
        """Shape of the targets, ``[B, ...]``."""
        return self.means.shape[1:]

    @cached_property
    def mean(self) -> Tensor:
        """Mean of y."""
        return self.means.mean(0)

    @cached_property
    def aleatoric(self) -> Tensor:
        """Mean variance of the networks' own distributions."""
        return self.stds.square().mean(0)

    @cached_property
    def epistemic(self) -> Tensor:
        """Population variance of the networks' means."""
        return self.means.var(0, correction=0) + self.spreads.square().mean(0)

    def target(self, y: Tensor) -> Tensor:
        """Finite real numbers in the dtype of the means."""
        return targets.reals(y, self.shape).to(self.means)

    def log_prob(self, y: Tensor) -> Tensor:
        """Log of ``mean_s N(y; means_s, stds_s² + spreads_s²)``."""
        z = (self.target(y) - self.means) / self.widths
        return log_mean(-z.square() / 2 - self.widths.log() - math.log(2 * math.pi) / 2)

    def cdf(self, y: float | Tensor) -> Tensor:
        """Probability of a value up to ``y``, a number or a tensor of the targets' shape."""
        if isinstance(y, Tensor) and y.ndim:
            y = self.target(y)
        return ndtr((y - self.means) / self.widths).mean(0)

    def quantile(self, q: float | Tensor) -> Tensor:
        """The y with ``cdf(y) = q``, of the targets' shape; ``[Q, B, ...]`` for a tensor ``[Q]``.

        It lies between the least and the greatest of the S normal quantiles, where bisection finds it.
        """
        with tracing.outside():
            levels = torch.as_tensor(q, dtype=torch.float64).cpu()
            for level in levels.reshape(-1).tolist():
                fraction("q", level)
            # In double precision, whatever that of the means: in single precision it is coarse in the tails.
            normal = ndtri(levels)
        # [S, Q, B, ...]: the quantiles under each sample, all levels at once
        each = (-1, *[1] * len(self.shape))
        parts = self.means[:, None] + self.widths[:, None] * normal.to(self.means).reshape(each)
        found = self._between(parts, levels.to(self.means).reshape(each))
        return found if levels.ndim else found[0]

    def _between(self, parts: Tensor, levels: Tensor) -> Tensor:
        """The quantiles [Q, B, ...] of the mixture, between the least and the greatest of its parts."""
        if self.samples == 1:
            return parts[0]
        means, widths = self.means[:, None], self.widths[:, None]
        return bisect(parts.amin(0), parts.amax(0), lambda y: ndtr((y - means) / widths).mean(0) < levels)

    def crps(self, y: Tensor) -> Tensor:
        """Continuous ranked probability score ``∫ (cdf(t) − [t ≥ y])² dt``, in units of y; less is better.

        In closed form (Grimit et al. 2006), with Y, Y' independent draws of the prediction::

            crps = E|Y − y| − ½ E|Y − Y'|      and      E|N(m, v)| = m (2Φ(m/√v) − 1) + 2 √v φ(m/√v)
        """
        spread = self.widths.sum(0) / math.sqrt(math.pi)  # ½ Σ_s E|Y_s − Y'_s|; then the pairs s < t, one s at a time
        for s in range(self.samples - 1):
            between = self.means[s] - self.means[s + 1 :]
            spread = spread + _mean_abs(between, torch.hypot(self.widths[s], self.widths[s + 1 :])).sum(0)
        return self.mean_distance(self.target(y)) - spread / self.samples**2

    def mean_distance(self, a: float | Tensor) -> Tensor:
        """E|y − a|, in closed form."""
        return _mean_abs(a - self.means, self.widths).mean(0)

    def sample(self, n: int, generator: torch.Generator | None = None) -> Tensor:
        """Values ``[n, B, ...]``."""
        networks = self._networks(n, generator)
        return torch.normal(self.means[networks], self.widths[networks], generator=generator)

    def rescaled(self, loc: float | Tensor, scale: float | Tensor) -> Reals:
        """The prediction of ``loc + scale · y``, for positive ``scale``; in double precision if ``loc`` is far away.

        Far is more than 16 times ``scale``: an offset leaves the fewer digits of y the larger it is.
        """
        units = Affine(loc, scale)
        dtype = torch.float64 if units.far else self.means.dtype
        loc, scale = (v.to(self.means.device, dtype) for v in (units.loc, units.scale))
        return Reals(self.means.to(dtype) * scale + loc, self.stds * scale, self.spreads * scale)


def _mean_abs(mean: Tensor, std: Tensor) -> Tensor:
    z = mean / std
    return mean * (2 * ndtr(z) - 1) + std * math.sqrt(2 / math.pi) * (-z.square() / 2).exp()
