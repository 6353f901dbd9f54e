"""Real numbers some of which are far off."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar

import torch
from torch import Tensor
from torch.special import ndtri

from bayesrule import tracing
from bayesrule.data import Affine
from bayesrule.predictions import t_distribution, targets
from bayesrule.predictions.base import fraction, log_mean, sampled
from bayesrule.predictions.bisection import bisect
from bayesrule.predictions.numbers import Continuous

STRATA = 64  # points that stand for a t distribution beside others
ROOM = 2**22  # points that are sorted at a time


@dataclass(frozen=True, eq=False, repr=False)
class TailedReals(Continuous):
    """A mixture of S Student distributions, ``y = means_s + scales_s · t`` with ``freedoms_s`` degrees of freedom.

    ``means`` are ``[S, B, ...]``; ``scales`` and ``freedoms``, which are above 2, broadcast to them.

    ::

        mean      = mean_s means_s
        aleatoric = mean_s scales_s² ν_s/(ν_s − 2)          the noise of y
        epistemic = mean_s (means_s − mean)²                the networks' disagreement

    Quantiles and intervals are of the mixture itself.

    >>> import torch
    >>> prediction = TailedReals(torch.tensor([[1.0], [3.0]]), torch.tensor(0.5), torch.tensor(4.0))
    >>> prediction.mean, prediction.aleatoric, prediction.epistemic
    (tensor([2.]), tensor([0.5000]), tensor([1.]))
    >>> prediction.interval(0.9)
    (tensor([0.2224]), tensor([3.7776]))
    """

    searched: ClassVar[bool] = True

    means: Tensor
    scales: Tensor
    freedoms: Tensor

    def __post_init__(self) -> None:
        sampled("means", self.means, "S, B")
        for name, least in (("scales", 0), ("freedoms", 2)):
            values = getattr(self, name)
            if not tracing.holds(values > least):
                worst = float(values[~(values > least)][0])
                raise ValueError(f"{name} must be above {least}: got {worst:g}; floor them above it")
            try:
                object.__setattr__(self, name, values.to(self.means).expand(self.means.shape))
            except RuntimeError:
                shapes = f"{name} {list(values.shape)} and means {list(self.means.shape)}"
                raise ValueError(f"{name} must broadcast to means: got {shapes}") from None

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
        return (self.scales.square() * self.freedoms / (self.freedoms - 2)).mean(0)

    @cached_property
    def epistemic(self) -> Tensor:
        """Population variance of the networks' means."""
        return self.means.var(0, correction=0)

    def target(self, y: Tensor) -> Tensor:
        """Finite real numbers in the dtype of the means."""
        return targets.reals(y, self.shape).to(self.means)

    def log_prob(self, y: Tensor) -> Tensor:
        """Log of ``mean_s t_ν((y − means_s)/scales_s)/scales_s``."""
        z = (self.target(y) - self.means) / self.scales
        return log_mean(t_distribution.log_density(z, self.freedoms) - self.scales.log())

    def cdf(self, y: float | Tensor) -> Tensor:
        """Probability of a value up to ``y``, a number or a tensor of the targets' shape."""
        if isinstance(y, Tensor) and y.ndim:
            y = self.target(y)
        return t_distribution.cdf((y - self.means) / self.scales, self.freedoms).mean(0)

    def quantile(self, q: float | Tensor) -> Tensor:
        """The y with ``cdf(y) = q``, of the targets' shape; ``[Q, B, ...]`` for a tensor ``[Q]``."""
        if isinstance(q, Tensor) and q.ndim:
            return torch.stack([self.quantile(float(level)) for level in q])
        level = torch.tensor(fraction("q", float(q)), dtype=torch.float64)
        # The more degrees of freedom, the nearer the middle; a normal distribution has the nearest of all.
        farthest = t_distribution.quantile(level, self.freedoms.min().double().cpu())
        ends = torch.stack([self.means + self.scales * float(end) for end in (farthest, ndtri(level))])
        return bisect(ends.amin((0, 1)), ends.amax((0, 1)), lambda y: self.cdf(y) < float(level))

    def crps(self, y: Tensor) -> Tensor:
        """Continuous ranked probability score, in units of y; less is better.

        ``E|Y − y| − ½ E|Y − Y'|``: the first is a closed form, and so to rounding is the second for Y and Y' of one
        network; between different networks it is a sum over `STRATA` points of each, and good to a thousandth.
        """
        return self.mean_distance(self.target(y)) - self._half_difference()

    def mean_distance(self, a: float | Tensor) -> Tensor:
        """E|y − a|, in closed form."""
        z = (a - self.means) / self.scales
        return (self.scales * t_distribution.mean_abs(z, self.freedoms)).mean(0)

    def _half_difference(self) -> Tensor:
        """½ E|Y − Y'| of two draws."""
        freedoms, which = torch.unique(self.freedoms, return_inverse=True)
        points = _strata(freedoms.double().cpu())
        own = t_distribution.half_difference(freedoms.double().cpu()) - _sorted_difference(points)
        points, own = points.to(self.means), own.to(self.means)
        found = []
        rows = max(1, ROOM // (STRATA * self.means[:, :1].numel()))
        parts = (torch.split(t, rows, 1) for t in (self.means, self.scales, which))
        for means, scales, index in zip(*parts, strict=True):
            cloud = means[..., None] + scales[..., None] * points[index]  # [S, rows, ..., STRATA]
            apart = _sorted_difference(cloud.movedim(0, -1).flatten(-2).sort(-1).values)
            # What points leave out is the distance of two draws of one network that are in the same stratum.
            found.append(apart + (scales * own[index]).sum(0) / self.samples**2)
        return torch.cat(found)

    def sample(self, n: int, generator: torch.Generator | None = None) -> Tensor:
        """Values ``[n, B, ...]``, with ``t = sqrt(ν (U^(−2/ν) − 1)) cos 2πV`` for uniform U and V (Bailey 1994)."""
        networks = self._networks(n, generator)
        means, scales, freedoms = (t[networks] for t in (self.means, self.scales, self.freedoms))
        u, v = torch.rand(2, *means.shape, generator=generator, dtype=means.dtype, device=means.device)
        radii = (freedoms * torch.expm1(-2 / freedoms * torch.log1p(-u))).sqrt()  # 1 − u is not zero
        return means + scales * radii * (2 * math.pi * v).cos()

    def rescaled(self, loc: float | Tensor, scale: float | Tensor) -> TailedReals:
        """The prediction of ``loc + scale · y``, for positive ``scale``; in double precision if ``loc`` is far away."""
        units = Affine(loc, scale)
        dtype = torch.float64 if units.far else self.means.dtype
        loc, scale = (v.to(self.means.device, dtype) for v in (units.loc, units.scale))
        return TailedReals(self.means.to(dtype) * scale + loc, self.scales * scale, self.freedoms)


def _strata(freedoms: Tensor) -> Tensor:
    """The means of t in `STRATA` parts of equal probability, for each number of degrees of freedom, ``[V, STRATA]``."""
    levels = torch.arange(1, STRATA, dtype=torch.float64) / STRATA
    edges = t_distribution.quantile(levels, freedoms[:, None])
    below = torch.nn.functional.pad(t_distribution.lower_moment(edges, freedoms[:, None]), (1, 1))
    return STRATA * (below[:, :-1] - below[:, 1:])


def _sorted_difference(values: Tensor) -> Tensor:
    """½ E|Y − Y'| of two draws from the last dimension, in which values rise: ``Σ_i (2i − M − 1) y_i / M²``."""
    count = values.shape[-1]
    ranks = torch.arange(1, count + 1, dtype=values.dtype, device=values.device)
    return ((2 * ranks - count - 1) * values).sum(-1) / count**2
