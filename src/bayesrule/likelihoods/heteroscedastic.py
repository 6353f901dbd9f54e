"""Real numbers with noise that the network tells."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from torch import Tensor

from bayesrule.data import Kind
from bayesrule.likelihoods.base import Likelihood, diagonal, single, summed
from bayesrule.predictions import Reals, targets

BOUND = 40.0
"""Log-variances stay within ±BOUND."""


@dataclass(frozen=True, eq=False)
class Heteroscedastic(Likelihood):
    """``p(y|f) = N(y; m, exp(v))`` for outputs ``[B, 2D, ...]``: D means m, then D raw log-variances r.

    So that the exponential never overflows, ``v = 40 tanh(r/40)``: the variance stays within e^±40, and v is r to 1 %
    for r within ±6. The Hessian is the Fisher information, the mean over y::

        hessian = diag(exp(−v), ½ (∂v/∂r)²),    ∂v/∂r = 1 − tanh²(r/40) ≈ 1

    ``deviation``: whether r are log-deviations, half as large: ``v = 40 tanh(2r/40)``. Under the same prior of the
    weights, noise then differs twice as much from place to place.

    ``scale``: of all deviations, exp(v/2)·scale; None: 1 in training, and what held-out data tell where they are asked
    (`bayesrule.posteriors.recalibrated`). A tensor is what they told.

    >>> import torch
    >>> Heteroscedastic().predict(torch.tensor([[[3.0, 0.0]]])).interval(0.95)
    (tensor([1.0400]), tensor([4.9600]))
    """

    name: ClassVar[str] = "heteroscedastic"
    kind: ClassVar[Kind] = "reals"
    prior_scale: ClassVar[float | str] = "kaiming"
    deviation: bool = False
    scale: Tensor | None = None

    @property
    def _factor(self) -> float:
        """Of r in v."""
        return 2.0 if self.deviation else 1.0

    def outputs_for(self, numbers: int, classes: int = 0) -> int:
        """A mean and a log-variance for each number."""
        return 2 * numbers

    def check(self, outputs: Tensor, y: Tensor) -> Tensor:
        """Finite real numbers in the dtype of the outputs."""
        if outputs.ndim < 2 or outputs.shape[1] % 2:
            raise ValueError(
                f"heteroscedastic outputs must be [B, 2 D, ...], a mean and a log-variance for each target: got "
                f"{list(outputs.shape)}; give the network two outputs per target, or use likelihood 'gaussian'"
            )
        return targets.reals(y, self.mean(outputs).shape).to(outputs.dtype)

    @property
    def rescales_targets(self) -> bool:
        """Yes."""
        return True

    def log_prob(self, outputs: Tensor, y: Tensor) -> Tensor:
        """``−½ (y − m)² exp(−v) − ½ v − ½ log 2π``, summed over targets."""
        mean, log_variance = self._split(outputs)
        squares = (y - mean).square() * (-log_variance).exp()
        return summed(-(squares + log_variance + math.log(2 * math.pi)) / 2)

    def hessian(self, outputs: Tensor) -> Tensor:
        """Fisher information, diagonal."""
        bent = (outputs.chunk(2, 1)[1] * (self._factor / BOUND)).tanh()
        precision = (-BOUND * bent).exp()
        if self.scale is not None:
            precision = precision / self.scale.to(outputs).square()
        # The information about a log-variance v is ½; the chain rule takes it from v to the raw output.
        slope = self._factor * (1 - bent.square())
        return diagonal(torch.cat([precision, slope.square() / 2], 1))

    def mean(self, outputs: Tensor) -> Tensor:
        """The first half of the outputs."""
        return self._split(outputs)[0]

    def predict(self, outputs: Tensor) -> Reals:
        """Mixture of normal distributions, each with its own noise."""
        mean, log_variance = self._split(outputs, 2)
        return Reals(mean, (log_variance / 2).exp())

    def _split(self, outputs: Tensor, dim: int = 1) -> tuple[Tensor, Tensor]:
        """Means and log-variances."""
        mean, raw = outputs.chunk(2, dim)
        log_variance = BOUND * (raw * (self._factor / BOUND)).tanh()
        if self.scale is not None:
            log_variance = log_variance + 2 * self.scale.log().to(raw)
        return single(mean, dim), single(log_variance, dim)

    def unknowns(self) -> dict[str, Tensor]:
        """``log_scale``, where it was settled on held-out data; in training there is none."""
        return {} if self.scale is None else {"log_scale": self.scale.log()}

    def with_unknowns(self, values: Mapping[str, Tensor]) -> Likelihood:
        """The same with ``scale = exp(log_scale)``."""
        if self.scale is None:
            return super().with_unknowns(values)
        if sorted(values) != ["log_scale"]:
            raise ValueError(f"values must be of ['log_scale'] for {self}: got {sorted(values)}")
        return replace(self, scale=values["log_scale"].exp())

    def verify(self) -> None:
        """A scale that was settled is one positive number."""
        scale = self.scale
        if scale is None:
            return
        if scale.ndim or not scale.is_floating_point() or not 0 < float(scale) < math.inf:
            raise ValueError(f"scale must be one positive number: got {scale.tolist()}")

    def matched(self, outputs: Tensor, y: Tensor, weight: Tensor | None = None) -> Likelihood:
        """A scale that other weights had settled is open again."""
        return self.uncalibrated()

    def kept(self) -> Likelihood:
        """A scale is open again: further training would learn it with the weights."""
        return self.uncalibrated()

    def uncalibrated(self) -> Likelihood:
        """The same as it was before its scale was settled."""
        return self if self.scale is None else replace(self, scale=None)

    def recalibrations(self, width: int = 1) -> dict[str, Likelihood]:
        """``scale``."""
        return {"scale": replace(self, scale=torch.tensor(1.0, dtype=torch.float64))}
