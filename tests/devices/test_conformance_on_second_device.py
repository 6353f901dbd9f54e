"""Every method of the conformance table on the second device: the model's device decides, everything else follows."""

import copy
import functools

import pytest
import torch
from covering import chosen, covering
from networks import classes, generator, mlp, zoo
from test_methods import EACH_LEARNER, LONG, METHODS, TARGETS, every_row
from torch import Tensor, nn

import bayesrule as br
from bayesrule.evaluate import score
from bayesrule.likelihoods import Categorical
from bayesrule.methods.mode import approach, has_mode
from bayesrule.optim.flat import FlatGroup
from bayesrule.training import Folder

CPU = torch.device("cpu")
WAYS = {"from the device": True, "to the device": False}
both_ways = pytest.mark.parametrize("there", WAYS.values(), ids=list(WAYS))


def fit(method, device, model=None, train=None, **settings):
    model = (mlp() if model is None else model).to(device)
    return br.fit(model, train or classes(), method, **{"epochs": 2, "batch_size": 16} | settings)


@functools.cache
def fitted(name, device):
    """The posterior of a row of the table on the plain module and data, made once for each device."""
    return fit(METHODS[name][0], device)


def tensors(tree) -> list[Tensor]:
    """All tensors within a tree of dicts and lists."""
    if isinstance(tree, Tensor):
        return [tree]
    parts = tree.values() if isinstance(tree, dict) else tree if isinstance(tree, list | tuple) else ()
    return [tensor for part in parts for tensor in tensors(part)]


def assert_same(there, here):
    """The second device computes with the CPU's kernels, and its generators give the CPU's numbers."""
    torch.testing.assert_close(there.cpu(), here.cpu(), rtol=1e-4, atol=1e-5)


# ---- fit, predict, save, load, resume --------------------------------------------------------------------------------


@every_row
def test_a_fit_stays_on_the_models_device_and_is_that_of_the_cpu(name, second):
    x, y = classes(seed=1)
    posterior = fitted(name, second)
    prediction = posterior.predict(x)
    assert {t.device for t in tensors(posterior.state())} <= {second}
    assert prediction.probs.device == second
    assert_same(prediction.probs, fitted(name, CPU).predict(x).probs)
    assert prediction.log_prob(y).isfinite().all()


@every_row
@both_ways
def test_files_go_from_device_to_device(name, there, second, tmp_path):
    source, target = (second, CPU) if there else (CPU, second)
    x = classes(seed=1)[0]
    posterior = fitted(name, source)
    posterior.save(tmp_path / "p")
    loaded = br.load(tmp_path / "p", mlp(seed=1).to(target)).predict(x)
    assert loaded.probs.device == target
    assert_same(loaded.probs, posterior.predict(x).probs)


@every_row
@both_ways
def test_a_posterior_goes_from_device_to_device(name, there, second):
    source, target = (second, CPU) if there else (CPU, second)
    x = classes(seed=1)[0]
    posterior = fitted(name, source)
    moved = posterior.to(target)
    assert {t.device for t in tensors(moved.state())} <= {target}
    assert {t.device for t in tensors(posterior.state())} <= {source}
    assert_same(moved.predict(x).probs, posterior.predict(x).probs)


@both_ways
@pytest.mark.parametrize("method", ["laplace", "map", "ivon"])
def test_the_model_decides_where_the_past_goes_on(method, there, second):
    source, target = (second, CPU) if there else (CPU, second)
    past = fit("laplace", source)
    after = fit(method, target, mlp(), prior=past)
    assert {t.device for t in tensors(after.state())} <= {target}
    assert_same(after.predict(classes()[0]).probs, fit(method, source, mlp(), prior=past).predict(classes()[0]).probs)


class Stopped(Exception):
    pass


