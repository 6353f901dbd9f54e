"""The experiment about earthquakes."""

import io
import json

from matplotlib.image import imread

from bayesrule.experiments import EXPERIMENTS, Setting, png
from bayesrule.experiments.principles import better_fit


def test_claims_numbers_and_a_figure(monkeypatch):
    monkeypatch.setattr(better_fit, "CATALOGUES", {False: 2})
    monkeypatch.setattr(better_fit, "STEPS", 150)
    result = EXPERIMENTS["better-fit"](Setting())
    assert [claim.held for claim in result.claims[:2]] == [True, True]
    assert all(claim.source and claim.says and claim.measured for claim in result.claims)
    json.dumps(result.data, allow_nan=False)
    assert imread(io.BytesIO(png(result)), format="png").std() > 0.01


def test_the_act_is_paid_for_by_the_true_rate():
    to_build_or_not = 1 / better_fit.DAMAGE
    assert better_fit._paid(2 * to_build_or_not, 5.0) == 1.0
    assert better_fit._paid(to_build_or_not / 2, 0.03) == 0.03 * better_fit.DAMAGE
