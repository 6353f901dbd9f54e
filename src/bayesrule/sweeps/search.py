"""The search itself: many trainings, each scored on data that none of them has seen."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from numbers import Integral
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import nn

from bayesrule import likelihoods, methods, modules, priors, seeds, temperatures
from bayesrule.data import Arrays, Batch, Data, as_data, hold_out
from bayesrule.jobs import elsewhere
from bayesrule.likelihoods import Likelihood
from bayesrule.methods import Method, Noise, Plan, default_epochs
from bayesrule.naming import unknown
from bayesrule.priors import Prior
from bayesrule.sweeps.job import SweepJob, Where, the_store
from bayesrule.sweeps.ranges import Range
from bayesrule.sweeps.results import Callback, Sweep, SweepProgress
from bayesrule.sweeps.space import Space, default_space
from bayesrule.sweeps.workers import side_by_side, work
from bayesrule.task import Task
from bayesrule.temperatures import Temperature, Tempering
from bayesrule.training import FitSettings, check_held_out, default_batch_size, default_temperature, fit

if TYPE_CHECKING:
    from bayesrule.sweeps.store import Store

SAMPLERS = ("tpe", "random")
USUAL: str = inspect.signature(fit).parameters["method"].default  # the method of a fit where nobody says


class Fixed(NamedTuple):
    """What all trials have in common, as for `br.fit`."""

    likelihood: str | Likelihood | None = None
    prior: str | float | Prior | None = None
    temperature: Tempering | None = None
    epochs: int | None = None
    batch_size: int | None = None

    def chosen(self) -> tuple[Likelihood | None, Prior | None, float | Temperature | None, int | None, int | None]:
        """Names as objects."""
        likelihood = prior = None
        if self.likelihood is not None:
            likelihood = likelihoods.choose(self.likelihood)
        if self.prior is not None:
            prior = priors.choose(self.prior)
        temperature = None if self.temperature is None else temperatures.choose(self.temperature)
        return likelihood, prior, temperature, self.epochs, self.batch_size


def sweep(
    model: nn.Module | Callable[[int], nn.Module],
    train: Any,
    method: str | Method | None = None,
    space: Mapping[str, Range] | None = None,
    trials: int = 50,
    sampler: str = "tpe",
    storage: str | Path | None = None,
    name: str = "sweep",
    seed: int = 0,
    val: Any = 0.2,
    jobs: int = 1,
    callbacks: Sequence[Callback] = (),
    **fixed: Any,
) -> Sweep:
    """Search for the settings with the lowest NLL of the posterior predictive on held-out data.

    Args:
        model: the module; every trial starts from its weights. Or a function that makes one of a given width, which
            the space then has to have.
        train: as for `br.fit`. A share of it is held out; test data have no place here.
        method: a name or an object, whose fields stand where the space does not say otherwise; None: that of `br.fit`.
        space: a range for each key (see `bayesrule.sweeps.space`); None: the usual ones of the method.
        trials: how many in all, those counted that the storage has already.
        sampler: ``tpe``, which learns from the trials before, or ``random``.
        storage: a file for SQLite, or an Optuna storage URL; None: memory, which ends with the process.
        name: of the study in the storage; the same one is continued.
        seed: the same seed gives the same trials, with one job or random search.
        val: the share of ``train`` to hold out, or held-out ``(X, y)`` in the user's units.
        jobs: processes side by side on this machine; within a block of `bayesrule.jobs.on`, how many workers are handed
            in to the executor, which must reach the storage.
        callbacks: called with a `SweepProgress` after each trial.
        fixed: likelihood and batch_size, and prior, epochs and temperature if the space lacks them, as for `br.fit`.

    >>> from bayesrule import data, models
    >>> found = sweep(models.mlp(2, 2, hidden=(8,)), data.moons(seed=0), "map", trials=3, epochs=2)
    >>> sorted(found.best.settings), len(found.trials)
    (['lr'], 3)
    """
    for key, number in (("trials", trials), ("jobs", jobs)):
        if isinstance(number, bool) or not isinstance(number, Integral) or number < 1:
            raise ValueError(f"{key} must be a whole number of at least 1, not {number!r}")
    if sampler not in SAMPLERS:
        raise unknown("sampler", sampler, SAMPLERS)
    beside = jobs > 1 or elsewhere()
    if beside and storage is None:
        raise ValueError(f"jobs={jobs} need a storage that processes share: give a file, such as storage='sweep.db'")
    kept = the_store()  # an error now if Optuna is missing
    chosen = methods.choose(USUAL if method is None else method)
    if space is None:
        space = default_space(chosen)
    searched = Space(space, chosen)
    given, belief, temperature, epochs, batch_size = Fixed(**fixed).chosen()
    model, make = _of_width(model, searched)
    data = as_data(train)
    rest, held = _cut(data, val, seed)
    rehearsed = default_temperature(chosen, belief) if temperature is None else temperature
    task = Task.create(model, rest, given, belief, rehearsed)
    check_held_out(task, held)
    length = _length(rest, epochs, batch_size)
    _rehearse(task, FitSettings(chosen, given, belief, rehearsed, *length, seed, None))
    # A copy: callbacks are the user's, and may go on training the model between two trials.
    job = SweepJob(
        modules.twin(model, shared=()),
        rest,
        held,
        searched,
        given,
        belief,
        temperature,
        epochs,
        batch_size,
        seed,
        make,
    )
    where = Where(kept.url_of(storage), name, sampler)
    with where.opened(job) as store:
        store.agree(job.about(data) | {"sampler": sampler})
        watch = _Watch(job, store, trials, callbacks)
        if beside:
            side_by_side(job, where, trials, jobs, watch.look)
        # One that died just now is found after the grace; two beats more, since databases may count whole seconds.
        for _ in work(job, store, trials, patience=kept.GRACE + 2 * kept.BEAT):
            watch.look()
        watch.look()
        return Sweep(tuple(job.trials(store, trials)), searched.ranges, len(store.running()))


def _of_width(
    model: nn.Module | Callable[[int], nn.Module], space: Space
) -> tuple[nn.Module, Callable[[int], nn.Module] | None]:
    """The module, or that of the least width and what makes the others."""
    searched = space.ranges.get("width")
    if isinstance(model, nn.Module):
        if searched is not None:
            raise ValueError(
                "space has a width, but model is a module, which has one already: give a function, "
                "model=lambda width: br.models.mlp(2, 2, hidden=(width, width))"
            )
        return model, None
    if searched is None:
        raise TypeError(f"model must be a torch.nn.Module where the space has no width, not {type(model).__name__}")
    found = model(int(str(searched.ends()[0])))
    if not isinstance(found, nn.Module):
        raise TypeError(f"model must be a function that makes a torch.nn.Module, but it gave {type(found).__name__}")
    return found, model


class _Watch:
    """Tells callbacks of trials that were not done when it began."""

    def __init__(self, job: SweepJob, store: Store, wanted: int, callbacks: Sequence[Callback]) -> None:
        self.job, self.store, self.wanted, self.callbacks = job, store, wanted, callbacks
        self.seen = set(store.done(wanted))

    def look(self) -> None:
        """Tell of what is new."""
        if len(self.store.done(self.wanted)) == len(self.seen):  # called several times a second, mostly for nothing
            return
        trials = list(self.job.trials(self.store, self.wanted))
        for trial in trials:
            if trial.number not in self.seen:
                self.seen.add(trial.number)
                # Of what has been told of, not of all: several may have come to their ends since the last look.
                known = [t for t in trials if t.number in self.seen and t.failed is None]
                best = min(known, key=lambda t: t.nll, default=None)
                for callback in self.callbacks:
                    callback(SweepProgress(trial, len(self.seen), self.wanted, best))


def _length(data: Data, epochs: int | None, batch_size: int | None) -> tuple[int, int]:
    """Epochs and batch size, as `br.fit` takes them."""
    if batch_size is None:
        batch_size = default_batch_size(data.n)
    if epochs is None:
        epochs = default_epochs(data.steps(batch_size))
    return epochs, batch_size


def _rehearse(task: Task, rehearsed: FitSettings) -> None:
    """Start the method, so that what is wrong with every trial is an error before the first."""
    plan = Plan(rehearsed.epochs, task.data.steps(rehearsed.batch_size), rehearsed.batch_size)
    with seeds.untouched(task.device):
        rehearsed.method.start(task, plan, Noise.on(task.device))


def _cut(data: Data, val: Any, seed: int) -> tuple[Data, Batch]:
    """What is trained on, and what is held out, in the user's units."""
    if data.weight is not None:
        raise ValueError("a sweep does not know weights of examples: give train=(X, y), and weigh the fit that follows")
    if not isinstance(val, int | float):
        if val is None:
            raise ValueError(
                "val must be held-out data (X, y) or a share such as 0.2, not None: trials are scored on it"
            )
        return data, as_data(val).raw()
    if not 0 < val < 1:
        raise ValueError(
            f"val must be held-out data (X, y), or a share of the training data between 0 and 1, not {val}"
        )
    if not isinstance(data, Arrays):
        raise ValueError(f"val={val} cannot be cut from data behind a loader: give held-out data, val=(X, y)")
    y = data.y
    if y.ndim != 1:  # nothing to stratify by
        y = torch.zeros(data.n)
    rest, held = hold_out(y, val, seed)
    if not len(rest) or not len(held):
        raise ValueError(f"val={val} of {data.n} examples leaves {len(rest)} to train on: more data are needed")
    return data.take(rest), data.take(held).raw()
