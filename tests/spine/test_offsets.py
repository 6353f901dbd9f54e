"""Numbers that are far from zero for their spread: what double precision holds comes out again, by every way in."""

import json

import numpy as np
import pandas as pd
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

import bayesrule as br
from bayesrule.data import Affine, Scaling, as_data, standardize
from bayesrule.estimators import BayesianRegressor
from bayesrule.posteriors import Context, Particles, match
from bayesrule.predictions import Reals

FAR = 1e9
EPS = torch.finfo(torch.float64).eps
offsets = st.sampled_from([0.0, *(10.0**power for power in range(3, 13))])
spreads = st.sampled_from([10.0**power for power in range(-3, 4)])


def line(n=200, seed=0):
    """y = 10 x + noise of deviation 1."""
    random = np.random.default_rng(seed)
    x = random.normal(size=(n, 1))
    return x, 10 * x[:, 0] + random.normal(size=n)


def network():
    torch.manual_seed(0)
    return nn.Linear(1, 1)


def posterior_of(data):
    """Two networks in single precision, on the units of some data."""
    states = [{"weight": torch.tensor([[w]]), "bias": torch.tensor([b])} for w, b in ((0.9, 0.1), (1.1, -0.2))]
    return Particles(states, Context(network(), br.likelihoods.Gaussian(torch.tensor(0.1)), data.scaling))


@given(offsets, spreads, st.integers(0, 3))
def test_predictions_move_with_the_data(offset, spread, seed):
    x, y = line(50, seed)
    near = posterior_of(standardize((spread * x, spread * y)))
    far = posterior_of(standardize((spread * x + offset, spread * y + offset)))
    wanted, found = near.predict(spread * x), far.predict(spread * x + offset)
    # what the numbers themselves have lost, times the slopes, and what single precision makes of outputs of order one
    tolerance = 64 * EPS * offset + 64 * 2**-24 * 10 * spread
    assert torch.allclose(found.mean.double() - offset, wanted.mean.double(), rtol=0, atol=tolerance)
    assert torch.allclose(found.std.double(), wanted.std.double(), rtol=0, atol=tolerance)
    for moved, still in zip(found.interval(0.9), wanted.interval(0.9), strict=True):
        assert torch.allclose(moved.double() - offset, still.double(), rtol=0, atol=tolerance)


@given(offsets, spreads)
def test_data_go_to_the_networks_units_and_back(offset, spread):
    x, y = (torch.as_tensor(spread * part + offset) for part in line(50))
    back = standardize((x, y)).to(torch.float32).raw()
    tolerance = 2 * EPS * offset + 20 * 2**-24 * 10 * spread
    assert torch.allclose(back.x.double(), x, rtol=0, atol=tolerance)
    assert torch.allclose(back.y.double(), y, rtol=0, atol=tolerance)


@given(offsets, spreads)
def test_a_spread_is_seen_beside_any_offset(offset, spread):
    _, y = line(50)
    y = torch.as_tensor(spread * y + offset)
    data = standardize((torch.zeros(50, 1), y))
    assert float(data.y.std(correction=0)) == pytest.approx(1, abs=1e-3)
    assert float(data.y.mean()) == pytest.approx(0, abs=1e-3 + 2 * EPS * offset / spread)


@pytest.mark.parametrize("value", [0.1, 1e9 / 3, 1e12])
@pytest.mark.parametrize("n", [3, 1000, 4099])
def test_a_constant_is_centred_only(value, n):
    data = standardize((torch.full((n, 1), value, dtype=torch.float64), torch.arange(n, dtype=torch.float64)))
    assert not data.x.any()
    assert data.scaling.inputs.scale.tolist() == [1]
    shaken = np.full((n, 1), value)
    shaken[::2] = np.nextafter(value, np.inf)  # rounding of how it was computed
    assert standardize((shaken, torch.arange(n, dtype=torch.float64))).scaling.inputs.scale.tolist() == [1]


def scores_of(method, x_offset, y_offset, **options):
    """Of a short fit, on data that it has not seen."""
    x, y = line()
    posterior = br.fit(network(), standardize((x + x_offset, y + y_offset)), method, epochs=3, **options)
    x, y = line(seed=1)
    return posterior, br.evaluate(posterior, (x + x_offset, y + y_offset), bootstrap=0)


