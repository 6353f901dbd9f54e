"""Whether a fit has ended in finite nonsense."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from itertools import islice

import torch

from bayesrule.data import Batch
from bayesrule.posteriors import Posterior, settled
from bayesrule.predictions import per_example
from bayesrule.task import Task

LOOK = 1024  # examples that tell whether a fit ended worse than it began
SLACK = 0.25  # nats for each number of the targets that it may be worse
DRAWS = 8  # of a posterior, for the same purpose
FEW = 10.0  # nats in all beside these, which few data may be off by in a fit of few steps
ZERO = 1e-3  # the size of outputs that count for zero: targets of zero would have no noise about zero itself
UNTAUGHT = 3.0  # the size of outputs beyond which a start excuses nothing: thrice that of standardised targets


def check(task: Task, batch_size: int, began: float, last: float, posterior: Callable[[], Posterior]) -> None:
    """Refuse a fit that ended worse than it began, and worse than one that knows nothing.

    With L(q, u) = −log p(D|q, u) for outputs from q and unknowns u, a fit that ends at q, u is sound if

        L(q, u) ≤ max(L(0, u*) + slack, min(L(start, u_start) + slack, L(±3, u*))) + few

    with a slack of a quarter of a nat for each number of D and few = 10 nats, where u* is best for the outputs beside
    it. The mode under a prior around zero has L ≤ L(0, u*), at any scale and temperature: weights of zero cost the
    prior least, so that others have to fit better. The same holds of a variational q beside a narrow one around zero. A
    fit of few steps is about as good as its start. A start far from the data excuses little, though: outputs of ±3 at
    random are worse than a usual start on standardised data. What earlier data have taught may be wrong about new ones
    by as much as it likes.

    ``began``, ``last``: mean −log p(y|f) of the first step and of the last epoch, as training has seen them. If the
    last epoch was better than outputs of zero, nothing more is looked at.
    """
    given = list(islice(task.batches(batch_size, seed=0), math.ceil(LOOK / batch_size)))
    numbers = sum(batch.y.numel() for batch in given)
    each = sum(len(batch.y) for batch in given) / numbers
    nothing = _untaught(task, ZERO, given)
    few = FEW / numbers
    limit = nothing + SLACK
    if last * each <= limit + few:
        return
    # The first step has seen one batch alone; and a fit from a start of its own has not begun at the module's weights.
    start = max(began * each, _began(task, given)) + SLACK
    if not task.prior.learnt:
        start = min(start, _untaught(task, UNTAUGHT, given))
    limit = max(limit, start)
    ended = _loss(task, posterior(), given)
    if not ended <= limit + few:
        raise FloatingPointError(
            f"the fit has diverged, though its numbers are finite: −log p(y|x, D) is on average {ended:.4g} for each "
            f"number of y; before training it was {began * each:.4g}, and for outputs of zero it is {nothing:.4g}. "
            "Standardise inputs and targets, train longer, or lower the learning rate"
        )


@torch.no_grad()
def _began(task: Task, given: Sequence[Batch]) -> float:
    """Mean −log p(y|f) for each number of y, at the module's own weights."""
    means = [task.nll(task.outputs(task.model, b.x), b.y, task.likelihood, b.weight) for b in given]
    total = sum(len(b.y) * float(mean) for b, mean in zip(given, means, strict=True))
    return total / sum(batch.y.numel() for batch in given)


@torch.no_grad()
def _loss(task: Task, posterior: Posterior, given: Sequence[Batch]) -> float:
    """Mean −log p(y|x, D) for each number of y."""
    total = 0.0
    for batch in given:
        generator = torch.Generator(batch.y.device).manual_seed(0)
        prediction = posterior.likelihood.predict(posterior.marginals(batch.x, DRAWS, generator))
        each = per_example(prediction.log_prob(prediction.target(batch.y))) * batch.y[0].numel()
        if batch.weight is not None:
            each = each * batch.weight.to(each) * (task.data.n / task.data.total)
        total -= float(each.sum())
    return total / sum(batch.y.numel() for batch in given)


def _untaught(task: Task, size: float, given: Sequence[Batch]) -> float:
    """The same for outputs of ±size that know nothing of y, with the unknowns that are best for them."""
    y = torch.cat([batch.y for batch in given])
    with torch.no_grad():
        like = task.outputs(task.model, given[0].x)[:1]  # for its shape
    last = task.likelihood.classes_last
    if last:
        like = like.movedim(-1, 1)
    # a chessboard of signs over examples and outputs, and its negative, so that neither meets the targets by chance
    places = torch.arange(len(y), device=like.device)
    if like.ndim > 1:
        places = places[:, None] + torch.arange(like.shape[1], device=like.device)
    signs = (1 - 2 * (places % 2)).reshape(*places.shape, *[1] * (like.ndim - places.ndim))
    outputs = size * signs.to(like).expand(len(y), *like.shape[1:])
    outputs = outputs.movedim(1, -1) if last else outputs
    outputs, twice = torch.cat([outputs, -outputs]), torch.cat([y, y])
    weights = [batch.weight for batch in given if batch.weight is not None]
    weight = torch.cat([*weights, *weights]) if weights else None
    best = task.likelihood
    if best.unknowns():
        best = settled(best, outputs.unsqueeze(0), twice)
    return float(task.nll(outputs, twice, best, weight)) * len(y) / y.numel()
