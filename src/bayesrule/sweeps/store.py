"""Where trials are kept: an Optuna study, and who works on which of its trials.

The trials of a sweep have the indices 0 to T − 1. What is drawn for an index, and the seed that it is trained with, are
functions of (seed, index); for TPE of the trials before it, too. Optuna's own numbers count attempts.

Whoever is free puts the first free index into the queue of the study and takes a trial from there, which Optuna gives
to one worker only. Should two have put in the same index, the trial with the higher number is dropped. A trial whose
worker died is failed, which frees its index: so no index is done twice, from however many processes and machines, and
none is lost.

A dead worker is found in three ways. On the same machine its process is gone, which is seen at once. On another one
Optuna's heartbeat stops. And a worker that died before its first heartbeat never signed the trial that it took.

Only this module needs Optuna.
"""

from __future__ import annotations

import os
import socket
import time
import warnings
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any
from urllib.parse import quote

import numpy as np
import optuna
from optuna.distributions import BaseDistribution, CategoricalDistribution, FloatDistribution, IntDistribution
from optuna.samplers import BaseSampler, TPESampler
from optuna.storages import RDBStorage, fail_stale_trials
from optuna.trial import FrozenTrial, TrialState
from sqlalchemy import make_url
from sqlalchemy.exc import IntegrityError, OperationalError, ProgrammingError, SQLAlchemyError

from bayesrule.sweeps.ranges import Choice, Log, Range, Value, Whole

BEAT = 15  # seconds between signs of life
GRACE = 60  # seconds without one after which a worker counts as dead
FEWEST = 10  # trials of which one can be the best tenth
SETTINGS, INDEX, OUTCOME = "bayesrule", "index", "outcome"
QUEUED_BY, TAKEN_BY = "queued by", "taken by"  # workers of a trial: who put it into the queue, who trains it
DRAWS, TRAINING = range(2)  # what a seed is for
DONE = (TrialState.COMPLETE, TrialState.PRUNED)
TAKEN = (*DONE, TrialState.RUNNING, TrialState.WAITING)


class Superfluous(Exception):
    """A trial that nobody needs: its index is another one's."""


def seed_of(*key: int) -> int:
    """One well mixed seed of 32 bits from several numbers."""
    return int(np.random.SeedSequence(key).generate_state(1)[0])


def training_seed(seed: int, index: int) -> int:
    """The seed that an index is trained with."""
    return seed_of(seed, TRAINING, index)


def url_of(storage: str | Path | None) -> str | None:
    """The URL of a storage: a file is SQLite's; None is memory."""
    if storage is None:
        return None
    if "://" in str(storage):
        return str(storage)
    path = Path(storage).expanduser().resolve()
    path.parent.mkdir(parents=True, exist_ok=True)
    # Written as a URL's characters: ? begins a query there, % a code, and Optuna fills in {placeholders}.
    written = quote(path.as_posix())
    if make_url("sqlite:///%3F").database == "?":
        return f"sqlite:///{written}"
    return f"sqlite:///file:{written}?uri=true"  # an SQLAlchemy that leaves them as they are: SQLite reads them


def shown(url: str) -> str:
    """A URL without its password."""
    head, at, tail = url.rpartition("@")
    scheme, _, account = head.partition("://")
    user, colon, _ = account.partition(":")
    if not at or not colon:
        return url
    return f"{scheme}://{user}:***@{tail}"


@contextmanager
def quiet() -> Iterator[None]:
    """Within this block Optuna tells errors only, and what it calls experimental is no warning."""
    before = optuna.logging.get_verbosity()
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
            yield
    finally:
        optuna.logging.set_verbosity(before)


@contextmanager
def opened(url: str | None, name: str, sampler: str, seed: int, ranges: Mapping[str, Range]) -> Iterator[Store]:
    """The study called ``name`` at ``url``, begun if there is none; its connections are closed in the end."""
    with quiet():
        storage = None
        if url is not None:
            storage = _connect(url)
        try:
            drawn = SettingSampler(sampler, seed, ranges)
            study = optuna.create_study(storage=storage, study_name=name, sampler=drawn, load_if_exists=True)
            yield Store(study, storage)
        finally:
            if storage is not None:
                storage.remove_session()
                storage.engine.dispose()


