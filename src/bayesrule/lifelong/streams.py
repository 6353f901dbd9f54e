"""Streams: tasks that come one after another."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence, Sized
from dataclasses import dataclass, replace
from typing import Any, Literal, get_args

import torch
from torch import Tensor

from bayesrule.data import Inputs, Split, as_data, hold_out, inputs
from bayesrule.data.batches import Arrays
from bayesrule.data.pictures import turned
from bayesrule.seeds import mixed

Examples = tuple[Inputs, Tensor]
Heads = Literal["one", "many"]


@dataclass(frozen=True, eq=False)
class Chapter:
    """One task of a stream: its name, the examples to learn from and those to be judged on, and its classes."""

    name: str
    train: Examples
    test: Examples
    classes: tuple[int, ...] = ()


@dataclass(frozen=True, eq=False)
class Stream:
    """Tasks in their order, each made when it is asked for: ``stream[k]`` is a `Chapter`.

    ``count``: how many; None: nobody knows before ``make`` raises `End`. ``heads``: ``"one"`` for all tasks, or
    ``"many"``: then inputs are ``(x, task)``, and a network has a head for each task (`br.models.MultiHead`).
    ``boundaries``: whether a method is told where a task ends; if not, it learns ``block`` examples at a time, in the
    order in which they come. ``image_shape``: of inputs that are pictures, and ``orders``, of a task whose numbers are
    a picture's in another order, that order.
    """

    name: str
    count: int | None
    make: Callable[[int], Chapter]
    classes: int
    heads: Heads = "one"
    boundaries: bool = True
    image_shape: tuple[int, int, int] | None = None
    block: int = 1000
    orders: Callable[[int], Tensor] | None = None

    def __post_init__(self) -> None:
        if self.heads not in get_args(Heads):
            raise ValueError(f"heads must be 'one' or 'many', not {self.heads!r}")
        if self.block < 1:
            raise ValueError(f"block must be at least 1 example, not {self.block}")

    def __len__(self) -> int:
        if self.count is None:
            raise TypeError(f"nobody knows how many tasks {self.name} has before it ends: give a list of them")
        return self.count

    def __getitem__(self, index: int) -> Chapter:
        if index < 0 or (self.count is not None and index >= self.count):
            raise IndexError(f"the stream {self.name} has tasks 0 to {len(self) - 1}, not {index}")
        return self.make(index)

    def __iter__(self) -> Iterator[Chapter]:
        for index in itertools.count():
            if index == self.count:
                return
            try:
                chapter = self[index]
            except End:
                return
            yield chapter

    def first(self, count: int) -> Stream:
        """The stream of its first tasks alone."""
        if not 1 <= count <= len(self):
            raise ValueError(f"tasks must be from 1 to {self.count} of {self.name}, got {count}")
        return replace(self, count=count)

    def fewer(self, examples: int, seed: int = 0) -> Stream:
        """The same stream with at most so many training examples a task, as near as can be alike in all classes."""

        def make(index: int) -> Chapter:
            chapter = self[index]
            x, y = chapter.train
            if len(y) <= examples:
                return chapter
            _, kept = hold_out(y, examples / len(y), mixed(seed, index))
            return replace(chapter, train=(inputs.take(x, kept), y[kept]))

        return replace(self, make=make)

    def tuning(self, share: float = 0.1, seed: int = 0) -> Stream:
        """The stream to choose settings on: the test examples are a share of each task's training examples.

        >>> stream = digits("permuted", tasks=2)
        >>> [len(part[1]) for part in (stream[0].train, stream.tuning(0.25)[0].train, stream.tuning(0.25)[0].test)]
        [1438, 1078, 360]
        """

        def make(index: int) -> Chapter:
            chapter = self[index]
            x, y = chapter.train
            left, held = hold_out(y, share, mixed(seed, index))
            parts = [(inputs.take(x, rows), y[rows]) for rows in (left, held)]
            return replace(chapter, train=parts[0], test=parts[1])

        return replace(self, name=f"{self.name}, tuning", make=make)


class End(Exception):
    """There is no such task: the stream is over."""


def of(
    tasks: Stream | Iterable[tuple[str, Any, Any]],
    name: str = "stream",
    *,
    classes: int | None = None,
    heads: Heads = "one",
    boundaries: bool = True,
) -> Stream:
    """A stream of ``(name, train, test)``, train and test being ``(X, y)`` of arrays or tensors.

    A task is read when its turn comes, after those before it are learnt: a generator that fails midway costs none of
    them. ``classes``: how many all tasks have together (with many heads, how many a task has at most); None: those of a
    list's tasks, and of anything else those of the first task. ``heads``: ``"many"`` gives each task a head, and inputs
    are ``(X, task)``. ``boundaries``: see `Stream`.

    >>> x, y = torch.zeros(4, 2), torch.tensor([0, 1, 0, 1])
    >>> stream = of([("monday", (x, y), (x, y)), ("tuesday", (x + 1, y), (x + 1, y))])
    >>> len(stream), stream[1].name, stream.classes
    (2, 'tuesday', 2)
    """
    if isinstance(tasks, Stream):
        return tasks
    count = len(tasks) if isinstance(tasks, Sized) else None
    reader = _Reader(iter(tasks), heads)
    try:
        first = reader(0)
    except End:
        raise ValueError("a stream must have at least one task, got none") from None
    if classes is None:
        known = first.classes
        if isinstance(tasks, Sequence):  # all of it is here, and its targets may be looked at
            known = tuple(label for item in tasks for label in _labels(item))
        classes = max(known, default=-1) + 1
    return Stream(name, count, reader, classes, heads, boundaries)


class _Reader:
    """The tasks of an iterable, read one by one and kept. What reading one has raised is raised whenever it is asked
    for, since an iterator that has failed says afterwards that it is over."""

    def __init__(self, items: Iterator[tuple[str, Any, Any]], heads: Heads) -> None:
        self.items, self.heads = items, heads
        self.found: list[Chapter | Exception] = []

    def __call__(self, index: int) -> Chapter:
        while len(self.found) <= index:
            self.found.append(self._next())
        found = self.found[index]
        if isinstance(found, Exception):
            raise found
        return found

    def _next(self) -> Chapter | Exception:
        position = len(self.found)
        if position and isinstance(self.found[-1], Exception):
            return self.found[-1]
        try:
            return _chapter(position, next(self.items), self.heads)
        except StopIteration:
            return End(f"there are {position} tasks")
        except Exception as error:  # a generator's own: it is said when its task's turn comes
            return error


def _chapter(position: int, item: Any, heads: Heads) -> Chapter:
    if not isinstance(item, Sequence) or len(item) != 3:
        raise ValueError(f"task {position} of a stream must be (name, train, test), got {type(item).__name__}")
    train, test = (_examples(f"task {position} ({item[0]})", part) for part in item[1:])
    classes = _classes(train[1])
    if heads == "many":
        train, test = (_with_task(part, position) for part in (train, test))
    return Chapter(str(item[0]), train, test, classes)


def _with_task(examples: Examples, task: int) -> Examples:
    x, y = examples
    if not isinstance(x, Tensor):
        raise TypeError(f"X must be one array or tensor where each task has a head, got {type(x).__name__}")
    return (x, torch.full((len(y),), task)), y


def _labels(item: Any) -> tuple[int, ...]:
    """The classes of a task, if it is one; what is wrong with it is said when its turn comes."""
    try:
        return _classes(_examples("", item[1])[1])
    except Exception:
        return ()


def _examples(where: str, given: Any) -> Examples:
    try:
        data = as_data(given)
    except (ValueError, TypeError) as error:
        raise type(error)(f"{where}: {error}") from error
    if not isinstance(data, Arrays):
        raise TypeError(f"{where}: train and test must be (X, y) of arrays or tensors, got {type(given).__name__}")
    return data.all().x, data.all().y


def _classes(y: Tensor) -> tuple[int, ...]:
    """The classes among targets, or none if they are reals."""
    return () if y.is_floating_point() else tuple(sorted(set(y.flatten().tolist())))


def permuted(split: Split, tasks: int, seed: int = 0) -> Stream:
    """The inputs' numbers in another order in each task, the first task as they are; the classes stay."""
    numbers = split.train[0][0].numel()

    def order(index: int) -> Tensor:
        if not index:
            return torch.arange(numbers)
        return torch.randperm(numbers, generator=torch.Generator().manual_seed(mixed(seed, index)))

    def make(index: int) -> Chapter:
        own = order(index)
        train, test = ((x.flatten(1)[:, own], y) for x, y in (split.train, split.test))
        return Chapter(f"order {index}", train, test, tuple(range(len(split.classes))))

    name = f"permuted {split.name}"
    return Stream(name, tasks, make, len(split.classes), image_shape=split.image_shape, orders=order)


