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


def covering(rows: Collection[str], columns: Collection[str], *, of: int = 3, whole: Collection[str] = ()) -> list[Any]:
    """All pairs: every ``of``-th of them now, shifted from row to row, so that each row and each column has some.

    Rows named in ``whole`` meet every column now: those whose code depends on the column.
    """
    unknown = set(whole) - set(rows)
    if unknown:
        raise ValueError(f"whole must name rows, not {sorted(unknown)}")
    pairs = []
    for i, row in enumerate(rows):
        for j, column in enumerate(columns):
            now = row in whole or (i + j) % of == 0
            pairs.append(pytest.param(row, column, marks=() if now else pytest.mark.slow, id=f"{row}-{column}"))
    return pairs
