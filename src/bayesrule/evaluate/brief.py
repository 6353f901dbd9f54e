"""A posterior in four numbers, for runs that judge it again and again."""

from __future__ import annotations

import torch
from torch import Tensor

from bayesrule.data import Inputs, inputs
from bayesrule.evaluate.score import score
from bayesrule.posteriors import Posterior

BLOCK = 4096  # examples that are predicted at a time


def judged(posterior: Posterior, test: tuple[Inputs, Tensor], samples: int) -> dict[str, float]:
    """Accuracy (for reals and counts minus the RMSE), NLL, ECE and the mean epistemic uncertainty on some examples."""
    x, y = test
    blocks = torch.split(torch.arange(len(y)), BLOCK)
    parts = [posterior.predict(inputs.take(x, rows), samples) for rows in blocks]
    prediction = type(parts[0]).cat(parts)
    found = score(prediction, y, bootstrap=0)
    return {
        "accuracy": found["accuracy"] if "accuracy" in found else -found["rmse"],
        "nll": found["nll"],
        "ece": found.get("ece", 0.0),
        "unsure": float(prediction.epistemic.mean()),
    }
