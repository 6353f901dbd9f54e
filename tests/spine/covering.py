"""Which cases of a table run with every change; the rest of the product is marked slow."""

from collections.abc import Collection, Iterable
from typing import Any

import pytest


def later(*values: object, id: str | None = None) -> Any:
    """A case for ``make test-slow``."""
    return pytest.param(*values, marks=pytest.mark.slow, id=id)


def first(values: Iterable[object]) -> list[Any]:
    """The first of several seeds or sizes now, the others later."""
    head, *rest = values
    return [head, *(later(value) for value in rest)]


def chosen(rows: Collection[str], now: Collection[str]) -> list[Any]:
    """The rows named in ``now`` with every change, the others later."""
    _check(now, "now", rows)
    return [row if row in now else later(row) for row in rows]


def covering(
    rows: Collection[str],
    columns: Collection[str],
    *,
    of: int = 3,
    whole: Collection[str] = (),
    long: Collection[tuple[str, str]] = (),
) -> list[Any]:
    """All pairs: every ``of``-th of them now, shifted from row to row, so that each row and each column has some.

    Rows named in ``whole`` meet every column now: those whose code depends on the column. Pairs named in ``long`` take
    many times as long as others, and wait for ``make test-slow`` whatever their row.
    """
    _check(whole, "whole", rows)
    _check([row for row, _ in long], "long", rows)
    _check([column for _, column in long], "long", columns)
    pairs = []
    for i, row in enumerate(rows):
        for j, column in enumerate(columns):
            now = (row in whole or (i + j) % of == 0) and (row, column) not in long
            pairs.append(pytest.param(row, column, marks=() if now else pytest.mark.slow, id=f"{row}-{column}"))
    return pairs


def _check(given: Collection[str], name: str, known: Collection[str]) -> None:
    unknown = set(given) - set(known)
    if unknown:
        raise ValueError(f"{name} must name those of the table, not {sorted(unknown)}")
