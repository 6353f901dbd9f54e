"""What VON, OGN, VOGN, Vadam and IVON have in common: a Gaussian in the place of a point.

The weights have a posterior q(w) = Π_j N(w_j; m_j, σ_j²), σ_j² = 1/(λ(h_j + δ)). The module's parameters hold the means
m, the optimiser the curvature h. Gradients are taken at weights from q, in a block:

    with optimizer.sampled():
        loss(model(x), y).backward()
    optimizer.step()

λ is the number of examples over the temperature, δ the weight decay, so that the prior is N(0, 1/(Nδ)) for N examples:
the loss is a mean over examples, and q is the tempered posterior. All state of a group lies in flat vectors, so that a
step is a few kernels whatever the number of parameters.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, ClassVar, TypedDict

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from bayesrule import likelihoods, modules, processes
from bayesrule.data import Scaling
from bayesrule.likelihoods import Likelihood
from bayesrule.modules import Parameters
from bayesrule.naming import unknown
from bayesrule.optim.conversion import gaussian_over
from bayesrule.optim.flat import FlatGroup, by_kind, check_settings
from bayesrule.posteriors import Context, Gaussian
from bayesrule.seeds import mixed

if TYPE_CHECKING:
    from typing_extensions import Unpack

STD = 0.02  # the first deviation of weights under a wide prior, where nobody says
LARGE = 10_000  # weights from which on noise is worth using twice
COLDEST = 0.1  # where the temperature starts when it is warmed up


class NaturalSettings(TypedDict, total=False):
    """What a group of parameters may be given of its own.

    weight_decay: δ; the prior of the weights is N(prior_mean, 1/(Nδ)). A number, or a list with a tensor for each
        parameter of the group, one number for each weight.
    betas: how slowly the means over steps of gradients and of the curvature move.
    hess_init: the first h; larger is narrower and steadier at first. None: η/(N·0.02²), for first deviations of 0.02.
    temperature: η of the objective E_q[loss] + (η/N)·KL(q‖p); below 1 the posterior is colder than Bayes'.
    tempering: steps over which the temperature rises to its value from a tenth of it.
    damping: added to h + δ in the step of the means.
    clip_radius: a bound on |(ḡ + δm)/(h + δ)|, which the means' steps are a learning rate of.
    augmentation: how many examples data augmentation makes of one: a factor on N.
    prior_mean: the mean of the prior: a number, or such a list.
    """

    weight_decay: float | Sequence[Tensor]
    betas: tuple[float, float]
    hess_init: float | None
    temperature: float
    tempering: int
    damping: float
    clip_radius: float
    augmentation: float
    prior_mean: float | Sequence[Tensor]


DEFAULTS: NaturalSettings = {
    "weight_decay": 1e-4,
    "betas": (0.9, 0.99999),
    "hess_init": None,
    "temperature": 1.0,
    "tempering": 0,
    "damping": 0.0,
    "clip_radius": math.inf,
    "augmentation": 1.0,
    "prior_mean": 0.0,
}


class Natural(Optimizer):
    """Natural-gradient steps on the means and deviations of a mean-field Gaussian over the parameters.

    Args:
        params: parameters, named parameters or groups of them, as for any torch optimiser.
        lr: the learning rate of the means.
        ess: N, the number of examples that the loss is a mean over: that of the training set.
        refresh: blocks between fresh noise: 1 for each, 2 for pairs of noise and its negative. See `_draw_noise`.
        seed: that of the noise.
        settings: see `NaturalSettings`.
    """

    noisy: ClassVar[bool] = True  # whether gradients are taken at drawn weights
    twice: ClassVar[bool] = False  # whether gradients have to be differentiable
    own_defaults: ClassVar[NaturalSettings] = {}  # where this one differs from `DEFAULTS`

    def __init__(
        self,
        params: Iterable[Any],
        lr: float,
        ess: float,
        refresh: int = 16,
        seed: int = 0,
        **settings: Unpack[NaturalSettings],
    ) -> None:
        for name in settings:
            if name not in DEFAULTS:
                raise unknown(f"setting of {type(self).__name__}", name, DEFAULTS)
        for name, value, least in (("refresh", refresh, 1), ("seed", seed, 0)):
            if not isinstance(value, int) or value < least:
                raise ValueError(f"{name} must be a whole number of at least {least}, not {value!r}")
        self.refresh, self.seed = refresh, seed
        self.steps = 0  # taken so far
        self.draws = 0  # blocks entered so far: with the seed, where the noise stands
        self._collected = 0  # draws since the last step
        self._inside = False
        self._broken: dict[torch.device, Tensor] = {}  # the first step whose gradients were not finite, or -1
        self._flats: list[FlatGroup] = []
        self._trained: list[Any] | None = None  # which parameters the flat vectors are of, and of what kind
        super().__init__(params, {"lr": lr, "ess": ess, **DEFAULTS, **self.own_defaults, **settings})

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Add parameters with settings of their own."""
        super().add_param_group(param_group)
        group = self.param_groups[-1]
        check_settings(group)
        if group["hess_init"] is None:
            group["hess_init"] = group["temperature"] / (group["ess"] * group["augmentation"] * STD**2)
        self._trained = None

    @abstractmethod
    def _observe(self, flat: FlatGroup) -> Tensor:
        """What the gradients of a draw say of the curvature, as one vector."""

    @abstractmethod
    def _learn(self, flat: FlatGroup) -> None:
        """One step from the averages of gradient and curvature over the draws."""

    def _move(self, flat: FlatGroup) -> None:
        """m ← m − α·clip((ḡ/(1 − β₁ᵗ) + δ(m − prior_mean))/(h + δ + damping)), with ḡ ← β₁ḡ + (1 − β₁)ĝ.

        α = lr·(h₀ + δ), so that the first steps are those of SGD at lr; where the prior is so stiff that lr·δ > 1, such
        as one that many examples have taught, 1/δ stands for lr: the pull of the prior alone would overshoot.
        """
        group, beta = flat.group, flat.group["betas"][0]
        slopes = flat.views(flat.momentum)
        torch._foreach_lerp_(slopes, flat.grads(), 1 - beta)
        # ḡ starts at zero. Instead of dividing it by 1 − β₁ᵗ, δ and the radius are multiplied by that share, and the
        # rate is divided by it: the same step without a pass over a vector.
        share = 1 - beta ** (self.steps + 1)
        lr = group["lr"]
        if isinstance(flat.decay, Tensor):
            lr = flat.decay.reciprocal().clamp(max=lr)
        elif lr * flat.decay > 1:
            lr = 1 / flat.decay
        rate = lr * (group["hess_init"] + flat.decay) / share
        by = flat.precision
        if group["damping"]:
            by = by + group["damping"]
        flat.descend(flat.pulled(slopes, flat.decay * share), by, rate, group["clip_radius"] * share)

    @contextmanager
    def sampled(self) -> Iterator[None]:
        """Within this block the weights are drawn from q; gradients taken in it count for the next step.

        Several blocks before a step are several draws, whose gradients are averaged; several backward passes in a block
        are one draw, whose gradients add up. After the block, and after an exception in it, the weights are the means.
        """
        if self._inside:
            raise RuntimeError("sampled() within another sampled block: one block at a time")
        flats = self._layout()
        means = [(p, p.data) for flat in flats for p in flat.params]
        self._inside = True
        try:
            self._draw(flats)
            yield
            self._collect(flats)
        finally:
            self._inside = False
            for p, mean in means:
                p.data = mean

    @torch.no_grad()
    def _draw(self, flats: Sequence[FlatGroup]) -> None:
        """Weights from q, with noise that is a function of seed, process and draw.

        Fresh numbers every ``refresh`` draws; in between the same ones at other weights, and each time the negative
        next. Every draw is one from q, and those of one weight are independent but for the negatives. Drawing normal
        numbers is a large part of the time of a step, so each is used more than once.
        """
        for flat in flats:
            for p in flat.params:
                p.grad = None
        self.draws += 1
        if not self.noisy:
            return
        for index, flat in enumerate(flats):
            cycle = self.refresh
            if len(flat.noise) < LARGE:  # turned noise of few weights would soon meet itself
                cycle = min(cycle, 2)
            number, within = divmod(self.draws - 1, cycle)
            # Each process draws its own noise: averages over processes are averages over draws.
            key = self.seed, processes.rank(), index, number
            offset = mixed(*key, within // 2) if within > 1 else 0
            flat.draw(mixed(*key), offset, negative=within % 2 == 1)

    @torch.no_grad()
    def _collect(self, flats: Sequence[FlatGroup]) -> None:
        """Take in the gradients of a draw, if there are any."""
        if all(p.grad is None for flat in flats for p in flat.params):
            return
        # All groups are checked before one of them takes anything in, so that an error leaves no group ahead of others.
        seen = [self._observe(flat) for flat in flats]
        for flat, curvature in zip(flats, seen, strict=True):
            self._check_finite(flat, curvature)
        self._collected += 1
        for flat, curvature in zip(flats, seen, strict=True):
            flat.average(curvature, self._collected)

    def _check_finite(self, flat: FlatGroup, curvature: Tensor) -> None:
        """A gradient that is not finite shows in what it says of the curvature, but for second derivatives.

        On a device that would have to be waited for, the first such step is noted there, for `_ready` to find.
        """
        total = curvature.sum()  # one number to look at: NaN and infinity survive a sum
        if self.twice:
            total = total + torch.stack([grad.sum() for grad in flat.grads()]).sum()
        if total.device.type not in modules.SYNCHRONOUS:
            step = torch.full_like(total, self.steps, dtype=torch.int64)
            before = self._broken.get(total.device, torch.full_like(step, -1))
            self._broken[total.device] = torch.where((before < 0) & ~total.isfinite(), step, before)
            return
        if math.isfinite(total):
            return
        self._collected = 0
        name = flat.names[0]  # if none is to blame alone: finite numbers whose sum is not
        for candidate, grad, seen in zip(flat.names, flat.grads(), flat.views(curvature), strict=True):
            if not bool((grad + seen).isfinite().all()):
                name = candidate
                break
        raise FloatingPointError(
            f"step {self.steps}: the gradient of parameter {name!r} is NaN, infinite or beyond all measure; the "
            "parameters are unchanged. Check the loss and the inputs for extreme values, or lower the learning rate"
        )

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """One step from what was collected; ``closure``, if given, is called in a block first and gives the loss."""
        loss = None
        if closure is not None:
            with torch.enable_grad(), self.sampled():
                loss = closure()
        if self._inside:
            raise RuntimeError("step() within a sampled block: take the step after the block")
        if not self._collected:
            raise RuntimeError(
                "step() without gradients: call loss.backward() within `with optimizer.sampled():` before each step"
            )
        flats = self._flats
        if processes.count() > 1:
            processes.average([t for flat in flats for t in (*flat.grads(), flat.seen)])
        for flat in flats:
            self._learn(flat)
        self.steps += 1
        self._collected = 0
        return loss

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Forget the gradients; outside of a block also what earlier blocks have collected."""
        super().zero_grad(set_to_none)
        if not self._inside:
            self._collected = 0

    @torch.no_grad()
    def _layout(self) -> list[FlatGroup]:
        """The flat vectors of all parameters that are trained now, under the present temperature and prior."""
        params = [p for group in self.param_groups for p in group["params"]]
        # What makes the vectors stale: a parameter frozen or freed, a module moved to another device or dtype.
        trained = [(p.dtype, p.device) if p.requires_grad else None for p in params]
        if trained != self._trained:
            for group in self.param_groups:
                check_settings(group)
            self._flats = [FlatGroup(*kind, self.state) for kind in by_kind(self.param_groups)]
            self._collected, self._trained = 0, trained
        for flat in self._flats:
            tempering = flat.group["tempering"]
            risen = min(self.steps / tempering, 1.0) if tempering else 1.0
            flat.under(float(flat.group["temperature"] * (COLDEST + (1 - COLDEST) * risen)))
        return self._flats

    @property
    def means(self) -> Parameters:
        """The means by name: that of `named_parameters`, if the optimiser was given those, else the index."""
        found: Parameters = {}
        for flat in self._ready():
            for name, p in zip(flat.names, flat.params, strict=True):
                found[name] = p.detach()
        return found

    @property
    def deviations(self) -> Parameters:
        """σ = 1/√(λ(h + δ)) by name."""
        found: Parameters = {}
        for flat in self._ready():
            deviations = flat.precision.mul(flat.examples).rsqrt_()
            found |= dict(zip(flat.names, flat.views(deviations), strict=True))
        return found

    def _ready(self) -> list[FlatGroup]:
        if self._inside:
            raise RuntimeError("means and deviations cannot be read within a sampled block: read them after it")
        for first in map(int, self._broken.values()):
            if first >= 0:
                raise FloatingPointError(
                    f"step {first}: a gradient was NaN, infinite or beyond all measure, and the parameters are spoilt. "
                    "Go back to a checkpoint; check the loss and the inputs for extreme values, or lower the learning "
                    "rate"
                )
        return self._layout()

    def to_posterior(self, model: nn.Module, likelihood: str | Likelihood, scaling: Scaling | None = None) -> Gaussian:
        """q as a posterior over the module's parameters; those that this optimiser does not train are fixed.

        Frozen parameters are shared with the module, all else is copied.
        """
        deviations = self.deviations
        found = {}
        for flat in self._flats:
            for p, name in zip(flat.params, flat.names, strict=True):
                found[id(p)] = deviations[name].detach()
        return gaussian_over(found, Context(model, likelihoods.choose(likelihood), scaling or Scaling()))

    def state_dict(self) -> dict[str, Any]:
        """What torch's optimisers have, and where steps and noise stand."""
        self._ready()
        where = {name: getattr(self, name) for name in ("steps", "draws", "seed", "refresh")}
        return {**super().state_dict(), "kind": type(self).__name__, **where}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Undo `state_dict`."""
        if (kind := state_dict.get("kind")) != type(self).__name__:
            raise ValueError(f"the state is not one of {type(self).__name__}, but of {kind or 'another optimiser'}")
        self._check_shapes(state_dict)
        super().load_state_dict(state_dict)
        for name in ("steps", "draws", "seed", "refresh"):
            setattr(self, name, state_dict[name])
        self._trained, self._broken = None, {}

    def __getstate__(self) -> dict[str, Any]:
        """All that a copy needs; its flat vectors are made anew from the state."""
        return {**vars(self), "_flats": [], "_trained": None, "_collected": 0}

    def _check_shapes(self, state_dict: dict[str, Any]) -> None:
        """Refuse a state of other parameters before anything is loaded."""
        params = [p for group in self.param_groups for p in group["params"]]
        indices = [index for group in state_dict["param_groups"] for index in group["params"]]
        if len(params) != len(indices):
            raise ValueError(f"the state is of {len(indices)} parameters, the optimiser has {len(params)}")
        for p, index in zip(params, indices, strict=True):
            saved = state_dict["state"].get(index, {}).get("precision")
            if saved is not None and saved.shape != p.shape:
                raise ValueError(
                    f"the state of parameter {index} has shape {list(saved.shape)}, the parameter {list(p.shape)}"
                )
