"""Translation families of your own: by a density, by a characteristic function, or by draws."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from typing import ClassVar

import torch
from torch import Tensor

from bayesrule.penalties.translations.base import Translation, inverted, takes_two

COUNT = 4001  # points of a density that is known by its numbers


@dataclass(frozen=True, eq=False)
class Discretised(Translation):
    """A shape that is known by points and weights: expectations are sums."""

    order: ClassVar[float] = math.nan

    @property
    @abstractmethod
    def points(self) -> tuple[Tensor, Tensor]:
        """Points, and weights that sum to one."""

    def spectrum(self, k: Tensor) -> Tensor:
        """Σ_i weight_i exp(ik x_i)."""
        x, weights = self.points
        angles = k[..., None] * x
        return torch.complex(angles.cos() @ weights, angles.sin() @ weights)

    def unit_entropy(self) -> float:
        """−Σ_i weight_i log β(x_i)."""
        x, weights = self.points
        logs = self.shape(x)
        return -float(weights[weights > 0] @ logs[weights > 0])

    def power(self, order: int) -> float:
        """Σ_i weight_i x_i^order."""
        x, weights = self.points
        return float(weights @ x**order)

    def nodes(self, count: int) -> tuple[Tensor, Tensor]:
        """All points, whatever the ``count``."""
        return self.points

    def draw(self, shape: tuple[int, ...], generator: torch.Generator | None) -> Tensor:
        """By the inverse of the distribution function, linear between points."""
        return inverted(*self.points, shape, generator)


@dataclass(frozen=True, eq=False)
class Density(Discretised):
    """The family of a log-density log β(x), normalised here; the shape at ν = 1, in units of one.

    ``function``: of x alone, or of x and μ, and then it must depend on x − μ only. ``reach``: how far it is looked at.

    >>> from bayesrule.penalties import translations
    >>> family = Density(0.3, function=lambda x: -0.5 * x**2)
    >>> abs(family.entropy() - translations.Gaussian(0.3).entropy()) < 1e-10
    True
    >>> Density(function=lambda x, mu: -0.5 * (x - mu)**2 * (1 + mu**2))
    Traceback (most recent call last):
    ValueError: the family is not translation-invariant: log β(x; μ) differs from log β(x − μ; 0) by 40.5...
    """

    function: Callable[..., Tensor] = field(kw_only=True)
    reach: float = field(default=50.0, kw_only=True)

    def __post_init__(self) -> None:
        super().__post_init__()
        if takes_two(self.function, "mu"):
            _check_invariance(self.function)

    @cached_property
    def _constant(self) -> float:
        x = self._line()
        logs = self._log(x)
        found = float(torch.logsumexp(logs + _spacing(x).log(), 0))
        if not math.isfinite(found):
            raise ValueError(f"the density is not finite within ±{self.reach}: change reach, or the function")
        _check_ends(self.reach * (torch.stack([logs[0], logs[-1]]) - found).exp(), self.reach)
        return found

    @cached_property
    def points(self) -> tuple[Tensor, Tensor]:
        """Equal steps of t in x = sinh(t)."""
        x = self._line()
        return x, (self.shape(x) + _spacing(x).log()).exp()

    def shape(self, x: Tensor) -> Tensor:
        """log β(x)."""
        return self._log(x) - self._constant

    def _log(self, x: Tensor) -> Tensor:
        if takes_two(self.function, "mu"):
            found = self.function(x, torch.zeros((), dtype=torch.float64))
        else:
            found = self.function(x)
        return torch.as_tensor(found, dtype=torch.float64)

    def _line(self) -> Tensor:
        end = math.asinh(self.reach)
        return torch.linspace(-end, end, COUNT, dtype=torch.float64).sinh()


@dataclass(frozen=True, eq=False)
class Characteristic(Discretised):
    """The family of a characteristic function φ(k) = E exp(ikx) at ν = 1; the density is its Fourier transform.

    ``function``: of k ≥ 0, real or complex. ``reach``: the density is taken to be zero further out.

    >>> family = Characteristic(function=lambda k: torch.exp(-0.5 * k**2))
    >>> abs(family.entropy() - 0.5 * math.log(2 * math.pi * math.e)) < 1e-9
    True
    """

    function: Callable[[Tensor], Tensor] = field(kw_only=True)
    reach: float = field(default=15.0, kw_only=True)

    def __post_init__(self) -> None:
        super().__post_init__()
        at_zero = complex(torch.as_tensor(self.function(torch.zeros(1, dtype=torch.float64)))[0])
        if not abs(at_zero - 1) < 1e-6:
            raise ValueError(f"a characteristic function is 1 at frequency 0, this one is {at_zero:.6g}")

    def spectrum(self, k: Tensor) -> Tensor:
        """φ(k), and its conjugate for negative k."""
        found = torch.as_tensor(self.function(k.abs()))
        if found.is_complex():
            return torch.where(k < 0, found.conj(), found)
        return found.double()

    @cached_property
    def points(self) -> tuple[Tensor, Tensor]:
        """Equal steps between ±reach; what lies below 1e-13 of the mode is rounding, and left out."""
        x = torch.linspace(-self.reach, self.reach, COUNT, dtype=torch.float64)
        k = torch.arange(COUNT, dtype=torch.float64) * math.pi / (2 * self.reach)
        spectrum = self.spectrum(k)
        angles = k * x[:, None]
        values = angles.cos() @ spectrum.real.double() - 0.5
        if spectrum.is_complex():
            values = values + angles.sin() @ spectrum.imag.double()
        top = float(values.max())
        if float(values.min()) < -1e-6 * top:
            where = float(x[values.argmin()])
            raise ValueError(f"no density has this characteristic function: at x = {where:.3g} it would be below zero")
        _check_ends(self.reach * torch.stack([values[0], values[-1]]) / (values.sum() * (x[1] - x[0])), self.reach)
        values = torch.where(values > 1e-13 * top, values, 0.0)
        return x, values / values.sum()

    def shape(self, x: Tensor) -> Tensor:
        """log β(x), linear between points."""
        points, weights = self.points
        step = float(points[1] - points[0])
        place = ((x - points[0]) / step).clamp(0, COUNT - 1.000001)
        low, share = place.long(), place - place.long()
        inside = (1 - share) * weights[low] + share * weights[low + 1]
        return torch.where(x.abs() <= self.reach, (inside / step).log(), -math.inf)


@dataclass(frozen=True, eq=False)
class Samples(Discretised):
    """The family whose shape is that of draws, smoothed: a normal of Silverman's width about each.

    Draws of 1-D values about their own location; ν multiplies them. Frequencies at which the draws are noise, above
    which |φ(k)| is below 3/√n, are not used. Errors that are stated do not count that of having drawn.

    >>> draws = torch.randn(4000, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    >>> abs(Samples(draws=draws).entropy() - 1.419) < 0.05
    True
    """

    draws: Tensor = field(kw_only=True)

    def __post_init__(self) -> None:
        super().__post_init__()
        values = torch.as_tensor(self.draws, dtype=torch.float64).detach().flatten()
        if len(values) < 10 or not bool(values.isfinite().all()) or float(values.std()) == 0:
            raise ValueError(f"a family needs at least 10 finite draws that differ, got {len(values)}")
        object.__setattr__(self, "draws", values)

    @property
    def floor(self) -> float:
        """Below this the characteristic function is noise."""
        return 3 / math.sqrt(len(self.draws))

    @cached_property
    def width(self) -> float:
        """0.9 min(std, IQR/1.34) n^−1/5."""
        low, high = torch.quantile(
            self.draws[:: max(1, len(self.draws) // 100_000)], torch.tensor([0.25, 0.75]).double()
        )
        return 0.9 * min(float(self.draws.std()), float(high - low) / 1.34 or math.inf) * len(self.draws) ** -0.2

    @cached_property
    def points(self) -> tuple[Tensor, Tensor]:
        """Equal steps over the range of the draws."""
        low, high = float(self.draws.min()) - 6 * self.width, float(self.draws.max()) + 6 * self.width
        if high - low > 1.5 * self.width * (COUNT - 1):
            raise ValueError(
                f"the draws lie too far apart for a family, from {low:.3g} to {high:.3g} in units of a width of "
                f"{self.width:.3g}: leave out the outliers, or give the density with translations.Density"
            )
        x = torch.linspace(low, high, COUNT, dtype=torch.float64)
        return x, torch.softmax(self.shape(x), 0)

    def shape(self, x: Tensor) -> Tensor:
        """log 1/n Σ_i N(x; x_i, width²), of counted draws."""
        centres, counts = self._counted
        logs = counts.log() - 0.5 * ((x[..., None] - centres) / self.width).square()
        return torch.logsumexp(logs, -1) - math.log(math.sqrt(2 * math.pi) * self.width)

    @cached_property
    def _counted(self) -> tuple[Tensor, Tensor]:
        """The draws on a grid of a tenth of the width, with their shares."""
        cells, counts = (self.draws / (0.1 * self.width)).round().unique(return_counts=True)  # type: ignore[no-untyped-call]
        return cells * 0.1 * self.width, counts / len(self.draws)


def _spacing(x: Tensor) -> Tensor:
    """dx of equal steps of asinh(x)."""
    return (1 + x.square()).sqrt() * float(x[1].asinh() - x[0].asinh())


def _check_ends(masses: Tensor, reach: float) -> None:
    """Refuse a density that goes on at ±reach: what lies beyond, in units of one, is about reach times it."""
    if float(masses.max()) > 1e-5:
        raise ValueError(
            f"the density has not fallen off within ±{reach:g}: about {float(masses.max()):.1g} of it lies beyond; "
            f"raise reach, as in reach={10 * reach:g}"
        )


def _check_invariance(function: Callable[..., Tensor]) -> None:
    x = torch.linspace(-3, 3, 61, dtype=torch.float64)
    zero, most = torch.zeros((), dtype=torch.float64), 0.0
    for mu in (-2.0, 0.5, 3.0):
        there = function(x + mu, torch.tensor(mu, dtype=torch.float64))
        most = max(most, float((there - function(x, zero)).abs().nan_to_num(0.0).max()))
    if most > 1e-6:
        raise ValueError(
            f"the family is not translation-invariant: log β(x; μ) differs from log β(x − μ; 0) by {most:.3g}. A prior "
            f"is read off a penalty only for families that μ moves and does not change"
        )
