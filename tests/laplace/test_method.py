"""Method "laplace": trained networks as they are, subsets, tuning, what is refused."""

import copy

import pytest
import torch
from covering import first
from torch import nn

import bayesrule as br
from bayesrule.methods import MAP, Laplace
from bayesrule.posteriors import Gaussian, Linearised


def mlp(inputs=2, outputs=2):
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(inputs, 16), nn.Tanh(), nn.Linear(16, outputs))


def trained(epochs=20):
    model = mlp()
    model.load_state_dict(br.fit(model, br.data.moons(seed=0), "map", epochs=epochs).states[0])
    return model


def sinus(n=120, seed=0):
    generator = torch.Generator().manual_seed(seed)
    x = 2 * torch.rand(n, 1, generator=generator) - 1
    return x, torch.sin(3 * x[:, 0]) + 0.1 * torch.randn(n, generator=generator)


@pytest.mark.parametrize("method", [MAP(), Laplace(), br.methods.MLE()])
def test_without_epochs_the_module_is_taken_as_it_is(method, tmp_path):
    model = trained()
    before = copy.deepcopy(model.state_dict())
    posterior = br.fit(model, br.data.moons(seed=0), method, epochs=0, out=tmp_path / "run")
    weights = posterior.mean | posterior.fixed if isinstance(posterior, Gaussian) else posterior.states[0]
    assert all(torch.equal(weights[name], w) for name, w in before.items())
    assert all(torch.equal(w, before[name]) for name, w in model.state_dict().items())
    assert posterior.info["epochs"] == 0
    again = br.load(tmp_path / "run" / "posterior.safetensors", mlp())
    x = torch.randn(5, 2, generator=torch.Generator().manual_seed(0))
    assert torch.equal(again.predict(x).probs, posterior.predict(x).probs)


def test_training_and_then_laplace_is_one_call():
    data = br.data.moons(seed=0)
    one = br.fit(mlp(), data, Laplace(tune="nothing"), epochs=20)
    two = br.fit(trained(), data, Laplace(tune="nothing"), epochs=0)
    x = data[0][:20]
    torch.testing.assert_close(one.predict(x).probs, two.predict(x).probs)


@pytest.mark.parametrize(
    ("subset", "names"),
    [
        ("all", ["0.weight", "0.bias", "2.weight", "2.bias"]),
        ("last-layer", ["2.weight", "2.bias"]),
        (("0.bias", "2"), ["0.bias", "2.weight", "2.bias"]),
        ("0.bias, 2", ["0.bias", "2.weight", "2.bias"]),
        (None, ["2.weight", "2.bias"]),
    ],
)
def test_subsets(subset, names):
    posterior = br.fit(trained(), br.data.moons(seed=0), Laplace(subset), epochs=0)
    assert list(posterior.mean) == names
    assert set(posterior.mean) | set(posterior.fixed) == {"0.weight", "0.bias", "2.weight", "2.bias"}
    draw = next(iter(posterior.draw(1, torch.Generator().manual_seed(0))))
    moved = {name for name, w in draw.items() if not torch.equal(w, (posterior.mean | posterior.fixed)[name])}
    assert moved == set(names)


def test_large_networks_get_their_last_layer():
    model = nn.Sequential(nn.Linear(64, 100), nn.Tanh(), nn.Linear(100, 10))
    posterior = br.fit(model, br.data.load_set("digits").train, Laplace(), epochs=1)
    assert list(posterior.mean) == ["2.weight", "2.bias"]


@pytest.mark.parametrize("epochs", [0, 1])
def test_large_networks_without_a_last_layer_get_all_their_weights(epochs):
    """Those of tables: a linear path around the network, and outputs that are a sum."""
    model = br.models.build({"name": "tabular", "inputs": 4, "outputs": 1, "hidden": [80, 80]}, seed=0)
    x = torch.randn(60, 4, generator=torch.Generator().manual_seed(0))
    posterior = br.fit(model, (x, x[:, 0]), "laplace", "gaussian", epochs=epochs, val=0)
    assert set(posterior.mean) == {name for name, _ in model.named_parameters()}


