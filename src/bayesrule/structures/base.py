"""The contract of a structure."""

from __future__ import annotations

import dataclasses
import math
from abc import ABC, abstractmethod
from typing import Any

import torch
from torch import Tensor

from bayesrule.naming import Named


class Structure(Named, ABC):
    """A covariance Σ over a vector of ``size`` numbers."""

    @property
    @abstractmethod
    def size(self) -> int:
        """P, the length of the vector."""

    @property
    @abstractmethod
    def diagonal(self) -> Tensor:
        """The P marginal variances."""

    @property
    @abstractmethod
    def precision_diagonal(self) -> Tensor:
        """The diagonal of Σ⁻¹: inverse variances given all other numbers."""

    @abstractmethod
    def sample(self, count: int, generator: torch.Generator | None = None) -> Tensor:
        """``count`` draws from N(0, Σ), one a row."""

    @abstractmethod
    def quadratic(self, v: Tensor) -> Tensor:
        """vᵀ Σ⁻¹ v for a vector v."""

    @abstractmethod
    def logdet(self) -> Tensor:
        """log |Σ|."""

    @abstractmethod
    def multiply(self, v: Tensor) -> Tensor:
        """Σ v for every vector v of [..., P], in the same shape."""

    def variance_along(self, j: Tensor) -> Tensor:
        """J Σ Jᵀ [..., K, K] for J [..., K, P]: the covariance of K numbers linear in the vector, such as outputs.

        K products with Σ, and K²P operations more.
        """
        return j @ self.multiply(j).mT

    def to(self, dtype: torch.dtype) -> Structure:
        """The same in another precision."""
        fields = {f.name: _to(getattr(self, f.name), dtype) for f in dataclasses.fields(self)}  # type: ignore[arg-type]
        return type(self)(**fields)

    def log_prob(self, v: Tensor) -> Tensor:
        """log N(v; 0, Σ) = −½ (vᵀ Σ⁻¹ v + log |Σ| + P log 2π)."""
        return -0.5 * (self.quadratic(v) + self.logdet() + self.size * math.log(2 * math.pi))


def _to(value: Any, dtype: torch.dtype) -> Any:
    if isinstance(value, list):
        return [_to(each, dtype) for each in value]
    return value.to(dtype) if isinstance(value, Tensor | Structure) else value
