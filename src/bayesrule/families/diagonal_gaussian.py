"""Independent Gaussian numbers, mean and variance free."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from bayesrule.families.base import Natural, positive, same_shape
from bayesrule.families.gaussian import Gaussian
from bayesrule.families.losses import Loss


@dataclass(frozen=True)
class DiagonalGaussian(Gaussian):
    """q(w) = Π_j N(w_j; m_j, 1/s_j): λ = (s∘m, −½s), T(w) = (w, w²), μ = (m, 1/s + m²), tensors of any one shape.

    A(λ) = Σ_j [½s_j m_j² − ½log s_j + ½log 2π], h = 1.

    >>> family = DiagonalGaussian()
    >>> natural = family.of(torch.tensor([1.0, 2.0]), torch.tensor([4.0, 0.25]))
    >>> natural
    (tensor([0.2500, 8.0000]), tensor([-0.1250, -2.0000]))
    >>> family.gradient(lambda w: (w**2).sum(-1), natural)[1]  # ½E[∂²ℓ]
    tensor([1.0000, 1.0000])
    """

    title: ClassVar[str] = "diagonal Gaussian"
    symbols: ClassVar[tuple[str, ...]] = ("precision·mean", "−½precision")

    @staticmethod
    def of(mean: Tensor, variance: Tensor | float) -> Natural:
        """λ of a mean and a variance."""
        variance = torch.as_tensor(variance, dtype=mean.dtype).expand_as(mean)
        positive(variance, "diagonal Gaussian", "variance")
        return mean / variance, -0.5 / variance

    @staticmethod
    def mean_and_variance(natural: Natural) -> tuple[Tensor, Tensor]:
        """m and 1/s."""
        variance = -0.5 / natural[1]
        return natural[0] * variance, variance

    def statistics(self, w: Tensor) -> Natural:
        """(w, w²)."""
        return w, w.square()

    def log_partition(self, natural: Natural) -> Tensor:
        """Σ_j [½s_j m_j² − ½log s_j + ½log 2π]."""
        first, second = natural
        terms = -first.square() / (4 * second) - 0.5 * torch.log(-2 * second) + 0.5 * math.log(2 * math.pi)
        return terms.sum()

    def expectation(self, natural: Natural) -> Natural:
        """(m, 1/s + m²)."""
        mean, variance = self.mean_and_variance(natural)
        return mean, variance + mean.square()

    def natural(self, expectation: Natural) -> Natural:
        """s = 1/(μ₂ − μ₁²)."""
        mean, square = expectation
        return self.of(mean, square - mean.square())

    def mean(self, natural: Natural) -> Tensor:
        """m."""
        return self.mean_and_variance(natural)[0]

    def spread(self, natural: Natural, noise: Tensor) -> Tensor:
        """ε/√s."""
        return noise * (-2 * natural[1]).rsqrt()

    def weigh(self, natural: Natural, deviations: Tensor) -> Tensor:
        """s∘(w − m)."""
        return -2 * natural[1] * deviations

    def second(self, pull: Tensor, left: Tensor, right: Tensor) -> Tensor:
        """Σ_k pull_k left_k∘right_k."""
        return torch.tensordot(pull, left * right, 1)

    def curvature(self, loss: Loss, w: Tensor) -> Tensor:
        """The mean diagonal of the Hessian."""
        return loss.hessian_diagonal(w).mean(0)

    def by_expectation(self, natural: Natural, by_mean: Tensor, by_covariance: Tensor | None) -> Natural:
        """(∇_m E − 2m∘∇_v E, ∇_v E)."""
        assert by_covariance is not None
        return by_mean - 2 * self.mean(natural) * by_covariance, by_covariance

    def fisher_solve(self, natural: Natural, gradient: Natural) -> Natural:
        """By F = ((v, 2mv), (2mv, 4m²v + 2v²)) for each number, v = 1/s."""
        mean, variance = self.mean_and_variance(natural)
        second = (gradient[1] - 2 * mean * gradient[0]) / (2 * variance.square())
        return gradient[0] / variance - 2 * mean * second, second

    def retract(self, natural: Natural, step: Natural) -> Natural:
        """λ + step, with ½(Δs)²/s more precision, so that it stays positive (Lin, Schmidt & Khan 2020)."""
        old, change = -2 * natural[1], -2 * step[1]
        precision = old + change + change.square() / (2 * old)
        mean = natural[0] / old
        push = natural[0] + step[0] - (old + change) * mean
        return precision * mean + push, -precision / 2

    def _check_domain(self, natural: Natural) -> None:
        same_shape(natural, self.title)
        positive(-2 * natural[1], self.title, "the precision (−2 times the second natural parameter)")
