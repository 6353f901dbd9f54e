"""Laplace's method on one network: structures of the covariance, and the tangent against drawn weights."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, NullFormatter
from torch import Tensor, nn
from torch.nn.functional import pad

from bayesrule import methods
from bayesrule.data import Arrays, Split, load_set, standardize
from bayesrule.evaluate import evaluate
from bayesrule.experiments import findings, trials
from bayesrule.experiments.base import Claim, Result, Setting
from bayesrule.experiments.figures import panels
from bayesrule.experiments.modes import trained
from bayesrule.methods import Laplace, Method
from bayesrule.models import Spec, default_for
from bayesrule.posteriors import Gaussian, Linearised, Posterior
from bayesrule.priors import Gaussian as GaussianPrior
from bayesrule.training import fit

LAST, KRONECKER, DIAGONAL = "last layer, dense", "all, Kronecker", "all, diagonal"
STRUCTURES = {
    LAST: Laplace("last-layer", "dense", tune="evidence"),
    "last layer, Kronecker": Laplace("last-layer", "kronecker", tune="evidence"),
    KRONECKER: Laplace("all", "kronecker", tune="evidence"),
    DIAGONAL: Laplace("all", "diagonal", tune="evidence"),
    "all, rank 32": Laplace("all", "lowrank", rank=32, tune="evidence"),
    "all, rank 512": Laplace("all", "lowrank", rank=512, tune="evidence"),
    "all, dense": Laplace("all", "dense", tune="evidence"),
}
LARGE = (LAST, KRONECKER, DIAGONAL)  # those for networks that are not small
COMPARED = {"digits": tuple(STRUCTURES), "mnist": LARGE, "cifar10": LARGE}
LENGTHS = {False: {"digits": 100}, True: {"mnist": 10, "cifar10": 20}}  # epochs on each data set
HIDDEN = [32, 32]  # units of the network for digits: 3466 weights, of which a dense matrix can be had
SEEDS = 3
SAMPLES = {False: 100, True: 32}  # draws of outputs, or of weights
OUTSIDE = 2000  # pictures from elsewhere, at most
BATCH = 100
SCALE = 1.0  # of the prior, under which the network is trained; the evidence then settles it for the posterior
FALL, KEPT = 0.05, findings.ACCURACY  # of accuracy: more than the one is a collapse, no more than the other is none
RELATIVE = 0.05  # margin of an NLL, as a share of MAP's: NLLs of data sets differ by a factor of fifty
GAP = 0.005  # margin of an ECE: half a percentage point of confidence
MAP, TANGENT, WEIGHTS = "MAP", "linearised", "weights"
SCORES = {"accuracy": "accuracy", "nll": "NLL", "ece": "ECE", "confidence": "confidence", "auroc_ood": "OOD AUROC"}
LABELS = {TANGENT: "Laplace, linearised", WEIGHTS: "Laplace, drawn weights"}
IMMER, REDUX = "Immer, Korzepa and Bauer 2021", "Daxberger et al. 2021"

Scored = dict[str, Any]
"""What `look` says of a network."""


@dataclass(frozen=True)
class StructuresQuestion:
    """A network at its mode, to be made a posterior in each structure, with so many draws for a prediction."""

    data: str
    epochs: int
    seed: int
    samples: int


def run(setting: Setting) -> Result:
    """On each data set networks of several seeds, each with all structures."""
    lengths = LENGTHS[setting.full]
    seeds, samples = findings.seeds(setting, SEEDS), SAMPLES[setting.full]
    asked = []
    for data, epochs in lengths.items():
        asked += [StructuresQuestion(data, epochs, seed, samples) for seed in seeds]
    answers = setting.answers(look, asked)
    found: dict[str, list[Scored]] = {data: [] for data in lengths}
    for question, answer in zip(asked, answers, strict=True):
        found[question.data].append(answer)
    claims: list[Claim] = []
    notes: list[str] = []
    height = 0.0
    for data, rows in found.items():
        claims += claims_of(rows, data)
        notes += _notes(rows, data)
        height += 1.2 + 0.3 * len(COMPARED[data])
    plain = {"prior_scale": SCALE, "networks": findings.with_answers(asked, answers)}
    return Result(tuple(claims), plain, lambda figure: _draw(figure, found), (10.0, height), tuple(notes))


def look(question: StructuresQuestion, data_dir: str | None) -> Scored:
    """Scores of MAP, and of each structure by the tangent and by drawn weights; what each took, in epochs of MAP.

    Time is that of the processor, so that other work on the machine does not count.
    """
    split = load_set(question.data, data_dir, seed=question.seed)
    data = standardize(split.train) if question.data == "cifar10" else Arrays(*split.train)
    outside = _outside(split, data_dir)
    began = time.process_time()
    network, _ = trained(_spec(split), data, SCALE, question.epochs, BATCH, question.seed)
    epoch = (time.process_time() - began) / question.epochs

    def scores(posterior: Posterior) -> dict[str, float]:
        got = evaluate(posterior, split.test, outside, samples=question.samples, bootstrap=0, seed=question.seed)
        return {name: float(got[name]) for name in SCORES}

    def structured(name: str) -> Scored:
        began = time.process_time()
        posterior = _posterior(network, data, STRUCTURES[name], question.seed)
        seconds = time.process_time() - began
        assert isinstance(posterior, Linearised)
        drawn = Gaussian(posterior.mean, posterior.precision, posterior.fixed, posterior.context)  # the same, as it is
        story = posterior.info["diagnostics"]
        about = {"log_evidence": story["log_evidence"], "prior_scale": max(story["prior_scale"].values())}  # all alike
        return about | {"epochs": seconds / epoch, TANGENT: scores(posterior), WEIGHTS: scores(drawn)}

    return {
        MAP: scores(_posterior(network, data, methods.MAP(), question.seed)) | {"seconds_per_epoch": epoch},
        "structures": {name: structured(name) for name in COMPARED[question.data]},
    }


def _posterior(network: nn.Module, data: Arrays, method: Method, seed: int) -> Posterior:
    """What a method makes of a network that is trained already."""
    return fit(network, data, method, prior=GaussianPrior(SCALE), epochs=0, seed=seed, val=0)


def _spec(split: Split) -> Spec:
    spec: Spec = default_for(split)
    if spec["name"] == "mlp":
        spec |= {"hidden": HIDDEN}
    return spec


def _outside(split: Split, data_dir: str | None) -> Tensor:
    """Scrambled digits for digits; garments for all else, photographs included."""
    if split.name == "digits":
        assert split.ood is not None
        return split.ood
    assert split.image_shape is not None
    return framed(load_set("fashion-mnist", data_dir).test[0][:OUTSIDE], *split.image_shape[:2])


def framed(pictures: Tensor, channels: int, side: int) -> Tensor:
    """Grey pictures in the middle of larger black ones, the same in all channels.

    >>> import torch
    >>> framed(torch.ones(1, 1, 28, 28), 3, 32).sum((2, 3))
    tensor([[784., 784., 784.]])
    """
    margin = (side - pictures.shape[-1]) // 2
    return pad(pictures, (margin,) * 4).expand(-1, channels, -1, -1)


def column(rows: Sequence[Scored], what: str, metric: str, how: str = TANGENT) -> list[float]:
    """A score of MAP or of a structure, by seed."""
    if what == MAP:
        return [row[MAP][metric] for row in rows]
    return [row["structures"][what][how][metric] for row in rows]


def claims_of(rows: Sequence[Scored], data: str) -> list[Claim]:
    """All that is claimed, about one data set."""
    return [
        collapse(rows, data, KRONECKER),
        collapse(rows, data, DIAGONAL),
        keeps(rows, data, KRONECKER),
        keeps(rows, data, DIAGONAL),
        not_above(rows, data, "nll"),
        not_above(rows, data, "ece"),
        diagonal_is_worse(rows, data),
        notices(rows, data, LAST),
        notices(rows, data, KRONECKER),
    ]


def collapse(rows: Sequence[Scored], data: str, name: str) -> Claim:
    """Drawn weights against MAP in accuracy, and against the tangent in NLL, in every seed."""
    accuracy, point = column(rows, name, "accuracy", WEIGHTS), column(rows, MAP, "accuracy")
    drawn, tangent = column(rows, name, "nll", WEIGHTS), column(rows, name, "nll")
    collapsed = sum(fall > FALL for fall in findings.differences(point, accuracy))
    above = sum(gap > 0 for gap in findings.differences(drawn, tangent))
    return Claim(
        IMMER,
        f"{data} ({name}): predictions of drawn weights collapse: in every seed the accuracy is more than "
        f"{100 * FALL:.0f} points below MAP's, and the NLL above the linearised predictive's",
        f"accuracy {trials.said(accuracy)}, MAP {trials.said(point)}; NLL {trials.said(drawn, 3)}, linearised "
        f"{trials.said(tangent, 3)}; the first in {collapsed} and the second in "
        f"{above} of {len(rows)} seeds",
        collapsed == above == len(rows),
    )


def keeps(rows: Sequence[Scored], data: str, name: str) -> Claim:
    """The tangent's accuracy against MAP's."""
    accuracy, point = column(rows, name, "accuracy"), column(rows, MAP, "accuracy")
    falls = findings.differences(point, accuracy)
    fall = trials.average(falls)[0]
    within = sum(abs(each) <= KEPT for each in falls)
    return Claim(
        IMMER,
        f"{data} ({name}): the linearised predictive keeps the accuracy of MAP within {100 * KEPT:g} points",
        f"accuracy {trials.said(accuracy)}, MAP {trials.said(point)}, a difference of "
        f"{100 * abs(fall):.2f} points on average; within in {within} of {len(rows)} seeds",
        findings.alike(falls, KEPT),
    )


def not_above(rows: Sequence[Scored], data: str, metric: str) -> Claim:
    """A last layer's NLL or calibration error against MAP's."""
    ours, point = column(rows, LAST, metric), column(rows, MAP, metric)
    gains = findings.differences(point, ours)
    margin = GAP if metric == "ece" else RELATIVE * trials.average(point)[0]
    return Claim(
        REDUX,
        f"{data} ({LAST}): the {SCORES[metric]} is not above MAP's by more than {margin:.2g}",
        f"{trials.said(ours)}, MAP {trials.said(point)}; not above in {sum(gain >= 0 for gain in gains)} of "
        f"{len(rows)} seeds",
        findings.not_worse(gains, margin),
    )


def diagonal_is_worse(rows: Sequence[Scored], data: str) -> Claim:
    """All weights: the NLL of a diagonal against that of Kronecker products."""
    diagonal, products = column(rows, DIAGONAL, "nll"), column(rows, KRONECKER, "nll")
    gaps = findings.differences(diagonal, products)
    return Claim(
        REDUX,
        f"{data} (all weights): a diagonal is significantly worse than Kronecker products: a larger NLL (by more than "
        "two standard errors)",
        f"{trials.said(diagonal)} against {trials.said(products)}; larger in {sum(gap > 0 for gap in gaps)} of "
        f"{len(rows)} seeds",
        findings.better(gaps),
    )


def notices(rows: Sequence[Scored], data: str, name: str) -> Claim:
    """How well the entropy tells inputs from elsewhere, against MAP's."""
    ours, point = column(rows, name, "auroc_ood"), column(rows, MAP, "auroc_ood")
    gains = findings.differences(ours, point)
    return Claim(
        REDUX,
        f"{data} ({name}): the AUROC of inputs from elsewhere, by entropy, is above MAP's (by more than two standard "
        "errors)",
        f"{trials.said(ours)}, MAP {trials.said(point)}; above in {sum(gain > 0 for gain in gains)} of "
        f"{len(rows)} seeds",
        findings.better(gains),
    )


