"""Pictures ``[N, C, H, W]`` with pixels in [0, 1]: from the user's inputs, turned, and seen through other grids."""

from __future__ import annotations

from math import prod

import torch
from torch import Tensor
from torch.nn.functional import affine_grid, grid_sample

NEAR = 1e-3  # beyond [0, 1]: rounding of pixels that were scaled and scaled back


def as_pictures(x: Tensor, shape: tuple[int, int, int] | None, name: str) -> Tensor:
    """Inputs as pictures [N, C, H, W]; an error that says what ``name`` needs if they are none of that shape.

    >>> as_pictures(torch.zeros(2, 64), (1, 8, 8), "rotation").shape
    torch.Size([2, 1, 8, 8])
    """
    if not x.is_floating_point():
        raise TypeError(f"{name} is for pictures of floats in [0, 1], not of {x.dtype}: pass x.float() / 255, say")
    own = list(x.shape[1:])
    if shape is None and len(own) != 3:
        raise ValueError(
            f"{name} is for pictures [N, C, H, W], but each input is of shape {own}; "
            "of rows of pixels say what they are, shape=(1, 8, 8)"
        )
    if shape is not None and own not in (list(shape), list(shape[1:]), [prod(shape)]):
        raise ValueError(
            f"{name} is for pictures of shape {list(shape)}, or rows of {prod(shape)} pixels, but each input is of "
            f"shape {own}: pictures of another size; resize them, or give their own shape"
        )
    return x if shape is None else x.reshape(len(x), *shape)


def check_pixels(x: Tensor, name: str) -> None:
    """An error if pixels are not in [0, 1]."""
    if x.numel() and not (float(x.min()) >= -NEAR and float(x.max()) <= 1 + NEAR):
        raise ValueError(
            f"{name} is for pixels in [0, 1], but they are from {float(x.min()):.3g} to {float(x.max()):.3g}: give "
            "pictures as they are before they are scaled, and scale with br.data.standardize"
        )


def turned(x: Tensor, degrees: Tensor) -> Tensor:
    """Each picture about its centre, counter-clockwise by its own degrees [N], by bilinear interpolation on black.

    >>> turned(torch.tensor([[[[1.0, 0.0], [0.0, 0.0]]]]), torch.tensor([90.0])).round().abs()
    tensor([[[[0., 0.],
              [1., 0.]]]])
    """
    angle = torch.deg2rad(degrees.to(x))
    cos, sin, zero = angle.cos(), angle.sin(), torch.zeros_like(angle)
    ratio = x.shape[2] / x.shape[3]  # torch's coordinates are halves of the sides, and a picture may not be square
    rows = [torch.stack([cos, -sin * ratio, zero], 1), torch.stack([sin / ratio, cos, zero], 1)]
    return mapped(x, torch.stack(rows, 1))


def mapped(x: Tensor, matrices: Tensor) -> Tensor:
    """Pictures whose pixel at u is what was at M·u, M [N, 2, 3] in units of half a side; black comes from outside."""
    grid = affine_grid(matrices.to(x), list(x.shape), align_corners=False)
    return grid_sample(x, grid, mode="bilinear", padding_mode="zeros", align_corners=False)


def displaced(x: Tensor, by: Tensor) -> Tensor:
    """Pictures whose pixel at u is what was at u + ``by`` [N, H, W, 2], in pixels (right, down); edges go on."""
    n, _, height, width = x.shape
    home = affine_grid(torch.eye(2, 3).to(x).expand(n, 2, 3), list(x.shape), align_corners=False)
    grid = home + by.to(x) * 2 / torch.tensor([width, height]).to(x)
    return grid_sample(x, grid, mode="bilinear", padding_mode="border", align_corners=False)
