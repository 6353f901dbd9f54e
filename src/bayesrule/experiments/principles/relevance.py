"""Relevant examples: which they are, and what becomes of a network that is trained without them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from torch import Tensor, nn

from bayesrule import gp
from bayesrule.data import Arrays, Split, load_set
from bayesrule.experiments import findings, trials
from bayesrule.experiments.base import Claim, Result, Setting
from bayesrule.experiments.modes import trained
from bayesrule.models import Spec, default_for
from bayesrule.priors import Gaussian

SHARE = 0.1  # of the examples is the top, or the bottom, and is left out
SHOWN = 8  # pictures of each kind
SCALE = 1.0  # of the prior
SEEDS = {False: 5, True: 1}
LENGTHS = {False: {"digits": 40}, True: {"mnist": 3, "cifar10": 10}}  # epochs on each data set
MOST = 60_000  # training examples
HESSIAN, LEVERAGE, RANDOM = "∇²ℓ", "leverage", "at random"
KINDS = {"hessian": HESSIAN, "leverage": LEVERAGE}
SOURCE = "Khan, memorable past"


@dataclass(frozen=True)
class RelevanceQuestion:
    """A network trained on at most so many examples of a data set, and again without some of them."""

    data: str
    epochs: int
    seed: int
    most: int


def run(setting: Setting) -> Result:
    """On each data set networks of several seeds, trained on all of it and on parts of it."""
    lengths = LENGTHS[setting.full]
    seeds = findings.seeds(setting, SEEDS[setting.full])
    asked = []
    for data, epochs in lengths.items():
        asked += [RelevanceQuestion(data, epochs, seed, MOST) for seed in seeds]
    answers = setting.answers(look, asked)
    found: dict[str, list[dict[str, Any]]] = {data: [] for data in lengths}
    for question, answer in zip(asked, answers, strict=True):
        found[question.data].append(answer)
    claims: list[Claim] = []
    for data, rows in found.items():
        claims += _claims(rows, data)
    plain = {"share": SHARE, "networks": findings.with_answers(asked, answers)}
    pictures = {data: load_set(data, setting.data_dir, seed=seeds[0]) for data in lengths}
    size = (11.0, 3.3 * len(lengths))
    return Result(tuple(claims), plain, lambda figure: _draw(figure, found, pictures), size, _notes(found))


def look(question: RelevanceQuestion, data_dir: str | None) -> dict[str, Any]:
    """Who is most and least relevant, how the network fares on them, and how it changes without them."""
    split = load_set(question.data, data_dir, seed=question.seed)
    x, y = split.train[0][: question.most], split.train[1][: question.most]
    network = _trained(split, x, y, question)
    scores = gp.relevance(network, (x, y), "categorical", Gaussian(SCALE), "leverage", subset="last-layer")
    orders = {"hessian": gp.Relevance(scores.hessian).order, "leverage": scores.order}
    count = max(SHOWN, round(SHARE * len(y)))
    ends = {}
    for kind, order in orders.items():
        for end in ("most", "least"):
            ends[f"{end} {kind}"] = _end(order, end, count)
    chosen = torch.randperm(len(y), generator=torch.Generator().manual_seed(question.seed))[:count]
    without = {}
    for name, rows in (ends | {"random": chosen}).items():
        without[name] = _without(network, split, (x, y), rows, question)
    shared = set(ends["most hessian"].tolist()) & set(ends["most leverage"].tolist())
    return {
        "accuracy": _accuracy(_probs(network, split.test[0]), split.test[1]),
        "parts": {name: _fares(network, x[rows], y[rows]) for name, rows in ends.items()},
        "without": without,
        "both": len(shared) / count,
        "shown": {name: _shown(network, x, y, rows[:SHOWN]) for name, rows in ends.items()},
    }


def _end(order: Tensor, end: str, count: int) -> Tensor:
    """The first of an order, or the last, the very last first."""
    if end == "least":
        order = order.flip(0)
    return order[:count]


def _trained(split: Split, x: Tensor, y: Tensor, question: RelevanceQuestion) -> nn.Module:
    spec: Spec = default_for(split)
    if spec["name"] == "mlp":
        spec |= {"hidden": [32]}
    return trained(spec, Arrays(x, y), SCALE, question.epochs, 100, question.seed, lr=3e-3)[0].eval()


def _without(
    network: nn.Module, split: Split, train: tuple[Tensor, Tensor], out: Tensor, question: RelevanceQuestion
) -> dict[str, float]:
    """Mean absolute change of the test probabilities by training without some examples, and the accuracy then."""
    x, y = train
    kept_rows = torch.ones(len(y), dtype=torch.bool).index_fill(0, out, False)
    probs = _probs(_trained(split, x[kept_rows], y[kept_rows], question), split.test[0])
    change = (probs - _probs(network, split.test[0])).abs().mean()
    return {"change": float(change), "accuracy": _accuracy(probs, split.test[1])}


@torch.no_grad()
def _probs(network: nn.Module, x: Tensor) -> Tensor:
    return torch.cat([network(part).softmax(1) for part in x.tensor_split(max(1, len(x) // 1000))])


def _accuracy(probs: Tensor, y: Tensor) -> float:
    return float((probs.argmax(1) == y).double().mean())


def _fares(network: nn.Module, x: Tensor, y: Tensor) -> dict[str, float]:
    """Error rate and mean entropy on some training examples."""
    probs = _probs(network, x)
    return {"error": 1 - _accuracy(probs, y), "entropy": float(torch.special.entr(probs).sum(1).mean())}


def _shown(network: nn.Module, x: Tensor, y: Tensor, rows: Tensor) -> dict[str, list[float]]:
    """Rows, labels, and what the network says."""
    probs, guess = _probs(network, x[rows]).max(1)
    return {"row": rows.tolist(), "label": y[rows].tolist(), "guess": guess.tolist(), "probability": probs.tolist()}


def _column(rows: list[dict[str, Any]], group: str, name: str, metric: str) -> list[float]:
    return [each[group][name][metric] for each in rows]


def _claims(rows: list[dict[str, Any]], data: str) -> list[Claim]:
    return [_boundary(rows, data), _matters(rows, data, "hessian"), _matters(rows, data, "leverage")]


def _boundary(rows: list[dict[str, Any]], data: str) -> Claim:
    top, bottom = _column(rows, "parts", "most hessian", "error"), _column(rows, "parts", "least hessian", "error")
    top_entropy = trials.said(_column(rows, "parts", "most hessian", "entropy"), 3)
    bottom_entropy = trials.said(_column(rows, "parts", "least hessian", "entropy"), 3)
    return Claim(
        SOURCE,
        f"{data}: the most relevant tenth by ∇²ℓ are near the boundary: more of them are misclassified, though they "
        "were trained on",
        f"error rate {trials.said(top)} against {trials.said(bottom)} in the least relevant tenth; mean entropy "
        f"{top_entropy} and {bottom_entropy} nats",
        findings.better(findings.differences(top, bottom)),
    )


def _matters(rows: list[dict[str, Any]], data: str, kind: str) -> Claim:
    top = _column(rows, "without", f"most {kind}", "change")
    bottom = _column(rows, "without", f"least {kind}", "change")
    random = _column(rows, "without", "random", "change")
    gains = findings.differences(top, bottom)
    return Claim(
        SOURCE,
        f"{data}: without the most relevant tenth by {KINDS[kind]} the test predictions change more than without the "
        "least relevant tenth (by more than two standard errors, which chance does in 6 of 100 comparisons)",
        f"mean |Δp| {trials.said(top)} against {trials.said(bottom)}, a tenth at random {trials.said(random)}; larger "
        f"in {sum(gain > 0 for gain in gains)} of {len(gains)} seeds",
        findings.better(gains),
    )


def _notes(found: dict[str, list[dict[str, Any]]]) -> tuple[str, ...]:
    notes = []
    for data, rows in found.items():
        left = {}
        for name in ("most hessian", "most leverage", "least hessian", "least leverage"):
            left[name] = trials.said(_column(rows, "without", name, "accuracy"))
        shared, _ = trials.average([each["both"] for each in rows])
        notes.append(
            f"{data}: test accuracy {trials.said([each['accuracy'] for each in rows])}; without the most relevant "
            f"tenth {left['most hessian']} ({HESSIAN}) and {left['most leverage']} ({LEVERAGE}), without the least "
            f"{left['least hessian']} and {left['least leverage']}. The two scores share {shared:.0%} of the most "
            "relevant tenth."
        )
    return tuple(notes)


def _draw(figure: Figure, found: dict[str, list[dict[str, Any]]], pictures: dict[str, Split]) -> None:
    grid = figure.add_gridspec(4 * len(found), SHOWN + 4)
    lines = ["most hessian", "least hessian", "most leverage", "least leverage"]
    for block, (data, rows) in enumerate(found.items()):
        for line, name in enumerate(lines):
            for column in range(SHOWN):
                ax = figure.add_subplot(grid[4 * block + line, column])
                _picture(ax, pictures[data], rows[0]["shown"][name], column)
                if not column:
                    end, kind = name.split()
                    ax.set_ylabel(f"{end}\n{KINDS[kind]}", rotation=0, ha="right", va="center", fontsize=8)
        _bars(figure.add_subplot(grid[4 * block : 4 * block + 4, SHOWN:]), rows, lines, data)


def _picture(ax: Axes, split: Split, shown: dict[str, list[float]], column: int) -> None:
    """One example, with its label, and what the network says if that is another."""
    assert split.image_shape is not None
    image = split.train[0][int(shown["row"][column])].reshape(split.image_shape).movedim(0, 2).clamp(0, 1)
    if image.shape[2] == 1:
        image = image[..., 0]  # grey pictures must have two dimensions for imshow to take the map of colours
    ax.imshow(image.numpy(), cmap="gray_r", vmin=0, vmax=1)
    label, guess = split.classes[int(shown["label"][column])], split.classes[int(shown["guess"][column])]
    said, colour = label, "0.2"
    if label != guess:
        arrow = " → " if len(label + guess) < 10 else "\n→ "
        said, colour = f"{label}{arrow}{guess}", "C1"
    ax.set_title(said, fontsize=6.5, pad=1.5, color=colour)
    ax.set(xticks=[], yticks=[])
    ax.grid(False)
    ax.spines[:].set_visible(False)


def _bars(ax: Axes, rows: list[dict[str, Any]], lines: list[str], data: str) -> None:
    """How much test predictions change, by what was left out."""
    names = [*lines, "random"]
    colours = {"most": "C0", "least": "C1", "random": "0.6"}
    for height, name in enumerate(names):
        centre, error = trials.average(_column(rows, "without", name, "change"))
        ax.barh(height, centre, xerr=error, color=colours[name.split()[0]], height=0.7)
    said = [f"{name.split()[0]} {KINDS[name.split()[1]]}" for name in lines]
    ax.set_yticks(range(len(names)), [*said, RANDOM])
    ax.invert_yaxis()
    ax.set(xlabel="mean |Δp| on test data", title=f"{data}: trained without a tenth")
