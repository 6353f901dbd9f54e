"""Temperatures by name: the cold posterior, and the one that balances a wide network."""

import json

import pytest
import torch
from networks import classes, generator, mlp
from torch import nn

import bayesrule as br
from bayesrule import cli, modules, temperatures
from bayesrule.estimators import BayesianClassifier
from bayesrule.methods import BBB, IVON, MAP, Ensemble, Laplace
from bayesrule.training import Folder, belief

DOUBLE = torch.float64
X, Y = classes()
NOISE, SCALE = 0.6, 0.8


def linear_data(n=40):
    x = torch.randn(n, 3, generator=generator(0), dtype=DOUBLE)
    return x, x @ torch.tensor([1.0, -2.0, 0.5], dtype=DOUBLE) + NOISE * torch.randn(n, generator=generator(1)).double()


def fitted(method, temperature, epochs=0, **settings):
    """A linear model of known noise: its posterior is exact in closed form."""
    torch.manual_seed(0)
    model = nn.Linear(3, 1, bias=False, dtype=DOUBLE)
    likelihood, prior = br.likelihoods.Gaussian(NOISE), br.priors.Gaussian(SCALE)
    return br.fit(model, linear_data(), method, likelihood, prior, temperature, epochs, 40, **settings)


def exact_precision():
    x, _ = linear_data()
    return x.T @ x / NOISE**2 + torch.eye(3, dtype=DOUBLE) / SCALE**2


@pytest.mark.parametrize("T", [0.1, 0.5, 1.0, 3.0])
def test_the_cold_posterior_of_a_linear_model(T):
    """(L·p)^{1/T} of a Gaussian posterior has the same mean and T times its covariance."""
    cold = fitted(Laplace("all", "dense", tune="nothing"), br.Cold(T))
    torch.testing.assert_close(cold.precision.dense(), exact_precision() / T)


def test_the_mode_of_a_cold_posterior_is_that_of_bayes():
    x, y = linear_data()
    mode = torch.linalg.solve(exact_precision(), x.T @ y / NOISE**2)
    cold = fitted(MAP(lr=0.1), br.Cold(0.05), epochs=600)
    torch.testing.assert_close(cold.states[0]["weight"][0], mode, rtol=1e-6, atol=1e-8)
    tempered = fitted(MAP(lr=0.1), 0.05, epochs=600)  # L^{20}·p: nearer to the data than L·p
    assert not torch.allclose(tempered.states[0]["weight"][0], mode, rtol=1e-3)


@pytest.mark.parametrize("method", [BBB(), IVON()], ids=["bbb", "ivon"])
def test_the_cold_posterior_of_variational_methods(method):
    """The best mean-field q has the precisions of the diagonal, T times as wide."""
    cold = fitted(method, br.Cold(0.25), epochs=2000)
    expected = (0.25 / exact_precision().diagonal()).sqrt()
    torch.testing.assert_close(cold.std["weight"][0], expected, rtol=0.15, atol=0)


PRIORS = {
    "gaussian": br.priors.Gaussian(0.7),
    "laplace": br.priors.Laplace(0.4),
    "group-laplace": br.priors.GroupLaplace("fan-in"),
    "flat": br.priors.Flat(),
    "structured": br.priors.Structured(
        {"weight": torch.ones(1, 2, dtype=DOUBLE), "bias": torch.zeros(1, dtype=DOUBLE)},
        br.structures.Dense(torch.tensor([[2.0, 1.0, 0.0], [1.0, 3.0, 0.5], [0.0, 0.5, 1.0]], dtype=DOUBLE)),
    ),
}


