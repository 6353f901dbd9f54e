"""The log posterior of many networks at once, as a function of a flat tensor, and its gradient."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.func import vmap

from bayesrule import modules, processes, seeds
from bayesrule.data import Arrays, Batch, Inputs, inputs
from bayesrule.methods.stacked import Layers, stacked
from bayesrule.modules import Parameters
from bayesrule.priors import Flat, Prior
from bayesrule.samplers import Target
from bayesrule.structures import Diagonal
from bayesrule.task import Task

WEAK = 3.0  # deviation of a log scale that nobody knows: a factor of 20 either way is nothing unusual
ROWS = 2**15  # rows times chains in a pass: more of them take memory and save no time


class _Piece(NamedTuple):
    """A part of a batch, and its targets once for each network."""

    batch: Batch
    tiled: Tensor


class LogPosterior:
    """log p(D|w, u)/η + log p(w) + log p(u) of C networks, as rows ``[C, P + U]`` of weights w and unknowns u.

    The module runs in eval mode: dropout is off, and a BatchNorm keeps the statistics that it has, so that the
    likelihood is a function of the weights. u is what is unknown of the likelihood, on its unconstrained scale, such as
    the logarithm of noise: normal with deviation 3 about its start.

    ``way``: how the networks are run: as ``"products"`` of matrices, by ``"vmap"``, or in a ``"loop"``.
    """

    def __init__(self, task: Task, chains: int) -> None:
        self.task, self.chains = task, chains
        self.module = modules.shell(task.model).eval()
        self.like = {name: p.detach() for name, p in task.parameters().items()}
        self.unknown = {name: u.detach().to(task.device) for name, u in task.likelihood.unknowns().items()}
        self.size = sum(p.numel() for p in self.like.values())
        self.total = self.size + sum(u.numel() for u in self.unknown.values())
        self.dtype = modules.dtype_of(task.model)
        self.same_dtype = all(p.dtype == self.dtype for p in self.like.values())
        self.log_prior = _log_prior(task.prior, self.like, self.dtype)
        self.centre = self._flat(self.unknown) if self.unknown else None
        self.layers: Layers | None = None
        self.way = "loop"
        self._check_gradient()
        self._choose_way()

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
        named = modules.unflatten(rows[..., : self.size], self.like)
        if self.same_dtype:
            return named
        return {name: w.to(self.like[name].dtype) for name, w in named.items()}

    def unknowns(self, rows: Tensor) -> Parameters:
        """The unknowns of the likelihood in rows."""
        if not self.unknown:
            return {}
        return modules.unflatten(rows[..., self.size :], self.unknown)

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
        pieces = list(self._pieces(batch, self.chains))
        factor = share / self.task.temperature

        def target(rows: Tensor) -> tuple[Tensor, Tensor]:
            value, slope = self.log_prior(rows[:, : self.size])
            if self.centre is not None:
                value, slope = self._with_unknowns(rows, value, slope)
            for piece in pieces:
                likelihood, pull = self._likelihood(rows, piece)
                value = value + factor * likelihood
                slope = slope.add_(pull, alpha=factor)
            if processes.count() > 1:
                processes.average([value, slope])
            return value, slope

        return target

    def _log_likelihood(self, rows: Tensor, piece: _Piece) -> Tensor:
        """Σ_i w_i log p(y_i|f(x_i), u) of every network, ``[C]``."""
        log_probs = self._log_probs(rows, piece)
        if piece.batch.weight is None:
            return log_probs.sum(1)
        return (log_probs * piece.batch.weight.to(log_probs)).sum(1)

    def _likelihood(self, rows: Tensor, piece: _Piece) -> tuple[Tensor, Tensor]:
        with torch.enable_grad():
            rows = rows.detach().requires_grad_()
            value = self._log_likelihood(rows, piece)
            (slope,) = torch.autograd.grad(value.sum(), rows)
        return value.detach(), slope

    def _with_unknowns(self, rows: Tensor, value: Tensor, slope: Tensor) -> tuple[Tensor, Tensor]:
        """With log p(u) = −½‖(u − u₀)/3‖² and its gradient."""
        assert self.centre is not None
        off = (rows[:, self.size :] - self.centre) / WEAK
        return value - 0.5 * off.square().sum(1), torch.cat([slope, -off / WEAK], 1)

    def _flat(self, tensors: Parameters) -> Tensor:
        return modules.flatten(tensors).to(self.dtype)

    def _pieces(self, batch: Batch, chains: int) -> Iterator[_Piece]:
        """A batch in parts that a pass can take, with targets as the likelihood wants them."""
        if not len(batch.y):  # of a process for which there are no data
            return
        if not isinstance(self.task.data, Arrays):  # whose targets are checked before the fit
            with torch.no_grad(), seeds.untouched(self.task.device):
                first = modules.call(self.module, inputs.each(lambda t: t[:1], batch.x))
            y = self.task.likelihood.check(first.expand(len(batch.y), *first.shape[1:]), batch.y)
            batch = Batch(batch.x, y, batch.weight)
        most = max(ROWS // self.chains, 1)
        size = inputs.block(batch.x, most, 2**25)
        parts = math.ceil(len(batch.y) / size)
        for index in torch.arange(len(batch.y)).tensor_split(parts):
            part = batch if parts == 1 else batch.take(index)
            yield _Piece(part, part.y.repeat(chains, *[1] * (part.y.ndim - 1)))

    def _log_probs(self, rows: Tensor, piece: _Piece) -> Tensor:
        """log p(y|f) of every example under every network, ``[C, B]``."""
        batch = piece.batch
        likelihood, weights, unknowns = self.task.likelihood, self.parameters(rows), self.unknowns(rows)
        if self.way == "products" and not unknowns:
            outputs = self._products(weights, batch.x)
            chains, examples = outputs.shape[:2]
            # networks side by side as if they were examples: what is known of them is the same
            together = likelihood.log_prob(outputs.flatten(0, 1), piece.tiled)
            return together.view(chains, examples)

        def under(outputs: Tensor, unknown: Parameters) -> Tensor:
            known = likelihood.with_unknowns(unknown) if unknown else likelihood
            return known.log_prob(outputs, batch.y)

        if self.way == "products":
            return vmap(under)(self._products(weights, batch.x), unknowns)

        def run(weights: Parameters, unknown: Parameters) -> Tensor:
            return under(modules.call(self.module, batch.x, weights), unknown)

        if self.way == "vmap":
            return vmap(run, randomness="different")(weights, unknowns)
        return torch.stack([run(_one(weights, c), _one(unknowns, c)) for c in range(len(rows))])

    def _products(self, weights: Parameters, x: Inputs) -> Tensor:
        assert self.layers is not None
        assert isinstance(x, Tensor)
        return self.layers(weights, x)

    def _choose_way(self) -> None:
        """The quickest way that gives what a loop over networks does, by two examples and two networks."""
        piece = next(self._pieces(next(self.task.ordered(2)), chains=2))
        rows = self.start(self.task.model).expand(2, -1)
        rows = rows + 0.01 * torch.tensor([[0.0], [1.0]]).to(rows)
        wanted, slope = self._likelihood(rows, piece)
        if not bool((wanted + slope.sum(1)).isfinite().all()):
            return  # too wide weights, say: the loop says what is wrong
        self.layers = stacked(self.module, piece.batch.x)
        for way in ("products", "vmap"):
            if way == "products" and self.layers is None:
                continue
            self.way = way
            try:
                with seeds.untouched(self.task.device):
                    found, other = self._likelihood(rows, piece)
            except Exception:  # whatever they cannot do, the loop can, or says what is wrong
                continue
            if _close(found, wanted) and _close(other, slope):
                return
        self.way = "loop"

    def _check_gradient(self) -> None:
        """Refuse a likelihood that gives no gradient to follow."""
        piece = next(self._pieces(next(self.task.ordered(2)), chains=1))
        rows = self.start(self.task.model)[None].requires_grad_()
        value = self._log_likelihood(rows, piece)
        if not value.requires_grad:
            raise ValueError(
                f"likelihood {self.task.likelihood.name!r} gives no gradient: its log_prob cuts the graph from the "
                "network's outputs, by a detach(), .item() or numpy, and a sampler has nothing to follow; compute it "
                "with torch's operations"
            )


def _close(found: Tensor, wanted: Tensor) -> bool:
    return found.shape == wanted.shape and torch.allclose(found, wanted, rtol=1e-3, atol=1e-4)


def _one(tensors: Parameters, index: int) -> Parameters:
    return {name: t[index] for name, t in tensors.items()}


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
