"""How often `br.lifelong.watch` raises a false alarm, and how soon it tells of a change.

    python benchmarks/drift.py --out docs/results

A network on 300 points of two moons, by ``laplace``. Examples are drawn from 20 000 of the world as it was and as many
of a changed one. False alarms: 1000 streams of 2000 examples without a change, each with a reference of its own. Delay:
200 streams that change after 1000 examples, references of 300; the alarm within 4000 more, at one false alarm of 100.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from scipy import stats
from torch import Tensor

import bayesrule as br
from bayesrule.files import write_atomically
from bayesrule.lifelong.drift import Score, labelled, scored
from bayesrule.lifelong.martingale import Floats, Martingale
from bayesrule.methods import Laplace
from bayesrule.models import build
from bayesrule.report import provenance

NOISE, TRAIN, POOL = 0.3, 300, 20_000
NULLS, NULL_LENGTH = 1000, 2000
STREAMS, QUIET, AFTER = 200, 1000, 4000
REFERENCES, LEVELS = (30, 300), (0.01, 0.1)
REFERENCE, LARGER, LEVEL = 300, 3000, 0.01
SCORES: tuple[Score, ...] = ("loss", "epistemic", "uncertainty")

Examples = tuple[Tensor, Tensor]


def world(n: int, seed: int, noise: float = NOISE) -> Examples:
    """Independent examples: the classes of `br.data.moons` take turns, so the order is drawn."""
    x, y = br.data.moons(n=n, noise=noise, seed=seed)
    order = torch.randperm(n, generator=torch.Generator().manual_seed(seed))
    return x[order], y[order]


def wrong(share: float) -> Callable[[], Examples]:
    """A share of the labels is the other one."""

    def changed() -> Examples:
        x, y = world(POOL, 2)
        flip = torch.rand(POOL, generator=torch.Generator().manual_seed(2)) < share
        return x, torch.where(flip, 1 - y, y)

    return changed


def turned(degrees: float) -> Callable[[], Examples]:
    """The plane turned about the middle of the moons."""

    def changed() -> Examples:
        x, y = world(POOL, 2)
        angle, centre = torch.tensor(degrees).deg2rad(), torch.tensor([0.5, 0.25])
        turn = torch.stack([torch.stack([angle.cos(), -angle.sin()]), torch.stack([angle.sin(), angle.cos()])])
        return (x - centre) @ turn.T + centre, y

    return changed


def moved(by: float) -> Callable[[], Examples]:
    """All points to the left."""

    def changed() -> Examples:
        x, y = world(POOL, 2)
        return x - torch.tensor([by, 0.0]), y

    return changed


def noisy(noise: float) -> Callable[[], Examples]:
    """Another noise of the points."""
    return lambda: world(POOL, 2, noise)


CHANGES: dict[str, Callable[[], Examples]] = {
    "1 of 20 labels wrong": wrong(0.05),
    "1 of 5 labels wrong": wrong(0.2),
    "all labels exchanged": wrong(1.0),
    "turned by 20°": turned(20.0),
    "turned by 60°": turned(60.0),
    "moved by 0.3": moved(0.3),
    "moved by 2": moved(2.0),
    "noise 0.5 for 0.3": noisy(0.5),
    "noise 0.1 for 0.3": noisy(0.1),
}


def false_alarms(pool: Floats, reference: int, level: float) -> dict[str, Any]:
    """The share of unchanged streams that raised an alarm, with its 95 % interval."""
    alarms = 0
    for seed in range(NULLS):
        drawn = np.random.default_rng([seed, reference]).choice(pool, reference + NULL_LENGTH)
        alarms += Martingale.start(drawn[:reference], level, seed).after(drawn[reference:]).alarm > 0
    low, high = stats.binomtest(alarms, NULLS).proportion_ci()
    return {"reference": reference, "promised": level, "share": alarms / NULLS, "from": float(low), "to": float(high)}


def delays(before: Floats, after: Floats, reference: int = REFERENCE) -> dict[str, Any]:
    """How many examples after the change the alarm came, in how many streams, and how far off it was dated."""
    found, early, off = [], 0, []
    for seed in range(STREAMS):
        random = np.random.default_rng([seed, 1])
        quiet, changed = random.choice(before, reference + QUIET), random.choice(after, AFTER)
        stream = np.concatenate([quiet[reference:], changed])
        end = Martingale.start(quiet[:reference], LEVEL, seed).after(stream)
        early += 0 < end.alarm <= QUIET
        if end.alarm > QUIET:
            found.append(end.alarm - QUIET)
            off.append(abs(end.since - QUIET - 1))
    told = {"told": len(found) / STREAMS, "early": early / STREAMS}
    if found:
        told |= {
            "median": float(np.median(found)),
            "most": float(np.quantile(found, 0.9)),
            "off": float(np.median(off)),
        }
    return told


def ranks(before: Floats, after: Floats) -> list[float]:
    """The share of changed scores in each tenth of those before, the smallest first."""
    below = np.searchsorted(np.sort(before), after) / len(before)
    found: list[float] = (np.histogram(below, 10, (0, 1))[0] / len(after)).tolist()
    return found


def main() -> None:
    """Both, to one file."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("docs/results"))
    args = parser.parse_args()
    about = provenance("python benchmarks/drift.py --out docs/results", seed=0)
    model = build({"name": "mlp", "inputs": 2, "outputs": 2, "hidden": [16]}, seed=0)
    posterior = br.fit(model, world(TRAIN, 0), Laplace("all", "dense"), epochs=100)

    def scores(examples: Examples, score: Score) -> Floats:
        return scored(posterior, labelled(br.data.as_data(examples), "stream"), score, 32, 0).scores

    before = {score: scores(world(POOL, 1), score) for score in SCORES}
    nulls = [false_alarms(before["loss"], reference, level) for reference in REFERENCES for level in LEVELS]
    for row in nulls:
        print(row)
    changes: dict[str, Any] = {}
    for name, changed in CHANGES.items():
        examples = changed()
        changes[name] = {score: delays(before[score], scores(examples, score)) for score in SCORES}
        print(name, changes[name])
    few, less = (scores(CHANGES[name](), "loss") for name in ("1 of 20 labels wrong", "noise 0.1 for 0.3"))
    longer = {"reference": LARGER, **delays(before["loss"], few, LARGER)}
    plain = about | {"false_alarms": nulls, "delays": changes, "1 of 20 labels wrong, larger reference": longer}
    plain["noise 0.1 for 0.3, tenths of losses"] = ranks(before["loss"], less)
    write_atomically(args.out / "drift.json", json.dumps(plain, indent=1, ensure_ascii=False))


if __name__ == "__main__":
    main()
