"""Several posteriors with equal weight: ensembles of anything."""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar

import torch
from torch import Tensor

from bayesrule.data import Inputs, inputs
from bayesrule.files import Tree
from bayesrule.posteriors.base import KINDS, Context, Posterior
from bayesrule.posteriors.networks import Network, check_memory


class Mixture(Posterior):
    """q(w) = 1/K Σ_k q_k(w). The likelihood is the components' pooled one."""

    kind: ClassVar[str] = "mixture"

    def __init__(self, components: list[Posterior], context: Context) -> None:
        super().__init__(context)
        self.components = components

    def networks(self, count: int, generator: torch.Generator) -> Iterator[Network]:
        """The same number from every component, ``count`` in all but at least one each."""
        for component in self.components:
            yield from component.networks(self._each(count), generator)

    def count(self, samples: int) -> int:
        """The sum over components."""
        return sum(component.count(self._each(samples)) for component in self.components)

    def _each(self, samples: int) -> int:
        return max(1, samples // len(self.components))

    def marginals(self, x: Inputs, samples: int, generator: torch.Generator) -> Tensor:
        """Those of the components, one after the other."""
        parts = []
        for component in self.components:
            parts.append(component.marginals(x, self._each(samples), generator))
            check_memory(len(parts[0]) * len(self.components), inputs.length(x), parts[0][0])
        return torch.cat(parts)

    def verify(self) -> None:
        """At least one component, and each sound."""
        if not self.components:
            raise ValueError("it must have at least one component")
        for component in self.components:
            component.verify()

    def state(self) -> Tree:
        """The components, each with its kind."""
        return {"components": [{"kind": c.kind, "state": c.state()} for c in self.components]}

    @classmethod
    def from_state(cls, state: Tree, context: Context) -> Mixture:
        """From the components."""
        return cls([KINDS[c["kind"]].from_state(c["state"], context) for c in state["components"]], context)
