"""Stochastic gradient Hamiltonian Monte Carlo."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from bayesrule.methods.base import Plan
from bayesrule.methods.cyclical import check_cycles, kept_in_cycles
from bayesrule.methods.sampling import Sampler, check_positive
from bayesrule.methods.symmetric import SymmetricPasses
from bayesrule.samplers import ByRate, Kinetic, Tuner
from bayesrule.seeds import Noise
from bayesrule.task import Task


@dataclass(frozen=True)
class SGHMC(Sampler):
    """SGD with momentum and the noise that belongs to it (Chen et al. 2014): Langevin dynamics of h² = αη/N by UBU.

    There is no test. Errors of its steps are of order h²; the noise of mini-batches makes it wider than the posterior,
    hardly so in ``symmetric`` passes.

    Fields of all samplers: see `Sampler`; a step of the loop is one of a mini-batch. ``sampling_lr``: α, the learning
    rate. ``momentum``: the share of the velocity that a step keeps. ``cycles``: in how many cycles of half a cosine α
    falls, each with draws in its second half; 0: it is constant. ``precondition``: whether the mass of each weight is
    learnt from its gradients in the warm-up, and then kept. ``symmetric``: whether mini-batches are seen there and
    back, as in SMS-UBU (Paulin et al. 2025).
    """

    name: ClassVar[str] = "sghmc"
    summary: ClassVar[str] = "chains by mini-batches with momentum; with symmetric passes SMS-UBU"
    full_batch: ClassVar[bool] = False
    draws: int = 50
    thin: int = 40
    warm_up: int = 25
    training: int = 1000
    sampling_lr: float = 0.0005
    momentum: float = 0.9
    cycles: int = 0
    precondition: bool = False
    symmetric: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        check_positive("sampling_lr", self.sampling_lr)
        check_cycles(self.cycles, self.draws)
        if not 0 < self.momentum < 1:
            raise ValueError(f"momentum must lie between 0 and 1, not {self.momentum}")

    def kernel(self) -> Kinetic:
        """One step of a mini-batch."""
        return Kinetic(self.momentum)

    def tuner(self, position: Tensor, task: Task) -> Tuner:
        """A rate, whose root is the step."""
        step = torch.full_like(position[:, 0], math.sqrt(self.sampling_lr * task.weight))
        return ByRate(position, step, 0.5, self.cycles, self.precondition)

    def rate(self) -> tuple[str, float | None]:
        """α."""
        return "sampling_lr", self.sampling_lr

    def passes(self, task: Task, plan: Plan, noise: Noise) -> SymmetricPasses | None:
        """There and back, if told to."""
        if not self.symmetric:
            return None
        return SymmetricPasses(task, plan.steps_per_epoch, noise.integer())

    def kept(self, steps: int) -> set[int]:
        """Evenly spread, or in the second half of each cycle."""
        return kept_in_cycles(steps, self.draws, self.cycles)
