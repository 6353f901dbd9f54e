"""One HTML page that needs nothing but a browser: no network, no other file."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from bayesrule.files import write_atomically
from bayesrule.report.comparison import Comparison, Entry, grid, in_words
from bayesrule.report.examples import Extremes, extremes
from bayesrule.report.leaderboard import board
from bayesrule.report.measures import number
from bayesrule.report.scenes import Scene
from bayesrule.report.verdict import verdict


class Section(NamedTuple):
    """A figure and how to read it."""

    id: str
    title: str
    figure: str
    how: str


class Opening(NamedTuple):
    """What people see first: one sentence, and scenes."""

    verdict: str
    scenes: Sequence[Scene]


def write(path: str | Path, comparison: Comparison, opening: Opening | None = None) -> None:
    """Write the report of a comparison to ``path``, whole or not at all; ``opening`` comes before the leaderboard."""
    write_atomically(path, render(comparison, opening))


def render(comparison: Comparison, opening: Opening | None = None) -> str:
    """The page. Whatever comes from a user's file (names of columns, classes, cells) is escaped."""
    from bayesrule.report.runs import page

    return page(
        "page.html",
        opening=opening,
        comparison=comparison,
        split=comparison.split,
        board=board(comparison),
        verdict=verdict(comparison),
        sections=list(_sections(comparison)),
        by_class=[(e.name, e.by_class(comparison.split)) for e in comparison.ranked if comparison.split.classes],
        examples=[(e.name, _extremes(e, comparison)) for e in comparison.ranked],
        settings=[(entry.name, in_words(entry.settings)) for entry in comparison.ranked],
        scores=list(comparison.entries[0].scores),
        nulls=list(comparison.entries[0].scores.nulls),
        number=number,
    )


def _extremes(entry: Entry, comparison: Comparison) -> Extremes:
    causes = None if entry.doubt is None else entry.doubt.causes
    return extremes(entry.prediction, comparison.split, comparison.schema, causes)


def _sections(comparison: Comparison) -> Iterator[Section]:
    """The figures that the data allow."""
    from bayesrule.report import figures
    from bayesrule.report.learning import told as trained
    from bayesrule.report.learning import training_curves
    from bayesrule.report.operating import operating_curves
    from bayesrule.report.shifts import shift_svg

    kind, drawable = comparison.split.kind, grid(comparison.split) is not None
    sliced = all(entry.doubt is not None and entry.doubt.prediction is not None for entry in comparison.entries)
    told = all(entry.strangers is not None for entry in comparison.entries)
    drawn: dict[str, tuple[bool, Callable[[Comparison], str]]] = {
        "plane": (drawable and kind == "classes", figures.planes),
        "curve": (drawable and kind != "classes", figures.curves),
        "regions": (sliced and kind == "classes", figures.regions),
        "bands": (sliced and kind != "classes", figures.bands),
        "operating": (_two_classes(comparison), operating_curves),
        "reliability": (kind == "classes", figures.reliability_diagrams),
        "quantiles": (kind == "reals", figures.quantile_curves),
        "scatter": (kind != "classes", figures.scatter),
        "confidence": (kind == "classes", figures.histograms),
        "deviation": (kind != "classes", figures.histograms),
        "strangers": (told, figures.told_apart),
        "risk": (kind == "classes", figures.risk_curves),
        "risk-reals": (kind != "classes", figures.risk_curves),
        "training": (any(trained(entry) for entry in comparison.entries), training_curves),
    }
    for id, (asked, draw) in drawn.items():
        if asked:
            title, how = HOW[id]
            if comparison.split.ood is None:
                title = title.removesuffix(", also out of distribution")
            yield Section(id, title, draw(comparison), how)
    for curves in comparison.shifts:
        title, how = HOW["shift"]
        yield Section(f"shift-{curves.shift}", f"{title} {curves.shift}", shift_svg(curves), how)


def _two_classes(comparison: Comparison) -> bool:
    """Whether there are two, and both are among the test examples."""
    y = comparison.split.test[1]
    return len(comparison.split.classes) == 2 and y.ndim == 1 and 0 < int(y.sum()) < len(y)


