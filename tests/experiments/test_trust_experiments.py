"""The experiments about shift and strangers."""

import io
import json

import pytest
from matplotlib.image import imread

from bayesrule.data import corruptions
from bayesrule.data.augmentations import AugMix, Crops
from bayesrule.experiments import EXPERIMENTS, Setting, png
from bayesrule.experiments.trust import fits, shift_cifar, shift_mnist
from bayesrule.methods import MAP, Ensemble


@pytest.mark.parametrize(("name", "claims"), [("shift-mnist", 4), ("ood-mnist", 5), ("shift-cifar", 6)])
def test_claims_numbers_and_a_figure(name, claims, monkeypatch):
    monkeypatch.setattr(fits, "LENGTHS", {False: ("digits", 1)})
    monkeypatch.setattr(fits, "TESTED", 50)
    for method in list(fits.METHODS):
        if method not in ("map", "ensemble", "swag"):
            monkeypatch.delitem(fits.METHODS, method)
    monkeypatch.setitem(fits.METHODS, "ensemble", Ensemble(2))
    monkeypatch.setitem(fits.METHODS, "swag", MAP())
    monkeypatch.setattr(shift_cifar, "LENGTHS", {False: shift_cifar.Length("digits", 1, 1, "crops")})
    for module in (shift_mnist, shift_cifar):
        monkeypatch.setattr(module, "SINGLE", ("swag",))
        monkeypatch.setattr(module, "TESTED", 50)
    result = EXPERIMENTS[name](Setting())
    assert len(result.claims) == claims
    assert all(claim.source and claim.says and claim.measured for claim in result.claims)
    json.dumps(result.data, allow_nan=False)
    assert imread(io.BytesIO(png(result)), format="png").std() > 0.01


def row(brier, ece, angles=(0, 15, 45, 60)):
    curves = {"brier": brier, "ece": ece, "accuracy": [0.9, 0.8, 0.5, 0.4]}
    return {"severities": {"rotation": list(angles)}, "curves": {"rotation": curves}}


@pytest.mark.parametrize(
    ("brier", "ece", "held"),
    [
        ([0.2, 0.5, 0.6, 0.7], [0.1, 0.2, 0.3, 0.4], True),  # worse at home, better from 45° on
        ([0.0, 0.1, 0.6, 0.9], [0.1, 0.2, 0.3, 0.4], False),  # not at 60°
        ([0.0, 0.1, 0.6, 0.7], [0.1, 0.2, 0.6, 0.4], False),  # not in calibration
    ],
)
def test_below_map_is_at_every_far_angle_and_in_both_scores(brier, ece, held):
    found = {"map": [row([0.1, 0.2, 0.7, 0.8], [0.0, 0.1, 0.5, 0.6])], "ensemble": [row(brier, ece)]}
    assert shift_mnist._below_map(found, "ensemble").held is held


def corrupted(brier, ece=None, accuracy=(0.9, 0.8, 0.7, 0.6, 0.5, 0.4)):
    """Three seeds whose scores at home and at five severities differ by a thousandth."""
    rows = []
    for nudge in (-0.001, 0.0, 0.001):
        curves = {"brier": [v + nudge for v in brier], "ece": [v + nudge for v in ece or brier], "accuracy": accuracy}
        rows.append({"severities": {shift_cifar.ALL: list(range(6))}, "curves": {shift_cifar.ALL: curves}})
    return rows


LOW, MIDDLE, HIGH = [0.2, 0.2, 0.2, 0.3, 0.3, 0.3], [0.1, 0.2, 0.3, 0.4, 0.5, 0.6], [0.1, 0.2, 0.3, 0.5, 0.6, 0.7]


def of_cifar(monkeypatch, **changed):
    monkeypatch.setattr(shift_cifar, "METHODS", {"map": MAP(), "ensemble": Ensemble()})
    monkeypatch.setattr(shift_cifar, "SINGLE", ())
    found = {"map": corrupted(HIGH), "ensemble": corrupted(MIDDLE), "map, augmix": corrupted(LOW)}
    found |= {"ensemble, augmix": corrupted([0.2, 0.2, 0.2, 0.2, 0.2, 0.2])} | changed
    return [claim.held for claim in shift_cifar.claims(found)]


def test_claims_of_corrupted_pictures(monkeypatch):
    assert of_cifar(monkeypatch) == [True, True, True, True, True]


@pytest.mark.parametrize(
    ("changed", "which"),
    [
        ({"map": corrupted(HIGH, accuracy=(0.9, 0.8, 0.8, 0.6, 0.5, 0.4))}, 0),  # not at every step
        ({"ensemble": corrupted(MIDDLE, [0.5] * 6)}, 1),  # as calibrated away as at home
        ({"ensemble": corrupted(MIDDLE, HIGH)}, 2),  # the calibration is no lower
        ({"map, augmix": corrupted([0.2, 0.2, 0.2, 0.4, 0.5, 0.6])}, 3),  # the ensemble without is as good
        ({"ensemble, augmix": corrupted(HIGH)}, 4),
    ],
)
def test_each_claim_of_corrupted_pictures_can_fail(monkeypatch, changed, which):
    held = of_cifar(monkeypatch, **changed)
    assert held[which] is False


def test_every_corruption_is_in_one_family():
    names = [name for family in shift_cifar.FAMILIES.values() for name in family]
    assert sorted(names) == sorted(corruptions.KINDS)


def test_the_control_is_trained_on_changed_pictures(monkeypatch):
    asked = []
    monkeypatch.setattr(fits, "fit", lambda *args, **given: asked.append((args, given)))
    fits.fitted(fits.Question("digits", "map", 1, 0, "crops,augmix"), None)
    fits.fitted(fits.Question("digits", "map", 1, 0), None)
    assert [given["augment"] for _, given in asked] == [(Crops((1, 8, 8)), AugMix((1, 8, 8))), None]
    names = shift_cifar.rows(shift_cifar.LENGTHS[True])
    assert {name for name, (_, augment) in names.items() if augment} == {
        "map, flips and crops",
        "map, augmix",
        "ensemble, augmix",
    }
