"""Text that is at hand wherever the package is: docstrings, as sequences of words."""

from __future__ import annotations

import ast
import re
import sysconfig
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import torch
from torch import Tensor

from bayesrule.data import Batch

SOURCES = {"package": Path(__file__).parents[2], "python": Path(sysconfig.get_paths()["stdlib"])}
"""Where docstrings are read: the package itself, and Python's standard library, on which settings were chosen."""
ELSEWHERE = ("site-packages", "test", "tests", "idlelib", "lib2to3")  # not the library's own, and tests
PAD, UNKNOWN, END = range(3)
VOCABULARY, LENGTH, ROOMS = 256, 16, 6
FEWEST, MOST = 6, 3000  # words of a docstring that is used, and docstrings of a source
TESTED = 0.25  # the share of docstrings that nothing is learnt from
LABELLED = 300  # docstrings whose room is told


@dataclass(frozen=True, eq=False)
class Words:
    """Docstrings in numbers, a quarter of them to test on.

    ``train``, ``test``: running text [n, T], for a language model. ``labelled``, ``asked``: the first words of a
    docstring with their attention mask, and the room, that is the top folder, it is from.
    """

    train: Tensor
    test: Tensor
    labelled: Batch
    asked: Batch


def words(source: str, seed: int) -> Words:
    """The docstrings of a source, split by a seed."""
    found = _docstrings(source)
    order = torch.randperm(len(found), generator=torch.Generator().manual_seed(seed)).tolist()
    held = round(TESTED * len(found))
    parts = [[found[i] for i in order[:held]], [found[i] for i in order[held:]]]
    numbers = _numbers(parts[1])
    rooms = [room for room, _ in Counter(room for room, _ in found).most_common(ROOMS)]
    test, train = (_running(part, numbers) for part in parts)
    asked, known = (_labelled(part, numbers, rooms) for part in parts)
    return Words(train, test, known.take(torch.arange(min(LABELLED, len(known.y)))), asked)


@cache
def _docstrings(source: str) -> list[tuple[str, list[str]]]:
    """The room and the words of each docstring, in the order of the files."""
    root, found = SOURCES[source], []
    for path in sorted(root.rglob("*.py")):
        inside = path.relative_to(root)
        if len(inside.parts) > 1 and not set(inside.parts) & set(ELSEWHERE):
            for text in _texts(path):
                cut = re.findall(r"[^\W\d_]+|\d|[^\w\s]", text.partition(">>>")[0].lower())
                if len(cut) >= FEWEST:
                    found.append((inside.parts[0], cut))
    stride = max(1, len(found) // MOST)
    return found[::stride]


def _texts(path: Path) -> Iterator[str]:
    """The docstrings of a file; none of one that is no Python, as some of a library's own examples are."""
    try:
        tree = ast.parse(path.read_text(encoding="utf-8"))
    except (SyntaxError, ValueError):
        return
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            yield ast.get_docstring(node) or ""


def _numbers(texts: Sequence[tuple[str, list[str]]]) -> dict[str, int]:
    """The number of each of the most frequent words."""
    counts = Counter(word for _, text in texts for word in text)
    return {word: END + 1 + k for k, (word, _) in enumerate(counts.most_common(VOCABULARY - END - 1))}


def _running(texts: Sequence[tuple[str, list[str]]], numbers: dict[str, int]) -> Tensor:
    """All texts one after another, cut into sequences [n, T]."""
    found: list[int] = []
    for _, text in texts:
        found += [numbers.get(word, UNKNOWN) for word in text]
        found.append(END)
    whole = len(found) // LENGTH * LENGTH
    return torch.tensor(found[:whole]).view(-1, LENGTH)


def _labelled(texts: Sequence[tuple[str, list[str]]], numbers: dict[str, int], rooms: Sequence[str]) -> Batch:
    """The first words of the texts of some rooms, padded, with the number of the room."""
    of_rooms = [(room, text) for room, text in texts if room in rooms]
    ids = torch.full((len(of_rooms), LENGTH), PAD)
    for row, (_, text) in zip(ids, of_rooms, strict=True):
        cut = [numbers.get(word, UNKNOWN) for word in text[:LENGTH]]
        row[: len(cut)] = torch.tensor(cut)
    labels = torch.tensor([rooms.index(room) for room, _ in of_rooms])
    return Batch({"input_ids": ids, "attention_mask": (ids != PAD).long()}, labels)
