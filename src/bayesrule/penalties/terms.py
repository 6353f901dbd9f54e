"""Functions of one number whose smoothing by a family can be done and undone exactly."""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import zip_longest

import torch
from torch import Tensor

from bayesrule.penalties.translations import Translation
from bayesrule.penalties.translations.base import Scale

Wave = tuple[float, float, float]


class Missing(Exception):
    """Terms that cannot be deconvolved: a wave where the family's spectrum is zero, or a power without a moment."""

    def __init__(self, frequency: float | None = None) -> None:
        super().__init__()
        self.frequency = frequency


@dataclass(frozen=True)
class Terms:
    """f(x) = Σ_k polynomial_k x^k + Σ amplitude cos(frequency·x + phase) + kink·|x|.

    >>> Terms((1.0, 0.0, 2.0), kink=3.0)(torch.tensor([-2.0]))
    tensor([15.])
    """

    polynomial: tuple[float, ...] = ()
    waves: tuple[Wave, ...] = ()
    kink: float = 0.0

    def __call__(self, x: Tensor) -> Tensor:
        """f(x)."""
        total = torch.zeros_like(x)
        for coefficient in reversed(self.polynomial):
            total = total * x + coefficient
        for amplitude, frequency, phase in self.waves:
            total = total + amplitude * (frequency * x + phase).cos()
        if self.kink:
            total = total + self.kink * x.abs()
        return total

    def __add__(self, other: Terms) -> Terms:
        """f + g, waves of one frequency and phase as one."""
        powers = zip_longest(self.polynomial, other.polynomial, fillvalue=0.0)
        polynomial = tuple(mine + theirs for mine, theirs in powers)
        waves: dict[tuple[float, float], float] = {}
        for amplitude, frequency, phase in self.waves + other.waves:
            waves[frequency, phase] = waves.get((frequency, phase), 0.0) + amplitude
        merged = tuple((amplitude, *wave) for wave, amplitude in waves.items())
        return Terms(polynomial, merged, self.kink + other.kink)

    def times(self, factor: float) -> Terms:
        """factor·f."""
        polynomial = tuple(factor * coefficient for coefficient in self.polynomial)
        waves = tuple((factor * amplitude, frequency, phase) for amplitude, frequency, phase in self.waves)
        return Terms(polynomial, waves, factor * self.kink)

    def size(self, reach: float) -> float:
        """Σ_k |polynomial_k| reach^k + Σ |amplitude| + |kink| reach: what rounding is relative to."""
        powers = sum(abs(c) * reach**k for k, c in enumerate(self.polynomial))
        return powers + sum(abs(a) for a, _, _ in self.waves) + abs(self.kink) * reach

    @property
    def degree(self) -> int:
        """The highest power with a coefficient other than zero."""
        return max((k for k, c in enumerate(self.polynomial) if c), default=0)

    def expectation(self, family: Translation, mu: Tensor, nu: Scale) -> Tensor:
        """E f(μ + νε), ε of the family's shape: (f ∗ β̌_{0,ν})(μ).

        >>> from bayesrule.penalties.translations import Gaussian
        >>> Terms((0.0, 0.0, 1.0)).expectation(Gaussian(), torch.tensor([2.0]), 3.0)  # μ² + ν²
        tensor([13.])
        """
        total = torch.zeros_like(mu + nu)
        for k, coefficient in enumerate(self.polynomial):
            if coefficient:
                total = total + coefficient * _power(family, k, mu, nu)
        for amplitude, frequency, phase in self.waves:
            total = total + amplitude * _wave(family, frequency, phase, mu, nu)
        if self.kink:
            total = total + self.kink * family.absolute(mu, nu)
        return total

    def deconvolved(self, family: Translation, nu: float) -> Terms:
        """The g with E g(μ + νε) = f(μ).

        Powers by the triangular system Σ_{k≥j} g_k C(k, j) m_{k−j} = f_j of the moments m; a wave by division through
        the characteristic function at its frequency. A kink has no such g, unless the family is a point mass.

        >>> from bayesrule.penalties.translations import Gaussian
        >>> Terms((0.0, 0.0, 1.0)).deconvolved(Gaussian(), 3.0).polynomial  # x² − 9
        (-9.0, 0.0, 1.0)
        """
        if self.kink and family.order:
            raise Missing
        if not math.isfinite(family.power(self.degree)):
            raise Missing
        moments = [float(family.moment(k, nu)) for k in range(self.degree + 1)]
        found = list(self.polynomial[: self.degree + 1])
        for j in reversed(range(len(found))):
            found[j] -= math.fsum(found[k] * math.comb(k, j) * moments[k - j] for k in range(j + 1, len(found)))
        waves = []
        for amplitude, frequency, phase in self.waves:
            value = complex(family.characteristic(torch.tensor(frequency, dtype=torch.float64), nu))
            # A zero, up to rounding; a spectrum that falls faster than any power is tiny long before it is zero.
            smallest = 1e-200 if family.order == math.inf else 1e-12
            if abs(value) < smallest:
                raise Missing(frequency)
            waves.append((amplitude / abs(value), frequency, phase - math.atan2(value.imag, value.real)))
        return Terms(tuple(found), tuple(waves), self.kink)


def _power(family: Translation, k: int, mu: Tensor, nu: Scale) -> Tensor:
    """E (μ + νε)^k."""
    parts = [math.comb(k, j) * family.power(j) * mu ** (k - j) * nu**j for j in range(k + 1) if family.power(j)]
    return torch.stack([part + torch.zeros_like(mu + nu) for part in parts]).sum(0)


def _wave(family: Translation, frequency: float, phase: float, mu: Tensor, nu: Scale) -> Tensor:
    """E cos(k(μ + νε) + p) = Re exp(i(kμ + p)) φ(kν)."""
    value = family.spectrum(torch.as_tensor(frequency * nu, dtype=torch.float64)).to(mu.device)
    angle = frequency * mu + phase
    if value.is_complex():
        return angle.cos() * value.real - angle.sin() * value.imag
    return angle.cos() * value
