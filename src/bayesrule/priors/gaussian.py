"""Independent normal weights."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from bayesrule.modules import Parameters, parameters
from bayesrule.priors.independent import Independent, Value


@dataclass(frozen=True, eq=False)
class Gaussian(Independent):
    """p(w) = Π_j N(w_j; mean_j, scale_j²).

    ``scale``: one number for all weights; a rule (``"fan-in"``, ``"glorot"``, ``"kaiming"``); or a mapping from the
    name of a parameter, or of a layer for all that is in it, to a number or a tensor (the longest name wins; ``""``
    is the rest). ``mean``: a number, or a mapping of the same kind; None is zero, and one for the weights of
    normalisation layers, which scale by one when they do nothing.

    >>> prior = Gaussian(scale="fan-in").resolve(nn.Linear(4, 2))
    >>> prior.scale
    {'weight': 0.5, 'bias': 1.0}
    """

    name: ClassVar[str] = "gaussian"

    def log_prob(self, parameters: Mapping[str, Tensor]) -> Tensor:
        """Σ_j −½((w_j − mean_j)/scale_j)² − log scale_j − ½ log 2π."""
        return _LogDensity.apply(*self.bound(parameters), *parameters.values())  # type: ignore[no-untyped-call]

    def divergence(self, means: Mapping[str, Tensor], stds: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """KL(N(m, s²)‖p) = Σ_j ½((m_j − mean_j)² + s_j²)/scale_j² − ½ − log(s_j/scale_j).

        >>> half = {"weight": torch.full((1, 4), 0.5), "bias": torch.full((1,), 0.5)}
        >>> Gaussian(0.5, mean=0.5).resolve(nn.Linear(4, 1)).divergence(half, half)
        {'weight': tensor(0.), 'bias': tensor(0.)}
        """
        values = _Divergence.apply(*self.bound(means), *means.values(), *stds.values())  # type: ignore[no-untyped-call]
        return dict(zip(means, values.unbind(), strict=True))

    def sample(self, module: nn.Module, generator: torch.Generator | None = None) -> Parameters:
        """One draw of all the module's parameters."""
        prior = self.resolve(module)
        assert isinstance(prior.scale, Mapping)
        assert isinstance(prior.mean, Mapping)
        return {
            name: prior.mean[name] + prior.scale[name] * torch.randn(w.shape, generator=generator, dtype=w.dtype)
            for name, w in parameters(module).items()
        }


def _centred(w: Tensor, mean: Value) -> Tensor:
    return w if isinstance(mean, float) and mean == 0.0 else w - mean


def _log_total(scale: Value, count: int) -> float:
    """Σ_j log scale_j over ``count`` weights."""
    return count * (math.log(scale) if isinstance(scale, float) else float(scale.log().mean()))


class _LogDensity(torch.autograd.Function):
    """Σ log N(w; mean, scale²) and its gradient (mean − w)/scale² as one node, over all parameters at a time."""

    @staticmethod
    def forward(ctx: Any, scales: list[Value], means: list[Value], *weights: Tensor) -> Tensor:
        """The value; the gradient is kept for the way back."""
        total = weights[0].new_zeros(())
        pulls = []
        for w, scale, mean in zip(weights, scales, means, strict=True):
            centred = _centred(w, mean)
            pulls.append(centred * -(scale**-2))
            constant = _log_total(scale, w.numel()) + 0.5 * w.numel() * math.log(2 * math.pi)
            total += 0.5 * torch.dot(centred.flatten(), pulls[-1].flatten()) - constant
        ctx.save_for_backward(*pulls)
        return total

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Any, ...]:
        """The gradient times what comes from above."""
        return None, None, *torch._foreach_mul(ctx.saved_tensors, grads[0])


class _Divergence(torch.autograd.Function):
    """KL(N(m, s²)‖N(mean, scale²)) of each parameter as one node; gradients (m − mean)/scale² and s/scale² − 1/s."""

    @staticmethod
    def forward(ctx: Any, scales: list[Value], means: list[Value], *q: Tensor) -> Tensor:
        """One value for each parameter: ``q`` holds all means of q, then all its deviations."""
        ctx.scales, ctx.means = scales, means
        ctx.save_for_backward(*q)
        values = []
        for m, s, scale, mean in zip(q[: len(scales)], q[len(scales) :], scales, means, strict=True):
            away, wide = (_centred(m, mean) / scale).flatten(), (s / scale).flatten()
            values.append(0.5 * (torch.dot(away, away) + torch.dot(wide, wide) - m.numel()) - wide.log().sum())
        return torch.stack(values)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Any, ...]:
        """The gradients times what comes from above."""
        q, count = ctx.saved_tensors, len(ctx.scales)
        above = grads[0].unbind()
        to_m = [
            _centred(m, mean) * (g / scale**2)
            for m, g, scale, mean in zip(q[:count], above, ctx.scales, ctx.means, strict=True)
        ]
        to_s = [(s / scale**2 - 1 / s) * g for s, g, scale in zip(q[count:], above, ctx.scales, strict=True)]
        return None, None, *to_m, *to_s
