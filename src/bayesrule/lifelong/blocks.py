"""A stream that does not tell where its tasks end, in blocks that do not depend on it."""

from __future__ import annotations

from bayesrule.data import inputs
from bayesrule.lifelong.memory import joined
from bayesrule.lifelong.streams import Chapter, Examples, Stream

Part = tuple[int, Chapter]  # something to learn, and how many came before it


class Blocks:
    """What a method learns of a stream, one after the other: its tasks, or blocks of ``stream.block`` examples.

    Without boundaries examples wait until a block of them is there, whatever tasks they are of, and what is left over
    is a last and shorter block: the same examples in the same order give the same blocks, wherever the tasks are cut.
    """

    def __init__(self, stream: Stream) -> None:
        self.stream = stream
        self.waiting: Examples | None = None
        self.count = 0

    def after(self, chapter: Chapter) -> list[Part]:
        """What is to be learnt once a task has come."""
        if self.stream.boundaries:
            return [self._part(chapter)]
        together = chapter.train if self.waiting is None else joined([self.waiting, chapter.train])
        size, total = self.stream.block, len(together[1])
        full = total // size * size
        found = [self._block(_between(together, start, start + size)) for start in range(0, full, size)]
        self.waiting = _between(together, full, total) if full < total else None
        return found

    def rest(self) -> list[Part]:
        """What is to be learnt once no task comes any more."""
        waiting, self.waiting = self.waiting, None
        return [] if waiting is None else [self._block(waiting)]

    def _block(self, examples: Examples) -> Part:
        # its test examples are asked for by nobody: tasks are judged, not blocks
        return self._part(Chapter(f"block {self.count + 1}", examples, examples, tuple(range(self.stream.classes))))

    def _part(self, chapter: Chapter) -> Part:
        self.count += 1
        return self.count - 1, chapter


def _between(examples: Examples, start: int, end: int) -> Examples:
    x, y = examples
    return inputs.each(lambda t: t[start:end], x), y[start:end]
