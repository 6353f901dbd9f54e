"""Gaussian inference in one of two spaces: that of the P weights, or that of the NC outputs at the data.

In the weights' own units v = (w − w*)/s the posterior of the linearised network is N(v₁, C) with

    C = (I + ΦᵀΦ)⁻¹,    Φ = Rᵀ A,    A = J diag(s),    R Rᵀ = Λ

and v₁ = −C b, b being the gradient of the loss. The two ways give the same numbers.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import ClassVar

import torch
from torch import Tensor

from bayesrule.curvature import check_memory
from bayesrule.data import Inputs, inputs
from bayesrule.gp.features import Features
from bayesrule.gp.sites import Sites

_LESS = "take fewer weights, subset='last-layer', or fewer examples"


class Solver(ABC):
    """C = (I + ΦᵀΦ)⁻¹, and what is asked of it."""

    name: ClassVar[str]

    def __init__(self, features: Features, sites: Sites, log_det: Tensor) -> None:
        self.features, self.sites = features, sites
        self.log_det = float(log_det)
        """log |I + ΦᵀΦ| = log |I + Rᵀ K R|."""

    @abstractmethod
    def solve(self, b: Tensor) -> Tensor:
        """C b, [P]."""

    @abstractmethod
    def joint(self, x: Inputs) -> Tensor:
        """The posterior covariance A(x) C A(x)ᵀ of all outputs at all examples, [N, C, N, C]."""

    @abstractmethod
    def each(self, x: Inputs) -> Tensor:
        """The same of each example alone, [N, C, C]."""


class Primal(Solver):
    """C by a Cholesky factor of I + ΦᵀΦ, P × P."""

    name: ClassVar[str] = "primal"

    def __init__(self, features: Features, sites: Sites) -> None:
        p = len(features.scale)
        _check(f"the {p:,} × {p:,} matrix of the weights", p, features.scale)
        # The ones on the diagonal are the prior in its own units: no eigenvalue is below one, and Cholesky never fails.
        total = torch.eye(p).to(features.scale)
        for rows, piece in features.pieces(sites.x):
            phi = (sites.root[rows].mT @ piece).flatten(0, 1)
            total.addmm_(phi.mT, phi)
        self.factor = torch.linalg.cholesky(total)
        super().__init__(features, sites, 2 * self.factor.diagonal().log().sum())

    def solve(self, b: Tensor) -> Tensor:
        """By two triangular systems."""
        return torch.cholesky_solve(b[:, None], self.factor)[:, 0]

    def joint(self, x: Inputs) -> Tensor:
        """VᵀV with V = L⁻¹ A(x)ᵀ, I + ΦᵀΦ = L Lᵀ."""
        n, c = inputs.length(x), self.features.width
        _check_joint(n, c, self.features.scale)
        half = torch.cat([self._half(piece) for _, piece in self.features.pieces(x)]).flatten(0, 1)
        return (half @ half.mT).reshape(n, c, n, c)

    def each(self, x: Inputs) -> Tensor:
        """As `joint`, a few examples at a time."""
        found = []
        for _, piece in self.features.pieces(x):
            half = self._half(piece)
            found.append(half @ half.mT)
        return torch.cat(found)

    def _half(self, piece: Tensor) -> Tensor:
        """A L⁻ᵀ, [n, C, P]."""
        flat = piece.flatten(0, 1)
        return torch.linalg.solve_triangular(self.factor, flat.mT, upper=False).mT.reshape(piece.shape)


class Dual(Solver):
    """C = I − Φᵀ(I + Rᵀ K R)⁻¹Φ, by a Cholesky factor of the NC × NC matrix: Gaussian-process regression."""

    name: ClassVar[str] = "dual"

    def __init__(self, features: Features, sites: Sites) -> None:
        n, c, k = sites.root.shape
        _check(f"the {n * c:,} × {n * c:,} kernel matrix of the training data", n * max(c, k), features.scale)
        kernel = features.gram(sites.x, sites.x, "full")
        inner = torch.einsum("nck,ncml->nkml", sites.root, torch.einsum("ncmd,mdl->ncml", kernel, sites.root))
        inner = inner.reshape(n * k, n * k)
        inner.diagonal().add_(1)
        self.factor = torch.linalg.cholesky(inner)
        super().__init__(features, sites, 2 * self.factor.diagonal().log().sum())

    def solve(self, b: Tensor) -> Tensor:
        """b − Φᵀ(I + Rᵀ K R)⁻¹Φ b."""
        root = self.sites.root
        phi = (root.mT @ self.features.times(self.sites.x, b)[..., None]).flatten()
        weights = torch.cholesky_solve(phi[:, None], self.factor).reshape(len(root), -1, 1)
        return b - self.features.pull(self.sites.x, (root @ weights)[..., 0])

    def joint(self, x: Inputs) -> Tensor:
        """K(x, x) − VᵀV with V = L⁻¹ Rᵀ K(D, x), I + Rᵀ K R = L Lᵀ."""
        n, c = inputs.length(x), self.features.width
        _check_joint(n, c, self.features.scale)
        half = self._half(x)
        return self.features.gram(x, x, "full") - (half.mT @ half).reshape(n, c, n, c)

    def each(self, x: Inputs) -> Tensor:
        """As `joint`, a few examples at a time."""
        n, c = inputs.length(x), self.features.width
        found = []
        size = max(1, self.features.room // (c * len(self.factor)))
        for start in range(0, n, size):
            part = inputs.take(x, torch.arange(start, min(start + size, n)))
            half = self._half(part).mT.reshape(inputs.length(part), c, -1)
            found.append(self.features.own(part) - half @ half.mT)
        return torch.cat(found)

    def _half(self, x: Inputs) -> Tensor:
        """L⁻¹ Rᵀ K(D, x), [NK, nC]."""
        kernel = self.features.gram(self.sites.x, x, "full")
        right = torch.einsum("nck,ncmd->nkmd", self.sites.root, kernel).reshape(len(self.factor), -1)
        return torch.linalg.solve_triangular(self.factor, right, upper=False)


def _check(what: str, size: int, like: Tensor) -> None:
    check_memory(f"{what}, with its factor,", 3 * size**2, like, _LESS)


def _check_joint(n: int, c: int, like: Tensor) -> None:
    what = f"the joint covariance of {n:,} examples with {c:,} outputs"
    check_memory(what, 2 * (n * c) ** 2, like, "take fewer examples at a time, or joint=False")
