"""What an experiment is asked, and what it answers."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

from bayesrule.data import load_set
from bayesrule.data.intake import split_fingerprint
from bayesrule.jobs import Answer, plain, run, told


def _silent(line: str) -> None:
    pass


@dataclass(frozen=True)
class Setting:
    """How to run an experiment.

    ``full``: on the data and at the length of the document rather than in minutes on embedded data. ``seed``: of
    everything random. ``data_dir``: where the official files are. ``jobs``: processes side by side. ``cache``: a
    directory that keeps each finished training, so that an interrupted experiment goes on where it stopped. ``tell``:
    called with a line about progress. ``device``: where `trials.run` trains its networks.
    """

    full: bool = False
    seed: int = 0
    data_dir: str | None = None
    jobs: int = 1
    cache: Path | None = None
    tell: Callable[[str], None] = _silent
    device: str = "cpu"

    def answers(
        self,
        ask: Callable[..., Answer],
        questions: Sequence[Any],
        key: Callable[[Any], Mapping[str, Any]] = plain,
        say: Callable[[Any, Answer], str] = told,
    ) -> list[Answer]:
        """``ask(question, data_dir)`` of each question, by `jobs.run`: one asked before is answered from the cache.

        The ``data`` of a question is the name of a set; other files by that name are another question.
        """

        def whole(question: Any) -> dict[str, Any]:
            name = getattr(question, "data", None)
            return {**key(question), "fingerprint": name and fingerprint(name, self.data_dir)}

        return run(ask, questions, (self.data_dir,), self.jobs, self.cache, self.tell, whole, say)


@dataclass(frozen=True)
class Claim:
    """A statement of a document beside what a run gave. ``held``: None if the run cannot tell."""

    source: str
    says: str
    measured: str
    held: bool | None


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


@cache
def fingerprint(data: str, data_dir: str | None) -> str:
    """Of all examples of a named set: what was learnt from other files by this name is not taken for it."""
    return split_fingerprint(load_set(data, data_dir))
