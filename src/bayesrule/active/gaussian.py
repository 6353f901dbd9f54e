"""How much a label that is a number would tell: Gaussian forms, from means [S, N] under S joint draws.

Means of draws, with their scatter about the mean of all as a covariance, are a Gaussian of f: f(x) = m(x) + a(x)ᵀz
with z ~ N(0, I) of S dimensions and a_s(x) = (f_s(x) − m(x))/√S. A label y = f(x) + noise changes the law of z alone,
and its covariance does not depend on y: a batch is chosen one row after the other without a single label.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

BLOCK = 2**26  # bytes that a table of covariances may take


@dataclass(frozen=True, eq=False)
class Draws:
    """``factors``: a(x), [S, N]. ``noise``: the variance of y given f, [N]."""

    factors: Tensor
    noise: Tensor

    @classmethod
    def of(cls, means: Tensor, noise: Tensor) -> Draws:
        """From means [S, N] and variances of noise [N].

        >>> Draws.of(torch.tensor([[1.0], [3.0]]), torch.tensor([0.5])).variance.round(decimals=4)
        tensor([1.])
        """
        if means.ndim != 2 or not means.is_floating_point():
            raise ValueError(
                f"means must be [draws, examples], one number an example, got {means.dtype} {list(means.shape)}"
            )
        if not bool((noise > 0).all()):
            raise ValueError(f"noise must be above 0, got {float(noise.min()):.4g}: a label tells of no more than f")
        return cls((means - means.mean(0)) / len(means) ** 0.5, noise)

    @property
    def variance(self) -> Tensor:
        """Var f(x), [N]."""
        return self.factors.square().sum(0)

    def given(self, factor: Tensor, noise: Tensor) -> Draws:
        """The draws once a label was seen where the factor is a: a(x) ← (I + a aᵀ/noise)^−½ a(x).

        >>> pair = Draws.of(torch.tensor([[1.0], [3.0]]), torch.tensor([1.0]))
        >>> pair.given(pair.factors[:, 0], pair.noise[0]).variance
        tensor([0.5000])
        """
        size = factor.square().sum()
        if float(size) == 0:
            return self
        shrink = 1 - (1 + size / noise).rsqrt()  # along a; all that is across stays
        along = (factor @ self.factors) * (shrink / size)
        return Draws(self.factors - factor[:, None] * along, self.noise)


def variance_removed(pool: Draws, targets: Draws) -> Tensor:
    """1/M Σ_* Cov(f, f_*)²/(Var f + noise), [N]: how far a label narrows f at M other inputs (Cohn 1996)."""
    return _over_targets(pool, targets, lambda squares, _: squares)


def told(pool: Draws, targets: Draws) -> Tensor:
    """1/M Σ_* I(y; y_*) = −½ log(1 − ρ²), ρ the correlation of y and y_*, [N]: EPIG of Gaussians."""
    return _over_targets(pool, targets, lambda squares, variance: -0.5 * torch.log1p(-squares / variance))


def _over_targets(pool: Draws, targets: Draws, score: Callable[[Tensor, Tensor], Tensor]) -> Tensor:
    """The mean over targets of a score of Cov(f, f_*)²/(Var f + noise) and Var y_*."""
    step = max(1, BLOCK // (targets.factors.shape[1] * pool.factors.element_size()))
    scale = pool.variance + pool.noise
    variance = targets.variance + targets.noise
    found = []
    for rows in torch.split(torch.arange(pool.factors.shape[1], device=scale.device), step):
        covariance = pool.factors[:, rows].T @ targets.factors
        found.append(score(covariance.square() / scale[rows, None], variance).mean(1))
    return torch.cat(found)


def expected_variance(pool: Draws, targets: Draws, count: int) -> Tensor:
    """Rows whose labels leave the least variance of f at the targets, one after the other."""
    return _greedy(pool, targets, count, variance_removed)


def epig(pool: Draws, targets: Draws, count: int) -> Tensor:
    """Rows whose labels tell most of labels at the targets, one after the other."""
    return _greedy(pool, targets, count, told)


def bald(pool: Draws, count: int) -> Tensor:
    """Rows whose labels tell most of the network, ½ log(1 + Var f/noise), one after the other.

    >>> means = torch.tensor([[2.0, 2.0, 1.0], [-2.0, -2.0, 1.0], [2.0, 2.0, -1.0], [-2.0, -2.0, -1.0]])
    >>> bald(Draws.of(means, torch.full((3,), 0.1)), 2)  # the second is a copy of the first
    tensor([0, 2])
    """
    return _greedy(pool, pool, count, lambda left, _: (left.variance / left.noise).log1p() / 2)


def _greedy(pool: Draws, targets: Draws, count: int, score: Callable[[Draws, Draws], Tensor]) -> Tensor:
    rows = pool.factors.shape[1]
    if not 1 <= count <= rows:
        raise ValueError(f"count must be from 1 to the {rows} rows of the pool, got {count}")
    chosen: list[int] = []
    for _ in range(count):
        scores = score(pool, targets)
        scores[chosen] = -torch.inf
        best = int(scores.argmax())
        chosen.append(best)
        seen = pool.factors[:, best], pool.noise[best]
        pool, targets = pool.given(*seen), targets.given(*seen)
    return torch.tensor(chosen)