def _connect(url: str, tries: int = 5) -> RDBStorage:
    waiting = {}
    if url.startswith("sqlite"):  # one writer at a time: others wait for their turn
        waiting = {"connect_args": {"timeout": 60}}
    try:
        return RDBStorage(url, engine_kwargs=waiting, heartbeat_interval=BEAT, grace_period=GRACE)
    except (IntegrityError, OperationalError, ProgrammingError) as error:  # another one makes the tables just now
        if tries == 1:
            raise _unusable(url, error) from None
    except (SQLAlchemyError, optuna.exceptions.StorageInternalError) as error:
        raise _unusable(url, error) from None
    time.sleep(0.3)
    return _connect(url, tries - 1)


def _unusable(url: str, error: Exception) -> OSError:
    why = str(getattr(error, "orig", None) or error).splitlines()[0]
    rule = "storage must be a file, or a URL such as mysql://user@host/base, that can be opened"
    return OSError(f"{rule}, got {shown(url)}: {why}")


class SettingSampler(BaseSampler):
    """Settings as functions of (seed, index, key), and for TPE of all trials that are done."""

    def __init__(self, kind: str, seed: int, ranges: Mapping[str, Range]) -> None:
        self.kind, self.seed, self.ranges = kind, seed, ranges

    def infer_relative_search_space(self, study: optuna.Study, trial: FrozenTrial) -> dict[str, BaseDistribution]:
        """None: each setting is drawn by itself, so that one may depend on another."""
        return {}

    def sample_relative(
        self, study: optuna.Study, trial: FrozenTrial, search_space: dict[str, BaseDistribution]
    ) -> dict[str, Any]:
        """Nothing."""
        return {}

    def sample_independent(
        self, study: optuna.Study, trial: FrozenTrial, param_name: str, param_distribution: BaseDistribution
    ) -> Any:
        """One setting of a trial."""
        of = self.ranges[param_name]
        seed = seed_of(self.seed, DRAWS, trial.user_attrs[INDEX], zlib.crc32(param_name.encode()))
        if self.kind == "random":
            return of.at(np.random.default_rng(seed).random())
        # A new sampler for each setting, so that what is drawn does not depend on what this process drew before. A
        # constant liar takes running trials for bad ones, so that two workers do not try the same.
        tpe = TPESampler(seed=seed, multivariate=False, constant_liar=True)
        return of.tidy(tpe.sample_independent(study, trial, param_name, param_distribution))


