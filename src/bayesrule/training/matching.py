"""What is unknown of a likelihood, settled on data that the weights have not seen.

Residuals on the training data flatter a network, and the more so the longer it trains; noise learnt from them makes
intervals too narrow. Held-out data give the noise that predictions really have.
"""

from __future__ import annotations

import copy
from dataclasses import replace

import torch

from bayesrule import modules
from bayesrule.data import Arrays, Batch, inputs, splits
from bayesrule.posteriors import Posterior
from bayesrule.task import Task

FEWEST = 100  # examples below which none can be spared
ENOUGH = 40  # held-out examples that tell the noise to about a tenth: its relative error is 1/√(2·40)


def hold_out(task: Task, share: float | None, seed: int) -> tuple[Task, Batch | None]:
    """The task on most of its data, and the rest in the user's units.

    ``share`` None: a tenth where the likelihood has unknowns, up to a fifth if a tenth is less than `ENOUGH`; nothing
    for fewer than `FEWEST` examples. Data behind a loader are not cut.
    """
    n, data = task.data.n, task.data
    if share is None:
        share = max(0.1, min(0.2, ENOUGH / n)) if task.likelihood.unknowns() and n >= FEWEST else 0.0
    elif not 0 <= share < 1:
        raise ValueError(f"val must be held-out data (X, y), or a share of the training data in [0, 1), not {share}")
    elif share and not isinstance(data, Arrays):
        raise ValueError(f"val={share} cannot be cut from data behind a loader: give held-out data, val=(X, y)")
    if share == 0 or not isinstance(data, Arrays):
        return task, None
    rest, held = splits.hold_out(data.y if data.y.ndim == 1 else torch.zeros(n), share, seed)
    return replace(task, data=data.take(rest)), data.take(held).raw()


def check(task: Task, held: Batch) -> None:
    """Refuse held-out data that do not fit the task, before any training."""
    scaling = task.data.scaling
    x = inputs.each(lambda t: t[:1], held.x)
    x = x if scaling.inputs is None else inputs.each(scaling.inputs.forward, x)
    with torch.no_grad():
        outputs = modules.try_call(copy.deepcopy(task.model).eval(), inputs.to(x, modules.dtype_of(task.model)))
    y = held.y if scaling.targets is None else scaling.targets.forward(held.y)
    task.likelihood.check(outputs.expand(len(held.y), *outputs.shape[1:]), y)


def match(posterior: Posterior, held: Batch, samples: int = 32) -> None:
    """Set the unknowns of the posterior's likelihood to the most probable ones for held-out data.

    u* = argmax_u Σ_i log 1/S Σ_s p(y_i | f_s(x_i), u), by L-BFGS.
    """
    context = posterior.context
    unknowns = {name: value.double().requires_grad_() for name, value in context.likelihood.unknowns().items()}
    if not unknowns:
        return
    targets = context.scaling.targets
    with torch.no_grad():
        outputs = posterior.outputs(posterior.inputs(held.x), samples, torch.Generator().manual_seed(0)).double()
    y = held.y.double() if targets is None else targets.forward(held.y.double())
    optimizer = torch.optim.LBFGS(unknowns.values(), max_iter=100, line_search_fn="strong_wolfe")

    def loss() -> torch.Tensor:
        optimizer.zero_grad()
        prediction = context.likelihood.with_unknowns(unknowns).predict(outputs)
        value = -prediction.log_prob(prediction.target(y)).mean()
        value.backward()  # type: ignore[no-untyped-call]
        return value

    optimizer.step(loss)  # type: ignore[no-untyped-call]
    dtype = next(iter(context.likelihood.unknowns().values())).dtype
    matched = context.likelihood.with_unknowns({name: u.detach().to(dtype) for name, u in unknowns.items()})
    posterior.context = replace(context, likelihood=matched)
