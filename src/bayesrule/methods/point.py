"""One network: maximum likelihood and maximum a posteriori."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

import torch

from bayesrule import modules
from bayesrule.data import Batch
from bayesrule.files import Tree
from bayesrule.likelihoods import Likelihood
from bayesrule.methods.base import Learner, Logs, Method, Plan, context
from bayesrule.posteriors import Particles, Posterior
from bayesrule.priors import Flat
from bayesrule.task import Task

Schedule = Callable[[float], float]
FASTER = 10  # how much faster than weights the few unknowns of a likelihood, logs of scales, may move


def cosine(done: float) -> float:
    """A learning rate that starts at 1 and ends at 0, by half a cosine over the share of steps done."""
    return 0.5 * (1 + math.cos(math.pi * min(done, 1.0)))


def warm_up(done: float) -> float:
    """A learning rate that rises to 1 over the first tenth of the steps: Adam's first steps are its least informed."""
    return min(done / 0.1, 1.0)


@dataclass(frozen=True)
class MAP(Method):
    """w* = argmin Σ_i −log p(y_i|f_w(x_i)) − η log p(w), by Adam with warm-up and a cosine schedule.

    ``lr``: Adam's learning rate after the warm-up.
    """

    name: ClassVar[str] = "map"
    summary: ClassVar[str] = "one network at the mode of the posterior"
    lr: float = 1e-2

    def start(self, task: Task, plan: Plan) -> PointLearner:
        """Train a copy of the module."""
        return PointLearner(task, plan, self.lr)


@dataclass(frozen=True)
class MLE(Method):
    """w* = argmin Σ_i −log p(y_i|f_w(x_i)): MAP under a flat prior.

    ``lr``: Adam's learning rate after the warm-up.
    """

    name: ClassVar[str] = "mle"
    summary: ClassVar[str] = "one network at the maximum of the likelihood"
    lr: float = 1e-2

    def start(self, task: Task, plan: Plan) -> PointLearner:
        """MAP without a prior."""
        return MAP(self.lr).start(task.with_prior(Flat()), plan)


class PointLearner(Learner):
    """Adam on the weights and on what is unknown of the likelihood.

    ``schedule`` maps the share of steps done to a factor on the learning rate, after the warm-up.
    """

    def __init__(self, task: Task, plan: Plan, lr: float, schedule: Schedule = cosine) -> None:
        if not (math.isfinite(lr) and lr > 0):
            raise ValueError(f"lr must be positive and finite, not {lr}")
        self.task, self.plan, self.lr, self.schedule = task, plan, lr, schedule
        self.network = modules.training_mode(copy.deepcopy(task.model))
        self.parameters = modules.parameters(self.network)
        self.unknowns = {k: v.detach().clone().requires_grad_() for k, v in task.likelihood.unknowns().items()}
        groups = [{"params": list(self.parameters.values())}, {"params": list(self.unknowns.values())}]
        self.optimizer = torch.optim.Adam([g for g in groups if g["params"]], lr=lr, fused=True)
        self.steps = 0

    @property
    def likelihood(self) -> Likelihood:
        """p(y|f) with what is learnt of it so far."""
        return self.task.likelihood.with_unknowns(self.unknowns)

    def step(self, batch: Batch) -> Logs:
        """One step of Adam on −mean log p(y|f) − (η/N) log p(w)."""
        done = (self.steps + 0.5) / self.plan.steps
        lr = self.lr * warm_up(done) * self.schedule(done)
        for group, faster in zip(self.optimizer.param_groups, (1, FASTER), strict=False):
            group["lr"] = lr * faster
        outputs = modules.call(self.network, batch.x)
        penalty = -self.task.prior.log_prob(self.parameters)
        loss, logs = self.task.loss(outputs, batch.y, self.likelihood, penalty)
        self.optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        self.optimizer.step()
        self.steps += 1
        return logs

    def state_dict(self) -> Tree:
        """Weights, buffers, unknowns, Adam's moments, the step."""
        return {
            "network": modules.parameters(self.network) | modules.fixed(self.network),
            "unknowns": self.unknowns,
            "optimizer": self.optimizer.state_dict(),
            "steps": self.steps,
        }

    def load_state_dict(self, state: Tree) -> None:
        """Undo `state_dict`."""
        with torch.no_grad():
            for mine, saved in (
                (modules.parameters(self.network) | modules.fixed(self.network), state["network"]),
                (self.unknowns, state["unknowns"]),
            ):
                for name, tensor in mine.items():
                    tensor.copy_(saved[name])
        self.optimizer.load_state_dict(state["optimizer"])
        self.steps = state["steps"]

    def posterior(self) -> Posterior:
        """One particle."""
        return Particles.of([self.network], context(self.task, self.learnt()))

    def learnt(self) -> Likelihood:
        """The likelihood as it stands, apart from the graph."""
        return self.task.likelihood.with_unknowns(modules.copies(self.unknowns))
