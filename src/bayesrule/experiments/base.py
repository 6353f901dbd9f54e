"""What an experiment is asked, and what it answers."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from matplotlib.figure import Figure


def _silent(line: str) -> None:
    pass


@dataclass(frozen=True)
class Setting:
    """How to run an experiment.

    ``full``: on the data and at the length of the document rather than in minutes on embedded data. ``seed``: of
    everything random. ``data_dir``: where the official files are. ``jobs``: processes side by side. ``cache``: a
    directory that keeps each finished training, so that an interrupted experiment goes on where it stopped. ``tell``:
    called with a line about progress.
    """

    full: bool = False
    seed: int = 0
    data_dir: str | None = None
    jobs: int = 1
    cache: Path | None = None
    tell: Callable[[str], None] = _silent


@dataclass(frozen=True)
class Claim:
    """A statement of a document beside what a run gave."""

    source: str
    says: str
    measured: str
    held: bool


@dataclass(frozen=True)
class Result:
    """What an experiment found: claims, the numbers behind them as plain data, and a figure.

    ``draw`` draws on an empty figure; ``size`` is the figure's in inches.
    """

    claims: tuple[Claim, ...]
    data: dict[str, Any]
    draw: Callable[[Figure], None]
    size: tuple[float, float] = (8.0, 3.2)
    notes: tuple[str, ...] = field(default=())


@contextmanager
def one_thread() -> Iterator[None]:
    """Within this block, or in a function that this decorates, torch computes on one thread: small networks gain none.

    >>> with one_thread():
    ...     torch.get_num_threads()
    1
    """
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)
