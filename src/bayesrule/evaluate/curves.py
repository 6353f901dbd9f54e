"""Curves for pictures, as numpy arrays."""

from __future__ import annotations

from typing import NamedTuple, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from bayesrule.evaluate.weighted import binned, flat, risk_curve
from bayesrule.predictions import Binary, Classes, Continuous

Array: TypeAlias = NDArray[np.float64]


class Reliability(NamedTuple):
    """Per bin of confidence: the mean confidence, the accuracy (both NaN in an empty bin) and the share of cases."""

    confidence: Array
    accuracy: Array
    share: Array


class RiskCoverage(NamedTuple):
    """The error rate among the most confident share ``coverage`` of examples."""

    coverage: Array
    risk: Array


class QuantileCalibration(NamedTuple):
    """The share of targets below the predicted quantile of each nominal level; equal to it if calibrated."""

    nominal: Array
    empirical: Array


def reliability(prediction: Classes | Binary, y: Tensor, bins: int = 15) -> Reliability:
    """Accuracy against confidence in equal-width bins: ``Σ share · |confidence − accuracy|`` is the ece.

    >>> from bayesrule.predictions import Binary
    >>> reliability(Binary(torch.zeros(1, 4)), torch.tensor([0, 1, 0, 0]), bins=2)
    Reliability(confidence=array([0.5, nan]), accuracy=array([0.75, nan]), share=array([1., 0.]))
    """
    if bins < 1:
        raise ValueError(f"bins must be at least 1: got {bins}; 15 is usual")
    confidence, correct = prediction.confidence, prediction.label == prediction.target(y)
    count, sure, right = (
        binned(confidence, values, bins).sum(0) for values in (torch.ones_like(confidence), confidence, correct)
    )
    return Reliability((sure / count).numpy(), (right / count).numpy(), (count / count.sum()).numpy())


def risk_coverage(prediction: Classes | Binary, y: Tensor) -> RiskCoverage:
    """Error rate of the examples kept when only the most confident are answered; equal confidences go together.

    >>> from bayesrule.predictions import Binary
    >>> risk_coverage(Binary(torch.tensor([[3.0, 2.0, 1.0, 1.0]])), torch.tensor([1, 1, 0, 1]))
    RiskCoverage(coverage=array([0.25, 0.5 , 1.  ]), risk=array([0.  , 0.  , 0.25]))
    """
    wrong = flat(prediction.label != prediction.target(y))
    _, coverage, risk = risk_curve(flat(prediction.confidence), wrong, torch.ones(1, len(wrong), dtype=torch.float64))
    return RiskCoverage(coverage[0].numpy(), risk[0].numpy())


def quantile_calibration(prediction: Continuous, y: Tensor, levels: int = 19) -> QuantileCalibration:
    """The share of targets below each of the quantiles ``1/(levels+1), 2/(levels+1), ...`` of their predictions.

    >>> from bayesrule.predictions import Reals
    >>> y = torch.tensor([-1.0, -0.1, 0.1, 1.0])
    >>> quantile_calibration(Reals(torch.zeros(1, 4), torch.ones(())), y, levels=3)
    QuantileCalibration(nominal=array([0.25, 0.5 , 0.75]), empirical=array([0.25, 0.5 , 0.75]))
    """
    if levels < 1:
        raise ValueError(f"levels must be at least 1: got {levels}; 19 gives steps of 5 %")
    nominal = torch.arange(1, levels + 1, dtype=torch.float64) / (levels + 1)
    cdf = prediction.cdf(prediction.target(y)).detach().double().cpu().flatten()
    return QuantileCalibration(nominal.numpy(), (cdf <= nominal.unsqueeze(1)).double().mean(1).numpy())
