"""Pictures that are changed a little each time they are trained on, and mean the same.

An augmentation is part of the training loop: what it does to a batch is a function of the fit's seed and the step, so
that a resumed fit repeats it. The number N of examples stays what it is; the likelihood of an example becomes a mean
over its variants t, log p(y|x) → E_t log p(y|f(t(x))), which a step sees one draw of.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from bayesrule.data.batches import Batch, Data
from bayesrule.data.pictures import as_pictures, check_pixels, mapped
from bayesrule.data.scaling import Scaling
from bayesrule.naming import Named, unknown

LOOKED_AT = 256  # examples that tell whether data are pictures
CHAINS, DEPTH = 3, 3  # of AugMix: chains that are mixed, and changes in a chain at most
TURN, SHEAR, SLIDE = 0.3, 0.2, 0.15  # its largest changes: radians, and shares of a side


@dataclass(frozen=True)
class Augmentation(Named, ABC):
    """A random change of pictures ``[N, C, H, W]``. ``shape``: channels, height, width of those that come as rows."""

    shape: tuple[int, int, int] | None = None

    def check(self, x: Tensor) -> None:
        """An error if inputs in the user's units cannot be augmented."""
        as_pictures(x, self.shape, self.name)

    def of(self, x: Tensor, generator: torch.Generator) -> Tensor:
        """Inputs in the user's units, each changed by itself, in the shape they came in."""
        return self.changed(as_pictures(x, self.shape, self.name), generator).reshape(x.shape)

    @abstractmethod
    def changed(self, x: Tensor, generator: torch.Generator) -> Tensor:
        """Pictures, each changed by itself."""


@dataclass(frozen=True)
class Flips(Augmentation):
    """Left and right change sides, in every other picture."""

    name: ClassVar[str] = "flips"

    def changed(self, x: Tensor, generator: torch.Generator) -> Tensor:
        """Each with probability ½."""
        flip = torch.rand(len(x), 1, 1, 1, generator=generator, device=x.device) < 0.5
        return torch.where(flip, x.flip(3), x)


