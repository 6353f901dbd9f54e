"""Resume."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from torch import nn

from bayesrule import modules, processes
from bayesrule.data import Scaling, as_data
from bayesrule.posteriors import Posterior
from bayesrule.training.callbacks import Callback
from bayesrule.training.folder import Folder
from bayesrule.training.loop import Loop
from bayesrule.training.settings import DATA, FitSettings


@processes.joined()
def resume(
    out: str | Path | Folder, model: nn.Module, train: Any, val: Any = None, callbacks: Sequence[Callback] = ()
) -> Posterior:
    """Continue the fit whose checkpoint is in ``out``: the result is bit-equal to that of an uninterrupted run.

    Method, prior, seed and all other settings come from the checkpoint; model and data must be those of the run.
    """
    folder = Folder(out) if isinstance(out, str | Path) else out
    # A finished run is only read, perhaps from where nobody may write; and where there is none, nothing is made.
    if folder.posterior.exists() or not folder.path.is_dir() or processes.rank():
        return _continued(folder, model, train, val, callbacks)
    with folder.held():
        return _continued(folder, model, train, val, callbacks)


def _continued(folder: Folder, model: nn.Module, train: Any, val: Any, callbacks: Sequence[Callback]) -> Posterior:
    done = folder.finished(model)
    if done is None:
        saved = folder.saved()
        scaling = saved["settings"]["scaling"]
    else:
        saved = done.info
        scaling = saved["scaling"]
    data = as_data(train)
    if scaling is not None:
        data = data.scaled(Scaling.from_state(scaling))
    if data.fingerprint() != saved["data"]:
        raise ValueError(f"{folder.path}: the training data are not those of the run; a resumed fit needs the same")
    if done is not None:
        return done
    difference = modules.difference(saved["signature"], modules.signature(model))
    if difference:
        raise ValueError(f"{folder.path}: the checkpoint does not fit the model: {difference}")
    if modules.digests(modules.frozen(model)) != saved["frozen"]:
        raise ValueError(f"{folder.path}: the model's frozen parameters are not those of the run; load them first")
    settings = FitSettings.from_state(saved["settings"])
    if (settings.val == DATA) == (val is None):
        raise ValueError(f"{folder.path}: pass val=(X, y) to resume if and only if the run was started with it")
    run = Loop.create(model, data, settings, val, callbacks, folder)
    if run.fingerprints["val"] != saved["val"]:
        raise ValueError(f"{folder.path}: val is not that of the run; a resumed fit needs the same")
    run.restore(saved)
    return run.go()
