"""What people see: lines, tables and progress."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from bayesrule import processes
from bayesrule.report import Comparison, board
from bayesrule.training import Callback, Progress

EVERY = 5.0  # seconds between plain lines of progress
REFRESH = 0.25  # seconds between looks at the loss for a bar


def say(line: str) -> None:
    """A line for people, on stderr; of many processes the first one speaks."""
    if processes.rank() == 0:
        print(line, file=sys.stderr, flush=True)


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
    Console(width=None if sys.stdout.isatty() else 110, highlight=False).print(table)


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


@contextmanager
def progress(name: str) -> Iterator[Callback]:
    """A callback for `fit`: a bar on a terminal, a line now and then elsewhere, always on stderr."""
    if processes.rank() or not sys.stderr.isatty():
        yield _Lines(name)
        return
    from rich.console import Console
    from rich.progress import BarColumn, TextColumn, TimeRemainingColumn
    from rich.progress import Progress as Bar

    columns = (TextColumn("{task.description}"), BarColumn(), TextColumn("{task.fields[loss]}"), TimeRemainingColumn())
    with Bar(*columns, console=Console(stderr=True)) as bar:
        task = bar.add_task(f"{name:<16}", loss="")

        shown = 0.0

        def advance(at: Progress) -> None:
            nonlocal shown
            bar.update(task, completed=at.step, total=at.steps)
            if at.step == at.steps or time.monotonic() >= shown + REFRESH:  # a look at the loss waits for the device
                shown = time.monotonic()
                bar.update(task, loss=_loss(at))

        yield advance


class _Lines:
    """Plain lines of progress, the last one when the fit ends."""

    def __init__(self, name: str) -> None:
        self.name, self.next = name, time.monotonic() + EVERY

    def __call__(self, at: Progress) -> None:
        if at.step == at.steps or time.monotonic() >= self.next:
            self.next = time.monotonic() + EVERY
            say(f"{self.name}: epoch {at.epoch + 1} of {at.epochs}, {_loss(at)}")


def _loss(at: Progress) -> str:
    """The misfit to the batch, without the prior's share of the loss."""
    return f"NLL {at.logs.get('nll', at.logs['loss']):.3g}"
