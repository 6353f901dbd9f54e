"""What a strategy is, what it knows after some tasks, and how it divides a task into examples to keep and the rest."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from typing import ClassVar

import torch
from torch import Tensor, nn

from bayesrule.data import inputs
from bayesrule.lifelong import memory as memories
from bayesrule.lifelong.fits import Fits
from bayesrule.lifelong.memory import Memory
from bayesrule.lifelong.streams import Chapter, Examples, Heads
from bayesrule.naming import Named
from bayesrule.posteriors import Posterior


@dataclass(frozen=True, eq=False)
class Past:
    """What is known after some tasks; before the first, nothing.

    ``posterior``: what predicts. ``belief``: the Gaussian that is the prior of the next task, for strategies that have
    one. ``memory``: examples that were kept. ``functions``: of each task, mean ``[M, C]`` and covariance
    ``[C, M, M]`` of what it says at the examples that were kept. ``seen``: all examples, for the one strategy that may.
    """

    posterior: Posterior | None = None
    belief: Posterior | None = None
    memory: Memory = field(default_factory=Memory)
    functions: tuple[tuple[Tensor, Tensor], ...] = ()
    seen: tuple[Examples, ...] = ()


class Strategy(Named, ABC):
    """A way to learn one task after another. ``heads``: of the only streams that it is for; None: it is for all."""

    summary: ClassVar[str]
    heads: ClassVar[Heads | None] = None

    @abstractmethod
    def learn(self, past: Past, chapter: Chapter, fits: Fits) -> Past:
        """What is known after one task more."""

    @property
    def needs_boundaries(self) -> bool:
        """Whether it must be told where a task ends."""
        return True


def keep(past: Past, rule: str, points: int, network: nn.Module, chapter: Chapter, fits: Fits) -> Memory:
    """The memory with examples of one task more."""
    x, y = chapter.train
    rows = memories.choose(rule, points, network, chapter.train, fits.likelihood, fits.generator())
    return past.memory.with_part((inputs.take(x, rows), y[rows]))


def divided(rule: str, points: int, network: nn.Module, chapter: Chapter, fits: Fits) -> tuple[Examples, Examples]:
    """The examples of a task to keep, and the rest to learn from."""
    x, y = chapter.train
    rows = memories.choose(rule, points, network, chapter.train, fits.likelihood, fits.generator())
    rest = torch.ones(len(y), dtype=torch.bool).index_fill(0, rows, False).nonzero()[:, 0]
    if not len(rest):
        raise ValueError(f"points must leave examples of {chapter.name!r} to learn from, but all are kept")
    return (inputs.take(x, rows), y[rows]), (inputs.take(x, rest), y[rest])
