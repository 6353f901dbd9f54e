"""Synaptic intelligence: how much each weight has mattered along the way that training took."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from bayesrule import modules
from bayesrule.data import Batch
from bayesrule.files import Tree
from bayesrule.methods import Logs, Method, Noise, Plan
from bayesrule.methods.base import context
from bayesrule.methods.point import PointLearner
from bayesrule.optim import Group
from bayesrule.posteriors import Gaussian, Posterior, match
from bayesrule.structures import Diagonal
from bayesrule.task import Task


@dataclass(frozen=True)
class SynapticIntelligence(Method):
    """q(w) = N(w*, Λ⁻¹), Λ = Λ₀ + 2cN/η · diag(max(ω, 0) / (Δ² + ξ)): Zenke, Poole and Ganguli (2017) as a Gaussian.

    ω = Σ_steps −g·δ is the part of the fall of the mean loss that each weight has made, by the loss's gradient g and
    the weight's step δ, and Δ how far it has come. As the prior of the next task, q is the paper's penalty
    c Ω (w − w*)².

    ``strength``: c. ``damping``: ξ. ``lr``: Adam's learning rate after the warm-up.
    """

    name: ClassVar[str] = "si"
    summary: ClassVar[str] = "a Gaussian as stiff as each weight mattered while training"
    strength: float = 1.0
    damping: float = 0.1
    lr: float = 1e-3

    def __post_init__(self) -> None:
        for name in ("strength", "damping"):
            if not getattr(self, name) > 0:
                raise ValueError(f"{name} must be positive, not {getattr(self, name)}")

    def start(self, task: Task, plan: Plan, noise: Noise) -> SynapticLearner:
        """Train a copy of the module, watched."""
        return SynapticLearner(task, plan, self)


class SynapticLearner(PointLearner):
    """The weights of one network, and what each has done for the loss."""

    def __init__(self, task: Task, plan: Plan, method: SynapticIntelligence) -> None:
        super().__init__(task, plan, Group(lr=method.lr))
        self.method = method
        centre, self.past = task.prior.gaussian(self.parameters)
        self.centre = modules.flatten(centre)
        self.began_at = self._vector()
        self.mattered = torch.zeros_like(self.began_at)

    def _vector(self) -> Tensor:
        return modules.flatten(self.parameters).detach().clone()

    def step(self, batch: Batch) -> Logs:
        """A step, and what it owes to each weight."""
        before = self._vector()
        logs = super().step(batch)
        gradient = modules.flatten({name: _gradient(p) for name, p in self.parameters.items()})
        pull = self.past.multiply(
            (before - self.centre).to(self.past.dtype)
        )  # the prior's part of it, which is no loss
        data = gradient - self.task.weight * pull.to(gradient)
        self.mattered -= data * (self._vector() - before)
        return logs

    def state_dict(self) -> Tree:
        """The network's state, and the sums."""
        return super().state_dict() | {"began_at": self.began_at, "mattered": self.mattered}

    def load_state_dict(self, state: Tree) -> None:
        """Undo `state_dict`."""
        super().load_state_dict(state)
        device = self.mattered.device
        self.began_at, self.mattered = (state[k].to(device, copy=True) for k in ("began_at", "mattered"))

    def posterior(self) -> Posterior:
        """The Gaussian as it stands."""
        far = (self._vector() - self.began_at).square() + self.method.damping
        factor = 2 * self.method.strength / self.task.weight
        stiff = Diagonal(factor * (self.mattered.clamp(min=0) / far).double())
        fixed = modules.copies(dict(self.network.named_buffers()))
        mean = modules.copies(self.parameters)
        return Gaussian(mean, self.past + stiff, fixed, context(self.task, self.learnt()))

    def conclude(self, held: Batch | None) -> Posterior:
        """The Gaussian, if its mean has learnt something."""
        self.check_sound(super().posterior())
        posterior = self.posterior()
        return posterior if held is None else match(posterior, held)


def _gradient(p: Tensor) -> Tensor:
    return torch.zeros_like(p) if p.grad is None else p.grad
