"""Counts: 0, 1, 2, ..."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from bayesrule.data import Kind
from bayesrule.likelihoods.base import Likelihood, diagonal, single, summed
from bayesrule.predictions import Counts, targets


@dataclass(frozen=True, eq=False)
class Poisson(Likelihood):
    """``p(y|f) = rate^y exp(−rate) / y!`` with ``rate = exp(f)``, for outputs ``[B]`` or ``[B, D, ...]``.

    ::

        hessian = diag(rate)

    >>> import torch
    >>> Poisson().log_prob(torch.zeros(1, 1), torch.tensor([0.0]))
    tensor([-1.])
    """

    name: ClassVar[str] = "poisson"
    kind: ClassVar[Kind] = "counts"

    def check(self, outputs: Tensor, y: Tensor) -> Tensor:
        """Whole numbers in the dtype of the outputs."""
        return targets.counts(y, single(outputs).shape).to(outputs.dtype)

    def log_prob(self, outputs: Tensor, y: Tensor) -> Tensor:
        """``y f − exp(f) − log y!``."""
        f = single(outputs)
        return summed(y * f - f.exp() - torch.lgamma(y + 1))

    def hessian(self, outputs: Tensor) -> Tensor:
        """``diag(exp(f))``."""
        return diagonal(outputs.exp())

    def mean(self, outputs: Tensor) -> Tensor:
        """The rate ``exp(f)``."""
        return single(outputs).exp()

    def predict(self, outputs: Tensor) -> Counts:
        """Mixture of Poisson distributions."""
        return Counts(single(outputs, 2))
