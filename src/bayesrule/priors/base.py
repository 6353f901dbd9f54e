"""The contract of a prior."""

from __future__ import annotations

import dataclasses
from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import ClassVar

from torch import Tensor, nn

from bayesrule import showing
from bayesrule.modules import Parameters, unflatten
from bayesrule.naming import Named
from bayesrule.structures import Structure


class Prior(Named, ABC):
    """A density over a module's named parameters.

    ``learnt``: whether it is what earlier data have taught, whose strength no evidence of new data should rescale
    unasked.
    """

    learnt: ClassVar[bool] = False

    def _repr_html_(self) -> str:
        """What it is and its fields, for notebooks; a prior that earlier data have taught in one line."""
        fields = [] if self.learnt else [(f.name, getattr(self, f.name)) for f in dataclasses.fields(self)]  # type: ignore[arg-type]
        return showing.table([("prior", self.name), *fields], "" if fields else repr(self))

    @abstractmethod
    def resolve(self, module: nn.Module) -> Prior:
        """The same prior with everything that depends on the module worked out: ready for `log_prob`."""

    @abstractmethod
    def log_prob(self, parameters: Mapping[str, Tensor]) -> Tensor:
        """log p(w), summed over all parameters, normalised where the prior can be."""

    def tempered(self, temperature: float) -> Prior:
        """p(w)^{1/T}, normalised, once the prior is resolved: the prior's part of a cold posterior."""
        raise ValueError(
            f"a cold posterior needs p(w) to the power 1/T, which the prior {self.name!r} does not have: take a "
            "Gaussian or Laplace prior, or temper the likelihood alone, temperature=T"
        )

    def divergence(self, mean: Tensor, std: Tensor, like: Mapping[str, Tensor]) -> Tensor | None:
        """KL(N(mean, std²)‖p) in closed form, or None: there is none, and whoever asks has to sample.

        ``mean`` and ``std`` are flat vectors over the parameters that ``like`` names, in its order.
        """
        return None

    def mean_field(self, parameters: Mapping[str, Tensor]) -> tuple[Parameters, Parameters]:
        """The means of some parameters and the diagonal of their precision, by name, in float64.

        That is the best mean-field approximation of the prior in KL(q‖p). A tensor of no dimension is one number for
        all weights of a parameter. An error for a prior that is no Gaussian.
        """
        means, precision = self.gaussian(parameters)
        return means, unflatten(precision.diagonal, parameters)

    def gaussian(self, parameters: Mapping[str, Tensor]) -> tuple[Parameters, Structure]:
        """The mean and the precision of some parameters, by name and in their order, in float64; an error for a prior
        that is no Gaussian."""
        raise ValueError(
            f"the prior must be Gaussian here, not {self.name!r}: take br.priors.Gaussian or a Gaussian posterior; "
            'methods "map", "swag" and "bbb" take any prior'
        )
