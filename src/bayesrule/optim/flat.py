"""The state of many parameters in a few flat vectors."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from numbers import Real
from typing import Any

import torch
from torch import Tensor

from bayesrule import shards
from bayesrule.optim.passes import PLAIN, Passes


class FlatGroup:
    """Parameters of one group, dtype and device, and vectors over all of them.

    ``precision`` is h + δ, ``momentum`` the mean gradient over steps; both are in the optimiser's state by parameter,
    as views. The others are at work within a step: ``noise`` ε where it serves more than one draw, ``weights`` the
    drawn weights, ``seen`` what the draws say of the curvature; see `room`. ``decay`` is δ, ``centre`` the prior's
    mean, each one number or a vector, and ``examples`` λ: see `under`. ``first`` is h₀ and ``radius`` the furthest
    step, each one number or a vector.

    Of parameters that are sharded (`bayesrule.shards`) the vectors are over this process's share of them.
    """

    def __init__(
        self,
        group: dict[str, Any],
        params: Sequence[Tensor],
        names: Sequence[str],
        state: dict[Tensor, Any],
        passes: Passes = PLAIN,
    ) -> None:
        self.group, self.params, self.names = group, list(params), list(names)
        first = self.params[0]
        self.layout = shards.layout(first)
        self.share = shards.number(first)
        self.shapes = [p.shape for p in self.held()]
        self.sizes = [shape.numel() for shape in self.shapes]
        self.decay: float | Tensor = 0.0
        self.centre: float | Tensor = 0.0
        self.examples = 1.0
        self.first: float | Tensor = 0.0
        self.count = sum(self.sizes)
        self.passes = passes
        # Views of the vectors are asked for at every step. A tensor cannot be a key by its contents, so they are kept
        # by id; `_own` holds on to the vectors, so that no id is reused.
        self._views: dict[int, list[Tensor]] = {}
        self._own: list[Tensor] = []
        self.precision, self.momentum = self._new(), self._new()
        self.noise: Tensor | None = None
        self._weights: Tensor | None = None
        self._seen: Tensor | None = None
        self._rooms: list[Tensor] = []
        self.generator = torch.Generator(first.device)
        self._seed = -1  # what the noise was drawn from
        self._means: list[Tensor] = []  # the gradients, averaged over draws
        self._kept: list[Tensor] = []  # the means of the weights, while drawn ones stand for them
        self.left: list[tuple[Tensor, Tensor, int]] = []  # parameter, its gradient, how often that was written to
        self._prior: tuple[Any, Any, float] | None = None  # what decay and centre were made from
        start = group["hess_init"]
        self.first = self._vector(start) if isinstance(start, Sequence) else start
        radius = group["clip_radius"]
        self.radius: float | Tensor = self._vector(radius) if isinstance(radius, Sequence) else radius
        self._adopt(state)

    def _new(self) -> Tensor:
        """A vector of zeros over all parameters, whose views are kept."""
        first = shards.local(self.params[0])
        with torch.inference_mode(False):  # whose tensors no step could change
            vector = torch.zeros(self.count, dtype=first.dtype, device=first.device)
            views = self.views(vector)
        self._own.append(vector)
        self._views[id(vector)] = views
        return vector

    def room(self) -> Tensor:
        """A vector to write to: memory in which nothing of this step is.

        It is used again from step to step, as fresh memory would cost a step more than the arithmetic does. One such
        vector is enough for a step from one draw: it holds the drawn weights, then what they say of the curvature, then
        the step of the means.
        """
        for vector in self._rooms:
            if vector is not self._weights and vector is not self._seen:
                return vector
        self._rooms.append(self._new())
        return self._rooms[-1]

    @property
    def weights(self) -> Tensor:
        """The weights of the last draw, or what has been made of them since."""
        assert self._weights is not None
        return self._weights

    @property
    def seen(self) -> Tensor:
        """What the draws since the last step say of the curvature; once that is learnt, free to be written to."""
        assert self._seen is not None
        return self._seen

    def held(self) -> Sequence[Tensor]:
        """What this process holds of the parameters, in their memory: all of them, if they are not sharded."""
        return self.params if self.layout is None else [shards.local(p) for p in self.params]

    def wrapped(self, vector: Tensor) -> list[Tensor]:
        """The vector by parameter, as people and files see it: sharded where the parameters are."""
        views = self.views(vector)
        return views if self.layout is None else list(map(shards.like, self.params, views))

    def _vector(self, values: Sequence[Tensor]) -> Tensor:
        """A tensor for each parameter of the group as one vector."""
        own = {id(p): value for p, value in zip(self.group["params"], values, strict=True)}
        parts = [shards.part(own[id(p)].to(p.device, p.dtype).expand(p.shape), p) for p in self.params]
        return torch.cat([part.reshape(-1) for part in parts])

    def _adopt(self, state: dict[Tensor, Any]) -> None:
        """Take over what the state says of each parameter, and let the state be views from now on."""
        known_decay = [_number(state[p]["decay"]) for p in self.params if state.get(p)]
        if known_decay and isinstance(known_decay[0], Tensor):
            self.decay = torch.cat([shards.local(state[p]["decay"]).reshape(-1) for p in self.params])
        elif known_decay:
            self.decay = known_decay[0]
        self.precision.add_(self.first).add_(self.decay)
        for p, precision, momentum in zip(
            self.params, self.views(self.precision), self.views(self.momentum), strict=True
        ):
            if known := state.get(p):
                momentum.copy_(shards.local(known["momentum"]))
                precision.copy_(shards.local(known["precision"]))
                # A parameter that was frozen while others went on has the decay of an earlier temperature.
                earlier = _number(known["decay"])
                if not isinstance(self.decay, Tensor) and earlier != self.decay:
                    precision.add_(self.decay - earlier).clamp_min_(0.5 * float(known["precision"].min()))
        for p, precision, momentum in zip(
            self.params, self.wrapped(self.precision), self.wrapped(self.momentum), strict=True
        ):
            state[p] = {"precision": precision, "momentum": momentum}  # and the decay, by `under`
        self._state = [state[p] for p in self.params]

    def views(self, vector: Tensor) -> list[Tensor]:
        """The vector in the shapes of the parameters."""
        known = self._views.get(id(vector))
        return known or [v.view(shape) for v, shape in zip(torch.split(vector, self.sizes), self.shapes, strict=True)]

    def under(self, temperature: float) -> None:
        """λ = N/temperature and δ = temperature · weight decay, under the same h, and the prior's mean.

        Where the new δ would not leave h + δ positive, h + δ stays.
        """
        group = self.group
        self.examples = float(group["ess"] * group["augmentation"] / temperature)
        decay, mean = group["weight_decay"], group["prior_mean"]
        before = self._prior
        # This runs at every step, so lists of tensors are compared by identity, not by value.
        if before is not None and before[0] is decay and before[1] is mean and before[2] == temperature:
            return
        self._prior = decay, mean, temperature
        if isinstance(mean, Sequence):
            mean = self._vector(mean)
        if isinstance(decay, Sequence):
            decay = self._vector(decay)
        self.centre, decayed = mean, decay * temperature
        change = decayed - self.decay
        if not isinstance(change, Tensor) and change >= 0:
            # So it is at every step while the temperature rises: in place, since a fresh vector would cost a step more
            # than the arithmetic does.
            self.precision.add_(change)
        else:
            moved = self.precision + change
            torch.where(moved > 0, moved, self.precision, out=self.precision)
        self.decay = decayed
        # by parameter, where the optimiser's state is saved from
        parts: Sequence[float | Tensor] = [decayed] * len(self.params)
        if isinstance(decayed, Tensor):
            parts = self.wrapped(decayed)
        elif self.layout is not None:  # a checkpoint of many processes finds tensors by parameter, and no numbers
            parts = [torch.tensor(decayed, dtype=torch.float64) for _ in self.params]
        for entry, part in zip(self._state, parts, strict=True):
            entry["decay"] = part

    def draw(self, seed: int, offset: int, negative: bool, again: bool) -> None:
        """Let w = m + ε/√(λ(h + δ)) stand for the parameters, ε the noise of a seed from ``offset`` on, or −ε.

        The noise is turned like a ring: offset 3 gives the weights ε₃, ε₄, …, ε₁, ε₂. ``again``: whether the same noise
        serves other draws, for which it is kept.
        """
        self._weights = None
        self._weights = weights = self.room()
        if again:
            self._deviate(self.known_noise(seed), offset, weights)
        else:
            self._deviate(weights.normal_(generator=self.generator.manual_seed(seed)), 0, weights)
        scale = (-1 if negative else 1) / math.sqrt(self.examples)
        held, drawn = self.held(), self.views(weights)
        # The memory itself where another one can stand for it; a share stays where it is, since its owner gathers it
        # from there.
        self._kept = [p.data if self.layout is None else p.clone() for p in held]
        for m, w in zip(self._kept, drawn, strict=True):
            torch.add(m, w, alpha=scale, out=w)
        self._put(drawn)

    def known_noise(self, seed: int) -> Tensor:
        """The noise of a seed, drawn when it is not that of the last one."""
        if self.noise is None:
            self.noise = self._new()
        if seed != self._seed:
            self._seed = seed
            self.noise.normal_(generator=self.generator.manual_seed(seed))
        return self.noise

    def _deviate(self, noise: Tensor, offset: int, out: Tensor) -> None:
        """ε/√(h + δ), the noise turned."""
        start = offset % max(self.count, 1)  # a process may hold nothing of a small parameter
        left = self.count - start
        if not start:
            return self.passes.deviate(noise, self.precision, out)
        self.passes.deviate(_piece(noise, start, left), _piece(self.precision, 0, left), _piece(out, 0, left))
        self.passes.deviate(_piece(noise, 0, start), _piece(self.precision, left, start), _piece(out, left, start))

    def deviations(self) -> list[Tensor]:
        """w − m of the last draw by parameter, in the memory of w, which is then gone."""
        found = self.views(self.weights)
        for w, m in zip(found, self._kept, strict=True):
            w.sub_(m)
        return found

    def restore(self) -> None:
        """Let the parameters be the means again, to the bit, if weights were drawn."""
        if not self._kept:
            return
        self._put(self._kept)
        self._kept = []

    def _put(self, values: Sequence[Tensor]) -> None:
        for p, value in zip(self.held(), values, strict=True):
            if self.layout is None:
                p.data = value  # not `copy_`: it costs nothing, and the means stay untouched
            else:
                p.copy_(value)

    def grads(self) -> list[Tensor]:
        """The gradients of all parameters; zero for one that the loss does not depend on."""
        found = []
        for p, name in zip(self.params, self.names, strict=True):
            grad = torch.zeros_like(p) if p.grad is None else p.grad
            if grad.layout != torch.strided:
                raise TypeError(f"the gradient of parameter {name!r} is sparse: use Embedding(..., sparse=False)")
            found.append(shards.local(grad))
        return found

    def average(self, seen: Tensor, draws: int) -> None:
        """Take in the ``draws``-th draw: gradients and what is seen are averages over draws from now on."""
        if draws == 1:
            self._seen, self._means = seen, [grad.detach() for grad in self.grads()]
        else:
            torch._foreach_lerp_(self._means, self.grads(), 1 / draws)
            self.seen.lerp_(seen, 1 / draws)
        self.left = []
        for p, mean in zip(self.params, self._means, strict=True):
            grad = p.grad = mean if self.layout is None else shards.like(p, mean)
            self.left.append((p, grad, grad._version))

    def take_over_gradients(self) -> None:
        """Let the present gradients be the averages so far, whoever has made them."""
        self._means = [shards.local(p.grad) for p in self.params if p.grad is not None]

    def forget(self) -> None:
        """What was seen so far does not count: its memory is free, and that of the gradients."""
        self._seen, self._means, self.left = None, [], []

    def descend(
        self, beta: float, pull: float | Tensor, by: Tensor, rate: float | Tensor, radius: float | Tensor
    ) -> None:
        """ḡ ← βḡ + (1 − β)ĝ, m ← m − rate·clip((ḡ + pull·(m − prior_mean))/by, radius), and ``seen`` is gone.

        A parameter at a time: what one operation has read is still in the cache for the next.
        """
        settings = self.by_parameter(self.momentum, self.seen, pull, self.centre, by, rate, radius)
        for p, grad, (slope, out, pull, centre, by, rate, radius) in zip(
            self.held(), self.grads(), settings, strict=True
        ):
            slope.lerp_(grad, 1 - beta)
            step(p, pulled(slope, p, pull, centre, out), by, rate, radius)

    def by_parameter(self, *values: float | Tensor) -> Iterator[tuple[Any, ...]]:
        """For each parameter the numbers as they are, and its part of the vectors."""
        count = len(self.params)
        parts = [self.views(value) if isinstance(value, Tensor) else [value] * count for value in values]
        return zip(*parts, strict=True)


def _piece(vector: Tensor, start: int, count: int) -> Tensor:
    """``count`` numbers of a vector from ``start`` on, in its memory, but no view of it.

    A compiled function looks closely at views each time it is called, which takes longer than the arithmetic.
    """
    return vector.new_empty(0).set_(vector.untyped_storage(), start, (count,), (1,))


def pulled(slope: Tensor, p: Tensor, pull: float | Tensor, centre: float | Tensor, out: Tensor) -> Tensor:
    """slope + pull·(p − centre)."""
    if isinstance(pull, Tensor) or isinstance(centre, Tensor):
        return torch.sub(p, centre, out=out).mul_(pull).add_(slope)
    torch.add(slope, p, alpha=pull, out=out)  # one pass where two numbers are enough, which is nearly always
    return out.sub_(pull * centre) if centre else out


def step(p: Tensor, direction: Tensor, by: Tensor, rate: float | Tensor, radius: float | Tensor) -> None:
    """p ← p − rate·clip(direction/by, radius); the direction is gone."""
    if isinstance(rate, Tensor):
        p.sub_(_clipped(direction.div_(by), radius).mul_(rate))
    elif isinstance(radius, Tensor) or radius < math.inf:
        p.add_(_clipped(direction.div_(by), radius), alpha=-rate)
    else:
        p.addcdiv_(direction, by, value=-rate)


def _number(decay: float | Tensor) -> float | Tensor:
    """One number as such, whether it was kept as a tensor or not."""
    return float(decay) if isinstance(decay, Tensor) and not decay.dim() else decay


def _clipped(direction: Tensor, radius: float | Tensor) -> Tensor:
    """Between −radius and radius, in place."""
    if isinstance(radius, Tensor):  # the same call: torch's types allow no union of the two
        return direction.clamp_(-radius, radius)
    return direction.clamp_(-radius, radius)


def by_kind(groups: Sequence[dict[str, Any]]) -> Iterator[tuple[dict[str, Any], list[Tensor], list[str]]]:
    """Each group with its trained parameters and their names, those of one dtype, device and layout of shares together.

    Without names of their own, parameters are called by their index.
    """
    number = 0
    for group in groups:
        params = group["params"]
        names = group.get("param_names") or [str(index) for index in range(number, number + len(params))]
        number += len(params)
        kinds: dict[Any, tuple[list[Tensor], list[str]]] = {}
        for p, name in zip(params, names, strict=True):
            if p.requires_grad:
                alike, called = kinds.setdefault(kind(p), ([], []))
                alike.append(p)
                called.append(name)
        for alike, called in kinds.values():
            yield group, alike, called


def kind(p: Tensor) -> tuple[Any, ...]:
    """What parameters of one flat vector have in common."""
    return p.dtype, p.device, shards.layout(p)


def check_settings(group: dict[str, Any]) -> None:
    """Refuse settings of a group that make no sense, and parameters too coarse for a mean over many steps."""
    for p in group["params"]:
        if p.requires_grad and p.dtype not in (torch.float32, torch.float64):
            raise TypeError(f"parameters must be float32 or float64, not {p.dtype}: train in float32 under autocast")
    for name in ("ess", "temperature", "augmentation", "hess_init"):
        value = group[name]
        if name == "hess_init" and value is None:
            continue
        if name == "hess_init" and isinstance(value, Sequence):
            check_by_parameter(name, group)
        elif not (isinstance(value, Real) and 0 < float(value) < math.inf):
            raise ValueError(f"{name} must be positive and finite, not {value!r}")
    radius = group["clip_radius"]
    if isinstance(radius, Sequence):
        check_by_parameter("clip_radius", group)
    elif not (isinstance(radius, Real) and float(radius) > 0):
        raise ValueError(f"clip_radius must be positive, not {radius!r}")
    for name in ("lr", "damping", "tempering", "weight_decay"):
        value = group[name]
        if isinstance(value, Sequence) and name == "weight_decay":
            check_by_parameter(name, group)
        elif not (isinstance(value, Real) and 0 <= float(value) < math.inf):
            raise ValueError(f"{name} must be at least 0 and finite, not {value!r}")
    mean = group["prior_mean"]
    if isinstance(mean, Sequence):
        check_by_parameter("prior_mean", group)
    elif not (isinstance(mean, Real) and math.isfinite(mean)):
        raise ValueError(f"prior_mean must be a finite number, not {mean!r}")
    betas = group["betas"]
    if not (isinstance(betas, tuple | list) and len(betas) == 2 and all(0 <= beta < 1 for beta in betas)):
        raise ValueError(f"betas must be two numbers in [0, 1), not {betas!r}")


def check_by_parameter(name: str, group: dict[str, Any]) -> None:
    """Refuse a setting by parameter that misses one, or has another shape, or is not finite, or negative."""
    params, values = group["params"], group[name]
    if len(values) != len(params):
        raise ValueError(f"{name} must have a tensor for each of the {len(params)} parameters, not {len(values)}")
    for index, (p, value) in enumerate(zip(params, values, strict=True)):
        if not isinstance(value, Tensor) or value.shape not in (p.shape, ()):
            found = list(value.shape) if isinstance(value, Tensor) else value
            raise ValueError(f"{name} must be a tensor {list(p.shape)} for parameter {index} of its group, not {found}")
        signed = name == "prior_mean"
        if not bool(value.isfinite().all()) or (not signed and bool((value < 0).any())):
            least = "" if signed else "at least 0 and "
            raise ValueError(
                f"{name} of parameter {index} must be {least}finite, not {value.min():g} to {value.max():g}"
            )
