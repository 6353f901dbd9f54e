"""Stochastic gradient Langevin dynamics."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from bayesrule.methods.cyclical import check_cycles, kept_in_cycles
from bayesrule.methods.sampling import Sampler, check_positive
from bayesrule.samplers import ByRate, Overdamped, Tuner
from bayesrule.task import Task


@dataclass(frozen=True)
class SGLD(Sampler):
    """w' = w − α s²∇(loss of a mini-batch) + √(2αη/N) s ξ (Welling and Teh 2011): steps of h = αη/N on log p(w|D).

    There is no test: the noise of mini-batches, and steps that are not small, make it wider than the posterior.

    Fields of all samplers: see `Sampler`; a step of the loop is one of a mini-batch. ``sampling_lr``: α. ``cycles``:
    in how many cycles of half a cosine it falls, each with draws in its second half (Zhang et al. 2020); 0: it is
    constant. ``precondition``: whether s of each weight is learnt from its gradients in the warm-up, and then kept.
    """

    name: ClassVar[str] = "sgld"
    summary: ClassVar[str] = "chains by noisy steps of mini-batches: for many data, wider than the posterior"
    full_batch: ClassVar[bool] = False
    draws: int = 50
    thin: int = 40
    warm_up: int = 25
    training: int = 1000
    sampling_lr: float = 0.002
    cycles: int = 0
    precondition: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        check_positive("sampling_lr", self.sampling_lr)
        check_cycles(self.cycles, self.draws)

    def kernel(self) -> Overdamped:
        """One step of a mini-batch."""
        return Overdamped()

    def tuner(self, position: Tensor, task: Task) -> Tuner:
        """A rate."""
        step = torch.full_like(position[:, 0], self.sampling_lr * task.weight)
        return ByRate(position, step, 1.0, self.cycles, self.precondition)

    def rate(self) -> tuple[str, float | None]:
        """α."""
        return "sampling_lr", self.sampling_lr

    def kept(self, steps: int) -> set[int]:
        """Evenly spread, or in the second half of each cycle."""
        return kept_in_cycles(steps, self.draws, self.cycles)
