"""Neural networks that know what they don't know.

>>> import bayesrule as br, torch
>>> X, y = br.data.moons(seed=0)
>>> model = torch.nn.Sequential(torch.nn.Linear(2, 32), torch.nn.ReLU(), torch.nn.Linear(32, 2))
>>> posterior = br.fit(model, (X, y), method="swag", epochs=20)
>>> prediction = posterior.predict([[0.5, 0.25], [9.0, -9.0]])
>>> prediction.probs.shape
torch.Size([2, 2])
"""

from __future__ import annotations

__version__ = "0.1.0"

from bayesrule import (
    curvature,
    data,
    families,
    gp,
    likelihoods,
    methods,
    models,
    nn,
    optim,
    posteriors,
    predictions,
    priors,
    rule,
    structures,
    training,
)
from bayesrule.evaluate import evaluate
from bayesrule.posteriors import load
from bayesrule.task import Task
from bayesrule.training import fit, resume

__all__ = [
    "Task",
    "curvature",
    "data",
    "evaluate",
    "families",
    "fit",
    "gp",
    "likelihoods",
    "load",
    "methods",
    "models",
    "nn",
    "optim",
    "posteriors",
    "predictions",
    "priors",
    "resume",
    "rule",
    "structures",
    "training",
]
