"""Positive real numbers with noise in proportion to their size."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from torch import Tensor

from bayesrule.data import Kind
from bayesrule.likelihoods.base import Likelihood, diagonal, single, summed
from bayesrule.likelihoods.gaussian import Gaussian
from bayesrule.predictions import PositiveReals, targets

UNPLACED = "loc or scale is None: they have no value before placed(y) is called; or give numbers, loc=0.0, scale=1.0"


@dataclass(frozen=True, eq=False)
class LogNormal(Likelihood):
    """``log y ~ N(loc + scale · f, noise²)`` for outputs ``[B]`` or ``[B, D, ...]`` and positive targets of that shape.

    So that outputs of order one fit targets of any size, ``loc`` and ``scale`` are mean and standard deviation of log y
    in the training data, where they are None; they are numbers, and not learnt. ``noise`` is the standard deviation of
    log y, by and large the noise as a share of y. A number is known and stays; a tensor is learnt, one value per
    output, unless it is ``known``; ``None`` is one that `matched` has still to start, as it does for `Gaussian`.

    ::

        p(y|f)  = N(log y; loc + scale · f, noise²) / y
        hessian = diag(scale² / noise²)

    >>> import torch
    >>> likelihood = LogNormal(noise=0.5, loc=1.0, scale=2.0)
    >>> likelihood.hessian(torch.zeros(1, 1))
    tensor([[[16.]]])
    >>> likelihood.predict(torch.zeros(1, 1, 1)).quantile(0.5)
    tensor([2.7183])
    """

    name: ClassVar[str] = "log-normal"
    kind: ClassVar[Kind] = "reals"
    prior_scale: ClassVar[float | str] = "kaiming"

    noise: float | Tensor | None = None
    known: bool = False
    loc: float | Tensor | None = None
    scale: float | Tensor | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "known", self._logs().known)
        for name in ("loc", "scale"):
            value = getattr(self, name)
            if not isinstance(value, float | int | Tensor | None):
                raise TypeError(f"{name} must be a number, a tensor or None: got {value!r}; pass float({name})")
        if isinstance(self.loc, float | int) and not math.isfinite(self.loc):
            raise ValueError(f"loc must be a finite number: got {self.loc:g}; None takes the mean of log y")
        if isinstance(self.scale, float | int) and not 0 < self.scale < math.inf:
            raise ValueError(
                f"scale must be positive and finite: got {self.scale:g}; None takes the deviation of log y"
            )

    def check(self, outputs: Tensor, y: Tensor) -> Tensor:
        """Positive real numbers in the dtype of the outputs."""
        shape = single(outputs).shape
        # The dtype first: what is too small for it is zero there.
        return targets.positives(targets.reals(y, shape).to(outputs.dtype), shape)

    def placed(self, y: Tensor) -> LogNormal:
        """``loc`` and ``scale`` still to be set become mean and standard deviation of log y (1 where y is constant)."""
        if self.loc is not None and self.scale is not None:
            return self
        log_y = y.double().log()
        std, mean = torch.std_mean(log_y - log_y[:1], 0, correction=0)  # from the first on: a constant has none at all
        mean = (mean + log_y[0]).to(y.dtype)
        std = std.masked_fill(std <= torch.finfo(y.dtype).eps, 1.0).to(y.dtype)
        return replace(self, loc=_first(self.loc, mean), scale=_first(self.scale, std))

    def log_prob(self, outputs: Tensor, y: Tensor) -> Tensor:
        """``−½ ((log y − loc − scale f)/noise)² − log noise − ½ log 2π − log y``, summed over outputs."""
        log_y = y.log()
        return self._logs().log_prob(self._centres(outputs), log_y) - summed(log_y)

    def peak(self, y: Tensor) -> Tensor:
        """``−log noise − ½ log 2π − log y``, summed over outputs."""
        return self._logs().peak(y) - summed(y.log())

    def hessian(self, outputs: Tensor) -> Tensor:
        """``diag(scale² / noise²)``."""
        f = single(outputs)
        precision = (self._units(outputs)[1] / self._noise(outputs)).square().expand(f.shape)
        return diagonal(precision.reshape(outputs.shape))

    def mean(self, outputs: Tensor) -> Tensor:
        """``exp(loc + scale f + ½ noise²)``."""
        return (self._centres(outputs) + self._noise(outputs).square() / 2).exp()

    def predict(self, outputs: Tensor) -> PositiveReals:
        """Mixture of log-normal distributions, each with the noise."""
        return PositiveReals(self._centres(outputs, 2), self._noise(outputs))

    def unknowns(self) -> dict[str, Tensor]:
        """``log_noise``, unless the noise is known."""
        return self._logs().unknowns()

    def with_unknowns(self, values: Mapping[str, Tensor]) -> LogNormal:
        """The same with ``noise = exp(log_noise)``."""
        return self._with(self._logs().with_unknowns(values))

    def verify(self) -> None:
        """Noise and scale are positive and finite, loc is finite."""
        self._logs().verify()
        if self.loc is None or self.scale is None:
            raise ValueError(UNPLACED)
        loc, scale = torch.as_tensor(self.loc), torch.as_tensor(self.scale)
        if not bool(loc.isfinite().all()) or not bool(((scale > 0) & scale.isfinite()).all()):
            raise ValueError(
                f"loc must be finite, and scale positive and finite: got loc={loc.tolist()} and scale={scale.tolist()}"
            )

    def kept(self) -> LogNormal:
        """The same with its noise for known."""
        return self._with(self._logs().kept())

    def matched(self, outputs: Tensor, y: Tensor, weight: Tensor | None = None) -> LogNormal:
        """Noise still to be started becomes ``sqrt(mean (log y − loc − scale f)²)``; see `Gaussian.matched`."""
        y = self.check(outputs, y)
        here = self.placed(y)
        loc, scale = here._units(outputs)  # once to where the outputs are, and not in every step
        logs = here._logs().matched(here._centres(outputs), y.log(), weight)
        return LogNormal(logs.noise, logs.known, loc, scale)

    @classmethod
    def pooled(cls, members: Sequence[Likelihood]) -> Likelihood:
        """The noise of a mixture: ``noise² = mean of the members' noise²``; all have one loc and scale."""
        own = [member for member in members if isinstance(member, LogNormal)]
        pooled = Gaussian.pooled([member._logs() for member in own])
        assert isinstance(pooled, Gaussian)
        return own[0]._with(pooled)

    def _logs(self) -> Gaussian:
        """The likelihood of log y given loc + scale · f."""
        return Gaussian(self.noise, self.known)

    def _with(self, logs: Gaussian) -> LogNormal:
        return LogNormal(logs.noise, logs.known, self.loc, self.scale)

    def _noise(self, outputs: Tensor) -> Tensor:
        return self._logs().deviation(outputs)

    def _units(self, outputs: Tensor) -> tuple[Tensor, Tensor]:
        if self.loc is None or self.scale is None:
            raise ValueError(UNPLACED)
        loc = torch.as_tensor(self.loc, dtype=outputs.dtype, device=outputs.device)
        return loc, torch.as_tensor(self.scale, dtype=outputs.dtype, device=outputs.device)

    def _centres(self, outputs: Tensor, dim: int = 1) -> Tensor:
        """loc + scale · f, in the shape of y."""
        loc, scale = self._units(outputs)
        return loc + scale * single(outputs, dim)


def _first(given: float | Tensor | None, found: Tensor) -> float | Tensor:
    return found if given is None else given
