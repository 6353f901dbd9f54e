"""Families with closed forms."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

from bayesrule.penalties.translations.base import Scale, Translation, line, uniform


@dataclass(frozen=True)
class Gaussian(Translation):
    """N(μ, ν²)."""

    def shape(self, x: Tensor) -> Tensor:
        """−½x² − ½ log 2π."""
        return -0.5 * x.square() - 0.5 * math.log(2 * math.pi)

    def spectrum(self, k: Tensor) -> Tensor:
        """exp(−½k²)."""
        return (-0.5 * k.square()).exp()

    def unit_entropy(self) -> float:
        """½ log 2πe."""
        return 0.5 * math.log(2 * math.pi * math.e)

    def power(self, order: int) -> float:
        """(order − 1)!!, zero for odd orders."""
        return 0.0 if order % 2 else float(math.prod(range(1, order, 2)))

    def nodes(self, count: int) -> tuple[Tensor, Tensor]:
        """Equal steps to ±9: exponentially accurate for analytic functions."""
        x = torch.linspace(-9, 9, count | 1, dtype=torch.float64)
        return x, torch.softmax(self.shape(x), 0)

    def draw(self, shape: tuple[int, ...], generator: torch.Generator | None) -> Tensor:
        """Standard normals."""
        return torch.randn(shape, generator=generator, dtype=torch.float64)

    def absolute(self, mu: Tensor, scale: Scale) -> Tensor:
        """ν √(2/π) exp(−μ²/2ν²) + μ erf(μ/√2 ν)."""
        ratio = mu / scale
        bell = math.sqrt(2 / math.pi) * (-0.5 * ratio.square()).exp()
        return scale * (bell + ratio * (ratio / math.sqrt(2)).erf())


@dataclass(frozen=True)
class Laplace(Translation):
    """exp(−|x − μ|/ν)/2ν."""

    order: ClassVar[float] = 2.0

    def shape(self, x: Tensor) -> Tensor:
        """−|x| − log 2."""
        return -x.abs() - math.log(2)

    def spectrum(self, k: Tensor) -> Tensor:
        """1/(1 + k²)."""
        return 1 / (1 + k.square())

    def unit_entropy(self) -> float:
        """1 + log 2."""
        return 1 + math.log(2)

    def power(self, order: int) -> float:
        """order!, zero for odd orders."""
        return 0.0 if order % 2 else float(math.factorial(order))

    def nodes(self, count: int) -> tuple[Tensor, Tensor]:
        """Both half-lines apart, for the kink: equal steps of t in x = exp(t − exp(−t))."""
        t = torch.linspace(-3.6, 3.75, max(count // 2, 2), dtype=torch.float64)
        x = (t - (-t).exp()).exp()
        weights = torch.softmax(-x + x.log() + torch.log1p((-t).exp()), 0) / 2
        return torch.cat([-x.flip(0), x]), torch.cat([weights.flip(0), weights])

    def draw(self, shape: tuple[int, ...], generator: torch.Generator | None) -> Tensor:
        """By the inverse of the distribution function."""
        u = uniform(shape, generator)
        return torch.where(u < 0.5, (2 * u).log(), -(2 - 2 * u).log())

    def absolute(self, mu: Tensor, scale: Scale) -> Tensor:
        """|μ| + ν exp(−|μ|/ν)."""
        return mu.abs() + scale * (-mu.abs() / scale).exp()


@dataclass(frozen=True)
class Uniform(Translation):
    """1/2ν between μ − ν and μ + ν.

    Its spectrum has zeros: functions of period 2ν with mean zero are smoothed to nothing. At a fixed ν a penalty has
    many priors, then, that differ by such functions; the one that is found has no frequencies from the first zero on.
    """

    order: ClassVar[float] = 1.0

    def shape(self, x: Tensor) -> Tensor:
        """−log 2 within one, −inf outside."""
        return torch.where(x.abs() <= 1, torch.full_like(x, -math.log(2)), -math.inf)

    def spectrum(self, k: Tensor) -> Tensor:
        """sin(k)/k."""
        return torch.sinc(k / math.pi)

    def unit_entropy(self) -> float:
        """log 2."""
        return math.log(2)

    def power(self, order: int) -> float:
        """1/(order + 1), zero for odd orders."""
        return 0.0 if order % 2 else 1 / (order + 1)

    def nodes(self, count: int) -> tuple[Tensor, Tensor]:
        """Gauss–Legendre, on pieces of up to 40 points."""
        pieces = -(-count // 40)
        nodes, masses = np.polynomial.legendre.leggauss(-(-count // pieces))
        x, weights = torch.from_numpy(nodes), torch.from_numpy(masses)
        middles = (2 * torch.arange(pieces, dtype=torch.float64) + 1) / pieces - 1
        points = (middles[:, None] + x / pieces).flatten()
        return points, (weights / weights.sum() / pieces).repeat(pieces)

    def draw(self, shape: tuple[int, ...], generator: torch.Generator | None) -> Tensor:
        """Uniform on (−1, 1)."""
        return 2 * uniform(shape, generator) - 1

    def absolute(self, mu: Tensor, scale: Scale) -> Tensor:
        """(μ² + ν²)/2ν within ν, |μ| outside."""
        return torch.where(mu.abs() < scale, (mu.square() + scale**2) / (2 * scale), mu.abs())


@dataclass(frozen=True)
class Logistic(Translation):
    """1/(4ν cosh²((x − μ)/2ν))."""

    def shape(self, x: Tensor) -> Tensor:
        """log σ(x) + log σ(−x)."""
        return torch.nn.functional.logsigmoid(x) + torch.nn.functional.logsigmoid(-x)

    def spectrum(self, k: Tensor) -> Tensor:
        """πk/sinh(πk)."""
        z = (math.pi * k).abs()
        safe = z.clamp(min=1e-4)
        return torch.where(z < 1e-4, 1 - z.square() / 6, 2 * safe * (-safe).exp() / -torch.expm1(-2 * safe))

    def unit_entropy(self) -> float:
        """2."""
        return 2.0

    def power(self, order: int) -> float:
        """order!·(2 − 2^{2−order}) ζ(order), zero for odd orders."""
        if order % 2 or order == 0:
            return float(order == 0)
        alternating = math.pi**2 / 12  # Σ ±1/n², known in closed form, and slow to sum
        if order > 2:
            alternating = math.fsum((-1) ** (n + 1) * n**-order for n in range(1, 4000))
        return 2 * math.factorial(order) * alternating

    def nodes(self, count: int) -> tuple[Tensor, Tensor]:
        """Equal steps to ±40."""
        return line(self, 40.0, 4.0, count)

    def draw(self, shape: tuple[int, ...], generator: torch.Generator | None) -> Tensor:
        """log u/(1 − u)."""
        return torch.logit(uniform(shape, generator))

    def absolute(self, mu: Tensor, scale: Scale) -> Tensor:
        """2ν log(2 cosh(μ/2ν))."""
        return mu.abs() + 2 * scale * torch.log1p((-mu.abs() / scale).exp())


@dataclass(frozen=True)
class Student(Translation):
    """Student's t with ``df`` degrees of freedom, at μ, stretched by ν; moments below ``df`` exist."""

    df: float = 3.0

    def __post_init__(self) -> None:
        super().__post_init__()
        if not (math.isfinite(self.df) and self.df > 0):
            raise ValueError(f"df must be positive and finite, not {self.df}: for infinity take Gaussian")

    def shape(self, x: Tensor) -> Tensor:
        """−(df + 1)/2 log(1 + x²/df) + const."""
        a = self.df / 2
        constant = math.lgamma(a + 0.5) - math.lgamma(a) - 0.5 * math.log(math.pi * self.df)
        return constant - (a + 0.5) * torch.log1p(x.square() / self.df)

    def spectrum(self, k: Tensor) -> Tensor:
        """K_a(z) z^a 2^{1−a}/Γ(a) with a = df/2, z = √df |k| and K_a(z) = ∫ exp(−z cosh t) cosh(at) dt over t > 0."""
        a = self.df / 2
        z = (math.sqrt(self.df) * k.abs()).clamp(min=1e-9)
        t = torch.linspace(0, 25 + 2 / a, 2001, dtype=torch.float64)
        inside = -z[..., None] * (t.cosh() - 1) + a * t + torch.log1p((-2 * a * t).exp()) - math.log(2)
        inside = torch.cat([inside[..., :1] - math.log(2), inside[..., 1:]], -1)
        bessel = torch.logsumexp(inside, -1) + math.log(float(t[1])) - z
        return (bessel + a * z.log() + (1 - a) * math.log(2) - math.lgamma(a)).exp()

    def unit_entropy(self) -> float:
        """(a + ½)(ψ(a + ½) − ψ(a)) + log √df B(a, ½) with a = df/2."""
        a = self.df / 2
        half, whole = torch.special.digamma(torch.tensor([a + 0.5, a], dtype=torch.float64)).tolist()
        beta = math.lgamma(a) + 0.5 * math.log(math.pi) - math.lgamma(a + 0.5)
        return (a + 0.5) * (half - whole) + 0.5 * math.log(self.df) + beta

    def power(self, order: int) -> float:
        """df^{n/2} Γ((n + 1)/2) Γ((df − n)/2)/(√π Γ(df/2)) for even n below df."""
        if order >= self.df:
            return math.inf
        if order % 2:
            return 0.0
        logs = math.lgamma((order + 1) / 2) + math.lgamma((self.df - order) / 2) - math.lgamma(self.df / 2)
        return math.exp(logs + order / 2 * math.log(self.df)) / math.sqrt(math.pi)

    def nodes(self, count: int) -> tuple[Tensor, Tensor]:
        """Equal steps of t in x = sinh(t), as far as 1e-17 of the mass."""
        end = 1e17 ** (1 / self.df) if self.df > 0.06 else 1e300  # where the power would overflow
        return line(self, end, 1.0, count)

    def draw(self, shape: tuple[int, ...], generator: torch.Generator | None) -> Tensor:
        """A normal over the root of a gamma."""
        shapes = torch.full(shape, self.df / 2, dtype=torch.float64)
        gamma = torch._standard_gamma(shapes, generator=generator)
        return torch.randn(shape, generator=generator, dtype=torch.float64) * (self.df / 2 / gamma).sqrt()