@pytest.mark.parametrize(("name", "way"), covering(METHODS, WAYS, of=2))
def test_a_fit_that_stops_on_one_device_resumes_on_another(name, way, second, tmp_path):
    source, target = (second, CPU) if WAYS[way] else (CPU, second)

    def stop(progress):
        if progress.step == min(4, progress.steps - 1):  # all data in one step make few of them
            raise Stopped

    with pytest.raises(Stopped):
        fit(METHODS[name][0], source, out=Folder(tmp_path, interval=0.0), callbacks=[stop])
    x = classes(seed=1)[0]
    resumed = br.resume(tmp_path, mlp(seed=1).to(target), classes()).predict(x)
    assert resumed.probs.device == target
    assert_same(resumed.probs, fitted(name, CPU).predict(x).probs)


@pytest.mark.parametrize("name", chosen(METHODS, now=EACH_LEARNER))
def test_neither_the_model_nor_a_random_state_is_changed(name, second):
    method, model = METHODS[name][0], mlp().to(second)
    before = copy.deepcopy(model.state_dict()), torch.get_rng_state(), torch.second.get_rng_state()
    fit(method, second, model).predict(classes()[0])
    assert all(torch.equal(w, before[0][name]) for name, w in model.state_dict().items())
    assert torch.equal(torch.get_rng_state(), before[1])
    assert torch.equal(torch.second.get_rng_state(), before[2])


# ---- any module, any likelihood, any data ----------------------------------------------------------------------------


@pytest.mark.filterwarnings("ignore:layer .* cannot be vectorised")  # VOGN and a recurrent layer with dropout
@pytest.mark.parametrize(("name", "kind"), covering(METHODS, zoo(), whole=("laplace, kronecker", "vogn"), long=LONG))
def test_any_module(name, kind, second):
    model, (x, y) = zoo()[kind]
    prediction = fit(METHODS[name][0], second, model, (x, y), epochs=1, batch_size=12).predict(x, samples=2)
    assert prediction.label.shape == y.shape
    assert prediction.probs.device == second


@pytest.mark.parametrize(
    ("name", "target"),
    covering(
        METHODS,
        ("three answers", "reals", "noise from the network", "positives", "reals with tails", "counts"),
        whole=("laplace", "ivon"),
    ),
)
def test_any_likelihood(name, target, second):
    x, (likelihood, outputs, y) = classes()[0], TARGETS[target]
    posterior = fit(METHODS[name][0], second, mlp(outputs), (x, y), likelihood=likelihood, epochs=1)
    prediction = posterior.predict(x)
    assert prediction.point.device == second
    assert prediction.log_prob(y).isfinite().all()
    assert prediction.sample(3).device == second


@pytest.mark.parametrize("target", TARGETS)
def test_scores_of_any_likelihood(target, second):
    """Which know of the prediction, and of no method."""
    x, (likelihood, outputs, y) = classes()[0], TARGETS[target]
    prediction = fit("map", second, mlp(outputs), (x, y), likelihood=likelihood, epochs=1).predict(x)
    assert score(prediction, y)["nll"] == pytest.approx(float(-prediction.log_prob(y).mean()), rel=1e-4)


@pytest.mark.parametrize("name", ["map", "ivon", "laplace"])
def test_data_may_be_anywhere_and_held_out(name, second):
    method, (x, y) = METHODS[name][0], classes(120)
    there = x.to(second), y.to(second)
    for device in (CPU, second):
        expected = fit(method, device, train=(x, y), val=0.1).predict(x)
        found = fit(method, device, train=there, val=0.1).predict(there[0])
        assert found.probs.device == device
        assert_same(found.probs, expected.probs)
    assert_same(
        fit(method, second, train=(x[:100], y[:100]), val=(x[100:], y[100:])).predict(x).probs,
        fit(method, CPU, train=(x[:100], y[:100]), val=(x[100:], y[100:])).predict(x).probs,
    )


