"""Student's t distribution in torch alone, which has no incomplete beta function."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from bayesrule.predictions.bisection import bisect

TERMS = 30  # of the continued fraction: to the last bits of float64 for up to 100 degrees of freedom


def log_density(t: Tensor, freedom: Tensor) -> Tensor:
    """``log Γ((ν+1)/2) − log Γ(ν/2) − ½ log(νπ) − (ν+1)/2 · log(1 + t²/ν)``.

    >>> log_density(torch.tensor(0.0), torch.tensor(3.0)).exp()  # 2/(π√3)
    tensor(0.3676)
    """
    constant = torch.lgamma((freedom + 1) / 2) - torch.lgamma(freedom / 2) - (freedom * math.pi).log() / 2
    return constant - (freedom + 1) / 2 * torch.log1p(t.square() / freedom)


def cdf(t: Tensor, freedom: Tensor) -> Tensor:
    """P(T ≤ t) for ν degrees of freedom, in the lower tail exact to rounding in relative terms.

    ``½ I_x(ν/2, ½)`` with ``x = ν/(ν + t²)`` for negative t, by the continued fraction of the incomplete beta function
    I on the side where it converges fast (DLMF 8.17.22); by symmetry for positive t.

    >>> cdf(torch.tensor([-1.0, 0.0, 1.0]), torch.tensor(1.0))
    tensor([0.2500, 0.5000, 0.7500])
    """
    squares = t.square()
    x, rest = freedom / (freedom + squares), squares / (freedom + squares)  # both exact, where 1 − x would not be
    a, b = freedom / 2, torch.full_like(freedom, 0.5)
    near = x > (a + 1) / (a + b + 2)  # t near zero: the fraction of 1 − I_{1−x}(b, a) is the fast one
    first, second = torch.where(near, b, a), torch.where(near, a, b)
    log_beta = torch.lgamma(a) + torch.lgamma(b) - torch.lgamma(a + b)
    tiny = torch.finfo(x.dtype).tiny  # at t = 0 there is no log, and none is needed
    front = (a * x.clamp(min=tiny).log() + b * rest.clamp(min=tiny).log() - log_beta).exp()
    part = front * _fraction(first, second, torch.where(near, rest, x)) / first
    tail = torch.where(near, 1 - part, part) / 2
    return torch.where(t > 0, 1 - tail, tail)


def quantile(q: Tensor, freedom: Tensor) -> Tensor:
    """The t with ``cdf(t) = q``, by bisection.

    >>> quantile(torch.tensor([0.25, 0.75]), torch.tensor(1.0))
    tensor([-1.0000,  1.0000])
    """
    lower = torch.minimum(q, 1 - q) + 0 * freedom  # in the lower tail, where the cdf has all digits
    low = torch.full_like(lower, -1.0)
    while bool((cdf(low, freedom) > lower).any()):
        low = torch.where(cdf(low, freedom) > lower, 2 * low, low)
    found = bisect(low, torch.zeros_like(low), lambda t: cdf(t, freedom) < lower)
    return torch.where(q > 0.5, -found, found)


def mean_abs(z: Tensor, freedom: Tensor) -> Tensor:
    """``E|T − z| = z (2F(z) − 1) + 2 f(z) (ν + z²)/(ν − 1)``."""
    return z * (2 * cdf(z, freedom) - 1) + 2 * lower_moment(z, freedom)


def lower_moment(z: Tensor, freedom: Tensor) -> Tensor:
    """``−E[T; T ≤ z] = f(z) (ν + z²)/(ν − 1)``."""
    return log_density(z, freedom).exp() * (freedom + z.square()) / (freedom - 1)


def half_difference(freedom: Tensor) -> Tensor:
    """``½ E|T − T'| = ∫ F (1 − F) dt`` for numbers of degrees above 2, in double precision.

    By the trapezoid rule in u with t = sinh u, which converges faster than any power: the integrand has no edge.

    >>> half_difference(torch.tensor([100.0])) > 1 / math.pi**0.5  # that of a normal distribution
    tensor([True])
    """
    step = 0.05
    u = torch.arange(0, 40 + step, step, dtype=torch.float64)
    tails = cdf(-torch.sinh(u), freedom.double().cpu()[..., None])
    values = tails * (1 - tails) * torch.cosh(u)
    whole = 2 * values.sum(-1) - values[..., 0]  # both sides, and zero once
    return step * whole.to(freedom.device)


def _fraction(a: Tensor, b: Tensor, x: Tensor) -> Tensor:
    """The continued fraction of I_x(a, b), from its last term back."""
    value = torch.ones_like(x)
    for m in range(TERMS, 0, -1):
        even = m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m))
        odd = -(a + m - 1) * (a + b + m - 1) * x / ((a + 2 * m - 2) * (a + 2 * m - 1))
        value = 1 + odd / (1 + even / value)
    return 1 / value
