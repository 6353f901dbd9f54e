"""Test data that are no longer like the training data: the same examples further and further from home.

A shift changes examples by a ``severity``: at 0 they are as they were, and it grows along `Shift.severities`. What is
random in it is a function of a seed and the same at every severity, so that a curve over them shows the shift alone.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from bayesrule.data import corruptions
from bayesrule.data.batches import Batch
from bayesrule.data.pictures import as_pictures, check_pixels, turned
from bayesrule.naming import Named, unknown
from bayesrule.seeds import mixed


@dataclass(frozen=True)
class Shift(Named, ABC):
    """A way from home, in steps. ``severities``: the first is 0, where nothing is changed; ``unit``: of the others."""

    unit: ClassVar[str]
    severities: tuple[float, ...]

    def __post_init__(self) -> None:
        object.__setattr__(self, "severities", tuple(float(s) for s in self.severities))
        if not self.severities or self.severities[0] != 0 or list(self.severities) != sorted(set(self.severities)):
            raise ValueError(
                f"severities must grow from 0, where nothing is changed: got {self.severities}; 0, 1, 2, 3, 4, 5, say"
            )

    @abstractmethod
    def at(self, batch: Batch, severity: float, seed: int = 0) -> Batch:
        """The examples at a severity, in the user's units."""


