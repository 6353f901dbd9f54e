"""What families of one moved and stretched shape have in common."""

from __future__ import annotations

import inspect
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

CHECKED = 7  # values between low and high
AT_ONCE = 256  # values of μ in a quadrature, so that it stays in the cache
Scale = float | Tensor


@dataclass(frozen=True)
class Translation(ABC):
    """What all families have in common; methods take ν as ``scale``, by default that of a family with a fixed one.

    >>> from bayesrule.penalties.translations import Gaussian
    >>> family = Gaussian(0.5)
    >>> round(family.entropy(), 6) == round(0.5 * math.log(2 * math.pi * math.e * 0.25), 6)
    True
    >>> [round(nu, 3) for nu in Gaussian((0.1, 10)).scales]
    [0.1, 0.215, 0.464, 1.0, 2.154, 4.642, 10.0]
    """

    order: ClassVar[float] = math.inf  # the characteristic function falls off as frequency^−order; nan: not known
    scale: float | Sequence[float] = 1.0

    def __post_init__(self) -> None:
        fixed = np.ndim(self.scale) == 0
        try:
            given = tuple(float(nu) for nu in ([self.scale] if fixed else self.scale))  # type: ignore[union-attr, arg-type]
        except (TypeError, ValueError):
            given = ()
        if not given or not all(math.isfinite(nu) and nu > 0 for nu in given) or sorted(set(given)) != list(given):
            raise ValueError(
                f"scale must be a positive number (fixed) or rising positive numbers such as (0.1, 3.0) (trained), "
                f"not {self.scale}"
            )
        object.__setattr__(self, "scale", given[0] if fixed else given)

    @property
    def trained(self) -> bool:
        """Whether ν takes more than one value."""
        return not isinstance(self.scale, int | float)

    @property
    def scales(self) -> tuple[float, ...]:
        """The values of ν on which statements are checked, smallest first."""
        if isinstance(self.scale, int | float):
            return (float(self.scale),)
        if len(self.scale) != 2:
            return tuple(map(float, self.scale))
        low, high = self.scale
        # Even steps of the logarithm; the last is not computed, so that it is the end to the bit.
        inside = [low * (high / low) ** (index / (CHECKED - 1)) for index in range(CHECKED - 1)]
        return (*inside, float(high))

    def chosen(self, scale: Scale | None) -> Scale:
        """A ν that was given, or the fixed one."""
        if scale is not None:
            return scale
        if self.trained:
            raise ValueError(f"this family's scale is trained: say at which, between {self.scales[0]} and the rest")
        return self.scales[0]

    def log_density(self, x: Tensor, scale: Scale | None = None) -> Tensor:
        """log β_{0,ν}(x)."""
        nu = self.chosen(scale)
        return self.shape(x / nu) - torch.as_tensor(nu, dtype=x.dtype).log()

    def characteristic(self, k: Tensor, scale: Scale | None = None) -> Tensor:
        """E exp(ikx): real for a symmetric shape, else complex."""
        return self.spectrum(k * self.chosen(scale))

    def entropy(self, scale: Scale | None = None) -> Scale:
        """−∫ β_{0,ν} log β_{0,ν}."""
        nu = self.chosen(scale)
        if isinstance(nu, Tensor):
            return self.unit_entropy() + nu.log()
        return self.unit_entropy() + math.log(nu)

    def moment(self, order: int, scale: Scale | None = None) -> Scale:
        """E x^order; inf where it does not exist."""
        return self.power(order) * self.chosen(scale) ** order

    def sample(
        self, shape: Sequence[int], scale: Scale | None = None, generator: torch.Generator | None = None
    ) -> Tensor:
        """Independent draws of β_{0,ν}."""
        return self.draw(tuple(shape), generator) * self.chosen(scale)

    def absolute(self, mu: Tensor, scale: Scale) -> Tensor:
        """E|μ + νε| = ±(μ + ν E ε) + 2ν ∫ s β(−m ∓ s) ds over s > 0 with m = μ/ν and ± its sign: no kink is crossed."""
        ratio = mu / scale
        side = torch.where(ratio < 0, -1.0, 1.0).to(ratio)
        s, spacing = _half_line()
        s, spacing = s.to(mu.device), spacing.to(mu.device)
        parts = []
        for m, sign in zip(
            torch.split(ratio.reshape(-1), AT_ONCE), torch.split(side.reshape(-1), AT_ONCE), strict=True
        ):
            inside = self.shape(-m[:, None] - sign[:, None] * s).exp() * s * spacing
            parts.append(2 * inside.sum(-1))
        return scale * (side * (ratio + self.power(1)) + torch.cat(parts).reshape(ratio.shape))

    @abstractmethod
    def shape(self, x: Tensor) -> Tensor:
        """log β(x) at ν = 1."""

    @abstractmethod
    def spectrum(self, k: Tensor) -> Tensor:
        """The characteristic function at ν = 1."""

    @abstractmethod
    def unit_entropy(self) -> float:
        """The entropy at ν = 1."""

    @abstractmethod
    def power(self, order: int) -> float:
        """E x^order at ν = 1."""

    @abstractmethod
    def nodes(self, count: int) -> tuple[Tensor, Tensor]:
        """Points and weights, which sum to one: Σ_i weight_i f(x_i) ≈ E f(x) at ν = 1."""

    @abstractmethod
    def draw(self, shape: tuple[int, ...], generator: torch.Generator | None) -> Tensor:
        """Independent draws at ν = 1."""


