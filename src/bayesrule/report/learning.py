"""How training went: the loss of each epoch, and that of held-out examples where the fit looked at some."""

from __future__ import annotations

from matplotlib.axes import Axes

from bayesrule.report.comparison import Comparison, Entry
from bayesrule.report.drawing import INK, panels

HELD = "val_nll"


def told(entry: Entry) -> bool:
    """Whether there is a course to show: two epochs at least."""
    return len(entry.history) > 1


def training_curves(comparison: Comparison) -> str:
    """A panel for each method: the mean loss of each epoch, the held-out NLL, the epoch that was kept."""

    def draw(axes: Axes, entry: Entry, colour: str) -> None:
        epochs = range(1, len(entry.history) + 1)
        name = trained(entry)
        axes.plot(epochs, [each.get(name, float("nan")) for each in entry.history], color=colour, label="training")
        if any(HELD in each for each in entry.history):
            held = [each.get(HELD, float("nan")) for each in entry.history]
            axes.plot(epochs, held, "--", color=INK, lw=1.2, label="held out")
        if entry.best_epoch is not None:
            axes.axvline(entry.best_epoch + 1, color=INK, ls=":", lw=1, label="kept")
        axes.set(xlabel="epoch", ylabel="NLL" if name == "nll" else "loss")
        axes.legend(loc="upper right", fontsize=8)

    return panels(comparison, draw, height=2.3, alike=False)


def trained(entry: Entry) -> str:
    """What of the logs is shown: the NLL alone, which held-out examples have too, or the whole loss."""
    return "nll" if entry.history and "nll" in entry.history[-1] else "loss"
