"""Positive numbers: rates, precisions."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from bayesrule.families import digamma
from bayesrule.families.base import Estimator, Family, Natural, Recipe, positive, refuse, same_shape
from bayesrule.families.losses import Loss
from bayesrule.families.quadrature import Nodes, log_gamma_line, on_grid


def standard_gamma(shape: Tensor, n: int, generator: torch.Generator | None = None) -> Tensor:
    """``n`` draws of Gamma(shape, 1), at least the smallest positive number, with implicit derivatives by the shape."""
    draws = torch._standard_gamma(shape.expand(n, *shape.shape), generator)
    return draws.clamp_min(torch.finfo(shape.dtype).tiny)


class Implicit(Family):
    """Families whose draws are made of Gamma draws, which can be differentiated by their shape."""

    def recipes(self) -> Mapping[str, Recipe]:
        """All that need no Gaussian."""
        return {**super().recipes(), "reparam": self._reparam}

    def _reparam(
        self, loss: Loss, natural: Natural, estimator: Estimator, generator: torch.Generator | None
    ) -> Natural:
        """Implicit derivatives of the draws (Figurnov 2018)."""
        return self._through(loss, natural, lambda leaves: self.sample(leaves, estimator.samples, generator))


@dataclass(frozen=True)
class Gamma(Implicit):
    """q(w) ∝ w^(a − 1)e^(−bw): λ = (a − 1, −b), T(w) = (log w, w), μ = (ψ(a) − log b, a/b), h = 1, any one shape.

    A(λ) = Σ log Γ(a) − a log b.

    >>> family = Gamma()
    >>> natural = family.of(torch.tensor(3.0), torch.tensor(2.0))
    >>> family.mean(natural)
    tensor(1.5000)
    """

    title: ClassVar[str] = "Gamma"
    symbols: ClassVar[tuple[str, ...]] = ("shape − 1", "−rate")
    default_nodes: ClassVar[int] = 160

    @staticmethod
    def of(shape: Tensor, rate: Tensor) -> Natural:
        """λ of a and b."""
        positive(shape, "Gamma", "shape")
        positive(rate, "Gamma", "rate")
        return shape - 1, -rate

    @staticmethod
    def shape_and_rate(natural: Natural) -> tuple[Tensor, Tensor]:
        """a and b."""
        return natural[0] + 1, -natural[1]

    def statistics(self, w: Tensor) -> Natural:
        """(log w, w)."""
        return w.log(), w

    def log_partition(self, natural: Natural) -> Tensor:
        """Σ log Γ(a) − a log b."""
        shape, rate = self.shape_and_rate(natural)
        return (torch.lgamma(shape) - shape * rate.log()).sum()

    def expectation(self, natural: Natural) -> Natural:
        """(ψ(a) − log b, a/b)."""
        shape, rate = self.shape_and_rate(natural)
        return torch.digamma(shape) - rate.log(), shape / rate

    def natural(self, expectation: Natural) -> Natural:
        """log a − ψ(a) = log E[w] − E[log w] by Newton's method, then b = a/E[w]."""
        logs, mean = expectation
        positive(mean, "Gamma", "E[w]")
        refuse(bool((mean.log() > logs).all()), "Gamma: log E[w] must exceed E[log w] (Jensen)")
        shape = digamma.gamma_shape(mean.log() - logs)
        return self.of(shape, shape / mean)

    def mean(self, natural: Natural) -> Tensor:
        """a/b."""
        shape, rate = self.shape_and_rate(natural)
        return shape / rate

    def sample(self, natural: Natural, n: int, generator: torch.Generator | None = None) -> Tensor:
        """Gamma(a, 1) draws, divided by b."""
        shape, rate = self.shape_and_rate(natural)
        return standard_gamma(shape, n, generator) / rate

    def fisher_solve(self, natural: Natural, gradient: Natural) -> Natural:
        """By F = ((ψ'(a), 1/b), (1/b, a/b²)) for each number."""
        shape, rate = self.shape_and_rate(natural)
        own = digamma.trigamma(shape)
        determinant = (own * shape - 1) / rate.square()
        first = (shape / rate.square() * gradient[0] - gradient[1] / rate) / determinant
        return first, (own * gradient[1] - gradient[0] / rate) / determinant

    def _nodes(self, natural: Natural, count: int | None) -> Nodes:
        """Equal steps in asinh of log w, on a grid where there are several numbers."""
        shape, rate = (part.double() for part in self.shape_and_rate(natural))
        count = count or self.default_nodes
        lines = [log_gamma_line(float(a), count) for a in shape.flatten()]
        u, weights = on_grid(lines)
        logs = (u.reshape(-1, *shape.shape) + (shape / rate).log()).to(natural[0])
        return Nodes(logs.exp(), (logs, logs.exp()), weights.to(natural[0]))

    def _check_domain(self, natural: Natural) -> None:
        same_shape(natural, self.title)
        shape, rate = self.shape_and_rate(natural)
        positive(shape, self.title, "the shape (first natural parameter + 1)")
        positive(rate, self.title, "the rate (minus the second natural parameter)")
