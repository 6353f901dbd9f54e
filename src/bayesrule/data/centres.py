"""Points that cover others."""

from __future__ import annotations

import torch
from torch import Tensor


def k_centre(points: Tensor, count: int, generator: torch.Generator, centres: Tensor | None = None) -> Tensor:
    """Rows of ``points`` [N, D], each the farthest from those before it: the largest distance that is left is at most
    twice the least that any ``count`` of them can have (Gonzalez 1985).

    ``centres``: points [M, D] that are taken already; without any the first row is drawn.

    >>> points = torch.tensor([[0.0], [1.0], [5.0], [9.0]])
    >>> k_centre(points, 2, torch.Generator(), centres=torch.tensor([[0.0]]))
    tensor([3, 2])
    """
    if not 1 <= count <= len(points):
        raise ValueError(f"count must be from 1 to the {len(points)} points, got {count}")
    kept: list[int] = []
    if centres is None or not len(centres):
        kept.append(int(torch.randint(len(points), (1,), generator=generator)))
        nearest = (points - points[kept[0]]).square().sum(1)
    else:
        nearest = points.new_full((len(points),), torch.inf)
        for centre in centres:
            nearest = torch.minimum(nearest, (points - centre).square().sum(1))
    while len(kept) < count:
        nearest[kept[-1:]] = -1.0  # never again, also where all are alike
        kept.append(int(nearest.argmax()))
        nearest = torch.minimum(nearest, (points - points[kept[-1]]).square().sum(1))
    return torch.tensor(kept)
