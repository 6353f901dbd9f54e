"""The path of any optimiser, for SWAG: moments of the weights that it comes by."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from bayesrule import likelihoods, modules, shards
from bayesrule.data import Scaling
from bayesrule.likelihoods import Likelihood
from bayesrule.modules import Parameters
from bayesrule.posteriors import Context, Gaussian
from bayesrule.structures import LowRank

TINY = 1e-16  # the least variance of a weight, for those that never move


@dataclass
class Moments:
    """Of vectors that come one after the other: w̄, Σ(w − w̄)² (Welford 1962), the last ``rank`` deviations from w̄."""

    mean: Tensor
    squares: Tensor
    rank: int
    deviations: list[Tensor] = field(default_factory=list)
    count: int = 0

    @classmethod
    def none(cls, like: Tensor, rank: int) -> Moments:
        """Of no vectors yet."""
        return cls(torch.zeros_like(like), torch.zeros_like(like), rank)

    def add(self, vector: Tensor) -> None:
        """One more vector."""
        before = vector - self.mean
        self.count += 1
        self.mean += before / self.count
        after = vector - self.mean
        self.squares += before * after
        self.deviations = [*self.deviations, after][-self.rank :]


def covariance(squares: Tensor, deviations: Sequence[Tensor], count: int) -> LowRank:
    """½ diag(var w) + ½ DDᵀ/(K−1), half the variance from the diagonal and half from the directions."""
    variance = (0.5 * squares / count).clamp_min(TINY)
    factor = torch.stack(list(deviations), 1) / math.sqrt(2 * (len(deviations) - 1))
    return LowRank(variance, factor, of="covariance")


class Path:
    """The moments of the weights that an optimiser comes by at the end of training: SWAG in a loop of your own.

    Of parameters that are sharded (``fully_shard``) each process keeps the moments of its share.

    Args:
        params: named parameters, such as ``model.named_parameters()``; frozen ones do not count.
        rank: K, the number of deviations that are kept.

    >>> model, x = nn.Linear(3, 2), torch.randn(8, 3)
    >>> optimizer, path = torch.optim.SGD(model.parameters(), lr=0.1), Path(model.named_parameters(), rank=3)
    >>> for _ in range(4):
    ...     nn.functional.cross_entropy(model(x), torch.arange(8) % 2).backward()
    ...     optimizer.step()
    ...     path.collect()
    >>> path.to_posterior(model, "categorical").predict(x).probs.shape
    torch.Size([8, 2])
    """

    def __init__(self, params: Iterable[tuple[str, Tensor]], rank: int = 20) -> None:
        if isinstance(rank, bool) or not isinstance(rank, int) or rank < 2:
            raise ValueError(f"rank must be a whole number of at least 2, not {rank!r}")
        self.params = {name: p for name, p in params if p.requires_grad}
        if not self.params:
            raise ValueError("params must have a parameter that is trained, but all are frozen, or there are none")
        self.moments = Moments.none(self._vector(), rank)

    @property
    def count(self) -> int:
        """How many weights were collected."""
        return self.moments.count

    def collect(self) -> None:
        """Take the present weights in."""
        self.moments.add(self._vector())

    def _vector(self) -> Tensor:
        return torch.cat([shards.local(p).detach().reshape(-1) for p in self.params.values()])

    def _named(self, vector: Tensor) -> Parameters:
        """This process's vector by parameter, spread as the parameters are."""
        held = [shards.local(p) for p in self.params.values()]
        parts = torch.split(vector, [p.numel() for p in held])
        return {
            name: shards.like(p, part.view(own.shape))
            for (name, p), own, part in zip(self.params.items(), held, parts, strict=True)
        }

    def _whole(self, vector: Tensor) -> Parameters:
        return {name: shards.whole(t) for name, t in self._named(vector).items()}

    def to_posterior(self, model: nn.Module, likelihood: str | Likelihood, scaling: Scaling | None = None) -> Gaussian:
        """N(w̄, ½ diag(var w) + ½ DDᵀ/(K−1)) over the module's parameters, as that of method ``swag``.

        ``model`` gives the architecture, buffers and what is frozen; its other weights do not matter. Where parameters
        are sharded it is one that is whole, such as a new one, and all processes have to call this.
        """
        if self.count < 2:
            raise ValueError(f"a path needs 2 weights or more, but {self.count} were collected: call collect() more")
        _check(model, self.params)
        mean = self._whole(self.moments.mean)
        squares = modules.flatten(self._whole(self.moments.squares))
        deviations = [modules.flatten(self._whole(each)) for each in self.moments.deviations]
        return Gaussian(
            modules.copies(mean),
            covariance(squares, deviations, self.count),
            modules.copies(dict(model.named_buffers())),
            Context(modules.twin(model), likelihoods.choose(likelihood), scaling or Scaling()),
        )

    def state_dict(self) -> dict[str, Any]:
        """The moments by parameter, in the same places whatever was collected, as checkpoints of many processes ask."""
        moments = self.moments
        spare = [torch.zeros_like(moments.mean)] * (moments.rank - len(moments.deviations))
        deviations = [self._named(each) for each in (*moments.deviations, *spare)]
        vectors = {"mean": self._named(moments.mean), "squares": self._named(moments.squares)}
        return {"count": self.count, **vectors, "deviations": {str(k): each for k, each in enumerate(deviations)}}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Undo `state_dict`."""
        rank, count = self.moments.rank, int(state["count"])
        if len(state["deviations"]) != rank:
            raise ValueError(f"the state is of a path of rank {len(state['deviations'])}, not {rank}: make one of that")
        deviations = [self._flat(state["deviations"][str(k)]) for k in range(min(count, rank))]
        self.moments = Moments(self._flat(state["mean"]), self._flat(state["squares"]), rank, deviations, count)

    def _flat(self, named: Parameters) -> Tensor:
        return torch.cat([shards.local(named[name]).reshape(-1) for name in self.params])


def _check(model: nn.Module, params: Parameters) -> None:
    """Refuse a module that is not the one whose path this is, as a whole."""
    own = modules.parameters(model)
    if different := sorted(own.keys() ^ params.keys()):
        raise ValueError(
            f"model must have just the parameters that were collected, but {different[0]!r} is in one of the two only: "
            "give Path model.named_parameters(), and to_posterior a network of the same architecture"
        )
    if shards.any_of(own.values()):
        raise TypeError("model must be a network that is not sharded, such as a new one")
    if modules.has_batch_norm(model):
        raise ValueError(
            "model must have no BatchNorm, whose statistics under drawn weights take passes over the data: "
            "use br.fit with method 'swag'"
        )
