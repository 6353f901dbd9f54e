"""Hamiltonian Monte Carlo."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from bayesrule.methods.sampling import Sampler, check_positive
from bayesrule.methods.tally import Tally
from bayesrule.samplers import ByAcceptance, Hamiltonian, Tuner
from bayesrule.task import Task

FIRST = 0.02  # the step that tuning starts with


@dataclass(frozen=True)
class HMC(Sampler):
    """Trajectories of H = −log p(w|D) + ½‖p‖² by leapfrog steps, accepted with probability min(1, exp(−ΔH)).

    Fields of all samplers: see `Sampler`. ``leaps``: the most leapfrog steps of a trajectory, which has half as many at
    least. ``acceptance``: the mean that steps are tuned to. ``step``: their length; None tunes it. ``diagonal``:
    whether the mass of each weight is learnt in the warm-up, or the same for all.
    """

    name: ClassVar[str] = "hmc"
    summary: ClassVar[str] = "chains by Hamiltonian trajectories: exact in the long run"
    leaps: int = 32
    acceptance: float = 0.8
    step: float | None = None
    diagonal: bool = True

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.leaps < 1:
            raise ValueError(f"leaps must be at least 1, not {self.leaps}")
        check_acceptance(self.acceptance)
        check_positive("step", self.step)

    def kernel(self) -> Hamiltonian:
        """Several leaps and the test."""
        return Hamiltonian(self.leaps)

    def tuner(self, position: Tensor, task: Task) -> Tuner:
        """By acceptance."""
        return by_acceptance(position, self.acceptance, self.step, self.diagonal)

    def rate(self) -> tuple[str, float | None]:
        """The leapfrog step."""
        return "step", self.step

    def told(self, tally: Tally, size: int) -> dict[str, Any]:
        """Acceptance, divergences, energy."""
        return tests_told(tally)


def check_acceptance(value: float) -> None:
    """Refuse what is no probability to aim at."""
    if not 0 < value < 1:
        raise ValueError(f"acceptance must lie between 0 and 1, not {value}")


def by_acceptance(position: Tensor, acceptance: float, step: float | None, diagonal: bool) -> ByAcceptance:
    """Steps that start short, or are the user's."""
    first = torch.full_like(position[:, 0], FIRST if step is None else step)
    return ByAcceptance(position, acceptance, first, step is not None, diagonal)


def tests_told(tally: Tally) -> dict[str, Any]:
    """Of every chain: the mean acceptance, trajectories that diverged, and E-BFMI, how well momenta mix the energy."""
    return {
        "acceptance": [round(rate, 4) for rate in tally.acceptance().tolist()],
        "divergences": [int(count) for count in tally.diverged.tolist()],
        "e_bfmi": [round(value, 3) for value in tally.e_bfmi().nan_to_num().tolist()],
    }
