"""Progress for people: a bar on a terminal, a line now and then elsewhere."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

from bayesrule import processes
from bayesrule.showing import time_left
from bayesrule.training.callbacks import Callback, Progress

EVERY = 5.0  # seconds between plain lines of progress
REFRESH = 0.25  # seconds between looks at the loss for a bar


@contextmanager
def shown(name: str) -> Iterator[Callback]:
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

        looked = -REFRESH

        def advance(at: Progress) -> None:
            nonlocal looked
            bar.update(task, completed=at.step, total=at.steps)
            if at.step == at.steps or time.monotonic() >= looked + REFRESH:  # a look at the loss waits for the device
                looked = time.monotonic()
                bar.update(task, loss=_loss(at))

        yield advance


class _Lines:
    """Plain lines of progress with the time that is left, the last one when the fit ends."""

    def __init__(self, name: str) -> None:
        self.name, self.began = name, time.monotonic()
        self.next = self.began + EVERY
        self.before: int | None = None  # steps of a fit that is resumed, which took no time here

    def __call__(self, at: Progress) -> None:
        now = time.monotonic()
        if self.before is None:
            self.before = at.step - 1
        if at.step == at.steps or now >= self.next:
            self.next = now + EVERY
            left = (now - self.began) / (at.step - self.before) * (at.steps - at.step)
            processes.say(f"{self.name}: epoch {at.epoch + 1} of {at.epochs}, {_loss(at)}{time_left(left)}")


def _loss(at: Progress) -> str:
    """The misfit to the batch, without the prior's share of the loss."""
    return f"NLL {at.logs.get('nll', at.logs['loss']):.3g}"
