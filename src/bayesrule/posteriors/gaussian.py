"""A Gaussian over the parameters, its precision in any structure."""

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
    """q(w) = N(w; mean, Λ⁻¹), Λ stored as a `Structure` over the flat vector of the mean; ``fixed`` state beside it."""

    kind: ClassVar[str] = "gaussian"

    def __init__(self, mean: Parameters, precision: Structure, fixed: Parameters, context: Context) -> None:
        super().__init__(context)
        self.mean, self.precision, self.fixed = mean, precision, fixed

    def draw(self, samples: int, generator: torch.Generator) -> Iterator[Parameters]:
        """w = mean + δ, δ ~ N(0, Λ⁻¹)."""
        centre = modules.flatten(self.mean)
        for _ in range(samples):
            vector = centre + self.precision.sample(1, generator)[0].to(centre.dtype)
            yield modules.unflatten(vector, self.mean) | self.fixed

    def count(self, samples: int) -> int:
        """As many as asked for."""
        return samples

    @property
    def std(self) -> Parameters:
        """The marginal deviation of each parameter, by name."""
        deviations = self.precision.variances.sqrt().to(modules.flatten(self.mean).dtype)
        return modules.unflatten(deviations, self.mean)

    def as_prior(self) -> Structured:
        """This posterior as the prior of what comes next."""
        return Structured(self.mean, self.precision)

    def state(self) -> Tree:
        """Mean, precision and fixed state."""
        return {"mean": self.mean, "precision": to_spec(self.precision), "fixed": self.fixed}

    @classmethod
    def from_state(cls, state: Tree, context: Context) -> Gaussian:
        """From mean, precision and fixed state."""
        precision = from_spec("structure", state["precision"], structures.AVAILABLE)
        return cls(state["mean"], precision, state["fixed"], context)
