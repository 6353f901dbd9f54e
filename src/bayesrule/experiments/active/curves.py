"""Learning curves of several acquisitions, and what is claimed of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes

from bayesrule.active import Result as Run
from bayesrule.active.results import mean_height
from bayesrule.experiments import findings
from bayesrule.experiments.base import Claim
from bayesrule.experiments.trials import said
from bayesrule.report.runs import bands

Runs = Mapping[str, Sequence[Run]]
"""Of each acquisition, those of all seeds."""
NAMES = {"random": "random", "bald": "BALD", "epig": "EPIG", "batchbald": "BatchBALD"}
SOURCES = {"bald": "Gal et al. 2017", "epig": "Bickford Smith et al. 2023", "batchbald": "Kirsch et al. 2019"}
REACH = (0.9, 0.95)


def data_of(runs: Runs) -> dict[str, Any]:
    """The curves as plain data."""
    found: dict[str, Any] = {"areas": areas(runs)}
    found["labels"] = {name: every[0].labels for name, every in runs.items()}
    found["accuracy"] = {name: [one.accuracy for one in every] for name, every in runs.items()}
    found["labels_to"] = {}
    for name, every in runs.items():
        found["labels_to"][name] = {f"{reach:.0%}": [one.labels_to(reach) for one in every] for reach in REACH}
    return found


def areas(runs: Runs) -> dict[str, list[float]]:
    """The mean accuracy over each curve, as far as all of them go."""
    last = min(one.labels[-1] for every in runs.values() for one in every)
    found: dict[str, list[float]] = {}
    for name, every in runs.items():
        found[name] = []
        for one in every:
            count = sum(labels <= last for labels in one.labels)
            found[name].append(mean_height(one.labels[:count], one.accuracy[:count]))
    return found


def ahead(runs: Runs, name: str, other: str, source: str, how: str) -> Claim:
    """Whether one acquisition's curve lies above another's; ``how``: the rest of the sentence."""
    mine, others = (areas(runs)[each] for each in (name, other))
    return Claim(
        source,
        f"{NAMES[name]} is ahead of {NAMES[other]}{how}",
        f"mean accuracy over the curve {said(mine, 3)} against {said(others, 3)}",
        findings.better(findings.differences(mine, others)) if len(mine) > 1 else None,
    )


def median_labels(runs: Sequence[Run], reach: float) -> float:
    """The median over seeds of the labels to an accuracy; ∞ where most never get there."""
    found = [one.labels_to(reach) for one in runs]
    return float(np.median([np.inf if labels is None else labels for labels in found]))


def text(labels: float, runs: Sequence[Run]) -> str:
    """A number of labels, or that they were too few."""
    return f"{labels:g}" if labels < np.inf else f"> {runs[0].labels[-1]}"


def within(runs: Runs, names: Sequence[str], most: int, source: str, reach: float = REACH[-1]) -> Claim:
    """Whether the best of some acquisitions gets to an accuracy with at most so many labels."""
    medians = {name: median_labels(runs[name], reach) for name in names}
    measured = ", ".join(f"{NAMES[name]} {text(medians[name], runs[name])}" for name in names)
    return Claim(
        source,
        f"{reach:.0%} with at most {most} labels by {' or '.join(NAMES[name] for name in names)}",
        f"median over {len(runs[names[0]])} seeds: {measured}",
        min(medians.values()) <= most,
    )


def twice(runs: Runs, reach: float = REACH[-1]) -> Claim:
    """Whether random rows need at least twice the labels of BatchBALD."""
    few, many = (median_labels(runs[name], reach) for name in ("batchbald", "random"))
    held: bool | None = None
    if few < np.inf:
        held = 2 * few <= many
        if many == np.inf and 2 * few > runs["random"][0].labels[-1]:
            held = None  # random might get there just after the end
    return Claim(
        SOURCES["batchbald"],
        f"random rows need at least twice the labels of BatchBALD to {reach:.0%}",
        f"median over seeds {text(many, runs['random'])} against {text(few, runs['batchbald'])}",
        held,
    )


def draw(axes: Axes, runs: Runs) -> None:
    """The mean accuracy over seeds, with a band of one standard error."""
    for index, (name, every) in enumerate(runs.items()):
        values = 100 * np.array([one.accuracy for one in every])
        bands(axes, every[0].labels, {NAMES[name]: values}, index)
    for reach in REACH:
        axes.axhline(100 * reach, color="0.6", lw=0.7, ls=":")
    axes.set(xlabel="labels", ylabel="test accuracy, %")
    axes.legend()
