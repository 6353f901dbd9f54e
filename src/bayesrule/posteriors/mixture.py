"""Several posteriors with equal weight: ensembles of anything."""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor

from bayesrule.data import Inputs, inputs
from bayesrule.files import Tree
from bayesrule.posteriors.base import KINDS, Context, Posterior, check_memory


class Mixture(Posterior):
    """q(w) = 1/K Σ_k q_k(w). The likelihood is the components' pooled one."""

    kind: ClassVar[str] = "mixture"

    def __init__(self, components: list[Posterior], context: Context) -> None:
        super().__init__(context)
        self.components = components

    def outputs(self, x: Inputs, samples: int, generator: torch.Generator) -> Tensor:
        """The same number of networks from every component, ``samples`` in all but at least one each."""
        each = max(1, samples // len(self.components))
        parts = []
        for component in self.components:
            parts.append(component.outputs(x, each, generator))
            check_memory(len(parts[0]) * len(self.components), inputs.length(x), parts[0][0])
        return torch.cat(parts)

    def state(self) -> Tree:
        """The components, each with its kind."""
        return {"components": [{"kind": c.kind, "state": c.state()} for c in self.components]}

    @classmethod
    def from_state(cls, state: Tree, context: Context) -> Mixture:
        """From the components."""
        return cls([KINDS[c["kind"]].from_state(c["state"], context) for c in state["components"]], context)
