"""Networks of digits see what is no digit: which uncertainty tells strangers, and what does distance add?"""

from __future__ import annotations

from typing import Any

import torch
from matplotlib.figure import Figure
from torch import Tensor

from bayesrule.data import Split, load_set
from bayesrule.evaluate import strangers
from bayesrule.experiments import findings, trials
from bayesrule.experiments.base import Claim, Result, Setting
from bayesrule.experiments.figures import panels
from bayesrule.experiments.trust.fits import METHODS, SAMPLES, TESTED, Question, fitted, questions, told
from bayesrule.posteriors import DistanceAware

OVADIA, HEIN = "Ovadia et al. 2019, section 4", "Hein et al. 2019"
NOISE = "gaussian noise"
OTHERS = {"digits": ("scrambled",), "mnist": ("fashion-mnist", "kmnist", "notmnist")}
WAYS = ("max-probability", "entropy", "mutual information", "nearest neighbours", "mahalanobis")

Found = dict[str, list[dict[str, Any]]]


def run(setting: Setting) -> Result:
    """Fits by each method, each also around its data, against strangers of several kinds."""
    asked = questions(setting)
    found: Found = {name: [] for name in METHODS}
    for question, answer in zip(asked, setting.answers(ask, asked, say=told), strict=True):
        found[question.method].append(answer)
    kinds = [*OTHERS[asked[0].data], NOISE]
    claims = [*[_told(found, kind) for kind in kinds], _noise(found), _distance(found, kinds), _kept(found)]
    data = {"data": asked[0].data, "seeds": len(found["map"]), "methods": {n: _means(r) for n, r in found.items()}}
    return Result(tuple(claims), data, lambda figure: _draw(figure, found, kinds), (3.6 * len(kinds), 3.4))


def ask(question: Question, data_dir: str | None) -> dict[str, Any]:
    """AUROC by kind of stranger and way to tell, before and after `DistanceAware`; confidence on noise."""
    posterior, split = fitted(question, data_dir)
    x, y = split.test[0][:TESTED], split.test[1][:TESTED]
    outside = _outside(split, x, data_dir)
    answer: dict[str, Any] = {}
    for when, one in (("before", posterior), ("after", DistanceAware.around(posterior, split.train))):
        auroc: dict[str, Any] = {}
        for kind, other in outside.items():
            scores = strangers(one, x, other, split.train, samples=SAMPLES)
            auroc[kind] = {name: scores[name]["auroc"] for name in WAYS} | {"fpr95": scores["entropy"]["fpr95"]}
        sure = one.predict(outside[NOISE], samples=SAMPLES).confidence
        right = (one.predict(x, samples=SAMPLES).label.cpu() == y).double().mean()
        answer[when] = {"auroc": auroc, "noise_confidence": float(sure.mean()), "accuracy": float(right)}
    return answer | {"accuracy": answer["before"]["accuracy"]}


def _outside(split: Split, like: Tensor, data_dir: str | None) -> dict[str, Tensor]:
    """Inputs from elsewhere by name."""
    found: dict[str, Tensor] = {}
    for name in OTHERS[split.name]:
        other = split.ood if name == "scrambled" else load_set(name, data_dir).test[0]
        assert other is not None
        found[name] = other[:TESTED]
    noise = torch.randn(500, *like.shape[1:], generator=torch.Generator().manual_seed(0))
    return found | {NOISE: (0.5 + 0.5 * noise).clamp(0, 1)}


def _seen(found: Found, name: str, kind: str, way: str, when: str = "before") -> list[float]:
    return [row[when]["auroc"][kind][way] for row in found[name]]


def _means(rows: list[dict[str, Any]]) -> dict[str, Any]:
    means: dict[str, Any] = {}
    for when in ("before", "after"):
        auroc = {
            kind: {way: round(trials.average([r[when]["auroc"][kind][way] for r in rows])[0], 4) for way in ways}
            for kind, ways in rows[0][when]["auroc"].items()
        }
        others = {
            key: round(trials.average([r[when][key] for r in rows])[0], 4) for key in ("noise_confidence", "accuracy")
        }
        means[when] = {"auroc": auroc, **others}
    return means


def _told(found: Found, kind: str) -> Claim:
    plain = trials.average(_seen(found, "map", kind, "entropy"))[0]
    values = {name: trials.average(_seen(found, name, kind, "entropy"))[0] for name in METHODS if name != "map"}
    best = max(values, key=lambda name: values[name])
    listed = ", ".join(f"{name} {value:.3f}" for name, value in values.items())
    return Claim(
        OVADIA,
        f"an ensemble tells {kind} by its entropy better than one network does",
        f"AUROC: map {plain:.3f}, {listed}; best {best}",
        findings.better(
            findings.differences(_seen(found, "ensemble", kind, "entropy"), _seen(found, "map", kind, "entropy"))
        ),
    )


def _noise(found: Found) -> Claim:
    sure = {name: [row["before"]["noise_confidence"] for row in rows] for name, rows in found.items()}
    plain = trials.average(sure["map"])[0]
    return Claim(
        "Book 2020, figure 1.1",
        "every Bayesian method is less sure of Gaussian noise than map",
        f"mean confidence: {findings.listed(sure, 3)}",
        all(trials.average(values)[0] < plain for name, values in sure.items() if name != "map"),
    )


def _distance(found: Found, kinds: list[str]) -> Claim:
    pairs = []
    for name in found:
        for kind in kinds:
            both = [
                trials.average(_seen(found, name, kind, "mutual information", when))[0] for when in ("before", "after")
            ]
            pairs.append(both)
    worst, mean = min(after for _, after in pairs), trials.average([after - before for before, after in pairs])[0]
    return Claim(
        HEIN,
        "doubt that grows with the distance from the data makes epistemic uncertainty tell strangers better",
        f"AUROC by mutual information rises by {mean:.3f} on average; the lowest is {worst:.3f} then",
        all(after >= before - 0.005 for before, after in pairs),
    )


def _kept(found: Found) -> Claim:
    lost = [row["before"]["accuracy"] - row["after"]["accuracy"] for rows in found.values() for row in rows]
    return Claim(
        HEIN,
        "and keeps the accuracy at home",
        f"accuracy lost: {trials.average(lost)[0]:.4f} on average, at most {max(lost):.4f}",
        trials.average(lost)[0] < 0.002,
    )


def _draw(figure: Figure, found: Found, kinds: list[str]) -> None:
    for ax, kind in zip(panels(figure, len(kinds)), kinds, strict=True):
        for index, name in enumerate(found):
            for when, mark in (("before", "o"), ("after", "^")):
                values = [trials.average(_seen(found, name, kind, way, when))[0] for way in WAYS]
                ax.plot(
                    values,
                    range(len(WAYS)),
                    mark,
                    color=f"C{index}",
                    alpha=0.7,
                    label=name if when == "before" else None,
                )
        ax.set_yticks(range(len(WAYS)), WAYS)
        ax.set(xlabel="AUROC (▲ distance-aware)", title=kind)
    figure.axes[0].legend(fontsize=6)
