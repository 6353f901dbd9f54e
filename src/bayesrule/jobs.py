"""Jobs: one function of many questions, in several processes, each answer kept as soon as it is there.

Experiments, sweeps and benchmarks run on this. ``ask`` is a function of a module, known by its name, since it may be
called in another process. Where they are computed is said once, around all: in processes of this machine, or by an
executor of many (`on`).
"""

from __future__ import annotations

import hashlib
import json
import multiprocessing
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import fields
from pathlib import Path
from typing import Any, Protocol, TypeVar

import torch

from bayesrule import __version__
from bayesrule.actors import begin, portable
from bayesrule.files import write_atomically
from bayesrule.naming import Named, to_spec
from bayesrule.showing import time_left

Q = TypeVar("Q")
Answer = dict[str, Any]  # plain data, as JSON has it
POLL = 0.2  # seconds between looks at what other processes have done


class Pending(Protocol):
    """A call that was handed in: a `concurrent.futures.Future`, or what is like one."""

    def done(self) -> bool:
        """Whether there is an answer or an error."""

    def result(self) -> Any:
        """The answer; the error is raised."""

    def cancel(self) -> object:
        """It is not wanted any more."""


class Executor(Protocol):
    """Where calls go: a `concurrent.futures.Executor`, Dask's ``client.get_executor()``, an executor of submitit."""

    def submit(self, fn: Callable[..., Any], /, *args: Any) -> Pending:
        """Hand a call in."""


_ELSEWHERE: ContextVar[Executor | None] = ContextVar("elsewhere", default=None)


@contextmanager
def on(executor: Executor) -> Iterator[None]:
    """Within this block, jobs are handed in to this executor, whatever number of processes they ask for.

    Its processes must have this library and the module of ``ask``, and see the files that jobs read. Answers are kept
    here, one by one as they come, so that what is lost with a machine is at most what it was at.

    >>> from concurrent.futures import ProcessPoolExecutor
    >>> with ProcessPoolExecutor(1) as pool, on(pool):
    ...     list(finished(abs, [(-3,), (4,)]))
    [(0, 3), (1, 4)]
    """
    if not callable(getattr(executor, "submit", None)):
        raise TypeError(
            f"an executor must have submit(function, *args), which {type(executor).__name__} has not: a "
            "concurrent.futures.Executor, client.get_executor() of Dask, or an executor of submitit"
        )
    token = _ELSEWHERE.set(executor)
    try:
        yield
    finally:
        _ELSEWHERE.reset(token)


def elsewhere() -> bool:
    """Whether jobs are handed in to an executor: within a block of `on`.

    >>> elsewhere()
    False
    """
    return _ELSEWHERE.get() is not None


def plain(question: Any) -> dict[str, Any]:
    """The fields of a question."""
    return {field.name: getattr(question, field.name) for field in fields(question)}


def told(question: Any, answer: Answer) -> str:
    """A question in words."""
    return ", ".join(f"{name} {value}" for name, value in plain(question).items())


def always(answer: Answer) -> bool:
    """Every answer is kept."""
    return True


def run(
    ask: Callable[..., Answer],
    questions: Sequence[Q],
    given: tuple[Any, ...] = (),
    processes: int = 1,
    cache: Path | None = None,
    tell: Callable[[str], object] | None = None,
    key: Callable[[Q], Mapping[str, Any]] = plain,
    say: Callable[[Q, Answer], str] = told,
    lasts: Callable[[Answer], bool] = always,
) -> list[Answer]:
    """``ask(question, *given)`` of each question, in their order, computed on one thread each.

    Args:
        ask: gives plain data.
        questions: dataclasses.
        given: what else to call it with; it does not change the answers.
        processes: how many side by side.
        cache: a directory that keeps the answers, so that what was interrupted goes on where it stopped.
        tell: called with a line after each job: how many are done, what it was, and the time that is left.
        key: all that decides the answer; the name of ``ask`` and the version of the library count always.
        say: a question and its answer in words.
        lasts: whether an answer is kept; another one is asked for again by the same call.
    """
    paths: list[Path | None] = [None] * len(questions)
    found: dict[int, Answer] = {}
    if cache is not None:
        for index, question in enumerate(questions):
            path = paths[index] = cache / f"{_digest(ask, key(question))}.json"
            if path.is_file():
                found[index] = _read(path)
    left = [index for index in range(len(questions)) if index not in found]
    calls = [(questions[index], *given) for index in left]
    began = time.monotonic()
    for done, (which, answer) in enumerate(finished(ask, calls, processes, count=1), 1):
        index, text = left[which], json.dumps(answer)
        found[index] = json.loads(text)  # the same whether it was kept or not
        if (kept := paths[index]) is not None and lasts(found[index]):
            write_atomically(kept, text)
        if tell is not None:
            wait_for = (time.monotonic() - began) / done * (len(left) - done)
            tell(f"{len(found)}/{len(questions)} {say(questions[index], answer)}{time_left(wait_for)}")
    return [found[index] for index in range(len(questions))]


