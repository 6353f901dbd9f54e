"""Whether what a posterior promises is what test examples show."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from bayesrule.data import as_data
from bayesrule.evaluate import weighted
from bayesrule.evaluate.scores import Scores, scored
from bayesrule.evaluate.weighted import Statistic
from bayesrule.posteriors import Posterior
from bayesrule.predictions import Numbers, Selective


def guarantees(posterior: Posterior, test: Any, groups: Any = None, *, bootstrap: int = 1000, seed: int = 0) -> Scores:
    """What is seen of each promise on test data, with 95 % bootstrap intervals over test examples.

    Of `conformalize`: ``coverage``, the share of sets or intervals that hold the truth, and ``set_size`` or ``width``.
    Of `selective`: ``answered``, the share of examples that are answered, and ``error``, the share of wrong answers.

    >>> import bayesrule as br
    >>> x, y = br.data.moons(seed=0)
    >>> posterior = br.fit(br.models.mlp(2, 2, hidden=(8,)), (x[:200], y[:200]), "map", epochs=5)
    >>> promising = posterior.conformalize((x[200:300], y[200:300]), level=0.9)
    >>> sorted(guarantees(promising, (x[300:], y[300:]), bootstrap=0))
    ['coverage', 'set_size']
    """
    x, y = as_data(test).raw()
    table: dict[str, Statistic] = {}
    for promise in posterior.guarantees:
        prediction = posterior.predict(x, samples=promise.samples, seed=promise.seed)
        truth = prediction.target(y)
        if isinstance(promise, Selective):
            table |= _answers(promise.answers(prediction).answered, prediction.point != truth)
        elif isinstance(prediction, Numbers):
            low, high = promise.intervals(prediction, groups)
            table |= {"coverage": weighted.mean((low <= truth) & (truth <= high)), "width": weighted.mean(high - low)}
        else:
            table |= _sets(promise.sets(prediction, groups), truth)
    if not table:
        raise ValueError("the posterior promises nothing: take posterior.conformalize or posterior.selective first")
    return scored(table, [len(y)], bootstrap, seed)


def _sets(inside: Tensor, truth: Tensor) -> dict[str, Statistic]:
    held = inside.gather(1, truth.unsqueeze(1)).squeeze(1)
    return {"coverage": weighted.mean(held), "set_size": weighted.mean(inside.sum(1))}


def _answers(answered: Tensor, wrong: Tensor) -> dict[str, Statistic]:
    given, mistaken = weighted.flat(answered), weighted.flat(answered & wrong)
    return {
        "answered": weighted.mean(answered),
        "error": lambda weights: weights @ mistaken / (weights @ given).clamp(min=1),  # of no answer none is wrong
    }
