"""The state of many parameters in a few flat vectors."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor


class Flat:
    """Parameters of one group, dtype and device, and vectors over all of them.

    ``precision`` is h + δ, ``momentum`` the mean gradient over steps; both are in the optimiser's state by parameter,
    as views. The others are at work within a step: ``noise`` ε, ``inverse`` 1/√(h + δ), ``delta`` ε/√(h + δ),
    ``weights`` the drawn weights, ``seen`` what the draws say of the curvature.
    """

    def __init__(
        self, group: dict[str, Any], params: Sequence[Tensor], names: Sequence[str], state: dict[Tensor, Any]
    ) -> None:
        self.group, self.params, self.names = group, list(params), list(names)
        self.sizes = [p.numel() for p in self.params]
        first = self.params[0]
        self.decay: float | Tensor = 0.0
        self.precision, self.momentum, self.noise, self.inverse, self.delta, self.weights, self.seen = (
            torch.zeros(sum(self.sizes), dtype=first.dtype, device=first.device) for _ in range(7)
        )
        self._views: dict[int, list[Tensor]] = {}
        self._own = [vector for vector in vars(self).values() if isinstance(vector, Tensor)]  # so that no id is reused
        self._views = {id(vector): self.views(vector) for vector in self._own}
        self.generator = torch.Generator(first.device)
        self._seed = -1  # what the noise was drawn from
        self._decays: tuple[int, float] | None = None  # what the decay was made from
        self._centre: tuple[Any, float | Tensor] | None = None
        self._adopt(state)

    def spread(self, values: float | Sequence[Tensor]) -> float | Tensor:
        """A number for all weights as it is; a tensor for each parameter of the group as one vector."""
        if not isinstance(values, Sequence):
            return values
        own = {id(p): value for p, value in zip(self.group["params"], values, strict=True)}
        return torch.cat([own[id(p)].to(p).expand(p.shape).reshape(-1) for p in self.params])

    def _adopt(self, state: dict[Tensor, Any]) -> None:
        """Take over what the state says of each parameter, and let the state be views from now on."""
        known_decay = [state[p]["decay"] for p in self.params if state.get(p)]
        if known_decay and isinstance(known_decay[0], Tensor):
            self.decay = torch.cat([state[p]["decay"].reshape(-1) for p in self.params])
        elif known_decay:
            self.decay = known_decay[0]
        self.precision.fill_(self.group["hess_init"]).add_(self.decay)
        for p, precision, momentum in zip(
            self.params, self.views(self.precision), self.views(self.momentum), strict=True
        ):
            if known := state.get(p):
                momentum.copy_(known["momentum"])
                precision.copy_(known["precision"])
                if not isinstance(self.decay, Tensor) and known["decay"] != self.decay:  # frozen while others went on
                    precision.add_(self.decay - known["decay"]).clamp_min_(0.5 * float(known["precision"].min()))
            state[p] = {"precision": precision, "momentum": momentum, "decay": self.decay}
        self._state = [state[p] for p in self.params]
        self._note_decay()

    def _note_decay(self) -> None:
        """The decay of each parameter, where the optimiser's state is saved from."""
        parts = self.views(self.decay) if isinstance(self.decay, Tensor) else [self.decay] * len(self.params)
        for entry, part in zip(self._state, parts, strict=True):
            entry["decay"] = part

    def views(self, vector: Tensor) -> list[Tensor]:
        """The vector in the shapes of the parameters."""
        known = self._views.get(id(vector))
        return known or [v.view(p.shape) for v, p in zip(torch.split(vector, self.sizes), self.params, strict=True)]

    def decay_to(self, weight_decay: float | Sequence[Tensor], factor: float) -> None:
        """δ = factor · weight decay, under the same h; where that would not leave h + δ positive, h + δ stays."""
        if (id(weight_decay), factor) == self._decays:  # tensors are not compared at every step
            return
        self._decays, self._kept = (id(weight_decay), factor), weight_decay  # kept, so that the id is not reused
        base = self.spread(weight_decay)
        moved = self.precision + (base * factor - self.decay)
        torch.where(moved > 0, moved, self.precision, out=self.precision)
        self.decay = base * factor
        self._note_decay()

    def draw(self, seed: int, offset: int, negative: bool) -> None:
        """ε/√(h + δ), with ε the noise of a seed from some place on, or its negative."""
        if seed != self._seed:
            self._seed = seed
            self.noise.normal_(generator=self.generator.manual_seed(seed))
        torch.rsqrt(self.precision, out=self.inverse)
        start, left = offset % len(self.noise), len(self.noise) - offset % len(self.noise)
        torch.mul(self.noise[start:], self.inverse[:left], out=self.delta[:left])
        torch.mul(self.noise[:start], self.inverse[left:], out=self.delta[left:])
        if negative:
            self.delta.neg_()

    def perturb(self, scale: float) -> None:
        """Let w = m + scale·ε/√(h + δ) stand for the parameters."""
        for p, w, d in zip(self.params, self.views(self.weights), self.views(self.delta), strict=True):
            torch.add(p.data, d, alpha=scale, out=w)
            p.data = w

    def grads(self) -> list[Tensor]:
        """The gradients of all parameters; zero for one that the loss does not depend on."""
        found = []
        for p, name in zip(self.params, self.names, strict=True):
            grad = torch.zeros_like(p) if p.grad is None else p.grad
            if grad.layout != torch.strided:
                raise TypeError(f"the gradient of parameter {name!r} is sparse: use Embedding(..., sparse=False)")
            found.append(grad)
        return found

    def average(self, seen: Tensor, draws: int) -> None:
        """Take in the ``draws``-th draw: gradients and what is seen are averages over draws from now on."""
        if draws == 1:
            if seen is self.delta:
                self.delta = self.seen  # whose memory is free
            self.seen, self._means = seen, [grad.detach() for grad in self.grads()]
        else:
            torch._foreach_lerp_(self._means, self.grads(), 1 / draws)
            self.seen.lerp_(seen, 1 / draws)
        for p, mean in zip(self.params, self._means, strict=True):
            p.grad = mean

    def descend(self, direction: Tensor, by: Tensor, rate: float | Tensor, radius: float) -> None:
        """m ← m − rate·clip(direction/by, radius)."""
        if isinstance(rate, Tensor):
            step = direction.div_(by).clamp_(-radius, radius).mul_(rate)
            for p, d in zip(self.params, self.views(step), strict=True):
                p.sub_(d)
        elif radius < float("inf"):
            direction = direction.div_(by).clamp_(-radius, radius)
            for p, d in zip(self.params, self.views(direction), strict=True):
                p.add_(d, alpha=-rate)
        else:
            for p, d, b in zip(self.params, self.views(direction), self.views(by), strict=True):
                p.addcdiv_(d, b, value=-rate)

    @property
    def centre(self) -> float | Tensor:
        """The prior's mean, one number or a vector."""
        given = self.group["prior_mean"]
        if self._centre is None or self._centre[0] is not given:
            self._centre = given, self.spread(given)
        return self._centre[1]

    def pulled(self, slopes: Sequence[Tensor], pull: float | Tensor) -> Tensor:
        """slopes + pull·(m − prior_mean), in memory that is free after a block."""
        outs, centre = self.views(self.weights), self.centre
        if not isinstance(pull, Tensor) and not isinstance(centre, Tensor):
            for p, g, out in zip(self.params, slopes, outs, strict=True):
                torch.add(g, p, alpha=pull, out=out)
            return self.weights.sub_(pull * centre) if centre else self.weights
        for p, out in zip(self.params, outs, strict=True):
            out.copy_(p)
        self.weights.sub_(centre).mul_(pull)
        for g, out in zip(slopes, outs, strict=True):
            out.add_(g)
        return self.weights


def alike(groups: Sequence[dict[str, Any]]) -> Iterator[tuple[dict[str, Any], list[Tensor], list[str]]]:
    """Each group with its trained parameters and their names, those of one dtype and device together.

    Without names of their own, parameters are called by their number.
    """
    number = 0
    for group in groups:
        params = group["params"]
        names = group.get("param_names") or [str(place) for place in range(number, number + len(params))]
        number += len(params)
        kinds: dict[Any, tuple[list[Tensor], list[str]]] = {}
        for p, name in zip(params, names, strict=True):
            if p.requires_grad:
                alike, called = kinds.setdefault((p.dtype, p.device), ([], []))
                alike.append(p)
                called.append(name)
        for alike, called in kinds.values():
            yield group, alike, called