@dataclass(frozen=True)
class OfPictures(Shift):
    """A shift of pictures with pixels in [0, 1], each of which stays one. ``shape``: channels, height and width.

    Without a ``shape`` inputs are pictures ``[N, C, H, W]``; with one they may also be rows of C·H·W pixels.
    """

    shape: tuple[int, int, int] | None = None

    def at(self, batch: Batch, severity: float, seed: int = 0) -> Batch:
        """The pictures at a severity, in the shape and the dtype they came in."""
        if not isinstance(batch.x, Tensor):
            raise TypeError(f"{self.name} is a shift of one tensor of pictures, not of a {type(batch.x).__name__}")
        pictures = as_pictures(batch.x, self.shape, self.name)
        check_pixels(batch.x, self.name)
        if severity == 0:
            return batch
        generator = torch.Generator(pictures.device).manual_seed(mixed(seed))
        size = max(1, corruptions.ROOM // pictures[0].numel())
        parts = [self.changed(part, severity, generator) for part in torch.split(pictures, size)]
        return Batch(torch.cat(parts).reshape(batch.x.shape).to(batch.x.dtype), batch.y, batch.weight)

    @abstractmethod
    def changed(self, x: Tensor, severity: float, generator: torch.Generator) -> Tensor:
        """Pictures ``[N, C, H, W]`` at a severity above 0."""


@dataclass(frozen=True)
class Rotation(OfPictures):
    """Turned about the centre, counter-clockwise by so many degrees; black comes in at the corners.

    >>> x = torch.tensor([[[[1.0, 0.0], [0.0, 0.0]]]])
    >>> Rotation().at(Batch(x, torch.zeros(1)), 180).x.round(decimals=3)
    tensor([[[[0., 0.],
              [0., 1.]]]])
    """

    name: ClassVar[str] = "rotation"
    unit: ClassVar[str] = "degrees"
    severities: tuple[float, ...] = tuple(range(0, 181, 15))

    def changed(self, x: Tensor, severity: float, generator: torch.Generator) -> Tensor:
        """By bilinear interpolation."""
        return turned(x, torch.full((len(x),), severity)).clamp(0, 1)


@dataclass(frozen=True)
class Roll(OfPictures):
    """Rolled to the right by so many pixels; what leaves at one side comes in at the other.

    >>> x = torch.tensor([[[[1.0, 0.5, 0.0]]]])
    >>> Roll().at(Batch(x, torch.zeros(1)), 1).x.tolist()
    [[[[0.0, 1.0, 0.5]]]]
    """

    name: ClassVar[str] = "roll"
    unit: ClassVar[str] = "pixels"
    severities: tuple[float, ...] = tuple(range(0, 15, 2))

    def changed(self, x: Tensor, severity: float, generator: torch.Generator) -> Tensor:
        """Whole pixels only."""
        if severity != int(severity):
            raise ValueError(f"roll is by whole pixels: got a severity of {severity:g}; take {round(severity)}")
        return x.roll(int(severity), 3)


@dataclass(frozen=True)
class Corruption(OfPictures):
    """One of the common corruptions at five severities, after Hendrycks and Dietterich (2019), see `corruptions`.

    >>> x = torch.full((1, 1, 8, 8), 0.5)
    >>> Corruption(kind="brightness").at(Batch(x, torch.zeros(1)), 2).x.mean()
    tensor(0.6000)
    """

    name: ClassVar[str] = "corruption"
    unit: ClassVar[str] = "severity"
    severities: tuple[float, ...] = tuple(range(6))
    kind: str = "gaussian-noise"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.kind not in corruptions.KINDS:
            raise unknown("corruption", self.kind, corruptions.KINDS)

    def changed(self, x: Tensor, severity: float, generator: torch.Generator) -> Tensor:
        """As the corruption says, within [0, 1]."""
        if severity not in (1, 2, 3, 4, 5):
            raise ValueError(f"{self.kind} has severities 0 to 5: got {severity:g}")
        return corruptions.KINDS[self.kind](x, int(severity), generator).clamp(0, 1)


@dataclass(frozen=True)
class OfTables(Shift):
    """A shift of rows ``[N, F]`` of numbers."""

    def at(self, batch: Batch, severity: float, seed: int = 0) -> Batch:
        """The rows at a severity."""
        x = batch.x
        if not isinstance(x, Tensor) or x.ndim != 2 or not x.is_floating_point():
            what = f"{x.dtype} of shape {list(x.shape)}" if isinstance(x, Tensor) else f"a {type(x).__name__}"
            raise ValueError(f"{self.name} is a shift of rows of real numbers [N, F], not of {what}")
        if severity == 0 and type(self) is not Group:  # whose home is already a part of the rows
            return batch
        return self.moved(batch, x, severity, torch.Generator(x.device).manual_seed(mixed(seed)))

    @abstractmethod
    def moved(self, batch: Batch, x: Tensor, severity: float, generator: torch.Generator) -> Batch:
        """The examples, whose inputs are ``x``, at a severity."""


@dataclass(frozen=True)
class Missing(OfTables):
    """Cells that are missing, each with probability ``severity``: the column's median stands in for them."""

    name: ClassVar[str] = "missing"
    unit: ClassVar[str] = "share of cells"
    severities: tuple[float, ...] = (0, 0.1, 0.2, 0.3, 0.4, 0.5)

    def moved(self, batch: Batch, x: Tensor, severity: float, generator: torch.Generator) -> Batch:
        """Cells that are missing at one severity are so at every larger one."""
        lost = torch.rand(x.shape, generator=generator, device=x.device) < severity
        return Batch(torch.where(lost, x.median(0).values, x), batch.y, batch.weight)


@dataclass(frozen=True)
class Noise(OfTables):
    """Normal noise on every cell, of ``severity`` times the column's deviation."""

    name: ClassVar[str] = "noise"
    unit: ClassVar[str] = "deviations"
    severities: tuple[float, ...] = (0, 0.1, 0.25, 0.5, 1, 2)

    def moved(self, batch: Batch, x: Tensor, severity: float, generator: torch.Generator) -> Batch:
        """The same noise at every severity, only larger."""
        noise = torch.randn(x.shape, generator=generator, dtype=x.dtype, device=x.device)
        return Batch(x + severity * x.std(0, correction=0) * noise, batch.y, batch.weight)


@dataclass(frozen=True)
class Tilt(OfTables):
    """Rows drawn anew with probability ∝ exp(severity·z), z the standardised ``column``: p(y|x) stays, p(x) moves.

    ``column``: its number; None: along the first principal component of the standardised columns.
    """

    name: ClassVar[str] = "tilt"
    unit: ClassVar[str] = "deviations"
    severities: tuple[float, ...] = (0, 0.5, 1, 1.5, 2)
    column: int | None = None

    def moved(self, batch: Batch, x: Tensor, severity: float, generator: torch.Generator) -> Batch:
        """As many rows as there were, by systematic resampling: each as often as its probability says, up to one."""
        share = (severity * _along(x, self.column, self.name)).softmax(0)
        start = torch.rand((), generator=generator, dtype=torch.float64, device=x.device)
        points = (torch.arange(len(x), dtype=torch.float64, device=x.device) + start) / len(x)
        return batch.take(torch.searchsorted(share.cumsum(0), points).clamp(max=len(x) - 1))


@dataclass(frozen=True)
class Range(OfTables):
    """Only rows whose ``column`` is above its ``severity`` quantile: a range that training may have been kept from."""

    name: ClassVar[str] = "range"
    unit: ClassVar[str] = "quantile"
    severities: tuple[float, ...] = (0, 0.25, 0.5, 0.75, 0.9)
    column: int | None = None

    def moved(self, batch: Batch, x: Tensor, severity: float, generator: torch.Generator) -> Batch:
        """At least one row is left."""
        along = _along(x, self.column, self.name)
        return batch.take(along.argsort(stable=True)[min(int(severity * len(x)), len(x) - 1) :].sort().values)


@dataclass(frozen=True)
class Group(OfTables):
    """At 0 the rows whose ``column`` is not ``value``, at 1 those where it is: a group that training was kept from."""

    name: ClassVar[str] = "group"
    unit: ClassVar[str] = "home or elsewhere"
    severities: tuple[float, ...] = (0, 1)
    column: int = 0
    value: float = 1.0

    def moved(self, batch: Batch, x: Tensor, severity: float, generator: torch.Generator) -> Batch:
        """An error if there are no such rows."""
        inside = x[:, _checked(x, self.column, self.name)] == self.value
        chosen = inside if severity else ~inside
        if not bool(chosen.any()):
            there = ", ".join(f"{v:g}" for v in sorted(set(x[:, self.column].tolist()))[:10])
            raise ValueError(
                f"group {self.value:g} of column {self.column} must be some of the rows, but "
                f"{'no row is' if severity else 'all rows are'} in it; values there: {there}"
            )
        return batch.take(chosen.nonzero()[:, 0])


def _along(x: Tensor, column: int | None, name: str) -> Tensor:
    """One standardised number for each row, in double precision: a column, or the first principal component."""
    if column is None:
        z = x.double() - x.double().mean(0)
        z = z / z.std(0, correction=0).clamp(min=1e-300)
        along = z @ torch.linalg.eigh(z.T @ z).eigenvectors[:, -1]
    else:
        along = x[:, _checked(x, column, name)].double()
    along = along - along.mean()
    return along / along.std(correction=0).clamp(min=1e-300)


def _checked(x: Tensor, column: int, name: str) -> int:
    if not 0 <= column < x.shape[1]:
        raise ValueError(f"column of {name} must be from 0 to {x.shape[1] - 1}: got {column}")
    return column


AVAILABLE: Mapping[str, type[Shift]] = {
    kind.name: kind for kind in (Rotation, Roll, Missing, Noise, Tilt, Range, Group)
}
"""By name, beside the corruptions."""


def names() -> list[str]:
    """Every shift that can be asked for by name.

    >>> names()[:4]
    ['rotation', 'roll', 'missing', 'noise']
    """
    return [*AVAILABLE, *corruptions.KINDS]


def choose(given: str | Shift, shape: tuple[int, int, int] | None = None) -> Shift:
    """A shift by its name, or as it is. ``shape``: of pictures that come as rows, for a shift that has none.

    >>> choose("gaussian-nose")
    Traceback (most recent call last):
    ValueError: unknown shift 'gaussian-nose': did you mean 'gaussian-noise'? Valid: ...
    """
    if isinstance(given, Shift):
        return given
    if not isinstance(given, str):
        raise TypeError(f"shift must be a name or a Shift, not {type(given).__name__}: {given!r}")
    if given in corruptions.KINDS:
        return Corruption(kind=given, shape=shape)
    if given not in AVAILABLE:
        raise unknown("shift", given, names())
    kind = AVAILABLE[given]
    if issubclass(kind, OfPictures):
        return kind(shape=shape)  # type: ignore[call-arg]
    return kind()  # type: ignore[call-arg]
