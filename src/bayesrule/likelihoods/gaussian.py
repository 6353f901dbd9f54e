"""Real numbers with the same noise everywhere."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from bayesrule.data import Kind
from bayesrule.likelihoods.base import Likelihood, diagonal, mean_over, single, summed
from bayesrule.predictions import Reals, targets

UNSTARTED = "noise is None: it has no value before matched(outputs, y) is called; or give a number, noise=0.1"


@dataclass(frozen=True, eq=False)
class Gaussian(Likelihood):
    """``p(y|f) = N(y; f, noise²)`` for outputs ``[B]`` or ``[B, D, ...]`` and targets of that shape.

    ``noise`` is the standard deviation, in the units of the outputs. A number is known and stays. A tensor is learnt,
    one value per output, and holds the present value, unless it is ``known``; ``None`` is one that `matched` has still
    to start.

    ::

        hessian = diag(1 / noise²)

    >>> import torch
    >>> known = Gaussian(noise=0.5)
    >>> known.hessian(torch.zeros(1, 1))
    tensor([[[4.]]])
    >>> learnt = Gaussian().matched(torch.zeros(4, 1), torch.tensor([1.0, -1.0, 1.0, -1.0]))
    >>> learnt, learnt.unknowns()
    (Gaussian(noise=tensor(1.), known=False), {'log_noise': tensor(0.)})
    """

    name: ClassVar[str] = "gaussian"
    kind: ClassVar[Kind] = "reals"
    prior_scale: ClassVar[float | str] = "kaiming"

    noise: float | Tensor | None = None
    known: bool = False

    def __post_init__(self) -> None:
        # A number is known by being one; a frozen dataclass lets its fields be set in no other way.
        object.__setattr__(self, "known", self.known or isinstance(self.noise, float | int))
        if not isinstance(self.noise, float | int | Tensor | None):
            raise TypeError(f"noise must be a number, a tensor or None: got {self.noise!r}; pass float(noise)")
        if isinstance(self.noise, float | int) and not 0 < self.noise < math.inf:
            raise ValueError(f"noise must be a positive standard deviation: got {self.noise:g}; None learns it")

    def check(self, outputs: Tensor, y: Tensor) -> Tensor:
        """Finite real numbers in the dtype of the outputs."""
        return targets.reals(y, single(outputs).shape).to(outputs.dtype)

    def log_prob(self, outputs: Tensor, y: Tensor) -> Tensor:
        """``−½ ((y − f)/noise)² − log noise − ½ log 2π``, summed over outputs."""
        noise = self.deviation(outputs)
        z = (y - single(outputs)) / noise
        return summed(-z.square() / 2 - noise.log() - math.log(2 * math.pi) / 2)

    def peak(self, y: Tensor) -> Tensor:
        """``−log noise − ½ log 2π``, summed over outputs: that of outputs which meet y."""
        return summed((-self.deviation(y).log() - math.log(2 * math.pi) / 2).expand(y.shape))

    def hessian(self, outputs: Tensor) -> Tensor:
        """``diag(1 / noise²)``."""
        precision = self.deviation(outputs).pow(-2).expand(single(outputs).shape)
        return diagonal(precision.reshape(outputs.shape))

    def mean(self, outputs: Tensor) -> Tensor:
        """The outputs."""
        return single(outputs)

    def predict(self, outputs: Tensor) -> Reals:
        """Mixture of normal distributions, each with the noise."""
        return Reals(single(outputs, 2), self.deviation(outputs))

    @property
    def rescales_targets(self) -> bool:
        """Yes, unless the noise is known, in the units of y."""
        return not isinstance(self.noise, float | int)

    def unknowns(self) -> dict[str, Tensor]:
        """``log_noise``, unless the noise is known."""
        if self.noise is None:
            raise ValueError(UNSTARTED)
        if self.known:
            return {}
        return {"log_noise": torch.as_tensor(self.noise).log()}

    def verify(self) -> None:
        """Noise is positive and finite."""
        if self.noise is None:
            raise ValueError(UNSTARTED)
        noise = torch.as_tensor(self.noise)
        if not noise.is_floating_point() or not bool(((noise > 0) & noise.isfinite()).all()):
            raise ValueError(f"noise must be positive and finite standard deviations: got {noise.tolist()}")

    def kept(self) -> Gaussian:
        """The same with its noise for known."""
        return Gaussian(self.noise, known=True)

    def with_unknowns(self, values: Mapping[str, Tensor]) -> Gaussian:
        """The same with ``noise = exp(log_noise)``."""
        names = []
        if not self.known:
            names.append("log_noise")
        if sorted(values) != names:
            raise ValueError(f"values must be of {names} for noise={self.noise}: got {sorted(values)}")
        if not values:
            return self
        return Gaussian(values["log_noise"].exp())

    def matched(self, outputs: Tensor, y: Tensor, weight: Tensor | None = None) -> Gaussian:
        """Noise still to be started becomes the most probable one for these outputs, ``sqrt(mean (y − f)²)``.

        It is kept above a thousandth of the standard deviation of y (of 1 where y is constant).
        """
        if self.known:
            return self
        outputs, y = single(outputs), self.check(outputs, y)
        if self.noise is not None:
            return Gaussian(_start(torch.as_tensor(self.noise).to(outputs), outputs.shape[1:]))
        # A network that meets every y here would start without noise, and with an infinite log-likelihood.
        spread = y.std(0, correction=0)
        floor = 1e-3 * torch.where(spread > 0, spread, torch.ones_like(spread))
        return Gaussian(mean_over((y - outputs).square(), weight).sqrt().maximum(floor).detach())

    @classmethod
    def pooled(cls, members: Sequence[Likelihood]) -> Likelihood:
        """The noise of a mixture: ``noise² = mean of the members' noise²``."""
        noises = []
        for member in members:
            if isinstance(member, Gaussian) and isinstance(member.noise, Tensor) and not member.known:
                noises.append(member.noise)
        if not noises:
            return members[0]
        return cls(torch.stack(noises).square().mean(0).sqrt())  # of a mixture variances average, not deviations

    def deviation(self, outputs: Tensor) -> Tensor:
        """The noise in the dtype and on the device of outputs."""
        if self.noise is None:
            raise ValueError(UNSTARTED)
        return torch.as_tensor(self.noise, dtype=outputs.dtype, device=outputs.device)


def _start(noise: Tensor, shape: torch.Size) -> Tensor:
    if not (noise > 0).all():
        raise ValueError(f"noise must be positive standard deviations: got {noise.tolist()}")
    if noise.numel() == 1:
        noise = noise.reshape(())
    if noise.ndim and noise.shape != shape:
        raise ValueError(f"noise must be one value or one per output {list(shape)}: got {list(noise.shape)}")
    return noise.expand(shape).clone()
