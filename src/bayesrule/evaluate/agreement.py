"""How near the predictions of a posterior are to those of a reference, such as a long run of a sampler."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from bayesrule.evaluate import weighted
from bayesrule.evaluate.score import Predictor
from bayesrule.evaluate.scores import Scores, scored
from bayesrule.evaluate.weighted import Statistic
from bayesrule.predictions import Binary, Classes, Prediction

LEVELS = 200
"""Quantiles that a distance of Wasserstein is worked out from."""


def agreement(
    posterior: Predictor,
    reference: Predictor,
    x: Any,
    *,
    samples: int = 100,
    bootstrap: int = 1000,
    seed: int = 0,
) -> Scores:
    """How far the predictions of a posterior agree with those of a reference, each with a 95 % bootstrap interval.

    Classes: ``agreement``, the share of inputs at which both prefer the same class, and ``total_variation``,
    ½ Σ_c |p_c − r_c| on average. All else: ``wasserstein``, (∫ (F⁻¹(u) − G⁻¹(u))² du)^{1/2} of the distribution
    functions F and G of y at an input, on average, in the units of y.

    Args:
        posterior: What predicts.
        reference: What to agree with: a posterior, also one from a file (`br.load`), or anything else that predicts.
        x: Inputs, as for `predict`.
        samples: Networks per prediction.
        bootstrap: Resamples of inputs behind the intervals; 0 for none.
        seed: Of the networks and of the resamples.

    >>> import bayesrule as br
    >>> x, y = br.data.moons(seed=0)
    >>> model = br.models.mlp(2, 2, hidden=(8,))
    >>> ensemble, one = (br.fit(model, (x, y), method, epochs=5) for method in ("ensemble", "map"))
    >>> sorted(agreement(one, ensemble, x, bootstrap=0))
    ['agreement', 'total_variation']
    """
    ours = posterior.predict(x, samples=samples, seed=seed)
    theirs = reference.predict(x, samples=samples, seed=seed)
    kinds = type(ours).__name__, type(theirs).__name__
    if isinstance(ours, Classes | Binary) != isinstance(theirs, Classes | Binary) or len(ours) != len(theirs):
        raise ValueError(f"reference must predict the same targets as the posterior, {kinds[0]}, not {kinds[1]}")
    if ours.shape != theirs.shape:
        raise ValueError(f"reference must predict targets of shape {tuple(ours.shape)}, not {tuple(theirs.shape)}")
    table = _of_classes(ours, theirs) if isinstance(ours, Classes | Binary) else _of_numbers(ours, theirs)
    return scored(table, [len(ours)], bootstrap, seed)


def _of_classes(ours: Prediction, theirs: Prediction) -> dict[str, Statistic]:
    p, r = _probabilities(ours), _probabilities(theirs)
    if p.shape != r.shape:
        raise ValueError(f"reference must know {p.shape[1]} classes, as the posterior does, not {r.shape[1]}")
    return {
        "agreement": weighted.mean(p.argmax(1) == r.argmax(1)),
        "total_variation": weighted.mean(0.5 * (p - r).abs().sum(1)),
    }


def _probabilities(prediction: Prediction) -> Tensor:
    """Of all classes, [B, C, ...]; yes and no are two."""
    return prediction.classes.probs if isinstance(prediction, Binary) else prediction.probs


def _of_numbers(ours: Prediction, theirs: Prediction) -> dict[str, Statistic]:
    levels = (torch.arange(LEVELS, dtype=torch.float64) + 0.5) / LEVELS
    squares = torch.stack([(ours.quantile(u) - theirs.quantile(u)).double().square() for u in levels.tolist()])
    return {"wasserstein": weighted.mean(squares.mean(0).sqrt())}
