"""Temperature τ·p/w over five orders of magnitude: a residual network on CIFAR-10, as far as two cores go."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import avg_pool2d

from bayesrule.data import load_set
from bayesrule.experiments.base import Claim, Result, Setting
from bayesrule.experiments.mean_field.temperature_curve import (
    DEVIATION,
    Authors,
    Fit,
    best,
    draw,
    falls,
    listed,
    plain_authors,
    scores,
    told,
)
from bayesrule.methods import BBB
from bayesrule.models import build

SOURCE = "Huix et al. 2022, figure on CIFAR-10"
AUTHORS: Authors = {
    0.001: (0.853, 0.095, 0.619, 0.933),
    0.005: (0.842, 0.091, 0.592, 0.921),
    0.01: (0.875, 0.070, 0.430, 0.923),
    0.05: (0.839, 0.071, 0.507, 0.879),
    0.1: (0.834, 0.067, 0.507, 0.860),
    0.5: (0.793, 0.066, 0.610, 0.800),
    1.0: (0.740, 0.073, 0.748, 0.761),
    5.0: (0.556, 0.091, 1.259, 0.601),
    10.0: (0.551, 0.092, 1.258, 0.572),
    50.0: (0.293, 0.069, 1.773, 0.307),
    100.0: (0.180, 0.051, 2.031, 0.212),
}
TAUS = {False: (0.01, 1.0, 100.0), True: (0.01, 0.1, 1.0, 10.0, 100.0)}
FALLS_FROM = 0.1  # τ from which on their accuracy falls
DEGRADED, LOST = 5.0, 0.1  # τ from which on they lose so much accuracy: η = 1 is 5.4 there
SAMPLES = 16
TESTED = 2000  # pictures of the test set, at most


@dataclass(frozen=True)
class ResidualFit(Fit):
    """A residual network on so many examples, in pictures of which ``pooled``² pixels are one."""

    examples: int
    pooled: int
    blocks: int
    width: int


def run(setting: Setting) -> Result:
    """The authors' network and prior at each τ; quick, a small network on digits."""
    shape: dict[str, Any] = {"data": "digits", "examples": 1438, "pooled": 1, "blocks": 1, "width": 8}
    shape |= {"epochs": 8, "batch_size": 32}
    if setting.full:
        shape = {"data": "cifar10", "examples": 10_000, "pooled": 2, "blocks": 3, "width": 16}
        shape |= {"epochs": 12, "batch_size": 64}
    asked = [ResidualFit(tau=tau, deviation=DEVIATION, seed=setting.seed, **shape) for tau in TAUS[setting.full]]
    answers = setting.answers(train, asked)
    curve = [vars(question) | answer for question, answer in zip(asked, answers, strict=True)]
    plain = {"curve": curve, "authors": plain_authors(AUTHORS) if setting.full else {}}
    return Result(claims_of(curve), plain, lambda figure: draw(figure, plain), (11.0, 5.6), _notes(asked[0]))


def train(asked: ResidualFit, data_dir: str | None) -> dict[str, Any]:
    """Fit and score, as plain data."""
    split = load_set(asked.data, data_dir)
    assert split.train is not None
    assert split.image_shape is not None
    order = torch.randperm(len(split.train[1]), generator=torch.Generator().manual_seed(asked.seed))
    seen = order[: asked.examples]
    x = _pictures(split.train[0][seen], split.image_shape, asked.pooled)
    mean, deviation = x.mean((0, 2, 3), keepdim=True), x.std((0, 2, 3), keepdim=True)
    pair = (x - mean) / deviation, split.train[1][seen]
    judged = _pictures(split.test[0][:TESTED], split.image_shape, asked.pooled)
    test = (judged - mean) / deviation, split.test[1][:TESTED]
    spec = {"name": "resnet", "channels": x.shape[1], "outputs": 10, "blocks": asked.blocks, "width": asked.width}
    posterior = asked.of(build(spec, asked.seed), pair, BBB())
    return scores(posterior, pair, test, None, SAMPLES)


def _pictures(x: Tensor, shape: Sequence[int], pooled: int) -> Tensor:
    """Pictures [B, C, H, W], each pixel the mean of ``pooled``² of them."""
    return avg_pool2d(x.view(-1, *shape), pooled)


# ---- claims ----------------------------------------------------------------------------------------------------------


def claims_of(curve: Sequence[dict[str, Any]]) -> tuple[Claim, ...]:
    """What is claimed of the curve, beside its rows."""
    diagnosis = told(curve, "no collapse is told at τ ≤ 1")
    return best(curve, SOURCE), _less_accurate(curve), _degraded(curve), falls(curve, SOURCE), diagnosis


def _less_accurate(curve: Sequence[dict[str, Any]]) -> Claim:
    found = [row["accuracy"] for row in curve if row["tau"] >= FALLS_FROM]
    return Claim(
        SOURCE,
        f"from τ = {FALLS_FROM:g} on the accuracy falls",
        listed(curve, "accuracy"),
        all(a > b for a, b in pairwise(found)),
    )


def _degraded(curve: Sequence[dict[str, Any]]) -> Claim:
    top = max(row["accuracy"] for row in curve)
    found = [row["accuracy"] for row in curve if row["tau"] >= DEGRADED]
    return Claim(
        SOURCE,
        f"at τ ≥ {DEGRADED:g}, and so at η = 1, the accuracy is ten points or more below the best",
        f"best {top:.3f}; {listed(curve, 'accuracy')}",
        all(accuracy <= top - LOST for accuracy in found),
    )


def _notes(asked: ResidualFit) -> tuple[str, ...]:
    if asked.data == "digits":
        return ("On digits, a residual network of 8 layers. The authors' curve is of ResNet-20 on CIFAR-10: --full.",)
    return (
        f"Cut: {asked.examples} of 50 000 pictures, of 16 × 16 pixels, the means of 2 × 2, and {TESTED} of 10 000 to "
        f"test on; {asked.epochs} epochs where the authors train 200; no augmentation where they crop and flip; one "
        f"seed, {len(TAUS[True])} of their eleven τ. Accuracies are below theirs for these reasons, and only the "
        "shape of the curve is compared.",
        "The same ResNet-20, w = 270 906; its BatchNorm has no weights of its own, where theirs has, outside of q.",
        f"The rate of {BBB.name} is its default; predictions average over {SAMPLES} networks. NLL is the authors': "
        "E_q of the cross entropy.",
    )
