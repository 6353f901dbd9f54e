"""What a demonstration shows before any leaderboard: a picture, and a sentence with the figures of this very run.

Each scene sets one plain network beside a posterior, on the same examples.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from bayesrule.predictions import Classes, Numbers, Prediction
from bayesrule.report.comparison import Comparison

SURE = 0.9  # a confidence that people would act on, and the level of the intervals


class Scene(NamedTuple):
    """A picture, what it shows in words, and the figures in these words by method."""

    id: str
    title: str
    figure: str
    says: str
    figures: Mapping[str, Mapping[str, float]]


def mistakes(comparison: Comparison) -> Scene:
    """Of how many of its mistakes is each method sure?"""
    from bayesrule.report.figures import risk_curves

    y = comparison.split.test[1]
    found, clauses = {}, []
    for entry in comparison.entries:
        prediction = _classes(entry.prediction)
        wrong = prediction.label != y
        sure = wrong & (prediction.confidence > SURE)
        found[entry.name] = {"wrong": int(wrong.sum()), "sure and wrong": int(sure.sum())}
        clauses.append(f"{entry.name} gets {int(wrong.sum())} wrong, and is over {_percent(SURE)} sure of {_of(sure)}")
    says = (
        f"Of {len(y)} test examples {'; '.join(clauses)}. The curves: let a method answer only what it is most certain "
        "of, and hand the rest to a person. The longer a curve stays low, the more can be left to the method."
    )
    return Scene("mistakes", "Does it know which answers may be wrong?", risk_curves(comparison), says, found)


def strangers(comparison: Comparison) -> Scene:
    """How sure is each method of inputs that belong to no class?"""
    from bayesrule.report.figures import histograms

    found, clauses = {}, []
    for entry in comparison.entries:
        assert entry.outside is not None, "strangers are the split's ood"
        share = _share(_classes(entry.outside).confidence > SURE)
        found[entry.name] = {"sure of strangers": share}
        clauses.append(f"{entry.name} is over {_percent(SURE)} sure of {_percent(share)}")
    says = (
        "Outlined are pictures whose quarters were moved about: they belong to no class, and nobody should be sure of "
        f"one; {', '.join(clauses)} of them."
    )
    return Scene("strangers", "Is it sure of out-of-distribution inputs?", histograms(comparison), says, found)


def promise(comparison: Comparison) -> Scene:
    """How many truths do 90 % intervals hold?"""
    from bayesrule.report.figures import scatter

    y = comparison.split.test[1]
    found, clauses = {}, []
    for entry in comparison.entries:
        low, high = _numbers(entry.prediction).interval(SURE)
        covered, width = _share((low <= y) & (y <= high)), float((high - low).mean())
        found[entry.name] = {"coverage": covered, "width": width}
        clauses.append(f"those of {entry.name} hold {_percent(covered)}, at a mean width of {width:.3g}")
    says = (
        f"Intervals of {_percent(SURE)} promise to hold the truth in nine of ten cases. On {len(y)} new rows "
        f"{'; '.join(clauses)}. Red: the truth is outside."
    )
    return Scene("promise", "Do intervals on a table keep their promise?", scatter(comparison), says, found)


def verdict(scenes: Sequence[Scene], plain: str, ours: Sequence[str]) -> str:
    """All scenes in one sentence: what the plain network did, and what the method of each scene did."""
    (mistaken, unknown, kept), (classes, table) = (scene.figures for scene in scenes), ours
    return (
        f"One plain network is over {_percent(SURE)} sure of {mistaken[plain]['sure and wrong']} of its "
        f"{mistaken[plain]['wrong']} mistakes, and of {_percent(unknown[plain]['sure of strangers'])} of the pictures "
        f"that show nothing it knows; its {_percent(SURE)} intervals hold {_percent(kept[plain]['coverage'])} of the "
        f"truths. With {classes} and {table}: {mistaken[classes]['sure and wrong']} of "
        f"{mistaken[classes]['wrong']}, {_percent(unknown[classes]['sure of strangers'])}, "
        f"{_percent(kept[table]['coverage'])}."
    )


def _of(chosen: Tensor) -> str:
    count = int(chosen.sum())
    return f"{count} of these" if count else "none of these"


def _share(chosen: Tensor) -> float:
    return float(chosen.to(torch.float64).mean())


def _percent(share: float) -> str:
    return f"{100 * share:.0f} %"


def _classes(prediction: Prediction) -> Classes:
    assert isinstance(prediction, Classes), "a scene of classes is asked for where the split has classes"
    return prediction


def _numbers(prediction: Prediction) -> Numbers:
    assert isinstance(prediction, Numbers), "a scene of intervals is asked for where targets are numbers"
    return prediction
