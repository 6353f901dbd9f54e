"""Natural-gradient methods: the optimisers of `bayesrule.optim` that learn a mean-field Gaussian."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from itertools import chain, islice
from numbers import Integral
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from bayesrule import modules, optim
from bayesrule.data import Batch
from bayesrule.files import Tree
from bayesrule.methods.base import Logs, Method, Plan, context
from bayesrule.methods.gradient import GradientLearner, Trained
from bayesrule.optim import Natural, Schedule, schedule
from bayesrule.posteriors import Gaussian
from bayesrule.seeds import Noise
from bayesrule.structures import Diagonal
from bayesrule.task import Task

Settings = dict[str, Any]

FURTHEST = 1e6  # step of a weight that has no prior
LARGEST = 0.5  # rate of the means: half of the way on a quadratic with independent weights
TOGETHER, WELL_DETERMINED = 1.5, 100.0  # see `_rate`
UNHURRIED = 200  # steps; a shorter fit has a smaller rate
BATCHES = 16  # at most, that the first curvature is measured on
FAST, SLOW = 9.0, 4.0  # see `NaturalLearner._memory`
BOUND = 1e25  # of a precision, or of a variance: beyond it something has diverged
QUICKEST = 0.1  # the most that one step may count in the mean of the curvature


@dataclass(frozen=True)
class _NaturalMethod(Method):
    """What they have in common; ``kind`` is the optimiser."""

    kind: ClassVar[Callable[..., Natural]]
    variational: ClassVar[bool] = True
    # With 2000 the mean of a small network is up to 0.8 deviations off, with 4000 it is 0.4 (tests/training).
    least_steps: ClassVar[int] = 4000
    newton: ClassVar[bool] = True  # whether lr is a share of Newton's step, see `br.optim.Natural`
    lr: float | None = None
    initial_std: float | None = None
    betas: tuple[float, float | None] = (0.9, None)
    samples: int = 1
    damping: float = 0.0
    clip_radius: float | None = None
    tempering: float = 0.5
    augmentation: float = 1.0
    schedule: str | Schedule = "cosine"

    def __post_init__(self) -> None:
        if not isinstance(self.samples, Integral) or self.samples < 1:
            raise ValueError(f"samples must be a whole number of at least 1, not {self.samples!r}")
        if not 0 <= self.tempering <= 1:
            raise ValueError(f"tempering must be the share of steps that it takes, from 0 to 1, not {self.tempering}")
        if self.initial_std is not None and not (math.isfinite(self.initial_std) and self.initial_std > 0):
            raise ValueError(f"initial_std must be positive and finite, not {self.initial_std}")
        schedule(self.schedule)
        # The fields have the names of the optimiser's settings: what it would refuse is refused before any data.
        known_later: Settings = {"ess": 1.0, "hess_init": 1.0, "params": []}
        if self.lr is None:
            known_later["lr"] = LARGEST
        if len(self.betas) == 2 and self.betas[1] is None:
            known_later["betas"] = (self.betas[0], 0.0)
        if self.clip_radius is None:
            known_later["clip_radius"] = math.inf
        optim.check_settings({**optim.natural.DEFAULTS, **vars(self), **known_later})

    def start(self, task: Task, plan: Plan, noise: Noise) -> NaturalLearner:
        """Train a copy of the module."""
        network = modules.training_mode(modules.twin(task.model))
        watched = {"model": network} if self.kind in (optim.VOGN, optim.OGN) else {}
        groups, seed = prior_groups(task, network, self), noise.integer()
        if self.initial_std is None:
            known = fisher(task, plan, network, noise)
            for group in groups:
                group["hess_init"] = [known[name] for name, _ in group["params"]]
        else:
            for group in groups:
                group["hess_init"] = task.weight / (self.augmentation * self.initial_std**2)
        for group in groups:
            group["clip_radius"] = self.clip_radius
            if self.clip_radius is None:
                # Other steps than Newton's are longer, by the factor that makes the first ones those of SGD.
                first = None if self.newton else group["hess_init"]
                group["clip_radius"] = _radius(group, task.data.total * self.augmentation, first, self.lr or LARGEST)
        optimizer = self.kind(
            groups,
            lr=LARGEST if self.lr is None else self.lr,
            newton=self.newton,
            ess=task.data.total,
            seed=seed,
            temperature=task.temperature,
            betas=(self.betas[0], 0.0 if self.betas[1] is None else self.betas[1]),
            damping=self.damping,
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
    named, n = modules.parameters(network), task.data.total * method.augmentation
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


def fisher(task: Task, plan: Plan, network: nn.Module, noise: Noise) -> modules.Parameters:
    """The first curvature h₀: the diagonal of the Fisher matrix of an example's log p(y|f), at the first weights.

    Of labels that the network itself draws, the gradients of a batch's examples are independent and have mean zero, so
    B·g² of the mean gradient g over B examples is on average the Fisher matrix of one. Labels of the data would count
    how far off an untrained network is for curvature.
    """
    count = min(BATCHES, max(plan.steps // 100, 8))
    weights = modules.parameters(network)
    found = {name: torch.zeros_like(p) for name, p in weights.items()}
    buffers = modules.copies(dict(network.named_buffers()))  # which passes change
    with noise.drawn_alike():
        for batch in islice(chain.from_iterable(task.batches(plan.batch_size, seed) for seed in range(count)), count):
            outputs = task.outputs(network, batch.x)
            likelihood = task.likelihood.observing(batch.y)
            labels = likelihood.sample(outputs.detach(), noise.own).to(batch.y.dtype)
            nll = task.nll(outputs, labels, task.likelihood)
            grads = torch.autograd.grad(nll, list(weights.values()), allow_unused=True)
            for square, grad in zip(found.values(), grads, strict=True):
                if grad is not None:
                    square.addcmul_(grad, grad, value=len(batch.y) / count)
    for name, buffer in network.named_buffers():
        buffer.copy_(buffers[name])
    # A mean of few squares is often far too small, and Newton's first steps far too long then: half of it is that of
    # all weights of a parameter.
    return {name: (h + h.mean()) / 2 for name, h in found.items()}


class NaturalLearner(GradientLearner):
    """Gradients of the likelihood at drawn weights; the prior is the optimiser's weight decay."""

    def __init__(self, task: Task, plan: Plan, network: nn.Module, optimizer: Natural, method: _NaturalMethod) -> None:
        lr = method.lr
        if lr is None:
            # With momentum 0.9 steps on a quadratic are stable up to 38 times as far, but only once there is momentum:
            # a fit whose warm-up is over before that has to go slowly.
            lr = _rate(optimizer.determined) * min(plan.steps / UNHURRIED, 1.0)
        super().__init__(task, plan, network, [Trained(optimizer, lr, schedule(method.schedule))])
        self.optimizer, self.method = optimizer, method
        self.tells_its_draws = optimizer.noisy

    def objective(self, batch: Batch) -> tuple[Tensor, Logs]:
        """Mean −log p(y|f)."""
        nll = self.task.nll(self.task.outputs(self.network, batch.x), batch.y, self.likelihood, batch.weight)
        return nll, {"loss": nll.detach()}

    def backward(self, batch: Batch) -> Logs:
        """Gradients at one draw of the weights after another; `sampled` forgets those of the step before."""
        for value in self.unknowns.values():
            value.grad = None
        if self.method.betas[1] is None:
            betas = self.method.betas[0], self._memory(self.steps)
            for group in self.optimizer.param_groups:
                group["betas"] = betas
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

    def _memory(self, step: int) -> float:
        """β₂ of a step: the method's, or 1 − min(9, 4/done)/steps where the share ``done`` of all steps is done.

        Over all steps the start's share of the mean is then e⁻⁴·(4/9)⁴ = 7·10⁻⁴. Once 4/done counts, the mean is over
        the last part of the steps so far, the later ones weighing more: it forgets how training began, and its noise
        falls.
        """
        fixed = self.method.betas[1]
        if fixed is not None:
            return fixed
        done = (step + 0.5) / self.plan.steps
        return 1 - min(min(FAST, SLOW / done) / self.plan.steps, QUICKEST)

    def state_dict(self) -> Tree:
        """As for any learner, and the rate: it was measured at the first weights, which a resumed fit does not know."""
        return {**super().state_dict(), "rate": self.trained[0].lr}

    def load_state_dict(self, state: Tree) -> None:
        """Undo `state_dict`."""
        super().load_state_dict(state)
        self.trained[0] = self.trained[0]._replace(lr=state["rate"])

    def posterior(self) -> Gaussian:
        """The diagonal Gaussian over the module's parameters.

        The diagnosis ``sigma_from_start`` is the share of the precision 1/σ² that is still the first one, averaged over
        weights.
        """
        mean, deviations = modules.parameters(self.network), self.optimizer.deviations
        precision = modules.flatten({name: deviations[name] for name in mean}).pow(-2)
        if not BOUND**-1 < float(precision.min()) <= float(precision.max()) < BOUND:
            raise FloatingPointError(
                f"the curvature has left all bounds: precisions are {float(precision.min()):.3g} to "
                f"{float(precision.max()):.3g}. Lower the learning rate, or standardise inputs and targets"
            )
        left = math.prod(self._memory(step) for step in range(self.steps))
        about = context(self.task, self.learnt(), sigma_from_start=self.optimizer.start_share(left))
        buffers = modules.copies(dict(self.network.named_buffers()))
        return Gaussian(modules.copies(mean), Diagonal(precision), buffers, about)


