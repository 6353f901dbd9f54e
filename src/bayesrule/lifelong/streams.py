"""Streams: tasks that come one after another."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

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

    ``heads``: ``"one"`` for all tasks, or ``"many"``: then inputs are ``(x, task)``, and a network has a head for each
    task (`br.models.MultiHead`). ``boundaries``: whether a method is told where a task ends. ``image_shape``: of
    inputs that are pictures.
    """

    name: str
    count: int
    make: Callable[[int], Chapter]
    classes: int
    heads: Heads = "one"
    boundaries: bool = True
    image_shape: tuple[int, int, int] | None = None

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> Chapter:
        if not 0 <= index < self.count:
            raise IndexError(f"the stream {self.name} has tasks 0 to {self.count - 1}, not {index}")
        return self.make(index)

    def __iter__(self) -> Iterator[Chapter]:
        return (self[index] for index in range(self.count))

    def first(self, count: int) -> Stream:
        """The stream of its first tasks alone."""
        if not 1 <= count <= self.count:
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


def of(tasks: Stream | Iterable[tuple[str, Any, Any]], name: str = "stream") -> Stream:
    """A stream of ``(name, train, test)``, train and test being ``(X, y)`` of arrays or tensors; one head for all.

    >>> x, y = torch.zeros(4, 2), torch.tensor([0, 1, 0, 1])
    >>> stream = of([("monday", (x, y), (x, y)), ("tuesday", (x + 1, y), (x + 1, y))])
    >>> len(stream), stream[1].name, stream.classes
    (2, 'tuesday', 2)
    """
    if isinstance(tasks, Stream):
        return tasks
    chapters: list[Chapter] = []
    for position, item in enumerate(tasks):
        if not isinstance(item, Sequence) or len(item) != 3:
            raise ValueError(f"task {position} of a stream must be (name, train, test), got {type(item).__name__}")
        train, test = (_examples(f"task {position} ({item[0]})", part) for part in item[1:])
        chapters.append(Chapter(str(item[0]), train, test, _classes(train[1])))
    if not chapters:
        raise ValueError("a stream must have at least one task, got none")
    _check_shapes(chapters)
    labels = [max(chapter.classes, default=-1) for chapter in chapters]
    return Stream(name, len(chapters), chapters.__getitem__, max(labels) + 1)


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


def _check_shapes(chapters: Sequence[Chapter]) -> None:
    """All inputs alike, training and test."""
    shapes = None
    for chapter in chapters:
        for part, (x, _) in (("train", chapter.train), ("test", chapter.test)):
            found = [(name, list(t.shape[1:])) for name, t in inputs.named(x)]
            shapes = shapes or found
            if found != shapes:
                raise ValueError(
                    f"all tasks of a stream must have inputs of one shape, but {part} of {chapter.name!r} has {found} "
                    f"and the first task has {shapes}"
                )


def permuted(split: Split, tasks: int, seed: int = 0) -> Stream:
    """The inputs' numbers in another order in each task, the first task as they are; the classes stay."""
    numbers = split.train[0][0].numel()

    def make(index: int) -> Chapter:
        order = torch.arange(numbers)
        if index:
            order = torch.randperm(numbers, generator=torch.Generator().manual_seed(mixed(seed, index)))
        train, test = ((x.flatten(1)[:, order], y) for x, y in (split.train, split.test))
        return Chapter(f"order {index}", train, test, tuple(range(len(split.classes))))

    return Stream(f"permuted {split.name}", tasks, make, len(split.classes))


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
