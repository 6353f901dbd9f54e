"""Probabilities: a vector that sums to one, and a single one."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor
from torch.nn import functional

from bayesrule.families import digamma
from bayesrule.families.base import Natural, positive, refuse, same_shape
from bayesrule.families.gamma import Implicit, standard_gamma
from bayesrule.families.quadrature import Nodes, logit_beta_line, on_grid


@dataclass(frozen=True)
class Dirichlet(Implicit):
    """q(w) ∝ Π_k w_k^(α_k − 1) on vectors that sum to one: λ = α − 1, T(w) = log w, μ = ψ(α) − ψ(Σα), h = 1.

    Shape [K], or [..., K] for independent vectors. A(λ) = Σ_k log Γ(α_k) − log Γ(Σ_k α_k).

    >>> family = Dirichlet()
    >>> natural = family.of(torch.tensor([1.0, 2.0, 5.0]))
    >>> family.mean(natural)
    tensor([0.1250, 0.2500, 0.6250])
    """

    title: ClassVar[str] = "Dirichlet"
    symbols: ClassVar[tuple[str, ...]] = ("concentration − 1",)
    default_nodes: ClassVar[int] = 160

    @staticmethod
    def of(concentration: Tensor) -> Natural:
        """λ of α."""
        positive(concentration, "Dirichlet", "concentration")
        return (concentration - 1,)

    @staticmethod
    def concentration(natural: Natural) -> Tensor:
        """α = λ + 1."""
        return natural[0] + 1

    def statistics(self, w: Tensor) -> Natural:
        """log w."""
        return (w.log(),)

    def log_partition(self, natural: Natural) -> Tensor:
        """Σ_k log Γ(α_k) − log Γ(Σ_k α_k)."""
        alpha = self.concentration(natural)
        return torch.lgamma(alpha).sum() - torch.lgamma(alpha.sum(-1)).sum()

    def expectation(self, natural: Natural) -> Natural:
        """ψ(α) − ψ(Σα)."""
        alpha = self.concentration(natural)
        return (torch.digamma(alpha) - torch.digamma(alpha.sum(-1, keepdim=True)),)

    def natural(self, expectation: Natural) -> Natural:
        """By Newton's method."""
        (logs,) = expectation
        possible = bool((logs.exp().sum(-1) < 1).all())
        refuse(possible, "Dirichlet: the exponentials of E[log w] must sum to less than 1 (Jensen)")
        return self.of(digamma.dirichlet_concentration(logs))

    def mean(self, natural: Natural) -> Tensor:
        """α/Σα."""
        alpha = self.concentration(natural)
        return alpha / alpha.sum(-1, keepdim=True)

    def sample(self, natural: Natural, n: int, generator: torch.Generator | None = None) -> Tensor:
        """Gamma draws, divided by their sum."""
        draws = standard_gamma(self.concentration(natural), n, generator)
        return draws / draws.sum(-1, keepdim=True)

    def fisher_solve(self, natural: Natural, gradient: Natural) -> Natural:
        """By F = diag(ψ'(α)) − ψ'(Σα)11ᵀ."""
        return (digamma.solve(self.concentration(natural), gradient[0]),)

    def _nodes(self, natural: Natural, count: int | None) -> Nodes:
        """w_k = v_k Π_{j<k}(1 − v_j) with independent v_k ~ Beta(α_k, Σ_{j>k} α_j), on a grid."""
        # On sticks, whose fractions are independent, a grid is a product of lines; in w itself it would not be one.
        alpha = self.concentration(natural).double()
        rows = alpha.reshape(-1, alpha.shape[-1])
        rest = rows.flip(-1).cumsum(-1).flip(-1)
        sticks = zip(rows[:, :-1].flatten().tolist(), rest[:, 1:].flatten().tolist(), strict=True)
        count = count or self.default_nodes
        lines = [logit_beta_line(a, b, count) for a, b in sticks]
        t, weights = on_grid(lines)
        logs = _stick_logs(t.reshape(len(t), len(rows), -1)).reshape(len(t), *alpha.shape).to(natural[0])
        return Nodes(logs.exp(), (logs,), weights.to(natural[0]))

    def _check_domain(self, natural: Natural) -> None:
        shape = list(natural[0].shape)
        refuse(natural[0].ndim >= 1 and shape[-1] >= 2, f"Dirichlet: the shape must be [..., K], K ≥ 2, not {shape}")
        positive(self.concentration(natural), self.title, "the concentration (the natural parameter + 1)")


