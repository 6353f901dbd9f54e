"""The members of an ensemble as jobs: each a fit of its own, in another process or on another machine."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from torch import nn

from bayesrule import __version__, files, modules, processes, seeds
from bayesrule.data import Arrays, Data, as_data
from bayesrule.files import Tree
from bayesrule.methods import Ensemble, Method
from bayesrule.methods.ensemble import joined
from bayesrule.methods.member import Member
from bayesrule.posteriors import Posterior
from bayesrule.posteriors.base import from_tree
from bayesrule.training.folder import Folder
from bayesrule.training.loop import Loop
from bayesrule.training.prepared import prepared
from bayesrule.training.settings import DATA, FitSettings

KIND = "member"  # what a file holds


def fit_members(
    model: nn.Module,
    train: Any,
    method: str | Method = "ensemble",
    processes: int = 1,
    out: str | Path | None = None,
    **options: Any,
) -> Posterior:
    """`fit` of an ensemble whose members are jobs: in so many processes, or where `bayesrule.jobs.on` says.

    Prior, held-out data and all starts are those of `fit`, and so is what members learn that draw nothing while they
    learn: the same posterior, to the bit, on machines that compute alike and on as many threads. Members that draw,
    such as networks with dropout, have noise of their own here (`bayesrule.methods.member.Member`).

    Args:
        model: as for `fit`; its class must be known where the jobs are done, by a module that can be imported.
        train: as for `fit`; arrays are copied, and each job gets them.
        method: ``"ensemble"``, ``"dropout-ensemble"``, or an object such as ``br.methods.Ensemble(members=10)``.
        processes: on this machine, each with its share of torch's threads; without meaning where `bayesrule.jobs.on`
            has said where jobs are done.
        out: a directory that keeps each member when it is done, so that the same call after an interruption does the
            others alone; at the end it has the posterior, as that of `fit`.
        options: those of `fit` from ``likelihood`` to ``augment``, by name, but for ``callbacks`` and ``progress``:
            nobody sees all members at one time.

    >>> from bayesrule.data import moons
    >>> from bayesrule.methods import Ensemble
    >>> posterior = fit_members(nn.Linear(2, 2), moons(seed=0), Ensemble(members=2), epochs=2)
    >>> posterior.predict([[0.5, 0.25]]).samples
    2
    """
    _check_alone()
    if isinstance(processes, bool) or not isinstance(processes, int) or processes < 1:
        raise ValueError(f"processes must be a whole number of at least 1, not {processes!r}")
    model, data, settings = prepared(model, train, method, **options)
    if not isinstance(settings.method, Ensemble):
        raise TypeError(
            f"method must be an ensemble, not {settings.method.name!r}: fit_members trains its members apart; take "
            "br.fit for one network"
        )
    val = options.get("val")
    with ExitStack() as stack:
        folder = None
        if out is not None:
            folder = Folder(out)
            stack.enter_context(folder.held())
            folder.claim()
        run = Loop.create(model, data, settings, val, (), folder)
        asked = _Asked.of(model, data, settings, val, run)
        kept = Path(stack.enter_context(TemporaryDirectory())) if folder is None else folder.path / "members"
        parts = _learnt(asked, run, settings.method.members, kept, processes)
        run.step = run.plan.steps
        with seeds.untouched(run.task.device):
            posterior = run.finish(joined(run.task, parts, run.held))
        if folder is not None:
            shutil.rmtree(kept)  # as a checkpoint, they have served
    return posterior


def _check_alone() -> None:
    if processes.count() > 1:
        raise ValueError(
            f"fit_members must be called in one process, not under torchrun in {processes.count()}: it starts others "
            "itself, or hands jobs to an executor; take br.fit"
        )


@dataclass(frozen=True, eq=False)
class _Asked:
    """What all members of an ensemble have in common, for another process."""

    model: nn.Module
    device: torch.device
    data: Data
    settings: FitSettings
    val: Any
    settled: Tree | None

    @classmethod
    def of(cls, model: nn.Module, data: Data, settings: FitSettings, val: Any, run: Loop) -> _Asked:
        """Copies: torch moves tensors that another process sees, and these are the user's."""
        sent = modules.twin(model, shared=()).cpu()
        if settings.val == DATA:
            val = _copied(as_data(val))
        return cls(sent, modules.device_of(model), _copied(data), settings, val, run.settled)

    def key(self) -> str:
        """A digest of all that decides what is learnt."""
        held = self.val.fingerprint() if isinstance(self.val, Data) else None
        weights = modules.digests(dict(self.model.named_parameters()) | dict(self.model.named_buffers()))
        about = [__version__, self.settings.state(), self.data.fingerprint(), held, weights, self.settled]
        return files.digest(about)[:24]


def _copied(data: Data) -> Data:
    """Data in memory as a copy; what is behind a loader stays where it is."""
    if isinstance(data, Arrays):
        return data.take(torch.arange(data.n))
    return data


def _learnt(asked: _Asked, run: Loop, members: int, kept: Path, count: int) -> list[Posterior]:
    """The posterior of each member, from its file: those that are missing are learnt first."""
    from bayesrule import jobs  # a front, which `import bayesrule` and other fits do not load

    key = asked.key()
    paths = [kept / f"{key}-{index}.safetensors" for index in range(members)]
    left = [index for index, path in enumerate(paths) if not path.is_file()]
    threads = max(1, torch.get_num_threads() // count)
    for which, content in jobs.finished(_learn, [(asked, index) for index in left], count, threads):
        files.write_atomically(paths[left[which]], content)
    trees = [files.load(path, KIND, run.task.device) for path in paths]
    run.plan.history[:] = _together([tree["history"] for tree in trees])
    run.seconds = sum(tree["seconds"] for tree in trees)
    # Onto the one module of this fit: members share what is frozen.
    return [
        from_tree(path, tree["posterior"], run.task.model).with_context(model=run.task.model)
        for path, tree in zip(paths, trees, strict=True)
    ]


def _learn(asked: _Asked, index: int) -> bytes:
    """One member, as the contents of its file."""
    ensemble = asked.settings.method
    assert isinstance(ensemble, Ensemble)
    settings = replace(asked.settings, method=Member(ensemble, index))
    model = asked.model.to(asked.device)
    run = Loop.create(model, asked.data, settings, asked.val, (), None, asked.settled)
    with seeds.untouched(run.task.device):
        run.train()
        posterior = run.concluded()
    found = {"posterior": posterior.tree(), "history": run.plan.history, "seconds": run.seconds}
    return files.packed(found, KIND)


def _together(histories: Sequence[list[dict[str, float]]]) -> list[dict[str, float]]:
    """The logs of each epoch, averaged over members. The NLL of one network is not that of all, and is left out."""
    return [
        {name: sum(epoch[name] for epoch in epochs) / len(epochs) for name in epochs[0] if name != "val_nll"}
        for epochs in zip(*histories, strict=True)
    ]