@dataclass(frozen=True)
class Crops(Augmentation):
    """Cut anew out of a frame that is an eighth wider on every side, black where the picture ends.

    ``padding``: the frame in pixels, None: an eighth of the shorter side.
    """

    name: ClassVar[str] = "crops"
    padding: int | None = None

    def __post_init__(self) -> None:
        if self.padding is not None and self.padding < 1:
            raise ValueError(f"padding must be at least 1 pixel: got {self.padding}; None is an eighth of the side")

    def changed(self, x: Tensor, generator: torch.Generator) -> Tensor:
        """Moved by whole pixels."""
        n, _, height, width = x.shape
        most = self.padding or max(1, min(height, width) // 8)
        moves = torch.randint(-most, most + 1, (2, n, 1), generator=generator, device=x.device)
        rows = torch.arange(height, device=x.device) + moves[0]
        columns = torch.arange(width, device=x.device) + moves[1]
        inside = ((rows >= 0) & (rows < height))[:, :, None] & ((columns >= 0) & (columns < width))[:, None]
        which = torch.arange(n, device=x.device)[:, None, None]
        taken = x[which, :, rows.clamp(0, height - 1)[:, :, None], columns.clamp(0, width - 1)[:, None]]
        return taken.movedim(3, 1) * inside[:, None]  # index_put moves channels behind the picture


@dataclass(frozen=True)
class AugMix(Augmentation):
    """Mixtures of pictures under short chains of changes (Hendrycks et al. 2020), without a consistency loss.

    ::

        x' = m·x + (1 − m)·Σ_k w_k chain_k(x),    w ~ Dirichlet(1, 1, 1), m ~ Beta(1, 1)

    A chain is up to three changes, each of them a turn, a shear, a slide, a solarisation, or fewer grey levels. None
    of them is among the corruptions of `bayesrule.data.corruptions`. ``strength``: of all changes, 1 as published.
    """

    name: ClassVar[str] = "augmix"
    strength: float = 1.0

    def __post_init__(self) -> None:
        if not 0 < self.strength <= 3:
            raise ValueError(f"strength must be above 0 and at most 3: got {self.strength:g}; 1 is as published")

    def check(self, x: Tensor) -> None:
        """Grey levels are of pixels in [0, 1]."""
        super().check(x)
        check_pixels(x, self.name)

    def changed(self, x: Tensor, generator: torch.Generator) -> Tensor:
        """Each picture by chains of its own."""

        def uniform(*shape: int) -> Tensor:
            return torch.rand(*shape, generator=generator, device=x.device).to(x)

        weights = -uniform(CHAINS, len(x)).clamp(min=1e-6).log()  # of exponentials: their shares are Dirichlet's
        weights = weights / weights.sum(0)
        mixed = torch.zeros_like(x)
        for own in weights:
            chain, length = x, (DEPTH * uniform(len(x), 1, 1, 1)).ceil()
            for step in range(DEPTH):
                changed = self._one(chain, uniform(2, len(x)))
                chain = torch.where(step < length, changed, chain)
            mixed += own[:, None, None, None] * chain
        share = uniform(len(x), 1, 1, 1)
        return share * x + (1 - share) * mixed

    def _one(self, x: Tensor, drawn: Tensor) -> Tensor:
        """One change for each picture: which, by ``drawn[0]``, and how strong, by ``drawn[1]``, both in [0, 1)."""
        kind, size = (drawn[0] * 6).floor(), self.strength * (2 * drawn[1] - 1)
        matrix = torch.eye(2, 3).to(x).repeat(len(x), 1, 1)
        turn = size * TURN * (kind == 0)
        matrix[:, 0, 0] = matrix[:, 1, 1] = turn.cos()
        matrix[:, 0, 1] = SHEAR * size * (kind == 1) - turn.sin()
        matrix[:, 1, 0] = turn.sin()
        matrix[:, 0, 2] = 2 * SLIDE * size * (kind == 2)
        matrix[:, 1, 2] = 2 * SLIDE * size * (kind == 3)
        amount, kind = size.abs()[:, None, None, None], kind[:, None, None, None]
        above = 1 - 0.5 * amount
        levels = (2 + 14 * (1 - amount).clamp(0, 1)).round()
        x = torch.where(kind == 4, torch.where(x > above, 1 - x, x), x)
        x = torch.where(kind == 5, (x * levels).round() / levels, x)
        return torch.where(kind < 4, mapped(x, matrix), x)


AVAILABLE: Mapping[str, type[Augmentation]] = {kind.name: kind for kind in (Flips, Crops, AugMix)}


def choose(
    given: str | Augmentation | Sequence[str | Augmentation] | None, shape: tuple[int, int, int] | None = None
) -> tuple[Augmentation, ...]:
    """What ``augment`` of a fit stands for: one after the other. ``shape``: of those that are given by name.

    >>> choose("flips,crops")
    (Flips(shape=None), Crops(shape=None, padding=None))
    """
    if given is None:
        return ()
    if isinstance(given, str):
        given = given.split(",")
    if isinstance(given, Augmentation):
        given = (given,)
    chosen = []
    for one in given:
        if isinstance(one, str) and one not in AVAILABLE:
            raise unknown("augmentation", one, AVAILABLE)
        if not isinstance(one, str | Augmentation):
            raise TypeError(f"augment must be names or augmentations, not {type(one).__name__}: {one!r}")
        chosen.append(AVAILABLE[one](shape) if isinstance(one, str) else one)
    return tuple(chosen)


def augmented(batch: Batch, chain: Sequence[Augmentation], scaling: Scaling, generator: torch.Generator) -> Batch:
    """A batch in the network's units with its pictures changed, each by itself; targets and weights stay."""
    assert isinstance(batch.x, Tensor), "a fit has checked its data"
    x = _raw(batch.x, scaling)
    for one in chain:
        x = one.of(x, generator)
    if scaling.inputs is not None:
        x = scaling.inputs.forward(x)
    return Batch(x.to(batch.x.dtype), batch.y, batch.weight)


def check(data: Data, chain: Sequence[Augmentation]) -> None:
    """An error if these data cannot be augmented, by the look of their first examples."""
    first = next(data.ordered(LOOKED_AT)).x
    for one in chain:
        if not isinstance(first, Tensor):
            raise TypeError(f"augment={one.name!r} is for one tensor of pictures, not for a {type(first).__name__}")
        one.check(_raw(first, data.scaling))


def _raw(x: Tensor, scaling: Scaling) -> Tensor:
    """Inputs in the user's units."""
    return x if scaling.inputs is None else scaling.inputs.inverse(x)
