"""Scores as functions of weights on examples.

A statistic takes weights ``[R, N]``, R ways to weigh the N examples, and gives R values. Weights of one give the score;
the counts of a resample with replacement give the score of that resample. Where a second set of M examples is involved,
its weights are the last M columns.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

import torch
from torch import Tensor

from bayesrule.predictions import per_example

Statistic: TypeAlias = Callable[[Tensor], Tensor]


def flat(values: Tensor) -> Tensor:
    """One float64 number per example ``[N]``: the mean over trailing dimensions."""
    # On the CPU in double precision: scores are the same whatever the device, and so are their resamples.
    return per_example(values.detach().double().cpu())


def mean(values: Tensor) -> Statistic:
    """The mean of ``values``.

    >>> mean(torch.tensor([1.0, 2.0]))(torch.tensor([[1.0, 1.0], [0.0, 2.0]], dtype=torch.float64))
    tensor([1.5000, 2.0000], dtype=torch.float64)
    """
    column = flat(values)
    # Weights of examples from elsewhere, if there are any, come after those of the test examples.
    return lambda weights: weights[:, : len(column)] @ column / weights[:, : len(column)].sum(1)


def root(statistic: Statistic) -> Statistic:
    """The square root of a statistic."""
    return lambda weights: statistic(weights).sqrt()


def explained(values: Tensor) -> Statistic:
    """R² = 1 − Σ_i (y_i − mean_i)² / Σ_i (y_i − ȳ)² of squared errors and targets ``[N, 2]``.

    0 is as good as the mean of these very targets. Where they are all equal there is nothing to explain, and it is 0.

    >>> errors, y = torch.tensor([0.0, 1.0, 1.0]), torch.tensor([1.0, 2.0, 4.0])
    >>> explained(torch.stack([errors, y], 1).double())(torch.ones(1, 3, dtype=torch.float64))
    tensor([0.5714], dtype=torch.float64)
    """
    errors, y = values.T
    y = y - y.mean()  # the mean square of large numbers has no digits left for their variance

    def statistic(weights: Tensor) -> Tensor:
        weights = weights[:, : len(y)]
        varied = weights @ y.square() - (weights @ y).square() / weights.sum(1)
        # one example, drawn again and again, leaves rounding errors
        known = varied > 1e-12 * (weights @ y.square())
        return torch.where(known, 1 - weights @ errors / varied.where(known, 1), 0.0)

    return statistic


def calibration_gaps(confidence: Tensor, correct: Tensor, bins: int) -> Tensor:
    """``Σ_i∈bin (confidence_i − correct_i)`` of each example, per label of it: ``[N, bins]``."""
    # By example, not by pixel: examples are what is resampled.
    return binned(confidence, confidence - correct.to(confidence), bins) / confidence[0].numel()


def calibration_error(gaps: Tensor) -> Statistic:
    """Expected calibration error: ``Σ_bins |Σ_i∈bin (confidence_i − correct_i)| / Σ_i 1``, of `calibration_gaps`."""

    def statistic(weights: Tensor) -> Tensor:
        weights = weights[:, : len(gaps)]
        return (weights @ gaps).abs().sum(1) / weights.sum(1)

    return statistic


def binned(confidence: Tensor, values: Tensor, bins: int) -> Tensor:
    """Sums of ``values`` per example and equal-width bin ``(lower, upper]`` of ``confidence``, ``[N, bins]``."""
    edges = torch.linspace(0, 1, bins + 1, dtype=torch.float64)[1:-1]
    index = torch.bucketize(confidence.detach().double().cpu(), edges).reshape(len(confidence), -1)
    values = values.detach().double().cpu().reshape(len(confidence), -1)
    return torch.zeros(len(values), bins, dtype=torch.float64).scatter_add_(1, index, values)


def risk_area(confidence: Tensor, loss: Tensor) -> Statistic:
    """Area under the risk–coverage curve: the mean risk of the examples at least as confident as each example."""
    confidence, loss = flat(confidence), flat(loss)

    def statistic(weights: Tensor) -> Tensor:
        share, _, risk = risk_curve(confidence, loss, weights[:, : len(loss)])
        return (share * risk).sum(1)

    return statistic


def risk_curve(confidence: Tensor, loss: Tensor, weights: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Share, coverage and risk ``[R, G]`` at each distinct confidence, highest first; equal ones go together."""
    levels, group = torch.unique(-confidence, return_inverse=True)
    empty = torch.zeros(len(weights), len(levels), dtype=torch.float64)
    mass, lost = empty.index_add(1, group, weights), empty.index_add(1, group, weights * loss)
    covered = mass.cumsum(1)
    total = covered[:, -1:]
    # A resample may lack the most confident examples: then nothing is covered yet, and nothing lost.
    return mass / total, covered / total, lost.cumsum(1) / covered.clamp(min=1)


def separation(inside: Tensor, outside: Tensor) -> Statistic:
    """AUROC: the chance that an outside value is above an inside one, ties counting half."""

    def area(negative: Tensor, positive: Tensor) -> Tensor:
        below = negative.cumsum(1) - negative / 2  # of equal values half count as below
        return (positive * below).sum(1) / (negative.sum(1) * positive.sum(1))

    return _by_level(inside, outside, area)


def average_precision(inside: Tensor, outside: Tensor) -> Statistic:
    """AUPR: the mean over outside examples of the share of outside ones among all that are at least as high.

    Values that are equal are found at once, without interpolation.
    """

    def area(negative: Tensor, positive: Tensor) -> Tensor:
        found, alarms = positive.flip(1).cumsum(1), negative.flip(1).cumsum(1)
        precision = found / (found + alarms).clamp(min=1)  # a resample may have nothing at the highest levels
        return (positive.flip(1) * precision).sum(1) / positive.sum(1)

    return _by_level(inside, outside, area)


def passed_unseen(inside: Tensor, outside: Tensor, share: float = 0.95) -> Statistic:
    """FPR95: how many outside examples pass for inside ones at the threshold that lets a share of these pass."""

    def passing(negative: Tensor, positive: Tensor) -> Tensor:
        known = negative.cumsum(1) / negative.sum(1, keepdim=True)
        strangers = positive.cumsum(1) / positive.sum(1, keepdim=True)
        first = (known >= share).to(torch.uint8).argmax(1)  # of equals the first
        return strangers.gather(1, first[:, None])[:, 0]

    return _by_level(inside, outside, passing)


def _by_level(inside: Tensor, outside: Tensor, of: Callable[[Tensor, Tensor], Tensor]) -> Statistic:
    """A function of the weights ``[R, G]`` of inside and outside examples at each distinct value, the lowest first."""
    inside, outside = flat(inside), flat(outside)
    n = len(inside)
    levels, group = torch.unique(torch.cat([inside, outside]), return_inverse=True)

    def statistic(weights: Tensor) -> Tensor:
        empty = torch.zeros(len(weights), len(levels), dtype=torch.float64)
        return of(empty.index_add(1, group[:n], weights[:, :n]), empty.index_add(1, group[n:], weights[:, n:]))

    return statistic
