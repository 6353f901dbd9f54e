"""The prior of a penalty that is known by its values only."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import NamedTuple

import torch
from torch import Tensor

from bayesrule.penalties.equivalence.deconvolution import ACCEPTED, Deconvolved, Window, deconvolve, highest
from bayesrule.penalties.equivalence.drift import Drift, drift
from bayesrule.penalties.equivalence.implied import Implied
from bayesrule.penalties.equivalence.lines import Place, Table, cubic, locate, reach, tail
from bayesrule.penalties.equivalence.tails import LIKELY, untold
from bayesrule.penalties.equivalence.verdicts import Verdict, not_integrable, too_fine, too_rough, too_smooth
from bayesrule.penalties.functions import Penalty, PenaltySum
from bayesrule.penalties.terms import Missing, Terms
from bayesrule.penalties.translations import Translation

Function = Callable[[Tensor], Tensor]
DROP = 20.0  # nats below the highest density at which the grid ends
WIDEST = 100.0  # widths from the centre to the end of the grid, at most
BEYOND = 9.0  # scales of the family by which it reaches further
WORST = 1.0  # nats: what is less sure than this is no answer
SAME = 1e-4  # nats: what changes by less from a ν to another does not change
VISIBLE = 1e-3  # nats by which A, smoothed again, may be off the penalty


class Found(NamedTuple):
    """A candidate, how it does at other ν, and how far off it may be there, smoothed."""

    prior: Implied
    drift: Drift
    misfit: float


def numerically(penalty: Penalty, family: Translation, points: int) -> Found | Verdict:
    """A at the smallest ν by deconvolution on a grid, held against the penalty at all ν by convolution."""
    nu = family.scales[0]
    terms, rest = _split(penalty, family, nu)
    place = locate(lambda x: -penalty(x, nu))
    if not math.isfinite(place.width):
        return not_integrable(tail(lambda x: -penalty(x, nu), Place(0.0, 1.0)))
    widest = WIDEST * place.width
    end = min(widest, reach(lambda x: -penalty(x, nu), place.centre, DROP))
    core = min(widest, reach(lambda x: -penalty(x, nu), place.centre, LIKELY))
    half = min(end + BEYOND * family.scales[-1], max(widest, end + BEYOND * nu))
    window = Window(place.centre, half, core)
    found = deconvolve(lambda x: -rest(x, nu), family, nu, window, points)
    rough = _roughness(found, rest, family, points)
    if rough is not None:
        return rough
    far = _far(lambda x: -rest(x, nu), family, nu)
    joined = _joined(found, far)
    table = Table.of(joined, place)
    draft = Implied(terms.polynomial, terms.waves, 0.0, table)
    likely = _likely(draft, found)
    between = _error_beyond(found, far, likely) + _error_between(found, likely) + 2 * unresolved(draft, joined)
    error = _error(found, draft, likely) + between
    if draft.integrable:
        error += draft.doubt + untold(draft, joined)
    if error > WORST:
        return _unsure(found, error, points)
    seen = drift(draft, penalty, family, float(found.x[likely][0]), float(found.x[likely][-1]))
    if seen.first > VISIBLE:
        return _unsure(replace(found, gap=seen.first), max(error, seen.first), points)
    misfit = 4 * max(seen.first, found.misfit) + SAME
    error = max(error, 2 * seen.first)
    if seen.shape < misfit:  # too little for a verdict: then it is part of the error
        error = max(error, seen.shape)
    return Found(Implied(terms.polynomial, terms.waves, 0.0, table, error + 1e-8), seen, misfit)


def _split(penalty: Penalty, family: Translation, nu: float) -> tuple[Terms, Penalty]:
    """A of the parts with powers and waves, done exactly, and the sum of the others."""
    closed, others = Terms((-float(family.entropy(nu)),)), []
    for part in penalty.parts:
        form = part.closed(nu)
        try:
            closed = closed + (form or Terms(kink=1.0)).times(-1).deconvolved(family, nu)
        except Missing:
            others.append(part)
    return closed, PenaltySum(tuple(others))


def _roughness(found: Deconvolved, rest: Penalty, family: Translation, points: int) -> Verdict | None:
    """The verdict if bands grow: on the grid, or on a closer look at the roughest place if the grid was the limit."""
    if found.coarse and found.error > ACCEPTED:
        nu = family.scales[0]
        near = Window(found.peak, 10 / highest(family, nu))
        found = deconvolve(lambda x: -rest(x, nu), family, nu, near, points)
    if found.grows and not found.coarse:
        return too_rough(found.bands)
    return None


def _unsure(found: Deconvolved, error: float, points: int) -> Verdict:
    """The grid is too coarse; or the penalty has structure that cannot be of A; or the family hides A."""
    if found.coarse:
        raise ValueError(_coarse(points, f"A is only known to {error:.2g} nats"))
    if found.gap > VISIBLE:
        return too_fine(found.gap)
    return too_smooth(error)


def _coarse(points: int, why: str) -> str:
    return f"the grid of {points} points is too coarse for the penalty's spectrum ({why}): give points={4 * points}"


def _joined(found: Deconvolved, far: Function) -> Function:
    """The grid's values, and beyond it those of ``far``."""
    first, last, step = float(found.x[0]), float(found.x[-1]), float(found.x[1] - found.x[0])

    def both(x: Tensor) -> Tensor:
        inside = (x > first) & (x < last)
        values = torch.empty_like(x)
        values[inside] = cubic(found.values, (x[inside] - first) / step)
        if not bool(inside.all()):
            values[~inside] = far(x[~inside])
        return values

    return both


