"""A from (A ∗ β̌)(μ) = f(μ), when f is known by its values only.

The quotient F f / F β̌ is cut off at a frequency K, by a window that is 1 below K/2 and falls smoothly to 0 at K. The
kernel F⁻¹[window / F β̌] falls off faster than any power, so f may grow like one: nothing has to be in L². It gives back
all polynomials exactly. What the cut costs is read off a ladder of cut-offs K, each √2 times the one before:

- *band*: how much A changes from a cut-off to the next, at most. Bands that fall add up to the error of the last one;
  bands that grow mean that the quotient has no inverse transform, and that there is no A.
- *noise*: rounding in f times what the kernel makes of it, which grows as fast as 1/|F β̌| does.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from bayesrule.priors.translations import Samples, Translation

Function = Callable[[Tensor], Tensor]
RUNGS = 8
OVERSAMPLED = 4  # steps of the grid in half a wave of the highest frequency
ROUNDING = 2e-16  # of a function's values, relative, at least
SEEN = 20.0  # times the noise
SMALLEST = 1e-11  # |F β̌| at most this small is divided by
ACCEPTED = 1e-4  # nats: an A this sure is taken whatever comes at higher frequencies


class Window(NamedTuple):
    """Where A is wanted: |x − centre| ≤ half."""

    centre: float
    half: float


@dataclass(frozen=True, eq=False)
class Deconvolved:
    """A on a grid. ``bands``: pairs (cut-off, how much A changed on the way to it), of those above noise."""

    x: Tensor
    values: Tensor
    doubt: Tensor  # how far off each value may be
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

    >>> from bayesrule.priors.translations import Gaussian
    >>> found = deconvolve(lambda x: x**4, Gaussian(), 0.5, Window(0.0, 3.0), 4000)
    >>> truth = found.x**4 - 6 * 0.25 * found.x**2 + 3 * 0.25**2
    >>> bool((found.values - truth).abs().max() <= found.error < 1e-5)
    True
    """
    limit = highest(family, nu)
    finest = math.pi * points / (2 * window.half * OVERSAMPLED)
    top = min(limit, finest)
    cutoffs = [top * 2 ** (-place / 2) for place in reversed(range(RUNGS))]
    step = math.pi / (OVERSAMPLED * top)
    half = max(math.ceil(window.half / step), 16)
    margin = _span(cutoffs[0], step)
    grid = window.centre + step * torch.arange(-half - margin, half + margin + 1, dtype=torch.float64)
    f = _values(function, grid)
    rungs = [_rung(f, kernel(family, nu, cutoff, step), margin) for cutoff in cutoffs]
    return _chosen(grid[margin : margin + 2 * half + 1], cutoffs, rungs, limit > finest)


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


def _values(function: Function, grid: Tensor) -> Tensor:
    values = function(grid)
    if not bool(values.isfinite().all()):
        where = float(grid[~values.isfinite()][0])
        raise ValueError(f"the penalty is not finite at μ = {where:.6g}: it must be a number for every μ and ν")
    return values


class Rung(NamedTuple):
    """A at a cut-off, its noise, and the most that the kernel makes of an f of size one."""

    values: Tensor
    noise: Tensor
    gain: float


def _rung(f: Tensor, weights: Tensor, margin: int) -> Rung:
    span = len(weights) // 2
    inner = f[margin - span : len(f) - margin + span]
    of_f = _convolve((_roughness(f) * (1 + inner.abs())).square(), weights.square()).clamp(min=0).sqrt()
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


def _chosen(x: Tensor, cutoffs: list[float], rungs: list[Rung], coarse: bool) -> Deconvolved:
    """The rung with the least error, and whether the bands grow."""
    changes = [(b.values - a.values).abs() for a, b in pairwise(rungs)]
    bands = [float(change.max()) for change in changes]
    noises = [float(rung.noise.max()) for rung in rungs[1:]]
    seen = [place for place, band in enumerate(bands) if band > SEEN * noises[place]]
    real = _real(bands, [rung.gain for rung in rungs[1:]], seen)
    factors = [_factor(bands, place) for place in range(len(bands))]
    later = [2 * sum(bands[i] for i in real if i > place) for place in range(len(bands))]
    errors = [max(f * b, more) + 5 * n for f, b, n, more in zip(factors, bands, noises, later, strict=True)]
    best = min(range(1, len(bands)), key=errors.__getitem__)
    wave = math.ceil(2 * math.pi / (cutoffs[best + 1] * float(x[1] - x[0])))
    doubt = factors[best] * _highest_near(changes[best], wave) + 5 * rungs[best + 1].noise
    for place in real:
        doubt = doubt + 2 * changes[place] if place > best else doubt
    return Deconvolved(
        x,
        rungs[best + 1].values,
        doubt,
        tuple((cutoffs[place + 1], bands[place]) for place in seen),
        _grows([bands[place] for place in seen]) and errors[best] > ACCEPTED,
        coarse,
        float(x[int(changes[-1].argmax())]),
    )


def _highest_near(values: Tensor, reach: int) -> Tensor:
    """The highest of the values within a reach of each: a change that is a wave passes through zero."""
    pooled = torch.nn.functional.max_pool1d(values[None, None], 2 * reach + 1, stride=1, padding=reach)
    return pooled[0, 0]


def _real(bands: list[float], gains: list[float], seen: list[int]) -> list[int]:
    """The bands that are not errors of f made greater: these rise to the end, by less than the kernel's gain does."""
    found = list(seen)
    while len(found) > 1 and found[-2] == found[-1] - 1:
        before, last = found[-2:]
        if not 1 < bands[last] / bands[before] <= gains[last] / gains[before]:
            break
        found.pop()
    return found


def _factor(bands: list[float], place: int) -> float:
    """All bands to come, in units of this one, twice over: a geometric series by the slower of two looks back."""
    before = [bands[place - back] for back in (1, 2) if back <= place]
    ratios = [(bands[place] / max(b, 1e-300)) ** (1 / back) for back, b in enumerate(before, 1)]
    ratio = min(max([*ratios, 0.1]), 0.9) if ratios else 0.9
    return 2 * ratio / (1 - ratio)


def _grows(bands: list[float]) -> bool:
    """Whether the last bands rise, over two steps, and did not fall by much before: then it would be errors in f."""
    return len(bands) > 2 and bands[-1] > bands[-2] > bands[-3] and min(bands) > 0.3 * bands[0]