def _stick_logs(t: Tensor) -> Tensor:
    """log w from the log-odds of the broken sticks, [..., K − 1] to [..., K]."""
    left = functional.pad(functional.logsigmoid(-t).cumsum(-1), (1, 0))
    return left + functional.pad(functional.logsigmoid(t), (0, 1))


@dataclass(frozen=True)
class Beta(Implicit):
    """q(w) ∝ w^(a − 1)(1 − w)^(b − 1): λ = (a − 1, b − 1), T(w) = (log w, log(1 − w)), h = 1, tensors of any one shape.

    μ = (ψ(a) − ψ(a + b), ψ(b) − ψ(a + b)), A(λ) = Σ log Γ(a)Γ(b)/Γ(a + b). A Dirichlet of two entries, of which one is
    told.

    >>> family = Beta()
    >>> natural = family.of(torch.tensor(2.0), torch.tensor(3.0))
    >>> family.mean(natural)
    tensor(0.4000)
    """

    title: ClassVar[str] = "Beta"
    symbols: ClassVar[tuple[str, ...]] = ("a − 1", "b − 1")
    default_nodes: ClassVar[int] = 160

    @staticmethod
    def of(a: Tensor, b: Tensor) -> Natural:
        """λ of a and b."""
        positive(a, "Beta", "a")
        positive(b, "Beta", "b")
        return a - 1, b - 1

    @staticmethod
    def shapes(natural: Natural) -> tuple[Tensor, Tensor]:
        """a and b."""
        return natural[0] + 1, natural[1] + 1

    def statistics(self, w: Tensor) -> Natural:
        """(log w, log(1 − w))."""
        return w.log(), torch.log1p(-w)

    def log_partition(self, natural: Natural) -> Tensor:
        """Σ log Γ(a)Γ(b)/Γ(a + b)."""
        return Dirichlet().log_partition(_pair(natural))

    def expectation(self, natural: Natural) -> Natural:
        """(ψ(a) − ψ(a + b), ψ(b) − ψ(a + b))."""
        return _apart(Dirichlet().expectation(_pair(natural)))

    def natural(self, expectation: Natural) -> Natural:
        """By Newton's method."""
        return _apart(Dirichlet().natural(_pair(expectation)))

    def mean(self, natural: Natural) -> Tensor:
        """a/(a + b)."""
        a, b = self.shapes(natural)
        return a / (a + b)

    def sample(self, natural: Natural, n: int, generator: torch.Generator | None = None) -> Tensor:
        """The first of two Gamma draws, divided by their sum."""
        return Dirichlet().sample(_pair(natural), n, generator)[..., 0]

    def fisher_solve(self, natural: Natural, gradient: Natural) -> Natural:
        """As a Dirichlet."""
        return _apart(Dirichlet().fisher_solve(_pair(natural), _pair(gradient)))

    def _nodes(self, natural: Natural, count: int | None) -> Nodes:
        nodes = Dirichlet()._nodes(_pair(natural), count)
        return Nodes(nodes.w[..., 0], _apart(nodes.statistics), nodes.weights)

    def _check_domain(self, natural: Natural) -> None:
        same_shape(natural, self.title)
        for part, name in zip(self.shapes(natural), "ab", strict=True):
            positive(part, self.title, f"{name} (its natural parameter + 1)")


def _pair(natural: Natural) -> Natural:
    return (torch.stack(natural, -1),)


def _apart(stacked: Natural) -> Natural:
    return stacked[0].unbind(-1)
