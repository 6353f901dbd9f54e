"""What a calibration error would be if the prediction were perfectly calibrated: not zero, since examples are few."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

PARTS = 16
"""Equal parts of a bin, within which confidences count as their mean."""


class Null(NamedTuple):
    """A score under the null hypothesis: its mean, and the value that 95 % of cases stay below."""

    mean: float
    upper: float


def confidences(confidence: Tensor, bins: int) -> Tensor:
    """How many labels there are in each part of a bin, and the sum of their confidences, ``[2, bins·PARTS]``.

    Those of several predictions add up.
    """
    confidence = confidence.detach().double().cpu().flatten()
    edges = torch.linspace(0, 1, bins * PARTS + 1, dtype=torch.float64)[1:-1]
    part = torch.bucketize(confidence, edges)
    count = torch.bincount(part, minlength=bins * PARTS)
    return torch.stack([count.double(), torch.bincount(part, confidence, minlength=bins * PARTS)])


def calibration_null(counted: Tensor, simulations: int, generator: torch.Generator) -> Null:
    """The expected calibration error of labels drawn from the prediction, ``correct_i ~ Bernoulli(confidence_i)``.

    ``counted``: its `confidences`. Where there are several labels for an example, such as pixels, each is drawn by
    itself, whatever its neighbours are.

    >>> calibration_null(confidences(torch.full((100,), 0.8), 15), 2000, torch.Generator().manual_seed(0))
    Null(mean=0.03..., upper=0.0...)
    """
    # All labels of one part of a bin are one binomial draw, so that a million pixels cost no more than a thousand.
    # That adds (width of a part)² / 12 to the variance of a label, which is 1e-6.
    bins = counted.shape[1] // PARTS
    used = counted[0] > 0
    count, total = counted[:, used]
    correct = torch.binomial(
        count.expand(simulations, -1), (total / count).clamp(0, 1).expand(simulations, -1), generator=generator
    )
    gaps = torch.zeros(simulations, bins, dtype=torch.float64)
    gaps.index_add_(1, torch.arange(bins).repeat_interleave(PARTS)[used], correct - total)
    errors = gaps.abs().sum(1) / count.sum()
    return Null(float(errors.mean()), float(errors.quantile(0.95)))
