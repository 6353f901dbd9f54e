"""Penalties with a factor, as densities: λ from the variance of a weight, and back.

| name | penalty | prior | variance of a weight | λ |
| --- | --- | --- | --- | --- |
| `l2` | λ‖w‖² | normal | 1/(2λ) | 1/(2v) |
| `l1` | λ‖w‖₁ | Laplace | 2/λ² | √(2/v) |
| `group`, `group-transposed` | λ‖w‖₂,₁ over groups of n | group Laplace | (n + 1)/λ² | √((n + 1)/v) |
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from bayesrule.naming import unknown
from bayesrule.penalties.functions import L1, L2, GroupLasso
from bayesrule.priors import Gaussian, GroupLaplace, Laplace, Prior, group_laplace


class Kind(ABC):
    """What a penalty says of the weights of a layer."""

    @abstractmethod
    def layout(self, layer: nn.Module) -> group_laplace.Layout:
        """Where the groups of the layer's weight are, for a penalty that has groups."""

    @abstractmethod
    def strength(self, variance: float, n: int) -> float:
        """λ for which a weight has this variance, in a group of n."""

    @abstractmethod
    def amount(self, w: Tensor, where: group_laplace.Layout) -> Tensor:
        """The penalty at w, without its factor."""

    @abstractmethod
    def draw(
        self, like: Tensor, where: group_laplace.Layout, strength: float, generator: torch.Generator | None
    ) -> Tensor:
        """A weight from the prior."""

    @abstractmethod
    def prior(
        self, strengths: Mapping[str, float], means: Mapping[str, float], layouts: Mapping[str, group_laplace.Layout]
    ) -> Prior:
        """The prior of some weights, normalised."""


@dataclass(frozen=True)
class Squares(Kind):
    """λ‖w‖²."""

    def layout(self, layer: nn.Module) -> group_laplace.Layout:
        """Any: there are no groups."""
        return group_laplace.layout(layer, outgoing=False)

    def strength(self, variance: float, n: int) -> float:
        """1/(2v)."""
        return 0.5 / variance

    def amount(self, w: Tensor, where: group_laplace.Layout) -> Tensor:
        """‖w‖²."""
        return w.square().sum()

    def draw(
        self, like: Tensor, where: group_laplace.Layout, strength: float, generator: torch.Generator | None
    ) -> Tensor:
        """N(0, 1/(2λ))."""
        return torch.randn(like.shape, generator=generator, dtype=like.dtype) * (2 * strength) ** -0.5

    def prior(
        self, strengths: Mapping[str, float], means: Mapping[str, float], layouts: Mapping[str, group_laplace.Layout]
    ) -> Gaussian:
        """Normal."""
        return Gaussian({name: (2 * s) ** -0.5 for name, s in strengths.items()}, means)


@dataclass(frozen=True)
class Sizes(Kind):
    """λ‖w‖₁."""

    def layout(self, layer: nn.Module) -> group_laplace.Layout:
        """Any: there are no groups."""
        return group_laplace.layout(layer, outgoing=False)

    def strength(self, variance: float, n: int) -> float:
        """√(2/v)."""
        return math.sqrt(2 / variance)

    def amount(self, w: Tensor, where: group_laplace.Layout) -> Tensor:
        """‖w‖₁."""
        return w.abs().sum()

    def draw(
        self, like: Tensor, where: group_laplace.Layout, strength: float, generator: torch.Generator | None
    ) -> Tensor:
        """Laplace(1/λ), as the difference of two exponentials."""
        first = torch.empty(like.shape, dtype=like.dtype).exponential_(generator=generator)
        second = torch.empty(like.shape, dtype=like.dtype).exponential_(generator=generator)
        return (first - second) / strength

    def prior(
        self, strengths: Mapping[str, float], means: Mapping[str, float], layouts: Mapping[str, group_laplace.Layout]
    ) -> Laplace:
        """Laplace's."""
        return Laplace({name: 1 / s for name, s in strengths.items()}, means)


@dataclass(frozen=True)
class Norms(Kind):
    """λ‖w‖₂,₁ over what comes into a neuron, or leaves it."""

    outgoing: bool = False

    def layout(self, layer: nn.Module) -> group_laplace.Layout:
        """A group for each neuron."""
        return group_laplace.layout(layer, self.outgoing)

    def strength(self, variance: float, n: int) -> float:
        """√((n + 1)/v)."""
        return math.sqrt((n + 1) / variance)

    def amount(self, w: Tensor, where: group_laplace.Layout) -> Tensor:
        """Σ_g ‖w_g‖₂."""
        return group_laplace.norms(w, where).sum()

    def draw(
        self, like: Tensor, where: group_laplace.Layout, strength: float, generator: torch.Generator | None
    ) -> Tensor:
        """Directions at random, radii from Gamma(n, rate λ)."""
        return group_laplace.draw(like, where, generator) / strength

    def prior(
        self, strengths: Mapping[str, float], means: Mapping[str, float], layouts: Mapping[str, group_laplace.Layout]
    ) -> GroupLaplace:
        """Group Laplace."""
        scales = {name: 1 / s for name, s in strengths.items()}
        return GroupLaplace(scales, self.outgoing, {name: layouts[name] for name in strengths})


KINDS: dict[str, Kind] = {
    "l2": Squares(),
    "l1": Sizes(),
    "group": Norms(),
    "group-transposed": Norms(outgoing=True),
}


def kind_name(penalty: object) -> str:
    """The name of a penalty that is given by name, or as an object; the object's own factor does not count.

    >>> kind_name(GroupLasso(axis=1))
    'group-transposed'
    >>> kind_name("l3")
    Traceback (most recent call last):
    ValueError: unknown penalty 'l3': did you mean 'l2'? Valid: group, group-transposed, l1, l2
    """
    if isinstance(penalty, GroupLasso):
        return "group-transposed" if penalty.axis else "group"
    if isinstance(penalty, L1 | L2):
        return "l1" if isinstance(penalty, L1) else "l2"
    name = penalty if isinstance(penalty, str) else getattr(penalty, "name", None)
    if not isinstance(name, str):
        raise TypeError(f"penalty must be L2, L1, GroupLasso or a name, {', '.join(KINDS)}, not {penalty!r}")
    if name not in KINDS:
        raise unknown("penalty", name, KINDS)
    return name