@pytest.mark.parametrize("name", PRIORS)
def test_a_tempered_prior_is_its_density_to_the_power(name):
    """log p^{1/T}(a) − log p^{1/T}(b) = (log p(a) − log p(b))/T for any two points."""
    layer = nn.Linear(2, 1).double()
    prior = PRIORS[name].resolve(layer)
    points = []
    for seed in range(2):
        flat = torch.randn(3, generator=generator(seed), dtype=DOUBLE)
        points.append(modules.unflatten(flat, modules.parameters(layer)))
    plain = prior.log_prob(points[0]) - prior.log_prob(points[1])
    cold = prior.tempered(0.3)
    torch.testing.assert_close(cold.log_prob(points[0]) - cold.log_prob(points[1]), plain / 0.3)


@pytest.mark.parametrize("name", ["gaussian", "laplace"])
def test_a_tempered_prior_is_normalised(name):
    layer = nn.Linear(1, 1, bias=False).double()
    cold = PRIORS[name].resolve(layer).tempered(0.2)
    grid = torch.linspace(-5, 5, 4001, dtype=DOUBLE)
    density = torch.stack([cold.log_prob({"weight": w.reshape(1, 1)}).exp() for w in grid])
    assert float(torch.trapezoid(density, grid)) == pytest.approx(1, abs=1e-3)


def test_a_prior_without_a_power_is_refused():
    with pytest.raises(ValueError, match="the prior 'scale-mixture' does not have: take a Gaussian or Laplace prior"):
        br.fit(mlp(), (X, Y), "bbb", prior="scale-mixture", temperature=br.Cold(0.5), epochs=1)


def test_a_cold_fit_settles_the_prior_as_one_at_temperature_one(monkeypatch):
    """Its networks are at modes, which no T moves; and the prior that they settle is tempered."""
    monkeypatch.setattr(belief, "FEWEST", 20)
    few, settings = classes(60), {"epochs": 40, "batch_size": 16, "prior": None}
    bayes = br.fit(mlp(), few, "map", **settings)
    cold = br.fit(mlp(), few, "map", temperature=br.Cold(0.1), **settings)
    assert bayes.info["prior"]["settled"]["scale"] is not None
    for told in (bayes.info["prior"]["settled"], cold.info["prior"]["settled"]):
        assert told["held_out_nll"] == pytest.approx(bayes.info["prior"]["settled"]["held_out_nll"])
    for name, w in bayes.states[0].items():
        torch.testing.assert_close(cold.states[0][name], w, rtol=1e-3, atol=1e-4)


def test_balanced_counts_examples_and_parameters():
    """η = τ·p/N of the examples that are trained on: those held out do not count."""
    task = br.Task.create(nn.Linear(3, 1), linear_data(200), temperature=br.Balanced(0.5))
    assert task.temperature == 0.5 * 200 / 4
    posterior = br.fit(nn.Linear(3, 1).double(), linear_data(200), "map", temperature=br.Balanced(0.5), epochs=1)
    assert posterior.info["n"] == 160
    assert posterior.info["temperature"] == 0.5 * 160 / 4
    assert posterior.info["tempering"]["says"] == "η = τ·p/N = 0.5·160/4 = 20, N the number of parameters"
    frozen = nn.Sequential(nn.Linear(3, 5), nn.Linear(5, 1))
    frozen[0].requires_grad_(False)
    assert br.Balanced().resolve(frozen, 12) == 12 / 6


def test_weights_of_examples_count_for_balanced():
    x, y = linear_data(20)
    task = br.Task.create(nn.Linear(3, 1), (x, y, torch.full((20,), 3.0)), temperature=br.Balanced())
    assert task.temperature == 60 / 4


def test_each_target_of_an_example_counts():
    """A picture whose pixels are labelled is as many examples as it has pixels, and no cold posterior is needed."""
    x, y = torch.randn(5, 1, 4, 4), torch.zeros(5, 4, 4, dtype=torch.long)
    network = nn.Conv2d(1, 2, 3, padding=1)
    assert br.Task.create(network, (x, y), temperature=br.Balanced()).temperature == 5 * 16 / 20
    assert br.Task.create(network, (x, y), temperature=br.Cold()).temperature == 1
    one = br.Task.create(
        nn.Sequential(network, nn.AdaptiveAvgPool2d(1), nn.Flatten()), (x, y[:, 0, 0]), temperature="cold"
    )
    assert one.temperature == 5 / 20