@lru_cache(maxsize=1)
def _half_line() -> tuple[Tensor, Tensor]:
    """Points s > 0 and their spacing: equal steps of t in s = exp(π/2 sinh t), for any fall at both ends."""
    t = torch.linspace(-4, 5, 451, dtype=torch.float64)
    s = (math.pi / 2 * t.sinh()).exp()
    return s, s * math.pi / 2 * t.cosh() * float(t[1] - t[0])


def takes_two(function: Callable[..., object], called: str) -> bool:
    """Whether a function has a second argument that it is meant to be given: one without a default, or so called.

    >>> takes_two(lambda mu, nu: mu, "nu"), takes_two(lambda mu, delta=1.0: mu, "nu")
    (True, False)
    """
    try:
        parameters = inspect.signature(function).parameters.values()
    except ValueError:  # some builtins do not say
        return False
    places = [p for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    return len(places) > 1 and (places[1].default is places[1].empty or places[1].name == called)


def line(shape: Translation, reach: float, stretch: float, count: int) -> tuple[Tensor, Tensor]:
    """Equal steps of t in x = stretch·sinh(t), |x| ≤ reach, weighed by the density."""
    end = math.asinh(reach / stretch)
    t = torch.linspace(-end, end, count | 1, dtype=torch.float64)
    x = stretch * t.sinh()
    return x, torch.softmax(shape.shape(x) + t.cosh().log(), 0)


def inverted(x: Tensor, masses: Tensor, shape: tuple[int, ...], generator: torch.Generator | None) -> Tensor:
    """Draws by the inverse of the distribution function of rising points with masses that sum to one."""
    below = torch.cumsum(masses, 0) - masses / 2
    x, below = x[masses > 0], below[masses > 0]
    u = torch.rand(shape, generator=generator, dtype=torch.float64)
    at = torch.searchsorted(below, u).clamp(1, len(x) - 1)
    share = (u - below[at - 1]) / (below[at] - below[at - 1]).clamp(min=1e-300)
    return x[at - 1] + share.clamp(0, 1) * (x[at] - x[at - 1])


def uniform(shape: tuple[int, ...], generator: torch.Generator | None) -> Tensor:
    """Uniform on (0, 1), ends excluded."""
    return torch.rand(shape, generator=generator, dtype=torch.float64).clamp(1e-300, 1 - 1e-16)
