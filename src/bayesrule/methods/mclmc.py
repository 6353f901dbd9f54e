"""Microcanonical Langevin Monte Carlo; from trained networks it is MILE."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from bayesrule.methods.sampling import Sampler, check_positive
from bayesrule.methods.tally import Tally
from bayesrule.samplers import ByEnergy, Microcanonical, Tuner
from bayesrule.task import Task

FIRST = 0.02  # the step that tuning starts with


@dataclass(frozen=True)
class MCLMC(Sampler):
    """dw = u dt, du = (I − uuᵀ)∇log p(w|D)/(P − 1) dt + noise, ‖u‖ = 1 (Robnik 2023; for networks Sommer 2025).

    There is no test. Steps are as long as an error of the energy allows whose square is P·v in the mean; v falls from
    ``first_variance`` to ``variance`` over the warm-up. With the default it is a sampler for predictions, biased where
    the posterior is narrow; v = 5e-4 has far less of it, at steps two fifths as long.

    Fields of all samplers: see `Sampler`. ``step``: its length; None tunes it. ``diagonal``: whether the deviation of
    each weight is learnt in the warm-up, or the same for all.
    """

    name: ClassVar[str] = "mclmc"
    summary: ClassVar[str] = "microcanonical chains from trained networks (MILE): quick, with a small bias"
    thin: int = 20
    variance: float = 0.1
    first_variance: float = 0.5
    step: float | None = None
    diagonal: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        check_positive("variance", self.variance)
        check_positive("first_variance", self.first_variance)
        check_positive("step", self.step)

    def kernel(self) -> Microcanonical:
        """One step."""
        return Microcanonical()

    def tuner(self, position: Tensor, task: Task) -> Tuner:
        """By the energy."""
        first = torch.full_like(position[:, 0], FIRST if self.step is None else self.step)
        return ByEnergy(position, first, self.step is not None, (self.first_variance, self.variance), self.diagonal)

    def rate(self) -> tuple[str, float | None]:
        """The length of a step."""
        return "step", self.step

    def told(self, tally: Tally, size: int) -> dict[str, Any]:
        """The variance of the energy's error for each weight, and steps that went beyond all bounds."""
        return {
            "energy_variance": [float(f"{value:.3g}") for value in tally.energy_variance(size).tolist()],
            "divergences": [int(count) for count in tally.diverged.tolist()],
        }
