"""A from (A ∗ β̌)(μ) = f(μ), when f is known by its values only.

The quotient F f / F β̌ is cut off at a frequency K, by a window that is 1 below K/2 and falls smoothly to 0 at K. The
kernel F⁻¹[window / F β̌] falls off faster than any power, so f may grow like one: nothing has to be in L². It gives back
all polynomials exactly. A_K, smoothed again by the family, is f without its frequencies above K: what the cut costs is
seen in f, and read off a ladder of cut-offs, each 2^¼ times the one before:

- *band*: how much A changes from a cut-off to the next. Bands above the cut-off that are seen count in full; those to
  come are a geometric series. Bands that grow about as fast as 1/|F β̌| does mean that there is no A.
- *gap*: what is left of f above the highest cut-off K. In A it is at least gap/|F β̌(K)|.
- *noise*: errors in f times what the kernel makes of them, which grows as fast as 1/|F β̌| does.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from bayesrule.penalties.equivalence.lines import not_finite
from bayesrule.penalties.translations import PointMass, Samples, Translation

Function = Callable[[Tensor], Tensor]
RUNGS = 13
OVERSAMPLED = 4  # steps of the grid in half a wave of the highest frequency
ROUNDING = 2e-16  # of a function's values, relative to 1 + |f|, at least
PRECISION = 1e-14  # to which they are taken to be right, as sums are that approximate an integral
ABSURD = 1.0  # nats: no A has as much where the family is about to leave nothing of it
TRUSTED = 1e-7  # errors of a function's values, relative, at most
BACK = (1, 2, 4)  # rungs, from which on the way bands fall is looked at
SEEN = 5.0  # times the noise, of which every number is twice a standard deviation
SMALLEST = 1e-11  # |F β̌| at most this small is divided by
ACCEPTED = 1e-4  # nats: an A this sure is taken whatever comes at higher frequencies
GROWTH = 0.2  # power of the kernel's growth at which bands that grow will go on


class Window(NamedTuple):
    """Where A is wanted: |x − centre| ≤ half, and to be as sure as can be within ``core``."""

    centre: float
    half: float
    core: float = math.inf


@dataclass(frozen=True, eq=False)
class Deconvolved:
    """A on a grid. ``bands``: pairs (cut-off, how much A changed on the way to it), of those that are seen."""

    x: Tensor
    values: Tensor
    doubt: Tensor  # how far off each value may be
    misfit: float  # how far A, smoothed again, is off f
    gap: float  # what is left of f above all cut-offs
    bands: tuple[tuple[float, float], ...]
    grows: bool
    coarse: bool  # the grid, not the family, set the highest frequency
    peak: float  # where the last band is largest

    @property
    def error(self) -> float:
        """How far off A may be, at most."""
        return float(self.doubt.max())


def deconvolve(function: Function, family: Translation, nu: float, window: Window, points: int) -> Deconvolved:
    """A on a grid of at most ``points`` points in the window, at the cut-off with the least error.

    >>> from bayesrule.penalties.translations import Gaussian
    >>> found = deconvolve(lambda x: x**4, Gaussian(), 0.5, Window(0.0, 3.0), 4000)
    >>> truth = found.x**4 - 6 * 0.25 * found.x**2 + 3 * 0.25**2
    >>> bool((found.values - truth).abs().max() <= found.error < 1e-5)
    True
    """
    limit = highest(family, nu)
    finest = math.pi * points / (2 * window.half * OVERSAMPLED)
    top = min(limit, finest)
    cutoffs = [top * 2 ** (-place / 4) for place in reversed(range(RUNGS))]
    step = math.pi / (OVERSAMPLED * top)
    half = max(math.ceil(window.half / step), 16)
    margin = _span(cutoffs[0], step)
    grid = window.centre + step * torch.arange(-half - margin, half + margin + 1, dtype=torch.float64)
    f = _values(function, grid, nu)
    roughness = _roughness(f)
    x = grid[margin : margin + 2 * half + 1]
    ladder = Ladder(
        x,
        (x - window.centre).abs() <= window.core,
        f[margin : margin + 2 * half + 1],
        cutoffs,
        [_rung(f, kernel(family, nu, cutoff, step), margin, roughness) for cutoff in cutoffs],
        [_rung(f, kernel(PointMass(), 1.0, cutoff, step), margin, roughness) for cutoff in cutoffs],
        lambda k: float(family.characteristic(torch.tensor([k], dtype=torch.float64), nu).abs()),
        limit,
        roughness,
    )
    return ladder.best(limit > finest)


def highest(family: Translation, nu: float) -> float:
    """The highest cut-off that makes sense: the quotient is not divided by less than `SMALLEST`, nor past a minimum."""
    k = torch.logspace(-3, 4, 4000, dtype=torch.float64)
    size = family.spectrum(k).abs()
    floor = family.floor if isinstance(family, Samples) else SMALLEST
    past = (size < floor).nonzero()
    end = int(past[0]) if len(past) else len(k) - 1
    rising = (size[1:end] > size[: max(end - 1, 0)] * (1 + 1e-9)).nonzero()
    if len(rising):
        return float(k[int(rising[0])]) / nu
    return float(k[end]) / 0.8 / nu


def kernel(family: Translation, nu: float, cutoff: float, step: float) -> Tensor:
    """step·F⁻¹[window / F β̌] at multiples of the step, as far as it matters."""
    span = _span(cutoff, step)
    size = 2 ** math.ceil(math.log2(4 * span + 2))
    k = 2 * math.pi * torch.arange(size // 2 + 1, dtype=torch.float64) / (size * step)
    window = 0.5 * torch.special.erfc(24 * (k / cutoff - 0.75))
    spectrum = family.characteristic(k[k < 1.25 * cutoff], nu)
    quotient = torch.zeros(len(k), dtype=torch.complex128)
    quotient[: len(spectrum)] = window[: len(spectrum)] / spectrum
    quotient[(k > cutoff) & (window < 1e-17 * quotient.abs())] = 0  # past a zero of the spectrum
    found = torch.fft.irfft(quotient, n=size)
    return torch.cat([found[-span:], found[: span + 1]])


def _span(cutoff: float, step: float) -> int:
    """The kernel is a Gaussian of the window's edge: below 1e-16 from 12·24/cutoff on."""
    return math.ceil(290 / (cutoff * step))