def rotated(split: Split, tasks: int, most: float = 180.0) -> Stream:
    """Pictures turned by more in each task, from 0 to ``most`` degrees in equal steps, by bilinear interpolation."""
    shape = _pictures(split)

    def make(index: int) -> Chapter:
        angle = most * index / max(tasks - 1, 1)
        train, test = ((_turned(x.reshape(-1, *shape), angle).flatten(1), y) for x, y in (split.train, split.test))
        return Chapter(f"{angle:.0f} degrees", train, test, tuple(range(len(split.classes))))

    return Stream(f"rotated {split.name}", tasks, make, len(split.classes), image_shape=shape)


def _turned(x: Tensor, degrees: float) -> Tensor:
    """Pictures [B, C, H, W] about their middle, a few thousand at once: each has a grid of its own."""
    return torch.cat([turned(part, torch.full((len(part),), degrees)) for part in torch.split(x, 4096)])


def _pictures(split: Split) -> tuple[int, int, int]:
    if split.image_shape is None:
        raise ValueError(f"{split.name} must be of pictures to be turned")
    return split.image_shape


def split_by_class(split: Split, each: int = 2, heads: Heads = "many") -> Stream:
    """``each`` classes a task. With ``heads="many"`` a task has labels of its own, 0 to each − 1, and inputs (x, task):
    Task-IL. With ``"one"`` labels stay as they are, and a network must tell all classes apart: Class-IL."""
    count = len(split.classes) // each

    def part(pair: tuple[Tensor, Tensor], index: int) -> Examples:
        x, y = pair
        rows = ((y >= index * each) & (y < (index + 1) * each)).nonzero()[:, 0]
        x, y = x[rows].flatten(1), y[rows]
        if heads == "one":
            return x, y
        return (x, torch.full_like(y, index)), y - index * each

    def make(index: int) -> Chapter:
        own = range(index * each, (index + 1) * each)
        name = " or ".join(split.classes[k] for k in own)
        classes = tuple(own) if heads == "one" else tuple(range(each))
        return Chapter(name, part(split.train, index), part(split.test, index), classes)

    classes = count * each if heads == "one" else each
    kind = "Class-IL" if heads == "one" else "Task-IL"
    return Stream(f"split {split.name}, {kind}", count, make, classes, heads, image_shape=split.image_shape)


