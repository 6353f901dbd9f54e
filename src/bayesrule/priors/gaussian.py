"""Independent normal weights."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from bayesrule.modules import Parameters, flatten, parameters
from bayesrule.priors.independent import Independent, Value
from bayesrule.structures import Diagonal


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
    widening: ClassVar[float] = 0.5  # exp(−w²/2s²)^{1/T} has the variance T·s²

    def log_prob(self, parameters: Mapping[str, Tensor]) -> Tensor:
        """Σ_j −½((w_j − mean_j)/scale_j)² − log scale_j − ½ log 2π."""
        return _LogDensity.apply(*self.bound(parameters), *parameters.values())  # type: ignore[no-untyped-call]

    def divergence(self, mean: Tensor, std: Tensor, like: Mapping[str, Tensor]) -> Tensor:
        """KL(N(m, s²)‖p) = Σ_j ½((m_j − mean_j)² + s_j²)/scale_j² − ½ − log(s_j/scale_j).

        >>> half, layer = torch.full((5,), 0.5), nn.Linear(4, 1)
        >>> Gaussian(0.5, mean=0.5).resolve(layer).divergence(half, half, dict(layer.named_parameters()))
        tensor(0.)
        """
        segments = _segments(*self.bound(like), [w.numel() for w in like.values()])
        return _Divergence.apply(segments, mean, std)  # type: ignore[no-untyped-call]

    def gaussian(self, parameters: Mapping[str, Tensor]) -> tuple[Parameters, Diagonal]:
        """The means, and 1/scale² on a diagonal.

        >>> Gaussian(0.5).resolve(nn.Linear(1, 1)).gaussian({"bias": torch.zeros(1)})[1].values
        tensor([4.], dtype=torch.float64)
        """
        few, precisions = self.mean_field(parameters)
        means = {name: few[name].expand(w.shape) for name, w in parameters.items()}
        filled = {name: precisions[name].expand(w.shape) for name, w in parameters.items()}
        return means, Diagonal(flatten(filled))

    def mean_field(self, parameters: Mapping[str, Tensor]) -> tuple[Parameters, Parameters]:
        """The means and 1/scale², one number where the prior has one for all weights of a parameter."""
        means: Parameters = {}
        precisions: Parameters = {}
        for (name, w), scale, mean in zip(parameters.items(), *self.bound(parameters), strict=True):
            means[name] = torch.as_tensor(mean, dtype=torch.float64, device=w.device)
            precisions[name] = torch.as_tensor(scale, dtype=torch.float64, device=w.device) ** -2
        return means, precisions

    def sample(self, module: nn.Module, generator: torch.Generator | None = None) -> Parameters:
        """One draw of all the module's parameters."""
        prior = self.resolve(module)
        assert isinstance(prior.scale, Mapping)
        assert isinstance(prior.mean, Mapping)
        return {
            name: prior.mean[name]
            + prior.scale[name] * torch.randn(w.shape, generator=generator, dtype=w.dtype, device=w.device)
            for name, w in parameters(module).items()
        }


def _centred(w: Tensor, mean: Value) -> Tensor:
    if isinstance(mean, Tensor):
        if mean.numel() == w.numel():  # w may be flat
            mean = mean.reshape(w.shape)
        return w - mean
    if mean == 0.0:
        return w
    return w - mean


def _log_total(scale: Value, count: int) -> float:
    """Σ_j log scale_j over ``count`` weights."""
    return count * (math.log(scale) if isinstance(scale, float) else float(scale.log().mean()))


class _Segment(NamedTuple):
    """A part of a flat vector of weights that have one scale and one mean, or tensors of them."""

    part: slice
    scale: Value
    mean: Value


def _segments(scales: list[Value], means: list[Value], sizes: list[int]) -> list[_Segment]:
    """The fewest segments: neighbours with the same two numbers are one, which saves calls of kernels."""
    segments: list[_Segment] = []
    end, before = 0, None
    for scale, mean, size in zip(scales, means, sizes, strict=True):
        start, end = end, end + size
        numbers = (scale, mean) if isinstance(scale, float) and isinstance(mean, float) else None
        if numbers is not None and numbers == before:
            start = segments.pop().part.start
        segments.append(_Segment(slice(start, end), scale, mean))
        before = numbers
    return segments


def _squares(w: Tensor, scale: Value) -> Tensor:
    """Σ_j (w_j/scale_j)² of a flat w."""
    if isinstance(scale, float):
        return torch.dot(w, w) * scale**-2
    return (w / scale.flatten()).square().sum()


class _LogDensity(torch.autograd.Function):
    """Σ log N(w; mean, scale²) and its gradient (mean − w)/scale² as one node, over all parameters at a time.

    A fit asks for it at every step: as a chain of torch's operations it would take longer than a small network's pass.
    """

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
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Any, ...]:
        """The gradient times what comes from above."""
        return None, None, *torch._foreach_mul(ctx.saved_tensors, grads[0])


class _Divergence(torch.autograd.Function):
    """KL(N(m, s²)‖N(mean, scale²)) of flat m and s as one node; gradients (m − mean)/scale² and s/scale² − 1/s."""

    @staticmethod
    def forward(ctx: Any, segments: list[_Segment], m: Tensor, s: Tensor) -> Tensor:
        """The value, a segment at a time."""
        ctx.segments = segments
        ctx.save_for_backward(m, s)
        # s of all at once and the rest by segment: most priors have a handful, and a KL is taken at every step
        total = -s.log().sum()
        for part, scale, mean in segments:
            size = part.stop - part.start
            squares = _squares(_centred(m[part], mean), scale) + _squares(s[part], scale)
            total += 0.5 * (squares - size) + _log_total(scale, size)
        return total

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Any, ...]:
        """The gradients times what comes from above."""
        (m, s), above = ctx.saved_tensors, grads[0]
        to_m, to_s = torch.empty_like(m), -above / s
        for part, scale, mean in ctx.segments:
            if isinstance(scale, Tensor):
                scale = scale.flatten()
            pull = above * scale**-2
            torch.mul(_centred(m[part], mean), pull, out=to_m[part])
            to_s[part].addcmul_(s[part], pull)
        return None, to_m, to_s
