"""The experiment about pixels."""

import io
import json

from matplotlib.image import imread

from bayesrule.experiments import EXPERIMENTS, Setting, png
from bayesrule.experiments.principles import segmentation
from bayesrule.methods import MAP, Ensemble


def test_claims_numbers_and_a_figure(monkeypatch):
    monkeypatch.setattr(segmentation, "EPOCHS", {False: 1})
    monkeypatch.setattr(segmentation, "METHODS", {"map": MAP(), "ensemble": Ensemble(members=2)})
    for name, value in (("TRAIN", 4), ("TEST", 4), ("SIDE", 16), ("SAMPLES", 2)):
        monkeypatch.setattr(segmentation, name, value)
    result = EXPERIMENTS["segmentation"](Setting())
    assert len(result.claims) == 2
    assert result.data["methods"]["map"][0]["auroc"]["epistemic"] == 0.5  # one network has none
    assert all(claim.source and claim.says and claim.measured for claim in result.claims)
    json.dumps(result.data, allow_nan=False)
    assert imread(io.BytesIO(png(result)), format="png").std() > 0.01
