"""What Gaussian families share: gradients by the mean and the covariance, and from them by μ."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping

import torch
from torch import Tensor

from bayesrule.families.base import Estimator, Family, Natural, Recipe, several
from bayesrule.families.losses import Loss
from bayesrule.families.quadrature import Nodes, normal_grid


class Gaussian(Family):
    """N(m, V), with μ = (m, V + mmᵀ) or a part of it.

    ∇_m E = E[∇ℓ] (Bonnet) and ∇_V E = ½E[∇²ℓ] (Price) are had by quadrature, over draws or at the mean; the chain rule
    then gives ∇_μ₁ E = ∇_m E − 2(∇_V E)m and ∇_μ₂ E = ∇_V E.
    """

    @abstractmethod
    def spread(self, natural: Natural, noise: Tensor) -> Tensor:
        """Standard normal noise [n, ...] as deviations w − m, of covariance V."""

    @abstractmethod
    def weigh(self, natural: Natural, deviations: Tensor) -> Tensor:
        """V⁻¹(w − m) for deviations [n, ...]."""

    @abstractmethod
    def second(self, pull: Tensor, left: Tensor, right: Tensor) -> Tensor | None:
        """Σ_k pull_k left_k right_kᵀ, made symmetric, in the shape of V; None where V is fixed."""

    @abstractmethod
    def curvature(self, loss: Loss, w: Tensor) -> Tensor | None:
        """The mean of ∇²ℓ over points, in the shape of V; None where V is fixed."""

    @abstractmethod
    def by_expectation(self, natural: Natural, by_mean: Tensor, by_covariance: Tensor | None) -> Natural:
        """∇_μ E from ∇_m E and ∇_V E."""

    @abstractmethod
    def mean(self, natural: Natural) -> Tensor:
        """m."""

    def sample(self, natural: Natural, n: int, generator: torch.Generator | None = None) -> Tensor:
        """m + V^½ ε with ε ~ N(0, I)."""
        return self.mean(natural) + self.spread(natural, self._noise(natural, n, generator))

    def recipes(self) -> Mapping[str, Recipe]:
        """All of `Estimator`."""
        return {**super().recipes(), "bonnet-price": self._bonnet_price, "reparam": self._reparam}

    def _noise(self, natural: Natural, n: int, generator: torch.Generator | None) -> Tensor:
        like = natural[0]
        return torch.randn(n, *like.shape, generator=generator, dtype=like.dtype)

    def _nodes(self, natural: Natural, count: int | None) -> Nodes:
        noise, weights = self._quadrature(natural, count)
        w = self.mean(natural) + self.spread(natural, noise)
        return Nodes(w, self.statistics(w), weights)

    def _quadrature(self, natural: Natural, count: int | None) -> tuple[Tensor, Tensor]:
        noise, weights = normal_grid(natural[0].numel(), count or self.default_nodes, natural[0])
        return noise.reshape(-1, *natural[0].shape), weights

    def _exact(self, loss: Loss, natural: Natural, estimator: Estimator, generator: torch.Generator | None) -> Natural:
        noise, weights = self._quadrature(natural, estimator.nodes)
        return self._by_values(loss, natural, noise, weights)

    def _score(self, loss: Loss, natural: Natural, estimator: Estimator, generator: torch.Generator | None) -> Natural:
        n = several(estimator)
        weights = torch.full((n,), 1 / (n - 1), dtype=natural[0].dtype)
        return self._by_values(loss, natural, self._noise(natural, n, generator), weights)

    def _by_values(self, loss: Loss, natural: Natural, noise: Tensor, weights: Tensor) -> Natural:
        """∇_m E = E[ℓ V⁻¹(w − m)], ∇_V E = ½E[ℓ (V⁻¹(w − m)(w − m)ᵀV⁻¹ − V⁻¹)], with ℓ less its mean."""
        deviations = self.spread(natural, noise)
        values = loss(self.mean(natural) + deviations)
        pull = weights * (values - (weights @ values) / weights.sum())
        weighed = self.weigh(natural, deviations)
        second = self.second(pull / 2, weighed, weighed)
        return self.by_expectation(natural, torch.tensordot(pull, weighed, 1), second)

    def _bonnet_price(
        self, loss: Loss, natural: Natural, estimator: Estimator, generator: torch.Generator | None
    ) -> Natural:
        """E[∇ℓ] and ½E[∇²ℓ] over draws."""
        return self._by_derivatives(loss, natural, self.sample(natural, estimator.samples, generator))

    def _local(self, loss: Loss, natural: Natural, estimator: Estimator, generator: torch.Generator | None) -> Natural:
        """∇ℓ(m) and ½∇²ℓ(m)."""
        return self._by_derivatives(loss, natural, self.mean(natural)[None])

    def _by_derivatives(self, loss: Loss, natural: Natural, w: Tensor) -> Natural:
        curvature = self.curvature(loss, w)
        by_covariance = None if curvature is None else curvature / 2  # ∇_V E = ½E[∇²ℓ]
        return self.by_expectation(natural, loss.gradient(w).mean(0), by_covariance)

    def _reparam(
        self, loss: Loss, natural: Natural, estimator: Estimator, generator: torch.Generator | None
    ) -> Natural:
        """E[∇ℓ] and ½E[∇ℓ (w − m)ᵀV⁻¹] over draws: the second is ½E[∇²ℓ] by Stein's identity."""
        deviations = self.spread(natural, self._noise(natural, estimator.samples, generator))
        slopes = loss.gradient(self.mean(natural) + deviations)
        pull = torch.full((len(slopes),), 0.5 / len(slopes), dtype=slopes.dtype)
        second = self.second(pull, slopes, self.weigh(natural, deviations))
        return self.by_expectation(natural, slopes.mean(0), second)
