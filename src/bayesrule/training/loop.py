"""Fit and resume.

Randomness is a function of the seed and of where the fit stands: the order of an epoch of (seed, epoch), the noise of
a step of (seed, step). A checkpoint therefore needs no generator state, and a resumed fit repeats the uninterrupted
one to the bit.
"""

from __future__ import annotations

import math
import platform
import time
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from bayesrule import __version__, likelihoods, methods, modules, priors, processes
from bayesrule.data import Batch, Data, as_data
from bayesrule.files import Tree
from bayesrule.likelihoods import Likelihood
from bayesrule.methods import Learner, Method, Plan
from bayesrule.naming import to_spec
from bayesrule.posteriors import Posterior, match
from bayesrule.priors import Prior
from bayesrule.seeds import mixed
from bayesrule.task import Task, default_prior
from bayesrule.training.callbacks import Callback, Progress
from bayesrule.training.folder import Folder, Termination, on_sigterm
from bayesrule.training.matching import check, hold_out
from bayesrule.training.settings import DATA, Settings, default_batch_size, default_epochs

START, ORDER, NOISE, END, HELD = range(5)  # what a seed is for


class Diverged(FloatingPointError):
    """The loss or the state of a fit is no longer finite."""


@processes.joined()
def fit(
    model: nn.Module,
    train: Any,
    method: str | Method = "ensemble",
    likelihood: str | Likelihood | None = None,
    prior: str | Prior | None = None,
    temperature: float = 1.0,
    epochs: int | None = None,
    batch_size: int | None = None,
    seed: int = 0,
    val: Any = None,
    callbacks: Sequence[Callback] = (),
    out: str | Path | Folder | None = None,
) -> Posterior:
    """From a module and data to a posterior.

    Args:
        model: any ``torch.nn.Module``; it is copied, and where the method allows, training starts from its weights.
        train: ``(X, y)`` of arrays or tensors (X may be a tuple or dict of them), a Dataset, a DataLoader, or
            ``br.data.standardize((X, y))``.
        method: a name (`br.methods.available`) or an object such as ``br.methods.SWAG(rank=10)``.
        likelihood: a name or object; None: integers are classes, floats are reals with normal noise.
        prior: a prior, the name of a scale rule, or None: Kaiming's scale for reals, one otherwise.
        temperature: η of the objective, mean −log p(y|f) − (η/N) log p(w).
        epochs: passes over the data; None: enough for 2000 steps, at least 10 and at most 100; 0: the model is
            trained already, and taken as it is.
        batch_size: examples in a step; None: 32, less for fewer than 320 examples, and 128 from 10 000 on.
        seed: the same seed gives the same posterior.
        val: held-out ``(X, y)`` in the user's units, or the share of the training data to hold out: ``val_nll`` is
            logged after each epoch, and what is unknown of the likelihood, such as noise, is settled on it at the end.
            None: for that purpose a tenth, or up to a fifth of few data, from 100 examples on; 0: nothing.
        callbacks: called with a `Progress` after each step.
        out: a directory for checkpoints and the posterior; `resume` continues from it.

    >>> X = torch.linspace(-1, 1, 64)[:, None]
    >>> posterior = fit(nn.Linear(1, 1), (X, 2 * X[:, 0]), method=methods.MAP(lr=0.05), epochs=200)
    >>> round(float(posterior.predict([[0.5]]).mean), 1)
    1.0
    """
    data = as_data(train)
    size = default_batch_size(data.n) if batch_size is None else batch_size
    settings = Settings(
        methods.choose(method),
        None if likelihood is None else likelihoods.choose(likelihood),
        None if prior is None else priors.choose(prior),
        temperature,
        default_epochs(data.steps(size)) if epochs is None else epochs,
        size,
        seed,
        val if val is None or isinstance(val, int | float) else DATA,
    )
    folder = Folder(out) if isinstance(out, str | Path) else out
    run = _Run.create(model, data, settings, val, callbacks, folder)
    if folder is not None and not processes.rank():
        folder.claim()
    with on_sigterm() as termination:
        return run.go(termination)


