"""Plain answers to many questions, side by side, each kept when it is there."""

from __future__ import annotations

import hashlib
import json
import multiprocessing
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from dataclasses import asdict
from pathlib import Path
from typing import Any, TypeVar

from bayesrule.experiments.base import Setting, one_thread
from bayesrule.files import write_atomically

Q = TypeVar("Q")
Answer = dict[str, Any]
Ask = Callable[[Q, str | None], Answer]
"""A module's own function of a question (a dataclass of plain values) and the data directory, known by its name."""


def answers(ask: Ask[Q], questions: Sequence[Q], setting: Setting) -> list[Answer]:
    """What ``ask`` says to each question, in their order, in as many processes as the setting says.

    With a cache an answer is read from there if the same question was asked before.
    """
    paths = [None if setting.cache is None else setting.cache / f"{_key(ask, question)}.json" for question in questions]
    found = {place: _read(path) for place, path in enumerate(paths) if path is not None and path.is_file()}
    left = [place for place in range(len(questions)) if place not in found]
    for place, answer in _finished(ask, questions, left, setting):
        found[place] = json.loads(json.dumps(answer))  # the same whether it was kept or not
        setting.tell(f"{len(found)}/{len(questions)} {_said(questions[place])}")
        path = paths[place]
        if path is not None:
            write_atomically(path, json.dumps(answer))
    return [found[place] for place in range(len(questions))]


def _read(path: Path) -> Answer:
    found: Answer = json.loads(path.read_text(encoding="utf-8"))
    return found


def _finished(
    ask: Ask[Q], questions: Sequence[Q], places: Sequence[int], setting: Setting
) -> Iterator[tuple[int, Answer]]:
    if setting.jobs == 1 or len(places) < 2:
        for place in places:
            yield place, _alone(ask, questions[place], setting.data_dir)
        return
    spawn = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(setting.jobs, mp_context=spawn) as pool:
        futures: dict[Future[Answer], int] = {
            pool.submit(_alone, ask, questions[place], setting.data_dir): place for place in places
        }
        for future in as_completed(futures):
            yield futures[future], future.result()


@one_thread()
def _alone(ask: Ask[Q], question: Q, data_dir: str | None) -> Answer:
    return ask(question, data_dir)


def _key(ask: Ask[Q], question: Q) -> str:
    plain = {"ask": f"{ask.__module__}.{ask.__qualname__}", **asdict(question)}  # type: ignore[call-overload]
    return hashlib.sha256(json.dumps(plain, sort_keys=True).encode()).hexdigest()[:24]


def _said(question: object) -> str:
    fields: dict[str, Any] = vars(question)
    return ", ".join(f"{name} {value}" for name, value in fields.items())
