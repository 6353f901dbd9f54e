"""A Gaussian over the parameters, its covariance in any structure."""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar

import torch

from bayesrule import modules, structures
from bayesrule.files import Tree
from bayesrule.modules import Parameters
from bayesrule.naming import from_spec, to_spec
from bayesrule.posteriors.base import Context, Weights
from bayesrule.priors import Structured
from bayesrule.structures import Structure


class Gaussian(Weights):
    """q(w) = N(w; mean, Σ), Σ stored as a `Structure` over the flat vector of the mean; ``fixed`` state beside it."""

    kind: ClassVar[str] = "gaussian"

    def __init__(self, mean: Parameters, covariance: Structure, fixed: Parameters, context: Context) -> None:
        super().__init__(context)
        self.mean, self.covariance, self.fixed = mean, covariance, fixed

    def draw(self, samples: int, generator: torch.Generator) -> Iterator[Parameters]:
        """w = mean + Σ^½ ε."""
        centre = modules.flatten(self.mean)
        for _ in range(samples):
            vector = centre + self.covariance.sample(1, generator)[0]
            yield modules.unflatten(vector, self.mean) | self.fixed

    def count(self, samples: int) -> int:
        """As many as asked for."""
        return samples

    @property
    def std(self) -> Parameters:
        """The marginal deviation of each parameter, by name."""
        return modules.unflatten(self.covariance.diagonal.sqrt(), self.mean)

    def as_prior(self) -> Structured:
        """This posterior as the prior of what comes next."""
        return Structured(self.mean, self.covariance)

    def state(self) -> Tree:
        """Mean, covariance and fixed state."""
        return {"mean": self.mean, "covariance": to_spec(self.covariance), "fixed": self.fixed}

    @classmethod
    def from_state(cls, state: Tree, context: Context) -> Gaussian:
        """From mean, covariance and fixed state."""
        covariance = from_spec("structure", state["covariance"], structures.AVAILABLE)
        return cls(state["mean"], covariance, state["fixed"], context)
