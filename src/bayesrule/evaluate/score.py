"""Scores of predictions, in parts where many examples or pixels would not fit into memory."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from bayesrule.data import Arrays, Batch, Data, as_data
from bayesrule.evaluate import weighted
from bayesrule.evaluate.columns import Columns
from bayesrule.evaluate.null import calibration_null
from bayesrule.evaluate.scores import Scores, scored
from bayesrule.predictions import Prediction

READ = 256
"""Examples of a data set or loader that are read at a time."""
ROOM = 2**26
"""Numbers that the outputs of a prediction may take: more examples are predicted in parts."""
OUTPUTS = 10
"""Outputs for each target that are reckoned with, since a predictor does not say how many it has."""


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
    found = [Columns.of(posterior.predict(x, samples=samples, seed=seed), y) for x, y in _parts(data, samples)]
    if ood is None:
        return _scores(Columns.cat(found), None, bootstrap, seed)
    outside = posterior.predict(elsewhere(ood), samples=samples, seed=seed)
    return _scores(Columns.cat(found), outside, bootstrap, seed)


def elsewhere(ood: Any) -> Any:
    """Inputs from elsewhere; where targets come with them, these are of no use."""
    pair = isinstance(ood, tuple) and len(ood) == 2
    if pair or isinstance(ood, Data | Dataset | DataLoader):
        return as_data(ood).raw().x
    return ood


def _parts(data: Data, samples: int) -> Iterator[Batch]:
    """All examples in the user's units, so many at once that the outputs of all networks for them have room."""
    targets = next(iter(data.ordered(1))).y[0].numel()
    size = max(1, ROOM // (samples * OUTPUTS * targets))
    if isinstance(data, Arrays):
        return iter([data.raw()]) if data.n <= size else data.raw_batches(size)
    return data.raw_batches(min(size, READ))  # as they come, since batches may be padded to lengths of their own


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
    return _scores(Columns.of(prediction, y), ood, bootstrap, seed)


def _scores(found: Columns, ood: Prediction | None, bootstrap: int, seed: int) -> Scores:
    sizes = [len(found)]
    table = found.statistics()
    if ood is not None:
        if type(ood) is not found.kind or not len(ood):
            raise ValueError(f"ood must be a {found.kind.__name__} of at least one example: got {ood}")
        table["auroc_ood"] = weighted.separation(found.uncertainty, ood.uncertainty)
        sizes.append(len(ood))
    scores = scored(table, sizes, bootstrap, seed)
    if bootstrap and found.counted is not None:
        generator = torch.Generator().manual_seed(seed)
        return replace(scores, nulls={"ece": calibration_null(found.counted, bootstrap, generator)})
    return scores
