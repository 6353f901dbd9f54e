"""The contract between methods and the loop."""

from __future__ import annotations

import dataclasses
import math
from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, ClassVar, Literal

from torch import Tensor

from bayesrule.data import Batch
from bayesrule.files import Tree
from bayesrule.likelihoods import Likelihood
from bayesrule.naming import Named
from bayesrule.posteriors import Context, Posterior, match
from bayesrule.seeds import Noise
from bayesrule.task import Task

Logs = dict[str, Tensor]


@dataclass(frozen=True, eq=False)
class Plan:
    """How long a fit lasts, and how it went so far: what a schedule has to know.

    ``to_convergence``: whether the user left the length open, so that a learner may go on at the end of it.
    ``history``: the mean logs of each finished epoch; the loop adds to it.
    """

    epochs: int
    steps_per_epoch: int
    batch_size: int
    to_convergence: bool = False
    history: list[dict[str, float]] = field(default_factory=list)

    @cached_property  # asked for several times in every step
    def steps(self) -> int:
        """Steps in all."""
        return self.epochs * self.steps_per_epoch


@dataclass(frozen=True)
class Needs:
    """What a method needs of the loop.

    ``held_out``: whether data beside those of the training are of no use (``"none"``), are held out if enough examples
    can be spared (``"optional"``), or cannot be done without (``"required"``). ``full_batch``: whether every step has
    to see all data. ``own_batches``: whether it draws the examples of a step by itself. ``prior``: whether it matters
    how wide the prior is, so that this is to be settled where nobody says. ``work``: about how many steps of
    training one step of the method takes the time of.
    """

    held_out: Literal["none", "optional", "required"]
    full_batch: bool = False
    own_batches: bool = False
    prior: bool = True
    work: int = 1


class Learner(ABC):
    """A fit under way. The loop calls `step` with one batch after another, and `conclude` at the end.

    Before each of these calls the loop seeds the two streams of `Noise` that the method was started with, from the seed
    and the step, so that a resumed run repeats exactly; nothing else random belongs in here.
    """

    @abstractmethod
    def step(self, batch: Batch) -> Logs:
        """Learn from one batch; the logs hold at least ``loss``. Nothing here should wait for the device."""

    @abstractmethod
    def state_dict(self) -> Tree:
        """All that changes from step to step, as a tree of tensors and plain values."""

    @abstractmethod
    def load_state_dict(self, state: Tree) -> None:
        """Go back to a state."""

    @abstractmethod
    def posterior(self) -> Posterior:
        """What is known now, as good as it comes cheap: for looks in between."""

    def conclude(self, held: Batch | None) -> Posterior:
        """What is known at the end; it changes nothing in the learner.

        Held-out data, in the user's units, tell what is unknown of the likelihood. What a method has found beside the
        posterior goes to `context` as diagnostics.
        """
        posterior = self.posterior()
        if held is None:
            return posterior
        return match(posterior, held)


class Method(Named, ABC):
    """A way to a posterior: a frozen dataclass of documented fields.

    ``least_steps``: of a fit whose length is left open. ``post_hoc``: whether it can take a trained module as it is,
    ``epochs=0``. ``variational``: whether it learns a q by E_q[−log p(D|w)] + η·KL(q‖p), which can collapse onto the
    prior. ``weighs``: whether it counts every example as often as its weight says, `Batch.weight`.
    ``sampler``: whether it runs Markov chains, whose length no number of data tells: comparisons of all methods have
    those alone that are asked for.
    """

    summary: ClassVar[str]
    weighs: ClassVar[bool] = False
    least_steps: ClassVar[int] = 2000
    post_hoc: ClassVar[bool] = False
    variational: ClassVar[bool] = False
    sampler: ClassVar[bool] = False

    @abstractmethod
    def start(self, task: Task, plan: Plan, noise: Noise) -> Learner:
        """Begin to learn a task. What all processes must hold alike is drawn from ``noise.shared``."""

    def needs(self, task: Task, epochs: int) -> Needs:
        """What the loop has to provide: held-out data where something of the likelihood is unknown.

        A module that is trained already, ``epochs=0``, has seen all data, and none of them are held out.
        """
        return Needs("optional" if epochs and task.likelihood.unknowns() else "none")

    def default_epochs(self, steps: int) -> int:
        """How many epochs a fit has whose length is left open, where an epoch is so many ``steps`` of mini-batches."""
        return default_epochs(steps, self.least_steps)


def default_epochs(steps: int, least: int = Method.least_steps) -> int:
    """Enough epochs of ``steps`` steps for ``least`` steps in all, and at least 10.

    >>> [default_epochs(steps) for steps in (3, 45, 469)]
    [667, 45, 10]
    """
    return max(math.ceil(least / steps), 10)


def with_inner(method: Method) -> Iterator[Method]:
    """A method, and those that its fields hold, such as the base of an ensemble."""
    yield method
    for part in dataclasses.fields(method):  # type: ignore[arg-type]
        if isinstance(inner := getattr(method, part.name), Method):
            yield from with_inner(inner)


def check_weighted(method: Method) -> None:
    """Refuse weights of examples that a method, or one within it, would not look at."""
    for part in with_inner(method):
        if not part.weighs:
            raise ValueError(
                f"{part.name} does not know weights of examples, train=(X, y, weight): leave them out, or take method "
                "'map', 'ensemble', 'laplace', 'ivon' or 'auto'"
            )


def check_stoppable(method: Method) -> None:
    """Refuse early stopping of a method that runs Markov chains, or of one with such a method in it."""
    if any(part.sampler for part in with_inner(method)):
        raise ValueError(
            f"early stopping must be left out with {method.name}: the epochs of a sampler are training, warm-up and "
            "draws of its chains, and the best of them is no posterior; for a shorter fit give fewer draws"
        )


def context(task: Task, likelihood: Likelihood, **diagnostics: Any) -> Context:
    """What the task hands on to a posterior, and what the method has found: ``posterior.info["diagnostics"]``."""
    info = {"diagnostics": diagnostics} if diagnostics else {}
    return Context(task.model, likelihood, task.data.scaling, info)
