"""Predictions beside their targets, reduced to a few numbers for each example: all that scores are made of."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from bayesrule.evaluate import weighted
from bayesrule.evaluate.null import confidences
from bayesrule.evaluate.weighted import Statistic, flat
from bayesrule.predictions import Binary, Classes, Continuous, Counts, Numbers, Prediction, tails

BINS = 15
"""Bins of the calibration error."""


@dataclass(frozen=True)
class Columns:
    """What is kept of a prediction: rows for examples, whatever the number of networks, classes and pixels.

    ``values``: by the name of a score, what its statistic is of, ``[N]`` or, of the calibration error, ``[N, bins]``.
    ``uncertainty``: of each example. ``counted``: the `confidences` of all labels of classes, None of numbers.
    """

    kind: type[Prediction]
    values: dict[str, Tensor]
    uncertainty: Tensor
    counted: Tensor | None

    @classmethod
    def of(cls, prediction: Prediction, y: Tensor) -> Columns:
        """The columns of a prediction for targets in the units of y."""
        prediction, y = prediction.observed(prediction.target(y))
        values, counted = _values(prediction, y)
        return cls(type(prediction), values, flat(prediction.uncertainty), counted)

    @classmethod
    def cat(cls, parts: Sequence[Columns]) -> Columns:
        """Those of several sets of examples, one after another."""
        first = parts[0]
        values = {name: torch.cat([part.values[name] for part in parts]) for name in first.values}
        counts = [part.counted for part in parts if part.counted is not None]
        uncertainty = torch.cat([part.uncertainty for part in parts])
        return cls(first.kind, values, uncertainty, torch.stack(counts).sum(0) if counts else None)

    def __len__(self) -> int:
        return len(self.uncertainty)

    def statistics(self) -> dict[str, Statistic]:
        """Each score as a function of weights on examples."""
        found = {}
        for name, values in self.values.items():
            if name == "aurc":
                found[name] = weighted.risk_area(self.values["confidence"], values)
            else:
                found[name] = SPECIAL.get(name, weighted.mean)(values)
        return found


def _root_mean(values: Tensor) -> Statistic:
    return weighted.root(weighted.mean(values))


SPECIAL: dict[str, Callable[[Tensor], Statistic]] = {
    "rmse": _root_mean,
    "r2": weighted.explained,
    "ece": weighted.calibration_error,
}
"""Statistics that are no means."""


def _values(prediction: Prediction, y: Tensor) -> tuple[dict[str, Tensor], Tensor | None]:
    match prediction:
        case Classes():
            return _classes(prediction, y)
        case Binary():
            return _classes(prediction.classes, y)
        case Continuous():
            return _flattened(_reals(prediction, y)) | _explained(prediction, y), None
        case Counts():
            return _flattened(_counts(prediction, y)) | _explained(prediction, y), None
    raise TypeError(f"prediction must be Classes, Binary, Reals or Counts: got {type(prediction).__name__}")


def _flattened(values: dict[str, Tensor]) -> dict[str, Tensor]:
    return {name: flat(value) for name, value in values.items()}


def _explained(prediction: Numbers, y: Tensor) -> dict[str, Tensor]:
    """Squared errors beside targets, ``[N, 2]``; nothing where an example has several targets."""
    if y.ndim > 1:
        return {}
    return {"r2": torch.stack([flat((y - prediction.mean).square()), flat(y)], 1)}


def _classes(prediction: Classes, y: Tensor) -> tuple[dict[str, Tensor], Tensor]:
    correct, confidence = prediction.label == y, prediction.confidence
    log_prob = prediction.log_prob(y)
    # brier: Σ_c (p_c − [c = y])² = Σ_c p_c² − 2 p_y + 1
    values = {
        "accuracy": flat(correct),
        "nll": flat(-log_prob),
        "brier": flat(prediction.probs.square().sum(1) - 2 * log_prob.exp() + 1),
        "ece": weighted.calibration_gaps(confidence, correct, BINS),
        "confidence": flat(confidence),
        "entropy": flat(prediction.entropy),
        "epistemic": flat(prediction.epistemic),
        "aurc": flat(~correct),
    }
    return values, confidences(confidence, BINS)


def _reals(prediction: Continuous, y: Tensor) -> dict[str, Tensor]:
    error, cdf = y - prediction.mean, prediction.cdf(y)
    lower, upper = prediction.interval(0.9)
    # y is in the central interval of a level if its cdf is between the tails: no quantiles are searched for.
    covered = {level: (tails(level)[0] <= cdf) & (cdf <= tails(level)[1]) for level in (0.5, 0.9, 0.95)}
    return {
        "rmse": error.square(),
        "mae": error.abs(),
        "nll": -prediction.log_prob(y),
        "crps": prediction.crps(y),
        **{f"coverage_{100 * level:.0f}": inside for level, inside in covered.items()},
        "width_90": upper - lower,
        "std": prediction.std,
    }


def _counts(prediction: Counts, y: Tensor) -> dict[str, Tensor]:
    lower, upper = prediction.interval(0.9)
    return {
        "rmse": (y - prediction.mean).square(),
        "nll": -prediction.log_prob(y),
        "coverage_90": (lower <= y) & (y <= upper),
    }
