"""How predictions get worse on the way from home: scores at each severity of a shift, of several posteriors."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from bayesrule import showing
from bayesrule.data import as_data, shifts
from bayesrule.data.shifts import Corruption, Shift
from bayesrule.evaluate import parts
from bayesrule.evaluate.score import Predictor, columns, of_columns
from bayesrule.evaluate.scores import Scores
from bayesrule.naming import unknown

if TYPE_CHECKING:
    import pandas as pd

SHOWN = ("accuracy", "rmse", "nll", "brier", "ece", "confidence", "crps", "coverage_90", "std")
"""Scores that a table and a picture show, as far as they are of the kind of target."""


@dataclass(frozen=True, eq=False, repr=False)
class ShiftCurves:
    """Scores by posterior and severity: ``scores[name][k]`` are those at ``severities[k]``, in ``unit``."""

    shift: str
    unit: str
    severities: tuple[float, ...]
    scores: Mapping[str, Sequence[Scores]]

    def curve(self, score: str, name: str | None = None) -> list[float]:
        """One score against severity, of one posterior; None: of the only one."""
        if name is None and len(self.scores) > 1:
            raise ValueError(f"name must say which posterior's curve is meant, one of {', '.join(self.scores)}")
        name = next(iter(self.scores)) if name is None else name
        if name not in self.scores:
            raise unknown("posterior", name, self.scores)
        if score not in self.scores[name][0]:
            raise unknown("score", score, self.scores[name][0])
        return [at[score] for at in self.scores[name]]

    @property
    def shown(self) -> list[str]:
        """The scores that a picture shows."""
        first = next(iter(self.scores.values()))[0]
        return [name for name in SHOWN if name in first]

    def to_frame(self) -> pd.DataFrame:
        """A pandas table with a row for each posterior and severity, and a column for each score."""
        import pandas as pd

        rows = []
        for name, curve in self.scores.items():
            for severity, found in zip(self.severities, curve, strict=True):
                rows.append({"posterior": name, "severity": severity, **found})
        return pd.DataFrame(rows)

    def to_json(self) -> dict[str, Any]:
        """Plain data."""
        curves = {name: [found.to_json() for found in curve] for name, curve in self.scores.items()}
        return {"shift": self.shift, "unit": self.unit, "severities": list(self.severities), "scores": curves}

    def _rows(self) -> list[tuple[str, ...]]:
        rows = [("posterior", self.unit, *self.shown)]
        for name, curve in self.scores.items():
            for severity, found in zip(self.severities, curve, strict=True):
                rows.append((name, f"{severity:g}", *(f"{found[score]:.3f}" for score in self.shown)))
        return rows

    def __repr__(self) -> str:
        rows = self._rows()
        wide = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
        lines = ["  ".join(cell.rjust(width) for cell, width in zip(row, wide, strict=True)).rstrip() for row in rows]
        return "\n".join([f"under {self.shift}", *lines])

    def _repr_html_(self) -> str:
        """The same table for notebooks."""
        return showing.table(self._rows(), f"under {self.shift}")


def under_shift(
    posterior: Predictor | Mapping[str, Predictor],
    test: Any,
    shift: str | Shift = "rotation",
    *,
    shape: tuple[int, int, int] | None = None,
    samples: int = 32,
    bootstrap: int = 0,
    seed: int = 0,
) -> ShiftCurves:
    """Scores on test data that a shift takes further and further from home, see `bayesrule.data.shifts`.

    The examples of a severity are in memory at once; they are predicted in parts, as `evaluate` does it.

    Args:
        posterior: What predicts; a dict of several by name is shown side by side, on the same shifted examples.
        test: Inputs and targets, as for training, in the user's units.
        shift: A name, such as ``"rotation"``, ``"gaussian-noise"`` or ``"missing"``, or an object, such as
            ``br.data.shifts.Tilt(column=2)``.
        shape: Channels, height and width of pictures that come as rows of pixels.
        samples: Networks per prediction.
        bootstrap: Resamples behind the intervals of the scores; 0 for none.
        seed: Of the networks, of what is random in the shift, and of the resamples.

    >>> import bayesrule as br
    >>> x, y = br.data.moons(seed=0)
    >>> posterior = br.fit(br.models.mlp(2, 2, hidden=(8,)), (x, y), "map", epochs=5)
    >>> curves = under_shift(posterior, (x, y), "noise")
    >>> curves.severities, len(curves.curve("nll"))
    ((0.0, 0.1, 0.25, 0.5, 1.0, 2.0), 6)
    """
    chosen = shifts.choose(shift, shape)
    named = posterior if isinstance(posterior, Mapping) else {"posterior": posterior}
    if not named:
        raise ValueError("posterior must hold at least one, got an empty dict")
    data = as_data(test)
    if data.weight is not None:
        raise ValueError("scores do not know weights of examples: give test=(X, y)")
    batch = data.raw()
    found: dict[str, list[Scores]] = {name: [] for name in named}
    for severity in chosen.severities:
        moved = chosen.at(batch, severity, seed)
        for name, one in named.items():
            seen = columns(one, parts.of_batch(moved, samples), samples, seed)
            found[name].append(of_columns(seen, None, bootstrap, seed))
    called = chosen.kind if isinstance(chosen, Corruption) else chosen.name
    return ShiftCurves(called, chosen.unit, chosen.severities, found)
