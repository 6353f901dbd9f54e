"""A finished run as an object: from the command line back to Python."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torch import Tensor

from bayesrule.cli.runs import Rows, Run
from bayesrule.data import Schema
from bayesrule.posteriors import Posterior
from bayesrule.predictions import Numbers, Prediction
from bayesrule.predictions.conformal import Conformal
from bayesrule.predictions.frames import columns, percent

if TYPE_CHECKING:
    import pandas as pd

LEVEL = 0.9  # of intervals where nobody says


@dataclass(frozen=True, eq=False)
class LoadedRun:
    """What a finished run knows: its posterior, and how columns of a table become the network's inputs."""

    run: Run
    posterior: Posterior

    @property
    def schema(self) -> Schema | None:
        """The recipe for the columns; None for a run on a named data set."""
        return self.run.schema

    def predict(
        self, data: pd.DataFrame | str | Path, level: float = LEVEL, data_dir: str | None = None
    ) -> pd.DataFrame:
        """A row for each row of a table, in a frame or a file, or for each test example of a named data set.

        The columns are those of `Prediction.to_frame`, as ``bayesrule predict`` writes them, and the index is that of
        the frame. The target's column is not needed. ``level``: of the intervals of numbers. ``data_dir``: where the
        official files of a named data set are.
        """
        given = str(data) if isinstance(data, Path) else data
        table = self.tabulate(self.run.rows(given, data_dir, None, None), level)
        if not isinstance(given, str):
            table.index = given.index
        return table

    def tabulate(self, rows: Rows, level: float) -> pd.DataFrame:
        """The predictions of rows, with what is said of them, and the columns that are kept."""
        prediction = self.posterior.predict(rows.x, seed=self.run.settings.seed)
        table = prediction.to_frame(level, self.run.classes)
        for promise, cells in self._promised(prediction, rows.groups).items():
            table[promise] = cells
        if rows.unusual is not None:
            table["unusual"] = [", ".join(names) for names in rows.unusual]
        if rows.kept is not None:
            for name in rows.kept:
                free = f"{name} (kept)" if name in table else name
                values = rows.kept[name].astype(object)
                table[free] = values.where(values.notna(), None).to_numpy()  # JSON has no NaN
        return table

    def _promised(self, prediction: Prediction, groups: Sequence[str] | None) -> dict[str, list[Any]]:
        """Columns of what the run promises: sets or intervals that hold the truth, and which rows are answered."""
        found: dict[str, list[Any]] = {}
        conformal, selective = self.posterior.guarantees.conformal, self.posterior.guarantees.selective
        if conformal is not None:
            found |= self._held(conformal, prediction, groups)
        if selective is not None:
            found["answered"] = selective.answers(prediction).answered.tolist()
        return found

    def _held(self, promise: Conformal, prediction: Prediction, groups: Sequence[str] | None) -> dict[str, list[Any]]:
        """Sets or intervals; None for rows of groups that nothing is promised for, and all rows of groups not told."""
        if promise.groups and groups is None:
            return {}
        known = None
        if promise.groups and groups is not None:
            known = [name in promise.groups for name in groups]
            any_one = str(promise.groups[0])
            groups = [name if there else any_one for name, there in zip(groups, known, strict=True)]
        found: dict[str, list[Any]] = {}
        shown = percent(promise.level)
        if isinstance(prediction, Numbers):
            for end, values in zip(("lower", "upper"), promise.intervals(prediction, groups), strict=True):
                found |= columns(f"guaranteed_{end}_{shown}", values)
        else:
            found[f"guaranteed_set_{shown}"] = self._named(promise.sets(prediction, groups))
        if known is None:
            return found
        return {name: [v if k else None for v, k in zip(cells, known, strict=True)] for name, cells in found.items()}

    def _named(self, sets: Tensor) -> list[str]:
        """Sets of classes by their names, one after another with | between."""
        names = self.run.classes or [str(number) for number in range(sets.shape[1])]
        return [" | ".join(name for name, inside in zip(names, row, strict=True) if inside) for row in sets.tolist()]

    def __repr__(self) -> str:
        return f"LoadedRun({self.run.settings.data!r}, {self.posterior!r})"


def load_run(folder: str | Path, device: str | None = None) -> LoadedRun:
    """The finished run that ``bayesrule fit`` wrote to a directory.

    ``device``: where to compute, as ``--device``; None: where the run was trained.
    """
    run = Run.read(Path(folder))
    return LoadedRun(run, run.posterior(Path(folder), device))
