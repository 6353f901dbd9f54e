"""Yes or no, and one of K."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor
from torch.nn import functional

from bayesrule.families.base import Estimator, Family, Natural, Recipe, refuse
from bayesrule.families.losses import Loss
from bayesrule.families.quadrature import Nodes, grid


@dataclass(frozen=True)
class Bernoulli(Family):
    """q(w) = Π_j p_j^w_j (1 − p_j)^(1 − w_j), w_j in {0, 1}: λ = log p/(1 − p), T(w) = w, μ = p, A = Σ log(1 + e^λ).

    >>> family = Bernoulli()
    >>> natural = family.of(torch.tensor([0.5, 0.9]))
    >>> family.gradient(lambda w: w[:, 0] * w[:, 1], natural)  # E = p₁p₂
    (tensor([0.9000, 0.5000]),)
    """

    title: ClassVar[str] = "Bernoulli"
    symbols: ClassVar[tuple[str, ...]] = ("log-odds",)

    @staticmethod
    def of(probability: Tensor) -> Natural:
        """λ of a probability."""
        inside = bool(((probability > 0) & (probability < 1)).all())
        refuse(inside, "Bernoulli: probability must be between 0 and 1, both excluded")
        return (torch.logit(probability),)

    def statistics(self, w: Tensor) -> Natural:
        """w itself."""
        return (w,)

    def log_partition(self, natural: Natural) -> Tensor:
        """Σ log(1 + e^λ)."""
        return functional.softplus(natural[0]).sum()

    def expectation(self, natural: Natural) -> Natural:
        """p = σ(λ)."""
        return (natural[0].sigmoid(),)

    def natural(self, expectation: Natural) -> Natural:
        """log p/(1 − p)."""
        return self.of(expectation[0])

    def mean(self, natural: Natural) -> Tensor:
        """p."""
        return natural[0].sigmoid()

    def sample(self, natural: Natural, n: int, generator: torch.Generator | None = None) -> Tensor:
        """Zeros and ones, as floats."""
        return (self._logistic(natural, n, generator) > 0).to(natural[0])

    def fisher_solve(self, natural: Natural, gradient: Natural) -> Natural:
        """By F = p(1 − p)."""
        p = natural[0].sigmoid()
        return (gradient[0] / (p * (1 - p)),)

    def recipes(self) -> Mapping[str, Recipe]:
        """All that need no Gaussian."""
        return {**super().recipes(), "reparam": self._reparam}

    def _logistic(self, natural: Natural, n: int, generator: torch.Generator | None) -> Tensor:
        """λ + log u/(1 − u): positive with probability σ(λ)."""
        like = natural[0]
        u = torch.rand(n, *like.shape, generator=generator, dtype=like.dtype)
        return like + torch.logit(u, eps=torch.finfo(like.dtype).tiny)

    def _nodes(self, natural: Natural, count: int | None) -> Nodes:
        """All 2^d points."""
        like = natural[0]
        w = grid([2] * like.numel()).to(like).reshape(-1, *like.shape)
        return Nodes(w, (w,), self.log_prob(w, natural).exp())

    def _reparam(
        self, loss: Loss, natural: Natural, estimator: Estimator, generator: torch.Generator | None
    ) -> Natural:
        """Through σ((λ + log u/(1 − u))/τ), the concrete relaxation (Maddison 2017, Jang 2017)."""
        noise = self._logistic(natural, estimator.samples, generator) - natural[0]
        return self._through(loss, natural, lambda leaves: ((leaves[0] + noise) / estimator.relaxation).sigmoid())


@dataclass(frozen=True)
class Categorical(Family):
    """q(w) = Π_k p_k^w_k for a one-hot w of K entries: λ_k = log p_k/p_K for k < K, T(w) = (w_1, …, w_{K−1}), μ = p.

    Shape [K − 1], or [..., K − 1] for independent choices. A(λ) = log(1 + Σ_k e^λ_k). Draws are one-hot, [n, ..., K].

    >>> family = Categorical()
    >>> natural = family.of(torch.tensor([0.2, 0.3, 0.5]))
    >>> family.mean(natural)
    tensor([0.2000, 0.3000, 0.5000])
    >>> family.gradient(lambda w: w @ torch.tensor([3.0, 2.0, 1.0]), natural)  # against the last
    (tensor([2.0000, 1.0000]),)
    """

    title: ClassVar[str] = "categorical"
    symbols: ClassVar[tuple[str, ...]] = ("log-ratios to the last",)

    @staticmethod
    def of(probabilities: Tensor) -> Natural:
        """λ of K probabilities."""
        refuse(bool((probabilities > 0).all()), "categorical: probabilities must be positive")
        logs = probabilities.log()
        return (logs[..., :-1] - logs[..., -1:],)

    def statistics(self, w: Tensor) -> Natural:
        """All entries but the last."""
        return (w[..., :-1],)

    def log_partition(self, natural: Natural) -> Tensor:
        """log(1 + Σ_k e^λ_k), summed over choices."""
        return torch.logsumexp(self.logits(natural), -1).sum()

    def expectation(self, natural: Natural) -> Natural:
        """The first K − 1 probabilities."""
        return (self.mean(natural)[..., :-1],)

    def natural(self, expectation: Natural) -> Natural:
        """log p_k/p_K with p_K = 1 − Σ_k p_k."""
        (first,) = expectation
        return self.of(torch.cat([first, 1 - first.sum(-1, keepdim=True)], -1))

    def mean(self, natural: Natural) -> Tensor:
        """All K probabilities."""
        return self.logits(natural).softmax(-1)

    @staticmethod
    def logits(natural: Natural) -> Tensor:
        """λ and a zero for the last."""
        return functional.pad(natural[0], (0, 1))

    def sample(self, natural: Natural, n: int, generator: torch.Generator | None = None) -> Tensor:
        """One-hot rows."""
        best = self._perturbed(natural, n, generator).argmax(-1)
        return functional.one_hot(best, natural[0].shape[-1] + 1).to(natural[0])

    def fisher_solve(self, natural: Natural, gradient: Natural) -> Natural:
        """By F⁻¹ = diag(1/p) + 11ᵀ/p_K."""
        p = self.mean(natural)
        return (gradient[0] / p[..., :-1] + gradient[0].sum(-1, keepdim=True) / p[..., -1:],)

    def recipes(self) -> Mapping[str, Recipe]:
        """All that need no Gaussian."""
        return {**super().recipes(), "reparam": self._reparam}

    def _perturbed(self, natural: Natural, n: int, generator: torch.Generator | None) -> Tensor:
        """Logits plus Gumbel noise: the largest is a draw."""
        logits = self.logits(natural)
        u = torch.rand(n, *logits.shape, generator=generator, dtype=logits.dtype)
        return logits - (-u.clamp_min(torch.finfo(u.dtype).tiny).log()).log()

    def _nodes(self, natural: Natural, count: int | None) -> Nodes:
        """All K^rows choices."""
        shape = natural[0].shape
        classes, rows = shape[-1] + 1, shape[:-1].numel()
        w = functional.one_hot(grid([classes] * rows), classes).to(natural[0]).reshape(-1, *shape[:-1], classes)
        return Nodes(w, self.statistics(w), self.log_prob(w, natural).exp())

    def _reparam(
        self, loss: Loss, natural: Natural, estimator: Estimator, generator: torch.Generator | None
    ) -> Natural:
        """Through softmax((λ + Gumbel)/τ), the concrete relaxation (Maddison 2017, Jang 2017)."""
        noise = self._perturbed(natural, estimator.samples, generator) - self.logits(natural)
        return self._through(
            loss, natural, lambda leaves: ((self.logits(leaves) + noise) / estimator.relaxation).softmax(-1)
        )

    def _check_domain(self, natural: Natural) -> None:
        what = "categorical: log-ratios must have the shape [..., K − 1] with K at least 2"
        refuse(natural[0].ndim >= 1 and natural[0].shape[-1] >= 1, f"{what}, not {list(natural[0].shape)}")