@pytest.mark.parametrize("temperature", [br.Balanced(2.0), br.Balanced(3.0, count="neurons")])
def test_a_balanced_fit_is_one_at_its_number(temperature):
    eta = temperature.resolve(mlp(), len(X))
    named = br.fit(mlp(), (X, Y), "bbb", temperature=temperature, epochs=3)
    number = br.fit(mlp(), (X, Y), "bbb", temperature=eta, epochs=3)
    assert torch.equal(named.predict(X).probs, number.predict(X).probs)


def test_a_temperature_by_name_survives_a_resume_and_a_file(tmp_path, monkeypatch):
    def died(self, posterior):
        raise InterruptedError

    for index, temperature in enumerate((br.Cold(0.3), br.Balanced(0.2, count="neurons"))):
        folder = tmp_path / str(index)
        whole = br.fit(mlp(), (X, Y), "bbb", temperature=temperature, epochs=3)
        with monkeypatch.context() as patch:
            patch.setattr(Folder, "finish", died)
            with pytest.raises(InterruptedError):
                br.fit(mlp(), (X, Y), "bbb", temperature=temperature, epochs=3, out=folder)
        resumed = br.resume(folder, mlp(), (X, Y))
        assert torch.equal(resumed.predict(X).probs, whole.predict(X).probs)
        loaded = br.load(folder / "posterior.safetensors", mlp())
        assert loaded.info["tempering"] == whole.info["tempering"]
        assert temperatures.from_spec({k: loaded.info["tempering"][k] for k in ("name", "fields")}) == temperature


def test_an_estimator_keeps_a_temperature_by_name(tmp_path):
    estimator = BayesianClassifier("map", temperature=br.Cold(0.3), epochs=1, random_state=0).fit(X.numpy(), Y.numpy())
    estimator.save(tmp_path / "estimator.safetensors")
    loaded = BayesianClassifier.load(tmp_path / "estimator.safetensors")
    assert loaded.temperature == br.Cold(0.3)


def test_the_command_line_takes_temperatures_by_name(tmp_path, capsys):
    line = "fit moons --method map --epochs 1 --temperature"
    assert cli.main([*line.split(), "balanced:0.5", "--out", str(tmp_path / "run")]) == 0
    assert json.loads((tmp_path / "run/run.json").read_text())["settings"]["temperature"] == "balanced:0.5"
    assert br.load_run(tmp_path / "run").posterior.info["tempering"]["fields"] == {"tau": 0.5, "count": "parameters"}
    for wrong, says in {"cold:0": "T must be positive", "warm:1": "unknown temperature", "cold:1:2": "cold:T"}.items():
        assert cli.main([*line.split(), wrong]) != 0
        assert says in capsys.readouterr().err


@pytest.mark.parametrize("temperature", [br.Cold(0.25), br.Balanced(0.1), br.Balanced(3.0, count="neurons")], ids=str)
def test_how_a_temperature_is_spelt(temperature):
    assert temperatures.choose(str(temperature)) == temperature


CONVOLUTION = nn.Sequential(nn.Conv2d(1, 2, 3), nn.Flatten(), nn.Linear(8, 2))
WRONG = [
    (lambda: br.Balanced(0.0), "tau must be positive and finite, not 0.0"),
    (lambda: br.Balanced(-1), "tau must be positive and finite, not -1"),
    (lambda: br.Cold(0), "T must be positive and finite, not 0"),
    (lambda: br.Cold(float("nan")), "T must be positive and finite, not nan"),
    (lambda: br.Balanced(count="neuron"), "unknown count 'neuron': did you mean 'neurons'"),
    (
        lambda: br.Balanced(count="neurons").resolve(nn.Linear(2, 1), 9),
        "needs a hidden layer, and the network has none",
    ),
    (lambda: br.Balanced(count="neurons").resolve(br.models.mlp(2, 1, (4, 5)), 9), r"the network has \[4, 5\] neurons"),
    (lambda: br.Balanced(count="neurons").resolve(CONVOLUTION, 9), "and this one has a Conv2d: take br.Balanced"),
    (lambda: temperatures.choose("balanced:a"), "must have a number after the colon, not 'a'"),
    (lambda: temperatures.choose("-2"), "temperature must be positive and finite, not -2"),
    (lambda: temperatures.choose("cold:1:2"), "cold:T, balanced:TAU or balanced:TAU:COUNT, not 'cold:1:2'"),
]