def digits(kind: str = "permuted", tasks: int = 5) -> Stream:
    """A stream of scikit-learn's digits: ``"permuted"``, ``"task-il"`` or ``"class-il"``; it needs no files."""
    from bayesrule.data import load_set

    split = load_set("digits")
    if kind == "permuted":
        return permuted(split, tasks)
    return split_by_class(split, heads="many" if kind == "task-il" else "one").first(min(tasks, 5))


def toy(tasks: int = 5, examples: int = 200, seed: int = 0) -> Stream:
    """Two classes in the plane whose border is drawn piece by piece: task k shows the k-th stretch of a sine curve."""

    def sample(index: int, count: int, which: int) -> Examples:
        generator = torch.Generator().manual_seed(mixed(seed, index, which))
        u, v = torch.rand(2, count, generator=generator)
        across = -3.0 + 6.0 * (index + u) / tasks
        border = torch.sin(1.5 * across)
        side = (torch.arange(count) % 2).float()
        up = border + (2 * side - 1) * (0.15 + 1.2 * v)
        return torch.stack([across, up], 1), side.long()

    def make(index: int) -> Chapter:
        return Chapter(f"stretch {index + 1}", sample(index, examples, 0), sample(index, examples, 1), (0, 1))

    return Stream("toy", tasks, make, 2)
