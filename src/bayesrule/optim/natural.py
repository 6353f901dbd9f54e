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
import warnings
from abc import abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, ClassVar, TypedDict

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from bayesrule import likelihoods, modules, processes, shards
from bayesrule.data import Scaling
from bayesrule.likelihoods import Likelihood
from bayesrule.modules import Parameters
from bayesrule.naming import unknown
from bayesrule.optim.conversion import gathered, gaussian_over
from bayesrule.optim.flat import FlatGroup, by_kind, check_settings, kind
from bayesrule.optim.passes import PLAIN, Passes, compiled
from bayesrule.posteriors import Context, Gaussian
from bayesrule.seeds import mixed

if TYPE_CHECKING:
    from typing_extensions import Unpack

STD = 0.02  # the first deviation of weights under a wide prior, where nobody says
LARGE = 10_000  # weights from which on noise is worth using more than twice
HUGE = 4_000_000  # weights from which on noise is worth drawing each time, rather than its memory
COLDEST = 0.1  # where the temperature starts when it is warmed up


class NaturalSettings(TypedDict, total=False):
    """What a group of parameters may be given of its own.

    weight_decay: δ; the prior of the weights is N(prior_mean, 1/(Nδ)). A number, or a list with a tensor for each
        parameter of the group, one number for each weight.
    betas: how slowly the means over steps of gradients and of the curvature move.
    hess_init: the first h; larger is narrower and steadier at first. A number, or such a list; None: η/(N·0.02²), for
        first deviations of 0.02.
    newton: whether lr is the rate of Newton's steps, α = lr, which has no unit: 1 goes all the way on a quadratic with
        independent weights. Otherwise α = lr·(h₀ + δ), so that the first steps are those of SGD at lr.
    temperature: η of the objective E_q[loss] + (η/N)·KL(q‖p); below 1 the posterior is colder than Bayes'.
    tempering: steps over which the temperature rises to its value from a tenth of it.
    damping: added to h + δ in the step of the means.
    clip_radius: a bound on |(ḡ + δm)/(h + δ)|, which the means' steps are a learning rate of. A number, or such a list.
    augmentation: how many examples data augmentation makes of one: a factor on N.
    prior_mean: the mean of the prior: a number, or such a list.
    """

    weight_decay: float | Sequence[Tensor]
    betas: tuple[float, float]
    hess_init: float | Sequence[Tensor] | None
    newton: bool
    temperature: float
    tempering: int
    damping: float
    clip_radius: float | Sequence[Tensor]
    augmentation: float
    prior_mean: float | Sequence[Tensor]


