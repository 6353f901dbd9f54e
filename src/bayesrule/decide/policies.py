"""Which arm, given what some networks of a posterior expect of each?"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from bayesrule.naming import Named, choose


class Policy(Named, ABC):
    """A rule from the rewards that S networks expect of A arms, [S, A], to an arm."""

    @property
    @abstractmethod
    def asks(self) -> int:
        """How many networks."""

    @abstractmethod
    def arm(self, values: Tensor, generator: torch.Generator) -> int:
        """The arm to play."""


@dataclass(frozen=True)
class Thompson(Policy):
    """Draw one network from the posterior and do what is best by it: an arm is played as often as it may be the best.

    >>> Thompson().arm(torch.tensor([[1.0, 3.0, 2.0]]), torch.Generator())
    1
    """

    name: ClassVar[str] = "thompson"

    @property
    def asks(self) -> int:
        """One network a step."""
        return 1

    def arm(self, values: Tensor, generator: torch.Generator) -> int:
        """argmax_a f_w(x, a), w ~ q."""
        return int(values[0].argmax())


@dataclass(frozen=True)
class UCB(Policy):
    """The upper confidence bound: argmax_a of mean + ``width`` deviations over the networks.

    >>> UCB(width=2.0).arm(torch.tensor([[1.0, 0.5], [1.0, 1.3]]), torch.Generator())
    1
    """

    name: ClassVar[str] = "ucb"
    width: float = 1.0
    samples: int = 16

    def __post_init__(self) -> None:
        if self.width < 0:
            raise ValueError(f"width must not be negative, got {self.width:g}: it is a number of deviations")
        _check_samples(self.samples)

    @property
    def asks(self) -> int:
        """``samples``."""
        return self.samples

    def arm(self, values: Tensor, generator: torch.Generator) -> int:
        """argmax_a mean_s f_s(x, a) + width · std_s f_s(x, a)."""
        return int((values.mean(0) + self.width * values.std(0, correction=0)).argmax())


@dataclass(frozen=True)
class EpsilonGreedy(Policy):
    """With probability ``epsilon`` an arm at random, else the best by the mean over the networks.

    >>> EpsilonGreedy(epsilon=0.0).arm(torch.tensor([[1.0, 0.5], [0.0, 1.3]]), torch.Generator())
    1
    """

    name: ClassVar[str] = "epsilon-greedy"
    epsilon: float = 0.05
    samples: int = 16

    def __post_init__(self) -> None:
        if not 0 <= self.epsilon <= 1:
            raise ValueError(f"epsilon must be a probability between 0 and 1, got {self.epsilon:g}")
        _check_samples(self.samples)

    @property
    def asks(self) -> int:
        """``samples``."""
        return self.samples

    def arm(self, values: Tensor, generator: torch.Generator) -> int:
        """argmax_a mean_s f_s(x, a), but for a share ε of the steps."""
        if float(torch.rand((), generator=generator)) < self.epsilon:
            return int(torch.randint(values.shape[1], (), generator=generator))
        return int(values.mean(0).argmax())


@dataclass(frozen=True)
class Greedy(Policy):
    """The best arm by the mean over the networks: no exploration.

    >>> Greedy().arm(torch.tensor([[1.0, 0.5], [0.0, 0.7]]), torch.Generator())
    1
    """

    name: ClassVar[str] = "greedy"
    samples: int = 16

    def __post_init__(self) -> None:
        _check_samples(self.samples)

    @property
    def asks(self) -> int:
        """``samples``."""
        return self.samples

    def arm(self, values: Tensor, generator: torch.Generator) -> int:
        """argmax_a mean_s f_s(x, a)."""
        return int(values.mean(0).argmax())


AVAILABLE: dict[str, type[Policy]] = {each.name: each for each in (Thompson, UCB, EpsilonGreedy, Greedy)}


def chosen(policy: str | Policy) -> Policy:
    """A policy by name, or as it is.

    >>> chosen("ucb")
    UCB(width=1.0, samples=16)
    """
    return choose("policy", policy, AVAILABLE, Policy)


def _check_samples(samples: int) -> None:
    if samples < 1:
        raise ValueError(f"samples must be at least 1 network, not {samples}")
