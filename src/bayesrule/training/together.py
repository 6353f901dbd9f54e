"""What the processes of one fit have in common: compared before the first step, and the start sent from the first.

Nothing here is entered by a fit in one process.
"""

from __future__ import annotations

import copy

from torch import nn

from bayesrule import files, modules, processes
from bayesrule.data import Arrays, Data
from bayesrule.files import Tree
from bayesrule.methods import Learner
from bayesrule.training.settings import FitSettings

LONGEST = 400  # letters of a setting that an error shows
WHOLE = "give each process the whole of the data, in one order; every batch is shared out among them"
ADVICE = {
    "train": WHOLE,
    "val": "give each process the same held-out data",
    "the first batch": f"{WHOLE}, so no DistributedSampler, and no order that depends on the process",
    "model": "build the same network in each; its weights may differ, those of process 0 count",
    "the start": "a method draws what all must hold alike from noise.shared, or within noise.drawn_alike()",
    "out": "give each process the same directory, on a file system that all of them see",
}


def one_start(model: nn.Module, data: Data, settings: FitSettings, fingerprints: dict[str, str | None]) -> nn.Module:
    """A copy of the model that is the first process's in all of them, once all that a fit was given is the same."""
    modules.check(model)
    facts = {"train": f"{data.n} examples ({_short(fingerprints['data'])})"}
    if not isinstance(data, Arrays):  # whose order is a function of the seed
        facts["the first batch"] = _digest(next(iter(data.batches(settings.batch_size, 0))).y)
    facts |= {name: _in_words(value) for name, value in settings.state().items()}
    if fingerprints["val"] is not None:
        facts["val"] = _short(fingerprints["val"])
    trained = sorted(modules.parameters(model))
    facts["model"] = f"{type(model).__name__} ({_digest([modules.signature(model), trained])})"
    processes.check_alike(facts, ADVICE)
    model = copy.deepcopy(model)
    processes.send_from_first([*model.parameters(), *model.buffers()])
    return model


def check_start(learner: Learner, step: int) -> None:
    """Refuse a method that starts from other numbers in each process, or a checkpoint that differs."""
    processes.check_alike({"step": str(step), "the start": _digest(learner.state_dict())}, ADVICE)


def check_folder(finished: bool, saved: Tree) -> None:
    """Refuse a directory that does not hold the same run for all processes."""
    what = "a finished run" if finished else f"a run at step {saved['step']}"
    processes.check_alike({"out": f"{what} ({_digest(saved['data'])})"}, ADVICE)


def _in_words(value: Tree) -> str:
    """A setting as text: itself where it is short, else its digest, with its name if it has one."""
    plain = repr(value)
    if len(plain) <= LONGEST and "tensor(" not in plain:
        return plain
    name = value.get("name", "") if isinstance(value, dict) else ""
    return f"{name} ({_digest(value)})".lstrip()


def _digest(tree: Tree) -> str:
    return _short(files.digest(tree))


def _short(digest: str | None) -> str:
    return f"sha256 {str(digest)[:12]}"
