"""Units that are there or not: w = z·v with z yes or no and v Gaussian."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from bayesrule.families.base import Estimator, Family, Natural, Recipe, positive, refuse, several
from bayesrule.families.losses import Loss
from bayesrule.families.quadrature import Nodes, grid, normal_grid


@dataclass(frozen=True)
class SpikeAndSlab(Family):
    """w_u = z_u v_u for each unit u, z_u ~ Bernoulli(p_u), v_u ~ N(m_u, diag(1/s_u)); all of p, m, s are free.

    With the base measure δ₀ + dw this is an exponential family: T(w_u) = (1[w_u ≠ 0], w_u, w_u²),
    λ = (log p/(1 − p) − A_G, s∘m, −½s), shapes [U], [U, d], [U, d], where A_G(s, m) is the log-partition of the slab's
    Gaussian; μ = (p, p·m, p(1/s + m²)) and A(λ) = Σ_u log(1 + exp(λ₁ + A_G)). Densities and entropies are relative to
    the base.

    >>> family = SpikeAndSlab()
    >>> natural = family.of(torch.tensor([0.5]), torch.tensor([[2.0]]), torch.tensor([[1.0]]))
    >>> family.mean(natural)
    tensor([[1.]])
    """

    title: ClassVar[str] = "spike and slab"
    symbols: ClassVar[tuple[str, ...]] = ("log-odds − A_G", "precision·mean", "−½precision")
    default_nodes: ClassVar[int] = 24

    @staticmethod
    def of(keep: Tensor, mean: Tensor, variance: Tensor) -> Natural:
        """λ of the probabilities [U] that a unit is there, and the slab's means and variances [U, d]."""
        positive(variance, "spike and slab", "variance")
        inside = bool(((keep > 0) & (keep < 1)).all())
        refuse(inside, "spike and slab: keep must be between 0 and 1, both excluded")
        first, second = mean / variance, -0.5 / variance
        return torch.logit(keep) - _slab(first, second), first, second

    @staticmethod
    def parts(natural: Natural) -> tuple[Tensor, Tensor, Tensor]:
        """p, m and 1/s."""
        gate, first, second = natural
        variance = -0.5 / second
        return (gate + _slab(first, second)).sigmoid(), first * variance, variance

    def statistics(self, w: Tensor) -> Natural:
        """(1[w ≠ 0], w, w²)."""
        return (w != 0).any(-1).to(w), w, w.square()

    def log_partition(self, natural: Natural) -> Tensor:
        """Σ_u log(1 + exp(λ₁ + A_G))."""
        return torch.nn.functional.softplus(natural[0] + _slab(natural[1], natural[2])).sum()

    def expectation(self, natural: Natural) -> Natural:
        """(p, p·m, p(1/s + m²))."""
        keep, mean, variance = self.parts(natural)
        return keep, keep[..., None] * mean, keep[..., None] * (variance + mean.square())

    def natural(self, expectation: Natural) -> Natural:
        """Divide by p, then as a Gaussian."""
        keep, first, second = expectation
        mean = first / keep[..., None]
        return self.of(keep, mean, second / keep[..., None] - mean.square())

    def mean(self, natural: Natural) -> Tensor:
        """p·m."""
        return self.expectation(natural)[1]

    def sample(self, natural: Natural, n: int, generator: torch.Generator | None = None) -> Tensor:
        """z·v, zero where z is."""
        present, v = self._draw(natural, n, generator)
        return present[..., None] * v

    def by_expectation(self, natural: Natural, by_keep: Tensor, by_mean: Tensor, by_variance: Tensor) -> Natural:
        """∇_μ E from the gradients by p, m and v = 1/s: with m = μ₂/μ₁ and v = μ₃/μ₁ − m²."""
        keep, mean, variance = self.parts(natural)
        share = 1 / keep[..., None]
        inside = share * ((mean.square() - variance) * by_variance - mean * by_mean)
        return by_keep + inside.sum(-1), share * (by_mean - 2 * mean * by_variance), share * by_variance

    def fisher_solve(self, natural: Natural, gradient: Natural) -> Natural:
        """Through (p, m, v): ∇_λ f = (∂(p, m, v)/∂λ)ᵀ∇f is triangular, and solved from its first part on."""
        keep, mean, variance = self.parts(natural)
        gate = gradient[0][..., None]
        lift, square = gradient[1] - gate * mean, gradient[2] - gate * (variance + mean.square())
        by_variance = (square - 2 * mean * lift) / (2 * variance.square())
        return self.by_expectation(natural, gradient[0] / (keep * (1 - keep)), lift / variance, by_variance)

    def recipes(self) -> Mapping[str, Recipe]:
        """Quadrature, scores, and derivatives by the slab (whether a unit is there stays with its score)."""
        both: dict[str, Recipe] = {"exact": self._exact, "score": self._score, "bonnet-price": self._bonnet_price}
        return {**both, "closed-form": self._closed_form}

    def _draw(self, natural: Natural, n: int, generator: torch.Generator | None) -> tuple[Tensor, Tensor]:
        keep, mean, variance = self.parts(natural)
        u = torch.rand(n, *keep.shape, generator=generator, dtype=keep.dtype)
        noise = torch.randn(n, *mean.shape, generator=generator, dtype=mean.dtype)
        return (u < keep).to(mean), mean + variance.sqrt() * noise

    def _bonnet_price(
        self, loss: Loss, natural: Natural, estimator: Estimator, generator: torch.Generator | None
    ) -> Natural:
        """∇_m E = E[z∇ℓ(zv)], ∇_v E = ½E[z∇²ℓ(zv)]; ∇_p E by the score of z."""
        keep = self.parts(natural)[0]
        present, v = self._draw(natural, several(estimator), generator)
        there, w = present[..., None], present[..., None] * v
        values = loss(w)
        score = (present - keep) / (keep * (1 - keep))
        by_keep = torch.tensordot(values - values.mean(), score, 1) / (len(w) - 1)
        slopes, curvatures = there * loss.gradient(w), there * loss.hessian_diagonal(w)
        return self.by_expectation(natural, by_keep, slopes.mean(0), curvatures.mean(0) / 2)

    def _nodes(self, natural: Natural, count: int | None) -> Nodes:
        """For each unit zero and the Gauss–Hermite points of the slab, and all combinations of units."""
        keep, mean, variance = self.parts(natural)
        noise, weights = normal_grid(mean.shape[-1], count or self.default_nodes, mean)
        places = grid([len(weights) + 1] * keep.numel()).reshape(-1, *keep.shape)
        present, at = (places > 0).to(mean), (places - 1).clamp_min(0)
        w = present[..., None] * (mean + variance.sqrt() * noise[at])
        each = torch.where(places > 0, keep * weights[at], 1 - keep)
        return Nodes(w, (present, w, w.square()), each.flatten(1).prod(-1))

    def _check_domain(self, natural: Natural) -> None:
        gate, first, second = natural
        fits = first.shape == second.shape and first.shape[:-1] == gate.shape and first.ndim == gate.ndim + 1
        shapes = [list(part.shape) for part in natural]
        refuse(fits, f"{self.title}: shapes must be [U], [U, d] and [U, d], not {shapes}")
        positive(-2 * second, self.title, "the precision (−2 times the third natural parameter)")


def _slab(first: Tensor, second: Tensor) -> Tensor:
    """A_G, the log-partition of each unit's Gaussian."""
    terms = -first.square() / (4 * second) - 0.5 * torch.log(-2 * second) + 0.5 * math.log(2 * math.pi)
    return terms.sum(-1)