def test_the_less_is_known_the_wider():
    """Far from the data the tangent is less sure than near them, and less sure than the network."""
    x, y = br.data.moons(seed=0)
    posterior = br.fit(trained(), (x, y), Laplace("all"), epochs=0)
    near, far = posterior.predict(x).epistemic.mean(), posterior.predict(10 * x).epistemic.mean()
    point = br.fit(trained(), (x, y), "map", epochs=0)
    assert far > 3 * near
    assert posterior.predict(10 * x).confidence.mean() < point.predict(10 * x).confidence.mean()


@pytest.mark.parametrize("seed", first([0, 1, 2]))
def test_evidence_finds_the_noise_without_held_out_data(seed):
    """Noise of .1: the estimate from 200 examples has a deviation of 5 %; within five of these."""
    x, y = sinus(200, seed)
    posterior = br.fit(mlp(1, 1), (x, y), Laplace(), epochs=200)
    assert posterior.info["n"] == 200
    assert abs(float(posterior.likelihood.noise) / 0.1 - 1) < 0.25


def test_held_out_data_choose_how_wide_the_posterior_is():
    """It is better for the held-out data than the posterior as it is, under the same prior."""
    x, y = br.data.moons(n=700, seed=0)
    train, val = (x[:200], y[:200]), (x[200:], y[200:])
    model = trained()
    settings = {"epochs": 0, "val": val, "prior": br.priors.Gaussian(30.0)}
    tuned = br.fit(model, train, Laplace("all", tune="held-out"), **settings)
    plain = br.fit(model, train, Laplace("all", tune="nothing"), **settings)
    score, other = (float(q.predict(val[0]).log_prob(val[1]).mean()) for q in (tuned, plain))
    assert score > other
    assert tuned.info["diagnostics"]["prior_scale"] == plain.info["diagnostics"]["prior_scale"]
    spread = tuned.info["diagnostics"]["spread"]
    assert spread == tuned.spread != 1
    torch.testing.assert_close(tuned.precision.dense() * spread, plain.precision.dense())


def test_held_out_data_are_cut_off_where_they_are_needed():
    data = br.data.moons(n=200, seed=0)
    assert br.fit(mlp(), data, Laplace(tune="held-out"), epochs=2).info["n"] == 160
    assert br.fit(mlp(), data, Laplace(tune="evidence"), epochs=2).info["n"] == 200
    assert br.fit(mlp(), data, Laplace(), epochs=2).info["n"] == 160
    assert br.fit(trained(), data, Laplace(), epochs=0).info["n"] == 200
    assert br.fit(mlp(), data, Laplace(tune_every=1), epochs=2).info["n"] == 200
    assert br.fit(mlp(1, 1), sinus(200), Laplace(), epochs=2).info["n"] == 200
    assert br.fit(mlp(1, 1), sinus(200), Laplace(tune="nothing"), epochs=2).info["n"] == 160


def test_the_evidence_grows_when_it_is_looked_at_while_training_and_afterwards():
    x, y = sinus()
    plain = br.fit(mlp(1, 1), (x, y), Laplace("all", tune="nothing"), epochs=60, val=0)
    after = br.fit(mlp(1, 1), (x, y), Laplace("all", precision="layer"), epochs=60)
    during = br.fit(mlp(1, 1), (x, y), Laplace("all", precision="layer", tune_every=5), epochs=60)
    assert during.info["diagnostics"]["log_evidence"] > plain.info["diagnostics"]["log_evidence"]
    assert after.info["diagnostics"]["log_evidence"] > plain.info["diagnostics"]["log_evidence"]
    assert during.info["diagnostics"]["prior_scale"] != after.info["diagnostics"]["prior_scale"]


def test_weights_that_are_drawn_are_those_of_the_gaussian():
    posterior = br.fit(trained(), br.data.moons(seed=0), Laplace("all", predictive="weights"), epochs=0)
    assert type(posterior) is Gaussian
    linear = br.fit(trained(), br.data.moons(seed=0), Laplace("all"), epochs=0)
    assert type(linear) is Linearised
    assert torch.equal(posterior.precision.matrix, linear.precision.matrix)


def test_fallbacks_are_told():
    model = nn.Sequential(nn.Linear(2, 8), nn.LayerNorm(8), nn.Tanh(), nn.Linear(8, 2))
    posterior = br.fit(model, br.data.moons(seed=0), Laplace("all", "kronecker"), epochs=2)
    assert posterior.info["diagnostics"]["fallbacks"] == {"1": "dense: LayerNorm has no Kronecker form"}


