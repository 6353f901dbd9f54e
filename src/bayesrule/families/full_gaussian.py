"""A Gaussian vector, mean and all covariances free."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from bayesrule.families.base import Natural, refuse
from bayesrule.families.gaussian import Gaussian
from bayesrule.families.losses import Loss


@dataclass(frozen=True)
class FullGaussian(Gaussian):
    """q(w) = N(w; m, S⁻¹): λ = (Sm, −½S), T(w) = (w, wwᵀ), μ = (m, S⁻¹ + mmᵀ), shapes [d] and [d, d].

    A(λ) = ½mᵀSm − ½log|S| + (d/2)log 2π, h = 1. Leading dimensions are independent vectors, for all but gradients.

    >>> family = FullGaussian()
    >>> natural = family.of(torch.zeros(2), torch.tensor([[1.0, 0.5], [0.5, 1.0]]))
    >>> family.gradient(lambda w: (w @ torch.tensor([1.0, 2.0])) ** 2, natural)[1]  # ½E[∇²ℓ]
    tensor([[1.0000, 2.0000],
            [2.0000, 4.0000]])
    """

    title: ClassVar[str] = "full Gaussian"
    symbols: ClassVar[tuple[str, ...]] = ("precision·mean", "−½precision")
    default_nodes: ClassVar[int] = 24

    @staticmethod
    def of(mean: Tensor, covariance: Tensor) -> Natural:
        """λ of a mean and a covariance."""
        return FullGaussian.of_precision(mean, _inverse(covariance, "covariance"))

    @staticmethod
    def of_precision(mean: Tensor, precision: Tensor) -> Natural:
        """λ of a mean and a precision."""
        return (precision @ mean[..., None])[..., 0], -0.5 * precision

    @staticmethod
    def mean_and_covariance(natural: Natural) -> tuple[Tensor, Tensor]:
        """m and S⁻¹."""
        covariance = _inverse(-2 * natural[1], "precision")
        return (covariance @ natural[0][..., None])[..., 0], covariance

    def statistics(self, w: Tensor) -> Natural:
        """(w, wwᵀ)."""
        return w, w[..., :, None] * w[..., None, :]

    def log_partition(self, natural: Natural) -> Tensor:
        """½mᵀSm − ½log|S| + (d/2)log 2π."""
        root = torch.linalg.cholesky(-2 * natural[1])
        white = torch.linalg.solve_triangular(root, natural[0][..., None], upper=False)
        log_root = root.diagonal(dim1=-2, dim2=-1).log()
        return (white.square().sum() / 2 - log_root.sum()) + natural[0].numel() / 2 * math.log(2 * math.pi)

    def expectation(self, natural: Natural) -> Natural:
        """(m, S⁻¹ + mmᵀ)."""
        mean, covariance = self.mean_and_covariance(natural)
        return mean, covariance + mean[..., :, None] * mean[..., None, :]

    def natural(self, expectation: Natural) -> Natural:
        """S⁻¹ = μ₂ − μ₁μ₁ᵀ."""
        mean, square = expectation
        return self.of(mean, square - mean[..., :, None] * mean[..., None, :])

    def mean(self, natural: Natural) -> Tensor:
        """m."""
        return self.mean_and_covariance(natural)[0]

    def spread(self, natural: Natural, noise: Tensor) -> Tensor:
        """L⁻ᵀε with LLᵀ = S."""
        root = torch.linalg.cholesky(-2 * natural[1])
        return torch.linalg.solve_triangular(root.mT, noise[..., None], upper=True)[..., 0]

    def weigh(self, natural: Natural, deviations: Tensor) -> Tensor:
        """S(w − m)."""
        return (-2 * natural[1] @ deviations[..., None])[..., 0]

    def second(self, pull: Tensor, left: Tensor, right: Tensor) -> Tensor:
        """Σ_k pull_k ½(left_k right_kᵀ + right_k left_kᵀ)."""
        product = torch.einsum("k,ki,kj->ij", pull, left, right)
        return (product + product.mT) / 2

    def curvature(self, loss: Loss, w: Tensor) -> Tensor:
        """The mean Hessian."""
        hessian = loss.hessian(w).mean(0)
        # By autograd a Hessian is symmetric up to rounding only, and Cholesky reads one half of it.
        return (hessian + hessian.mT) / 2

    def by_expectation(self, natural: Natural, by_mean: Tensor, by_covariance: Tensor | None) -> Natural:
        """(∇_m E − 2(∇_V E)m, ∇_V E)."""
        assert by_covariance is not None
        return by_mean - 2 * by_covariance @ self.mean(natural), by_covariance

    def fisher_solve(self, natural: Natural, gradient: Natural) -> Natural:
        """∇_V f = ½S(∇_λ₂ f − m∇_λ₁fᵀ − ∇_λ₁f mᵀ)S and ∇_m f = S∇_λ₁ f, then as `by_expectation`."""
        precision, mean = -2 * natural[1], self.mean(natural)
        cross = mean[:, None] * gradient[0][None, :]
        by_covariance = precision @ (gradient[1] - cross - cross.mT) @ precision / 2
        return self.by_expectation(natural, precision @ gradient[0], by_covariance)

    def retract(self, natural: Natural, step: Natural) -> Natural:
        """λ + step, with ½ΔS S⁻¹ΔS more precision, so that it stays positive (Lin, Schmidt & Khan 2020)."""
        old, change = -2 * natural[1], -2 * step[1]
        extra = change @ torch.linalg.solve(old, change) / 2
        precision = old + change + (extra + extra.mT) / 2
        mean = self.mean(natural)
        push = natural[0] + step[0] - (old + change) @ mean
        return precision @ mean + push, -precision / 2

    def _check_domain(self, natural: Natural) -> None:
        first, second = natural
        fits = first.ndim > 0 and second.shape == (*first.shape, first.shape[-1])
        refuse(fits, f"{self.title}: shapes must be [d] and [d, d], not {list(first.shape)} and {list(second.shape)}")
        lowest = float(torch.linalg.eigvalsh(-(second + second.mT)).min())
        what = "the precision (−2 times the second natural parameter)"
        refuse(lowest > 0, f"{self.title}: {what} must be positive definite; its lowest eigenvalue is {lowest:.4g}")


def _inverse(matrix: Tensor, what: str) -> Tensor:
    """By Cholesky, with a ValueError if there is none."""
    root, failed = torch.linalg.cholesky_ex(matrix)
    if bool((failed > 0).any()):
        lowest = float(torch.linalg.eigvalsh(matrix).min())
        raise ValueError(f"full Gaussian: {what} must be positive definite; its lowest eigenvalue is {lowest:.4g}")
    return torch.cholesky_inverse(root)
