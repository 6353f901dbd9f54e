"""One member of an ensemble, by itself."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import ClassVar, TypeVar

import torch

from bayesrule.data import Batch
from bayesrule.files import Tree
from bayesrule.methods.base import Learner, Logs, Method, Needs, Plan
from bayesrule.methods.ensemble import Ensemble
from bayesrule.posteriors import Posterior
from bayesrule.seeds import Noise, mixed
from bayesrule.task import Task

T = TypeVar("T")


@dataclass(frozen=True)
class Member(Method):
    """The k-th learner of an ensemble: started with all others, as there, and trained alone.

    A member that draws nothing while it learns is the ensemble's own, to the bit. One that does, such as a network with
    dropout, has noise of its own: that of the step's seed mixed with k, where members of one process draw in turn.

    ``ensemble``: of whom. ``index``: k, from 0 on.
    """

    name: ClassVar[str] = "member"
    summary: ClassVar[str] = "one network of an ensemble"
    weighs: ClassVar[bool] = True
    ensemble: Ensemble = field(default_factory=Ensemble)
    index: int = 0

    def start(self, task: Task, plan: Plan, noise: Noise) -> Learner:
        """All starts are drawn, and one is kept."""
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # whoever asked for the ensemble has seen what there is to say of its start
            learner = self.ensemble.start(task, plan, noise).members[self.index]
        if self.index == 0:
            return learner
        return MemberLearner(learner, self.index, noise)

    def needs(self, task: Task, epochs: int) -> Needs:
        """As the ensemble has it."""
        return self.ensemble.needs(task, epochs)


class MemberLearner(Learner):
    """A learner whose noise is mixed with the number of the member."""

    def __init__(self, base: Learner, index: int, noise: Noise) -> None:
        self.base, self.index, self.noise = base, index, noise

    def step(self, batch: Batch) -> Logs:
        """One step."""
        return self._with_own_noise(lambda: self.base.step(batch))

    def state_dict(self) -> Tree:
        """The learner's."""
        return self.base.state_dict()

    def load_state_dict(self, state: Tree) -> None:
        """Undo `state_dict`."""
        self.base.load_state_dict(state)

    def posterior(self) -> Posterior:
        """The learner's."""
        return self._with_own_noise(self.base.posterior)

    def conclude(self, held: Batch | None) -> Posterior:
        """The learner's."""
        return self._with_own_noise(lambda: self.base.conclude(held))

    def _with_own_noise(self, ask: Callable[[], T]) -> T:
        noise = self.noise
        own = int(torch.randint(2**62, (), generator=noise.own, device=noise.own.device))
        noise.seed(mixed(noise.integer(), self.index), mixed(own, self.index))
        return ask()
