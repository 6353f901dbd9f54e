"""Scores of predictions, in parts where many examples or pixels would not fit into memory."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from bayesrule.data import Batch, Data, as_data
from bayesrule.evaluate import parts, weighted
from bayesrule.evaluate.columns import Columns
from bayesrule.evaluate.null import calibration_null
from bayesrule.evaluate.scores import Scores, scored
from bayesrule.predictions import Prediction


class Predictor(Protocol):
    """What is evaluated: a posterior, or anything else that predicts."""

    def predict(self, x: Any, samples: int, seed: int) -> Prediction:
        """The prediction at inputs ``x``."""


def evaluate(
    posterior: Predictor,
    test: Any,
    ood: Any = None,
    *,
    samples: int = 32,
    bootstrap: int = 1000,
    seed: int = 0,
) -> Scores:
    """Scores of a posterior on test data, each with a 95 % bootstrap interval over test examples.

    Many examples, or pictures with a label for each pixel, are predicted in parts, each reduced to a few numbers for an
    example, so that memory does not grow with networks × classes × pixels.

    Args:
        posterior: What predicts.
        test: Inputs and targets, as for training.
        ood: Inputs from elsewhere for ``auroc_ood``. A pair is inputs and targets, which do not count.
        samples: Networks per prediction.
        bootstrap: Resamples behind the intervals, and simulations behind the null of the calibration error; 0 for
            none.
        seed: Of the networks and of the resamples.
    """
    data = as_data(test)
    if data.weight is not None:
        raise ValueError("scores do not know weights of examples: give test=(X, y)")
    found = columns(posterior, parts.of_data(data, samples), samples, seed)
    if ood is None:
        return of_columns(found, None, bootstrap, seed)
    strange = parts.of_inputs(elsewhere(ood), samples, parts.targets_of(data))
    return of_columns(found, uncertain(posterior, strange, samples, seed), bootstrap, seed)


def columns(posterior: Predictor, batches: Iterable[Batch], samples: int, seed: int) -> Columns:
    """All that scores are made of, from one part after another."""
    return Columns.cat([Columns.of(posterior.predict(x, samples=samples, seed=seed), y) for x, y in batches])


class Uncertain(NamedTuple):
    """The kind of a prediction, and the uncertainty of each example."""

    kind: type[Prediction]
    values: Tensor


def uncertain(posterior: Predictor, batches: Iterable[Any], samples: int, seed: int) -> Uncertain:
    """What is told of examples from elsewhere, one part after another."""
    found = []
    for x in batches:
        prediction = posterior.predict(x, samples=samples, seed=seed)
        found.append(Uncertain(type(prediction), weighted.flat(prediction.uncertainty)))
    return Uncertain(found[0].kind, torch.cat([part.values for part in found]))


def elsewhere(ood: Any) -> Any:
    """Inputs from elsewhere; where targets come with them, these are of no use."""
    pair = isinstance(ood, tuple) and len(ood) == 2
    if pair or isinstance(ood, Data | Dataset | DataLoader):
        return as_data(ood).raw().x
    return ood


def score(
    prediction: Prediction, y: Tensor, ood: Prediction | None = None, *, bootstrap: int = 1000, seed: int = 0
) -> Scores:
    """Scores of a prediction against the targets ``y``, in the units of y.

    Classes: accuracy, nll, brier, ece, confidence, entropy, epistemic, aurc. Reals: rmse, mae, nll, crps, coverage_50,
    coverage_90, coverage_95, width_90, std. Counts: rmse, nll, coverage_90. Both, of one target: r2. With ``ood`` also
    auroc_ood.

    The ece of few examples is above zero by chance alone: ``scores.null("ece")`` says how far.

    >>> import torch
    >>> from bayesrule.predictions import Reals
    >>> scores = score(Reals(torch.zeros(1, 4), torch.ones(())), torch.tensor([0.1, -0.3, 0.5, 2.0]))
    >>> scores["coverage_90"], round(scores["rmse"], 3)
    (0.75, 1.043)
    """
    if not len(prediction):
        raise ValueError("prediction must have at least one example: got none; give evaluate a test set with rows")
    strange = None if ood is None else Uncertain(type(ood), weighted.flat(ood.uncertainty))
    return of_columns(Columns.of(prediction, y), strange, bootstrap, seed)


def of_columns(found: Columns, outside: Uncertain | None, bootstrap: int, seed: int) -> Scores:
    """The scores, and how well examples from elsewhere are told."""
    sizes = [len(found)]
    table = found.statistics()
    if outside is not None:
        count = len(outside.values)
        if outside.kind is not found.kind or not count:
            got = f"{outside.kind.__name__} of {count} examples"
            raise ValueError(f"ood must be a {found.kind.__name__} of at least one example: got {got}")
        table["auroc_ood"] = weighted.separation(found.uncertainty, outside.values)
        sizes.append(count)
    scores = scored(table, sizes, bootstrap, seed)
    if bootstrap and found.counted is not None:
        generator = torch.Generator().manual_seed(seed)
        return replace(scores, nulls={"ece": calibration_null(found.counted, bootstrap, generator)})
    return scores
