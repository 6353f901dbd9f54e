"""How much of a prior lies further out than its table."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from bayesrule.penalties.equivalence.implied import Implied
from bayesrule.penalties.equivalence.lines import LARGEST, Function, beyond, ended

FOLLOWED = 1e75  # widths to which a function is followed: its fourth power is a number still
POINTS = 2048
FEWEST = 64  # points from which the law of a tail can be read
NEGLIGIBLE = 1e-9  # a share of all mass
POWER = 0.05  # how far off a power of |x| the mass of a tail may be, relative to itself
LIKELY = 14.0  # nats below the highest density within which errors are stated, about 1e-6


def untold(prior: Implied, function: Function) -> float:
    """How far log α may be off because the prior goes on as a power of |x| beyond its table, in nats.

    ``function``, which the table is of, need not do so. It is followed to `FOLLOWED` widths, and what lies further out
    is taken to be a power of |x|: an error if that matters and the function is not seen to become one, as then nothing
    tells how much there is.
    """
    table = prior.table
    assert table is not None
    s = torch.linspace(table.END, math.asinh(FOLLOWED), POINTS, dtype=torch.float64)
    shares = (table.width * s.cosh() * (s[1] - s[0])).log() - prior.log_normaliser  # dx in the whole
    height = float(prior.exponent(torch.tensor([prior.place.centre], dtype=torch.float64)))
    apart, moved = 0.0, 0.0
    for side in (-1, 1):
        x = table.centre + side * table.width * s.sinh()
        told, values = prior.exponent(x), function(x)
        over = (~(values.abs() < LARGEST)).nonzero()
        count = int(over[0]) if len(over) else POINTS
        if count < FEWEST:  # numbers of finite size hold no more of the function, and it may go anywhere
            moved += _mass(told + shares, s)
            continue
        seen = prior.terms(x[:count]) + values[:count]
        apart = max(apart, float(((seen - told[:count]).abs() * (seen > height - LIKELY)).max()))
        off = abs(_mass(told + shares, s) - _mass(seen + shares[:count], s[:count]))
        moved += off + 4 * _off_a_power(seen + shares[:count], s[:count])
    return apart + math.log1p(moved)


def _mass(logs: Tensor, at: Tensor) -> float:
    """The mass of points with equal steps of log|x|, and of all beyond them by the law of the last quarter."""
    quarter = slice(-(len(logs) // 4), None)
    steps = torch.full_like(at, float(at[1] - at[0]))
    rest = beyond(logs[quarter], at[quarter], steps[quarter])
    return float(torch.logsumexp(torch.cat([ended(logs), rest]), 0).exp())


def _off_a_power(logs: Tensor, at: Tensor) -> float:
    """How far the mass of all points is off what the first three quarters foretell of the last and of all beyond it."""
    early = 3 * len(logs) // 4
    last = _mass(logs[early:], at[early:])
    off = abs(_mass(logs, at) - _mass(logs[: early + 1], at[: early + 1]))
    if last > NEGLIGIBLE and not off < POWER * last:  # and if it is infinite
        raise ValueError(
            f"the penalty grows so slowly that a share of {min(last, 1.0):.1g} or more of its prior lies beyond |μ| = "
            f"1e50, and not as a power of |μ|, so that nothing tells how much: let it grow faster, for instance with "
            f"penalties.L2(1e-6) added"
        )
    return off
