"""Natural-gradient methods: the optimisers of `bayesrule.optim` that learn a mean-field Gaussian."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from numbers import Integral
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from bayesrule import modules, optim
from bayesrule.data import Batch
from bayesrule.methods.base import Logs, Method, Plan, context
from bayesrule.methods.gradient import GradientLearner, Trained
from bayesrule.optim import Natural, Schedule, schedule
from bayesrule.posteriors import Gaussian
from bayesrule.seeds import Noise
from bayesrule.structures import Diagonal
from bayesrule.task import Task

Settings = dict[str, Any]


@dataclass(frozen=True)
class _NaturalMethod(Method):
    """What they have in common; ``kind`` is the optimiser."""

    kind: ClassVar[Callable[..., Natural]]
    lr: float = 0.5
    initial_std: float = 0.02
    betas: tuple[float, float] = (0.9, 0.9999)
    samples: int = 1
    damping: float = 0.0
    clip_radius: float = float("inf")
    tempering: float = 0.0
    augmentation: float = 1.0
    schedule: str | Schedule = "cosine"

    def __post_init__(self) -> None:
        if not isinstance(self.samples, Integral) or self.samples < 1:
            raise ValueError(f"samples must be a whole number of at least 1, not {self.samples!r}")
        if not 0 <= self.tempering <= 1:
            raise ValueError(f"tempering must be the share of steps that it takes, from 0 to 1, not {self.tempering}")
        if not (math.isfinite(self.initial_std) and self.initial_std > 0):
            raise ValueError(f"initial_std must be positive and finite, not {self.initial_std}")
        schedule(self.schedule)
        # The fields have the names of the optimiser's settings: what it would refuse is refused before any data.
        known_later = {"ess": 1.0, "hess_init": 1.0, "params": []}
        optim.check_settings({**optim.natural.DEFAULTS, **vars(self), **known_later})

    def start(self, task: Task, plan: Plan, noise: Noise) -> NaturalLearner:
        """Train a copy of the module."""
        network = modules.training_mode(modules.twin(task.model))
        watched = {"model": network} if self.kind in (optim.VOGN, optim.OGN) else {}
        optimizer = self.kind(
            prior_groups(task, network, self),
            lr=self.lr,
            ess=float(task.data.n),
            seed=noise.integer(),
            temperature=task.temperature,
            hess_init=task.weight / (self.augmentation * self.initial_std**2),
            betas=tuple(self.betas),
            damping=self.damping,
            clip_radius=self.clip_radius,
            tempering=round(self.tempering * plan.steps),
            augmentation=self.augmentation,
            **watched,
        )
        return NaturalLearner(task, plan, network, optimizer, self)


def prior_groups(task: Task, network: nn.Module, method: _NaturalMethod) -> list[Settings]:
    """Groups of parameters with their prior: N(mean, 1/precision) is a weight decay of precision/N.

    Parameters of one scale and mean are one group. Under any other Gaussian prior each weight has its own mean, and its
    own entry on the diagonal of the precision, which is that of the best mean-field approximation of the prior.
    """
    named, n = modules.parameters(network), task.data.n * method.augmentation
    means, precisions = task.prior.mean_field(named)
    together: dict[tuple[float, float], Settings] = {}
    apart: Settings = {"params": [], "weight_decay": [], "prior_mean": []}
    for name, p in named.items():
        decay, mean = precisions[name] / n, means[name]
        first_decay, first_mean = decay.flatten()[0], mean.flatten()[0]
        if bool((decay == first_decay).all() & (mean == first_mean).all()):
            numbers = float(first_decay), float(first_mean)
            group = together.setdefault(numbers, {"params": [], "weight_decay": numbers[0], "prior_mean": numbers[1]})
            group["params"].append((name, p))
        else:
            apart["params"].append((name, p))
            apart["weight_decay"].append(decay)
            apart["prior_mean"].append(mean)
    found = list(together.values())
    if apart["params"]:
        found.append(apart)
    return found


class NaturalLearner(GradientLearner):
    """Gradients of the likelihood at drawn weights; the prior is the optimiser's weight decay."""

    def __init__(self, task: Task, plan: Plan, network: nn.Module, optimizer: Natural, method: _NaturalMethod) -> None:
        super().__init__(task, plan, network, [Trained(optimizer, method.lr, schedule(method.schedule))])
        self.optimizer, self.method = optimizer, method

    def objective(self, batch: Batch) -> tuple[Tensor, Logs]:
        """Mean −log p(y|f)."""
        nll = self.task.nll(self.task.outputs(self.network, batch.x), batch.y, self.likelihood)
        return nll, {"loss": nll.detach()}

    def backward(self, batch: Batch) -> Logs:
        """Gradients at one draw of the weights after another; `sampled` forgets those of the step before."""
        for value in self.unknowns.values():
            value.grad = None
        losses = []
        for _ in range(self.method.samples):
            with self.optimizer.sampled():
                loss, _ = self.objective(batch)
                if self.optimizer.twice:
                    self._differentiate_twice(loss)
                else:
                    loss.backward()  # type: ignore[no-untyped-call]
            losses.append(loss.detach())
        if len(losses) == 1:
            return {"loss": losses[0]}
        _scale_gradients(self.unknowns.values(), 1 / len(losses))
        return {"loss": torch.stack(losses).mean()}

    def _differentiate_twice(self, loss: Tensor) -> None:
        """Gradients that can be differentiated again; `backward` would warn of them."""
        weights, unknowns = list(modules.parameters(self.network).values()), list(self.unknowns.values())
        grads = torch.autograd.grad(loss, [*weights, *unknowns], create_graph=True, allow_unused=True)
        for p, grad in zip(weights, grads, strict=False):
            p.grad = grad
        # `sampled` has cleared the weights' gradients, but those of the unknowns add up over the draws of a step.
        for p, grad in zip(unknowns, grads[len(weights) :], strict=True):
            p.grad = grad.detach() if p.grad is None else p.grad + grad.detach()

    def posterior(self) -> Gaussian:
        """The diagonal Gaussian over the module's parameters."""
        mean, deviations = modules.parameters(self.network), self.optimizer.deviations
        precision = modules.flatten({name: deviations[name] for name in mean}).pow(-2)
        about = context(self.task, self.learnt())
        buffers = modules.copies(dict(self.network.named_buffers()))
        return Gaussian(modules.copies(mean), Diagonal(precision), buffers, about)