def _notes(rows: Sequence[Scored], data: str) -> list[str]:
    """A line for each structure, and what inputs from elsewhere are."""
    outside = {
        "digits": "scrambled digits",
        "cifar10": "Fashion-MNIST, with a black frame and grey in three channels, since SVHN is not at hand",
    }
    lines = [f"{data}: inputs from elsewhere are {outside.get(data, 'Fashion-MNIST')}."]
    for name in rows[0]["structures"]:
        scores = []
        for metric, title in SCORES.items():
            mean, _ = trials.average(column(rows, name, metric))
            scores.append(f"{title} {mean:.4f}")
        evidence, _ = trials.average([row["structures"][name]["log_evidence"] for row in rows])
        epochs, _ = trials.average([row["structures"][name]["epochs"] for row in rows])
        lines.append(
            f"{data} ({name}), linearised: {', '.join(scores)}, log evidence {evidence:.0f}; fitted in {epochs:.3g} "
            f"epochs. NLL of drawn weights {trials.average(column(rows, name, 'nll', WEIGHTS))[0]:.4f}."
        )
    return lines


def _draw(figure: Figure, found: dict[str, list[Scored]]) -> None:
    axes = iter(panels(figure, 2 * len(found), len(found)))
    for data, rows in found.items():
        wrong, nll = next(axes), next(axes)
        _dots(wrong, rows, "accuracy")
        _dots(nll, rows, "nll")
        wrong.set(xlabel="test error, %", title=f"{data}: error")
        nll.set(xlabel="test NLL, nats", title=f"{data}: negative log-likelihood")
        nll.tick_params(labelleft=False)
    figure.legend(*wrong.get_legend_handles_labels(), loc="outside lower center", ncols=3)


