"""A Gaussian of any structure as a prior: the posterior of the past, for the data to come."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor, nn

from bayesrule.modules import flatten, parameters
from bayesrule.priors.base import Prior
from bayesrule.structures import Structure


@dataclass(frozen=True, eq=False)
class Structured(Prior):
    """p(w) = N(w; mean, Σ) with Σ stored as a `Structure` over the flat vector of ``mean``'s parameters."""

    name: ClassVar[str] = "structured"
    mean: dict[str, Tensor]
    covariance: Structure

    def resolve(self, module: nn.Module) -> Structured:
        """Check that the module has these parameters."""
        want, have = (
            {name: f"{list(w.shape)} {w.dtype}" for name, w in named.items()}
            for named in (self.mean, parameters(module))
        )
        for name in sorted({*want, *have}):
            if want.get(name) != have.get(name):
                shapes = f"{want.get(name, 'absent')} in the prior and {have.get(name, 'absent')} in the model"
                raise ValueError(f"the prior does not fit the model: parameter {name!r} is {shapes}")
        return self

    def log_prob(self, parameters: Mapping[str, Tensor]) -> Tensor:
        """log N(w; mean, Σ)."""
        difference = flatten({name: parameters[name] - m for name, m in self.mean.items()})
        return self.covariance.log_prob(difference)

    def divergence(self, mean: Tensor, std: Tensor, like: Mapping[str, Tensor]) -> Tensor | None:
        """½(tr Σ⁻¹S + dᵀΣ⁻¹d − P + log |Σ| − log |S|) with S = diag(std²) and d the distance of the means.

        Of all parameters together; of some of them it is None.
        """
        if list(like) != list(self.mean):
            return None
        trace = (self.covariance.precision_diagonal * std.square()).sum()
        total = trace + self.covariance.quadratic(mean - flatten(self.mean)) - std.numel() + self.covariance.logdet()
        return 0.5 * total - std.log().sum()
