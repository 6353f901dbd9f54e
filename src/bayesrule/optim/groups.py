"""How a group of parameters is trained."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor
from torch.optim import Optimizer

from bayesrule.naming import Named
from bayesrule.optim import recipes, schedules
from bayesrule.optim.recipes import Recipe
from bayesrule.optim.schedules import History, Schedule


@dataclass(frozen=True)
class Group(Named):
    """An optimiser, its learning rate, and a schedule of factors on that rate, by name or as objects.

    ``lr``: None is the optimiser's own to start from.

    >>> Group("sgd", lr=0.1, schedule="warm-up").rate(done=0.05)
    0.05
    """

    name: ClassVar[str] = "group"
    optimizer: str | Recipe = "adam"
    lr: float | None = None
    schedule: str | Schedule = "cosine"

    def __post_init__(self) -> None:
        recipes.choose(self.optimizer)
        schedules.schedule(self.schedule)
        if self.lr is not None and not (math.isfinite(self.lr) and self.lr > 0):
            raise ValueError(f"lr must be positive and finite, not {self.lr}")

    @property
    def full_rate(self) -> float:
        """The learning rate where the schedule's factor is one."""
        return recipes.choose(self.optimizer).rate if self.lr is None else self.lr

    def build(self, parameters: Iterable[Tensor]) -> Optimizer:
        """The optimiser of these parameters."""
        return recipes.choose(self.optimizer).build(parameters, self.full_rate)

    def rate(self, done: float, history: History = ()) -> float:
        """The learning rate where the share ``done`` of all steps is done, after epochs with these mean logs."""
        return self.full_rate * schedules.schedule(self.schedule)(done, history)
