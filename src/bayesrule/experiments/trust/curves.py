"""Scores against severity, by method and seed, and whether one method suffers less than another."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

SCORES = ("accuracy", "brier", "ece", "confidence", "nll")
JUDGED = ("brier", "ece")

Rows: TypeAlias = Sequence[dict[str, Any]]  # answers of a method, one for each seed


def curve(rows: Rows, shift: str, score: str) -> NDArray[np.float64]:
    """Of all seeds, [seeds, severities]."""
    return np.array([row["curves"][shift][score] for row in rows])


def means(rows: Rows, shift: str) -> dict[str, list[float]]:
    """Over seeds, as plain data."""
    return {score: curve(rows, shift, score).mean(0).round(4).tolist() for score in SCORES}


def below(rows: Rows, others: Rows, shift: str, far: float) -> tuple[str, bool]:
    """Whether Brier score and ECE, means over seeds, are lower at every severity from ``far`` on, and by how much."""
    distant = np.array(others[0]["severities"][shift]) >= far
    said, held = [], True
    for score in JUDGED:
        gap = (curve(rows, shift, score) - curve(others, shift, score)).mean(0)[distant]
        said.append(f"{score} {gap.min():+.3f} to {gap.max():+.3f}")
        held &= bool((gap < 0).all())
    return "; ".join(said), held
