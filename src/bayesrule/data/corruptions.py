"""Common corruptions of pictures at five severities, after Hendrycks and Dietterich (2019).

Each takes pictures ``[N, C, H, W]`` in [0, 1], a severity from 1 to 5 and a generator, and works for any size and any
number of channels. They are written from the descriptions, with strengths near those of the published corruptions of
32 × 32 pictures, and are not those files: weather is made of fractal noise rather than of photographs, colours are not
turned, brightness is added. Lengths are pixels of a picture of up to 32, and grow with larger ones.

==========  =====================================================================
noise       ``gaussian-noise``, ``shot-noise``, ``impulse-noise``, ``speckle-noise``
blur        ``gaussian-blur``, ``defocus-blur``, ``glass-blur``, ``motion-blur``, ``zoom-blur``
weather     ``fog``, ``frost``, ``snow``, ``brightness``
digital     ``contrast``, ``pixelate``, ``jpeg``, ``elastic``
==========  =====================================================================
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import TypeAlias

import torch
from torch import Tensor
from torch.nn.functional import conv2d, interpolate, pad

from bayesrule.data.pictures import displaced, mapped

Corrupt: TypeAlias = Callable[[Tensor, int, torch.Generator], Tensor]
ROOM = 2**22
"""Pixels that are corrupted at a time."""
LUMINANCE = (
    (16, 11, 10, 16, 24, 40, 51, 61),
    (12, 12, 14, 19, 26, 58, 60, 55),
    (14, 13, 16, 24, 40, 57, 69, 56),
    (14, 17, 22, 29, 51, 87, 80, 62),
    (18, 22, 37, 56, 68, 109, 103, 77),
    (24, 35, 55, 64, 81, 104, 113, 92),
    (49, 64, 78, 87, 103, 121, 120, 101),
    (72, 92, 95, 98, 112, 100, 103, 99),
)
"""Steps of the coefficients of an 8 × 8 block, by the JPEG standard (ITU T.81, table K.1)."""


def gaussian_noise(x: Tensor, severity: int, generator: torch.Generator) -> Tensor:
    """Normal noise."""
    return x + _at(severity, 0.04, 0.06, 0.08, 0.09, 0.10) * _normal(x, generator)


def shot_noise(x: Tensor, severity: int, generator: torch.Generator) -> Tensor:
    """Poisson noise of so many photons at white."""
    photons = _at(severity, 500, 250, 100, 75, 50)
    return torch.poisson(x.clamp(min=0) * photons, generator=generator) / photons


def impulse_noise(x: Tensor, severity: int, generator: torch.Generator) -> Tensor:
    """Salt and pepper: a share of the pixels is white or black."""
    share = _at(severity, 0.01, 0.02, 0.03, 0.05, 0.07)
    chance = torch.rand(x.shape, generator=generator, dtype=x.dtype, device=x.device)
    return torch.where(chance < share / 2, 0.0, torch.where(chance > 1 - share / 2, 1.0, x))


def speckle_noise(x: Tensor, severity: int, generator: torch.Generator) -> Tensor:
    """Normal noise in proportion to the pixel."""
    return x + x * _at(severity, 0.06, 0.10, 0.12, 0.16, 0.20) * _normal(x, generator)


def gaussian_blur(x: Tensor, severity: int, generator: torch.Generator) -> Tensor:
    """A normal kernel."""
    return smoothed(x, _unit(x) * _at(severity, 0.4, 0.6, 0.7, 0.8, 1.0))


def defocus_blur(x: Tensor, severity: int, generator: torch.Generator) -> Tensor:
    """A disc with a soft edge, as of a lens out of focus."""
    radius = _unit(x) * _at(severity, 0.6, 0.8, 1.0, 1.3, 1.8)
    reach = math.ceil(radius + 1)
    axis = torch.arange(-reach, reach + 1, dtype=x.dtype, device=x.device)
    distance = (axis[:, None].square() + axis.square()).sqrt()
    disc = (radius + 0.5 - distance).clamp(0, 1)
    return _through(x, (disc / disc.sum()).expand(len(x), -1, -1))


def glass_blur(x: Tensor, severity: int, generator: torch.Generator) -> Tensor:
    """Frosted glass: pixels change places with near ones, between two slight blurs."""
    sigma = _at(severity, 0.05, 0.25, 0.4, 0.25, 0.4) * _unit(x)
    reach = _at(severity, 0.7, 0.7, 1.0, 1.4, 1.8) * _unit(x)
    moves = torch.rand(len(x), *x.shape[2:], 2, generator=generator, dtype=x.dtype, device=x.device)
    whole = ((2 * moves - 1) * reach).round()
    return smoothed(displaced(smoothed(x, sigma), whole), sigma)


def motion_blur(x: Tensor, severity: int, generator: torch.Generator) -> Tensor:
    """A streak, in a direction of each picture's own within 45 degrees of the horizontal."""
    length = _unit(x) * _at(severity, 2, 3, 4, 5, 6.5)
    return _streaked(x, length, (torch.rand(len(x), generator=generator, device=x.device) - 0.5) * math.pi / 2)