@pytest.mark.parametrize(("ask", "says"), WRONG, ids=[says for _, says in WRONG])
def test_bad_temperatures(ask, says):
    with pytest.raises(ValueError, match=says):
        ask()


def test_a_temperature_of_another_type():
    with pytest.raises(TypeError, match=r"temperature must be a positive number, br.Cold\(T\) or .*, not list"):
        br.Task.create(mlp(), (X, Y), temperature=[1.0])


def test_cold_by_the_size_of_the_network():
    """T = p/N, at most 1, of the examples that are trained on; the prior is tempered by the same T."""
    few, many = linear_data(2), linear_data(40)
    assert br.Cold().resolve(nn.Linear(3, 1), 2) == 0.5
    assert br.Task.create(nn.Linear(3, 1).double(), many, temperature=br.Cold()).temperature == 1
    task = br.Task.create(nn.Linear(3, 1).double(), few, prior=2.0, temperature="cold")
    at = {"weight": torch.ones(1, 3, dtype=DOUBLE), "bias": torch.ones(1, dtype=DOUBLE)}
    centre = {name: torch.zeros_like(w) for name, w in at.items()}
    # −log N(1; 0, T·2²) + log N(0; 0, T·2²) = 1/(2·T·2²) of each of four weights, T = 1/2
    assert float(task.prior.log_prob(centre) - task.prior.log_prob(at)) == pytest.approx(4 / (2 * 0.5 * 4))
    smaller = task.with_data(task.data.take(torch.arange(1)))
    assert smaller.temperature == 0.25
    assert float(smaller.prior.log_prob(centre) - smaller.prior.log_prob(at)) == pytest.approx(4 / (2 * 0.25 * 4))


@pytest.mark.parametrize("method", ["bbb", "ivon", "vogn", "von", "vadam"])
def test_a_variational_fit_is_cold_where_prior_and_temperature_are_left_open(method):
    network = mlp()
    weights = sum(w.numel() for w in network.parameters())
    few = (X[: weights // 2], Y[: weights // 2])
    fitted = br.fit(network, few, method, epochs=1)
    assert fitted.info["temperature"] == pytest.approx(len(few[1]) / weights)
    assert f"{weights} parameters" in fitted.info["tempering"]["says"]
    assert br.fit(network, few, method, prior=1.0, epochs=1).info["temperature"] == 1
    assert br.fit(network, few, method, temperature=1.0, epochs=1).info["temperature"] == 1


def test_methods_that_are_not_variational_stay_at_one():
    for method in ("map", "laplace", Ensemble(2), "swag", "ogn"):
        assert br.fit(mlp(), (X[:20], Y[:20]), method, epochs=1).info["temperature"] == 1
    assert br.fit(mlp(), (X[:20], Y[:20]), Ensemble(2, IVON()), epochs=1).info["temperature"] < 1


def test_an_example_counts_what_it_counted_in_the_posterior_that_is_the_prior():
    first = br.fit(mlp(), (X[:20], Y[:20]), "ivon", epochs=1)
    second = br.fit(mlp(), (X[20:40], Y[20:40]), "bbb", prior=first, epochs=1)
    assert second.info["temperature"] == first.info["temperature"] < 1
    assert br.fit(mlp(), (X[20:40], Y[20:40]), "bbb", prior=first, temperature=1.0, epochs=1).info["temperature"] == 1
