"""Pictures of overlapping shapes, every pixel of them labelled, and strangers that no label knows."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from bayesrule.data.splits import Pair

CLASSES = ("background", "disc", "square")
EDGE = 1.5
"""Pixels over which the edge of a shape fades, and the deviation of where people say that it is."""
NEAR = 2.0
"""Pixels from an edge within which a pixel belongs to a border."""


class Shapes(NamedTuple):
    """Pictures ``x`` [N, 1, side, side], labels ``y`` [N, side, side], and masks of pixels [N, side, side].

    ``border``: within two pixels of a visible edge of a disc or square. ``unseen``: of a triangle, which is no class.
    """

    x: Tensor
    y: Tensor
    border: Tensor
    unseen: Tensor

    @property
    def pair(self) -> Pair:
        """What a fit takes."""
        return self.x, self.y


def shapes(n: int = 100, side: int = 64, unseen: bool = False, seed: int = 0) -> Shapes:
    """Two discs and two squares a picture, some before others, in noise; with ``unseen`` a triangle on top.

    A disc is evenly grey, a square striped, a triangle chequered. Where an edge is, nobody knows: it fades over a few
    pixels, and the label of a whole shape ends N(0, 1.5²) pixels outside of its middle. So labels near borders are
    noise that no data settle, and triangles are what nobody was taught.

    >>> some = shapes(n=2, side=32, unseen=True)
    >>> some.x.shape, some.y.shape, some.unseen.any().item()
    (torch.Size([2, 1, 32, 32]), torch.Size([2, 32, 32]), True)
    """
    if n < 1 or side < 16:
        raise ValueError(f"shapes needs n of at least 1 and side of at least 16, got n={n} and side={side}")
    generator = torch.Generator().manual_seed(seed)
    found = Shapes(
        0.25 + 0.05 * torch.randn(n, 1, side, side, generator=generator),
        torch.zeros(n, side, side, dtype=torch.long),
        torch.zeros(n, side, side, dtype=torch.bool),
        torch.zeros(n, side, side, dtype=torch.bool),
    )
    for label in (1, 2, 1, 2):
        found = _drawn_over(found, label, generator)
    return _drawn_over(found, None, generator) if unseen else found


def _drawn_over(below: Shapes, label: int | None, generator: torch.Generator) -> Shapes:
    """One more shape in each picture; None is a triangle."""
    n, side = below.y.shape[:2]
    radius = side * (0.12 + 0.08 * torch.rand(n, 1, 1, generator=generator))
    middle = side * (0.15 + 0.7 * torch.rand(2, n, 1, 1, generator=generator))
    grey = 0.6 + 0.3 * torch.rand(n, 1, 1, generator=generator)
    offset = EDGE * torch.randn(n, 1, 1, generator=generator)
    pixels = torch.arange(side, dtype=torch.float32)
    down, across = pixels[:, None] - middle[0], pixels - middle[1]
    outside = _distance(label, down, across) - radius
    shade = (_texture(label, below.y.shape[1]) * grey + 0.05 * torch.randn(n, side, side, generator=generator))[:, None]
    cover = torch.sigmoid(-2 * outside / EDGE)[:, None]
    x = cover * shade + (1 - cover) * below.x
    if label is None:
        inside = outside < 0
        return Shapes(x, below.y, below.border & (outside > NEAR), inside)
    y = torch.where(outside < offset, label, below.y)
    border = torch.where(outside.abs() <= NEAR, True, below.border & (outside > 0))
    return Shapes(x, y, border, below.unseen)


def _distance(label: int | None, down: Tensor, across: Tensor) -> Tensor:
    """How far a pixel is from the middle: shapes of one size are where that is at most their radius."""
    if label == 1:
        return (down.square() + across.square()).sqrt()
    if label == 2:
        return torch.maximum(down.abs(), across.abs())
    return torch.maximum(down, 3**0.5 / 2 * across.abs() - down / 2)  # three half-planes at 120°


def _texture(label: int | None, side: int) -> Tensor:
    """What a shape's grey is multiplied by: nothing for a disc, stripes for a square, a chequered pattern otherwise."""
    pixels = torch.arange(side)
    stripes = 0.5 + 0.5 * (pixels // 2 % 2)
    if label == 1:
        return torch.ones(side, side)
    if label == 2:
        return stripes.expand(side, side)
    return 0.5 + 0.5 * ((pixels[:, None] // 2 + pixels // 2) % 2)
