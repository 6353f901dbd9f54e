"""Checks of targets by kind: each gives y in the shape it should have, or an error that says how to mend it."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from bayesrule import tracing

IGNORED = -100
"""The label of a token that does not count: what torch's cross_entropy ignores."""


def shaped(kind: str, y: Tensor, shape: Sequence[int]) -> Tensor:
    """``y`` in ``shape``; only a dimension 1 of size 1 may be dropped, since anything else could broadcast unseen."""
    shape = list(shape)
    if y.is_complex() and not kind.startswith("categorical"):  # whose own words are about integers
        raise TypeError(f"{kind} must be real numbers: got {y.dtype}; give real and imaginary parts as two targets")
    if list(y.shape) == [*shape[:1], 1, *shape[1:]]:
        return y.squeeze(1)
    if list(y.shape) != shape:
        raise ValueError(
            f"{kind} must have shape {shape}, as the network's outputs do: got {list(y.shape)}; "
            f"reshape the targets or change the number of outputs"
        )
    return y


def labels(y: Tensor, shape: Sequence[int], classes: int) -> Tensor:
    """Class indices as int64."""
    if list(y.shape) == [*shape[:1], classes, *shape[1:]]:
        raise ValueError(
            f"categorical labels must be class indices of shape {list(shape)}: got {list(y.shape)}, which looks "
            f"one-hot; pass y.argmax(1), or use likelihood 'bernoulli' for several yes/no labels per example"
        )
    y = shaped("categorical labels", y, shape)
    if y.is_floating_point() or y.is_complex():
        raise TypeError(f"categorical labels must be integers: got {y.dtype}; pass y.long(), or use a real likelihood")
    y = y.long()
    if ((y < 0) | (y >= classes)).any():
        row, value = _first((y < 0) | (y >= classes), y)
        more = ""
        if value >= classes:
            more = f", or give the network {int(y.max()) + 1} outputs"
        raise ValueError(
            f"categorical labels must be integers in [0, {classes}): got {value:g} at row {row}; "
            f"pass labels as class indices{more}"
        )
    return y


def tokens(y: Tensor, shape: Sequence[int], vocabulary: int) -> Tensor:
    """Token numbers as int64, with `IGNORED` among them."""
    ignored = y == IGNORED
    labels(y.masked_fill(ignored, 0), shape, vocabulary)
    return y.long()


def answers(y: Tensor, shape: Sequence[int]) -> Tensor:
    """Zeros and ones."""
    y = shaped("bernoulli labels", y, shape)
    if ((y != 0) & (y != 1)).any():
        row, value = _first((y != 0) & (y != 1), y)
        raise ValueError(
            f"bernoulli labels must be 0 or 1: got {value:g} at row {row}; for more classes give the network one "
            f"output per class, for counts use likelihood 'poisson', for real numbers 'gaussian'"
        )
    return y


def reals(y: Tensor, shape: Sequence[int]) -> Tensor:
    """Finite real numbers."""
    y = shaped("real targets", y, shape)
    if not tracing.holds(y.isfinite()):
        row, value = _first(~y.isfinite(), y)
        raise ValueError(f"real targets must be finite: got {value:g} at row {row}; drop or fill such rows")
    return y


def positives(y: Tensor, shape: Sequence[int]) -> Tensor:
    """Finite real numbers above zero."""
    y = reals(y, shape)
    if not (y > 0).all():
        row, value = _first(~(y > 0), y)
        raise ValueError(
            f"log-normal targets must be positive: got {value:g} at row {row}; "
            f"for targets that reach zero or below use likelihood 'gaussian' or 'student', for counts 'poisson'"
        )
    return y


def counts(y: Tensor, shape: Sequence[int]) -> Tensor:
    """Whole numbers from 0 up, in any dtype."""
    y = shaped("counts", y, shape)
    bad = ~y.isfinite() | (y < 0)
    if y.is_floating_point():
        bad |= y != y.floor()
    if bad.any():
        row, value = _first(bad, y)
        raise ValueError(
            f"counts must be whole numbers from 0 up: got {value:g} at row {row}; "
            f"for real targets use likelihood 'gaussian'"
        )
    return y


def _first(bad: Tensor, y: Tensor) -> tuple[int, float]:
    return int(bad.nonzero()[0, 0]), float(y[bad][0])