def _rate(determined: float) -> float:
    """The share of Newton's step that is safe where the data determine so many directions, γ.

    Newton's steps on one weight at a time go too far where weights act together, by up to the largest eigenvalue of the
    curvature in units of its diagonal. That is at most γ, and for networks of up to some thousand weights more like √γ:
    the factors were chosen on small regressions and classifications, by the loss after 30 to 1000 steps.
    """
    determined = max(determined, 1.0)
    return min(LARGEST, TOGETHER / math.sqrt(determined), WELL_DETERMINED / determined)


def _radius(group: Settings, n: float, first: float | list[Tensor] | None, lr: float) -> float | list[Tensor]:
    """The bound on (ḡ + δm)/(h + δ) under which no step of a weight is longer than the deviation of its prior.

    Where the network is sure of all examples the curvature is next to nothing, and the first mistake would send the
    means of many weights to where no prior expects them, and the loss with them. ``first``: h₀ where steps are
    lr·(h₀ + δ) times that ratio; None where they are Newton's, and a share of it.
    """
    decays, firsts = group["weight_decay"], first
    if not isinstance(decays, list) and not isinstance(firsts, list):
        furthest = min(FURTHEST, 1 / math.sqrt(decays * n)) if decays else FURTHEST
        return furthest if firsts is None else furthest / (lr * (firsts + decays))
    found = []
    for k, (_, p) in enumerate(group["params"]):
        decay = decays[k] if isinstance(decays, list) else p.new_tensor(decays)
        furthest = (decay * n).rsqrt().clamp(max=FURTHEST).expand_as(p)
        if firsts is not None:
            furthest = furthest / (lr * ((firsts[k] if isinstance(firsts, list) else firsts) + decay))
        found.append(furthest)
    return found


