"""Counts that scatter more than Poisson's."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from torch import Tensor

from bayesrule.data import Kind
from bayesrule.likelihoods.base import Likelihood, diagonal, mean_over, single, summed
from bayesrule.predictions import Counts, targets
from bayesrule.predictions.counts import LEAST_DISPERSION, log_negative_binomial

UNSTARTED = "dispersion is None: it has no value before matched(outputs, y) is called; or give a number, dispersion=0.5"
START = (0.01, 10.0)
"""The least and the largest dispersion that a fit begins with."""


@dataclass(frozen=True, eq=False)
class NegativeBinomial(Likelihood):
    """Counts of mean ``μ = exp(f)`` and variance ``μ + α μ²``, for outputs ``[B]`` or ``[B, D, ...]``.

    With ``r = 1/α`` it is ``p(y|f) = Γ(y + r) / (Γ(r) y!) · (r/(r + μ))^r (μ/(r + μ))^y``: Poisson counts whose rate
    scatters by itself, as Gamma(r) of mean μ. ``dispersion`` is α; towards zero this becomes Poisson. A number is known
    and stays. A tensor is learnt, one value per output, unless it is ``known``; ``None`` is one that `matched` has
    still to start. The Hessian is the Fisher information, the mean over y::

        hessian = diag(μ / (1 + α μ))

    >>> import torch
    >>> NegativeBinomial(dispersion=1.0).log_prob(torch.zeros(1, 1), torch.tensor([2.0])).exp()  # geometric
    tensor([0.1250])
    """

    name: ClassVar[str] = "negative-binomial"
    kind: ClassVar[Kind] = "counts"

    dispersion: float | Tensor | None = None
    known: bool = False

    def __post_init__(self) -> None:
        number = isinstance(self.dispersion, float | int)
        object.__setattr__(self, "known", self.known or number)
        if not isinstance(self.dispersion, float | int | Tensor | None):
            raise TypeError(
                f"dispersion must be a number, a tensor or None: got {self.dispersion!r}; pass float(dispersion)"
            )
        if isinstance(self.dispersion, float | int) and not 0 < self.dispersion < math.inf:
            raise ValueError(
                f"dispersion must be positive and finite: got {self.dispersion:g}; None learns it, and without any "
                "the likelihood is 'poisson'"
            )

    def check(self, outputs: Tensor, y: Tensor) -> Tensor:
        """Whole numbers in the dtype of the outputs."""
        return targets.counts(y, single(outputs).shape).to(outputs.dtype)

    def log_prob(self, outputs: Tensor, y: Tensor) -> Tensor:
        """Log p(y|f), summed over outputs."""
        return summed(log_negative_binomial(single(outputs), self._at(outputs), y))

    def hessian(self, outputs: Tensor) -> Tensor:
        """``diag(μ / (1 + α μ))``."""
        # 1/(1/μ + α): an output whose exp overflows has 1/α
        alpha = self._at(outputs).expand(single(outputs).shape).reshape(outputs.shape)
        return diagonal(1 / ((-outputs).exp() + alpha))

    def mean(self, outputs: Tensor) -> Tensor:
        """``exp(f)``."""
        return single(outputs).exp()

    def predict(self, outputs: Tensor) -> Counts:
        """Mixture of negative binomial distributions."""
        return Counts(single(outputs, 2), self._at(outputs))

    def unknowns(self) -> dict[str, Tensor]:
        """``log_dispersion``, unless it is known."""
        if self.dispersion is None:
            raise ValueError(UNSTARTED)
        if self.known:
            return {}
        return {"log_dispersion": torch.as_tensor(self.dispersion).log()}

    def with_unknowns(self, values: Mapping[str, Tensor]) -> NegativeBinomial:
        """The same with ``dispersion = exp(log_dispersion)``, kept from zero."""
        names = [] if self.known else ["log_dispersion"]
        if sorted(values) != names:
            raise ValueError(f"values must be of {names} for dispersion={self.dispersion}: got {sorted(values)}")
        if not values:
            return self
        return NegativeBinomial(values["log_dispersion"].exp().clamp(min=LEAST_DISPERSION))

    def verify(self) -> None:
        """The dispersion is positive and finite."""
        if self.dispersion is None:
            raise ValueError(UNSTARTED)
        alpha = torch.as_tensor(self.dispersion)
        if not alpha.is_floating_point() or not bool(((alpha > 0) & alpha.isfinite()).all()):
            raise ValueError(f"dispersion must be positive and finite: got {alpha.tolist()}")

    def kept(self) -> NegativeBinomial:
        """The same with its dispersion for known."""
        return replace(self, known=True)

    def matched(self, outputs: Tensor, y: Tensor, weight: Tensor | None = None) -> NegativeBinomial:
        """A dispersion still to be started becomes that of the targets about their mean, ``(var − mean)/mean²``."""
        if self.known:
            return self
        like = single(outputs)
        if self.dispersion is not None:
            alpha = torch.as_tensor(self.dispersion).to(like)
        else:
            counts = self.check(outputs, y)
            mean = mean_over(counts, weight)
            excess = mean_over((counts - mean).square(), weight) - mean
            alpha = torch.where(mean > 0, excess / mean.square(), torch.ones_like(mean)).clamp(*START)
        return NegativeBinomial(alpha.expand(like.shape[1:]).clone())

    @classmethod
    def pooled(cls, members: Sequence[Likelihood]) -> Likelihood:
        """The dispersion of a mixture is the mean of its members': variances average, and they are linear in it."""
        found = []
        for member in members:
            if isinstance(member, NegativeBinomial) and isinstance(member.dispersion, Tensor) and not member.known:
                found.append(member.dispersion)
        if not found:
            return members[0]
        return cls(torch.stack(found).mean(0))

    def _at(self, outputs: Tensor) -> Tensor:
        """The dispersion in the dtype and on the device of outputs."""
        if self.dispersion is None:
            raise ValueError(UNSTARTED)
        return torch.as_tensor(self.dispersion, dtype=outputs.dtype, device=outputs.device)
