"""Hamiltonian Monte Carlo."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from bayesrule.methods.trajectories import Trajectories
from bayesrule.samplers import Hamiltonian


@dataclass(frozen=True)
class HMC(Trajectories):
    """Trajectories of H = −log p(w|D) + ½‖p‖² by leapfrog steps, accepted with probability min(1, exp(−ΔH)).

    Fields of all samplers: see `Sampler`. ``leaps``: the most leapfrog steps of a trajectory, which has half as many at
    least. ``acceptance``: the mean that steps are tuned to. ``step``: their length; None tunes it. ``diagonal``:
    whether the mass of each weight is learnt in the warm-up, or the same for all.
    """

    name: ClassVar[str] = "hmc"
    summary: ClassVar[str] = "chains by Hamiltonian trajectories: exact in the long run"
    leaps: int = 32

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.leaps < 1:
            raise ValueError(f"leaps must be at least 1, not {self.leaps}")

    def kernel(self) -> Hamiltonian:
        """Several leaps and the test."""
        return Hamiltonian(self.leaps)
