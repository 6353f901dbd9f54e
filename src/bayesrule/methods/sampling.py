"""Markov chains over the weights of a network: the fields and the contract of all samplers."""

from __future__ import annotations

import math
from abc import abstractmethod
from dataclasses import dataclass
from numbers import Integral
from typing import Any, ClassVar

from torch import Tensor

from bayesrule.methods import sampling_limits
from bayesrule.methods.base import Method, Needs, Plan
from bayesrule.methods.sampling_learner import SamplingLearner
from bayesrule.methods.symmetric import SymmetricPasses
from bayesrule.methods.tally import Tally
from bayesrule.samplers import Kernel, Tuner
from bayesrule.seeds import Noise
from bayesrule.task import Task


@dataclass(frozen=True)
class Sampler(Method):
    """q(w) = 1/S Σ_s δ(w − w_s), w_s draws of Markov chains whose density is p(D|w)^(1/η) p(w).

    ``chains``: how many, side by side; the first from the module's own weights, the others from new ones. ``draws``:
    kept of every chain. ``thin``: transitions from one draw to the next. ``warm_up``: draws before the first one that
    is kept, while steps are tuned. ``warm_start``: ``"map"`` trains the networks before chains start from them,
    ``"none"`` does not. ``training``: how long, in steps of the loop. ``lr``: Adam's learning rate in it.
    ``processes``: how many share the chains of a network that is too large to be run as one batch, to the same draws.
    """

    weighs: ClassVar[bool] = True
    sampler: ClassVar[bool] = True
    full_batch: ClassVar[bool] = True
    chains: int = 4
    draws: int = 250
    thin: int = 1
    warm_up: int = 250
    warm_start: str = "map"
    training: int = 25
    lr: float = 1e-2
    processes: int = 1

    def __post_init__(self) -> None:
        counts = {"chains": 1, "draws": 1, "thin": 1, "warm_up": 0, "training": 1, "processes": 1}
        for name, least in counts.items():
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, Integral) or value < least:
                raise ValueError(f"{name} must be a whole number of at least {least}, not {value!r}")
        if self.warm_start not in ("map", "none"):
            raise ValueError(f"warm_start must be 'map' or 'none', not {self.warm_start!r}")
        check_positive("lr", self.lr)

    @abstractmethod
    def kernel(self) -> Kernel:
        """One transition."""

    @abstractmethod
    def rate(self) -> tuple[str, float | None]:
        """The name of the field that says how long steps are, and its value; None: they are tuned."""

    @abstractmethod
    def tuner(self, position: Tensor, task: Task) -> Tuner:
        """How its scales are found, of chains at positions ``[C, P]``."""

    def lengths(self) -> tuple[int, int, int]:
        """Steps of the loop for training, warm-up and draws in a fit whose length is left open."""
        each = 1 if self.full_batch else self.thin  # one step of the loop is a draw, or a transition
        training = self.training if self.warm_start == "map" else 0
        return training, self.warm_up * each, self.draws * each

    def passes(self, task: Task, plan: Plan, noise: Noise) -> SymmetricPasses | None:
        """An order of the data of its own, instead of the loop's."""
        return None

    def told(self, tally: Tally, size: int) -> dict[str, Any]:
        """What the transitions of chains in so many dimensions tell people."""
        return {}

    def kept(self, steps: int) -> set[int]:
        """After which of so many steps of the loop a draw is kept: evenly spread, at most ``draws`` of them."""
        return spread(0, steps, self.draws)

    def default_epochs(self, steps: int) -> int:
        """As long as its fields say."""
        total = sum(self.lengths())
        return total if self.full_batch else math.ceil(total / steps)

    def needs(self, task: Task, epochs: int) -> Needs:
        """No held-out data: what is unknown of the likelihood is sampled with the weights.

        What cannot be sampled is refused here, before the prior's width is settled, which takes a while.
        """
        sampling_limits.check(self, task)
        work = 1
        if self.full_batch:
            work = max(1, round(self.thin * self.kernel().gradients))
        return Needs("none", full_batch=self.full_batch, work=work)

    def start(self, task: Task, plan: Plan, noise: Noise) -> SamplingLearner:
        """Chains at their starts."""
        return SamplingLearner(self, task, plan, noise)


def check_positive(name: str, value: float | None) -> None:
    """Refuse a number that is not positive and finite; None is left open."""
    if value is not None and not (math.isfinite(value) and value > 0):
        raise ValueError(f"{name} must be positive and finite, not {value}")


def spread(first: int, last: int, count: int) -> set[int]:
    """At most ``count`` whole numbers from first + 1 to last, evenly spread, the last one among them."""
    count = min(count, last - first)
    return {first + math.ceil((i + 1) * (last - first) / count) for i in range(count)} if count > 0 else set()
