"""A class for each pixel: how unsure networks are at the borders of shapes, and of shapes they were never shown."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from matplotlib.figure import Figure
from torch import Tensor

from bayesrule.data.shapes import CLASSES, Shapes, shapes
from bayesrule.evaluate import weighted
from bayesrule.experiments import findings
from bayesrule.experiments.base import Claim, Result, Setting
from bayesrule.experiments.trials import said
from bayesrule.methods import BBB, IVON, MAP, Ensemble, Method
from bayesrule.models import build
from bayesrule.predictions import Classes
from bayesrule.seeds import mixed
from bayesrule.training import fit

SOURCE = "Khan, Deep learning with Bayesian principles"
METHODS: dict[str, Method] = {"map": MAP(), "ensemble": Ensemble(members=5), "bbb": BBB(), "ivon": IVON()}
QUICK = ("map", "ensemble")
SHOWN = "ensemble"
EPOCHS = {False: 20, True: 60}
TRAIN, TEST, SIDE, BATCH = 100, 50, 64, 10
SAMPLES = 16
PICTURES = 3  # test pictures that are drawn
BAR = 0.85
NETWORK = {"name": "unet", "channels": 1, "outputs": len(CLASSES)}


@dataclass(frozen=True)
class Question:
    """A method, a seed of pictures and network, and how long it is trained."""

    method: str
    seed: int
    epochs: int


def run(setting: Setting) -> Result:
    """One seed, or three of all methods in full; pictures of the first."""
    seeds = findings.seeds(setting, 3 if setting.full else 1)
    names = tuple(METHODS) if setting.full else QUICK
    questions = [Question(name, seed, EPOCHS[setting.full]) for name in names for seed in seeds]
    answers = setting.answers(ask, questions)
    found: dict[str, list[dict[str, Any]]] = {name: [] for name in names}
    for question, answer in zip(questions, answers, strict=True):
        found[question.method].append(answer)
    claims = (_unseen(found), _borders(found))
    maps = found[SHOWN][0]["maps"]
    numbers = {name: [_without_maps(answer) for answer in group] for name, group in found.items()}
    data = {"train": TRAIN, "test": TEST, "side": SIDE, "epochs": EPOCHS[setting.full], "methods": numbers}
    first = seeds[0]
    return Result(claims, data, lambda figure: _draw(figure, tested(first), maps), (9.6, 5.4), (_accuracies(found),))


def taught(seed: int) -> Shapes:
    """Pictures to learn from."""
    return shapes(TRAIN, SIDE, seed=mixed(seed, 0))


def tested(seed: int) -> Shapes:
    """Other pictures, with a triangle in each."""
    return shapes(TEST, SIDE, unseen=True, seed=mixed(seed, 1))


def ask(question: Question, data_dir: str | None = None) -> dict[str, Any]:
    """Train one method, and look at its uncertainty pixel by pixel."""
    posterior = fit(
        build(NETWORK, mixed(question.seed, 2)),
        taught(question.seed).pair,
        METHODS[question.method],
        epochs=question.epochs,
        batch_size=BATCH,
        seed=question.seed,
    )
    test = tested(question.seed)
    prediction = posterior.predict(test.x, samples=SAMPLES)
    assert isinstance(prediction, Classes)
    known = ~test.unseen
    border, inner = known & test.border, known & ~test.border
    parts = {name: getattr(prediction, name) for name in ("aleatoric", "epistemic", "entropy")}
    maps = {name: _rounded(part[:PICTURES]) for name, part in parts.items()}
    return {
        "accuracy": float((prediction.label == test.y)[inner].float().mean()),
        "nll": float(-prediction.log_prob(test.y)[known].mean()),
        "auroc": {name: _auroc(part[known], part[test.unseen]) for name, part in parts.items()},
        "at_borders": {name: float(part[border].mean()) for name, part in parts.items()},
        "elsewhere": {name: float(part[inner].mean()) for name, part in parts.items()},
        "on_unseen": {name: float(part[test.unseen].mean()) for name, part in parts.items()},
        "seconds": float(posterior.info["seconds"]),
        "maps": maps | {"label": prediction.label[:PICTURES].tolist()},
    }


def _auroc(inside: Tensor, outside: Tensor) -> float:
    ones = torch.ones(1, len(inside) + len(outside), dtype=torch.float64)
    return float(weighted.separation(inside, outside)(ones))


def _rounded(values: Tensor) -> list[Any]:
    return values.double().mul(1000).round().div(1000).tolist()


def _without_maps(answer: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in answer.items() if name != "maps"}


def _unseen(found: dict[str, list[dict[str, Any]]]) -> Claim:
    aurocs = {name: [answer["auroc"]["epistemic"] for answer in group] for name, group in found.items()}
    plain = [answer["auroc"]["entropy"] for answer in found["map"]]
    others = {name: values for name, values in aurocs.items() if name != "map"}
    best = max(sum(values) / len(values) for values in others.values())
    return Claim(
        SOURCE,
        f"a posterior does not know what it was never shown: by mutual information a pixel of an unseen shape is told "
        f"from a known one with an AUROC of at least {BAR:g}",
        f"{findings.listed(others, 3)}; entropy of one network {said(plain, 3)}",
        best >= BAR,
    )


def _borders(found: dict[str, list[dict[str, Any]]]) -> Claim:
    group = found[SHOWN]
    near = [answer["at_borders"]["aleatoric"] for answer in group]
    far = [answer["elsewhere"]["aleatoric"] for answer in group]
    return Claim(
        SOURCE,
        "where borders are ambiguous the noise is high, whatever is learnt",
        f"mean aleatoric entropy {said(near, 3)} nats at borders, {said(far, 3)} elsewhere ({SHOWN})",
        all(a > 2 * b for a, b in zip(near, far, strict=True)),
    )


def _accuracies(found: dict[str, list[dict[str, Any]]]) -> str:
    accurate = {name: [answer["accuracy"] for answer in group] for name, group in found.items()}
    nll = {name: [answer["nll"] for answer in group] for name, group in found.items()}
    listed = findings.listed(accurate, 3)
    return f"Accuracy away from borders: {listed}. NLL of all known pixels: {findings.listed(nll, 3)}."


def _draw(figure: Figure, test: Shapes, maps: dict[str, Any]) -> None:
    """A row for each picture: what was shown, what is there, what is predicted, noise and ignorance."""
    titles = ("picture", "truth", "prediction", "noise (aleatoric)", "ignorance (epistemic)")
    truth = torch.where(test.unseen, len(CLASSES), test.y)
    grid = figure.subplots(PICTURES, len(titles), squeeze=False)
    for row, axes in enumerate(grid):
        axes[0].imshow(test.x[row, 0].numpy(), cmap="gray", vmin=0, vmax=1)
        axes[1].imshow(truth[row].numpy(), cmap="viridis", vmin=0, vmax=len(CLASSES))
        axes[2].imshow(maps["label"][row], cmap="viridis", vmin=0, vmax=len(CLASSES))
        axes[3].imshow(maps["aleatoric"][row], cmap="magma", vmin=0)
        axes[4].imshow(maps["epistemic"][row], cmap="magma", vmin=0)
        for ax, title in zip(axes, titles, strict=True):
            ax.set(xticks=[], yticks=[], title=title if row == 0 else "")
            ax.grid(visible=False)
