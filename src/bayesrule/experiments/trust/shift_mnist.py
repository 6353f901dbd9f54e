"""Digits that are turned and rolled: does uncertainty grow as accuracy falls?"""

from __future__ import annotations

from typing import Any

from matplotlib.figure import Figure

from bayesrule.data import shifts
from bayesrule.evaluate import under_shift
from bayesrule.experiments import trials
from bayesrule.experiments.base import Claim, Result, Setting
from bayesrule.experiments.figures import panels
from bayesrule.experiments.trust.curves import SCORES, below, curve, means
from bayesrule.experiments.trust.fits import METHODS, SAMPLES, SINGLE, TESTED, Question, fitted, questions, told

SOURCE = "Ovadia et al. 2019, figure 1"
SHOWN = ("accuracy", "brier", "ece", "confidence")
FAR = 45  # degrees from which the claim is about


def run(setting: Setting) -> Result:
    """Fits by each method, scored at each angle and each roll."""
    asked = questions(setting)
    answers = setting.answers(ask, asked, say=told)
    found: dict[str, list[dict[str, Any]]] = {name: [] for name in METHODS}
    for question, answer in zip(asked, answers, strict=True):
        found[question.method].append(answer)
    claims = (_falls(found), _too_sure(found), _below_map(found, "ensemble"), *_singles(found))
    curves = {name: {shift: means(rows, shift) for shift in ("rotation", "roll")} for name, rows in found.items()}
    data = {"data": asked[0].data, "seeds": len(found["map"]), "severities": found["map"][0]["severities"]}
    return Result(claims, data | {"methods": curves}, lambda figure: _draw(figure, found), (11.0, 5.0))


def ask(question: Question, data_dir: str | None) -> dict[str, Any]:
    """Scores by shift, severity and kind."""
    posterior, split = fitted(question, data_dir)
    test = split.test[0][:TESTED], split.test[1][:TESTED]
    width = (split.image_shape or (1, 8, 8))[2]
    # half a picture is as far as a roll can go before it comes back
    rolls = tuple(s for s in shifts.Roll().severities if s <= width / 2)
    answer: dict[str, Any] = {"severities": {}, "curves": {}}
    for shift in (shifts.Rotation(shape=split.image_shape), shifts.Roll(rolls, split.image_shape)):
        curves = under_shift(posterior, test, shift, samples=SAMPLES)
        answer["severities"][shift.name] = list(curves.severities)
        answer["curves"][shift.name] = {score: curves.curve(score) for score in SCORES}
    return answer | {"accuracy": answer["curves"]["rotation"]["accuracy"][0]}


def _falls(found: dict[str, list[dict[str, Any]]]) -> Claim:
    at = found["map"][0]["severities"]["rotation"].index(60)
    home, away = (curve(found["map"], "rotation", "accuracy")[:, k] for k in (0, at))
    return Claim(
        SOURCE,
        "accuracy falls with the angle",
        f"map {trials.said(home.tolist(), 3)} at 0°, {trials.said(away.tolist(), 3)} at 60°",
        bool((away < home).all()),
    )


def _too_sure(found: dict[str, list[dict[str, Any]]]) -> Claim:
    gaps = {}
    for name, rows in found.items():
        error = curve(rows, "rotation", "ece").mean(0)
        gaps[name] = error[0], error.max()
    listed = ", ".join(f"{name} {home:.3f} → {away:.3f}" for name, (home, away) in gaps.items())
    return Claim(
        SOURCE,
        "calibration at home does not carry over to shifted pictures, of any method",
        f"ECE at 0° and at the worst angle: {listed}",
        all(away > 2 * home for home, away in gaps.values()),
    )


def _below_map(found: dict[str, list[dict[str, Any]]], name: str) -> Claim:
    said, held = below(found[name], found["map"], "rotation", FAR)
    return Claim(
        SOURCE,
        f"{name} has a lower Brier score and a lower calibration error than map at every angle of {FAR}° or more",
        f"differences from map, mean over {len(found[name])} seeds: {said}",
        held,
    )


def _singles(found: dict[str, list[dict[str, Any]]]) -> list[Claim]:
    return [_below_map(found, name) for name in SINGLE]


def _draw(figure: Figure, found: dict[str, list[dict[str, Any]]]) -> None:
    axes = panels(figure, 8, 2)
    for index, shift in enumerate(("rotation", "roll")):
        for at, score in enumerate(SHOWN):
            ax = axes[4 * index + at]
            for name, rows in found.items():
                ax.plot(rows[0]["severities"][shift], curve(rows, shift, score).mean(0), label=name)
            ax.set(title=score, xlabel="degrees" if shift == "rotation" else "pixels rolled")
    axes[0].legend(fontsize=7)
