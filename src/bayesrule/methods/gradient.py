"""Learning by gradients: optimisers with schedules, on groups of parameters."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from bayesrule import modules, processes
from bayesrule.data import Batch
from bayesrule.files import Tree
from bayesrule.likelihoods import Likelihood
from bayesrule.methods.base import Learner, Logs, Plan
from bayesrule.modules import Parameters
from bayesrule.optim import Group, Natural
from bayesrule.task import Task

UNKNOWNS = Group(lr=0.1)  # a few logs of scales: they may move faster than weights


class GradientLearner(Learner):
    """One loss, whose gradient goes to several groups of parameters and to what is unknown of the likelihood.

    ``network`` holds all that is learnt but for the unknowns, and the buffers that follow along; ``groups`` are lists
    of its parameters, or optimisers of them, each with how it is trained.
    """

    def __init__(
        self, task: Task, plan: Plan, network: nn.Module, groups: Sequence[tuple[Sequence[Tensor] | Optimizer, Group]]
    ) -> None:
        self.task, self.plan, self.network = task, plan, network
        self.unknowns = {k: v.detach().clone().requires_grad_() for k, v in task.likelihood.unknowns().items()}
        everything = [*groups, (list(self.unknowns.values()), UNKNOWNS)]
        built = [(g if isinstance(g, Optimizer) else how.build(g), how) for g, how in everything if g]
        self.optimizers, self.groups = [optimizer for optimizer, _ in built], [how for _, how in built]
        _check_apart([[p for g in optimizer.param_groups for p in g["params"]] for optimizer in self.optimizers])
        _keep_memory()
        self.steps = 0
        self.sums: dict[str, float] = {}
        self.history: list[dict[str, float]] = []

    @abstractmethod
    def objective(self, batch: Batch) -> tuple[Tensor, Logs]:
        """The loss of a batch, and what to tell about it: at least ``loss``."""

    def tensors(self) -> Parameters:
        """All of the network that changes: what is learnt, and buffers that follow along."""
        return modules.parameters(self.network) | modules.buffers(self.network)

    def active(self) -> list[Optimizer]:
        """The optimisers that take this step."""
        return self.optimizers

    def watched(self, place: int) -> list[dict[str, float]]:
        """The epochs that the schedule of a group looks at."""
        return self.history

    def step(self, batch: Batch) -> Logs:
        """One step of all active optimisers."""
        done = (self.steps + 0.5) / self.plan.steps
        for place, (group, optimizer) in enumerate(zip(self.groups, self.optimizers, strict=True)):
            for entry in optimizer.param_groups:
                entry["lr"] = group.rate(done, self.watched(place))
        logs = self.backward(batch)
        self._share(logs)
        for optimizer in self.active():
            optimizer.step()
        self._count(logs)
        return logs

    def backward(self, batch: Batch) -> Logs:
        """The gradient of a batch's loss, where the optimisers find it."""
        loss, logs = self.objective(batch)
        for optimizer in self.optimizers:
            optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        return logs

    def _share(self, logs: Logs) -> None:
        """Average over processes: gradients, but for optimisers that do so themselves, running statistics and logs."""
        if processes.count() == 1:
            return
        plain = [optimizer for optimizer in self.optimizers if not isinstance(optimizer, Natural)]
        learnt = [p.grad for optimizer in plain for group in optimizer.param_groups for p in group["params"]]
        statistics = [b for b in self.network.buffers() if b.is_floating_point()]
        processes.average([*(g for g in learnt if g is not None), *statistics, *logs.values()])

    def _count(self, logs: Logs) -> None:
        """Count the step; at the end of an epoch its mean logs go to the history that schedules look at."""
        self.steps += 1
        for name, value in logs.items():
            self.sums[name] = self.sums.get(name, 0.0) + value.item()
        if self.steps % self.plan.steps_per_epoch == 0:
            self.history.append({name: total / self.plan.steps_per_epoch for name, total in self.sums.items()})
            self.sums = {}

    @property
    def likelihood(self) -> Likelihood:
        """p(y|f) with what is learnt of it so far."""
        return self.task.likelihood.with_unknowns(self.unknowns)

    def learnt(self) -> Likelihood:
        """The likelihood as it stands, apart from the graph."""
        return self.task.likelihood.with_unknowns(modules.copies(self.unknowns))

    def state_dict(self) -> Tree:
        """Network, unknowns, the optimisers' states, the step, and the logs so far."""
        return {
            "network": self.tensors(),
            "unknowns": self.unknowns,
            "optimizers": [optimizer.state_dict() for optimizer in self.optimizers],
            "steps": self.steps,
            "sums": self.sums,
            "history": self.history,
        }

    def load_state_dict(self, state: Tree) -> None:
        """Undo `state_dict`."""
        with torch.no_grad():
            for mine, saved in ((self.tensors(), state["network"]), (self.unknowns, state["unknowns"])):
                for name, tensor in mine.items():
                    tensor.copy_(saved[name])
        for optimizer, saved in zip(self.optimizers, state["optimizers"], strict=True):
            optimizer.load_state_dict(saved)
        self.steps, self.sums, self.history = state["steps"], dict(state["sums"]), list(state["history"])


def _keep_memory() -> None:
    """Make the C library keep the memory of a step for the next one.

    glibc gives freed memory back to the system beyond a threshold that follows the largest block freed so far, up to
    32 MiB. A block that is never written costs nothing; without it a step spends up to a fifth of its time on pages.
    """
    torch.empty(28 * 2**20, dtype=torch.uint8)


def _check_apart(groups: Sequence[Sequence[Tensor]]) -> None:
    seen: dict[int, int] = {}
    for number, parameters in enumerate(groups):
        for p in parameters:
            if seen.setdefault(id(p), number) != number:
                raise ValueError(
                    f"groups {seen[id(p)]} and {number} share a parameter of shape {list(p.shape)}: "
                    "each parameter belongs to one group"
                )
