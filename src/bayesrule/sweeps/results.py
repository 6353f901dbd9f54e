"""What a sweep found."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

from bayesrule.methods import Method
from bayesrule.naming import to_spec
from bayesrule.sweeps.ranges import Range, Value
from bayesrule.temperatures import Temperature


@dataclass(frozen=True, eq=False)
class Trial:
    """One training: its settings, and the scores on held-out data.

    ``settings``: by the keys of the space. ``method``, ``temperature``: what to give to `br.fit`. ``assignments``: the
    settings as paths and values for ``--set``. ``seed``: of the training. ``nll``: what is minimised; infinite where
    the training broke off, and ``failed`` says why.
    """

    number: int
    settings: dict[str, Value]
    method: Method
    temperature: float | Temperature | None
    assignments: dict[str, Any]
    seed: int
    nll: float
    scores: dict[str, float]
    seconds: float
    failed: str | None = None

    def to_json(self) -> dict[str, Any]:
        """Plain data."""
        nll = None
        if math.isfinite(self.nll):  # JSON has no infinity
            nll = self.nll
        return {
            "number": self.number,
            "settings": self.settings,
            "temperature": to_spec(self.temperature),
            "method": to_spec(self.method),
            "seed": self.seed,
            "nll": nll,
            "scores": self.scores,
            "seconds": self.seconds,
            "failed": self.failed,
        }


@dataclass(frozen=True, eq=False)
class Sweep:
    """All trials of a sweep that came to an end, in order, and the ranges that they were drawn from.

    ``running``: how many more are being worked on elsewhere.
    """

    trials: tuple[Trial, ...]
    space: Mapping[str, Range]
    running: int = 0

    @property
    def ranked(self) -> list[Trial]:
        """The trials that gave a posterior, the lowest held-out NLL first."""
        return sorted((trial for trial in self.trials if trial.failed is None), key=lambda trial: trial.nll)

    @property
    def best(self) -> Trial:
        """The trial of the lowest held-out NLL: ``br.fit(..., method=best.method, temperature=best.temperature)``."""
        ranked = self.ranked
        if not ranked:
            why: str | None = "none came to an end"
            if self.trials:
                why = self.trials[0].failed
            raise ValueError(
                f"no trial of {len(self.trials)} gave a posterior: {why}; narrow the space, or lower its lr"
            )
        return ranked[0]

    def table(self) -> list[dict[str, Any]]:
        """A row for each trial, best first and failed ones last: number, nll, scores and settings."""
        failed = [trial for trial in self.trials if trial.failed is not None]
        rows = []
        for trial in [*self.ranked, *failed]:
            row: dict[str, Any] = {"number": trial.number, "nll": trial.nll} | trial.scores
            row |= {key: trial.settings.get(key) for key in self.space}
            rows.append(row | {"failed": trial.failed})
        return rows

    def importance(self) -> dict[str, float]:
        """The share of each setting in what sets the best tenth of trials apart from all, by PED-ANOVA.

        Shares sum to one. Fewer than ten trials tell nothing, and give nothing.
        """
        from bayesrule.sweeps.store import importance

        return importance([(trial.settings, trial.nll) for trial in self.ranked], self.space)


@dataclass(frozen=True)
class SweepProgress:
    """Where a sweep stands after a trial: how many of all are done, and the best so far, if any gave a posterior."""

    trial: Trial
    done: int
    trials: int
    best: Trial | None


Callback: TypeAlias = Callable[[SweepProgress], object]
"""Called after each trial."""
