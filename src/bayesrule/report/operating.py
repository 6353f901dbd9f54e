"""Two classes: what each threshold on the probability finds, and what it costs in false alarms."""

from __future__ import annotations

from matplotlib.axes import Axes

from bayesrule.report.comparison import Comparison, Entry
from bayesrule.report.drawing import INK, beside, together


def operating_curves(comparison: Comparison) -> str:
    """ROC and precision against recall of the second class, with the area under each."""
    return beside([_roc(comparison), _precision(comparison)])


def _roc(comparison: Comparison) -> str:
    from sklearn.metrics import roc_auc_score, roc_curve

    y = comparison.split.test[1].numpy()

    def draw(axes: Axes, entry: Entry, colour: str, style: str) -> None:
        p = entry.prediction.probs[:, 1].double().cpu().numpy()
        alarms, found, _ = roc_curve(y, p)
        axes.plot(alarms, found, style, color=colour, label=f"{entry.name}, area {roc_auc_score(y, p):.3f}")

    def finish(axes: Axes) -> None:
        axes.plot([0, 1], [0, 1], "--", color=INK, lw=0.8)
        axes.set(xlim=(0, 1), ylim=(0, 1.02), xlabel="false alarms, share of the others", ylabel="share found")
        axes.set_title("ROC")

    return together(comparison, draw, finish, height=3.2)


def _precision(comparison: Comparison) -> str:
    from sklearn.metrics import average_precision_score, precision_recall_curve

    y = comparison.split.test[1].numpy()

    def draw(axes: Axes, entry: Entry, colour: str, style: str) -> None:
        p = entry.prediction.probs[:, 1].double().cpu().numpy()
        precision, recall, _ = precision_recall_curve(y, p)
        label = f"{entry.name}, average {average_precision_score(y, p):.3f}"
        axes.step(recall, precision, style, color=colour, label=label, where="post")

    def finish(axes: Axes) -> None:
        axes.axhline(y.mean(), ls="--", color=INK, lw=0.8)
        axes.set(xlim=(0, 1), ylim=(0, 1.02), xlabel="recall, share found", ylabel="precision, share that is right")
        axes.set_title("precision and recall")

    return together(comparison, draw, finish, height=3.2)