def _scale_gradients(tensors: Iterable[Tensor], factor: float) -> None:
    for t in tensors:
        if t.grad is not None:
            t.grad *= factor


@dataclass(frozen=True)
class IVON(_NaturalMethod):
    """A mean-field Gaussian by natural gradients at the cost of Adam (Shen et al. 2024); see `br.optim.IVON`.

    ``lr``: the learning rate of the means, a share of Newton's step; None: as the data allow, at most a half.
    ``initial_std``: the first deviation of all weights, under a prior that is far wider and at the full temperature;
    None: each has its own, from the curvature at the start. ``betas``: how slowly the means over steps of gradients and
    curvature move; None for the second: so that the curvature has forgotten its start at the end, and is a mean over
    the last part of training. ``samples``: draws in a step. ``damping``, ``clip_radius``: bounds on the means'
    steps; None for the second: the prior's deviation.
    ``tempering``: the share of training over which the temperature rises to its value. ``augmentation``: how many
    examples data augmentation makes of one. ``schedule``: of the learning rate.
    """

    kind: ClassVar[Callable[..., Natural]] = optim.IVON
    name: ClassVar[str] = "ivon"
    summary: ClassVar[str] = "a mean-field Gaussian by natural gradients, as fast as Adam"
    weighs: ClassVar[bool] = True


@dataclass(frozen=True)
class VON(_NaturalMethod):
    """A mean-field Gaussian by Newton steps with second derivatives (Khan et al. 2018); see `br.optim.VON`.

    The fields are those of `IVON`.
    """

    kind: ClassVar[Callable[..., Natural]] = optim.VON
    name: ClassVar[str] = "von"
    summary: ClassVar[str] = "a mean-field Gaussian by Newton steps, with second derivatives"
    weighs: ClassVar[bool] = True


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

    The fields are those of `IVON`; the first steps are those of SGD at ``lr``. Without noise in the weights the squared
    gradients of a network that fits its data go to zero, and with a curvature that follows them Newton's steps go to
    infinity: by default it stays near its start, ``initial_std``, in a fit of usual length.
    """

    kind: ClassVar[Callable[..., Natural]] = optim.OGN
    newton: ClassVar[bool] = False
    variational: ClassVar[bool] = False
    least_steps: ClassVar[int] = 2000
    name: ClassVar[str] = "ogn"
    summary: ClassVar[str] = "a Gaussian around the mode by Gauss–Newton steps"
    lr: float | None = 0.5
    initial_std: float | None = 0.02
    betas: tuple[float, float | None] = (0.9, 0.9999)
    tempering: float = 0.0


@dataclass(frozen=True)
class Vadam(_NaturalMethod):
    """A mean-field Gaussian by Adam at drawn weights (Khan et al. 2018); see `br.optim.Vadam`.

    The fields are those of `IVON`; ``lr`` is Adam's.
    """

    kind: ClassVar[Callable[..., Natural]] = optim.Vadam
    least_steps: ClassVar[int] = 2000
    name: ClassVar[str] = "vadam"
    summary: ClassVar[str] = "a mean-field Gaussian by Adam at drawn weights"
    weighs: ClassVar[bool] = True
    lr: float | None = 1e-2
    initial_std: float | None = 0.02
    betas: tuple[float, float | None] = (0.9, 0.999)
    clip_radius: float | None = math.inf
    tempering: float = 0.0
