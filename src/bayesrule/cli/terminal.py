"""What people see: lines and tables."""

from __future__ import annotations

import json
import sys
import textwrap
from collections.abc import Sequence
from typing import Any

from bayesrule.processes import say
from bayesrule.report import Comparison, Opening, board

__all__ = ["say", "show_board", "show_json", "show_opening", "show_table"]


WIDTH = 110  # of lines where the terminal does not say


def show_json(result: Any) -> None:
    """The result for programs."""
    print(json.dumps(result, indent=2))


def show_table(columns: Sequence[str], rows: Sequence[Sequence[str]], right: bool = False) -> None:
    """The result for people; ``right`` aligns all columns but the first."""
    from rich import box
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for index, column in enumerate(columns):
        last = index == len(columns) - 1
        side = "right" if right and index else "left"
        table.add_column(escape(column), justify=side, no_wrap=right or not last)  # type: ignore[arg-type]
    for row in rows:
        table.add_row(*row)
    Console(width=None if sys.stdout.isatty() else WIDTH, highlight=False).print(table)


def show_opening(opening: Opening) -> None:
    """The verdict, and each scene in words."""
    print()
    for line in textwrap.wrap(opening.verdict, WIDTH):
        print(line)
    for scene in opening.scenes:
        print(f"\n{scene.title}")
        print(textwrap.fill(scene.says, WIDTH, initial_indent="  ", subsequent_indent="  "))


def show_board(comparison: Comparison) -> None:
    """The leaderboard, the best of each column bold."""
    measures, rows = board(comparison)
    shown = []
    for row in rows:
        scores = []
        for cell in row.cells:
            value = cell.value
            if cell.best:
                value = f"[bold]{value}[/bold]"
            if cell.null:
                value += f" ({cell.null})"
            scores.append(value)
        shown.append([row.name, *scores, row.cost])
    show_table(["method", *(measure.label for measure in measures), "training"], shown, right=True)