def _scale_gradients(tensors: Iterable[Tensor], factor: float) -> None:
    for t in tensors:
        if t.grad is not None:
            t.grad *= factor


@dataclass(frozen=True)
class IVON(_NaturalMethod):
    """A mean-field Gaussian by natural gradients at the cost of Adam (Shen et al. 2024); see `br.optim.IVON`.

    ``lr``: the learning rate of the means. ``initial_std``: the first deviation, under a prior that is far wider and at
    the full temperature. ``betas``: how slowly the means over steps of gradients and curvature move. ``samples``: draws
    in a step. ``damping``, ``clip_radius``: bounds on the means' steps. ``tempering``: the share of training over which
    the temperature rises to its value. ``augmentation``: how many examples data augmentation makes of one.
    ``schedule``: of the learning rate.
    """

    kind: ClassVar[Callable[..., Natural]] = optim.IVON
    name: ClassVar[str] = "ivon"
    summary: ClassVar[str] = "a mean-field Gaussian by natural gradients, as fast as Adam"
    betas: tuple[float, float] = (0.9, 0.99999)


@dataclass(frozen=True)
class VON(_NaturalMethod):
    """A mean-field Gaussian by Newton steps with second derivatives (Khan et al. 2018); see `br.optim.VON`.

    The fields are those of `IVON`.
    """

    kind: ClassVar[Callable[..., Natural]] = optim.VON
    name: ClassVar[str] = "von"
    summary: ClassVar[str] = "a mean-field Gaussian by Newton steps, with second derivatives"


@dataclass(frozen=True)
class VOGN(_NaturalMethod):
    """A mean-field Gaussian by natural gradients, its curvature the squared gradients of single examples
    (Osawa et al. 2019); see `br.optim.VOGN`.

    The fields are those of `IVON`.
    """

    kind: ClassVar[Callable[..., Natural]] = optim.VOGN
    name: ClassVar[str] = "vogn"
    summary: ClassVar[str] = "a mean-field Gaussian by natural gradients, from squares of single examples' gradients"


@dataclass(frozen=True)
class OGN(_NaturalMethod):
    """`VOGN` with gradients at the mean: Gauss–Newton steps, whose curvature is a Laplace approximation at the end.

    The fields are those of `IVON`.
    """

    kind: ClassVar[Callable[..., Natural]] = optim.OGN
    name: ClassVar[str] = "ogn"
    summary: ClassVar[str] = "a Gaussian around the mode by Gauss–Newton steps"


@dataclass(frozen=True)
class Vadam(_NaturalMethod):
    """A mean-field Gaussian by Adam at drawn weights (Khan et al. 2018); see `br.optim.Vadam`.

    The fields are those of `IVON`.
    """

    kind: ClassVar[Callable[..., Natural]] = optim.Vadam
    name: ClassVar[str] = "vadam"
    summary: ClassVar[str] = "a mean-field Gaussian by Adam at drawn weights"
    lr: float = 1e-2
    betas: tuple[float, float] = (0.9, 0.999)
