"""The kernel of a trained classifier, sorted by class: are examples of a class alike to it?"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from torch import Tensor

from bayesrule import gp
from bayesrule.data import Arrays, Pair, Split, load_set
from bayesrule.experiments import findings, trials
from bayesrule.experiments.base import Claim, Result, Setting
from bayesrule.experiments.figures import panels
from bayesrule.experiments.modes import trained
from bayesrule.models import Spec, build, default_for
from bayesrule.priors import Gaussian

PERMUTATIONS = 999
SOURCE = "Khan et al. 2019, kernels"


@dataclass(frozen=True)
class Kernel:
    """A network and the test examples, so many for each class, of which the kernel is made; before or after training.

    ``classes``: how many, the first ones. ``most``: training examples at most.
    """

    data: str
    classes: int
    epochs: int
    per_class: int
    seed: int
    most: int = 60_000


QUICK = (Kernel("digits", 10, 40, 12, 0),)
FULL = (
    Kernel("mnist", 2, 3, 60, 0),
    Kernel("mnist", 10, 5, 30, 0),
    Kernel("cifar10", 2, 10, 60, 0),
    Kernel("cifar10", 10, 20, 30, 0),
)
SEEDS = 3


def run(setting: Setting) -> Result:
    """Networks of several seeds, each before and after training."""
    kinds = FULL if setting.full else QUICK
    seeds = findings.seeds(setting, SEEDS)
    asked = []
    for kind in kinds:
        for seed in seeds:
            asked += [replace(kind, epochs=0, seed=seed), replace(kind, seed=seed)]
    found = findings.with_answers(asked, setting.answers(look, asked))
    claims: list[Claim] = []
    for kind in kinds:
        claims += _claims(found, kind)
    shown = []
    for each in found:
        if each["seed"] != seeds[0]:
            each = each | {"kernel": None, "labels": None}  # matrices are large: those of the figure are enough
        shown.append(each)
    plain = {"permutations": PERMUTATIONS, "kernels": shown}
    size = (10.0, 3.2 * len(kinds))
    return Result(tuple(claims), plain, lambda figure: _draw(figure, found, kinds), size, _notes(found, kinds))


def look(question: Kernel, data_dir: str | None) -> dict[str, Any]:
    """The mean normalised kernel within and between classes, how likely their difference is by chance, and the kernel.

    Also those of the inputs themselves, x·x', for comparison, and the network's accuracy on the test examples.
    """
    split = load_set(question.data, data_dir, seed=question.seed)
    train = _first(split.train, question.classes, question.most)
    test = _first(split.test, question.classes, question.most)
    data, spec = Arrays(*train), _spec(split, question.classes)
    if question.epochs:
        network, _ = trained(spec, data, 1.0, question.epochs, 100, question.seed, lr=3e-3)
    else:
        network = build(spec, question.seed)
    x, y = _balanced(test, question.classes, question.per_class)
    process = gp.from_network(network, (x, y), "categorical", Gaussian(1.0))
    kernel = normalised(process.kernel(x, aggregate="sum").double())
    flat = x.flatten(1).double()
    generator = torch.Generator().manual_seed(question.seed)
    with torch.no_grad():
        right = (network(x).argmax(1) == y).double().mean()
    return {
        **contrast(kernel, y, generator),
        "of_inputs": contrast(normalised(flat @ flat.T), y, generator),
        "accuracy": float(right),
        "labels": y.tolist(),
        "kernel": [[round(float(v), 2) for v in row] for row in kernel],
    }


def normalised(kernel: Tensor) -> Tensor:
    """K_ij/√(K_ii K_jj): cosines.

    >>> normalised(torch.tensor([[4.0, 1.0], [1.0, 1.0]]))
    tensor([[1.0000, 0.5000],
            [0.5000, 1.0000]])
    """
    deviation = kernel.diagonal().sqrt()
    return kernel / deviation[:, None] / deviation


def contrast(kernel: Tensor, labels: Tensor, generator: torch.Generator) -> dict[str, float]:
    """Means over pairs of two different examples, within a class and between classes, and a permutation test.

    ``chance``: the share of permutations of the labels, this one included, with at least as large a difference.
    """
    within, between = _means(kernel, labels)
    reached = 1  # by the order at hand, so that chance is never zero
    for _ in range(PERMUTATIONS):
        order = torch.randperm(len(labels), generator=generator)
        other_within, other_between = _means(kernel, labels[order])
        reached += other_within - other_between >= within - between
    return {"within": within, "between": between, "chance": reached / (PERMUTATIONS + 1)}


def _means(kernel: Tensor, labels: Tensor) -> tuple[float, float]:
    same = labels[:, None] == labels
    different = ~torch.eye(len(labels), dtype=torch.bool)
    return float(kernel[same & different].mean()), float(kernel[~same].mean())


def _first(pair: Pair, classes: int, most: int) -> Pair:
    """Examples of the first classes, at most so many."""
    x, y = pair
    rows = (y < classes).nonzero()[:most, 0]
    return x[rows], y[rows]


def _balanced(pair: Pair, classes: int, count: int) -> Pair:
    """The first so many of each class."""
    x, y = pair
    rows = torch.cat([(y == c).nonzero()[:count, 0] for c in range(classes)])
    return x[rows], y[rows]


def _spec(split: Split, classes: int) -> Spec:
    spec = default_for(split) | {"outputs": classes}
    if spec["name"] == "mlp":
        spec |= {"hidden": [32]}
    return spec


def _of(found: list[dict[str, Any]], kind: Kernel, is_trained: bool) -> list[dict[str, Any]]:
    rows = []
    for each in found:
        same = each["data"] == kind.data and each["classes"] == kind.classes
        if same and bool(each["epochs"]) == is_trained:
            rows.append(each)
    return rows


def _gaps(found: list[dict[str, Any]]) -> list[float]:
    return [each["within"] - each["between"] for each in found]


def _claims(found: list[dict[str, Any]], kind: Kernel) -> tuple[Claim, Claim]:
    after, before = _of(found, kind, True), _of(found, kind, False)
    within, between = [each["within"] for each in after], [each["between"] for each in after]
    name = f"{kind.data}, {kind.classes} classes"
    chance = max(each["chance"] for each in after)
    sharper = findings.differences(_gaps(after), _gaps(before))
    return (
        Claim(
            SOURCE,
            f"{name}: the kernel of a trained network is larger within a class than between classes",
            f"mean cosine {trials.said(within, 3)} within, {trials.said(between, 3)} between; a share of at most "
            f"{chance:.3f} of {PERMUTATIONS + 1} orders of the labels reaches the difference",
            chance < 0.01,
        ),
        Claim(
            "the same before training",
            f"{name}: training widens the difference",
            f"difference {trials.said(_gaps(after), 3)} after, {trials.said(_gaps(before), 3)} before, when the mean "
            f"cosine is {trials.said([each['within'] for each in before], 3)} within, "
            f"{trials.said([each['between'] for each in before], 3)} between",
            findings.better(sharper),
        ),
    )


def _notes(found: list[dict[str, Any]], kinds: tuple[Kernel, ...]) -> tuple[str, ...]:
    lines = []
    for kind in kinds:
        after = _of(found, kind, True)
        inputs = [each["of_inputs"]["within"] - each["of_inputs"]["between"] for each in after]
        lines.append(
            f"{kind.data}, {kind.classes} classes: the cosines of the inputs themselves differ by "
            f"{trials.said(inputs, 3)}; accuracy on the test examples of the kernel "
            f"{trials.said([each['accuracy'] for each in after], 3)}."
        )
    return tuple(lines)


def _draw(figure: Figure, found: list[dict[str, Any]], kinds: tuple[Kernel, ...]) -> None:
    axes = iter(panels(figure, 3 * len(kinds), len(kinds)))
    for kind in kinds:
        pair = [_of(found, kind, False)[0], _of(found, kind, True)[0]]
        lowest = min(np.min(each["kernel"]) for each in pair)  # one scale of colours for both
        for each, when in zip(pair, ("before training", "after training"), strict=True):
            ax = next(axes)
            gp.plot_kernel(torch.tensor(each["kernel"]), torch.tensor(each["labels"]), axes=ax)
            ax.images[0].set_clim(lowest, 1)
            ax.set(title=f"{kind.data}, {when}", xlabel="class")
            for side in ("top", "right"):
                ax.spines[side].set_visible(True)
        _bars(next(axes), found, kind)


def _bars(ax: Axes, found: list[dict[str, Any]], kind: Kernel) -> None:
    """Within and between, before and after."""
    for shift, (what, label) in enumerate((("within", "within a class"), ("between", "between classes"))):
        before = trials.average([each[what] for each in _of(found, kind, False)])
        after = trials.average([each[what] for each in _of(found, kind, True)])
        x = np.arange(2) + 0.36 * (shift - 0.5)
        ax.bar(x, [before[0], after[0]], width=0.34, yerr=[before[1], after[1]], color=f"C{shift}", label=label)
    ax.set_xticks([0, 1], ["before", "after"])
    ax.set(ylabel="mean cosine", title="over seeds", ylim=(min(0, ax.get_ylim()[0]), 1.25))
    ax.legend(loc="upper right")
