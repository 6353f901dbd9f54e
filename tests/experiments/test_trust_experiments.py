"""The experiments about shift and strangers."""

import io
import json

import pytest
from matplotlib.image import imread

from bayesrule.experiments import EXPERIMENTS, Setting, png
from bayesrule.experiments.trust import fits, shift_mnist
from bayesrule.methods import MAP, Ensemble


@pytest.mark.parametrize(("name", "claims"), [("shift-mnist", 4), ("ood-mnist", 5)])
def test_claims_numbers_and_a_figure(name, claims, monkeypatch):
    monkeypatch.setattr(fits, "LENGTHS", {False: ("digits", 1)})
    monkeypatch.setattr(fits, "TESTED", 50)
    for method in list(fits.METHODS):
        if method not in ("map", "ensemble", "swag"):
            monkeypatch.delitem(fits.METHODS, method)
    monkeypatch.setitem(fits.METHODS, "ensemble", Ensemble(2))
    monkeypatch.setitem(fits.METHODS, "swag", MAP())
    monkeypatch.setattr(shift_mnist, "SINGLE", ("swag",))
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