@dataclass(frozen=True)
class PointMass(Translation):
    """All at μ: what a penalty on plain weights stands on. There is no ν, and r(μ) = −log α(μ) up to a constant."""

    order: ClassVar[float] = 0.0

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.scale != 1.0:
            raise ValueError(f"a point mass has no scale, got {self.scale}: leave it out")

    def shape(self, x: Tensor) -> Tensor:
        """inf at 0, −inf elsewhere."""
        return torch.where(x == 0, torch.full_like(x, math.inf), -math.inf)

    def spectrum(self, k: Tensor) -> Tensor:
        """1."""
        return torch.ones_like(k)

    def unit_entropy(self) -> float:
        """0 by convention; the limit is −inf, which no penalty can say."""
        return 0.0

    def power(self, order: int) -> float:
        """0, and 1 of order 0."""
        return float(order == 0)

    def nodes(self, count: int) -> tuple[Tensor, Tensor]:
        """The one point."""
        return torch.zeros(1, dtype=torch.float64), torch.ones(1, dtype=torch.float64)

    def draw(self, shape: tuple[int, ...], generator: torch.Generator | None) -> Tensor:
        """Zeros."""
        return torch.zeros(shape, dtype=torch.float64)

    def absolute(self, mu: Tensor, scale: Scale) -> Tensor:
        """|μ|."""
        return mu.abs()
