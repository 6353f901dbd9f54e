"""The log posterior of many networks at once, as a function of a flat tensor, and its gradient."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator

import torch
from torch import Tensor, nn

from bayesrule import modules, processes, seeds
from bayesrule.data import Arrays, Batch, inputs
from bayesrule.methods.side_by_side import Piece, SideBySide, pieces
from bayesrule.modules import Parameters
from bayesrule.priors import Flat, Prior
from bayesrule.samplers import Target
from bayesrule.structures import Diagonal
from bayesrule.task import Task

WEAK = 3.0  # deviation of a log scale that nobody knows: a factor of 20 either way is nothing unusual
ROWS = 2**15  # rows times chains in a pass: more of them take memory and save no time


class LogPosterior:
    """log p(D|w, u)/η + log p(w) + log p(u) of C networks, as rows ``[C, P + U]`` of weights w and unknowns u.

    The module runs in eval mode: dropout is off, and a BatchNorm keeps the statistics that it has, so that the
    likelihood is a function of the weights. u is what is unknown of the likelihood, on its unconstrained scale, such as
    the logarithm of noise: normal with deviation 3 about its start.

    ``networks``: how they are run. ``workers``: how many processes may share what is not run as one batch.
    """

    def __init__(self, task: Task, chains: int, workers: int = 1) -> None:
        self.task, self.chains = task, chains
        self.like = {name: p.detach() for name, p in task.parameters().items()}
        self.unknown = {name: u.detach().to(task.device) for name, u in task.likelihood.unknowns().items()}
        self.networks = SideBySide(modules.shell(task.model).eval(), task.likelihood, self.like, self.unknown)
        self.size = self.networks.size
        self.total = self.size + sum(u.numel() for u in self.unknown.values())
        self.dtype = modules.dtype_of(task.model)
        self.log_prior = _log_prior(task.prior, self.like, self.dtype)
        self.centre = self._flat(self.unknown) if self.unknown else None
        self._check_gradient()
        self._choose_way(workers)

    def start(self, network: nn.Module) -> Tensor:
        """The row of a network like the task's, with the unknowns where the task's likelihood has them."""
        own = modules.parameters(network)
        return self._flat({name: own[name].detach() for name in self.like} | self.unknown)

    def taught(self) -> tuple[Tensor, Tensor] | None:
        """Mean and deviation ``[P + U]`` under a prior that earlier data have taught; None of another.

        Its precision is taken for a diagonal one, and deviations of unknowns for one.
        """
        if not self.task.prior.learnt:
            return None
        means, precisions = self.task.prior.mean_field(self.like)
        mean, deviation = self._flat(means | self.unknown), torch.ones_like(self._flat(self.like | self.unknown))
        deviation[: self.size] = self._flat(precisions).rsqrt()
        return mean, deviation

    def parameters(self, rows: Tensor) -> Parameters:
        """The weights of rows ``[..., P + U]`` by name, ``[..., *shape]``."""
        return self.networks.parameters(rows)

    def unknowns(self, rows: Tensor) -> Parameters:
        """The unknowns of the likelihood in rows."""
        return self.networks.unknowns(rows)

    def of_all(self, batch: Batch) -> Target:
        """The posterior itself, of a batch of all data, or of the share of them that is this process's.

        Shares are as long as each other, and begin anew where examples do not suffice: what is there twice is left out.
        """
        count = processes.count()
        if count > 1:
            own = torch.arange(processes.rank(), self.task.data.n, count)
            batch = batch.take(torch.arange(len(own)))
        return self._density(batch, count)  # of which the mean over processes is taken

    def of(self, batch: Batch) -> Target:
        """The density given a batch, which stands for all data."""
        return self._density(batch, self.task.data.n / len(batch.y))

    def _density(self, batch: Batch, share: float) -> Target:
        """The density of examples each of which counts ``share`` times."""
        parts = list(self._pieces(batch, self.chains))
        factor = share / self.task.temperature

        def target(rows: Tensor) -> tuple[Tensor, Tensor]:
            value, slope = self.log_prior(rows[:, : self.size])
            if self.centre is not None:
                value, slope = self._with_unknowns(rows, value, slope)
            for piece in parts:
                likelihood, pull = self.networks.value_and_gradient(rows, piece)
                value = value + factor * likelihood
                slope = slope.add_(pull, alpha=factor)
            if processes.count() > 1:
                processes.average([value, slope])
            return value, slope

        return target

    def _with_unknowns(self, rows: Tensor, value: Tensor, slope: Tensor) -> tuple[Tensor, Tensor]:
        """With log p(u) = −½‖(u − u₀)/3‖² and its gradient."""
        assert self.centre is not None
        off = (rows[:, self.size :] - self.centre) / WEAK
        return value - 0.5 * off.square().sum(1), torch.cat([slope, -off / WEAK], 1)

    def _flat(self, tensors: Parameters) -> Tensor:
        return modules.flatten(tensors).to(self.dtype)

    def _pieces(self, batch: Batch, chains: int) -> Iterator[Piece]:
        """A batch in parts that a pass can take, with targets as the likelihood wants them."""
        if not len(batch.y):  # of a process for which there are no data
            return
        if not isinstance(self.task.data, Arrays):  # whose targets are checked before the fit
            with torch.no_grad(), seeds.untouched(self.task.device):
                first = modules.call(self.networks.module, inputs.each(lambda t: t[:1], batch.x))
            y = self.task.likelihood.check(first.expand(len(batch.y), *first.shape[1:]), batch.y)
            batch = Batch(batch.x, y, batch.weight)
        most = max(ROWS // self.chains, 1)
        size = inputs.block(batch.x, most, 2**25)
        parts = math.ceil(len(batch.y) / size)
        if parts == 1:
            yield from pieces([batch], chains)
            return
        split = torch.arange(len(batch.y)).tensor_split(parts)
        yield from pieces((batch.take(index) for index in split), chains)

    def _choose_way(self, workers: int) -> None:
        """By two examples and two networks."""
        piece = next(self._pieces(next(self.task.ordered(2)), chains=2))
        rows = self.start(self.task.model).expand(2, -1)
        self.networks.choose_way(rows + 0.01 * torch.tensor([[0.0], [1.0]]).to(rows), piece)
        self.networks.spread(workers)

    def _check_gradient(self) -> None:
        """Refuse a likelihood that gives no gradient to follow."""
        piece = next(self._pieces(next(self.task.ordered(2)), chains=1))
        rows = self.start(self.task.model)[None].requires_grad_()
        value = self.networks.log_likelihood(rows, piece)
        if not value.requires_grad:
            raise ValueError(
                f"likelihood {self.task.likelihood.name!r} gives no gradient: its log_prob cuts the graph from the "
                "network's outputs, by a detach(), .item() or numpy, and a sampler has nothing to follow; compute it "
                "with torch's operations"
            )


def _log_prior(prior: Prior, like: Parameters, dtype: torch.dtype) -> Callable[[Tensor], tuple[Tensor, Tensor]]:
    """log p(w) of rows ``[C, P]`` and its gradient: in closed form for independent normal weights."""
    if isinstance(prior, Flat):
        return lambda rows: (rows.new_zeros(len(rows)), torch.zeros_like(rows))
    try:
        means, precision = prior.gaussian(like)
    except ValueError:
        return _by_rows(prior, like)
    if not isinstance(precision, Diagonal):
        return _by_rows(prior, like)
    mean, values = modules.flatten(means).to(dtype), precision.diagonal.to(dtype)
    constant = 0.5 * float((precision.diagonal.log() - math.log(2 * math.pi)).sum())

    def normal(rows: Tensor) -> tuple[Tensor, Tensor]:
        off = rows - mean
        slope = -values * off
        return 0.5 * (off * slope).sum(1) + constant, slope

    return normal


def _by_rows(prior: Prior, like: Parameters) -> Callable[[Tensor], tuple[Tensor, Tensor]]:
    """Of any prior, one network after the other."""

    def each(rows: Tensor) -> tuple[Tensor, Tensor]:
        with torch.enable_grad():
            rows = rows.detach().requires_grad_()
            values = torch.stack([prior.log_prob(modules.unflatten(row, like)) for row in rows])
            (slope,) = torch.autograd.grad(values.sum(), rows)
        return values.detach(), slope

    return each
