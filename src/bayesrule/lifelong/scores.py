"""How well a network has learnt a stream: the accuracy matrix and what follows from it."""

from __future__ import annotations

from dataclasses import dataclass, field
from statistics import fmean
from typing import Any

from bayesrule import showing

Row = list[float]


@dataclass(frozen=True)
class Result:
    """A run over a stream.

    ``accuracy``: R, ``accuracy[i][j]`` the share of right labels on task j after task i, for j ≤ i, and for j = i + 1
    before it was learnt; for reals minus the RMSE. ``nll``, ``ece``, ``unsure``: the same shape: mean −log p(y|x), the
    expected calibration error and the mean epistemic uncertainty. ``first``: accuracy on each task before any was
    learnt. ``seconds`` and ``bytes``: of each task, the processor time that learning took and what the strategy holds
    afterwards.
    """

    stream: str
    strategy: dict[str, Any]
    seed: int
    tasks: list[str] = field(default_factory=list)
    accuracy: list[Row] = field(default_factory=list)
    nll: list[Row] = field(default_factory=list)
    ece: list[Row] = field(default_factory=list)
    unsure: list[Row] = field(default_factory=list)
    first: Row = field(default_factory=list)
    seconds: Row = field(default_factory=list)
    bytes: list[int] = field(default_factory=list)
    finished: bool = False

    @property
    def average(self) -> float:
        """Mean accuracy over all tasks so far, after the last: 1/T Σ_j R_Tj."""
        last = len(self.accuracy) - 1
        return fmean(self.accuracy[last][: last + 1])

    @property
    def averages(self) -> Row:
        """`average` after each task."""
        return [fmean(row[: index + 1]) for index, row in enumerate(self.accuracy)]

    @property
    def doubts(self) -> Row:
        """The mean epistemic uncertainty over the tasks so far, after each."""
        return [fmean(row[: index + 1]) for index, row in enumerate(self.unsure)]

    @property
    def backward_transfer(self) -> float:
        """1/(T−1) Σ_{j<T} (R_Tj − R_jj): below zero where later tasks made earlier ones worse.

        >>> Result("s", {}, 0, ["a", "b"], accuracy=[[0.9, 0.1], [0.7, 0.8]]).backward_transfer
        -0.2
        """
        last = len(self.accuracy) - 1
        if last < 1:
            return 0.0
        return round(fmean(self.accuracy[last][j] - self.accuracy[j][j] for j in range(last)), 12)

    @property
    def forgetting(self) -> float:
        """1/(T−1) Σ_{j<T} (max_{i<T} R_ij − R_Tj): how far each task has fallen from its best."""
        last = len(self.accuracy) - 1
        if last < 1:
            return 0.0
        return fmean(max(self.accuracy[i][j] for i in range(j, last)) - self.accuracy[last][j] for j in range(last))

    @property
    def forward_transfer(self) -> float:
        """1/(T−1) Σ_{j>1} (R_{j−1,j} − R_0j): what earlier tasks tell of one before it is learnt."""
        gains = [self.accuracy[j - 1][j] - self.first[j] for j in range(1, len(self.accuracy))]
        return fmean(gains) if gains else 0.0

    def summary(self) -> dict[str, float]:
        """The numbers that a table shows."""
        last = len(self.accuracy) - 1
        return {
            "average": self.average,
            "backward_transfer": self.backward_transfer,
            "forgetting": self.forgetting,
            "forward_transfer": self.forward_transfer,
            "nll": fmean(self.nll[last][: last + 1]),
            "ece": fmean(self.ece[last][: last + 1]),
            "unsure": fmean(self.unsure[last][: last + 1]),
            "seconds": sum(self.seconds),
            "bytes": self.bytes[-1],
        }

    def to_json(self) -> dict[str, Any]:
        """All of it as plain data, with the summary."""
        return {**self.__dict__, "summary": self.summary() if self.accuracy else {}}

    def _repr_html_(self) -> str:
        """The accuracy matrix, for notebooks."""
        rows = [("after", *self.tasks)]
        for name, row in zip(self.tasks, self.accuracy, strict=False):
            rows.append((name, *(f"{value:.3f}" for value in row)))
        return showing.table(rows, f"{self.stream}: average {self.average:.3f}")
