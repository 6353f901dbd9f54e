"""Resume."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from torch import nn

from bayesrule import modules, processes
from bayesrule.data import Scaling, as_data
from bayesrule.posteriors import Posterior
from bayesrule.training import together
from bayesrule.training.callbacks import Callback
from bayesrule.training.folder import Folder
from bayesrule.training.loop import Loop, fit
from bayesrule.training.progress import shown
from bayesrule.training.settings import DATA, FitSettings


@processes.joined()
def resume(
    out: str | Path | Folder,
    model: nn.Module,
    train: Any,
    val: Any = None,
    callbacks: Sequence[Callback] = (),
    progress: bool = False,
) -> Posterior:
    """Continue the fit whose checkpoint is in ``out``: the result is bit-equal to that of an uninterrupted run.

    Method, prior, seed and all other settings come from the checkpoint; model and data must be those of the run.
    """
    folder = Folder(out) if isinstance(out, str | Path) else out
    with ExitStack() as stack:
        try:
            # A finished run is only read, perhaps from where nobody may write; where there is none, nothing is made.
            if folder.path.is_dir() and not folder.posterior.exists() and not processes.rank():
                stack.enter_context(folder.held())
            found = _restored(folder, model, train, val, callbacks)
        except Exception as error:
            processes.tell_failure(error)
            raise
        if not isinstance(found, Loop):
            return found
        if progress:
            found.callbacks = [*callbacks, stack.enter_context(shown(found.settings.method.name))]
        posterior = found.go()
    return posterior


def fit_or_resume(
    folder: Folder | None, model: nn.Module, train: Any, progress: bool = False, **options: Any
) -> Posterior:
    """The fit of a folder: read if it is over, continued if it was begun, and begun with ``options`` of `fit` else.

    Without a folder it is a fit whose posterior is kept nowhere.
    """
    if folder is not None and (folder.posterior.exists() or folder.checkpoint.exists()):
        return resume(folder, model, train, progress=progress)
    return fit(model, train, out=folder, progress=progress, **options)


def _restored(
    folder: Folder, model: nn.Module, train: Any, val: Any, callbacks: Sequence[Callback]
) -> Posterior | Loop:
    """The posterior of a run that is finished, or the run where its checkpoint has left it."""
    done = folder.finished(model)
    if done is None:
        saved = folder.saved()
        scaling = saved["settings"]["scaling"]
    else:
        saved = done.info
        scaling = saved["scaling"]
    if processes.count() > 1:
        together.check_folder(done is not None, saved)
    data = as_data(train)
    if scaling is not None:
        data = data.scaled(Scaling.from_state(scaling))
    if data.fingerprint() != saved["data"]:
        raise ValueError(f"{folder.path}: the training data are not those of the run; a resumed fit needs the same")
    if done is not None:
        return done
    if saved["processes"] != processes.count():
        raise ValueError(
            f"{folder.path}: the run is one of {saved['processes']} processes, each with its share of the batches and "
            f"its own noise, not of {processes.count()}: resume it in as many, with torchrun --nproc-per-node"
        )
    difference = modules.difference(saved["signature"], modules.signature(model))
    if difference:
        raise ValueError(f"{folder.path}: the checkpoint does not fit the model: {difference}")
    if modules.digests(modules.frozen(model)) != saved["frozen"]:
        raise ValueError(f"{folder.path}: the model's frozen parameters are not those of the run; load them first")
    settings = FitSettings.from_state(saved["settings"])
    if (settings.val == DATA) == (val is None):
        raise ValueError(f"{folder.path}: pass val=(X, y) to resume if and only if the run was started with it")
    run = Loop.create(model, data, settings, val, callbacks, folder, saved["settled"])
    if run.fingerprints["val"] != saved["val"]:
        raise ValueError(f"{folder.path}: val is not that of the run; a resumed fit needs the same")
    run.restore(saved)
    if run.count > 1:
        together.check_start(run.learner, run.step)
    return run