@pytest.mark.parametrize("name", ["map", "ivon", "laplace", "swag"])
def test_scaled_data_in_double_precision(name, second):
    x, y = torch.randn(48, 4, generator=generator()), 5 + 3 * torch.randn(48, generator=generator(1))
    data = br.data.standardize((x, y))
    found, expected = (fit(METHODS[name][0], d, mlp(1).double(), data).predict(x) for d in (second, CPU))
    assert found.mean.dtype == torch.float64
    assert_same(found.mean, expected.mean)


@pytest.mark.parametrize(
    "prior", [br.priors.Laplace(1.0), br.priors.ScaleMixture(), br.priors.GroupLaplace()], ids=repr
)
def test_any_prior(prior, second):
    x = classes()[0]
    found, expected = (fit(METHODS["map"][0], d, prior=prior).predict(x).probs for d in (second, CPU))
    assert_same(found, expected)


# ---- beside the methods ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("solve", ["primal", "dual"])
def test_a_network_as_a_gaussian_process(solve, second):
    x, y = torch.randn(12, 4, generator=generator()), torch.randn(12, generator=generator(1))
    found, expected = (br.gp.from_network(mlp(1).to(d), (x, y), solve=solve) for d in (second, CPU))
    assert_same(found.kernel(x), expected.kernel(x))
    assert_same(found.posterior(x, joint=True).covariance, expected.posterior(x, joint=True).covariance)
    assert_same(found.predict(x).mean, expected.predict(x).mean)
    assert found.log_marginal_likelihood() == pytest.approx(expected.log_marginal_likelihood())


@pytest.mark.filterwarnings("ignore:the network's NLL is")  # it is not trained
@pytest.mark.parametrize("structure", ["diagonal", "kronecker", "dense", "lowrank"])
def test_laplace_of_a_trained_network(structure, second):
    x, _ = classes()
    method = br.methods.Laplace("all", structure)
    found, expected = (fit(method, d, epochs=0).predict(x) for d in (second, CPU))
    assert_same(found.probs, expected.probs)


def test_the_way_to_the_mode(second):
    """Of `br.methods.mode`, which a fit of a length that is left open goes at its end."""
    found = []
    for device in (second, CPU):
        task = br.Task.create(mlp().to(device), classes())
        assert has_mode(task, task.prior, task.model)
        found.append(approach(task, task.prior, task.model, task.likelihood, most=30))
    for name, w in found[0].weights.items():
        assert w.device == second
        assert_same(w, found[1].weights[name])


def test_training_under_autocast_of_the_user(second):
    class Cast(nn.Module):
        def __init__(self):
            super().__init__()
            self.net = mlp()

        def forward(self, x):
            with torch.autocast(x.device.type, dtype=torch.bfloat16):
                return self.net(x).float()

    assert fit(METHODS["ivon"][0], second, Cast()).predict(classes()[0]).probs.isfinite().all()


# ---- planted mistakes ------------------------------------------------------------------------------------------------


def test_a_generator_of_the_cpu_within_a_step_is_caught(second, monkeypatch):
    plain = FlatGroup.draw

    def draw(flat, seed, offset, negative, again):
        flat.room().normal_(generator=torch.Generator().manual_seed(seed))
        plain(flat, seed, offset, negative, again)

    monkeypatch.setattr(FlatGroup, "draw", draw)
    fit(METHODS["ivon"][0], CPU)
    with pytest.raises(RuntimeError, match=r"aten::normal_: a generator of the CPU among tensors of second:0"):
        fit(METHODS["ivon"][0], second)


def test_a_tensor_of_the_cpu_within_a_loss_is_caught(second, monkeypatch):
    log_prob = Categorical.log_prob
    monkeypatch.setattr(Categorical, "log_prob", lambda self, f, y: log_prob(self, f, y) + torch.zeros(len(y)))
    fit(METHODS["map"][0], CPU)
    with pytest.raises(RuntimeError, match="same device"):
        fit(METHODS["map"][0], second)
