"""Leave-one-out by perturbation: exact where it can be, close to training again elsewhere, and what is refused."""

import pytest
import torch
from torch import nn

import bayesrule as br
from bayesrule.posteriors import central_state

EXACT = br.methods.Laplace(structure="dense", tune="nothing", newton=1)
NOISE = br.likelihoods.Gaussian(0.3)


def table(n=25):
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(n, 3, generator=generator).double()
    return x, x @ torch.tensor([1.0, -2.0, 0.5]).double() + 0.3 * torch.randn(n, generator=generator).double()


def line(x, y, method=EXACT, **options):
    torch.manual_seed(0)
    return br.fit(nn.Linear(3, 1).double(), (x, y), method, NOISE, 1.0, epochs=1, val=0, **options)


@pytest.mark.parametrize("temperature", [1.0, 0.5])
def test_a_linear_model_left_out_row_by_row_is_exact(temperature):
    x, y = table()
    found = br.gp.influence(line(x, y, temperature=temperature), (x, y))
    for row in range(0, len(y), 5):
        others = torch.arange(len(y)) != row
        again = line(x[others], y[others], temperature=temperature).predict(x[row, None])
        assert float(again.mean) == pytest.approx(float(found.prediction.mean[row]), abs=1e-8)
        assert float(again.variance) == pytest.approx(float(found.prediction.variance[row]), abs=1e-8)
        assert float(-again.log_prob(y[row, None])) == pytest.approx(float(found.nll[row]), abs=1e-8)


def test_rows_are_deleted_exactly_from_a_linear_model():
    x, y = table()
    found, again = br.gp.delete(line(x, y), (x[:6], y[:6])), line(x[6:], y[6:])
    for name in ("weight", "bias"):
        torch.testing.assert_close(found.mean[name], again.mean[name], rtol=0, atol=1e-8)
    torch.testing.assert_close(found.precision.dense(), again.precision.dense(), rtol=0, atol=1e-8)
    assert found.info["n"] == 19
    assert torch.allclose(found.predict(x).mean, again.predict(x).mean, atol=1e-8)


def test_units_are_the_users():
    x, y = table()
    y = 1000 + 50 * y
    data = br.data.standardize((x, y))
    torch.manual_seed(0)
    posterior = br.fit(nn.Linear(3, 1).double(), data, EXACT, prior=1.0, epochs=1, val=0)
    found, same = br.gp.influence(posterior, (x, y)), br.gp.influence(posterior, data)
    assert torch.allclose(found.nll, same.nll, atol=1e-8)
    assert abs(float(found.prediction.mean.mean()) - float(y.mean())) < 50
    assert torch.allclose(found.fitted, -posterior.predict(x).log_prob(y), atol=1e-8)


def test_a_network_as_a_process_says_the_same_as_its_dense_posterior():
    x, y = table()
    posterior = line(x, y)
    point = br.fit(posterior.at_mean(), (x, y), br.methods.MAP(lr=1e-12), NOISE, 1.0, epochs=1, val=0)
    assert torch.allclose(br.gp.influence(point, (x, y)).nll, br.gp.influence(posterior, (x, y)).nll, atol=1e-6)


def test_first_order_is_variance_times_error():
    x, y = table()
    posterior = line(x, y)
    found = br.gp.influence(posterior, (x, y), first_order=True)
    residual = (posterior.predict(x).mean - y) / 0.09
    torch.testing.assert_close(found.residual[:, 0], residual)
    torch.testing.assert_close(found.deviation[:, 0], found.variance[:, 0, 0] * residual)
    torch.testing.assert_close(found.change, found.deviation[:, 0].abs())


def moons(seed=0):
    x, y = br.data.moons(n=50, seed=seed)
    torch.manual_seed(seed)
    return x.double(), y, nn.Sequential(nn.Linear(2, 6), nn.Tanh(), nn.Linear(6, 2)).double()


def to_the_mode(network, x, y, epochs=200, lr=1e-2):
    method = br.methods.Laplace(structure="dense", tune="nothing", newton=25, lr=lr)
    return br.fit(network, (x, y), method, prior=1.0, epochs=epochs, batch_size=len(y), val=0)


@pytest.mark.parametrize("rows", [range(0, 50, 10), pytest.param(range(50), marks=pytest.mark.slow)])
def test_a_small_network_agrees_with_training_again(rows):
    from scipy.stats import spearmanr

    x, y, network = moons()
    posterior = to_the_mode(network, x, y)
    found = br.gp.influence(posterior, (x, y))
    again = []
    for row in rows:
        others = torch.arange(50) != row
        other = to_the_mode(posterior.at_mean(), x[others], y[others], epochs=1, lr=1e-9)
        again.append(float(-other.predict(x[row, None]).log_prob(y[row, None])))
    assert spearmanr(again, found.nll[list(rows)]).statistic > 0.97


