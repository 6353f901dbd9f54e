"""Dropout as a family: units that are there or not, of which only the means are learnt."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from bayesrule.families.base import Estimator, Family, How, Natural, Recipe, refuse
from bayesrule.families.losses import Loss
from bayesrule.families.quadrature import Nodes
from bayesrule.families.spike_and_slab import SpikeAndSlab


@dataclass(frozen=True)
class DroppedGaussian(Family):
    """Dropout: w_u = z_u v_u with z_u ~ Bernoulli(keep) and v_u ~ N(m_u, variance), of which only the means are free.

    λ = m/variance, [U, d]; μ = E[zv] = keep·m; A(λ) = ½·keep·variance·‖λ‖², the log-partition given z on average, so
    that μ = ∇A and KL(q‖q') is A's Bregman divergence. The entropy does not depend on m, so the rule is
    m ← m − ρ·variance·E[z∇ℓ(zv)]/keep. how='local' takes v = m: dropout itself (Khan & Rue 2023, §4.2).

    >>> family = DroppedGaussian(keep=0.5, variance=1.0)
    >>> natural = family.of(torch.tensor([[2.0]], dtype=torch.float64))
    >>> family.gradient(lambda w: w[:, 0, 0] ** 2 / 2, natural)  # ½·½(m² + 1) by ½m
    (tensor([[2.0000]], dtype=torch.float64),)
    """

    title: ClassVar[str] = "dropped Gaussian"
    symbols: ClassVar[tuple[str, ...]] = ("mean/variance",)
    default_nodes: ClassVar[int] = 24
    keep: float = 0.5
    variance: float = 1.0

    def __post_init__(self) -> None:
        refuse(
            0 < self.keep <= 1, f"keep must be above 0 and at most 1, not {self.keep}: a unit must be there at times"
        )
        refuse(self.variance > 0, f"variance must be positive, not {self.variance}: how='local' leaves out its noise")

    def of(self, mean: Tensor) -> Natural:
        """λ of the means [U, d]."""
        return (mean / self.variance,)

    def statistics(self, w: Tensor) -> Natural:
        """w itself, zero where a unit is not there."""
        return (w,)

    def log_partition(self, natural: Natural) -> Tensor:
        """½·keep·variance·‖λ‖²."""
        return 0.5 * self.keep * self.variance * natural[0].square().sum()

    def log_prob(self, w: Tensor, natural: Natural) -> Tensor:
        """log q(w) against the base δ₀ + dw of each unit; needs keep < 1."""
        return SpikeAndSlab().log_prob(w, self._whole(natural))

    def entropy(self, natural: Natural) -> Tensor:
        """Against the base δ₀ + dw of each unit, whatever λ: H(z) + keep·½ log 2πe·variance a number."""
        size, units = natural[0].numel(), natural[0][..., 0].numel()
        keep = torch.tensor(self.keep, dtype=natural[0].dtype)
        gate = -(torch.xlogy(keep, keep) + torch.xlogy(1 - keep, 1 - keep))
        return units * gate + size * self.keep * 0.5 * (1 + math.log(2 * math.pi * self.variance))

    def entropy_gradient(
        self, natural: Natural, how: How = "exact", generator: torch.Generator | None = None
    ) -> Natural:
        """Zero."""
        return (torch.zeros_like(natural[0]),)

    def expectation(self, natural: Natural) -> Natural:
        """keep·m."""
        return (self.mean(natural),)

    def natural(self, expectation: Natural) -> Natural:
        """m = μ/keep."""
        return self.of(expectation[0] / self.keep)

    def slab_mean(self, natural: Natural) -> Tensor:
        """m."""
        return self.variance * natural[0]

    def mean(self, natural: Natural) -> Tensor:
        """keep·m."""
        return self.keep * self.slab_mean(natural)

    def sample(self, natural: Natural, n: int, generator: torch.Generator | None = None) -> Tensor:
        """z·v."""
        present = self._present(natural, n, generator)
        noise = torch.randn(n, *natural[0].shape, generator=generator, dtype=natural[0].dtype)
        return present * (self.slab_mean(natural) + math.sqrt(self.variance) * noise)

    def fisher_solve(self, natural: Natural, gradient: Natural) -> Natural:
        """By F = keep·variance."""
        return (gradient[0] / (self.keep * self.variance),)

    def recipes(self) -> Mapping[str, Recipe]:
        """Quadrature, scores, and derivatives at draws."""
        each: dict[str, Recipe] = {"exact": self._exact, "score": self._score, "local": self._local}
        return {**each, "bonnet-price": self._bonnet, "reparam": self._bonnet, "closed-form": self._closed_form}

    def _scores(self, natural: Natural, statistics: Natural) -> Natural:
        """∇_λ log q = z(w − m): whether a unit is there says nothing about the mean."""
        (w,) = statistics
        return ((w != 0).any(-1, keepdim=True) * (w - self.slab_mean(natural)),)

    def _present(self, natural: Natural, n: int, generator: torch.Generator | None) -> Tensor:
        like = natural[0][..., :1]
        return (torch.rand(n, *like.shape, generator=generator, dtype=like.dtype) < self.keep).to(like)

    def _local(self, loss: Loss, natural: Natural, estimator: Estimator, generator: torch.Generator | None) -> Natural:
        """E[z∇ℓ(zm)]/keep over draws of z."""
        present = self._present(natural, estimator.samples, generator)
        return self._masked(loss, present, present * self.slab_mean(natural))

    def _bonnet(self, loss: Loss, natural: Natural, estimator: Estimator, generator: torch.Generator | None) -> Natural:
        """E[z∇ℓ(zv)]/keep over draws of z and v."""
        w = self.sample(natural, estimator.samples, generator)
        return self._masked(loss, (w != 0).any(-1, keepdim=True).to(w), w)

    def _masked(self, loss: Loss, present: Tensor, w: Tensor) -> Natural:
        return ((present * loss.gradient(w)).mean(0) / self.keep,)

    def _nodes(self, natural: Natural, count: int | None) -> Nodes:
        """As spike and slab."""
        nodes = SpikeAndSlab()._nodes(self._whole(natural), count or self.default_nodes)
        return Nodes(nodes.w, nodes.statistics[1:2], nodes.weights)

    def _whole(self, natural: Natural) -> Natural:
        """The same distribution with all of its parameters."""
        refuse(self.keep < 1, "keep must be below 1 for densities and how='exact', not 1: take a GaussianMean")
        mean = self.slab_mean(natural)
        keep = torch.full(mean.shape[:-1], self.keep, dtype=mean.dtype)
        return SpikeAndSlab.of(keep, mean, torch.full_like(mean, self.variance))

    def _check_domain(self, natural: Natural) -> None:
        refuse(natural[0].ndim >= 1, f"{self.title}: the shape must be [U, d], units by their weights, not []")