def _values(function: Function, grid: Tensor, nu: float) -> Tensor:
    values = function(grid)
    if not bool(values.isfinite().all()):
        raise not_finite(float(grid[~values.isfinite()][0]), nu)
    return values


class Rung(NamedTuple):
    """A at a cut-off, its noise, and the most that the kernel makes of an f of size one."""

    values: Tensor
    noise: Tensor
    gain: float


@dataclass(frozen=True, eq=False)
class Ladder:
    """A at rising cut-offs."""

    x: Tensor
    core: Tensor
    f: Tensor
    cutoffs: list[float]
    rungs: list[Rung]
    passed: list[Rung]  # f without what is above each cut-off
    spectrum: Callable[[float], float]  # |F β̌|
    limit: float  # the highest cut-off that makes sense
    roughness: float

    @cached_property
    def changes(self) -> list[Tensor]:
        """From each rung to the next, in A."""
        return [(b.values - a.values).abs() for a, b in pairwise(self.rungs)]

    @cached_property
    def bands(self) -> list[Tensor]:
        """What f has from each rung to the next, and above the last, zero where it may be rounding."""
        size, found = 1 + self.f.abs(), []
        for before, after in pairwise(self.passed):
            found.append(_above(after.values - before.values, SEEN * after.noise + PRECISION * size))
        noise = SEEN * (self.passed[-1].noise + self.roughness * size)
        return [*found, _above(self.f - self.passed[-1].values, noise + PRECISION * size)]

    @cached_property
    def precision(self) -> Tensor:
        """Errors of f: a small band that would have to be more than `ABSURD` in A is none of A."""
        size, least = 1 + self.f.abs(), PRECISION
        for band in self.bands:
            share = float((band.abs() / size)[self.core].max())
            if share < TRUSTED and float(self._undone(band)[self.core].max()) > ABSURD:
                least = max(least, 2 * share)
        return least * size

    @cached_property
    def seen(self) -> list[Tensor]:
        """What the bands of f stand for in A: as the rungs have it, where it is no noise there."""
        found = [self._undone(_above(band, self.precision)) for band in self.bands]
        for place, (change, rung) in enumerate(zip(self.changes, self.rungs[1:], strict=True)):
            found[place] = torch.where((found[place] > 0) & (change > SEEN * rung.noise), change, found[place])
        return found

    def _undone(self, band: Tensor) -> Tensor:
        """|band| / |F β̌(k)| at k² = Σ band'² / Σ band²: for a wave that is what it was before it was smoothed."""
        inside, step = (band / (1 + self.f.abs()))[self.core], float(self.x[1] - self.x[0])
        share = float(inside.diff().square().sum() / inside.square().sum().clamp(min=1e-300)) ** 0.5 / 2
        frequency = min(2 / step * math.asin(min(share, 1.0)), 0.75 * self.limit)
        return band.abs() / max(self.spectrum(frequency), 1e-300)

    def best(self, coarse: bool) -> Deconvolved:
        """The rung with the least doubt in the core."""
        core = self.core
        doubts = [self._doubt(place) for place in range(1, len(self.changes))]
        best = min(range(len(doubts)), key=lambda place: float(doubts[place][core].max()))
        chosen, bands = best + 2, [float(each[core].max()) for each in self.seen[:-1]]
        return Deconvolved(
            self.x,
            self.rungs[chosen].values,
            doubts[best],
            float((self.f - self.passed[chosen].values)[core].abs().max()),
            float((self.f - self.passed[-1].values)[core].abs().max()),
            tuple((cutoff, band) for cutoff, band in zip(self.cutoffs[1:], bands, strict=True) if band),
            float(doubts[best][core].max()) > ACCEPTED and self._grows(bands),
            coarse,
            float(self.x[int(self.changes[-1].argmax())]),
        )

    def _doubt(self, place: int) -> Tensor:
        """How far off the rung after a change may be: what is seen above it or is to come, and noise."""
        rung = self.rungs[place + 1]
        wave = math.ceil(2 * math.pi / (self.cutoffs[place + 1] * float(self.x[1] - self.x[0])))
        coming = _factor([float(each.max()) for each in self.changes], place) * _near(self.changes[place], wave)
        above = 2 * torch.stack(self.seen[place + 1 :]).sum(0)
        return torch.maximum(coming, _near(above, wave)) + 5 * rung.noise + rung.gain * self.precision

    def _grows(self, bands: list[float]) -> bool:
        """Whether the last bands are seen and grow, by more than a power of what the kernel does."""
        if self.spectrum(self.cutoffs[-1]) > 1e-6:  # a zero, which says nothing of higher frequencies
            return False
        first, second, third = bands[-5::2]
        growth = (self.rungs[-1].gain / self.rungs[-5].gain) ** GROWTH
        return 0 < first < second < third and third > growth * first


