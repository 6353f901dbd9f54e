"""How wide the prior is where nobody says: settled by held-out data, once, before any method starts.

Networks are trained side by side under priors of several widths, each with a fold of the data held out from it, and the
width is that of the best predictions of what was held out. It is the same for every method. Scales of single layers,
where they are asked for, come from the evidence, and held-out data say whether they are better.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace

import torch
from torch import Tensor, nn

from bayesrule import modules, priors, processes, seeds, starts
from bayesrule.data import Arrays, splits
from bayesrule.files import Tree
from bayesrule.methods import Laplace, Noise, Plan
from bayesrule.methods.auto import Auto, AutoLearner
from bayesrule.methods.candidates import Candidate
from bayesrule.seeds import mixed
from bayesrule.task import Task

SCALES = (0.9, 1.6, 3.0, 5.5, 10.0, 18.0)  # of weights in units of 1/√fan-in, and of biases
LONGEST = 400  # steps of each network: with fewer, priors that are too wide have not yet done their harm
FEWEST = 250  # steps of each, below which networks are compared that have not yet learnt
ROWS = 50  # examples below which too few are held out to tell
FOLDS, FOLD = 5, 0.2  # folds of small data under a small network, and the share of the data in each
SMALL = 20_000  # weights up to which thirty networks side by side take a step in the time of some three to eight
ENOUGH = 1000  # held-out examples that need no further folds
ONE = "one scale"
FAILURES = (ValueError, MemoryError, FloatingPointError)  # no fresh start, no room for the networks, nothing finite
TIE = 1.0  # nats, of all held-out examples together, that are no reason for a wider prior
LR, BATCH = 0.03, 128  # of Adam; larger than those of a fit, to come near the modes in fewer steps


def settle(task: Task, plan: Plan, seed: int, work: int = 1, by_layer: bool = False) -> Tree:
    """The scale of the prior, what it beat and what that cost: plain data, the same in all processes.

    ``scale``: the standard deviation of weights in units of 1/√fan-in, and of biases: the narrowest under which what
    was held out is as probable as under the best, but for a nat. None: nothing was settled, and ``why`` says why not.
    ``held_out_nll``: the mean of each scale that was tried. ``networks``: how many were trained for it, all of them
    for ``steps`` steps. ``layers``: see `_layers`, if they are asked for. ``work``: steps of training that one of the
    fit takes the time of.
    """
    steps = min(LONGEST, plan.steps * work // len(SCALES))
    why = None
    if steps < FEWEST:
        enough = math.ceil(FEWEST * len(SCALES) / work)
        why = f"a fit of {plan.steps} steps is too short to try several: {enough} or more are enough"
    elif not isinstance(task.data, Arrays):
        why = "data behind a loader cannot be held out: give (X, y)"
    elif task.data.n < ROWS:
        why = f"of {task.data.n} examples none can be held out for it: of {ROWS} or more they can"
    if why is not None:
        return {"scale": None, "why": why}
    folds, size = (FOLDS, max(BATCH, plan.batch_size)) if _is_small(task) else (1, plan.batch_size)
    candidates = {f"{scale:g}": _deviations(task.model, scale) for scale in SCALES}
    try:
        found = _held_out_nll(task, Plan(1, steps, size), candidates, folds, seed)
    except FAILURES as error:
        return {"scale": None, "why": str(error)}
    held_out = task.data.total * folds * FOLD
    close = min(found.values()) + TIE / held_out
    scale = min(float(name) for name, nll in found.items() if nll <= close)
    settled = {"scale": scale, "held_out_nll": found, "networks": folds * len(SCALES), "steps": steps}
    if by_layer:
        settled["layers"] = _layers(task, Plan(1, steps, size), scale, folds, seed)
    return settled


def _layers(task: Task, plan: Plan, scale: float, folds: int, seed: int) -> Tree:
    """Whether layers have scales of their own: by the evidence, from one scale for all of them, if held-out data agree.

    ``scales``: the deviation of every parameter, or None: one scale stays. ``chosen``: the name of what was taken, of
    `ONE`, the evidence's scales and the ones half of the way to them, of which ``held_out_nll`` is told.
    """
    assert isinstance(task.data, Arrays)
    one = _deviations(task.model, scale)
    try:
        told = _by_evidence(task, plan, one, seed)
        half = {name: math.sqrt(told[name] * one[name]) for name in one}
        candidates = {ONE: one, "half-way to the evidence": half, "evidence": told}
        found = _held_out_nll(task, plan, candidates, folds, seed)
    except FAILURES as error:
        return {"scales": None, "why": str(error)}
    chosen = min(found, key=lambda name: found[name])
    if ONE in found and found[ONE] <= found[chosen] + TIE / (task.data.total * folds * FOLD):
        chosen = ONE
    scales = None if chosen == ONE else candidates[chosen]
    networks = 1 + folds * len(candidates)
    return {"scales": scales, "chosen": chosen, "held_out_nll": found, "networks": networks, "steps": plan.steps}


def _by_evidence(task: Task, plan: Plan, deviations: Mapping[str, float], seed: int) -> dict[str, float]:
    """The deviations, one factor for each layer, of the largest evidence by Laplace's method (MacKay 1992).

    About a network of its own, which is trained on all data and then goes to the mode of each prior that is tried.
    """
    method = Laplace("all", "kronecker", tune="evidence", precision="layer")
    # as where candidates are compared: a temperature that counts for the prior too does not move the mode
    plain = replace(task, temperature=task.temperature * task.prior_power, tempering=None)
    noise = Noise.on(task.device)
    with seeds.untouched(task.device):
        noise.seed(mixed(seed), mixed(seed, 1 + processes.rank()))
        network = modules.twin(task.model)
        with noise.drawn_alike():
            starts.reinitialise(network)
        own = plain.with_model(network).with_prior(priors.Gaussian(deviations))
        each = own.data.steps(plan.batch_size)
        epochs = math.ceil(plan.steps / each)
        learner = method.start(own, Plan(epochs, each, plan.batch_size), noise)
        for epoch in range(epochs):
            for batch in own.batches(plan.batch_size, mixed(seed, epoch)):
                learner.step(batch)
        found = learner.conclude(None).info["diagnostics"]["prior_scale"]
    values = torch.tensor([found[name] for name in deviations], dtype=torch.float64, device=task.device)
    processes.send_from_first([values])  # so that all agree to the bit
    return dict(zip(deviations, values.tolist(), strict=True))


def prior(model: nn.Module, settled: Tree) -> priors.Gaussian:
    """Independent normal weights: of the deviations that were settled by layer, or ``scale`` times the rule's."""
    by_layer = settled.get("layers", {}).get("scales")
    return priors.Gaussian(by_layer or _deviations(model, settled["scale"]))


