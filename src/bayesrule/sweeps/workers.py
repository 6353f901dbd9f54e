"""Who does the trainings: this process, or several beside it."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch

from bayesrule import jobs, modules
from bayesrule.sweeps.job import SweepJob, Where, the_store

if TYPE_CHECKING:
    import optuna

    from bayesrule.sweeps.store import Store


def work(job: SweepJob, store: Store, wanted: int, patience: float = 0.0) -> Iterator[None]:
    """Trials, one after the other, until no index is left.

    So long as others work, one of them may die: ``patience`` is how many seconds to wait for what it leaves.
    """

    def train(trial: optuna.Trial, index: int) -> dict[str, Any]:
        settings = job.space.draw(lambda key, of: store.suggest(trial, key, of))
        return job.train(job.space.candidate(settings), the_store().training_seed(job.seed, index))

    last = time.monotonic()
    while True:
        if store.step(wanted, train):
            last = time.monotonic()
            yield
        elif store.running() and time.monotonic() - last < patience:
            time.sleep(jobs.POLL)
        else:
            return


def side_by_side(job: SweepJob, where: Where, wanted: int, workers: int, look: Callable[[], None]) -> None:
    """Workers on the same storage, watched until they are done."""
    device = modules.device_of(job.model)
    sent = replace(
        job, model=modules.twin(job.model, shared=()).cpu()
    )  # few devices can share memory between processes
    for _ in jobs.finished(_worker, [(sent, device, where, wanted)] * workers, workers, look=look):
        pass


def _worker(job: SweepJob, device: torch.device, where: Where, wanted: int) -> None:
    job.model.to(device)
    with where.opened(job) as store:
        for _ in work(job, store, wanted):
            pass