@pytest.mark.parametrize("method", ["map", "ivon", "laplace", br.methods.Ensemble(members=2)])
@pytest.mark.parametrize(("x_offset", "y_offset"), [(0, FAR), (FAR, 0)])
def test_a_fit_is_as_good_far_away(method, x_offset, y_offset):
    _, wanted = scores_of(method, 0, 0)
    _, found = scores_of(method, x_offset, y_offset)
    assert dict(found) == pytest.approx(dict(wanted), rel=1e-3)


@pytest.mark.parametrize("val", [None, 0.2, "given"])
def test_held_out_data_far_away_tell_the_noise(val):
    near = far = val
    if val == "given":
        x, y = line(seed=2)
        near, far = (x, y), (x + FAR, y + FAR)
    wanted, _ = scores_of("map", 0, 0, val=near)
    found, _ = scores_of("map", FAR, FAR, val=far)
    assert float(found.likelihood.noise) == pytest.approx(float(wanted.likelihood.noise), rel=1e-3)
    for here, there in zip(wanted.info["history"], found.info["history"], strict=True):
        assert there == pytest.approx(here, rel=1e-3)


def test_noise_is_matched_on_raw_data_far_away():
    x, y = line()
    data = standardize((x, FAR + y))
    posterior = posterior_of(data)
    wanted = match(posterior_of(standardize((x, y))), as_data((x, y)).all()).likelihood.noise
    assert torch.allclose(match(posterior, data.to(torch.float32).raw()).likelihood.noise, wanted, rtol=1e-3)


def test_a_posterior_far_away_is_a_prior():
    x, y = line(seed=2)
    found = {}
    for offset in (0, FAR):
        first, _ = scores_of("laplace", 0, offset)
        more = br.fit(network(), (x, y + offset), "laplace", prior=first, epochs=3)
        found[offset] = dict(br.evaluate(more, (x, y + offset), bootstrap=0))
    assert found[FAR] == pytest.approx(found[0], rel=1e-3)


def test_dtypes_of_units():
    near, far = Affine(10.0, 1.0), Affine(1000.0, 1.0)
    assert near.inverse(torch.ones(3)).dtype == torch.float32
    assert far.inverse(torch.ones(3)).dtype == torch.float64
    assert far.forward(torch.ones(3)).dtype == torch.float32  # small numbers: nothing is lost
    prediction = Reals(torch.zeros(1, 2), torch.ones(()))
    assert prediction.rescaled(10.0, 1.0).mean.dtype == torch.float32
    assert prediction.rescaled(1000.0, 1.0).std.dtype == torch.float64
    several = Scaling(targets=Affine(torch.tensor([0.0, 1e6]), 1.0)).targets
    assert several.inverse(torch.ones(3, 2)).dtype == torch.float64


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_an_estimator_on_targets_far_away(dtype):
    x, y = line()
    found = {}
    for offset in (0, FAR):
        regressor = BayesianRegressor("map", hidden=(), epochs=3, random_state=0).fit(x.astype(dtype), y + offset)
        mean, std = regressor.predict(x.astype(dtype), return_std=True)
        found[offset] = mean - offset, std
    assert np.allclose(found[0], found[FAR], atol=1e-4)


def test_the_command_line_on_a_table_far_away(tmp_path, capsys):
    from bayesrule.cli import main

    x, y = line()
    frame = pd.DataFrame({"x": FAR + x[:, 0], "y": FAR + y})
    frame.to_csv(tmp_path / "far.csv", index=False)
    run, out = str(tmp_path / "run"), str(tmp_path / "out.csv")
    table = str(tmp_path / "far.csv")
    options = ["--method", "map", "--hidden", "8", "--epochs", "30", "--set", "lr=0.03"]
    assert main(["fit", table, "--target", "y", *options, "--out", run, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["methods"]["map"]["scores"]["rmse"] == pytest.approx(1, abs=0.8)
    assert main(["evaluate", run, table, "--json"]) == 0
    assert 0.7 < json.loads(capsys.readouterr().out)["methods"]["map"]["scores"]["coverage_90"] <= 1
    assert main(["predict", run, table, "--out", out]) == 0
    found = pd.read_csv(out)
    assert np.sqrt(np.mean((found["prediction"] - frame["y"]) ** 2)) < 2
    assert ((found["lower_90"] < frame["y"]) & (frame["y"] < found["upper_90"])).mean() > 0.7
