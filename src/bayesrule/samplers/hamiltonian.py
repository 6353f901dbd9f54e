"""Hamiltonian trajectories: HMC, and with one leap each MALA and LMC."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from bayesrule.samplers.base import DIVERGED, Kernel, Move, Scales, State, Target, kinetic, normal, taken

GOLDEN = (math.sqrt(5) - 1) / 2  # whose multiples, modulo one, fill the interval evenly


@dataclass(frozen=True)
class Hamiltonian(Kernel):
    """Leapfrog steps of length ε from a new momentum p ~ N(0, I), in coordinates z = w/s (Duane 1987, Neal 2011)::

        p ← p + ½ε ∇_z log π,   z ← z + ε p,   p ← p + ½ε ∇_z log π

    A trajectory has L/2 to L leaps, the number following a fixed even sequence, so that none of them comes back to
    where it began for ever. ``adjusted``: its end is accepted with probability min(1, exp(−ΔH)),
    H = −log π + ½‖p‖², which leaves π exactly as it is.

    With one leap it is the Metropolis-adjusted Langevin algorithm with step h = ε²/2; without the test it is
    unadjusted Langevin, w' = w + h s²∇log π + √(2h) s ξ. That one is biased: of a normal π with precision λ in a
    coordinate of s = 1 its variance is 1/λ · 1/(1 − hλ/2) instead of 1/λ.

    ``leaps``: L. ``adjusted``: whether there is a test; without, only ends where π is not finite are not taken.
    """

    leaps: int
    adjusted: bool = True

    @property
    def gradients(self) -> float:
        """The mean of the number of leaps."""
        return sum(self.count(number) for number in range(100)) / 100

    def count(self, number: int) -> int:
        """Leaps of a transition: from L/2 to L."""
        return math.ceil(self.leaps * (0.5 + 0.5 * ((number + 1) * GOLDEN % 1.0)))

    def move(
        self, state: State, scales: Scales, target: Target, generator: torch.Generator, number: int
    ) -> tuple[State, Move]:
        """A trajectory of every chain, and the test."""
        first = normal(state.position, generator)
        reach = scales.step[:, None] * scales.deviation
        there = leapfrog(state, first, reach, target, self.count(number))
        energy = kinetic(first) - state.value
        error = (kinetic(there.momentum) - there.value - energy).nan_to_num(nan=math.inf)
        acceptance = (-error).clamp(max=0).exp()
        told = Move(acceptance, energy, error, error > DIVERGED)
        if self.adjusted:
            chance = torch.rand(error.shape, generator=generator, dtype=error.dtype, device=error.device)
            accepted = chance < acceptance
        else:
            accepted = error.isfinite()
        return taken(accepted, there._replace(momentum=state.momentum), state), told


def leapfrog(state: State, momentum: Tensor, reach: Tensor, target: Target, count: int) -> State:
    """The end of ``count`` leaps of length ``reach`` ``[C, P]`` in the coordinates of w."""
    position, value, slope, _ = state
    momentum = torch.addcmul(momentum, reach, slope, value=0.5)
    for leap in range(count):
        position = torch.addcmul(position, reach, momentum)
        value, slope = target(position)
        # two half kicks between leaps are a whole one
        momentum = torch.addcmul(momentum, reach, slope, value=0.5 if leap == count - 1 else 1.0)
    return State(position, value, slope, momentum)
