"""Unadjusted Langevin Monte Carlo."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from bayesrule.methods.trajectories import Trajectories
from bayesrule.samplers import Hamiltonian


@dataclass(frozen=True)
class LMC(Trajectories):
    """w' = w + h s²∇log p(w|D) + √(2h) s ξ, h = ½ε², without a test.

    It is biased by its step: along a direction in which the posterior is normal with precision λ/s², variances come out
    as 1/(1 − hλ/2) times what they are. Steps are tuned so that a Metropolis test, which is not made, would accept the
    share ``acceptance`` of them.

    Fields of all samplers: see `Sampler`. ``step``: ε; None tunes it. ``diagonal``: whether s of each weight is learnt
    in the warm-up, or the same for all.
    """

    name: ClassVar[str] = "lmc"
    summary: ClassVar[str] = "chains by plain Langevin steps: biased by the length of a step"
    thin: int = 20
    acceptance: float = 0.9

    def kernel(self) -> Hamiltonian:
        """One leap, always taken."""
        return Hamiltonian(leaps=1, adjusted=False)
