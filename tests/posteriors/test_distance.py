"""A posterior that knows less far away: the base's own at home, unsure elsewhere, in every kind and file."""

import pytest
import torch
from torch import nn

import bayesrule as br
from bayesrule import modules
from bayesrule.files import FileError
from bayesrule.methods import IVON, MAP, SWAG, Ensemble, Laplace, MCDropout
from bayesrule.posteriors import DistanceAware
from bayesrule.posteriors.features import Features, nearest

METHODS = {
    "map": MAP(),
    "ensemble": Ensemble(2),
    "dropout": MCDropout(),
    "swag": SWAG(rank=2, snapshots=3),
    "ivon": IVON(),
    "laplace": Laplace(),
}
X, Y = br.data.moons(n=200, seed=0)
FAR = 10 * torch.tensor([[1.0, 1.0], [-3.0, 2.0], [2.0, -4.0], [-2.0, -2.0]])
MODEL = nn.Sequential(nn.Linear(2, 16), nn.ReLU(), nn.Linear(16, 2))


@pytest.fixture(scope="module")
def fits():
    """A posterior of each kind, and the same around its data."""
    found = {}
    for name, method in METHODS.items():
        posterior = br.fit(MODEL, br.data.standardize((X, Y)), method, epochs=15)
        found[name] = posterior, DistanceAware.around(posterior, (X, Y))
    return found


@pytest.mark.parametrize("name", METHODS)
def test_unsure_far_away_and_the_base_at_home(fits, name):
    base, aware = fits[name]
    home = X[aware.strangeness(X) == 0]
    assert len(home) > 180
    before, after = base.predict(home), aware.predict(home)
    if name in ("map", "ensemble", "laplace"):  # the others draw other networks
        assert torch.allclose(before.probs, after.probs, atol=1e-6)
    assert float((before.probs - after.probs).abs().mean()) < 0.02
    assert float(aware.predict(FAR).confidence.mean()) < float(base.predict(FAR).confidence.mean()) - 0.1
    assert bool((aware.predict(FAR, samples=256).epistemic > 0.3).all())


@pytest.mark.parametrize("name", METHODS)
def test_it_goes_with_its_file(fits, name, tmp_path):
    _, aware = fits[name]
    aware.save(tmp_path / "aware")
    again = br.load(tmp_path / "aware", MODEL)
    assert type(again) is DistanceAware
    both = torch.cat([X, FAR])
    assert torch.equal(again.predict(both).probs, aware.predict(both).probs)
    assert torch.equal(aware.to("cpu").predict(both).probs, aware.predict(both).probs)


@pytest.mark.parametrize("name", ["map", "ensemble", "laplace"])
def test_one_draw_is_one_function(fits, name):
    _, aware = fits[name]
    x = aware.inputs(torch.cat([X[:6], FAR]))
    networks = list(aware.networks(8, torch.Generator().manual_seed(0)))
    assert len(networks) == aware.count(8) == 8
    for network in networks[:3]:
        whole = network(x)
        assert torch.allclose(torch.cat([network(x[:4]), network(x[4:])]), whole, atol=1e-4)
        assert torch.equal(network(x), whole)


def test_draws_have_the_deviation_that_is_said(fits):
    _, aware = fits["map"]
    x = aware.inputs(FAR)
    outputs = aware.marginals(x, 4000, torch.Generator().manual_seed(0))
    wanted = aware.scale * aware.strangeness(FAR)
    # of 4000 normal draws a deviation is within 1.1 % of itself, one standard error; five of them
    assert outputs.std(0)[:, 0].double() == pytest.approx(wanted, rel=0.06)
    joint = aware.outputs(x, 400, torch.Generator().manual_seed(0))
    assert joint.std(0)[:, 1].double() == pytest.approx(wanted, rel=0.18)


def test_numbers_get_wider_intervals():
    x, y = br.data.gap(seed=0)
    posterior = br.fit(br.models.mlp(1, 1, hidden=(16,)), br.data.standardize((x, y)), "laplace", epochs=20)
    aware = DistanceAware.around(posterior, (x, y))
    middle, home = [[0.0]], x[aware.strangeness(x) == 0]
    assert torch.allclose(aware.predict(home).std, posterior.predict(home).std, rtol=1e-4)
    assert float(aware.predict(middle).std) > 2 * float(posterior.predict(middle).std)


def test_promises_calibrate_on_it(fits):
    _, aware = fits["map"]
    x, y = br.data.moons(n=300, seed=1)
    assert aware.conformalize((x, y), level=0.99).predict_set(FAR).sum() >= 6  # of 8: hardly a class is ruled out


def test_features_are_what_the_last_layer_sees():
    posterior = br.fit(MODEL, (X, Y), "map", epochs=1)
    features = Features.of(posterior, X)
    assert features.layer == "2"
    state = posterior.states[0]
    wanted = (X @ state["0.weight"].T + state["0.bias"]).relu()
    assert torch.allclose(features(X), wanted, atol=1e-6)
    tabular = br.fit(br.models.tabular(2, 2), (X, Y), "map", epochs=1)
    assert Features.of(tabular, X).layer is None
    assert torch.equal(Features.of(tabular, X)(X), X)


def test_features_of_pictures_with_positions():
    model = nn.Sequential(nn.Conv2d(1, 3, 3), nn.ReLU(), nn.Conv2d(3, 2, 1), nn.Flatten(2), nn.AdaptiveAvgPool1d(1))
    x = torch.rand(4, 1, 6, 6)
    features = Features(model, modules.snapshot(model), "2")
    assert torch.allclose(features(x), model[:2](x).mean((2, 3)), atol=1e-6)


def test_nearest_leaves_the_row_itself_out():
    rows = torch.tensor([[0.0], [1.0], [3.0]])
    assert nearest(rows, rows, 1, leave_out=True).tolist() == [1, 1, 2]
    with pytest.raises(ValueError, match="neighbours must be from 1 to 2, not 3"):
        nearest(rows, rows, 3, leave_out=True)


def test_what_is_refused(fits, tmp_path):
    base, aware = fits["map"]
    with pytest.raises(ValueError, match="at least 20 examples to measure distances by, not 19"):
        DistanceAware.around(base, (X[:19], Y[:19]))
    assert DistanceAware.around(aware, (X, Y)).base is base  # not twice
    aware.home.__dict__["width"] = width = aware.home.width
    object.__setattr__(aware.home, "width", -1.0)
    aware.save(tmp_path / "bad")
    object.__setattr__(aware.home, "width", width)
    with pytest.raises(FileError, match="width must be positive and finite"):
        br.load(tmp_path / "bad", MODEL)
    pixels = nn.Sequential(nn.Conv2d(1, 2, 1))
    images = torch.rand(30, 1, 4, 4)
    wide = br.fit(pixels, (images, torch.zeros(30, 4, 4, dtype=torch.long)), "map", epochs=1)
    with pytest.raises(ValueError, match="one target of each example"):
        DistanceAware.around(wide, (images, torch.zeros(30, 4, 4, dtype=torch.long)))
