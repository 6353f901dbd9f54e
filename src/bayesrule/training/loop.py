"""Fit.

Randomness is a function of the seed and of where the fit stands: the order of an epoch of (seed, epoch), the noise of
a step of (seed, step), and of the process for noise of its own. A checkpoint therefore needs no generator state, and a
resumed fit repeats the uninterrupted one to the bit.
"""

from __future__ import annotations

import math
import platform
import time
import warnings
from collections.abc import Callable, Collection, Sequence
from contextlib import ExitStack, nullcontext
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from bayesrule import __version__, files, modules, naming, processes, seeds
from bayesrule.data import Batch, Data, as_data, augmentations
from bayesrule.data.augmentations import Augmentation
from bayesrule.files import Tree
from bayesrule.likelihoods import Likelihood
from bayesrule.methods import Learner, Logs, Method, Needs, Noise, Plan, check_stoppable, check_weighted
from bayesrule.posteriors import Posterior, match, recalibrated
from bayesrule.priors import ByLayer, Prior
from bayesrule.seeds import mixed
from bayesrule.task import Task
from bayesrule.temperatures import Tempering
from bayesrule.training import belief, collapse, together
from bayesrule.training.alone import check_alone
from bayesrule.training.callbacks import Callback, EarlyStopping, LazyLogs, Progress
from bayesrule.training.collapse import Terms
from bayesrule.training.folder import Folder, Termination, on_sigterm
from bayesrule.training.holdout import mean_nll, with_held_out
from bayesrule.training.prepared import prepared
from bayesrule.training.progress import shown
from bayesrule.training.settings import DATA, FitSettings, is_open

START, ORDER, NOISE, END, HELD, SHARED, BELIEF, AUGMENT = range(8)  # what a seed is for
LONG_ENOUGH = 1000  # steps of a fit that is asked at its end whether it has collapsed: a shorter one has just begun
READ_EVERY = 1000  # steps after which logs on a device are read, however long the epoch


class Diverged(FloatingPointError):
    """The loss or the state of a fit is no longer finite."""


@processes.joined()
def fit(
    model: nn.Module,
    train: Any,
    method: str | Method = "ensemble",
    likelihood: str | Likelihood | None = None,
    prior: str | float | Prior | Posterior | None = None,
    temperature: Tempering | None = None,
    epochs: int | None = None,
    batch_size: int | None = None,
    seed: int = 0,
    val: Any = None,
    callbacks: Sequence[Callback] = (),
    out: str | Path | Folder | None = None,
    autocast: str | None = None,
    progress: bool = False,
    output: str | int | None = None,
    augment: str | Augmentation | Sequence[str | Augmentation] | None = None,
) -> Posterior:
    """From a module and data to a posterior.

    Args:
        model: any ``torch.nn.Module``; it is copied, and training starts from its weights, in an ensemble that of the
            first member.
        train: ``(X, y)`` of arrays or tensors (X may be a tuple or dict of them), a Dataset, a DataLoader, one dict
            that names its target, or ``br.data.standardize((X, y))``. With ``(X, y, weight)`` an example of weight w
            counts as w of them.
        method: a name (`br.methods.available`) or an object such as ``br.methods.SWAG(rank=10)``.
        likelihood: a name or object; None: integers, and floats that are only 0 and 1, are classes; other floats are
            reals with normal noise.
        prior: a prior, the standard deviation of all weights, the name of a scale rule, or None: normal weights whose
            scale is settled by held-out data, ``posterior.info["prior"]["settled"]``; in short fits Kaiming's scale
            for reals, one otherwise. ``"by-layer"``: so, and then a scale for each layer. Or a Gaussian posterior of
            earlier data: the fit starts from its mean, and keeps its likelihood, with the noise it has, and its
            scaling of inputs and targets.
        temperature: η of the objective, mean −log p(y|f) − (η/N) log p(w), or by name: ``br.Cold(T)`` tempers the prior
            too, ``br.Balanced(tau)`` sets η by the size of the network; ``posterior.info["tempering"]`` says what it
            came to. None: 1, but ``br.Cold()`` for variational methods whose prior is left open, and what it was for
            a posterior that is the prior.
        epochs: passes over the data; None: enough for 2000 steps, 4000 of variational methods, and at least 10, and of
            few data point methods go on to the mode, ``posterior.info["diagnostics"]["converged"]``; of samplers, as
            their fields say; 0: the model is trained already, and taken as it is.
        batch_size: examples in a step; None: 32, less for fewer than 320 examples, 128 from 10 000 and 512 from 100 000
            on.
        seed: the same seed gives the same posterior.
        val: held-out ``(X, y)`` in the user's units, or the share of the training data to hold out: ``val_nll`` is
            logged after each epoch, and what is unknown of the likelihood, such as noise, is settled on it at the end,
            the temperature of classes where that clearly helps, ``posterior.info["calibration"]``.
            None: for that purpose a tenth, or up to a fifth of few data, from 100 examples on; 0: nothing.
        callbacks: called with a `Progress` after each step.
        out: a directory for checkpoints and the posterior; `resume` continues from it.
        autocast: ``"bfloat16"`` trains with forward passes under torch's autocast; None: in the model's own dtype.
        progress: show how far the fit is, on stderr: a bar on a terminal, a line every few seconds elsewhere.
        output: which part the model's outputs are of what it returns, if that is more than one tensor: a key of a dict,
            a field of a dataclass, or a place in a tuple; None: the ``logits``.
        augment: what is done to pictures each time they are trained on, one after the other: ``"flips"``, ``"crops"``,
            ``"augmix"``, or objects of `br.data.augmentations`. N stays the number of examples.

    >>> from bayesrule.methods import MAP
    >>> X = torch.linspace(-1, 1, 64)[:, None]
    >>> posterior = fit(nn.Linear(1, 1), (X, 2 * X[:, 0]), method=MAP(lr=0.05), epochs=200)
    >>> round(float(posterior.predict([[0.5]]).mean), 1)
    1.0
    """
    with ExitStack() as stack:
        try:
            model, data, settings = prepared(
                model,
                train,
                method,
                likelihood,
                prior,
                temperature,
                epochs,
                batch_size,
                seed,
                val,
                autocast,
                output,
                augment,
            )
            folder = Folder(out) if isinstance(out, str | Path) else out
            if progress:
                callbacks = [*callbacks, stack.enter_context(shown(settings.method.name))]
            run = Loop.create(model, data, settings, val, callbacks, folder)
            if progress and run.task.tempering is not None:
                processes.say(f"temperature: {run.task.tempered_as}")
            if folder is not None and not processes.rank():
                stack.enter_context(folder.held())
                folder.claim()
            if run.count > 1:
                together.check_start(run.learner, run.step)
        except Exception as error:
            processes.tell_failure(error)
            raise
        posterior = run.go()
    return posterior


