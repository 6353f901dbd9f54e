"""No belief at all: maximum likelihood as a prior."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor, nn

from bayesrule.priors.base import Prior


@dataclass(frozen=True)
class Flat(Prior):
    """p(w) ∝ 1. Improper; with it, MAP is maximum likelihood."""

    name: ClassVar[str] = "flat"

    def resolve(self, module: nn.Module) -> Flat:
        """Nothing to work out."""
        return self

    def tempered(self, temperature: float) -> Flat:
        """One to any power."""
        return self

    def log_prob(self, parameters: Mapping[str, Tensor]) -> Tensor:
        """Zero."""
        return next(iter(parameters.values())).new_zeros(())

    def divergence(self, mean: Tensor, std: Tensor, like: Mapping[str, Tensor]) -> Tensor:
        """Minus the entropy of q, Σ_j −½ log 2πe s_j²: the divergence from p(w) = 1."""
        return -std.log().sum() - 0.5 * std.numel() * math.log(2 * math.pi * math.e)
