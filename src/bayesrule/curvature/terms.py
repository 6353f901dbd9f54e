"""A block of curvature against a prior: what is left of the prior, and the volume that it loses.

In units of its prior deviations s a weight has the prior N(0, 1) and the curvature H = diag(s) G diag(s). Under t times
the prior variance, and 1/c of the curvature, with r = t/c, one factor for each parameter, the posterior has

    Σ = diag(s√t) (I + √r H √r)⁻¹ diag(s√t),    log |I + √r H √r| = log |prior covariance| − log |Σ|.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from bayesrule.curvature.blocks import Block, DenseBlock, DiagonalBlock, KroneckerBlock, LowRankBlock
from bayesrule.curvature.limits import check_memory
from bayesrule.structures import Dense, Diagonal, Kronecker, Scaled, Spiked, Structure
from bayesrule.structures.dense import symmetric
from bayesrule.structures.kronecker import eigen

Factors = Mapping[str, Tensor]
"""A positive number for each parameter, by name, in float64."""


@dataclass(frozen=True, eq=False)
class Term(ABC):
    """A block of curvature with the prior deviations of its parameters: ``scales`` by name, flat, in float64."""

    scales: Mapping[str, Tensor]

    @abstractmethod
    def logdet(self, ratios: Factors) -> Tensor:
        """log |I + √r H √r|, with its gradient in r."""

    @abstractmethod
    def covariance(self, variances: Factors, ratios: Factors) -> Structure:
        """Σ under the factors t and r, in float64."""

    @property
    def scale(self) -> Tensor:
        """The prior deviations of all numbers of the block."""
        return torch.cat(list(self.scales.values()))

    def spread(self, factors: Factors) -> Tensor:
        """The factors, one for each number of the block."""
        return torch.cat([factors[name].expand(len(scale)) for name, scale in self.scales.items()])

    def common(self, factors: Factors) -> Tensor | None:
        """The factor that all parameters of the block share, if they do."""
        first, *rest = (factors[name] for name in self.scales)
        return first if all(other is first for other in rest) else None


@dataclass(frozen=True, eq=False)
class DiagonalTerm(Term):
    """Σ_j log(1 + r h_j)."""

    curvature: Tensor

    def logdet(self, ratios: Factors) -> Tensor:
        """Number by number."""
        return (self.spread(ratios) * self.scale.square() * self.curvature).log1p().sum()

    def covariance(self, variances: Factors, ratios: Factors) -> Diagonal:
        """t s² / (1 + r h)."""
        squares = self.scale.square()
        return Diagonal(self.spread(variances) * squares / (1 + self.spread(ratios) * squares * self.curvature))


@dataclass(frozen=True, eq=False)
class DenseTerm(Term):
    """From the eigenvalues of H if the parameters share a factor, by Cholesky's decomposition otherwise.

    A matrix that was added up in single precision may have eigenvalues a little below zero. They count as zero.
    """

    matrix: Tensor

    @cached_property
    def _values(self) -> Tensor:
        return torch.linalg.eigvalsh(self._scaled).clamp(min=0)

    @cached_property
    def _scaled(self) -> Tensor:
        """H."""
        return self.scale[:, None] * self.matrix * self.scale

    @cached_property
    def _clipped(self) -> Tensor:
        """H without its negative eigenvalues."""
        values, vectors = torch.linalg.eigh(self._scaled)
        return (vectors * values.clamp(min=0)) @ vectors.T

    def _factor(self, ratios: Factors) -> Tensor:
        """L with L Lᵀ = I + √r H √r; beyond what double precision holds beside 1, with a little more than 1."""
        root = self.spread(ratios).sqrt()
        eye = torch.eye(len(root), dtype=root.dtype)
        factor, failure = torch.linalg.cholesky_ex(eye + root[:, None] * self._scaled * root)
        if int(failure):
            factor, failure = torch.linalg.cholesky_ex(eye + root[:, None] * self._clipped * root)
        if int(failure):
            rounding = (
                len(root) * torch.finfo(root.dtype).eps * (root.square() * self._clipped.diagonal()).max().detach()
            )
            factor = torch.linalg.cholesky((1 + rounding) * eye + root[:, None] * self._clipped * root)
        return factor

    def logdet(self, ratios: Factors) -> Tensor:
        """Σ_j log(1 + r λ_j), or that of the matrix."""
        shared = self.common(ratios)
        if shared is not None:
            return (shared * self._values).log1p().sum()
        return 2 * self._factor(ratios).diagonal().log().sum()

    def covariance(self, variances: Factors, ratios: Factors) -> Dense:
        """From the factor of the precision, diag(1/(s√t)) L."""
        return Dense(self._factor(ratios) / (self.spread(variances).sqrt() * self.scale)[:, None])


@dataclass(frozen=True, eq=False)
class LowRankTerm(Term):
    """G = F Fᵀ + diag(d): a diagonal precision 1/(t s²) + d/c, and on top of it a few directions.

    In units of that diagonal, with deviations e = s√t/√(1 + r s² d), Σ⁻¹ is I + EEᵀ, E = diag(e/√c) F.
    """

    factor: Tensor
    rest: Tensor

    def _shrunk(self, ratios: Factors) -> Tensor:
        """√(r s²/(1 + r s² d)): e/√c, since r = t/c."""
        squares = self.spread(ratios) * self.scale.square()
        return (squares / (1 + squares * self.rest)).sqrt()

    def logdet(self, ratios: Factors) -> Tensor:
        """Σ_j log(1 + r s_j² d_j) + log |I + EᵀE|."""
        inner = self._shrunk(ratios)[:, None] * self.factor
        own = (self.spread(ratios) * self.scale.square() * self.rest).log1p().sum()
        eye = torch.eye(inner.shape[1], dtype=inner.dtype)
        return own + torch.linalg.slogdet(eye + inner.T @ inner)[1]

    def covariance(self, variances: Factors, ratios: Factors) -> Structure:
        """From the singular vectors and values of E."""
        shrunk = self._shrunk(ratios)
        left, sizes, _ = torch.linalg.svd(shrunk[:, None] * self.factor, full_matrices=False)
        noise = (self.spread(variances) / self.spread(ratios)).sqrt()
        return Scaled(Spiked(left, 1 / (1 + sizes.square())), shrunk * noise)


@dataclass(frozen=True, eq=False)
class KroneckerTerm(Term):
    """H = B ⊗ diag(s) A diag(s): exact, since s differs between a weight and its bias only, two sets of columns."""

    block: KroneckerBlock

    @cached_property
    def _outputs(self) -> tuple[Tensor, Tensor]:
        return eigen(f"the output factor of {self.block.names[0]!r}", self.block.outputs)

    @cached_property
    def _inputs(self) -> tuple[Tensor, Tensor]:
        return self._scaled(self._columns({name: scale[0] for name, scale in self.scales.items()}))

    def _scaled(self, root: Tensor) -> tuple[Tensor, Tensor]:
        """The eigenvalues and vectors of diag(root) A diag(root)."""
        matrix = symmetric(f"the input factor of {self.block.names[0]!r}", self.block.inputs)
        values, vectors = torch.linalg.eigh(root[:, None] * matrix * root)
        return values.clamp(min=0), vectors

    def _columns(self, factors: Factors) -> Tensor:
        """The factors of the weight and of the bias, one for each column."""
        parts = [factors[name].reshape(1) for name in self.scales]
        count = len(self.block.inputs) - self.block.bias
        return torch.cat([parts[0].expand(count), *parts[1:]])

    def _right(self, ratios: Factors) -> tuple[Tensor, Tensor]:
        """Eigenvalues and vectors of the inputs' factor under these ratios."""
        shared = self.common(ratios)
        if shared is not None:
            return shared * self._inputs[0], self._inputs[1]
        return self._scaled(self._columns(ratios).sqrt() * self._columns({k: s[0] for k, s in self.scales.items()}))

    def logdet(self, ratios: Factors) -> Tensor:
        """Σ_oi log(1 + β_o α_i)."""
        return torch.outer(self._outputs[0], self._right(ratios)[0]).log1p().sum()

    def covariance(self, variances: Factors, ratios: Factors) -> Structure:
        """In the eigenvectors of both factors; in the units of the prior if these differ."""
        (beta, u), (alpha, v) = self._outputs, self._right(ratios)
        variance = 1 / (1 + torch.outer(beta, alpha))
        deviations = self._columns(variances).sqrt() * self._columns({k: s[0] for k, s in self.scales.items()})
        if bool((deviations == deviations[0]).all()):
            return Kronecker(u, v, deviations[0].square() * variance, self.block.bias)
        return Scaled(Kronecker(u, v, variance, self.block.bias), self.spread(variances).sqrt() * self.scale)