HOW = {
    "plane": (
        "Where it is uncertain",
        "Colour is the entropy of the prediction at each point: dark is sure, bright is unsure. Symbols are training "
        "examples. A thin bright line between the classes only says that they overlap there. Far from all examples "
        "nothing is known, and a good method gets brighter there too.",
    ),
    "curve": (
        "The function it learnt",
        "Dots are training examples, the line is the mean. The wide band holds 90 % of new targets; the dark band in "
        "it is the epistemic part, what the networks disagree about. Where there are no dots the dark band should "
        "widen: more data there would narrow it.",
    ),
    "regions": (
        "Where in the table it is uncertain",
        "The two columns that tell most, with all others at what is typical: the median of a number, the most frequent "
        "category. Lines part the classes that are preferred; colour is the entropy, dark is sure, bright is unsure. "
        "Symbols are training examples, which differ in the other columns.",
    ),
    "bands": (
        "Noise and ignorance along a column",
        "The column that tells most, with all others at what is typical: the median of a number, the most frequent "
        "category. The wide band holds 90 % of new targets; the dark band in it is ignorance, what the networks "
        "disagree about, and the rest is noise. Dots are training examples, which differ in the other columns.",
    ),
    "strangers": (
        "Does it notice out-of-distribution examples?",
        "The chance (AUROC) that such an example looks stranger than a test example, by each uncertainty, and by "
        "distances from the training examples in the features of the last layer. At 0.5, the dashed line, it is a "
        "coin; below it strangers look more familiar than test examples do.",
    ),
    "shift": (
        "Shift:",
        "The same test examples further and further from home. Mistakes must grow; a method that knows it gets less "
        "sure at the same time, or its intervals wider, and its other scores suffer less.",
    ),
    "reliability": (
        "Does confidence mean what it says?",
        "Test examples are grouped by confidence, and each dot is a group: how sure the method was, and how often it "
        "was right. A bigger dot holds more examples. On the dashed line 80 % sure means 80 % right; below it the "
        "method is overconfident, above it underconfident. Small dots are few examples and jump by chance.",
    ),
    "quantiles": (
        "Do quantiles mean what they say?",
        "A predicted 10 % quantile should have 10 % of the true targets below it, and so on: a calibrated method "
        "follows the dashed line. Steeper than it in the middle: intervals are too wide; flatter: too narrow. All "
        "above it: predictions are too high; all below: too low.",
    ),
    "operating": (
        "What does a threshold find?",
        "The second of the two classes is looked for, and every threshold on its probability is a point. ROC: the "
        "share of its examples that are found, against the share of the others that raise a false alarm. The dashed "
        "line is a coin; the area is the chance that an example of it has a higher probability than one of the others. "
        "Precision and recall: how many of those found are right. The dashed line is to call every example so. Where "
        "the class is rare, look at this curve.",
    ),
    "training": (
        "How training went",
        "The mean of each epoch. For the line of held-out examples ask for them, by --early-stopping or fit's val: "
        "where it rises while that of training falls, the network learns its examples by heart. The dotted line is the "
        "epoch that early stopping kept. A line that still falls steeply at the end says: train longer.",
    ),
    "scatter": (
        "Predicted against true",
        "Each dot is a test example with its 90 % interval. On the dashed line the prediction is exact. Red ones have "
        "the truth outside their interval: one in ten should.",
    ),
    "confidence": (
        "Confidence, also out of distribution",
        "Coloured: how sure the method is of test examples. Outlined, if there: of examples of another kind, which "
        "belong to no class at all. A method that knows what it does not know has the outline further to the left.",
    ),
    "deviation": (
        "Uncertainty, also out of distribution",
        "Coloured: predicted standard deviations of test examples. Outlined, if there: those of inputs where there "
        "were no training data. A method that knows what it does not know has the outline further to the right.",
    ),
    "risk": (
        "What if it may say “I don't know”?",
        "Let the method answer only the examples it is most certain of, and hand the others to a person. From left to "
        "right it answers more of them. The lower the curve, the fewer mistakes are left; a useful uncertainty "
        "keeps it near zero for long.",
    ),
    "risk-reals": (
        "What if it may say “I don't know”?",
        "Let the method answer only the examples it is most certain of. From left to right it answers more of them. A "
        "useful uncertainty has small errors on the left. A flat curve says that all examples look equally hard.",
    ),
}
