"""Where a log-density has its mass, and numbers for it from there to far out."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor

from bayesrule.naming import Named

Function = Callable[[Tensor], Tensor]
FAR = 1e150  # widths from the centre to the end of a line: the square is a number still
CLOSE = 7.0  # how long a line stays with steps of one size near the centre, see `line`
COUNT = 16385
LAST = 1024  # points at an end of a line from which the law of its tail is read
STEEP = 1e4  # nats by which a mass falls along the last points if there is none beyond them
LARGEST = 1e100  # values beyond it count as overflow


class Place(NamedTuple):
    """Where a function is highest, and how far from there it has fallen by one on both sides; inf if it has not."""

    centre: float
    width: float


def locate(function: Function) -> Place:
    """Where a log-density has its mass.

    >>> c, w = locate(lambda x: -0.5 * ((x - 300) / 0.01) ** 2)
    >>> abs(c - 300) < 0.01, 0.01 < w < 0.02
    (True, True)
    """
    sides = torch.logspace(-8, 8, 641, dtype=torch.float64)
    x = torch.cat([-sides.flip(0), torch.zeros(1, dtype=torch.float64), sides])
    centre = float(x[_finite(function(x)).argmax()])
    step = max(0.06 * abs(centre), 1e-8)
    if abs(centre) < 9e7:
        centre = _climb(function, centre, step)
    return Place(centre, reach(function, centre, 1.0))


def reach(function: Function, centre: float, drop: float) -> float:
    """The distance from which on both sides lie ``drop`` below the centre, in steps of 6 %; inf if there is none."""
    top = float(_finite(function(torch.tensor([centre], dtype=torch.float64))))
    distances = torch.logspace(-10, 10, 801, dtype=torch.float64)
    both = torch.stack([_finite(function(centre + distances)), _finite(function(centre - distances))])
    high = (both.amax(0) >= top - drop).nonzero()  # a function that levels off at this drop never lies below it
    if not len(high):
        return float(distances[0])
    last = int(high[-1])
    if last + 1 == len(distances):
        return math.inf
    return float(distances[last + 1])


def not_finite(mu: float, nu: float) -> ValueError:
    """What to say of a penalty that is no number somewhere."""
    return ValueError(f"the penalty is not finite at μ = {mu:.6g}, ν = {nu:.6g}: it must be a number for every μ and ν")


def tail(function: Function, place: Place) -> float:
    """dA/d log|x| far out, on the side where it is greater; by least squares, so that waves do not count.

    >>> round(tail(lambda x: -3 * torch.log1p(x.abs()) + torch.cos(x), Place(0.0, 1.0)), 1)
    -3.0
    """
    logs = torch.linspace(math.log(1e6), math.log(1e8), 2001, dtype=torch.float64)
    values = [_finite(function(place.centre + side * place.width * logs.exp())) for side in (-1, 1)]
    return max(_slope(each, logs) for each in values)


def _slope(values: Tensor, at: Tensor) -> float:
    """That of the line nearest to the values; ±inf where they are."""
    if bool(values.isinf().any()):
        highest = float(values.max())
        return math.inf if highest == math.inf else -math.inf
    centred = at - at.mean()
    return float(centred @ values / centred.square().sum())


def _climb(function: Function, centre: float, step: float) -> float:
    """Ever finer looks about the highest point so far, until it lies flat."""
    offsets = torch.linspace(-2, 2, 81, dtype=torch.float64)
    for _ in range(40):
        values = _finite(function(centre + step * offsets))
        best = int(values.argmax())
        centre += step * float(offsets[best])
        if float(values.max() - values.min()) < 1e-3:
            break
        if best not in (0, len(offsets) - 1):  # at an end the top may lie beyond: on at the same pace
            step *= 0.25
    return centre


def _finite(values: Tensor) -> Tensor:
    """With −inf for what is not a number."""
    return values.nan_to_num(nan=-math.inf, posinf=math.inf, neginf=-math.inf)


def line(place: Place, power: int = 1) -> tuple[Tensor, Tensor]:
    """Equal steps of t in x = centre + width·sinh(s), s = 7·sinh(end·t^power), out to `FAR` widths, and dx.

    The inner sinh lets steps grow with the distance: what a density with a heavy tail has far out is not cut off. An
    odd power above one draws points to the centre, where a function has a kink, and keeps sums exact there.
    """
    t, end = torch.linspace(-1, 1, COUNT, dtype=torch.float64), math.asinh(math.asinh(FAR) / CLOSE)
    s = CLOSE * (end * t**power).sinh()
    rate = CLOSE * (end * t**power).cosh() * end * power * t ** (power - 1)
    return place.centre + place.width * s.sinh(), place.width * s.cosh() * rate * (2 / (COUNT - 1))


def to_infinity(logs: Tensor, distances: Tensor, spacing: Tensor) -> Tensor:
    """Logarithms of the masses of a line's points, where the first and the last stand for all that lies beyond too.

    Far out a mass that matters goes as a power of the distance, and so it is continued, see `beyond`.

    >>> x, spacing = line(Place(0.0, 1.0))
    >>> logs = to_infinity(-0.501 * torch.log1p(x.square()) + spacing.log(), x.abs(), spacing)
    >>> true = math.lgamma(0.5) + math.lgamma(0.001) - math.lgamma(0.501)  # the logarithm of B(½, c − ½)
    >>> abs(float(torch.logsumexp(logs, 0)) - true) < 1e-9
    True
    """
    at, steps = distances.log(), spacing / distances
    left = beyond(logs[:LAST].flip(0), at[:LAST].flip(0), steps[:LAST].flip(0))
    right = beyond(logs[-LAST:], at[-LAST:], steps[-LAST:])
    logs = ended(logs)
    return torch.cat([torch.logaddexp(logs[:1], left), logs[1:-1], torch.logaddexp(logs[-1:], right)])


def ended(logs: Tensor) -> Tensor:
    """Logarithms of values at equal steps, weighted for an integral that ends at the first and the last (Gregory)."""
    weights = torch.zeros_like(logs)
    weights[[0, -1]], weights[[1, -2]] = math.log(5 / 12), math.log(13 / 12)
    return logs + weights


def beyond(logs: Tensor, at: Tensor, steps: Tensor) -> Tensor:
    """The logarithm [1] of the mass after the last of some points, at log|x| with ``steps`` between them.

    Along the points mass goes as exp(−ρ log|x|), and so what comes after them is 1/ρ of the height of that law at the
    last, times what the points have of its mass among them. Infinite where ρ is not positive, and nothing where mass
    falls much faster than a power of |x|.
    """
    if not bool(logs.isfinite().all()) or bool(logs[0] - logs[-1] > STEEP):
        return torch.full_like(logs[-1:], -math.inf)
    heights = logs - steps.log()
    slope = _slope(heights, at)
    if slope >= 0:
        return torch.full_like(logs[-1:], math.inf)
    law = heights.mean() + slope * (at - at.mean())
    share = torch.logsumexp(logs, 0) - torch.logsumexp(law + steps.log(), 0)  # not one where there are waves
    return law[-1:] - math.log(-slope) + share


@dataclass(frozen=True, eq=False)
class Table(Named):
    """A function by its values at equal steps of t in x = centre + width·sinh(t): cubic between them.

    Beyond them it is linear in t, as a power of |x| in a density is, with the slope of the last `ENDS` values.

    >>> table = Table.of(lambda x: x.square(), Place(0.0, 1.0))
    >>> round(float(table(torch.tensor([1.2345], dtype=torch.float64))), 6) == round(1.2345**2, 6)
    True
    """

    name: ClassVar[str] = "table"
    centre: float
    width: float
    values: Tensor

    END: ClassVar[float] = math.asinh(1e8)  # the further out, the nearer is a slope to that of the tail
    SIZE: ClassVar[int] = 24577
    ENDS: ClassVar[int] = 3072

    @classmethod
    def of(cls, function: Function, place: Place) -> Table:
        """The table of a function about a place."""
        values = function(place.centre + place.width * cls.steps().sinh())
        middle = cls.SIZE // 2
        left, right = _continued(values[: middle + 1].flip(0)).flip(0), _continued(values[middle:])
        return cls(place.centre, place.width, torch.cat([left, right[1:]]))

    @classmethod
    def steps(cls) -> Tensor:
        """The values of t."""
        return _steps(cls.END, cls.SIZE)

    def __call__(self, x: Tensor) -> Tensor:
        """The value at x, differentiable."""
        step = 2 * self.END / (self.SIZE - 1)
        place = (((x - self.centre) / self.width).asinh() + self.END) / step
        inside = place.clamp(0, self.SIZE - 1)
        left, right = self._slopes
        return cubic(self.values, inside) + torch.where(place < 0, left, right) * (place - inside)

    @cached_property
    def _slopes(self) -> Tensor:
        """Per step, beyond the first value and the last."""
        at = torch.arange(self.ENDS, dtype=torch.float64)
        ends = self.values[: self.ENDS], self.values[-self.ENDS :]
        return torch.tensor([_slope(each, at) for each in ends], dtype=torch.float64)

    def between(self) -> Tensor:
        """Five points x between any two of its own."""
        shares = torch.tensor([[0.1], [0.3], [0.5], [0.7], [0.9]], dtype=torch.float64)
        steps = self.steps()
        return self.centre + self.width * (steps[:-1] + shares * (steps[1] - steps[0])).sinh().flatten()


def cubic(values: Tensor, place: Tensor) -> Tensor:
    """Values at equal steps, at any place between: cubics with slopes of fourth order.

    >>> float(cubic(torch.arange(9.0) ** 3, torch.tensor(4.5)))
    91.125
    """
    low = place.detach().floor().clamp(0, len(values) - 2)
    u, at = place - low, low.long()
    left, right, slopes = values[at], values[at + 1], _slopes(values)
    before, after = slopes[at], slopes[at + 1]
    rise = right - left
    return left + u * (before + u * (3 * rise - 2 * before - after + u * (before + after - 2 * rise)))


def _slopes(v: Tensor) -> Tensor:
    """Differences of fourth order, of lower order at the ends."""
    inner = (8 * (v[3:-1] - v[1:-3]) - (v[4:] - v[:-4])) / 12
    return torch.cat([v[1:2] - v[:1], (v[2:3] - v[:1]) / 2, inner, (v[-1:] - v[-3:-2]) / 2, v[-1:] - v[-2:-1]])


def _continued(values: Tensor) -> Tensor:
    """From where values overflow, the line of the last two that do not."""
    over = (~(values.abs() < LARGEST)).nonzero()
    if not len(over) or int(over[0]) < 2:
        return values
    first = int(over[0])
    steps = torch.arange(1, len(values) - first + 1, dtype=values.dtype)
    last, before = values[first - 1], values[first - 2]
    return torch.cat([values[:first], last + steps * (last - before)])


@lru_cache(maxsize=2)
def _steps(end: float, size: int) -> Tensor:
    return torch.linspace(-end, end, size, dtype=torch.float64)
