"""What a fit has settled from the data, and what that has beaten, in sentences."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from bayesrule.report.measures import number

SHARE = 0.01  # of the weight, below which a candidate is not named


def choices(info: Mapping[str, Any]) -> list[str]:
    """The sentences about ``posterior.info``: the prior's width, candidates, the temperature, the epoch that was kept.

    >>> tried = {"0.9": 0.251, "1.6": 0.21, "3": 0.227}
    >>> choices({"prior": {"settled": {"scale": 1.6, "held_out_nll": tried, "networks": 15, "steps": 400}}})
    ["the prior's width, 1.6/√fan-in, was settled on held-out data: NLL 0.210 against 0.227 of the next, 3/√fan-in"]
    """
    return [*_width(info), *_layers(info), *_candidates(info), *_calibration(info), *_epoch(info)]


def _width(info: Mapping[str, Any]) -> Iterator[str]:
    """How wide the prior is, where the fit was to find out."""
    settled = (info.get("prior") or {}).get("settled")
    if settled is None:
        return
    if settled["scale"] is None:
        yield f"the prior's width was not settled from the data: {settled['why']}"
        return
    chosen = f"{settled['scale']:g}"
    tried = settled["held_out_nll"]
    said = f"the prior's width, {chosen}/√fan-in, was settled on held-out data: NLL {number(tried[chosen])}"
    others = {scale: nll for scale, nll in tried.items() if scale != chosen}
    if not others:
        yield f"{said}; under all others it was not finite"
        return
    second = min(others, key=lambda scale: others[scale])
    of_next = f"{number(others[second])} of the next, {second}/√fan-in"
    if others[second] < tried[chosen]:  # a tie, which goes to the narrower prior
        yield f"{said}, not clearly above {of_next}, and narrower"
    else:
        yield f"{said} against {of_next}"


def _layers(info: Mapping[str, Any]) -> Iterator[str]:
    """Whether every layer has a scale of its own, where the fit was to find out."""
    settled = (info.get("prior") or {}).get("settled") or {}
    if "layers" not in settled:
        return
    found = settled["layers"]
    if "why" in found:
        yield f"scales by layer were not settled from the data: {found['why']}"
        return
    parts = [f"{number(nll)} with {name}" for name, nll in found["held_out_nll"].items()]
    if found["scales"] is None:
        yield f"one scale for all layers stays; NLL of held-out data: {', '.join(parts)}"
        return
    scales = ", ".join(f"{name} {scale:.3g}" for name, scale in found["scales"].items())
    yield f"every layer has its own scale, {found['chosen']}: {scales}; NLL of held-out data: {', '.join(parts)}"


def _candidates(info: Mapping[str, Any]) -> Iterator[str]:
    """What a stack of candidates is made of."""
    found = info.get("diagnostics", {}).get("candidates", [])
    if len(found) < 2:
        return
    by_weight = sorted(found, key=lambda each: -each["weight"])
    used = [each for each in by_weight if each["weight"] >= SHARE]
    parts = [f"{each['name']} {each['weight']:.0%} (NLL {number(each['held_out_nll'])})" for each in used]
    said = f"{len(found)} candidates were weighed by data that they had not seen: {', '.join(parts)}"
    if len(used) < len(found):
        best = min((each for each in found if each not in used), key=lambda each: each["held_out_nll"])
        said += f"; the best that was left out, {best['name']}, has NLL {number(best['held_out_nll'])}"
    yield said


def _calibration(info: Mapping[str, Any]) -> Iterator[str]:
    """Whether answers were made less or more sure after training."""
    found = info.get("calibration")
    if found is None:
        return
    before = number(found["nll"])
    for name, tried in found["tried"].items():
        after = f"NLL {number(tried['nll'])} of held-out answers that it was not found on"
        what, value = CALIBRATIONS[name], _numbers(tried["value"])
        if name == found["chosen"]:
            yield f"the {what} was set to {value}: {after}, {before} at 1"
        else:
            yield f"the {what} stays at 1, NLL {before}: {value} has {after}"
    if not found["tried"]:
        yield f"the answers were not recalibrated: {found['examples']} held-out examples are too few to tell"


CALIBRATIONS = {
    "temperature": "temperature of the classes",
    "vector": "scale and shift of each class",
    "isotonic": "slope of the logits by their gap from the largest",
    "scale": "scale of the noise",
}


def _numbers(value: Any) -> str:
    """A number, or nested lists of them, in a few digits."""
    if isinstance(value, list):
        return f"({', '.join(_numbers(one) for one in value)})"
    return f"{value:.2f}"


def _epoch(info: Mapping[str, Any]) -> Iterator[str]:
    """Which epoch early stopping kept."""
    best, history = info.get("best_epoch"), info.get("history", [])
    if best is None:
        return
    said = f"early stopping kept epoch {best + 1} of {len(history)}"
    if "val_nll" in history[best]:
        said += f": held-out NLL {number(history[best]['val_nll'])}, {number(history[-1]['val_nll'])} in the last"
    yield said
