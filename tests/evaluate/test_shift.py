"""Scores under shift: those of the shifted examples, of several posteriors side by side."""

import pytest
import torch

import bayesrule as br
from bayesrule.data import shifts
from bayesrule.data.batches import Batch
from bayesrule.evaluate import Scores, ShiftCurves
from bayesrule.report.shifts import shift_png, shift_svg


@pytest.fixture(scope="module")
def digits():
    x, y = br.data.digits()
    model = br.models.mlp(64, 10, hidden=(16,))
    fits = {name: br.fit(model, (x[:300], y[:300]), name, epochs=8) for name in ("map", "ensemble")}
    return fits, (x[300:500], y[300:500])


def test_scores_are_those_of_the_shifted_examples(digits):
    fits, test = digits
    curves = br.evaluate.under_shift(fits, test, "rotation", shape=(1, 8, 8))
    turned = shifts.Rotation(shape=(1, 8, 8)).at(Batch(*test), 60).x
    for name, posterior in fits.items():
        wanted = br.evaluate(posterior, (turned, test[1]), bootstrap=0)
        at = curves.severities.index(60)
        assert curves.scores[name][at].table == wanted.table
        assert curves.curve("nll", name)[0] == br.evaluate(posterior, test, bootstrap=0)["nll"]
    assert curves.curve("accuracy", "map")[6] < curves.curve("accuracy", "map")[0]


def test_tables_frames_and_pictures(digits):
    fits, test = digits
    curves = br.evaluate.under_shift(fits, test, "fog", shape=(1, 8, 8), bootstrap=20)
    assert len(curves.to_frame()) == 12
    assert set(curves.to_json()) == {"shift", "unit", "severities", "scores"}
    assert "under fog" in repr(curves)
    assert "<table" in curves._repr_html_()
    assert shift_png(curves)[:4] == b"\x89PNG"
    assert "accuracy" in shift_svg(curves)
    assert curves.scores["map"][0].interval("nll")[0] < curves.curve("nll", "map")[0]


def test_numbers_have_curves_too():
    x, y = br.data.sine(seed=0)
    posterior = br.fit(br.models.mlp(1, 1, hidden=(8,)), br.data.standardize((x, y)), "map", epochs=5)
    curves = br.evaluate.under_shift(posterior, (x, y), shifts.Noise(severities=(0, 1)))
    assert curves.shown == ["rmse", "nll", "crps", "coverage_90", "std"]
    assert curves.curve("rmse")[1] > curves.curve("rmse")[0]


def test_the_picture_of_a_lone_score_has_a_legend():
    scores = [Scores({"nll": v}, {}) for v in (1.0, 2.0)]
    assert "one" in shift_svg(ShiftCurves("roll", "pixels", (0.0, 2.0), {"one": scores}))


def test_what_is_refused(digits):
    fits, test = digits
    with pytest.raises(ValueError, match="did you mean 'snow'"):
        br.evaluate.under_shift(fits, test, "snov")
    with pytest.raises(ValueError, match="pictures of another size"):
        br.evaluate.under_shift(fits, test, "snow", shape=(1, 28, 28))
    with pytest.raises(ValueError, match="at least one, got an empty dict"):
        br.evaluate.under_shift({}, test, "noise")
    with pytest.raises(ValueError, match="do not know weights"):
        br.evaluate.under_shift(fits, (*test, torch.ones(200)), "noise")
    curves = br.evaluate.under_shift(fits, test, "noise")
    with pytest.raises(ValueError, match="which posterior's curve is meant, one of map, ensemble"):
        curves.curve("nll")
    with pytest.raises(ValueError, match="unknown score 'nl'"):
        curves.curve("nl", "map")
    with pytest.raises(ValueError, match="unknown posterior 'mapp'"):
        curves.curve("nll", "mapp")
