"""The contract of a prior."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping

from torch import Tensor, nn

from bayesrule.naming import Named


class Prior(Named, ABC):
    """A density over a module's named parameters."""

    @abstractmethod
    def resolve(self, module: nn.Module) -> Prior:
        """The same prior with everything that depends on the module worked out: ready for `log_prob`."""

    @abstractmethod
    def log_prob(self, parameters: Mapping[str, Tensor]) -> Tensor:
        """log p(w), summed over all parameters, normalised where the prior can be."""

    def divergence(self, means: Mapping[str, Tensor], stds: Mapping[str, Tensor]) -> dict[str, Tensor] | None:
        """KL(N(means, stds²)‖p) in closed form, by parameter, or under the name ``""`` where it is no such sum.

        None: there is no closed form, and whoever asks has to sample.
        """
        return None