def test_a_diagonal_posterior_is_the_prior_of_the_next():
    """Half of the data after the other half: for a linear model with known noise all at once, up to the diagonal."""
    x = torch.eye(4).repeat(6, 1)
    y = torch.randn(24, generator=torch.Generator().manual_seed(0))
    model, noise = nn.Linear(4, 1, bias=False), br.likelihoods.Gaussian(0.5)
    method = Laplace("all", "diagonal", tune="nothing", lr=0.1)
    fit = {"likelihood": noise, "epochs": 400, "batch_size": 12}
    first = br.fit(model, (x[:12], y[:12]), method, prior=br.priors.Gaussian(1.0), **fit)
    both = br.fit(model, (x[12:], y[12:]), method, prior=first.as_prior(), **fit)
    whole = br.fit(model, (x, y), method, prior=br.priors.Gaussian(1.0), **fit)
    torch.testing.assert_close(both.precision.values, whole.precision.values)
    torch.testing.assert_close(both.mean["weight"], whole.mean["weight"], atol=2e-3, rtol=0)


@pytest.mark.parametrize(
    ("build", "match"),
    [
        (lambda: Laplace(structure="kron"), "unknown structure of laplace 'kron': did you mean 'kronecker'"),
        (lambda: Laplace(labels="sample"), "unknown labels of laplace 'sample': did you mean 'sampled'"),
        (lambda: Laplace(tune="marglik"), "unknown tune of laplace 'marglik'"),
        (lambda: Laplace(precision="scalar"), "unknown precision of laplace 'scalar'"),
        (lambda: Laplace(predictive="glm"), "unknown predictive of laplace 'glm'"),
        (lambda: Laplace(tune_every=-1), "tune_every must be a whole number of at least 0, not -1"),
        (lambda: Laplace(tune_every=2, tune="nothing"), "0 unless the evidence tunes, not 2 with tune='nothing'"),
        (lambda: Laplace(tune="held-out", precision="layer"), "precision must be 'one' where held-out data tune, not"),
        (lambda: Laplace(rank=2.5), "rank must be a whole number of at least 1, not 2.5"),
        (lambda: Laplace(subset=()), "subset must name at least one parameter or layer, not none"),
        (lambda: Laplace(rank=0), "rank must be a whole number of at least 1, not 0"),
    ],
)
def test_settings_that_are_refused(build, match):
    with pytest.raises(ValueError, match=match):
        build()


@pytest.mark.parametrize(
    ("settings", "match"),
    [
        ({"prior": br.priors.Flat()}, "the prior must be Gaussian here, not 'flat'"),
        ({"prior": br.priors.Laplace()}, "the prior must be Gaussian here, not 'laplace'"),
        ({"method": Laplace(("3",))}, "unknown parameter or layer '3'"),
    ],
)
def test_tasks_that_are_refused(settings, match):
    with pytest.raises(ValueError, match=match):
        br.fit(trained(), br.data.moons(seed=0), **{"method": Laplace("all", "kronecker"), "epochs": 0} | settings)


def test_a_network_that_diverged_is_refused_by_layer():
    model = mlp()
    with torch.no_grad():
        model[2].bias[0] = float("nan")
    with pytest.raises(ValueError, match=r"parameter '2\.bias' of the model holds NaN"):
        br.fit(model, br.data.moons(seed=0), Laplace(), epochs=0)


def test_a_likelihood_without_a_second_derivative_is_refused():
    class Absolute(br.likelihoods.Gaussian):
        name = "absolute"

        def hessian(self, outputs):
            return torch.full((*outputs.shape, outputs.shape[1]), float("nan"))

    with pytest.raises((ValueError, FloatingPointError), match=r"hessian|Hessian"):
        br.fit(mlp(1, 1), sinus(), Laplace(), Absolute(0.1), epochs=0)


def test_a_matrix_that_is_too_large_is_refused():
    model = nn.Sequential(nn.Linear(2, 100_000), nn.ReLU(), nn.Linear(100_000, 2))
    with pytest.raises(MemoryError, match=r"only .* GB are free: .*structure='kronecker' or 'diagonal'"):
        br.fit(model, br.data.moons(n=20, seed=0), Laplace("all", "dense"), epochs=0)
