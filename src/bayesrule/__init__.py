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

import gc
import importlib
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

# Nearly all that is made while packages load stays, so a collection finds nothing, and each full one walks through all
# that torch has loaded: together they take longer than loading what is here.
_collecting = gc.isenabled()
gc.disable()
try:
    from bayesrule import (
        curvature,
        data,
        likelihoods,
        methods,
        models,
        nn,
        optim,
        posteriors,
        predictions,
        priors,
        structures,
        training,
    )
    from bayesrule.decide import decide
    from bayesrule.evaluate import evaluate
    from bayesrule.posteriors import load
    from bayesrule.task import Task
    from bayesrule.temperatures import Balanced, Cold
    from bayesrule.training import fit, resume
finally:
    if _collecting:
        gc.enable()

# Rooms that no fit enters: each is loaded when it is first used, so that `import bayesrule` stays quick.
if TYPE_CHECKING:
    from bayesrule import active, families, gp, lifelong, mean_field, penalties, rule
    from bayesrule.cli.loaded import load_run
else:

    def __getattr__(name: str) -> Any:
        if name in ("active", "families", "gp", "lifelong", "mean_field", "penalties", "rule"):
            return importlib.import_module(f"bayesrule.{name}")
        if name == "load_run":
            return importlib.import_module("bayesrule.cli.loaded").load_run
        raise AttributeError(f"module 'bayesrule' has no attribute {name!r}")

    def __dir__() -> list[str]:
        return sorted({*globals(), *__all__})


__all__ = [
    "Balanced",
    "Cold",
    "Task",
    "active",
    "curvature",
    "data",
    "decide",
    "evaluate",
    "families",
    "fit",
    "gp",
    "lifelong",
    "likelihoods",
    "load",
    "load_run",
    "mean_field",
    "methods",
    "models",
    "nn",
    "optim",
    "penalties",
    "posteriors",
    "predictions",
    "priors",
    "resume",
    "rule",
    "structures",
    "training",
]
