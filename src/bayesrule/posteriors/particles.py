"""A finite set of networks: one for a point estimate, many for a sampler."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import ClassVar

import torch
from torch import Tensor, nn

from bayesrule import modules
from bayesrule.data import Inputs
from bayesrule.files import Tree
from bayesrule.modules import Parameters
from bayesrule.posteriors.base import Context, Posterior
from bayesrule.posteriors.networks import Network, Runner
from bayesrule.posteriors.soundness import check_network
from bayesrule.seeds import mixed


class Particles(Posterior):
    """q(w) = 1/K Σ_k δ(w − w_k), each particle with its own parameters and buffers."""

    kind: ClassVar[str] = "particles"

    def __init__(self, states: list[Parameters], context: Context) -> None:
        super().__init__(context)
        self.states = states
        self._runner = Runner(self.model, _output)

    @classmethod
    def of(cls, networks: list[nn.Module], context: Context) -> Particles:
        """The particles that these modules are."""
        return cls([modules.snapshot(network) for network in networks], context)

    def networks(self, count: int, generator: torch.Generator) -> Iterator[Network]:
        """All particles, or ``count`` of them evenly spread."""
        keep, seed = self.count(count), generator.initial_seed()  # of what the module may draw by itself
        for index in range(keep):
            state = self.states[index * len(self.states) // keep]
            yield partial(self._runner.one, state, seed=mixed(seed, index))

    def count(self, samples: int) -> int:
        """Never more than there are."""
        return min(samples, len(self.states))

    def verify(self) -> None:
        """At least one particle, and each all of the module."""
        if not self.states:
            raise ValueError("it must have at least one network")
        for index, state in enumerate(self.states):
            check_network(f"network {index}", state, self.context.model)

    def state(self) -> Tree:
        """The particles."""
        return {"states": self.states}

    @classmethod
    def from_state(cls, state: Tree, context: Context) -> Particles:
        """From the particles."""
        return cls(state["states"], context)


def _output(module: nn.Module, weights: Parameters, x: Inputs) -> Tensor:
    return modules.try_call(module, x, weights)
