"""Microcanonical Langevin: motion at constant speed whose direction the gradient turns."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from bayesrule.samplers.base import DIVERGED, Kernel, Move, Scales, State, Target, normal, taken


@dataclass(frozen=True)
class Microcanonical(Kernel):
    """du = (I − uuᵀ) ∇log π/(P − 1) dt + noise, dz = u dt with ‖u‖ = 1, in coordinates z = w/s (Robnik 2023).

    A step is half a turn, a move of length ε, half a turn, and some noise in the direction, so that it is forgotten
    after the length L::

        u ← (u + e (sinh δ + e·u (cosh δ − 1)))/(cosh δ + e·u sinh δ),   δ = ½ε ‖∇log π‖/(P − 1),  e = ∇log π/‖∇log π‖
        u ← (u + ν ξ)/‖u + ν ξ‖,   ν² = (exp(2ε/L) − 1)/P

    There is no test: the density is that of π as far as the energy is conserved, whose error in a step is told. A step
    to where π is not finite is not taken, and the chain turns round. It needs two coordinates or more.
    """

    @property
    def gradients(self) -> float:
        """One."""
        return 1.0

    def momentum(self, position: Tensor, generator: torch.Generator) -> Tensor:
        """Directions."""
        return _unit(normal(position, generator))

    def move(
        self, state: State, scales: Scales, target: Target, generator: torch.Generator, number: int
    ) -> tuple[State, Move]:
        """One step of every chain."""
        step = scales.step[:, None]
        direction, before = _turned(state.momentum, state.slope * scales.deviation, 0.5 * step)
        position = torch.addcmul(state.position, step * scales.deviation, direction)
        value, slope = target(position)
        direction, after = _turned(direction, slope * scales.deviation, 0.5 * step)
        error = (before + after + state.value - value).nan_to_num(nan=math.inf)
        told = Move((-error).clamp(max=0).exp(), -state.value, error, error.abs() > DIVERGED * position.shape[1])
        size = position.shape[1]
        forgotten = (torch.expm1(2 * scales.step / scales.length) / size).sqrt()[:, None]
        direction = _unit(torch.addcmul(direction, forgotten, normal(direction, generator)))
        there = State(position, value, slope, direction)
        return taken(error.isfinite(), there, state._replace(momentum=-state.momentum)), told


def _unit(vectors: Tensor) -> Tensor:
    return vectors / vectors.norm(dim=1, keepdim=True)


def _turned(direction: Tensor, slope: Tensor, time: Tensor) -> tuple[Tensor, Tensor]:
    """The directions after a time under a constant gradient, and by how much the kinetic energy has grown."""
    size = slope.shape[1] - 1
    steepness = slope.norm(dim=1, keepdim=True).clamp_min(torch.finfo(slope.dtype).tiny)
    uphill = slope / steepness
    angle = time * steepness / size
    along = (uphill * direction).sum(1, keepdim=True)
    # sinh and cosh by ζ = exp(−δ), which does not overflow
    zeta = (-angle).exp()
    turned = 2 * zeta * direction + uphill * ((1 - zeta) * (1 + zeta + along * (1 - zeta)))
    growth = size * (angle - math.log(2) + torch.log1p(along + (1 - along) * zeta.square()))
    return _unit(turned), growth[:, 0]
