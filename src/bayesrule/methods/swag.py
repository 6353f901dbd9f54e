"""SWAG: the Gaussian that an optimiser wanders over at the end of training."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from bayesrule import modules
from bayesrule.data import Batch
from bayesrule.files import Tree
from bayesrule.methods.base import Learner, Logs, Method, Plan, context
from bayesrule.methods.point import PointLearner
from bayesrule.optim import Cosine, Group, History, Schedule, WarmUp
from bayesrule.optim.path import Moments, covariance
from bayesrule.posteriors import Gaussian, Particles, Posterior, match
from bayesrule.seeds import Noise
from bayesrule.task import Task

PARTICLES = 32  # networks kept where BatchNorm needs statistics for each


@dataclass(frozen=True)
class SWAG(Method):
    """q(w) = N(w̄, ½ diag(var w) + ½ DDᵀ/(K−1)) over snapshots of the weights in the last part of training (Maddox
    2019).

    w̄ and var w are the moments of all snapshots, the columns of D the last K deviations from the running mean. A
    network with BatchNorm gets its statistics refreshed on the training data under each sampled set of weights, and
    those networks are the posterior.

    ``rank``: K. ``burn_in``: the share of training before the first snapshot. ``snapshots``: how many, evenly spaced
    over the rest. ``lr``: Adam's learning rate after the warm-up. ``swa_lr_ratio``: the constant learning rate while
    snapshots are taken, as a share of ``lr``.
    """

    name: ClassVar[str] = "swag"
    summary: ClassVar[str] = "a Gaussian over the last part of the optimiser's path"
    weighs: ClassVar[bool] = True
    rank: int = 20
    burn_in: float = 0.75
    snapshots: int = 40
    lr: float = 1e-2
    swa_lr_ratio: float = 0.45

    def __post_init__(self) -> None:
        if self.rank < 2 or self.snapshots < 2:
            raise ValueError(f"rank and snapshots must be at least 2, not {self.rank} and {self.snapshots}")
        if not 0 < self.swa_lr_ratio <= 1:
            raise ValueError(f"swa_lr_ratio must lie in (0, 1], not {self.swa_lr_ratio}")
        if not 0 <= self.burn_in < 1:
            raise ValueError(f"burn_in must lie in [0, 1), not {self.burn_in}")

    def start(self, task: Task, plan: Plan, noise: Noise) -> SWAGLearner:
        """MAP that never comes to rest, watched."""
        if plan.steps < 2:
            raise ValueError("swag needs at least 2 steps, but the fit has 1: more epochs or smaller batches")
        first = min(math.ceil(self.burn_in * plan.steps), plan.steps - 2)
        count = min(self.snapshots, plan.steps - first)
        at = {first + math.ceil((i + 1) * (plan.steps - first) / count) for i in range(count)}
        group = Group(lr=self.lr, schedule=CosineToConstant(self.burn_in, self.swa_lr_ratio))
        return SWAGLearner(PointLearner(task, plan, group), at, self.rank, noise)


@dataclass(frozen=True)
class CosineToConstant(Schedule):
    """Warm-up, half a cosine down to ``level`` within the share ``burn_in`` of the steps, then constant."""

    name: ClassVar[str] = "cosine-to-constant"
    burn_in: float
    level: float

    def at(self, done: float, history: History) -> float:
        """The rise times the fall."""
        burnt_in = min(done / self.burn_in, 1.0) if self.burn_in else 1.0
        fall = Cosine(warm_up=0)(burnt_in)
        return WarmUp()(done) * (self.level + (1 - self.level) * fall)


class SWAGLearner(Learner):
    """A point learner and the moments of its path."""

    def __init__(self, base: PointLearner, at: set[int], rank: int, noise: Noise) -> None:
        self.base, self.at, self.noise = base, at, noise
        self.moments = Moments.none(self._vector(), rank)

    def step(self, batch: Batch) -> Logs:
        """A step of the point learner, and now and then a snapshot."""
        logs = self.base.step(batch)
        if self.base.steps in self.at:
            self.moments.add(self._vector())
        return logs

    def _vector(self) -> Tensor:
        return modules.flatten(self.base.parameters).detach()

    def state_dict(self) -> Tree:
        """The point learner's state and the moments."""
        known = self.moments
        moments = {"count": known.count, "mean": known.mean, "squares": known.squares, "deviations": known.deviations}
        return {"base": self.base.state_dict(), **moments}

    def load_state_dict(self, state: Tree) -> None:
        """Undo `state_dict`."""
        self.base.load_state_dict(state["base"])
        device = self.moments.mean.device
        mean, squares = state["mean"].to(device, copy=True), state["squares"].to(device, copy=True)
        deviations = [moved.to(device) for moved in state["deviations"]]
        self.moments = Moments(mean, squares, self.moments.rank, deviations, state["count"])

    def posterior(self) -> Posterior:
        """The Gaussian of the moments.

        It is the present point before there are two snapshots; also for a network with BatchNorm, whose statistics
        under other weights take passes over the data.
        """
        if self.moments.count < 2 or modules.has_batch_norm(self.base.network):
            return self.base.posterior()
        return self._gaussian()

    def conclude(self, held: Batch | None) -> Posterior:
        """The Gaussian, or networks drawn from it, each with its own statistics."""
        self.base.check_sound()
        if self.moments.count < 2 or not modules.has_batch_norm(self.base.network):
            return super().conclude(held)
        particles = self._particles(self._gaussian())
        if held is None:
            return particles
        return match(particles, held)

    def _gaussian(self) -> Gaussian:
        network, task = self.base.network, self.base.task
        known = self.moments
        mean = modules.copies(modules.unflatten(known.mean, self.base.parameters))
        about = context(task, self.base.learnt())
        precision = covariance(known.squares, known.deviations, known.count)
        return Gaussian(mean, precision, modules.copies(dict(network.named_buffers())), about)

    def _particles(self, gaussian: Gaussian) -> Particles:
        """Samples of the Gaussian, each with the statistics that its weights give on the training data."""
        networks = []
        generator = torch.Generator(self.moments.mean.device).manual_seed(self.noise.integer())
        for state in gaussian.draw(PARTICLES, generator):
            network = modules.twin(self.base.task.model)
            network.load_state_dict(state, strict=False)
            batches = self.base.task.ordered(self.base.plan.batch_size)
            modules.refresh_batch_norm(network, (batch.x for batch in batches))
            networks.append(network)
        return Particles.of(networks, gaussian.context)
