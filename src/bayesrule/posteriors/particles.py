"""A finite set of networks: one for a point estimate, many for a sampler."""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar

import torch
from torch import nn

from bayesrule import modules
from bayesrule.files import Tree
from bayesrule.modules import Parameters
from bayesrule.posteriors.base import Context, Weights


class Particles(Weights):
    """q(w) = 1/K Σ_k δ(w − w_k), each particle with its own parameters, frozen parameters and buffers."""

    kind: ClassVar[str] = "particles"

    def __init__(self, states: list[Parameters], context: Context) -> None:
        super().__init__(context)
        self.states = states

    @classmethod
    def of(cls, networks: list[nn.Module], context: Context) -> Particles:
        """The particles that these modules are."""
        return cls([modules.copies(modules.parameters(n) | modules.fixed(n)) for n in networks], context)

    def draw(self, samples: int, generator: torch.Generator) -> Iterator[Parameters]:
        """All particles, or ``samples`` of them evenly spread."""
        keep = self.count(samples)
        return (self.states[i * len(self.states) // keep] for i in range(keep))

    def count(self, samples: int) -> int:
        """Never more than there are."""
        return min(samples, len(self.states))

    def state(self) -> Tree:
        """The particles."""
        return {"states": self.states}

    @classmethod
    def from_state(cls, state: Tree, context: Context) -> Particles:
        """From the particles."""
        return cls(state["states"], context)
