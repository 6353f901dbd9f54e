"""What samplers by Hamiltonian trajectories have in common: steps that are tuned by their acceptance."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from bayesrule.methods.sampling import Sampler, check_positive
from bayesrule.methods.tally import Tally
from bayesrule.samplers import ByAcceptance, Tuner
from bayesrule.task import Task

FIRST = 0.02  # the step that tuning starts with


@dataclass(frozen=True)
class Trajectories(Sampler):
    """A sampler of leapfrog steps.

    ``acceptance``: the mean that steps are tuned to. ``step``: their length; None tunes it. ``diagonal``: whether the
    scale of each weight is learnt in the warm-up, or the same for all.
    """

    acceptance: float = 0.8
    step: float | None = None
    diagonal: bool = True

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 < self.acceptance < 1:
            raise ValueError(f"acceptance must lie between 0 and 1, not {self.acceptance}")
        check_positive("step", self.step)

    def tuner(self, position: Tensor, task: Task) -> Tuner:
        """By acceptance, of steps that start short, or are the user's."""
        first = torch.full_like(position[:, 0], FIRST if self.step is None else self.step)
        return ByAcceptance(position, self.acceptance, first, self.step is not None, self.diagonal)

    def rate(self) -> tuple[str, float | None]:
        """The length of a step."""
        return "step", self.step

    def told(self, tally: Tally, size: int) -> dict[str, Any]:
        """Of every chain: acceptance, trajectories that diverged, and E-BFMI, how well momenta mix the energy."""
        return {
            "acceptance": [round(rate, 4) for rate in tally.acceptance().tolist()],
            "divergences": [int(count) for count in tally.diverged.tolist()],
            "e_bfmi": [round(value, 3) for value in tally.e_bfmi().nan_to_num().tolist()],
        }