def _above(values: Tensor, least: Tensor) -> Tensor:
    """Values of that size, and zero."""
    return torch.where(values.abs() > least, values, 0.0)


def _near(values: Tensor, reach: int) -> Tensor:
    """The highest of the values within a reach of each: a change that is a wave passes through zero."""
    pooled = torch.nn.functional.max_pool1d(values[None, None], 2 * reach + 1, stride=1, padding=reach)
    return pooled[0, 0]


def _factor(bands: list[float], place: int) -> float:
    """All bands to come, in units of this one, twice over: a geometric series by the slowest of several looks back."""
    before = [bands[place - back] for back in BACK if back <= place]
    ratios = [(bands[place] / max(b, 1e-300)) ** (1 / back) for back, b in zip(BACK, before, strict=False)]
    ratio = min(max([*ratios, 0.3]), 0.95)
    return 2 * ratio / (1 - ratio)


def _rung(f: Tensor, weights: Tensor, margin: int, roughness: float) -> Rung:
    span = len(weights) // 2
    inner = f[margin - span : len(f) - margin + span]
    of_f = _convolve((roughness * (1 + inner.abs())).square(), weights.square()).clamp(min=0).sqrt()
    of_kernel = _floor(weights) * _convolve_ones(inner.square(), len(weights)).sqrt()
    return Rung(_convolve(inner, weights), 2 * (of_f + of_kernel), float(weights.abs().sum()))


def _floor(weights: Tensor) -> float:
    """The rounding of the kernel, seen at its ends, where it should be zero."""
    size = max(len(weights) // 20, 1)
    return float(torch.cat([weights[:size], weights[-size:]]).square().mean().sqrt())


def _convolve_ones(values: Tensor, count: int) -> Tensor:
    """Sums over ``count`` neighbours."""
    sums = torch.cat([torch.zeros(1, dtype=torch.float64), values.cumsum(0)])
    return (sums[count:] - sums[:-count]).clamp(min=0)


def _roughness(f: Tensor) -> float:
    """Errors in f, relative to 1 + |f|, as differences of 16th order see them: those of smooth functions are less."""
    differences = f
    for _ in range(16):
        differences = differences.diff()
    relative = differences.abs() / (1 + f[8 : 8 + len(differences)].abs())
    return ROUNDING + min(1.5 * float(relative.median()) / math.sqrt(math.comb(32, 16)), 1e-6)


def _convolve(values: Tensor, weights: Tensor) -> Tensor:
    return torch.from_numpy(np.convolve(values.numpy(), weights.numpy(), "valid"))