def _deviations(model: nn.Module, scale: float) -> dict[str, float]:
    """Those of the rule ``"fan-in"``, times ``scale``."""
    return {name: scale * deviation for name, deviation in priors.scales.scales("fan-in", model).items()}


def _is_small(task: Task) -> bool:
    """Whether many networks side by side cost little more than one: few weights, each used once for an example."""
    assert isinstance(task.data, Arrays)
    if not isinstance(task.data.x, Tensor) or task.data.x.ndim != 2 or modules.has_batch_norm(task.model):
        return False
    weights = task.parameters().values()
    return (
        task.data.n * FOLD < ENOUGH
        and sum(w.numel() for w in weights) <= SMALL
        and all(w.ndim <= 2 for w in weights)  # those of a convolution are used at every place
    )


@torch.no_grad()
def _start_alike(stack: nn.Module, folds: int) -> None:
    """Let the networks of all candidates start from the same weights, fold by fold: chance counts for all alike."""
    for together in (*stack.parameters(), *stack.buffers()):
        together.copy_(together[:folds].repeat(len(together) // folds, *[1] * (together.ndim - 1)))


def _held_out_nll(
    task: Task, plan: Plan, deviations: Mapping[str, Mapping[str, float]], folds: int, seed: int
) -> dict[str, float]:
    """The mean −log p(y|f) of what was held out, in the user's units, under each prior for which it is finite."""
    assert isinstance(task.data, Arrays)
    rank, count = processes.rank(), processes.count()
    strata = task.data.y.cpu() if task.data.y.ndim == 1 else torch.zeros(task.data.n)
    fold = splits.folds(strata, folds, FOLD, seed)
    candidates = [Candidate(name, own) for name, own in deviations.items()]
    size = math.ceil(min(plan.batch_size, task.data.n) / count)
    batch = task.data.take(torch.arange(size)).all().to(task.device)  # the learner asks it only for its length
    noise = Noise.on(task.device)
    with seeds.untouched(task.device):
        noise.seed(mixed(seed), mixed(seed, 1 + rank))
        learner = AutoLearner(Auto(whole=0, networks=1, lr=LR), task, plan, noise, candidates, fold)
        _start_alike(learner.network, folds)
        for _ in range(plan.steps):
            learner.step(batch)
        told = learner.told(learner.judged())
    means = torch.tensor([each["held_out_nll"] for each in told], device=task.device)
    processes.send_from_first([means])  # so that all agree to the bit
    return {name: nll for name, nll in zip(deviations, means.tolist(), strict=True) if math.isfinite(nll)}