def _dots(ax: Axes, rows: Sequence[Scored], metric: str) -> None:
    """A line for MAP and one for each structure; a dot for each seed. Accuracy is shown as the error, in per cent."""
    names = [MAP, *rows[0]["structures"]]

    def dots(name: str, how: str, height: float, **looks: Any) -> list[float]:
        shown = column(rows, name, metric, how)
        if metric == "accuracy":
            shown = [100 * (1 - value) for value in shown]
        ax.scatter(shown, [height] * len(shown), linewidths=0, alpha=0.8, zorder=3, **looks)
        return shown

    point = dots(MAP, "", 0, s=30, color="0.25", label=MAP)
    ax.axvline(trials.average(point)[0], color="0.6", lw=0.8, ls="--", zorder=1)
    for height, name in enumerate(names[1:], 1):
        labels = LABELS if height == 1 else {}  # the legend names the first
        dots(name, TANGENT, height - 0.16, s=30, color="C0", label=labels.get(TANGENT))
        dots(name, WEIGHTS, height + 0.16, s=24, color="C1", marker="D", label=labels.get(WEIGHTS))
    ax.set_yticks(range(len(names)), names)
    ax.set_ylim(len(names) - 0.5, -0.5)
    ax.set_xscale("log")
    ax.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    ax.xaxis.set_major_formatter("{x:g}")
    ax.xaxis.set_minor_formatter(NullFormatter())
    ax.grid(axis="y", visible=False)
