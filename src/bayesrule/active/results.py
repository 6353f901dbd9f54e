"""What a run of active learning has asked, been told and found."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from bayesrule import showing


@dataclass
class Result:
    """Rounds of questions and answers; the first has the rows to start with.

    ``rows`` and ``answers``: of each round, rows of the pool and their labels. ``guesses`` and ``sure``: what was
    predicted for them before, and how sure that was: the guess's probability, or the standard deviation of a number.
    ``asked``: rows that wait for an answer. ``labels``: how many were known when the network was judged after each
    round. ``accuracy``, ``nll``, ``ece``: on the test examples, none without; of numbers accuracy is minus the RMSE.
    ``unsure``: the mean epistemic uncertainty, there or, without test examples, on the pool. ``seconds``: of each
    round, learning and choosing.
    """

    pool: str
    about: dict[str, Any]
    seed: int
    rows: list[list[int]] = field(default_factory=list)
    answers: list[list[float]] = field(default_factory=list)
    guesses: list[list[float]] = field(default_factory=list)
    sure: list[list[float]] = field(default_factory=list)
    asked: list[int] = field(default_factory=list)
    asked_guesses: list[float] = field(default_factory=list)
    asked_sure: list[float] = field(default_factory=list)
    labels: list[int] = field(default_factory=list)
    accuracy: list[float] = field(default_factory=list)
    nll: list[float] = field(default_factory=list)
    ece: list[float] = field(default_factory=list)
    unsure: list[float] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)
    finished: bool = False

    @property
    def known(self) -> int:
        """How many labels are known."""
        return sum(map(len, self.rows))

    def labels_to(self, accuracy: float) -> int | None:
        """The least number of labels with which the accuracy was reached; None: it never was.

        >>> result = Result("pool", {}, 0, labels=[20, 30, 40], accuracy=[0.7, 0.92, 0.91])
        >>> result.labels_to(0.9), result.labels_to(0.95)
        (30, None)
        """
        for labels, reached in zip(self.labels, self.accuracy, strict=False):
            if reached >= accuracy:
                return labels
        return None

    def summary(self) -> dict[str, Any]:
        """The numbers that a table shows."""
        found: dict[str, Any] = {"labels": self.labels[-1], "unsure": self.unsure[-1], "seconds": sum(self.seconds)}
        if self.accuracy:
            found |= {"accuracy": self.accuracy[-1], "nll": self.nll[-1], "ece": self.ece[-1], "area": area(self)}
        return found

    def to_json(self) -> dict[str, Any]:
        """All of it as plain data, with the summary."""
        return {**asdict(self), "summary": self.summary() if self.labels else {}}

    @classmethod
    def from_json(cls, plain: dict[str, Any]) -> Result:
        """Undo `to_json`."""
        return cls(**{key: value for key, value in plain.items() if key != "summary"})

    def _repr_html_(self) -> str:
        """The learning curve, for notebooks."""
        rows = [("labels", "accuracy")] + [
            (str(labels), f"{value:.3f}") for labels, value in zip(self.labels, self.accuracy, strict=False)
        ]
        return showing.table(rows, f"{self.pool}: {self.known} labels")


def area(result: Result) -> float:
    """The mean accuracy over the numbers of labels, by trapezoids: the area under the learning curve.

    >>> area(Result("pool", {}, 0, labels=[10, 20, 40], accuracy=[0.5, 0.7, 0.9]))
    0.7333333333333333
    """
    return mean_height(result.labels, result.accuracy)


def mean_height(across: Sequence[float], up: Sequence[float]) -> float:
    """∫ up / (last − first), by trapezoids; of one point its height."""
    if len(across) < 2:
        return up[0]
    total = 0.0
    for left in range(len(across) - 1):
        total += (across[left + 1] - across[left]) * (up[left] + up[left + 1]) / 2
    return total / (across[-1] - across[0])
