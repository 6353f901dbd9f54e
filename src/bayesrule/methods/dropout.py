"""MC dropout: train with dropout, and leave it on."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from bayesrule import modules
from bayesrule.data import Batch
from bayesrule.files import Tree
from bayesrule.methods.base import Learner, Logs, Method, Plan, context
from bayesrule.methods.point import PointLearner
from bayesrule.optim import Group
from bayesrule.posteriors import Dropout, Posterior, let_drop
from bayesrule.seeds import Noise
from bayesrule.task import Task


@dataclass(frozen=True)
class MCDropout(Method):
    """MAP under random masks; the same masks at prediction are draws from an approximate posterior (Gal 2016).

    ``rate``: the probability with which the inputs of hidden layers are dropped, for a module that has no dropout
    layers of its own. ``lr``: Adam's learning rate after the warm-up.
    """

    name: ClassVar[str] = "mc-dropout"
    summary: ClassVar[str] = "one network with dropout left on at prediction"
    weighs: ClassVar[bool] = True
    post_hoc: ClassVar[bool] = True
    rate: float = 0.1
    lr: float = 1e-2

    def __post_init__(self) -> None:
        if not 0 < self.rate < 1:
            raise ValueError(f"rate must lie between 0 and 1, not {self.rate}")

    def start(self, task: Task, plan: Plan, noise: Noise) -> DropoutLearner:
        """MAP with dropout; a module with nothing to drop is refused here."""
        return DropoutLearner(PointLearner(task, plan, Group(lr=self.lr)), self.rate)


class DropoutLearner(Learner):
    """A point learner whose network drops, every example under a mask of its own."""

    def __init__(self, base: PointLearner, rate: float) -> None:
        self.base, self.rate = base, rate
        let_drop(base.network, rate)

    def step(self, batch: Batch) -> Logs:
        """A step under fresh masks."""
        return self.base.step(batch)

    def state_dict(self) -> Tree:
        """The point learner's."""
        return self.base.state_dict()

    def load_state_dict(self, state: Tree) -> None:
        """Undo `state_dict`."""
        self.base.load_state_dict(state)

    def conclude(self, held: Batch | None) -> Posterior:
        """As for any learner, if the fit did not end worse than it began."""
        self.base.check_sound()
        return super().conclude(held)

    def posterior(self) -> Posterior:
        """The trained weights under masks."""
        return Dropout(modules.snapshot(self.base.network), self.rate, context(self.base.task, self.base.learnt()))