DEFAULTS: NaturalSettings = {
    "weight_decay": 1e-4,
    "betas": (0.9, 0.99999),
    "hess_init": None,
    "newton": False,
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
        compile: whether ``torch.compile`` makes one pass over the weights of several, at the first step of a process;
            without a compiler the update goes on as it is, with a warning. The numbers are the same but for rounding.
        settings: see `NaturalSettings`.
    """

    noisy: ClassVar[bool] = True  # whether gradients are taken at drawn weights
    twice: ClassVar[bool] = False  # whether gradients have to be differentiable
    whole: ClassVar[bool] = False  # whether the curvature is seen in whole weights only
    _step_supports_amp_scaling: ClassVar[bool] = True  # so that a GradScaler says that it is there, see `step`
    own_defaults: ClassVar[NaturalSettings] = {}  # where this one differs from `DEFAULTS`

    def __init__(
        self,
        params: Iterable[Any],
        lr: float,
        ess: float,
        refresh: int = 16,
        seed: int = 0,
        compile: bool = False,
        **settings: Unpack[NaturalSettings],
    ) -> None:
        for name in settings:
            if name not in DEFAULTS:
                raise unknown(f"setting of {type(self).__name__}", name, DEFAULTS)
        for name, value, least in (("refresh", refresh, 1), ("seed", seed, 0)):
            if not isinstance(value, int) or value < least:
                raise ValueError(f"{name} must be a whole number of at least {least}, not {value!r}")
        self.refresh, self.seed, self.compile = refresh, seed, compile
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
        if self.whole and shards.any_of(group["params"]):
            raise TypeError(
                f"{type(self).__name__} needs whole weights, and these parameters are sharded (fully_shard): use IVON "
                "or Vadam, or the model as it was before"
            )

    @abstractmethod
    def _observe(self, flat: FlatGroup) -> Tensor:
        """What the gradients of a draw say of the curvature, as one vector."""

    @abstractmethod
    def _learn(self, flat: FlatGroup) -> None:
        """One step from the averages of gradient and curvature over the draws."""

    def _curve(self, flat: FlatGroup, scale: float) -> None:
        """See `passes.curve`; ``scale`` is ĥ/(h + δ) in units of what was seen."""
        weight = 1 - flat.group["betas"][1]
        decay = torch.as_tensor(flat.decay, dtype=flat.precision.dtype, device=flat.precision.device)
        flat.passes.curve(flat.seen, decay, weight * scale, weight, flat.precision)

    def _move(self, flat: FlatGroup) -> None:
        """m ← m − α·clip((ḡ/(1 − β₁ᵗ) + δ(m − prior_mean))/(h + δ + damping)), with ḡ ← β₁ḡ + (1 − β₁)ĝ.

        α = lr with ``newton``. Otherwise α = lr·(h₀ + δ), so that the first steps are those of SGD at lr; where the
        prior is so stiff that lr·δ > 1, such as one that many examples have taught, 1/δ stands for lr: the pull of the
        prior alone would overshoot.
        """
        group, beta = flat.group, flat.group["betas"][0]
        # ḡ starts at zero. Instead of dividing it by 1 − β₁ᵗ, δ and the radius are multiplied by that share, and the
        # rate is divided by it: the same step without a pass over a vector.
        share = 1 - beta ** (self.steps + 1)
        lr = group["lr"]
        if group["newton"]:
            rate = lr / share
        else:
            if isinstance(flat.decay, Tensor):
                lr = flat.decay.reciprocal().clamp(max=lr)
            elif lr * flat.decay > 1:
                lr = 1 / flat.decay
            rate = lr * (flat.first + flat.decay) / share
        by = flat.precision
        if group["damping"]:
            by = by + group["damping"]
        flat.descend(beta, flat.decay * share, by, rate, flat.radius * share)

    @contextmanager
    def sampled(self) -> Iterator[None]:
        """Within this block the weights are drawn from q; gradients taken in it count for the next step.

        Several blocks before a step are several draws, whose gradients are averaged; several backward passes in a block
        are one draw, whose gradients add up. After the block, and after an exception in it, the weights are the means.
        A block without gradients, and one that an exception has left, do not count: the gradients are then those of the
        blocks before it. What is done to the gradients after a block, such as clipping, is done to their average so
        far, and not to what they have said of the curvature.
        """
        if self._inside:
            raise RuntimeError("sampled() within another sampled block: one block at a time")
        flats = self._layout()
        earlier = self._collected_so_far(flats) if self._collected else []
        self._inside = True
        counts = False
        try:
            self._draw(flats)
            yield
            counts = self._collect(flats)
        finally:
            self._inside = False
            with torch.no_grad():
                for flat in flats:
                    flat.restore()
            if not counts:
                for p, grad in earlier:
                    p.grad = grad
        if not counts and any(flat.layout for flat in flats):
            warnings.warn(
                "a block without gradients over sharded parameters: call model.reshard() after it, or the next pass "
                "may still see the drawn weights, which fully_shard keeps gathered",
                stacklevel=3,
            )

    def _collected_so_far(self, flats: Sequence[FlatGroup]) -> list[tuple[Tensor, Tensor | None]]:
        """The gradients of the blocks since the last step, with what the user has made of them."""
        if self._forgotten(flats):
            return []
        self._check_gradients(flats)
        for flat in flats:
            flat.take_over_gradients()
        return [(p, p.grad) for flat in flats for p in flat.params]

    def _forgotten(self, flats: Sequence[FlatGroup]) -> bool:
        """Whether ``model.zero_grad()`` has cleared what was collected, which is then forgotten here as well.

        After a block every parameter has a gradient, so one without is one that somebody has cleared.
        """
        cleared = [name for flat in flats for p, name in zip(flat.params, flat.names, strict=True) if p.grad is None]
        if not cleared:
            return False
        if len(cleared) < sum(len(flat.params) for flat in flats):
            raise RuntimeError(
                f"the gradient of parameter {cleared[0]!r} was cleared between the block and the step, and others were "
                "not: clear all of them with optimizer.zero_grad(), before the block"
            )
        self._collected = 0
        return True

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
            if not self._collected:
                flat.forget()
        self.draws += 1
        if not self.noisy:
            return
        for index, flat in enumerate(flats):
            cycle = self._cycle(flat)
            number, within = divmod(self.draws - 1, cycle)
            # Each process draws its own noise: averages over processes are averages over draws. Of shares it draws its
            # part of one network, at which all processes are.
            key = self.seed, processes.rank() if flat.share is None else flat.share, index, number
            offset = mixed(*key, within // 2) if within > 1 else 0
            flat.draw(mixed(*key), offset, negative=within % 2 == 1, again=cycle > 1)

    def _cycle(self, flat: FlatGroup) -> int:
        """Draws between fresh noise."""
        if flat.count < LARGE:  # turned noise of few weights would soon meet itself
            return min(self.refresh, 2)
        return self.refresh if flat.count < HUGE else 1

    @torch.no_grad()
    def _collect(self, flats: Sequence[FlatGroup]) -> bool:
        """Take in the gradients of a draw; whether there are any."""
        if all(p.grad is None for flat in flats for p in flat.params):
            return False
        # All groups are checked before one of them takes anything in, so that an error leaves no group ahead of others.
        seen = [self._observe(flat) for flat in flats]
        for flat, curvature in zip(flats, seen, strict=True):
            self._check_finite(flat, curvature)
        self._collected += 1
        for flat, curvature in zip(flats, seen, strict=True):
            flat.average(curvature, self._collected)
        return True

    def _check_finite(self, flat: FlatGroup, curvature: Tensor) -> None:
        """A gradient that is not finite shows in what it says of the curvature, but for second derivatives.

        On a device that would have to be waited for, the first such step is noted there, for `_ready` to find.
        """
        total = curvature.sum()  # one number to look at: NaN and infinity survive a sum
        if self.twice:
            total = total + torch.stack([grad.sum() for grad in flat.grads()]).sum()
        if total.device.type not in modules.SYNCHRONOUS:
            self._note(~total.isfinite())
            return
        if math.isfinite(total):
            return
        name = flat.names[0]  # if none is to blame alone: finite numbers whose sum is not
        for candidate, grad, seen in zip(flat.names, flat.grads(), flat.views(curvature), strict=True):
            if not bool((grad + seen).isfinite().all()):
                name = candidate
                break
        raise FloatingPointError(
            f"step {self.steps}: the gradient of parameter {name!r} is NaN, infinite or beyond all measure; the "
            "parameters are unchanged. Check the loss and the inputs for extreme values, or lower the learning rate"
        )

    def _check_gradients(self, flats: Sequence[FlatGroup]) -> None:
        """Refuse gradients of frozen parameters, and those that somebody has set to zero.

        Zeros are looked for in gradients that were written to only: ``model.zero_grad(set_to_none=False)`` does that.
        """
        for flat in flats:
            if not all(p.requires_grad for p in flat.params):
                raise _changed()
            if all(p.grad is grad and grad._version == version for p, grad, version in flat.left):
                continue
            zeroed = (torch.stack(torch._foreach_norm(flat.grads())).sum() == 0) & flat.seen.any()
            if zeroed.device.type not in modules.SYNCHRONOUS:
                self._note(zeroed)
            elif zeroed:
                self._collected = 0
                raise RuntimeError(
                    "the gradients were set to zero between the block and the step: call zero_grad() before the block"
                )

    def _note(self, broken: Tensor) -> None:
        """Keep on the device which step was the first with something wrong, for `_ready` to find."""
        step = torch.full_like(broken, self.steps, dtype=torch.int64)
        before = self._broken.get(broken.device, torch.full_like(step, -1))
        self._broken[broken.device] = torch.where((before < 0) & broken, step, before)

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """One step from what was collected; ``closure``, if given, is called in a block first and gives the loss."""
        loss = None
        if closure is not None:
            with torch.enable_grad(), self.sampled():
                loss = closure()
        if self._inside:
            raise RuntimeError("step() within a sampled block: take the step after the block")
        if "found_inf" in vars(self):  # which a GradScaler says before it calls this
            raise self._scaled()
        flats = self._flats
        # One look at each gradient, without its values: whether it is the one that the last block has left.
        if not self._collected or not all(
            p.grad is grad and grad._version == version and p.requires_grad
            for flat in flats
            for p, grad, version in flat.left
        ):
            if not self._collected or self._forgotten(flats):
                raise RuntimeError(
                    "step() without gradients: call loss.backward() within `with optimizer.sampled():` before each "
                    "step, and no zero_grad() between the two"
                )
            self._check_gradients(flats)
        if processes.count() > 1:
            whole = [flat for flat in flats if flat.layout is None]  # shares have gradients of all processes already
            processes.average([t for flat in whole for t in (*flat.grads(), flat.seen)])
        for flat in flats:
            self._learn(flat)
        self.steps += 1
        self._collected = 0
        return loss

    def _scaled(self) -> RuntimeError:
        """What to say to a GradScaler, which would find its way of saying so again if it were left here."""
        del vars(self)["found_inf"], vars(self)["grad_scale"]
        self._collected = 0
        return RuntimeError(
            "GradScaler scales the gradients in a sampled block, and so the curvature that is learnt from them: train "
            "under autocast to bfloat16, which needs no scaling, or with GradScaler(enabled=False)"
        )

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Forget the gradients; outside of a block also what earlier blocks have collected."""
        super().zero_grad(set_to_none)
        if not self._inside:
            self._collected = 0

    @torch.no_grad()
    def _layout(self) -> list[FlatGroup]:
        """The flat vectors of all parameters that are trained now, under the present temperature and prior."""
        if torch.is_inference_mode_enabled():  # no step could change vectors that were made in it
            with torch.inference_mode(False):
                return self._layout()
        params = [p for group in self.param_groups for p in group["params"]]
        # What makes the vectors stale: a parameter frozen or freed, a module moved to another device or dtype.
        trained = [kind(p) if p.requires_grad else None for p in params]
        if trained != self._trained:
            if self._collected:
                raise _changed()
            for group in self.param_groups:
                check_settings(group)
            self._flats = [FlatGroup(*alike, self.state, self._passes()) for alike in by_kind(self.param_groups)]
            self._trained = trained
        for flat in self._flats:
            tempering = flat.group["tempering"]
            risen = min(self.steps / tempering, 1.0) if tempering else 1.0
            flat.under(float(flat.group["temperature"] * (COLDEST + (1 - COLDEST) * risen)))
        return self._flats

    def _passes(self) -> Passes:
        return compiled() if self.compile else PLAIN

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
            found |= dict(zip(flat.names, flat.wrapped(deviations), strict=True))
        return found

    @property
    def determined(self) -> float:
        """γ = Σ_j h_j/(h_j + δ_j): how many directions the data determine, rather than the prior (MacKay 1992)."""
        return sum(shards.total((1 - flat.decay / flat.precision).sum(), flat.params[0]) for flat in self._ready())

    def start_share(self, left: float) -> float:
        """The mean over weights of left·(h₀ + δ)/(h + δ), at most 1: what is left of the first precision.

        ``left``: the product of β₂ over all steps.
        """
        total, count = 0.0, 0
        for flat in self._ready():
            share = (left * (flat.first + flat.decay) / flat.precision).clamp_(max=1)
            total += shards.total(share.sum(), flat.params[0])
            count += sum(p.numel() for p in flat.params)
        return total / count

    def _ready(self) -> list[FlatGroup]:
        if self._inside:
            raise RuntimeError("means and deviations cannot be read within a sampled block: read them after it")
        for first in map(int, self._broken.values()):
            if first >= 0:
                raise FloatingPointError(
                    f"step {first}: a gradient was NaN, infinite or beyond all measure, or set to zero after its "
                    "block, and the parameters are spoilt. Go back to a checkpoint; check the loss and the inputs for "
                    "extreme values, or lower the learning rate; call zero_grad() before the block"
                )
        return self._layout()

    def to_posterior(self, model: nn.Module, likelihood: str | Likelihood, scaling: Scaling | None = None) -> Gaussian:
        """q as a posterior over the module's parameters; those that this optimiser does not train are fixed.

        Frozen parameters are shared with the module, all else is copied. Where parameters are sharded, ``model`` is a
        network of the same architecture that is whole, such as a new one: it gets what was learnt, by name, and all
        processes have to call this.
        """
        deviations = self.deviations
        context = Context(model, likelihoods.choose(likelihood), scaling or Scaling())
        if any(flat.layout for flat in self._flats):
            return gathered(self.means, deviations, context)
        found = {}
        for flat in self._flats:
            for p, name in zip(flat.params, flat.names, strict=True):
                found[id(p)] = deviations[name].detach()
        return gaussian_over(found, context)

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
        self._trained, self._broken, self._collected = None, {}, 0

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


def _changed() -> RuntimeError:
    """What to say of gradients that are no longer those of the parameters."""
    return RuntimeError(
        "parameters were frozen, freed or moved between a sampled block and its step: do so after the step, or forget "
        "the gradients first, with optimizer.zero_grad()"
    )
