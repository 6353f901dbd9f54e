"""Passes over mini-batches there and back, under which the errors of a sampler's steps cancel."""

from __future__ import annotations

import torch

from bayesrule import processes
from bayesrule.data import Arrays, Batch
from bayesrule.seeds import mixed
from bayesrule.task import Task


class SymmetricPasses:
    """Batches 1, …, m, m, …, 1 of a partition of the data, then of another one: ω and its reverse (SMS-UBU).

    A step's gradient has the error of its batch. Over a pass these add up to nothing, and over a pass and its reverse
    so do those of first order that the order of the batches makes: what is left is of order h² (Paulin et al. 2025).

    ``seed``: of the partitions, the same in all processes.
    """

    def __init__(self, task: Task, steps: int, seed: int) -> None:
        if not isinstance(task.data, Arrays):
            raise ValueError("symmetric passes need every example by its number: give (X, y), not a loader")
        self.data, self.device, self.count, self.seed = task.data, task.device, steps, seed

    def batch(self, step: int) -> Batch:
        """The batch of a step since the first one, the share of it that is this process's."""
        turn, place = divmod(step, 2 * self.count)
        if place >= self.count:
            place = 2 * self.count - 1 - place
        generator = torch.Generator().manual_seed(mixed(self.seed, turn))
        index = torch.randperm(self.data.n, generator=generator).tensor_split(self.count)[place]
        batch = self.data.take(index).all()
        return batch.share(processes.rank(), processes.count()).to(self.device)