@processes.joined()
def resume(
    out: str | Path | Folder, model: nn.Module, train: Any, val: Any = None, callbacks: Sequence[Callback] = ()
) -> Posterior:
    """Continue the fit whose checkpoint is in ``out``: the result is bit-equal to that of an uninterrupted run.

    Method, prior, seed and all other settings come from the checkpoint; model and data must be those of the run.
    """
    folder = Folder(out) if isinstance(out, str | Path) else out
    done = folder.finished(model)
    saved = folder.saved() if done is None else done.info
    data = as_data(train)
    if data.fingerprint() != saved["data"]:
        raise ValueError(f"{folder.path}: the training data are not those of the run; a resumed fit needs the same")
    if done is not None:
        return done
    difference = modules.difference(saved["signature"], modules.signature(model))
    if difference:
        raise ValueError(f"{folder.path}: the checkpoint does not fit the model: {difference}")
    if modules.digests(modules.frozen(model)) != saved["frozen"]:
        raise ValueError(f"{folder.path}: the model's frozen parameters are not those of the run; load them first")
    settings = Settings.from_state(saved["settings"])
    if (settings.val == DATA) == (val is None):
        raise ValueError(f"{folder.path}: pass val=(X, y) to resume if and only if the run was started with it")
    run = _Run.create(model, data, settings, val, callbacks, folder)
    if run.fingerprints["val"] != saved["val"]:
        raise ValueError(f"{folder.path}: val is not that of the run; a resumed fit needs the same")
    run.restore(saved)
    with on_sigterm() as termination:
        return run.go(termination)


