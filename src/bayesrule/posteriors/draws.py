"""Weights drawn from a seed, and kept for when the same seed is asked for again."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeAlias

import numpy as np
import torch
from torch import Tensor

from bayesrule import modules, tracing
from bayesrule.modules import Parameters
from bayesrule.posteriors.networks import Drawn, Runner, outside_inference_mode
from bayesrule.seeds import mixed

Fill: TypeAlias = Callable[[Tensor, torch.Generator], None]
"""Draws into the rows of a matrix."""
KEPT = 2**27
"""Bytes of drawn weights that a posterior keeps."""
CHUNK = 2**26
"""Bytes of weights that are drawn before any is used, where they are too many to keep."""
BLOCK = 2**18
"""Numbers that are drawn in one call: what a processor's cache holds. The draws of a seed depend on it."""


class Draws:
    """The networks that seeds give. The last ones asked for are kept, if they take at most `KEPT` bytes.

    A network is the runner's function under ``centre`` plus a row of what ``fill(rows, generator)`` draws, both in
    the names and shapes of ``like``; centre None is zero.
    """

    def __init__(self, runner: Runner, like: Parameters, fill: Fill, centre: Parameters | None = None) -> None:
        self.runner, self.like, self.fill, self.centre = runner, like, fill, centre
        self._kept: tuple[tuple[int, int], Drawn] | None = None

    def __getstate__(self) -> dict[str, Any]:
        """Without what is kept, which the seed gives again."""
        return {**self.__dict__, "_kept": None}

    def networks(self, count: int, seed: int) -> Iterator[Drawn]:
        """``count`` networks, as many at a time as memory allows."""
        kept = self._kept  # read once: another thread may replace it
        if kept is not None and kept[0] == (seed, count):
            yield kept[1]
            return
        first = next(iter(self.like.values()))
        numbers = sum(w.numel() for w in self.like.values())
        row = numbers * first.element_size()
        keep = count * row <= KEPT
        size = count if keep else max(1, CHUNK // row)
        for start in range(0, count, size):
            with outside_inference_mode():  # they are kept, for whoever asks next
                weights = room(min(size, count - start), numbers, first)
                self._fill(weights, mixed(seed, start))
            drawn = Drawn(self.runner, weights, self.like, mixed(seed, start, 1) // 2)
            if keep:
                self._kept = (seed, count), drawn
            yield drawn

    def _fill(self, weights: Tensor, seed: int) -> None:
        """Rows in blocks that stay in the cache, each from a seed of its own: the work of several threads.

        One generator for all blocks would make the draws depend on which thread comes first.
        """
        centre = None if self.centre is None else modules.flatten(self.centre)
        blocks = torch.split(weights, max(1, BLOCK // weights.shape[1]))

        def fill(index: int) -> None:
            generator = torch.Generator(weights.device).manual_seed(mixed(seed, index))
            self.fill(blocks[index], generator)
            if centre is not None:
                blocks[index].add_(centre)

        threads = min(torch.get_num_threads(), len(blocks)) if weights.device.type == "cpu" else 1
        if threads == 1:
            for index in range(len(blocks)):
                fill(index)
            return
        with ThreadPoolExecutor(threads) as pool:  # torch itself draws random numbers on one thread
            list(pool.map(fill, range(len(blocks))))  # the list: errors of a thread are raised when they are asked for


def room(rows: int, columns: int, like: Tensor) -> Tensor:
    """An empty matrix in the dtype and on the device of ``like``.

    NumPy asks the system for large pages where torch does not: the first touch of 60 MB takes 7 instead of 25 ms.
    """
    if like.device.type != "cpu":
        return like.new_empty(rows, columns)
    memory = np.empty(rows * columns * like.element_size(), np.uint8)
    return torch.from_numpy(memory).view(like.dtype).view(rows, columns)


@tracing.outside()
def seed_of(generator: torch.Generator) -> int:
    """One seed from a generator, for all that is to be drawn."""
    return int(torch.randint(2**62, (), generator=generator, device=generator.device))
