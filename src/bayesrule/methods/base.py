"""The contract between methods and the loop."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from bayesrule.data import Batch
from bayesrule.files import Tree
from bayesrule.likelihoods import Likelihood
from bayesrule.naming import Named
from bayesrule.posteriors import Context, Posterior, match
from bayesrule.task import Task

Logs = dict[str, Tensor]


@dataclass(frozen=True)
class Plan:
    """How long a fit lasts: what a schedule has to know."""

    epochs: int
    steps_per_epoch: int
    batch_size: int

    @property
    def steps(self) -> int:
        """Steps in all."""
        return self.epochs * self.steps_per_epoch


class Learner(ABC):
    """A fit under way. The loop calls `step` with one batch after another and asks for the `posterior` at the end.

    Before each step the loop seeds torch's default generator from (seed, step), so noise drawn from it repeats
    exactly in a resumed run; nothing else random belongs in here.
    """

    @abstractmethod
    def step(self, batch: Batch) -> Logs:
        """Learn from one batch; the logs hold at least ``loss``."""

    @abstractmethod
    def state_dict(self) -> Tree:
        """All that changes from step to step, as a tree of tensors and plain values."""

    @abstractmethod
    def load_state_dict(self, state: Tree) -> None:
        """Go back to a state."""

    @abstractmethod
    def posterior(self) -> Posterior:
        """What is known now."""

    def glance(self) -> Posterior:
        """What is known now, for a look in between: as good as it comes cheap."""
        return self.posterior()

    def settle(self, posterior: Posterior, held: Batch) -> Posterior:
        """The posterior with what held-out data, in the user's units, tell better: unknowns of the likelihood."""
        return match(posterior, held)


class Method(Named, ABC):
    """A way to a posterior: a frozen dataclass of documented fields.

    ``post_hoc``: whether it can take a trained module as it is, ``epochs=0``.
    """

    summary: ClassVar[str]
    post_hoc: ClassVar[bool] = False

    @abstractmethod
    def start(self, task: Task, plan: Plan) -> Learner:
        """Begin to learn a task."""

    def holds_out(self, task: Task, epochs: int) -> bool:
        """Whether some data are to be held out where nobody says: to settle what is unknown of the likelihood."""
        return bool(task.likelihood.unknowns())

    def check_held(self, held: bool) -> None:
        """Refuse to go without held-out data where they cannot be done without."""
        return


def context(task: Task, likelihood: Likelihood) -> Context:
    """What the task hands on to a posterior."""
    return Context(task.model, likelihood, task.data.scaling)
