"""Who does the trainings: this process, or several beside it."""

from __future__ import annotations

import multiprocessing
import time
from collections.abc import Callable, Iterator
from multiprocessing.process import BaseProcess
from typing import TYPE_CHECKING, Any

import torch

from bayesrule.sweeps.job import Job, Where, the_store
from bayesrule.training import Progress

if TYPE_CHECKING:
    import optuna

    from bayesrule.sweeps.store import Store

POLL = 0.2  # seconds between looks at what the workers have done


def work(job: Job, store: Store, wanted: int) -> Iterator[None]:
    """Trials, one after the other, until no place is left."""
    while (claimed := store.claim(wanted)) is not None:
        trial, place = claimed
        try:
            settings = job.space.draw(lambda key, of, trial=trial: store.suggest(trial, key, of))  # type: ignore[misc]
            seed = the_store().training_seed(job.seed, place)
            outcome = job.train(job.space.candidate(settings), seed, _Pulse(store, trial))
            store.finish(trial, outcome, outcome.get("scores", {}).get("nll"))
        except BaseException:
            store.drop(trial)
            raise
        yield


class _Pulse:
    """A callback of `fit` that gives signs of life, and ends a worker whose parent is gone."""

    def __init__(self, store: Store, trial: optuna.Trial) -> None:
        self.store, self.trial, self.next = store, trial, time.monotonic() + the_store().BEAT

    def __call__(self, at: Progress) -> None:
        if (parent := multiprocessing.parent_process()) is not None and not parent.is_alive():
            raise SystemExit(143)
        if time.monotonic() >= self.next:
            self.store.live(self.trial)
            self.next = time.monotonic() + the_store().BEAT


def side_by_side(job: Job, where: Where, wanted: int, jobs: int, look: Callable[[], None]) -> None:
    """Workers on the same storage, watched until they are done."""
    spawn = multiprocessing.get_context("spawn")
    errors = spawn.SimpleQueue()
    threads = torch.get_num_threads()
    workers: list[BaseProcess] = [
        spawn.Process(target=_worker, args=(job, where, wanted, threads, errors)) for _ in range(jobs)
    ]
    try:
        for worker in workers:
            worker.start()
        while any(worker.is_alive() for worker in workers):
            time.sleep(POLL)
            look()
            if not errors.empty():
                raise errors.get()
        look()
        if bad := [worker.exitcode for worker in workers if worker.exitcode]:
            raise ChildProcessError(
                f"{len(bad)} of {jobs} workers ended with code {bad[0]} (out of memory?): use fewer jobs, "
                "and go on with the same call"
            )
    finally:
        for worker in workers:
            if worker.is_alive():
                worker.terminate()
            if worker.pid is not None:
                worker.join()


def _worker(job: Job, where: Where, wanted: int, threads: int, errors: Any) -> None:
    torch.set_num_threads(threads)
    try:
        with where.opened(job) as store:
            for _ in work(job, store, wanted):
                pass
    except KeyboardInterrupt:
        raise SystemExit(130) from None
    except Exception as error:
        errors.put(_portable(error))


def _portable(error: Exception) -> Exception:
    """An error that can go from process to process."""
    kind = type(error) if type(error).__module__ == "builtins" else RuntimeError
    try:
        return kind(str(error))
    except TypeError:
        return RuntimeError(repr(error))
