"""What every kernel has: states of chains side by side, and one transition of all of them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

Target = Callable[[Tensor], tuple[Tensor, Tensor]]
"""From positions ``[C, P]`` of C chains to log-densities ``[C]`` and their gradients ``[C, P]``."""


class State(NamedTuple):
    """Where the chains stand: positions ``[C, P]``, log-density and gradient there, and momenta ``[C, P]``.

    Kernels that draw new momenta in every transition leave ``momentum`` as it is.
    """

    position: Tensor
    value: Tensor
    slope: Tensor
    momentum: Tensor


class Scales(NamedTuple):
    """How far a transition goes, in each chain and along each coordinate.

    ``step``: of each chain, ``[C]``. ``deviation``: of each coordinate, ``[C, P]`` or ``[1, P]``: the chain moves in
    coordinates that are divided by it. ``length``: the way after which a direction is forgotten, ``[C]``, of kernels
    that have one.
    """

    step: Tensor
    deviation: Tensor
    length: Tensor


class Move(NamedTuple):
    """What one transition tells, for tuning and for people, each ``[C]``.

    ``acceptance``: the probability that a Metropolis test accepts it, whether there is a test or not. ``energy``: that
    at its beginning. ``error``: by how much the energy has changed. ``diverged``: whether that is beyond all bounds.
    """

    acceptance: Tensor
    energy: Tensor
    error: Tensor
    diverged: Tensor


DIVERGED = 1000.0  # a change of the energy in nats that no sound trajectory has


class Kernel(ABC):
    """One transition, which leaves a density as it is: exactly, or up to a bias that the docstring states."""

    @property
    @abstractmethod
    def gradients(self) -> float:
        """Gradients of the log-density that a transition takes, in the mean."""

    def momentum(self, position: Tensor, generator: torch.Generator) -> Tensor:
        """The momenta that chains begin with."""
        return torch.zeros_like(position)

    @abstractmethod
    def move(
        self, state: State, scales: Scales, target: Target, generator: torch.Generator, number: int
    ) -> tuple[State, Move]:
        """One transition of all chains; ``number`` counts the transitions so far."""


def began(position: Tensor, momentum: Tensor, target: Target) -> State:
    """The state of chains at a position."""
    value, slope = target(position)
    return State(position, value, slope, momentum)


def normal(like: Tensor, generator: torch.Generator) -> Tensor:
    """Standard normal numbers in the shape, dtype and place of a tensor."""
    return torch.randn(like.shape, generator=generator, dtype=like.dtype, device=like.device)


def kinetic(momentum: Tensor) -> Tensor:
    """½‖p‖² of every chain."""
    return 0.5 * momentum.square().sum(1)


def quiet(value: Tensor) -> Move:
    """What a transition tells that knows no energy."""
    none = torch.zeros_like(value)
    return Move(torch.ones_like(value), -value, none, torch.zeros_like(value, dtype=torch.bool))


def taken(which: Tensor, there: State, here: State) -> State:
    """The state there of chains that have moved, and the one here of the others."""
    each = which[:, None]
    return State(
        torch.where(each, there.position, here.position),
        torch.where(which, there.value, here.value),
        torch.where(each, there.slope, here.slope),
        torch.where(each, there.momentum, here.momentum),
    )
