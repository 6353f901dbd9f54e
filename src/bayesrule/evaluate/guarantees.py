"""Whether what a posterior promises is what test examples show."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from bayesrule.data import Data, as_data
from bayesrule.evaluate import parts, weighted
from bayesrule.evaluate.scores import Scores, scored
from bayesrule.evaluate.weighted import Statistic
from bayesrule.posteriors import Posterior
from bayesrule.predictions import Numbers, Prediction, Selective
from bayesrule.predictions.conformal import Conformal, Group, labels


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
    data = as_data(test)
    named = None if groups is None else labels(groups, data.n)
    table: dict[str, Statistic] = {}
    for promise in posterior.guarantees:
        table |= _seen(posterior, promise, data, named)
    if not table:
        raise ValueError("the posterior promises nothing: take posterior.conformalize or posterior.selective first")
    return scored(table, [data.n], bootstrap, seed)


def _seen(
    posterior: Posterior, promise: Conformal | Selective, data: Data, groups: list[Group] | None
) -> dict[str, Statistic]:
    """The scores of one promise, from predictions in parts that are reduced to two numbers for each example."""
    found: dict[str, list[Tensor]] = {}
    first = 0
    for x, y in parts.of_data(data, promise.samples):
        prediction = posterior.predict(x, samples=promise.samples, seed=promise.seed)
        own = None if groups is None else groups[first : first + len(y)]
        for name, values in _values(promise, prediction, y, own, first).items():
            found.setdefault(name, []).append(values)
        first += len(y)
    whole = {name: torch.cat(values) for name, values in found.items()}
    if "wrong" in whole:
        return _answers(whole["answered"], whole["wrong"])
    return {name: weighted.mean(values) for name, values in whole.items()}


def _values(
    promise: Conformal | Selective, prediction: Prediction, y: Tensor, groups: list[Group] | None, first: int
) -> dict[str, Tensor]:
    """Of each example, what a promise says of it and whether that is so; ``first``: how many came before them."""
    truth = prediction.target(y)
    if isinstance(promise, Selective):
        return {"answered": promise.answers(prediction).answered, "wrong": prediction.point != truth}
    if isinstance(prediction, Numbers):
        low, high = promise.intervals(prediction, groups)
        return {"coverage": (low <= truth) & (truth <= high), "width": high - low}
    inside = promise.sets(prediction, groups, first)
    return {"coverage": inside.gather(1, truth.unsqueeze(1)).squeeze(1), "set_size": inside.sum(1)}


def _answers(answered: Tensor, wrong: Tensor) -> dict[str, Statistic]:
    given, mistaken = weighted.flat(answered), weighted.flat(answered & wrong)
    return {
        "answered": weighted.mean(answered),
        "error": lambda weights: weights @ mistaken / (weights @ given).clamp(min=1),  # of no answer none is wrong
    }
