"""What reals and counts have in common: a mean, a variance, quantiles."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from bayesrule import tracing
from bayesrule.predictions.base import Prediction, per_example, tails
from bayesrule.predictions.frames import columns, percent


@dataclass(frozen=True, eq=False, repr=False)
class Numbers(Prediction):
    """A prediction of numbers; uncertainties are variances, in units of y².

    ``searched``: whether a quantile takes a search whose length depends on the numbers.
    """

    searched: ClassVar[bool] = False

    @property
    @abstractmethod
    def mean(self) -> Tensor:
        """Mean of y."""

    @abstractmethod
    def cdf(self, y: float | Tensor) -> Tensor:
        """Probability of a value up to ``y``, a number or a tensor of the targets' shape."""

    @abstractmethod
    def quantile(self, q: float | Tensor) -> Tensor:
        """The least y with ``cdf(y) ≥ q``, of the targets' shape; ``[Q, B, ...]`` for a tensor ``[Q]``."""

    @abstractmethod
    def mean_distance(self, a: float | Tensor) -> Tensor:
        """E|y − a| for a number or a tensor of the targets' shape: what a costs where both sides cost 1 a unit."""

    def shortfall(self, a: float | Tensor) -> Tensor:
        """E max(a − y, 0), by how much y stays below ``a`` on average: half of E|y − a| + a − E y."""
        return (self.mean_distance(a) + a - self.mean) / 2

    @property
    def variance(self) -> Tensor:
        """Variance of y, noise included."""
        return self.total

    @property
    def std(self) -> Tensor:
        """Standard deviation of y, noise included."""
        return self.total.sqrt()

    @property
    def uncertainty(self) -> Tensor:
        """Standard deviation, averaged over the targets of an example."""
        return per_example(self.std)

    @property
    def point(self) -> Tensor:
        """The mean."""
        return self.mean

    def interval(self, level: float) -> tuple[Tensor, Tensor]:
        """The central interval between two quantiles; that of counts, ends included, holds ``level`` or more."""
        with tracing.outside():
            both = torch.tensor(tails(level), dtype=torch.float64)
        low, high = self.quantile(both)
        return low, high

    def summary(self, level: float | None = 0.9) -> dict[str, Tensor]:
        """Mean, interval and both variances."""
        ends = {} if level is None else dict(zip(("lower", "upper"), self.interval(level), strict=True))
        return {"mean": self.mean, **ends, "aleatoric": self.aleatoric, "epistemic": self.epistemic}

    def _columns(self, level: float, classes: Sequence[str]) -> dict[str, list[Any]]:
        if classes:
            raise ValueError(f"classes must be empty for numbers, got {list(classes)}")
        low, high = self.interval(level)
        found: dict[str, list[Any]] = {}
        for name, values in (
            ("prediction", self.mean),
            ("std", self.std),
            (f"lower_{percent(level)}", low),
            (f"upper_{percent(level)}", high),
            ("aleatoric_std", self.aleatoric.sqrt()),
            ("epistemic_std", self.epistemic.sqrt()),
        ):
            found |= columns(name, values)
        return found


@dataclass(frozen=True, eq=False, repr=False)
class Continuous(Numbers):
    """A prediction of real numbers by a density, whatever its form."""

    @abstractmethod
    def crps(self, y: Tensor) -> Tensor:
        """Continuous ranked probability score ``∫ (cdf(t) − [t ≥ y])² dt``, in units of y; less is better.

        With Y, Y' independent draws of the prediction it is ``E|Y − y| − ½ E|Y − Y'|``.
        """
