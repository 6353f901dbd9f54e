"""Book (2020), Training Bayesian neural networks: the settings that its experiments share."""

from __future__ import annotations

import math
from typing import Any

from bayesrule.experiments.base import Setting

METHOD: dict[str, Any] = {
    "lr": 1e-3,
    "sigma_lr_ratio": 1.0,
    "initial_std": math.log1p(math.exp(-10)),
    "schedule": "constant",
}
"""The document's settings of `BBB`: Adam at 10⁻³ for means and deviations alike, from ρ = −10.

But for the gradient: the document leaves the score function out, with which nothing trains from so narrow a start
(see the experiment ``path-derivative``).
"""
WIDE = 0.02
"""A first deviation of q that is not narrow: that of `BBB` itself."""


def data(setting: Setting, epochs: int = 10) -> dict[str, int]:
    """The data sets and how many epochs on each: LeNet-5 on MNIST and CIFAR-10 in full, a small net on digits else."""
    if setting.full:
        return {"mnist": math.ceil(epochs / 2), "cifar10": epochs}
    return {"digits": epochs}