@dataclass
class Loop:
    """One fit: what it is made of, and where it stands."""

    task: Task
    plan: Plan
    noise: Noise
    learner: Learner
    settings: FitSettings
    fingerprints: dict[str, str | None]
    held: Batch | None
    callbacks: Sequence[Callback]
    folder: Folder | None
    rank: int
    count: int  # of processes
    settled: Tree | None  # how wide the prior is, where nobody said
    first: Terms | None  # of the objective of a variational method, before the first step
    step: int = 0
    stop: bool = False
    unread: list[Logs] = field(default_factory=list)  # of the last steps, on the device still
    sums: dict[str, float] = field(default_factory=dict)  # of the logs of this epoch that were read
    best: Tree | None = None  # the best epoch and the learner's state at its end, where early stopping asks for them
    seconds: float = 0.0

    @classmethod
    def create(
        cls,
        model: nn.Module,
        data: Data,
        settings: FitSettings,
        val: Any,
        callbacks: Sequence[Callback],
        folder: Folder | None,
        settled: Tree | None = None,
    ) -> Loop:
        """Everything checked, the prior settled if it is open and no checkpoint knows it, the method started."""
        many = processes.count()
        model = modules.picking(model, settings.output)
        fingerprints: dict[str, str | None] = {"data": None, "val": None}
        if folder is not None or many > 1:
            fingerprints["data"] = data.fingerprint()
            if settings.val == DATA:
                fingerprints["val"] = as_data(val).fingerprint()
        if many > 1:
            model = together.one_start(model, data, settings, fingerprints)
        prior = None if is_open(settings.prior) else settings.prior
        task = Task.create(model, data, settings.likelihood, prior, settings.temperature, settings.autocast)
        if task.data.weight is not None:
            check_weighted(settings.method)
        if any(isinstance(callback, EarlyStopping) for callback in callbacks):
            check_stoppable(settings.method)
        needs = settings.method.needs(task, settings.epochs)
        held = None
        if settings.val is not None or needs.held_out != "none":
            task, held = with_held_out(task, needs, settings, val, mixed(settings.seed, HELD))
        if settings.augment:
            _check_augmentable(task, settings, needs)
        size = task.data.n if needs.full_batch else settings.batch_size
        # A fit to the mode would follow the pictures as they are, and so undo what was learnt from changed ones.
        to_convergence = settings.to_convergence and not settings.augment
        plan = Plan(settings.epochs, task.data.steps(size), size, to_convergence)
        if needs.full_batch and plan.steps_per_epoch > 1:
            raise ValueError(
                f"{settings.method.name} takes all data in one step, but the DataLoader makes {plan.steps_per_epoch} "
                "batches of them: give (X, y) or a Dataset"
            )
        if plan.epochs and task.data.smallest(size) <= many:  # where it is shared, none is left without an example
            check_alone(task)
        rank, seed = processes.rank(), settings.seed
        by_layer = isinstance(settings.prior, ByLayer)
        if by_layer and not (plan.steps and needs.prior):
            raise ValueError(
                f"prior='by-layer' is settled before training, and {settings.method.name} with epochs={plan.epochs} "
                "has no use for it: leave prior out, or give br.priors.Gaussian(...)"
            )
        if prior is None and plan.steps and needs.prior:
            settled = settled or belief.settle(task, plan, mixed(seed, BELIEF), needs.work, by_layer)
            if settled["scale"] is not None:
                task = task.with_prior(belief.prior(task.model, settled))
        noise = Noise.on(task.device)
        with seeds.untouched(task.device):
            noise.seed(mixed(seed, START), mixed(seed, START, 1 + rank))
            learner = settings.method.start(task, plan, noise)
            first = None
            if settings.method.variational and not task.prior.learnt and plan.steps >= LONG_ENOUGH:
                first = collapse.terms(learner.posterior(), task.prior, collapse.some_of(task))
        return cls(
            task, plan, noise, learner, settings, fingerprints, held, callbacks, folder, rank, many, settled, first
        )

    def go(self) -> Posterior:
        """All epochs that are left, then the posterior."""
        if self.step == 0 and self.folder is not None:
            self._checkpoint()
        # With nothing to save, and no other process that would wait, a signal is obeyed at once.
        watching = nullcontext() if self.folder is None and self.count == 1 else on_sigterm()
        with seeds.untouched(self.task.device), watching as termination:
            self.train(termination)
            posterior = self.finish(self.concluded())
        if self.count > 1:
            processes.any_of(False)  # the others wait for the file: who returns from a fit finds it
        return posterior

    def train(self, termination: Termination | None = None) -> None:
        """All epochs that are left."""
        while self.step < self.plan.steps and not (self.stop and self.step % self.plan.steps_per_epoch == 0):
            self._epoch(self.step // self.plan.steps_per_epoch, termination)

    def concluded(self) -> Posterior:
        """What the learner knows at the end."""
        history = self.plan.history[:]
        if self.best is not None:
            self._return_to(self.best)
        posterior = self._known(lambda: self.learner.conclude(self.held))
        self.plan.history[:] = history
        return posterior

    def finish(self, posterior: Posterior) -> Posterior:
        """What is known at the end as people have it: recalibrated, with its story, in its file."""
        if self.held is not None:
            posterior = recalibrated(posterior, self.held)
        diagnosis = {} if self.first is None else self._diagnosis(posterior, self.first)
        posterior = posterior.with_context(info=posterior.context.info | diagnosis | self._story())
        if self.folder is not None and not self.rank:
            self.folder.finish(posterior)
        return posterior

    def _diagnosis(self, posterior: Posterior, first: Terms) -> dict[str, Any]:
        """Whether a variational q still listens to the data; a warning if it does not after a fit of usual length."""
        batch, eta = collapse.some_of(self.task), self.task.temperature
        found = collapse.diagnose(posterior, self.task.prior, batch, eta, self.task.data.total, first)
        if found is None:
            return {}
        if found.collapsed and not self.rank:
            warnings.warn(found.says, stacklevel=6)  # where `br.fit` was called
        return {"collapse": found.to_json()}

    def _return_to(self, best: Tree) -> None:
        """Let the learner be as if an epoch that is over had been the last."""
        self.learner.load_state_dict(best["learner"])
        del self.plan.history[best["epoch"] + 1 :]  # from which a learner knows how its last epoch went

    def _epoch(self, epoch: int, termination: Termination | None) -> None:
        """What is left of one epoch."""
        began = time.perf_counter() - self.seconds  # so that the time of a resumed fit goes on from the checkpoint's
        batches = self.task.data.batches(self.plan.batch_size, mixed(self.settings.seed, ORDER, epoch))
        done = self.step - epoch * self.plan.steps_per_epoch
        # A resumed fit draws the batches that it has seen and drops them: their order, and what a loader augments by
        # torch's generator, are then those of the fit that was cut.
        for batch in islice(batches, done, None):
            if self.count > 1:
                batch = batch.share(self.rank, self.count)
            batch = batch.to(self.task.device)
            if self.settings.augment:
                batch = self._augmented(batch)
            logs = self._learn(batch, epoch)
            self.seconds = time.perf_counter() - began
            self._tell(logs, epoch)
            ending = termination is not None and processes.any_of(termination.requested)
            if self.folder is not None and (ending or self.folder.due()):
                self._checkpoint()
            if ending:
                raise SystemExit(143)

    def _augmented(self, batch: Batch) -> Batch:
        """The batch with its pictures changed as the seed and the step say."""
        generator = torch.Generator(self.task.device)
        generator.manual_seed(mixed(self.settings.seed, AUGMENT, self.step, self.rank))
        return augmentations.augmented(batch, self.settings.augment, self.task.data.scaling, generator)

    def _learn(self, batch: Batch, epoch: int) -> Logs:
        """One step of the learner; what breaks it is said with the step."""
        seed, own = self.settings.seed, (self.rank,) if self.rank else ()  # the first of many draws like one alone
        self.noise.seed(mixed(seed, SHARED, self.step), mixed(seed, NOISE, self.step, *own))
        try:
            logs = self.learner.step(batch)
        except FloatingPointError as error:
            raise Diverged(f"step {self.step} (epoch {epoch}): {error}{self._last_good()}") from error
        self.step += 1
        self.unread.append(logs)
        if self.task.device.type in modules.SYNCHRONOUS or len(self.unread) == READ_EVERY:
            self._read_logs()
        return logs

    def _read_logs(self) -> None:
        """Add the logs of the last steps up, and refuse a loss among them that is not finite."""
        if not self.unread:
            return
        # one transfer for all numbers of all steps: each read of its own would wait for the device
        values = iter(torch.stack([value for logs in self.unread for value in logs.values()]).tolist())
        for step, logs in enumerate(self.unread, self.step - len(self.unread)):
            for name in logs:
                value = next(values)
                self.sums[name] = self.sums.get(name, 0.0) + value
                if name == "loss" and not math.isfinite(value):
                    raise Diverged(
                        f"the loss is {value} at step {step} (epoch {step // self.plan.steps_per_epoch})"
                        f"{self._last_good()}; check the inputs for extreme values, or lower the learning rate"
                    )
        self.unread = []

    def _last_good(self) -> str:
        if self.folder is None:
            return ""
        return f"; the last good checkpoint is {self.folder.checkpoint}"

    def _tell(self, logs: Logs, epoch: int) -> None:
        """Close the epoch where it ends, call the callbacks, and note if one asks to stop."""
        ended = self.step % self.plan.steps_per_epoch == 0
        history = self.plan.history
        if ended:
            self._read_logs()
            history.append({name: total / self.plan.steps_per_epoch for name, total in self.sums.items()})
            self.sums = {}
            if self.held is not None and self.settings.val is not None:
                posterior = match(self._known(self.learner.posterior), self.held)
                history[-1]["val_nll"] = mean_nll(posterior, self.held)
        if self.callbacks:
            where = self.step, self.plan.steps, epoch, self.plan.epochs
            progress = Progress(*where, ended, LazyLogs(logs), history, self._present)
            answers = [callback(progress) for callback in self.callbacks]  # each is called, whatever others answer
            self.stop = self.stop or any(answers)
        if ended and (self.callbacks or self.count > 1):
            self._keep_best(epoch)
        if ended and self.count > 1:  # one process that stopped alone would leave the others waiting
            self.stop = processes.any_of(self.stop)

    @property
    def _watching(self) -> EarlyStopping | None:
        """Who says which epoch is the best: early stopping, of several the first."""
        return next((callback for callback in self.callbacks if isinstance(callback, EarlyStopping)), None)

    def _keep_best(self, epoch: int) -> None:
        """Copy the learner's state if the epoch that has just ended is the best so far."""
        watching = self._watching
        best = watching is not None and watching.best(self.plan.history) == epoch
        if self.count > 1:  # logs may differ between processes: the first one decides for all
            best = processes.any_of(best and not self.rank)
        if best:
            self.best = {"epoch": epoch, "learner": files.copied(self.learner.state_dict())}

    def _present(self) -> Posterior:
        """What is known at this moment, for callbacks."""
        posterior = self._known(self.learner.posterior)
        return posterior.with_context(info=posterior.info | self._story())

    def _known(self, ask: Callable[[], Posterior]) -> Posterior:
        """What the learner knows, if it is finite; its draws depend on the seed alone."""
        self.noise.seed(mixed(self.settings.seed, END), mixed(self.settings.seed, END, 1 + self.rank))
        try:
            posterior = ask()
        except FloatingPointError as error:
            raise Diverged(f"after step {self.step}: {error}{self._last_good()}") from error
        self._check_finite(posterior.state())
        return posterior

    def _check_finite(self, state: Tree) -> None:
        # some buffers are infinite on purpose, such as masks of -inf
        infinite = [name for name, buffer in self.task.model.named_buffers() if not _finite(buffer)]
        if not _finite(state, infinite):
            raise Diverged(f"the weights are no longer finite after step {self.step}{self._last_good()}")

    def _checkpoint(self) -> None:
        self._read_logs()
        if self.folder is None or self.rank:
            return
        learner = self.learner.state_dict()
        self._check_finite(learner)  # before it replaces one that is good
        self.folder.save(
            {
                "settings": self.settings.state(),
                **self.fingerprints,
                "signature": modules.signature(self.task.model),
                "frozen": modules.digests(modules.frozen(self.task.model)),
                "learner": learner,
                "processes": self.count,
                "settled": self.settled,
                "best": self.best,
                "step": self.step,
                "stop": self.stop,
                "sums": self.sums,
                "history": self.plan.history,
                "seconds": self.seconds,
            }
        )

    def restore(self, saved: Tree) -> None:
        """Go back to a checkpoint."""
        self.learner.load_state_dict(saved["learner"])
        self.plan.history[:] = saved["history"]
        self.step, self.stop, self.sums, self.seconds = saved["step"], saved["stop"], saved["sums"], saved["seconds"]
        if self._watching is not None:  # who resumes without early stopping wants the last epoch
            self.best = saved.get("best")

    def _story(self) -> dict[str, Any]:
        """How the posterior came about; of a prior that earlier data have taught, which is large, the name alone."""
        believed = self.task.belief
        if believed is not None and believed.learnt:
            prior: Tree = {"name": believed.name, "fields": {}}
        else:
            prior = naming.to_spec(believed)
        if self.settled is not None:
            prior = prior | {"settled": self.settled}
        tempering = self.task.tempering
        named = {}
        if tempering is not None:
            named["tempering"] = naming.to_spec(tempering) | {"says": self.task.tempered_as}
        return {
            **self.settings.state(),
            **self.fingerprints,
            **named,
            "temperature": self.task.temperature,
            "likelihood": self.task.likelihood.name,
            "prior": prior,
            "n": self.task.data.n,
            "history": self.plan.history,
            "best_epoch": None if self.best is None else self.best["epoch"],
            "seconds": self.seconds,
            "versions": {
                "bayesrule": __version__,
                "python": platform.python_version(),
                "torch": str(torch.__version__),
            },
        }


def _check_augmentable(task: Task, settings: FitSettings, needs: Needs) -> None:
    """Refuse to augment what is no picture, or where a method would not see it."""
    augmentations.check(task.data, settings.augment)
    name = settings.method.name
    if needs.full_batch:
        raise ValueError(
            f"augment is not for {name}: it samples the posterior of fixed data, and changed ones would be others at "
            "every step; take a method that learns from batches, such as sgld or ensemble"
        )
    if needs.own_batches:
        raise ValueError(f"augment is not for {name}, which draws its examples by itself; take ensemble, say")
    if not settings.epochs:
        raise ValueError("augment is for training, but epochs is 0: leave it out, or train for an epoch or more")


def _finite(tree: Tree, known: Collection[str] = ()) -> bool:
    """Whether all numbers in a tree are finite, but for entries whose names are ``known`` not to be."""
    if isinstance(tree, Tensor):
        return not tree.is_floating_point() or bool(tree.isfinite().all())
    if isinstance(tree, dict):
        return all(_finite(value, known) for name, value in tree.items() if name not in known)
    if isinstance(tree, list | tuple):
        return all(_finite(value, known) for value in tree)
    return True