def _far(function: Function, family: Translation, nu: float) -> Function:
    """Deconvolution where f is nearly a polynomial: Σ_j c_j f(x + jδ), exact up to fourth degree if moments exist."""
    places = torch.arange(-2, 3, dtype=torch.float64)
    orders = [k for k in range(5) if math.isfinite(family.power(k))]
    if len(orders) < 3:
        return function
    size = 5 if len(orders) == 5 else 3
    used = places[(5 - size) // 2 : (5 + size) // 2]
    delta = math.sqrt(float(family.moment(2, nu)))
    powers = torch.stack([used**k for k in range(size)])
    wanted = []
    for k in range(size):
        power = Terms((0.0,) * k + (1.0,))  # x^k, of which the weights have to give the deconvolution at zero
        wanted.append(power.deconvolved(family, nu).polynomial[0] / delta**k)
    weights = torch.linalg.solve(powers, torch.tensor(wanted, dtype=torch.float64))

    def far(x: Tensor) -> Tensor:
        return torch.stack([w * function(x + j * delta) for w, j in zip(weights, used, strict=True)]).sum(0)

    return far


def unresolved(prior: Implied, function: Function) -> float:
    """How far the table of a prior is off its function between its values, where α is likely."""
    assert prior.table is not None
    x = prior.table.between()
    values = prior.exponent(x)
    x = x[values > values.max() - LIKELY]
    apart = float((prior.table(x) - function(x)).abs().max())
    if apart > WORST:
        raise ValueError(
            f"the penalty has waves or jumps far out where α is still likely, too many for a table (off by {apart:.2g} "
            f"nats): give waves by name, as in penalties.Cosine(factor, frequency) + the rest"
        )
    return apart


def _error_between(found: Deconvolved, likely: Tensor) -> float:
    """How far off cubics are between points of the grid: a sixteenth of what they are on every other, twice over."""
    odd = found.values[1::2]
    places = torch.arange(len(odd) - 1, dtype=torch.float64) + 0.5
    apart = (cubic(found.values[::2], places) - odd[:-1]).abs()
    return float((apart * likely[1::2][:-1]).max()) / 8


def _error_beyond(found: Deconvolved, far: Function, likely: Tensor) -> float:
    """How far off A may be beyond the grid, if α is likely there: as its outer tenths see it."""
    outer = max(len(found.x) // 20, 1)
    apart = []
    for end in (slice(0, outer), slice(-outer, None)):
        if bool(likely[end].any()):
            apart.append(float((far(found.x[end]) - found.values[end]).abs().max()))
    return max(apart, default=0.0)


def _likely(draft: Implied, found: Deconvolved) -> Tensor:
    values = draft.exponent(found.x)
    return values > values.max() - LIKELY


def _error(found: Deconvolved, draft: Implied, likely: Tensor) -> float:
    """max |δA| where α is likely, and E|δA|, which bounds |δ log κ|."""
    masses = torch.softmax(draft.exponent(found.x), 0)
    return float(found.doubt[likely].max() + masses @ found.doubt)
