"""Yes or no, once or several times per example."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor
from torch.nn.functional import binary_cross_entropy_with_logits

from bayesrule.likelihoods.base import Likelihood, diagonal, single, summed
from bayesrule.likelihoods.categorical import GAPS, Tempered, isotonic
from bayesrule.predictions import Binary, targets


@dataclass(frozen=True, eq=False)
class Bernoulli(Tempered):
    """``p(y=1|f) = σ(f/T)`` for outputs ``[B]`` or ``[B, 1]`` and labels ``[B]``, or ``[B, L]`` for L labels each.

    ``temperature``: T, as that of `Categorical`.

    ::

        hessian = diag(p (1 − p))/T²,    p = σ(f/T)

    >>> import torch
    >>> Bernoulli().log_prob(torch.zeros(1, 3), torch.tensor([[1.0, 0.0, 1.0]])).exp()
    tensor([0.1250])
    """

    name: ClassVar[str] = "bernoulli"

    def outputs_for(self, numbers: int, classes: int = 0) -> int:
        """One for each yes or no."""
        if classes != 2:
            raise ValueError(f"likelihood bernoulli is for 2 classes, got {classes}: use categorical")
        return numbers

    def check(self, outputs: Tensor, y: Tensor) -> Tensor:
        """Zeros and ones in the dtype of the outputs."""
        return targets.answers(y, single(outputs).shape).to(outputs.dtype)

    def log_prob(self, outputs: Tensor, y: Tensor) -> Tensor:
        """``y log σ(f/T) + (1 − y) log σ(−f/T)``."""
        return summed(-binary_cross_entropy_with_logits(self.logits(single(outputs)), y, reduction="none"))

    def hessian(self, outputs: Tensor) -> Tensor:
        """``diag(σ(f/T) σ(−f/T))/T²``."""
        logits = self.logits(outputs)
        # Not p (1 − p): where p rounds to 1 that is 0, and σ(−f) is still right.
        found = logits.sigmoid() * (-logits).sigmoid()
        if self.isotonic is not None:
            segment = torch.bucketize(outputs.abs(), torch.tensor(GAPS[1:]).to(outputs))
            found = found * self.isotonic.to(outputs)[segment].square()
        if self.vector is not None:
            found = found * self.vector[0].to(outputs).square()
        return diagonal(found if self.temperature is None else found / self.divisor(outputs).square())

    def _of_classes(self, numbers: Tensor, outputs: Tensor, dim: int) -> Tensor:
        """The same for every yes or no."""
        return numbers.to(outputs).reshape(2, *[1] * outputs.ndim)

    def _bent(self, outputs: Tensor, slopes: Tensor, dim: int) -> Tensor:
        """h of how far one answer is above the other."""
        return outputs.sign() * isotonic(outputs.abs(), slopes)

    def recalibrations(self, width: int = 1) -> dict[str, Likelihood]:
        """One scale and one shift for all answers."""
        return super().recalibrations(1)

    def mean(self, outputs: Tensor) -> Tensor:
        """Probability of 1."""
        return self.logits(single(outputs)).sigmoid()

    def predict(self, outputs: Tensor) -> Binary:
        """Mixture of Bernoulli distributions."""
        return Binary(self.logits(single(outputs, 2)))
