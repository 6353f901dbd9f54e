"""Which scores each kind of prediction has."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from bayesrule.data import Data, as_data
from bayesrule.evaluate import weighted
from bayesrule.evaluate.null import calibration_null
from bayesrule.evaluate.scores import Scores, scored
from bayesrule.evaluate.weighted import Statistic
from bayesrule.predictions import Binary, Classes, Continuous, Counts, Prediction, tails

BINS = 15
"""Bins of the calibration error."""


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
    x, y = data.raw()
    prediction = posterior.predict(x, samples=samples, seed=seed)
    if ood is None:
        return score(prediction, y, bootstrap=bootstrap, seed=seed)
    outside = posterior.predict(elsewhere(ood), samples=samples, seed=seed)
    return score(prediction, y, outside, bootstrap=bootstrap, seed=seed)


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
    coverage_90, coverage_95, width_90, std. Counts: rmse, nll, coverage_90. With ``ood`` also auroc_ood.

    The ece of few examples is above zero by chance alone: ``scores.null("ece")`` says how far.

    >>> import torch
    >>> from bayesrule.predictions import Reals
    >>> scores = score(Reals(torch.zeros(1, 4), torch.ones(())), torch.tensor([0.1, -0.3, 0.5, 2.0]))
    >>> scores["coverage_90"], round(scores["rmse"], 3)
    (0.75, 1.043)
    """
    if not len(prediction):
        raise ValueError("prediction must have at least one example: got none; give evaluate a test set with rows")
    y = prediction.target(y)
    sizes = [len(prediction)]
    table = _table(prediction, y)
    if ood is not None:
        if type(ood) is not type(prediction) or not len(ood):
            raise ValueError(f"ood must be a {type(prediction).__name__} of at least one example: got {ood}")
        table["auroc_ood"] = weighted.separation(prediction.uncertainty, ood.uncertainty)
        sizes.append(len(ood))
    scores = scored(table, sizes, bootstrap, seed)
    if bootstrap and isinstance(prediction, Classes | Binary):
        generator = torch.Generator().manual_seed(seed)
        return replace(scores, nulls={"ece": calibration_null(prediction.confidence, BINS, bootstrap, generator)})
    return scores


def _table(prediction: Prediction, y: Tensor) -> dict[str, Statistic]:
    match prediction:
        case Classes():
            return _classes(prediction, y)
        case Binary():
            return _classes(prediction.classes, y)
        case Continuous():
            return _reals(prediction, y)
        case Counts():
            return _counts(prediction, y)
    raise TypeError(f"prediction must be Classes, Binary, Reals or Counts: got {type(prediction).__name__}")


def _classes(prediction: Classes, y: Tensor) -> dict[str, Statistic]:
    correct, confidence = prediction.label == y, prediction.confidence
    log_prob = prediction.log_prob(y)
    # brier: Σ_c (p_c − [c = y])² = Σ_c p_c² − 2 p_y + 1
    return {
        "accuracy": weighted.mean(correct),
        "nll": weighted.mean(-log_prob),
        "brier": weighted.mean(prediction.probs.square().sum(1) - 2 * log_prob.exp() + 1),
        "ece": weighted.calibration_error(confidence, correct, BINS),
        "confidence": weighted.mean(confidence),
        "entropy": weighted.mean(prediction.entropy),
        "epistemic": weighted.mean(prediction.epistemic),
        "aurc": weighted.risk_area(confidence, ~correct),
    }


def _reals(prediction: Continuous, y: Tensor) -> dict[str, Statistic]:
    error, cdf = y - prediction.mean, prediction.cdf(y)
    lower, upper = prediction.interval(0.9)
    # y is in the central interval of a level if its cdf is between the tails: no quantiles are searched for.
    covered = {level: (tails(level)[0] <= cdf) & (cdf <= tails(level)[1]) for level in (0.5, 0.9, 0.95)}
    return {
        "rmse": weighted.root(weighted.mean(error.square())),
        "mae": weighted.mean(error.abs()),
        "nll": weighted.mean(-prediction.log_prob(y)),
        "crps": weighted.mean(prediction.crps(y)),
        **{f"coverage_{100 * level:.0f}": weighted.mean(inside) for level, inside in covered.items()},
        "width_90": weighted.mean(upper - lower),
        "std": weighted.mean(prediction.std),
    }


def _counts(prediction: Counts, y: Tensor) -> dict[str, Statistic]:
    lower, upper = prediction.interval(0.9)
    return {
        "rmse": weighted.root(weighted.mean((y - prediction.mean).square())),
        "nll": weighted.mean(-prediction.log_prob(y)),
        "coverage_90": weighted.mean((lower <= y) & (y <= upper)),
    }
