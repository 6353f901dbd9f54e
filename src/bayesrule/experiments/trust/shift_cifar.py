"""Corrupted pictures: do posteriors stay calibrated, and does augmentation do more than any of them?"""

from __future__ import annotations

from typing import Any, NamedTuple

from matplotlib.figure import Figure

from bayesrule.data.shifts import Corruption
from bayesrule.evaluate import under_shift
from bayesrule.experiments import findings, trials
from bayesrule.experiments.base import Claim, Result, Setting
from bayesrule.experiments.figures import panels
from bayesrule.experiments.trust.curves import JUDGED, SCORES, Rows, below, curve, means
from bayesrule.experiments.trust.fits import METHODS, SAMPLES, SINGLE, TESTED, Question, fitted, told

OVADIA, HENDRYCKS, MIXED = "Ovadia et al. 2019, figure 2", "Hendrycks and Dietterich 2019", "Hendrycks et al. 2020"
ALL = "all corruptions"
FAMILIES = {
    "noise": ("gaussian-noise", "shot-noise", "impulse-noise", "speckle-noise"),
    "blur": ("gaussian-blur", "defocus-blur", "glass-blur", "motion-blur", "zoom-blur"),
    "weather": ("fog", "frost", "snow", "brightness"),
    "digital": ("contrast", "pixelate", "jpeg", "elastic"),
}
FAR = 3  # the severity from which the claims are about
AUGMIX = "augmix"

Found = dict[str, list[dict[str, Any]]]


class Length(NamedTuple):
    """Data, epochs, corruptions of each family, and the small changes that leave a label as it is."""

    data: str
    epochs: int
    kinds: int
    changes: str


LENGTHS = {False: Length("digits", 40, 1, "crops"), True: Length("cifar10", 20, 5, "flips,crops")}


def rows(length: Length) -> dict[str, tuple[str, str | None]]:
    """What is compared, by name: a method and its augmentation. Posteriors have none; the control is map with some.

    >>> rows(LENGTHS[True])["map, augmix"]
    ('map', 'flips,crops,augmix')
    """
    plain: dict[str, tuple[str, str | None]] = {name: (name, None) for name in METHODS}
    control = {f"map, {length.changes.replace(',', ' and ')}": ("map", length.changes)}
    mixed = {f"{name}, {AUGMIX}": (name, f"{length.changes},{AUGMIX}") for name in ("map", "ensemble")}
    return {**plain, **control, **mixed}


def run(setting: Setting) -> Result:
    """Fits by each method and of the control, scored at each severity of each corruption."""
    length = LENGTHS[setting.full]
    asked: dict[str, list[Question]] = {}
    for name, (method, augment) in rows(length).items():
        seeds = findings.seeds(setting)
        asked[name] = [Question(length.data, method, length.epochs, seed, augment) for seed in seeds]
    answers = iter(setting.answers(ask, [one for own in asked.values() for one in own], say=told))
    found = {name: [next(answers) for _ in own] for name, own in asked.items()}
    shown = [ALL, *FAMILIES]
    data = {"data": length.data, "seeds": len(found["map"]), "severities": found["map"][0]["severities"]}
    data["methods"] = {name: {shift: means(own, shift) for shift in shown} for name, own in found.items()}
    return Result(claims(found), data, lambda figure: _draw(figure, found), (14.0, 5.6))


def ask(question: Question, data_dir: str | None) -> dict[str, Any]:
    """Scores by family of corruptions and severity, means over the corruptions."""
    posterior, split = fitted(question, data_dir)
    test = split.test[0][:TESTED], split.test[1][:TESTED]
    kinds = next(length.kinds for length in LENGTHS.values() if length.data == question.data)
    each: dict[str, list[dict[str, list[float]]]] = {}
    for family, names in FAMILIES.items():
        each[family] = []
        for kind in names[:kinds]:
            found = under_shift(posterior, test, Corruption(kind=kind, shape=split.image_shape), samples=SAMPLES)
            each[family].append({score: found.curve(score) for score in SCORES})
    everything = {ALL: [one for own in each.values() for one in own], **each}
    curves = {
        shift: {score: _mean([one[score] for one in own]) for score in SCORES} for shift, own in everything.items()
    }
    severities = {shift: list(found.severities) for shift in curves}
    return {"severities": severities, "curves": curves, "accuracy": curves[ALL]["accuracy"][0]}


