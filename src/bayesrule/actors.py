"""Actors: objects that live in processes of their own, keep what they are given, and answer calls of their methods.

They are for work that comes in many small calls on something large that stays where it is, such as data. For one call
of each question, with answers that are kept in files, there is `bayesrule.jobs`.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import weakref
from collections.abc import Callable, Sequence
from multiprocessing.connection import Connection, wait
from multiprocessing.context import SpawnProcess
from pickle import PicklingError
from threading import Thread
from typing import Any, NoReturn

import torch


class Actors:
    """Objects ``make(*given)``, each in a process of its own that computes on so many threads.

    They end with this object, and with the process that made it, however that ends. ``make`` is a function or class of
    a module, known by its name, since it is called in another process; a script that comes to this line must guard it
    by ``if __name__ == "__main__":``, as Python asks for. Tensors go to and fro as NumPy's arrays, which are copied.

    >>> actors = Actors(list, ([3, 4],), count=1)
    >>> actors.tell("append", 5)
    >>> actors.ask("index", [(5,), (3,)])
    [2, 0]
    """

    def __init__(self, make: Callable[..., Any], given: tuple[Any, ...], count: int, threads: int = 1) -> None:
        # "spawn": a forked process would inherit torch's threads and locks, but not what holds them.
        context = multiprocessing.get_context("spawn")
        self._pipes: list[Connection] = []
        processes: list[SpawnProcess] = []
        self._finalizer = weakref.finalize(self, _end, processes, self._pipes)
        for _ in range(count):
            here, there = context.Pipe()
            process = context.Process(target=_serve, args=(there, make, given, threads), daemon=True)
            try:
                process.start()
            except (AttributeError, TypeError, PicklingError) as error:
                raise TypeError(
                    f"what another process works on must be known by the name of a module, which is not so here: "
                    f"{error}. Define it in a file that can be imported, or use one process"
                ) from error
            there.close()
            processes.append(process)
            self._pipes.append(here)

    def tell(self, name: str, *args: Any) -> None:
        """Call a method of all of them, and wait until they have done it."""
        for pipe in self._pipes:
            self._send(pipe, name, args)
        for pipe in self._pipes:
            self._receive(pipe)

    def ask(self, name: str, calls: Sequence[tuple[Any, ...]]) -> list[Any]:
        """What a method answers to each call, in the order of the calls; whichever of them is idle takes the next."""
        answers: dict[int, Any] = {}
        busy: dict[Connection, int] = {}
        idle = list(self._pipes)
        left = iter(enumerate(calls))
        while len(answers) < len(calls):
            while idle and (call := next(left, None)) is not None:
                pipe = idle.pop()
                self._send(pipe, name, call[1])
                busy[pipe] = call[0]
            for ready in wait(list(busy)):
                assert isinstance(ready, Connection)
                answers[busy.pop(ready)] = self._receive(ready)
                idle.append(ready)
        return [answers[index] for index in range(len(calls))]

    def _send(self, pipe: Connection, name: str, args: tuple[Any, ...]) -> None:
        try:
            pipe.send((name, args))
        except OSError as error:
            self._fail(error)

    def _receive(self, pipe: Connection) -> Any:
        try:
            error, answer = pipe.recv()
        except (EOFError, OSError) as gone:
            self._fail(gone)
        if error is not None:
            self._finalizer()
            raise error
        return answer

    def _fail(self, error: Exception) -> NoReturn:
        """One of them is gone: all are ended."""
        self._finalizer()
        raise ChildProcessError(
            f"one of {len(self._pipes)} processes could not start or was ended from outside (out of memory?): what it "
            "works on must be known to a new process, by modules that can be imported and not from a notebook's cells; "
            'in a script, guard the call by if __name__ == "__main__":. Or use one process'
        ) from error


def begin(count: int) -> None:
    """The start of a process that works for another one on so many threads, and ends with it, however that one ends."""
    torch.set_num_threads(count)
    Thread(target=_end_with_parent, daemon=True).start()


def portable(error: Exception) -> Exception:
    """An error that can go from process to process: not all survive pickling."""
    kind = type(error) if type(error).__module__ == "builtins" else RuntimeError
    try:
        return kind(str(error))
    except TypeError:
        return RuntimeError(repr(error))


def _serve(pipe: Connection, make: Callable[..., Any], given: tuple[Any, ...], threads: int) -> None:
    """The life of an actor."""
    begin(threads)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # which is for the process that it works for
    actor = make(*given)
    while True:
        try:
            name, args = pipe.recv()
        except EOFError:
            return
        failed, answer = None, None
        try:
            answer = getattr(actor, name)(*args)
        except Exception as error:
            failed = portable(error)
        pipe.send((failed, answer))


def _end(processes: Sequence[SpawnProcess], pipes: Sequence[Connection]) -> None:
    for pipe in pipes:
        pipe.close()
    for process in processes:
        process.terminate()
        process.join()


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()
    os._exit(143)