def test_rows_are_nearly_deleted_from_a_small_network():
    x, y, network = moons()
    posterior = to_the_mode(network, x, y)
    kept = torch.arange(50) >= 3
    again = to_the_mode(posterior.at_mean(), x[kept], y[kept], epochs=1, lr=1e-9)
    found = br.gp.delete(posterior, (x[:3], y[:3]))

    def apart(other):
        return float((other.at_mean()(x) - again.at_mean()(x)).detach().abs().mean())

    assert apart(found) < 0.2 * apart(posterior)


def test_wrong_labels_are_suspicious():
    x, y, network = moons()
    wrong = [7, 23]
    labels = y.clone()
    labels[wrong] = 1 - y[wrong]
    found = br.gp.influence(to_the_mode(network, x, labels), (x, labels))
    assert set(wrong) <= set(found.suspicious[:4].tolist())
    assert found.generalisation > float(found.fitted.mean())


@pytest.mark.parametrize(
    "method", ["ivon", "ensemble", *(pytest.param(name, marks=pytest.mark.slow) for name in ("map", "swag", "laplace"))]
)
def test_every_posterior_with_a_network_has_influences(method):
    x, y, network = moons()
    posterior = br.fit(network, (x, y), method, epochs=5, val=0)
    found = br.gp.influence(posterior, (x, y))
    assert found.nll.shape == (50,)
    assert bool(found.nll.isfinite().all())
    assert len(found.prediction) == 50


def test_rows_are_deleted_from_a_diagonal():
    x, y, network = moons()
    posterior = to_the_mode(network, x, y)
    method = br.methods.Laplace(structure="diagonal", subset="all", tune="nothing", newton=0, lr=1e-9)
    diagonal = br.fit(posterior.at_mean(), (x, y), method, prior=1.0, epochs=1, batch_size=50, val=0)
    found = br.gp.delete(diagonal, (x[:3], y[:3]))
    assert found.precision.name == "diagonal"
    assert bool((found.precision.diagonal <= diagonal.precision.diagonal + 1e-12).all())


def test_callbacks_know_the_posterior_of_the_moment():
    x, y, network = moons()
    kept = []

    def keep(progress):
        if progress.epoch_ended:
            kept.append(progress.posterior())

    last = br.fit(network, (x, y), "map", prior=1.0, epochs=3, val=0, callbacks=[keep])
    assert [torch.equal(central_state(p)["0.weight"], central_state(last)["0.weight"]) for p in kept] == [
        False,
        False,
        True,
    ]
    plain = br.fit(network, (x, y), "map", prior=1.0, epochs=3, val=0)
    assert torch.equal(central_state(plain)["0.weight"], central_state(last)["0.weight"])  # looking changes nothing
    scores = br.gp.generalisation(kept, (x, y))
    assert len(scores) == 3
    assert scores[0] == br.gp.influence(kept[0], (x, y)).generalisation


def test_nothing_of_the_users_changes():
    x, y, network = moons()
    posterior = to_the_mode(network, x, y, epochs=2)
    before = {name: w.clone() for name, w in posterior.mean.items()}
    br.gp.influence(posterior, (x, y))
    br.gp.delete(posterior, (x[:2], y[:2]))
    assert all(torch.equal(before[name], posterior.mean[name]) for name in before)


def test_what_does_not_fit_is_refused():
    x, y = table()
    posterior = line(x, y)
    point = br.fit(nn.Linear(3, 1).double(), (x, y), "map", NOISE, 1.0, epochs=1, val=0)
    with pytest.raises(TypeError, match="rows can be deleted from a Gaussian posterior alone"):
        br.gp.delete(point, (x[:2], y[:2]))
    with pytest.raises(ValueError, match="rows must be fewer than the 25"):
        br.gp.delete(posterior, (x, y))
    with pytest.raises(ValueError, match="rows must be among those that the posterior was fitted to"):
        br.gp.delete(posterior, (100 * x[:2], y[:2]))
    with pytest.raises(ValueError, match="are these the data that it was fitted to"):
        br.gp.influence(posterior, (100 * x, y))
    with pytest.raises(ValueError, match="does not know weights of examples"):
        br.gp.influence(posterior, (x, y, torch.ones(25).double()))
    dropped = br.fit(
        nn.Sequential(nn.Linear(3, 4), nn.Dropout(0.5), nn.Linear(4, 1)).double(), (x, y), "mc-dropout", epochs=1
    )
    with pytest.raises(TypeError, match="has no network that stands for it"):
        br.gp.influence(dropped, (x, y))


def test_a_moment_needs_a_fit():
    with pytest.raises(RuntimeError, match="no posterior outside of a fit"):
        br.training.Progress(0, 1, 0, 1, False, {}, []).posterior()