def term(block: Block, scales: Mapping[str, Tensor]) -> Term:
    """A block with the prior deviations of its parameters, a number or a tensor of its size for each.

    >>> block = DiagonalBlock(("weight",), torch.tensor([3.0, 0.0]))
    >>> one = term(block, {"weight": torch.ones(2, dtype=torch.float64)})
    >>> one.covariance(*2 * [{"weight": torch.tensor(1.0, dtype=torch.float64)}]).variance
    tensor([0.2500, 1.0000], dtype=torch.float64)
    """
    if isinstance(block, DiagonalBlock):
        return DiagonalTerm(scales, _finite(block.names, block.values))
    if isinstance(block, DenseBlock):
        what = f"the posterior of {block.size:,} weights in a dense matrix, with its factors,"
        check_memory(what, 8 * block.size**2, torch.ones((), dtype=torch.float64), "take structure='kronecker'")
        return DenseTerm(scales, symmetric(f"the curvature of {', '.join(block.names)}", block.matrix))
    if isinstance(block, LowRankBlock):
        return LowRankTerm(scales, _finite(block.names, block.factor), _finite(block.names, block.rest))
    assert isinstance(block, KroneckerBlock)
    for name, scale in scales.items():
        if bool((scale != scale[0]).any()):
            raise ValueError(
                f"the prior of {name!r} has a scale for each weight, which a Kronecker product cannot hold: take one "
                "scale for the parameter, or structure='diagonal', 'lowrank' or 'dense'"
            )
    return KroneckerTerm(scales, block)


def _finite(names: tuple[str, ...], values: Tensor) -> Tensor:
    if not bool(values.isfinite().all()):
        raise FloatingPointError(f"the curvature of {', '.join(names)} is not finite: scale the inputs, or use doubles")
    return values.double()