def zoom_blur(x: Tensor, severity: int, generator: torch.Generator) -> Tensor:
    """The mean of enlargements up to a factor."""
    factors = torch.linspace(1, _at(severity, 1.06, 1.11, 1.16, 1.21, 1.26), 7).tolist()
    shrink = torch.tensor([[1.0, 0.0, 0.0], [0.0, 1.0, 0.0]])
    return torch.stack([mapped(x, (shrink / f).expand(len(x), 2, 3)) for f in factors]).mean(0)


def fog(x: Tensor, severity: int, generator: torch.Generator) -> Tensor:
    """A bright fractal veil; the brightest pixel stays as bright."""
    amount = _at(severity, 0.2, 0.5, 0.75, 1.0, 1.5)
    brightest = x.amax((1, 2, 3), keepdim=True)
    return (x + amount * _fractal(x, generator)) * brightest / (brightest + amount).clamp(min=1e-6)


def frost(x: Tensor, severity: int, generator: torch.Generator) -> Tensor:
    """Bright crystals along the ridges of a fractal."""
    kept, amount = _at(severity, 1.0, 0.9, 0.8, 0.75, 0.7), _at(severity, 0.2, 0.3, 0.4, 0.45, 0.5)
    ridges = (1 - 6 * (_fractal(x, generator) - 0.5).abs()).clamp(min=0)
    return kept * x + amount * ridges


def snow(x: Tensor, severity: int, generator: torch.Generator) -> Tensor:
    """Streaks of flakes, and what lies behind them a little paler."""
    share, pale = _at(severity, 0.01, 0.02, 0.03, 0.04, 0.06), _at(severity, 0.05, 0.1, 0.15, 0.2, 0.25)
    like = x[:, :1]
    flakes = (torch.rand(like.shape, generator=generator, dtype=x.dtype, device=x.device) < share).to(x.dtype)
    fall = (torch.rand(len(x), generator=generator, device=x.device) * 0.5 - 0.75) * math.pi
    layer = _streaked(smoothed(flakes, 0.4 * _unit(x)), 3 * _unit(x), fall)
    return (1 - pale) * x + pale * (0.3 + 0.7 * x) + 4 * layer


def brightness(x: Tensor, severity: int, generator: torch.Generator) -> Tensor:
    """The same added to every pixel."""
    return x + _at(severity, 0.05, 0.1, 0.15, 0.2, 0.3)


def contrast(x: Tensor, severity: int, generator: torch.Generator) -> Tensor:
    """Every pixel drawn to the mean of its picture and channel."""
    mean = x.mean((2, 3), keepdim=True)
    return mean + _at(severity, 0.75, 0.5, 0.4, 0.3, 0.15) * (x - mean)


def pixelate(x: Tensor, severity: int, generator: torch.Generator) -> Tensor:
    """Fewer, larger pixels."""
    share = _at(severity, 0.85, 0.7, 0.6, 0.5, 0.4)
    small = [max(1, int(side * share)) for side in x.shape[2:]]
    return interpolate(interpolate(x, size=small, mode="area"), size=list(x.shape[2:]), mode="nearest")


def jpeg(x: Tensor, severity: int, generator: torch.Generator) -> Tensor:
    """Coefficients of 8 × 8 blocks rounded as JPEG does at a low quality, in each channel by itself."""
    quality = _at(severity, 80, 65, 58, 50, 40)
    scale = 5000 / quality if quality < 50 else 200 - 2 * quality
    steps = ((torch.tensor(LUMINANCE) * scale + 50) / 100).floor().clamp(1, 255).to(x)
    n, c, height, width = x.shape
    whole = pad(x, (0, -width % 8, 0, -height % 8), mode="replicate") * 255 - 128
    down, across = whole.shape[2] // 8, whole.shape[3] // 8
    blocks = whole.reshape(n, c, down, 8, across, 8).transpose(3, 4)
    dct = _cosines().to(x)
    rounded = (dct @ blocks @ dct.T / steps).round() * steps
    back = (dct.T @ rounded @ dct).transpose(3, 4).reshape(whole.shape)
    return (back[:, :, :height, :width] + 128) / 255