def _mean(values: list[list[float]]) -> list[float]:
    return [sum(at) / len(at) for at in zip(*values, strict=True)]


def claims(found: Found) -> tuple[Claim, ...]:
    """What the documents say, beside the rows."""
    posteriors = [_below(found, name, "map", OVADIA) for name in ("ensemble", *SINGLE)]
    combined = _below(found, f"ensemble, {AUGMIX}", f"map, {AUGMIX}", MIXED)
    return (_falls(found), _too_sure(found), *posteriors, _control(found), combined)


def _falls(found: Found) -> Claim:
    accuracy = curve(found["map"], ALL, "accuracy")
    listed = ", ".join(f"{value:.3f}" for value in accuracy.mean(0))
    return Claim(
        HENDRYCKS,
        "accuracy falls with each step of severity",
        f"map, mean over corruptions and seeds at severities 0 to 5: {listed}",
        bool((accuracy[:, 1:] < accuracy[:, :-1]).all()),
    )


def _too_sure(found: Found) -> Claim:
    said, verdicts = [], []
    for name in METHODS:
        error = curve(found[name], ALL, "ece")
        said.append(f"{name} {error[:, 0].mean():.3f} → {error[:, -1].mean():.3f}")
        verdicts.append(findings.better(findings.differences(error[:, -1].tolist(), error[:, 0].tolist())))
    return Claim(
        OVADIA,
        "calibration at home does not carry over to corrupted pictures, of any method",
        f"ECE at home and at severity 5: {', '.join(said)}",
        all(verdicts),
    )


def _below(found: Found, name: str, other: str, source: str) -> Claim:
    said, held = below(found[name], found[other], ALL, FAR)
    return Claim(
        source,
        f"{name} has a lower Brier score and a lower calibration error than {other} at every severity from {FAR} on",
        f"differences, mean over {len(found[name])} seeds: {said}",
        held,
    )


def _control(found: Found) -> Claim:
    """Of each posterior that saw pictures as they are, by how much its scores are above those of the control."""
    said, verdicts = [], []
    for score in JUDGED:
        control = _far(found[f"map, {AUGMIX}"], score)
        own = {name: _far(found[name], score) for name in METHODS}
        verdicts += [findings.better(findings.differences(values, control)) for values in own.values()]
        best = min(own, key=lambda name: trials.average(own[name])[0])
        said.append(f"{score} {trials.said(control, 3)} against {trials.said(own[best], 3)} ({best}, the best of them)")
    return Claim(
        MIXED,
        "one network under AugMix has a lower Brier score and a lower calibration error than every posterior without",
        f"means over severities from {FAR} on: {'; '.join(said)}",
        all(verdicts),
    )


def _far(own: Rows, score: str) -> list[float]:
    """The mean over the severities that count, by seed."""
    found: list[float] = curve(own, ALL, score)[:, FAR:].mean(1).tolist()
    return found


def _draw(figure: Figure, found: Found) -> None:
    axes = panels(figure, 8, 2)
    for ax, score in zip(axes[:4], ("accuracy", "brier", "ece", "nll"), strict=True):
        _lines(ax, found, ALL, score)
        ax.set(title=f"{score}, {ALL}")
    for ax, family in zip(axes[4:], FAMILIES, strict=True):
        _lines(ax, found, family, "ece")
        ax.set(title=f"ece, {family}", xlabel="severity")
    axes[0].legend(fontsize=6)


def _lines(ax: Any, found: Found, shift: str, score: str) -> None:
    for name, own in found.items():
        style = "-" if name in METHODS else "--"
        ax.plot(own[0]["severities"][shift], curve(own, shift, score).mean(0), style, label=name)