@dataclass
class _Run:
    """One fit: what it is made of, and where it stands."""

    task: Task
    plan: Plan
    learner: Learner
    settings: Settings
    fingerprints: dict[str, str | None]
    held: Batch | None
    callbacks: Sequence[Callback]
    folder: Folder | None
    step: int = 0
    stop: bool = False
    sums: dict[str, float] = field(default_factory=dict)
    history: list[dict[str, float]] = field(default_factory=list)
    seconds: float = 0.0

    @classmethod
    def create(
        cls,
        model: nn.Module,
        data: Data,
        settings: Settings,
        val: Any,
        callbacks: Sequence[Callback],
        folder: Folder | None,
    ) -> _Run:
        task = Task.create(model, data, settings.likelihood, settings.prior, settings.temperature)
        held: Batch | None
        if settings.val == DATA:
            held = as_data(val).raw()
            check(task, held)
        else:
            assert not isinstance(settings.val, str)
            spare = settings.method.holds_out(task, settings.epochs)
            task, held = hold_out(task, spare, settings.val, mixed(settings.seed, HELD))
        settings.method.check_held(held is not None)
        plan = Plan(settings.epochs, task.data.steps(settings.batch_size), settings.batch_size)
        with _seeded(settings.seed, START):
            learner = settings.method.start(task, plan)
        fingerprints = {
            "data": None if folder is None else data.fingerprint(),
            "val": as_data(val).fingerprint() if folder is not None and settings.val == DATA else None,
        }
        return cls(task, plan, learner, settings, fingerprints, held, callbacks, folder)

    def go(self, termination: Termination) -> Posterior:
        """All epochs that are left, then the posterior."""
        if self.step == 0:
            self._checkpoint()
        with torch.random.fork_rng(devices=[]):
            while self.step < self.plan.steps and not (self.stop and self.step % self.plan.steps_per_epoch == 0):
                self._epoch(self.step // self.plan.steps_per_epoch, termination)
        return self._finish()

    def _epoch(self, epoch: int, termination: Termination) -> None:
        """What is left of one epoch."""
        began = time.perf_counter() - self.seconds
        for batch in self._left_of(epoch):
            torch.default_generator.manual_seed(mixed(self.settings.seed, NOISE, self.step, *self._mine))
            logs = self._learn(batch.share(processes.rank(), processes.count()), epoch)
            self.seconds = time.perf_counter() - began
            self._tell(logs, epoch)
            ending = processes.any_of(termination.requested)
            if self.folder is not None and (ending or self.folder.due()):
                self._checkpoint()
            if ending:
                raise SystemExit(143)

    @property
    def _mine(self) -> tuple[int, ...]:
        """What makes the noise of this process another than that of the first."""
        return (processes.rank(),) if processes.rank() else ()

    def _left_of(self, epoch: int) -> Iterator[Any]:
        """The batches of an epoch that have not been learnt from."""
        batches = self.task.batches(self.plan.batch_size, mixed(self.settings.seed, ORDER, epoch))
        return islice(batches, self.step - epoch * self.plan.steps_per_epoch, None)

    def _learn(self, batch: Batch, epoch: int) -> dict[str, float]:
        """One step of the learner; what breaks it is said with the step."""
        try:
            logs = {name: value.item() for name, value in self.learner.step(batch).items()}
        except FloatingPointError as error:
            raise Diverged(f"step {self.step} (epoch {epoch}): {error}{self._last_good()}") from error
        if not math.isfinite(logs["loss"]):
            raise Diverged(
                f"the loss is {logs['loss']} at step {self.step} (epoch {epoch}){self._last_good()}; "
                "check the inputs for extreme values, or lower the learning rate"
            )
        return logs

    def _last_good(self) -> str:
        return "" if self.folder is None else f"; the last good checkpoint is {self.folder.checkpoint}"

    def _tell(self, logs: dict[str, float], epoch: int) -> None:
        """Count the step, close the epoch where it ends, call the callbacks, and note if one asks to stop."""
        self.step += 1
        ended = self.step % self.plan.steps_per_epoch == 0
        for name, value in logs.items():
            self.sums[name] = self.sums.get(name, 0.0) + value
        if ended:
            self.history.append({name: total / self.plan.steps_per_epoch for name, total in self.sums.items()})
            self.sums = {}
            if self.held is not None and self.settings.val is not None:
                nll = -self._posterior(glance=True).predict(self.held.x).log_prob(self.held.y).mean()
                self.history[-1]["val_nll"] = nll.item()
        progress = Progress(self.step, self.plan.steps, epoch, self.plan.epochs, ended, logs, self.history)
        self.stop = processes.any_of(any([callback(progress) for callback in self.callbacks])) or self.stop

    def _state(self) -> Tree:
        """The learner's state, if its weights are finite still."""
        state = self.learner.state_dict()
        known = {name for name, t in modules.buffers(self.task.model).items() if not _finite(t)}  # -inf masks, say
        if not _finite(state, known):
            raise Diverged(f"the weights are no longer finite after step {self.step}{self._last_good()}")
        return state

    def _posterior(self, glance: bool = False) -> Posterior:
        self._state()
        with _seeded(self.settings.seed, END):
            if glance:
                return self._matched(self.learner.glance())
            posterior = self.learner.posterior()
            return posterior if self.held is None else self.learner.settle(posterior, self.held)

    def _matched(self, posterior: Posterior) -> Posterior:
        return posterior if self.held is None else match(posterior, self.held)

    def _checkpoint(self) -> None:
        if self.folder is None or processes.rank():
            return
        self.folder.save(
            {
                "settings": self.settings.state(),
                **self.fingerprints,
                "signature": modules.signature(self.task.model),
                "frozen": modules.digests(modules.frozen(self.task.model)),
                "learner": self._state(),
                "step": self.step,
                "stop": self.stop,
                "sums": self.sums,
                "history": self.history,
                "seconds": self.seconds,
            }
        )

    def restore(self, saved: Tree) -> None:
        """Go back to a checkpoint."""
        self.learner.load_state_dict(saved["learner"])
        self.step, self.stop, self.sums, self.history = saved["step"], saved["stop"], saved["sums"], saved["history"]
        self.seconds = saved["seconds"]

    def _finish(self) -> Posterior:
        posterior = self._posterior()
        posterior.info.update(
            self.settings.state() | self.fingerprints,
            likelihood=self.task.likelihood.name,
            prior=to_spec(self.settings.prior or default_prior(self.task.likelihood)),
            n=self.task.data.n,
            history=self.history,
            seconds=self.seconds,
            versions={"bayesrule": __version__, "python": platform.python_version(), "torch": str(torch.__version__)},
        )
        if self.folder is not None and not processes.rank():
            self.folder.finish(posterior)
        return posterior


def _finite(tree: Tree, known: Collection[str] = ()) -> bool:
    """Whether all numbers in a tree are finite, but for entries whose names are ``known`` not to be."""
    if isinstance(tree, Tensor):
        return not tree.is_floating_point() or bool(tree.isfinite().all())
    if isinstance(tree, dict):
        return all(_finite(value, known) for name, value in tree.items() if name not in known)
    return all(_finite(value, known) for value in tree) if isinstance(tree, list | tuple) else True


@contextmanager
def _seeded(*key: int) -> Iterator[None]:
    """Within this block torch's default generator depends on the key alone; the user's own state is kept."""
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(mixed(*key))  # torch.manual_seed takes a stack trace each time
        yield