def finished(
    ask: Callable[..., Any],
    calls: Sequence[tuple[Any, ...]],
    processes: int = 1,
    count: int | None = None,
    look: Callable[[], object] | None = None,
) -> Iterator[tuple[int, Any]]:
    """The index of a call and ``ask(*call)``, in the order in which they are done, on ``count`` threads each.

    ``look`` is called now and then, while other processes work. Whatever ends this early ends them, too.
    """
    if count is None:
        count = torch.get_num_threads()
    if (executor := _ELSEWHERE.get()) is not None:
        yield from _handed_in(executor, ask, calls, count, look)
        return
    if processes == 1 or len(calls) < 2:
        for index, call in enumerate(calls):
            with threads(count):
                answer = ask(*call)
            yield index, answer
        return
    # "spawn": a forked process would inherit torch's threads and locks, but not what holds them.
    others = set(multiprocessing.active_children())
    pool = ProcessPoolExecutor(processes, multiprocessing.get_context("spawn"), begin, (count,))
    try:
        yield from _handed_in(pool, ask, calls, count, look)
    except BrokenProcessPool as error:
        raise ChildProcessError(
            f"one of {processes} processes was ended from outside (out of memory?): use fewer jobs, and go on with "
            "the same call"
        ) from error
    except BaseException:
        for child in set(multiprocessing.active_children()) - others:
            child.terminate()
        raise
    finally:
        pool.shutdown(cancel_futures=True)


def _handed_in(
    executor: Executor, ask: Callable[..., Any], calls: Sequence[tuple[Any, ...]], count: int, look: Any
) -> Iterator[tuple[int, Any]]:
    """All calls at once, and each answer when it is there."""
    waiting: dict[Pending, int] = {}
    try:
        for index, call in enumerate(calls):
            waiting[executor.submit(_asked, ask, call, count)] = index
        while waiting:
            done = _done(waiting)
            if look is not None:
                look()
            for pending in done:
                yield waiting.pop(pending), pending.result()
    finally:
        for pending in waiting:
            pending.cancel()


def _done(waiting: Mapping[Pending, int]) -> list[Pending]:
    """Those that are done by now, or after a while."""
    if all(isinstance(pending, Future) for pending in waiting):
        wait(waiting, POLL, FIRST_COMPLETED)  # type: ignore[arg-type]
    elif not any(pending.done() for pending in waiting):
        time.sleep(POLL)
    return [pending for pending in waiting if pending.done()]


@contextmanager
def threads(count: int = 1) -> Iterator[None]:
    """Within this block, or in a function that this decorates, torch computes on so many threads.

    >>> with threads(1):
    ...     torch.get_num_threads()
    1
    """
    if count < 1:
        raise ValueError(f"threads must be at least 1, got {count}")
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _asked(ask: Callable[..., Any], call: tuple[Any, ...], count: int) -> Any:
    try:
        with threads(count):
            return ask(*call)
    except Exception as error:
        raise portable(error) from None


def _read(path: Path) -> Answer:
    found: Answer = json.loads(path.read_text(encoding="utf-8"))
    return found


def _digest(ask: Callable[..., Any], key: Mapping[str, Any]) -> str:
    about = [__version__, f"{ask.__module__}.{ask.__qualname__}", dict(key)]
    return hashlib.sha256(json.dumps(about, sort_keys=True, default=_words).encode()).hexdigest()[:24]


def _words(thing: Any) -> Any:
    """A method, a prior or a function in a key."""
    if isinstance(thing, Named):
        return to_spec(thing)
    if callable(thing):
        return f"{thing.__module__}.{thing.__qualname__}"
    return str(thing)
