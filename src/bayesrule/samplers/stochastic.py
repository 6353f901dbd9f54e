"""Kernels for gradients of mini-batches: stochastic gradient Langevin, overdamped and with momentum."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from bayesrule.samplers.base import Kernel, Move, Scales, State, Target, began, normal, quiet


@dataclass(frozen=True)
class Overdamped(Kernel):
    """w' = w + h s² ĝ + √(2h) s ξ, ĝ an unbiased estimate of ∇log π (Welling and Teh 2011).

    For a normal π with precision λ, s = 1 and a gradient whose noise has variance v, the chain's variance is
    (2h + h²v)/(1 − (1 − hλ)²): 1/λ up to a bias of the order of h, which no test removes.
    """

    @property
    def gradients(self) -> float:
        """One."""
        return 1.0

    def move(
        self, state: State, scales: Scales, target: Target, generator: torch.Generator, number: int
    ) -> tuple[State, Move]:
        """One step of every chain."""
        here = began(state.position, state.momentum, target)  # the batch is another than that of the state
        reach = scales.step.sqrt()[:, None] * scales.deviation
        drift = torch.addcmul(here.position, reach.square(), here.slope)
        position = torch.addcmul(drift, reach, normal(drift, generator), value=math.sqrt(2))
        return here._replace(position=position), quiet(here.value)


@dataclass(frozen=True)
class Kinetic(Kernel):
    """dz = v dt, dv = (ĝ − γv) dt + √(2γ) dW in coordinates z = w/s, by steps of length h of the integrator UBU.

    Half a step of everything but the gradient, which is solved exactly (U), a kick v ← v + h ĝ (B), and again half a
    step (U): one gradient a step, and errors of order two in h (Sanz-Serna and Zygalakis 2021). With gradients of
    mini-batches it is SGHMC (Chen et al. 2014); with batches that are swept forwards and backwards SMS-UBU (Paulin et
    al. 2025).

    ``keep``: exp(−γh), the share of the velocity that a step keeps: the momentum of SGD.
    """

    keep: float

    @property
    def gradients(self) -> float:
        """One."""
        return 1.0

    def momentum(self, position: Tensor, generator: torch.Generator) -> Tensor:
        """Velocities, standard normal as they are in the long run."""
        return normal(position, generator)

    def move(
        self, state: State, scales: Scales, target: Target, generator: torch.Generator, number: int
    ) -> tuple[State, Move]:
        """One step of every chain."""
        step = scales.step[:, None]
        half = self._flow(state.position, state.momentum, step, scales.deviation, generator)
        value, slope = target(half[0])
        velocity = torch.addcmul(half[1], step * scales.deviation, slope)
        position, velocity = self._flow(half[0], velocity, step, scales.deviation, generator)
        return State(position, value, slope, velocity), quiet(value)

    def _flow(
        self, position: Tensor, velocity: Tensor, step: Tensor, deviation: Tensor, generator: torch.Generator
    ) -> tuple[Tensor, Tensor]:
        """Half a step without a gradient, exactly.

        For η = exp(−γt), t = h/2, and a Brownian path: v ← ηv + √(2γ) Z₂ and z ← z + (1 − η)/γ v + √(2/γ) (Z₁ − Z₂),
        var Z₁ = t, var Z₂ = (1 − η²)/2γ, cov = (1 − η)/γ. In units of t all of it depends on γt alone.
        """
        first, second = normal(position, generator), normal(position, generator)
        rate = -math.log(self.keep) / 2  # γt
        eta = math.sqrt(self.keep)
        variance = (1 - eta**2) / (2 * rate)
        common = (1 - eta) / rate  # the covariance, over the deviation of Z₁, which is one
        path = common * first + math.sqrt(max(variance - common**2, 0.0)) * second
        forth = (1 - eta) / rate * velocity + math.sqrt(2 / rate) * (first - path)
        return (
            torch.addcmul(position, 0.5 * step * deviation, forth),
            eta * velocity + math.sqrt(2 * rate) * path,
        )