class Store:
    """A study, and the database that it is in; None is memory."""

    def __init__(self, study: optuna.Study, storage: RDBStorage | None) -> None:
        self.study, self.storage = study, storage
        self._unsigned_since: dict[int, float] = {}  # by the number of a trial that runs

    def agree(self, settings: Mapping[str, str]) -> None:
        """Refuse to go on with a sweep that was begun with other settings."""
        known = self.study.user_attrs.get(SETTINGS)
        if known is None:
            if self.study.get_trials(deepcopy=False):
                raise ValueError(f"the study {self.study.study_name!r} is not one of a sweep: give another name")
            self.study.set_user_attr(SETTINGS, dict(settings))
            return
        for key, value in settings.items():
            if known.get(key) != value:
                raise ValueError(
                    f"the sweep {self.study.study_name!r} was begun with {key} {known.get(key)}, not {value}: go on "
                    "with what it was begun with, or begin another one with another name or storage"
                )

    def step(self, wanted: int, train: Callable[[optuna.Trial, int], Mapping[str, Any]]) -> bool:
        """One of the wanted indices that nobody has, if there is one: ``train(trial, index)`` gives its outcome.

        An outcome with ``scores`` is worth their ``nll``; one without broke off.
        """
        fail_stale_trials(self.study)
        self._fail_orphans()
        queue = self.study.get_trials(deepcopy=False, states=(TrialState.WAITING,))
        free = self._free(wanted)
        if not queue and not free:
            return False
        if not queue:
            self.study.enqueue_trial({}, {INDEX: free[0], QUEUED_BY: worker()})
        lost = False

        def objective(trial: optuna.Trial) -> float:
            nonlocal lost
            try:
                self._sign(trial)
                index = self._index(trial, wanted)
                outcome = dict(train(trial, index))
                trial.set_user_attr(OUTCOME, outcome)
            except optuna.exceptions.UpdateFinishedTrialError as error:  # others gave it up for dead: theirs now
                lost = True
                raise Superfluous from error
            if "scores" not in outcome:
                raise optuna.TrialPruned(outcome["failed"])
            return float(outcome["scores"]["nll"])

        try:
            self.study.optimize(objective, n_trials=1, catch=(Superfluous,))
        except Exception:  # Optuna cannot tell a trial its end that others have ended
            if not lost:
                raise
        return True

    def _sign(self, trial: optuna.Trial) -> None:
        """Note who trains this, after a heartbeat: Optuna never gives up a trial that had none.

        Its thread of heartbeats has begun by now, but need not have come to the first.
        """
        if self.storage is not None:
            self.storage.record_heartbeat(trial._trial_id)
        trial.set_user_attr(TAKEN_BY, worker())

    def _fail_orphans(self) -> None:
        """Fail the trials whose worker's process is gone, and those that nobody signs."""
        now = time.monotonic()
        for trial in self.running():
            signed = TAKEN_BY in trial.user_attrs
            # Whoever queues a trial takes it next, as a rule. Should a third one have taken it and not signed yet, it
            # finds out when it does, and goes on with another.
            by = trial.user_attrs.get(TAKEN_BY, trial.user_attrs.get(QUEUED_BY))
            orphan = by is not None and gone(by)
            if not signed and not orphan:
                # By this process's clock, since those of other machines may differ.
                orphan = now - self._unsigned_since.setdefault(trial.number, now) > GRACE
            if orphan:
                with suppress(optuna.exceptions.UpdateFinishedTrialError):  # by another worker, a moment ago
                    self.study.tell(trial.number, state=TrialState.FAIL, skip_if_finished=True)

    def _index(self, trial: optuna.Trial, wanted: int) -> int:
        """The index of a trial that was taken from the queue."""
        index = trial.user_attrs.get(INDEX, wanted)
        others = self.study.get_trials(deepcopy=False, states=TAKEN)
        if index >= wanted or any(t.number < trial.number and t.user_attrs.get(INDEX) == index for t in others):
            raise Superfluous
        return int(index)

    def suggest(self, trial: optuna.Trial, key: str, of: Range) -> Value:
        """A setting of a trial."""
        match distribution(of):
            case FloatDistribution() as d:
                return trial.suggest_float(key, d.low, d.high, log=d.log)
            case IntDistribution() as d:
                return trial.suggest_int(key, d.low, d.high)
            case CategoricalDistribution() as d:
                return trial.suggest_categorical(key, d.choices)
        raise TypeError(f"{key} must have a range, not {of!r}")

    def done(self, wanted: int) -> dict[int, FrozenTrial]:
        """The trials that came to an end, by index."""
        found = {t.user_attrs[INDEX]: t for t in self.study.get_trials(deepcopy=False, states=DONE)}
        return {index: found[index] for index in sorted(found) if index < wanted}

    def running(self) -> list[FrozenTrial]:
        """The trials that somebody works on."""
        return self.study.get_trials(deepcopy=False, states=(TrialState.RUNNING,))

    def _free(self, wanted: int) -> list[int]:
        taken = {t.user_attrs.get(INDEX) for t in self.study.get_trials(deepcopy=False, states=TAKEN)}
        return [index for index in range(wanted) if index not in taken]


def worker() -> list[str | int]:
    """This process: where its number means one process only, and the number."""
    try:
        container = os.readlink("/proc/self/ns/pid")  # containers may share a host's name, not its processes
    except OSError:
        container = ""
    return [f"{socket.gethostname()} {container}", os.getpid()]


def gone(by: Sequence[Any]) -> bool:
    """Whether a worker was on this machine and is no more.

    >>> gone(worker()), gone(["elsewhere", 1])
    (False, False)
    """
    where, process = by
    if where != worker()[0] or os.name != "posix":  # elsewhere than in POSIX signal 0 is not a question, but the end
        return False
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return True
    except PermissionError:
        pass
    return False


def distribution(of: Range) -> BaseDistribution:
    """A range for Optuna."""
    if isinstance(of, Choice):
        return CategoricalDistribution(of.options)
    low, high = of.ends()
    assert isinstance(low, int | float)
    assert isinstance(high, int | float)
    if isinstance(of, Whole):
        return IntDistribution(int(low), int(high))
    return FloatDistribution(low, high, isinstance(of, Log))


def importance(trials: list[tuple[dict[str, Value], float]], ranges: Mapping[str, Range]) -> dict[str, float]:
    """The share of each setting in what sets the best tenth of trials apart (Watanabe, Bansal and Hutter 2023).

    Empty for fewer than `FEWEST` trials.
    """
    if len(trials) < FEWEST:
        return {}
    with quiet():
        warnings.simplefilter("ignore", UserWarning)  # a setting that few trials have
        study = optuna.create_study()
        for settings, nll in trials:
            of = {key: distribution(ranges[key]) for key in settings}
            study.add_trial(optuna.create_trial(params=settings, distributions=of, value=nll))
        evaluator = optuna.importance.PedAnovaImportanceEvaluator()
        return optuna.importance.get_param_importances(study, evaluator=evaluator)
