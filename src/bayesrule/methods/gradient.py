"""Learning by gradients: optimisers with schedules, on groups of parameters."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from bayesrule import modules, processes
from bayesrule.data import Batch
from bayesrule.files import Tree
from bayesrule.likelihoods import Likelihood
from bayesrule.methods.base import Learner, Logs, Plan
from bayesrule.modules import Parameters
from bayesrule.optim import Group, Natural, Schedule, schedule
from bayesrule.posteriors import Posterior, settled
from bayesrule.task import Task

UNKNOWNS = Group(lr=0.1)  # a few logs of scales: they may move faster than weights
LOOK = 1024  # examples that tell whether a fit ended worse than it began
SLACK = 0.25  # nats for each number of the targets that it may be worse
DRAWS = 8  # of a posterior, for the same purpose
FEW = 5.0  # nats in all beside these, which few data may be off by: odds of a hundred and fifty
ZERO = 1e-3  # the size of outputs that count for zero: targets of zero would have no noise about zero itself
UNTAUGHT = 3.0  # the size of outputs beyond which a start excuses nothing: thrice that of standardised targets


class Trained(NamedTuple):
    """An optimiser of some parameters, its full learning rate, and the schedule of factors on that rate.

    ``turn``: whether they are trained in an epoch; None is always. The schedule looks back at these epochs alone.
    """

    optimizer: Optimizer
    lr: float
    schedule: Schedule
    turn: Callable[[int], bool] | None = None

    @classmethod
    def by(cls, group: Group, parameters: Iterable[Tensor]) -> Trained:
        """Parameters trained as a group says."""
        return cls(group.build(parameters), group.full_rate, schedule(group.schedule))


class GradientLearner(Learner):
    """One loss, whose gradient goes to several groups of parameters and to what is unknown of the likelihood.

    ``network`` holds all that is learnt but for the unknowns, and the buffers that follow along; ``trained`` says how
    its parameters are trained.
    """

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
        self.began = 0.0  # the loss of the first weights, which are not always the module's own
        if plan.steps:
            self.began = self._misfit()

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
        for optimizer, lr, factor, turn in self.trained:
            history = self.plan.history
            if turn is not None:
                history = [logs for number, logs in enumerate(history) if turn(number)]
            rate = lr * factor.at(done, history)
            for group in optimizer.param_groups:
                group["lr"] = rate
            if turn is None or turn(epoch):
                optimizer.step()
        self.steps += 1
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

    def centre(self) -> nn.Module:
        """The network at the mean of what is learnt."""
        return self.network

    def check_sound(self, posterior: Posterior | None = None) -> None:
        """Refuse a fit that ended worse than it began, and worse than one that knows nothing.

        With L(q, u) = −log p(D|q, u) for outputs from q and unknowns u, a fit that ends at q, u is sound if

            L(q, u) ≤ min(max(L(start, u_start), L(0, u*)), L(±3, u*)) + slack

        with a slack of a quarter of a nat for each number of D and five in all, where u* is best for the outputs beside
        it. The mode under a prior around zero has L ≤ L(0, u*), at any scale and temperature: weights of zero cost the
        prior least, so that others have to fit better. The same holds of a variational q beside a narrow one around
        zero. A fit of few steps is about as good as its start. A start far from the data excuses little, though:
        outputs of ±3 at random are worse than a usual start on standardised data. What earlier data have taught may be
        wrong about new ones by as much as it likes.

        ``posterior``: None is the present one.
        """
        if not self.steps:
            return
        given = list(self._some())
        nothing = self._untaught(ZERO, given)
        limit = max(self.began, nothing)
        if not self.task.prior.learnt:
            limit = min(limit, self._untaught(UNTAUGHT, given))
        ended = self._loss_of(posterior or self.posterior(), given)
        if not ended <= limit + SLACK + FEW / sum(batch.y.numel() for batch in given):
            raise FloatingPointError(
                f"the fit has diverged, though its numbers are finite: −log p(y|x, D) is on average {ended:.4g} for each "
                f"number of y; before training it was {self.began:.4g}, and for outputs of zero it is {nothing:.4g}. "
                "Standardise inputs and targets, train longer, or lower the learning rate"
            )

    def _some(self) -> Iterator[Batch]:
        """Some examples, the same each time."""
        seen = 0
        for batch in self.task.batches(self.plan.batch_size, seed=0):
            yield batch
            seen += len(batch.y)
            if seen >= LOOK:
                break

    @torch.no_grad()
    def _misfit(self) -> float:
        """Mean −log p(y|f) for each number of y, at the present centre in evaluation mode."""
        network, likelihood = self.centre(), self.learnt()
        modes = [(layer, layer.training) for layer in network.modules()]
        buffers = modules.copies(dict(network.named_buffers()))  # which a pass may change
        network.eval()
        numbers, total = 0, 0.0
        for batch in self._some():
            numbers += batch.y.numel()
            total += len(batch.y) * float(self.task.nll(self.task.outputs(network, batch.x), batch.y, likelihood))
        for layer, training in modes:
            layer.training = training
        for name, buffer in network.named_buffers():
            buffer.copy_(buffers[name])
        return total / numbers

    @torch.no_grad()
    def _loss_of(self, posterior: Posterior, given: Sequence[Batch]) -> float:
        """The same for a posterior's predictions."""
        total = 0.0
        for batch in given:
            generator = torch.Generator(self.task.device).manual_seed(0)
            prediction = posterior.likelihood.predict(posterior.marginals(batch.x, DRAWS, generator))
            total -= float(prediction.log_prob(prediction.target(batch.y)).sum())
        return total / sum(batch.y.numel() for batch in given)

    def _untaught(self, size: float, given: Sequence[Batch]) -> float:
        """The same for outputs of ±size that know nothing of y, with the unknowns that are best for them."""
        with torch.no_grad():
            like = torch.cat([self.task.outputs(self.task.model, batch.x) for batch in given])  # for their shape alone
        y = torch.cat([batch.y for batch in given])
        # a chessboard of signs over examples and outputs, and its negative, so that neither meets the targets by chance
        places = torch.arange(len(like), device=like.device)
        if like.ndim > 1:
            places = places[:, None] + torch.arange(like.shape[1], device=like.device)
        signs = (1 - 2 * (places % 2)).reshape(*places.shape, *[1] * (like.ndim - places.ndim))
        outputs = size * signs.to(like).expand_as(like)
        outputs, twice = torch.cat([outputs, -outputs]), torch.cat([y, y])
        best = settled(self.task.likelihood, outputs.unsqueeze(0), twice)
        return float(self.task.nll(outputs, twice, best)) * len(y) / y.numel()

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
