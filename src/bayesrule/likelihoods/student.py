"""Real numbers some of which are far off."""

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
from bayesrule.predictions import TailedReals, t_distribution, targets

UNSTARTED = (
    "noise or freedom is None: they have no value before matched(outputs, y) is called; or give numbers, noise=0.1, "
    "freedom=4.0"
)
LEAST, MOST = 2.1, 100.0
"""Degrees of freedom that are learnt: below 2 there is no variance, and from 100 on t is as good as normal."""
START = 6.0
"""Degrees of freedom to begin with: tails that a fit may make heavier or lighter."""
EDGE = 1e-4
"""Shares of the way from `LEAST` to `MOST` that a number which came to either end is taken for."""


@dataclass(frozen=True, eq=False)
class Student(Likelihood):
    """``y = f + noise · t_ν`` for outputs ``[B]`` or ``[B, D, ...]`` and targets of that shape, t_ν Student's t.

    Targets far off pull the outputs less than under normal noise. ``noise`` is the scale, in the units of the outputs;
    the standard deviation is ``noise · sqrt(ν/(ν − 2))``. ``freedom`` is ν. A number is known and stays. A tensor is
    learnt, one value per output, unless they are ``known``; ``None`` is one that `matched` has still to start. With
    u unconstrained, the learnt ν is ``2.1 + 97.9 σ(u)``. The Hessian is the Fisher information, the mean over y::

        hessian = diag((ν + 1) / ((ν + 3) noise²))

    >>> import torch
    >>> Student(noise=0.5, freedom=5.0).hessian(torch.zeros(1, 1))
    tensor([[[3.]]])
    """

    name: ClassVar[str] = "student"
    kind: ClassVar[Kind] = "reals"
    prior_scale: ClassVar[float | str] = "kaiming"

    noise: float | Tensor | None = None
    freedom: float | Tensor | None = None
    known: bool = False

    def __post_init__(self) -> None:
        self._scales()  # whose error is for the noise
        if not isinstance(self.freedom, float | int | Tensor | None):
            raise TypeError(f"freedom must be a number, a tensor or None: got {self.freedom!r}; pass float(freedom)")
        if isinstance(self.freedom, float | int) and not 2 < self.freedom < math.inf:
            raise ValueError(
                f"freedom must be finite degrees above 2, where y has a variance: got {self.freedom:g}; None learns it"
            )

    def check(self, outputs: Tensor, y: Tensor) -> Tensor:
        """Finite real numbers in the dtype of the outputs."""
        return targets.reals(y, single(outputs).shape).to(outputs.dtype)

    def log_prob(self, outputs: Tensor, y: Tensor) -> Tensor:
        """``log t_ν((y − f)/noise) − log noise``, summed over outputs."""
        noise, freedom = self._at(outputs)
        z = (y - single(outputs)) / noise
        return summed(t_distribution.log_density(z, freedom) - noise.log())

    def hessian(self, outputs: Tensor) -> Tensor:
        """Fisher information, diagonal."""
        noise, freedom = self._at(outputs)
        information = (freedom + 1) / ((freedom + 3) * noise.square())
        return diagonal(information.expand(single(outputs).shape).reshape(outputs.shape))

    def mean(self, outputs: Tensor) -> Tensor:
        """The outputs."""
        return single(outputs)

    def predict(self, outputs: Tensor) -> TailedReals:
        """Mixture of Student distributions, each with the noise."""
        return TailedReals(single(outputs, 2), *self._at(outputs))

    @property
    def rescales_targets(self) -> bool:
        """Yes, unless the noise is known, in the units of y."""
        return not isinstance(self.noise, float | int)

    def unknowns(self) -> dict[str, Tensor]:
        """``log_noise`` and ``freedom_logit``, of those that are not known."""
        if self.noise is None or self.freedom is None:
            raise ValueError(UNSTARTED)
        found = self._scales().unknowns()
        if self._learns_freedom:
            share = (torch.as_tensor(self.freedom) - LEAST) / (MOST - LEAST)
            found["freedom_logit"] = torch.logit(share, eps=EDGE)
        return found

    def with_unknowns(self, values: Mapping[str, Tensor]) -> Student:
        """The same with ``noise = exp(log_noise)`` and ``freedom = 2.1 + 97.9 σ(freedom_logit)``."""
        names = [name for name, learnt in self._learnt().items() if learnt]
        if sorted(values) != sorted(names):
            raise ValueError(f"values must be of {names} for {self}: got {sorted(values)}")
        noise, freedom = self.noise, self.freedom
        if "log_noise" in values:
            noise = values["log_noise"].exp()
        if "freedom_logit" in values:
            freedom = LEAST + (MOST - LEAST) * torch.sigmoid(values["freedom_logit"])
        return replace(self, noise=noise, freedom=freedom)

    def verify(self) -> None:
        """Noise is positive and finite, and degrees of freedom are above 2."""
        self._scales().verify()
        if self.freedom is None:
            raise ValueError(UNSTARTED)
        freedom = torch.as_tensor(self.freedom)
        if not bool(((freedom > 2) & freedom.isfinite()).all()):
            raise ValueError(f"freedom must be finite degrees above 2: got {freedom.tolist()}")

    def kept(self) -> Student:
        """The same with noise and freedom for known."""
        return replace(self, known=True)

    def matched(self, outputs: Tensor, y: Tensor, weight: Tensor | None = None) -> Student:
        """Six degrees of freedom to begin with, and the noise of which the standard deviation is that of residuals.

        See `Gaussian.matched`.
        """
        if self.known:
            return self
        freedom = self.freedom
        if not isinstance(freedom, float | int):
            given = START if freedom is None else freedom
            like = single(outputs)
            freedom = torch.as_tensor(given, dtype=like.dtype, device=like.device).expand(like.shape[1:]).clone()
        noise = self._scales().matched(outputs, y, weight).noise
        if self.noise is None and isinstance(noise, Tensor):
            degrees = torch.as_tensor(freedom, dtype=noise.dtype, device=noise.device)
            noise = noise * ((degrees - 2) / degrees).sqrt()
        return Student(noise, freedom)

    @classmethod
    def pooled(cls, members: Sequence[Likelihood]) -> Likelihood:
        """The noise and freedom of a mixture: ``noise² = mean of the members' noise²``, and the mean of 1/ν."""
        own = [member for member in members if isinstance(member, Student)]
        pooled = Gaussian.pooled([member._scales() for member in own])
        assert isinstance(pooled, Gaussian)
        freedoms = [member.freedom for member in own if isinstance(member.freedom, Tensor) and not member.known]
        freedom = own[0].freedom
        if freedoms:
            freedom = 1 / torch.stack(freedoms).reciprocal().mean(0)
        return replace(own[0], noise=pooled.noise, freedom=freedom)

    @property
    def _learns_freedom(self) -> bool:
        return not self.known and not isinstance(self.freedom, float | int)

    def _learnt(self) -> dict[str, bool]:
        return {"log_noise": not self._scales().known, "freedom_logit": self._learns_freedom}

    def _scales(self) -> Gaussian:
        """What is known of the noise, as of that of a normal distribution."""
        return Gaussian(self.noise, self.known)

    def _at(self, outputs: Tensor) -> tuple[Tensor, Tensor]:
        """Noise and freedom in the dtype and on the device of outputs."""
        if self.freedom is None:
            raise ValueError(UNSTARTED)
        freedom = torch.as_tensor(self.freedom, dtype=outputs.dtype, device=outputs.device)
        return self._scales().deviation(outputs), freedom
