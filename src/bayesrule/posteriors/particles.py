"""A finite set of networks: one for a point estimate, many for a sampler."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any, ClassVar, NamedTuple

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


class Chains(NamedTuple):
    """Which Markov chain each particle is a draw of, and log p(D|w)/η + log p(w) there, both ``[K]``.

    Samplers by mini-batches have that by at most 1000 examples, the same for all draws, scaled up to all.
    """

    chain: Tensor
    log_posterior: Tensor

    def apart(self, values: Tensor) -> Tensor:
        """Values ``[K, ...]`` of all particles as ``[C, D, ...]``: the draws of each chain."""
        count = int(self.chain.max()) + 1
        return torch.stack([values[(self.chain == c).to(values.device)] for c in range(count)])


class Particles(Posterior):
    """q(w) = 1/K Σ_k δ(w − w_k), each particle with its own parameters and buffers.

    ``chains``: of a sampler's particles, where they are from.
    """

    kind: ClassVar[str] = "particles"

    def __init__(self, states: list[Parameters], context: Context, chains: Chains | None = None) -> None:
        super().__init__(context)
        self.states, self.chains = states, chains
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
        if self.chains is not None:
            _check_chains(self.chains, len(self.states))

    def state(self) -> Tree:
        """The particles."""
        if self.chains is None:
            return {"states": self.states}
        return {"states": self.states, "chains": self.chains._asdict()}

    @classmethod
    def from_state(cls, state: Tree, context: Context) -> Particles:
        """From the particles."""
        chains = Chains(**state["chains"]) if "chains" in state else None
        return cls(state["states"], context, chains)

    def to_arviz(self) -> Any:
        """The draws as an ``arviz.InferenceData``: weights by name, chain and draw, and the log posterior.

        Needs ArviZ, ``pip install bayesrule[arviz]``. The weights of two chains are not comparable one by one, since a
        network whose units are swapped is the same function; see docs/samplers.md. A parameter called ``chain`` or
        ``draw`` is there with a ``_`` behind its name.
        """
        if self.chains is None:
            raise ValueError("only the posterior of a sampler has chains: take method 'hmc' or 'mclmc', say")
        try:
            import arviz
        except ImportError as error:
            raise ImportError("to_arviz needs ArviZ: pip install 'bayesrule[arviz]'") from error
        chains, weights = self.chains, {}
        for name in modules.parameters(self.context.model):
            # ArviZ takes these names for those of its dimensions, and drops the draws without a word
            shown = f"{name}_" if name in ("chain", "draw") else name
            weights[shown] = chains.apart(torch.stack([state[name] for state in self.states])).cpu().numpy()
        return arviz.from_dict(posterior=weights, sample_stats={"lp": chains.apart(chains.log_posterior).cpu().numpy()})


def _check_chains(chains: Chains, count: int) -> None:
    """Refuse draws that are not as many of each chain, one for each network."""
    chain, log_posterior = chains
    if chain.shape != (count,) or log_posterior.shape != (count,) or chain.is_floating_point():
        raise ValueError(f"chains must have a whole number and a log posterior for each of the {count} networks")
    sizes = chain.bincount() if bool((chain >= 0).all()) else chain
    if bool((sizes != sizes[0]).any()):
        raise ValueError("chains must have as many draws each")


def _output(module: nn.Module, weights: Parameters, x: Inputs) -> Tensor:
    return modules.try_call(module, x, weights)
