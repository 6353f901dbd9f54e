"""The Metropolis-adjusted Langevin algorithm."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from bayesrule.methods.trajectories import Trajectories
from bayesrule.samplers import Hamiltonian


@dataclass(frozen=True)
class MALA(Trajectories):
    """w' = w + ½ε²s²∇log p(w|D) + ε s ξ, accepted with the probability that makes it exact (Roberts and Tweedie 1996).

    Fields of all samplers: see `Sampler`. ``acceptance``: the mean that steps are tuned to. ``step``: ε; None tunes it.
    ``diagonal``: whether s of each weight is learnt in the warm-up, or the same for all.
    """

    name: ClassVar[str] = "mala"
    summary: ClassVar[str] = "chains by Langevin steps with a Metropolis test: exact, and slower than hmc"
    thin: int = 20
    acceptance: float = 0.574

    def kernel(self) -> Hamiltonian:
        """One leap and the test."""
        return Hamiltonian(leaps=1)
