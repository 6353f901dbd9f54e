"""A scale of its own for each layer, for the data to tell."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, NoReturn

from torch import Tensor, nn

from bayesrule.priors.base import Prior


@dataclass(frozen=True)
class ByLayer(Prior):
    """Normal weights whose scale a fit settles layer by layer before it begins, ``prior="by-layer"``.

    First one scale for all layers, as where no prior is given; then one for each by the evidence, which is taken if
    held-out data are more probable under it. ``posterior.info["prior"]["settled"]["layers"]`` tells.
    """

    name: ClassVar[str] = "by-layer"

    def resolve(self, module: nn.Module) -> NoReturn:
        """An error: only a fit knows the data."""
        raise ValueError(
            "the prior 'by-layer' is settled by br.fit, from the data: a task needs br.priors.Gaussian(...)"
        )

    def log_prob(self, parameters: Mapping[str, Tensor]) -> NoReturn:
        """An error, as there is no density before the data are seen."""
        raise ValueError(
            "the prior 'by-layer' has no density before br.fit has settled it: take br.priors.Gaussian(...)"
        )
