"""Polynomials among functions that are known by their values only."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from bayesrule.penalties.equivalence.lines import Place, locate
from bayesrule.penalties.terms import Terms

DEGREE = 12
ROUNDING = 1e-13  # relative to 1 + |f|

Array = np.ndarray[tuple[int, ...], np.dtype[np.float64]]


def polynomial(function: Callable[[Tensor], Tensor]) -> Terms | None:
    """The function as a polynomial of at most twelfth degree, if it is one to rounding; else None.

    Fitted to values near and far, each relative to its size, and held against others between and beyond.

    >>> [round(c, 12) for c in polynomial(lambda x: 0.5 * x**2 + 3).polynomial]
    [3.0, 0.0, 0.5]
    >>> polynomial(lambda x: x.abs())
    """
    centre, width = locate(lambda x: -function(x))
    if not (np.isfinite(width) and abs(centre) < 1e7):
        centre, width = 0.0, 1.0
    if abs(centre) <= 1e-3 * width:  # most penalties are least at zero, where powers of x need no expansion
        centre = 0.0
    place = Place(centre, width)
    powers = _fitted(function, place)
    if powers is None or not _holds(function, powers, place):
        return None
    return _in_powers_of_x(powers, place)


def _sides(low: float, high: float, count: int) -> Array:
    side = np.geomspace(low, high, count)
    return np.concatenate([-side[::-1], [0.0], side])


def _values(function: Callable[[Tensor], Tensor], place: Place, u: Array) -> Array:
    found: Array = function(torch.from_numpy(place.centre + place.width * u)).numpy()
    return found


def _fitted(function: Callable[[Tensor], Tensor], place: Place) -> Array | None:
    """Coefficients of powers of u = (x − centre)/width; those that only fit rounding are zero."""
    u = _sides(0.03, 30, 50)
    values = _values(function, place, u)
    if not np.isfinite(values).all():
        return None
    columns = u[:, None] ** np.arange(DEGREE + 1) / (1 + np.abs(values))[:, None]
    sizes, target = np.abs(columns).max(0), values / (1 + np.abs(values))
    kept = np.ones(DEGREE + 1, bool)
    powers = np.zeros(DEGREE + 1)
    for _ in range(DEGREE + 1):
        powers = np.zeros(DEGREE + 1)
        powers[kept] = np.linalg.lstsq(columns[:, kept] / sizes[kept], target, rcond=None)[0] / sizes[kept]
        small = kept & (np.abs(powers) * sizes < 10 * ROUNDING)
        if not small.any():
            break
        kept &= ~small
    return powers


def _holds(function: Callable[[Tensor], Tensor], powers: Array, place: Place) -> bool:
    """At other places, each to rounding, out to 300 widths."""
    u = _sides(0.05, 300, 61)
    values, fitted = _values(function, place, u), np.polynomial.polynomial.polyval(u, powers)
    sizes = 1 + np.abs(values) + np.polynomial.polynomial.polyval(np.abs(u), np.abs(powers))
    return bool(np.isfinite(values).all() and (np.abs(values - fitted) < 100 * ROUNDING * sizes).all())


def _in_powers_of_x(powers: Array, place: Place) -> Terms:
    scaled = np.polynomial.Polynomial(powers / place.width ** np.arange(len(powers)))
    if place.centre:
        scaled = scaled(np.polynomial.Polynomial([-place.centre, 1.0]))
    coefficients = np.trim_zeros(scaled.coef, "b").tolist()
    return Terms(tuple(coefficients) or (0.0,))
