"""A Gaussian whose covariance is given: only the mean is free."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import ClassVar

import torch
from torch import Tensor

from bayesrule.families.base import Estimator, How, Natural, refuse
from bayesrule.families.gaussian import Gaussian
from bayesrule.families.losses import Loss


def _unit() -> Tensor:
    return torch.ones((), dtype=torch.float64)


@dataclass(frozen=True, eq=False)
class GaussianMean(Gaussian):
    """q(w) = N(w; m, Σ) with Σ fixed: λ = Σ⁻¹m, T(w) = w, μ = m, h(w) = N(w; 0, Σ), A(λ) = ½λᵀΣλ.

    ``covariance``: a number or a vector (variances), or a matrix; w is a vector [d]. The entropy does not depend on m,
    so the rule is m ← m − ρΣE_q[∇ℓ].

    >>> family = GaussianMean(torch.tensor(0.5))
    >>> natural = family.of(torch.tensor([1.0, 2.0]))
    >>> family.gradient(lambda w: (w**2).sum(-1), natural)
    (tensor([2.0000, 4.0000]),)
    >>> family.entropy_gradient(natural)
    (tensor([0., 0.]),)
    """

    title: ClassVar[str] = "Gaussian of fixed covariance"
    symbols: ClassVar[tuple[str, ...]] = ("precision·mean",)
    covariance: Tensor = field(default_factory=_unit)

    def __post_init__(self) -> None:
        given = self.covariance
        refuse(given.ndim <= 2, f"covariance must be a number, a vector or a matrix, not of shape {list(given.shape)}")
        eigenvalues = torch.linalg.eigvalsh(given) if given.ndim == 2 else given
        lowest = float(eigenvalues.min())
        refuse(lowest > 0, f"covariance must be positive definite; its lowest eigenvalue is {lowest:.4g}")

    def of(self, mean: Tensor) -> Natural:
        """λ of a mean."""
        return (self._solve(mean),)

    def statistics(self, w: Tensor) -> Natural:
        """w itself."""
        return (w,)

    def log_base(self, w: Tensor) -> Tensor:
        """log N(w; 0, Σ), one number a point."""
        quadratic = w * self._solve(w)
        if self.covariance.ndim == 2:
            size, logdet = w.shape[-1], torch.logdet(self.covariance)
            return -0.5 * (quadratic.sum(-1) + logdet + size * math.log(2 * math.pi))
        return (-0.5 * (quadratic + self.covariance.log().to(w) + math.log(2 * math.pi))).sum(-1)

    def log_partition(self, natural: Natural) -> Tensor:
        """½λᵀΣλ."""
        return 0.5 * (natural[0] * self._times(natural[0])).sum()

    def expectation(self, natural: Natural) -> Natural:
        """m = Σλ."""
        return (self._times(natural[0]),)

    def natural(self, expectation: Natural) -> Natural:
        """Σ⁻¹m."""
        return self.of(expectation[0])

    def mean(self, natural: Natural) -> Tensor:
        """m = Σλ."""
        return self._times(natural[0])

    def entropy(self, natural: Natural) -> Tensor:
        """½log|2πeΣ|, whatever λ."""
        size, given = natural[0].numel(), self.covariance.to(natural[0])
        constant = size * (1 + math.log(2 * math.pi))
        if given.ndim == 2:
            return 0.5 * (torch.logdet(given) + constant)
        return 0.5 * (given.log().expand_as(natural[0]).sum() + constant)  # one number may stand for all entries

    def entropy_gradient(
        self, natural: Natural, how: How = "exact", generator: torch.Generator | None = None
    ) -> Natural:
        """Zero: −λ, and +λ from the base."""
        return (torch.zeros_like(natural[0]),)

    def fisher_solve(self, natural: Natural, gradient: Natural) -> Natural:
        """Σ⁻¹∇_λ f."""
        return (self._solve(gradient[0]),)

    def spread(self, natural: Natural, noise: Tensor) -> Tensor:
        """Lε with LLᵀ = Σ."""
        given = self.covariance.to(noise)
        if given.ndim == 2:
            return noise @ torch.linalg.cholesky(given).mT  # rows of noise, hence Lᵀ from the right
        return noise * given.sqrt()

    def weigh(self, natural: Natural, deviations: Tensor) -> Tensor:
        """Σ⁻¹(w − m)."""
        return self._solve(deviations)

    def second(self, pull: Tensor, left: Tensor, right: Tensor) -> None:
        """Not needed: V is fixed."""

    def curvature(self, loss: Loss, w: Tensor) -> None:
        """Not needed: V is fixed."""

    def by_expectation(self, natural: Natural, by_mean: Tensor, by_covariance: Tensor | None) -> Natural:
        """∇_m E itself."""
        return (by_mean,)

    def _times(self, vectors: Tensor) -> Tensor:
        given = self.covariance.to(vectors)
        if given.ndim == 2:
            return vectors @ given  # Σ is symmetric
        return vectors * given

    def _solve(self, vectors: Tensor) -> Tensor:
        given = self.covariance.to(vectors)
        if given.ndim == 2:
            return torch.linalg.solve(given, vectors[..., None])[..., 0]
        return vectors / given

    def _exact(self, loss: Loss, natural: Natural, estimator: Estimator, generator: torch.Generator | None) -> Natural:
        """As any Gaussian; where a loss has a slope but no value, E[∇ℓ] at the same points."""
        if loss.value is not None:
            return super()._exact(loss, natural, estimator, generator)
        noise, weights = self._quadrature(natural, estimator.nodes)
        slopes = loss.gradient(self.mean(natural) + self.spread(natural, noise))
        return (torch.tensordot(weights, slopes, 1),)
