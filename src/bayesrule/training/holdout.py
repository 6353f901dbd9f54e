"""Data that the weights have not seen, to settle what is unknown of a likelihood."""

from __future__ import annotations

from typing import Any

import torch

from bayesrule import modules, seeds
from bayesrule.data import Arrays, Batch, as_data, inputs, splits
from bayesrule.methods import Needs
from bayesrule.posteriors import Posterior
from bayesrule.predictions import per_example
from bayesrule.task import Task
from bayesrule.training.settings import DATA, FitSettings

FEWEST = 100  # examples below which none can be spared
ENOUGH = 40  # held-out examples that tell the noise to about a tenth: its relative error is 1/√(2·40)


def with_held_out(task: Task, needs: Needs, settings: FitSettings, val: Any, seed: int) -> tuple[Task, Batch | None]:
    """The task on the data that are left to train on, and what is held out, in the user's units."""
    held: Batch | None
    if settings.val == DATA:
        held = as_data(val).raw()
        check_held_out(task, held)
    else:
        assert not isinstance(settings.val, str)
        task, held = hold_out(task, settings.val, seed)
    if needs.held_out == "required" and held is None:
        raise ValueError(
            f"{settings.method.name} needs held-out data for what its fields ask, and fewer than 100 examples or a "
            "loader cannot spare any: give val=(X, y), or change the fields"
        )
    return task, held


def hold_out(task: Task, share: float | None, seed: int) -> tuple[Task, Batch | None]:
    """The task on most of its data, and the rest in the user's units.

    ``share`` None: a tenth, up to a fifth if a tenth is less than `ENOUGH`; nothing for fewer than `FEWEST` examples.
    Data behind a loader are not cut.
    """
    n, data = task.data.n, task.data
    if share is None and n < FEWEST:
        share = 0.0
    elif share is None:
        share = max(0.1, min(0.2, ENOUGH / n))
    elif not 0 <= share < 1:
        raise ValueError(f"val must be held-out data (X, y), or a share of the training data in [0, 1), not {share}")
    elif share and not isinstance(data, Arrays):
        raise ValueError(f"val={share} cannot be cut from data behind a loader: give held-out data, val=(X, y)")
    if share == 0 or not isinstance(data, Arrays):
        return task, None
    # one label for each example: the cut is stratified by it; anything else is cut as if all were alike
    strata = data.y.cpu() if data.y.ndim == 1 else torch.zeros(n)
    rest, held = splits.hold_out(strata, share, seed)
    return task.with_data(data.take(rest)), data.take(held).raw()


def mean_nll(posterior: Posterior, held: Batch) -> float:
    """Mean −log p(y|x, D) of held-out examples, each number of y counted as often as its example."""
    prediction = posterior.predict(held.x)
    if held.weight is None:
        prediction, y = prediction.observed(prediction.target(held.y))
        return -float(per_example(prediction.log_prob(y)).mean())
    each = per_example(prediction.log_prob(held.y))
    return -float((each * held.weight.to(each) / held.weight.mean()).mean())


def check_held_out(task: Task, held: Batch) -> None:
    """Refuse held-out data that do not fit the task, before any training."""
    scaling = task.data.scaling
    x = inputs.each(lambda t: t[:1], held.x)  # one example is enough for the shape of the outputs
    if scaling.inputs is not None:
        x = inputs.each(scaling.inputs.forward, x)
    x = inputs.each(lambda t: t.to(task.device), inputs.to(x, modules.dtype_of(task.model)))
    buffers = modules.copies(dict(task.model.named_buffers()))  # which a pass may change
    with torch.no_grad(), seeds.untouched(task.device):
        outputs = modules.try_call(task.model, x, state=buffers or None)
    y = held.y
    if scaling.targets is not None:
        y = scaling.targets.forward(y)
    task.likelihood.check(outputs.expand(len(held.y), *outputs.shape[1:]), y)