def elastic(x: Tensor, severity: int, generator: torch.Generator) -> Tensor:
    """Pixels displaced along a smooth random field."""
    strength = _unit(x) * _at(severity, 0.5, 0.8, 1.1, 1.4, 1.8)
    field = torch.randn(len(x), 2, *x.shape[2:], generator=generator, dtype=x.dtype, device=x.device)
    smooth = smoothed(field, 2.5 * _unit(x))
    smooth = smooth / smooth.std((1, 2, 3), keepdim=True).clamp(min=1e-12)
    return displaced(x, strength * smooth.movedim(1, -1))


KINDS: Mapping[str, Corrupt] = {
    "gaussian-noise": gaussian_noise,
    "shot-noise": shot_noise,
    "impulse-noise": impulse_noise,
    "speckle-noise": speckle_noise,
    "gaussian-blur": gaussian_blur,
    "defocus-blur": defocus_blur,
    "glass-blur": glass_blur,
    "motion-blur": motion_blur,
    "zoom-blur": zoom_blur,
    "fog": fog,
    "frost": frost,
    "snow": snow,
    "brightness": brightness,
    "contrast": contrast,
    "pixelate": pixelate,
    "jpeg": jpeg,
    "elastic": elastic,
}


def smoothed(x: Tensor, sigma: float) -> Tensor:
    """Pictures under a normal kernel of deviation ``sigma`` pixels, one direction after the other; edges go on."""
    reach = max(1, math.ceil(3 * sigma))
    axis = torch.arange(-reach, reach + 1, dtype=x.dtype, device=x.device)
    kernel = (-0.5 * (axis / max(sigma, 1e-6)).square()).softmax(0)
    flat = x.reshape(-1, 1, *x.shape[2:])
    flat = conv2d(pad(flat, (reach, reach, 0, 0), mode="replicate"), kernel[None, None, None])
    flat = conv2d(pad(flat, (0, 0, reach, reach), mode="replicate"), kernel[None, None, :, None])
    return flat.reshape(x.shape)


def _at(severity: int, *values: float) -> float:
    return values[severity - 1]


def _unit(x: Tensor) -> float:
    """A pixel of a picture of 32, in pixels of these; of smaller pictures their own."""
    return max(1.0, min(x.shape[2:]) / 32)


def _normal(x: Tensor, generator: torch.Generator) -> Tensor:
    return torch.randn(x.shape, generator=generator, dtype=x.dtype, device=x.device)


def _through(x: Tensor, kernels: Tensor) -> Tensor:
    """Each picture [N, C, H, W] through its own square kernel [N, K, K]; edges go on."""
    reach = kernels.shape[1] // 2
    # A channel is an example and a picture a group here, so that one convolution does them all.
    padded = pad(x, (reach, reach, reach, reach), mode="replicate").transpose(0, 1)
    return conv2d(padded, kernels[:, None], groups=len(x)).transpose(0, 1)


def _streaked(x: Tensor, length: float, angle: Tensor) -> Tensor:
    """Each picture along a line of ``length`` pixels at its own angle [N], in radians."""
    reach = max(1, math.ceil(length / 2))
    axis = torch.arange(-reach, reach + 1, dtype=x.dtype, device=x.device)
    down, right = torch.meshgrid(axis, axis, indexing="ij")
    cos, sin = (part.to(x)[:, None, None] for part in (angle.cos(), angle.sin()))
    along, beside = right * cos + down * sin, right * sin - down * cos
    line = (length / 2 + 0.5 - along.abs()).clamp(0, 1) * (1 - beside.abs()).clamp(min=0)
    return _through(x, line / line.sum((1, 2), keepdim=True))


def _fractal(x: Tensor, generator: torch.Generator) -> Tensor:
    """Clouds in [0, 1], one for each picture [N, 1, H, W]: noise on grids of 2, 4, 8, … cells, each half as strong."""
    total, weight, cells = torch.zeros_like(x[:, :1]), 1.0, 2
    while cells <= max(x.shape[2:]):
        grid = torch.rand(len(x), 1, cells + 1, cells + 1, generator=generator, dtype=x.dtype, device=x.device)
        total += weight * interpolate(grid, size=list(x.shape[2:]), mode="bilinear", align_corners=True)
        weight, cells = weight / 2, cells * 2
    low, high = total.amin((2, 3), keepdim=True), total.amax((2, 3), keepdim=True)
    return (total - low) / (high - low).clamp(min=1e-6)


def _cosines() -> Tensor:
    """The orthonormal cosine transform of eight numbers, [8, 8]."""
    k = torch.arange(8, dtype=torch.float64)
    table = torch.cos(math.pi / 8 * (k + 0.5) * k[:, None]) / 2
    table[0] /= math.sqrt(2)
    return table
