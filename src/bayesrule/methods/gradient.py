"""Learning by gradients: optimisers with schedules, on groups of parameters."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from bayesrule import modules, processes
from bayesrule.data import Batch
from bayesrule.files import Tree
from bayesrule.likelihoods import Likelihood
from bayesrule.methods import soundness
from bayesrule.methods.base import Learner, Logs, Plan
from bayesrule.modules import Parameters
from bayesrule.optim import Group, Natural, Schedule, schedule
from bayesrule.posteriors import Posterior
from bayesrule.task import Task

UNKNOWNS = Group(lr=0.1)  # a few logs of scales: they may move faster than weights


class Trained(NamedTuple):
    """An optimiser of some parameters, its full learning rate, and the schedule of factors on that rate.

    ``turn``: whether they are trained in an epoch; None is always. The schedule looks back at these epochs alone.
    ``reach``: factors on the rate, one for each number of a lone parameter; None is one for all.
    """

    optimizer: Optimizer
    lr: float
    schedule: Schedule
    turn: Callable[[int], bool] | None = None
    reach: Tensor | None = None

    @classmethod
    def by(cls, group: Group, parameters: Iterable[Tensor]) -> Trained:
        """Parameters trained as a group says."""
        return cls(group.build(parameters), group.full_rate, schedule(group.schedule))

    def step_within(self, reach: Tensor) -> None:
        """One step at the optimiser's present rate times the factors."""
        # Steps are proportional to the rate, but torch has one rate for a tensor: the step is made shorter or longer
        # once it is taken.
        ((p,),) = (group["params"] for group in self.optimizer.param_groups)
        before = p.detach().clone()
        self.optimizer.step()
        with torch.no_grad():
            p.copy_(before.lerp_(p, reach))


class GradientLearner(Learner):
    """One loss, whose gradient goes to several groups of parameters and to what is unknown of the likelihood.

    ``network`` holds all that is learnt but for the unknowns, and the buffers that follow along; ``trained`` says how
    its parameters are trained. ``tells_its_draws``: whether the losses that it logs are those of networks such as its
    posterior draws.
    """

    tells_its_draws = True

    def __init__(
        self,
        task: Task,
        plan: Plan,
        network: nn.Module,
        trained: Sequence[Trained],
        unknowns: Parameters | None = None,
    ) -> None:
        self.task, self.plan, self.network = task, plan, network
        first = task.likelihood.unknowns() if unknowns is None else unknowns
        self.unknowns = {k: v.detach().clone().requires_grad_() for k, v in first.items()}
        self.trained = list(trained)
        if self.unknowns:
            self.trained.append(Trained.by(UNKNOWNS, self.unknowns.values()))
        if len(self.trained) > 1:
            _check_apart(self.optimizers)
        # glibc gives freed memory back to the system beyond a threshold that follows the largest block freed so far, up
        # to 32 MiB. A block that is never written costs nothing; without it steps spend up to a fifth of their time on
        # pages that come and go.
        torch.empty(28 * 2**20, dtype=torch.uint8)
        self.steps = 0
        self.began: Tensor | None = None  # mean −log p(y|f) of the first batch

    @property
    def optimizers(self) -> list[Optimizer]:
        """One for each group of parameters; that of the unknowns is the last."""
        return [each.optimizer for each in self.trained]

    @abstractmethod
    def objective(self, batch: Batch) -> tuple[Tensor, Logs]:
        """The loss of a batch, and what to tell about it: at least ``loss``."""

    def tensors(self) -> Parameters:
        """All of the network that changes: what is learnt, and buffers that follow along."""
        return modules.parameters(self.network) | dict(self.network.named_buffers())

    def step(self, batch: Batch) -> Logs:
        """One step of all groups whose turn it is."""
        logs = self.backward(batch)
        if processes.count() > 1:
            self._share(logs)
        done = (self.steps + 0.5) / self.plan.steps  # the middle of the step: a rate of zero at either end is no step
        epoch = self.steps // self.plan.steps_per_epoch
        for each in self.trained:
            history, turn = self.plan.history, each.turn
            if turn is not None:
                history = [logs for number, logs in enumerate(history) if turn(number)]
            rate = each.lr * each.schedule.at(done, history)
            for group in each.optimizer.param_groups:
                group["lr"] = rate
            if turn is not None and not turn(epoch):
                continue
            if each.reach is None:
                each.optimizer.step()
            else:
                each.step_within(each.reach)
        self.steps += 1
        if self.began is None:
            self.began = logs.get("nll", logs["loss"])  # which is the same where nothing else is in the loss
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
        # One message for all of it. Statistics of BatchNorm are those of each process's share of the batch: their mean
        # is what a posterior that all hold alike needs. Counters are whole numbers, and the same everywhere.
        tensors = [*logs.values(), *(b for b in self.network.buffers() if b.is_floating_point())]
        for optimizer in self.optimizers:
            if isinstance(optimizer, Natural):
                continue
            for group in optimizer.param_groups:
                tensors += [p.grad for p in group["params"] if p.grad is not None]
        processes.average(tensors)

    @property
    def likelihood(self) -> Likelihood:
        """p(y|f) with what is learnt of it so far."""
        if not self.unknowns:
            return self.task.likelihood
        return self.task.likelihood.with_unknowns(self.unknowns)

    def learnt(self) -> Likelihood:
        """The likelihood as it stands, apart from the graph."""
        if not self.unknowns:
            return self.task.likelihood
        return self.task.likelihood.with_unknowns(modules.copies(self.unknowns))

    def conclude(self, held: Batch | None) -> Posterior:
        """As for any learner, if the fit did not end worse than it began."""
        posterior = super().conclude(held)
        self.check_sound(posterior)
        return posterior

    def check_sound(self, posterior: Posterior | None = None) -> None:
        """Refuse a fit that has ended in finite nonsense, see `soundness`. ``posterior``: None is the present one."""
        if self.began is None:  # not a step was taken
            return
        history, last = self.plan.history, math.inf
        if history and self.tells_its_draws:
            last = history[-1].get("nll", history[-1]["loss"])
        soundness.check(self.task, self.plan.batch_size, float(self.began), last, lambda: posterior or self.posterior())

    def state_dict(self) -> Tree:
        """Network, unknowns, the optimisers' states, and the step."""
        return {
            "network": self.tensors(),
            "unknowns": self.unknowns,
            "optimizers": [optimizer.state_dict() for optimizer in self.optimizers],
            "steps": self.steps,
            "began": self.began,
        }

    def load_state_dict(self, state: Tree) -> None:
        """Undo `state_dict`."""
        with torch.no_grad():
            for mine, saved in ((self.tensors(), state["network"]), (self.unknowns, state["unknowns"])):
                for name, tensor in mine.items():
                    tensor.copy_(saved[name])
        for optimizer, saved in zip(self.optimizers, state["optimizers"], strict=True):
            optimizer.load_state_dict(saved)
        self.steps, self.began = state["steps"], state["began"]


def _check_apart(optimizers: Sequence[Optimizer]) -> None:
    seen: dict[int, int] = {}
    for number, optimizer in enumerate(optimizers):
        for group in optimizer.param_groups:
            for p in group["params"]:
                if seen.setdefault(id(p), number) != number:
                    raise ValueError(
                        f"groups {seen[id(p)]} and {number} share a parameter of shape {list(p.shape)}: "
                        "each parameter belongs to one group"
                    )
