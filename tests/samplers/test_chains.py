"""Whether chains have mixed, judged by predictions."""

import json
import math
import sys
import warnings
from pathlib import Path

import pytest
import torch
from networks import classes, mlp
from torch import nn

import bayesrule as br
from bayesrule.likelihoods import Gaussian
from bayesrule.methods import HMC, MCLMC
from bayesrule.posteriors import Chains, Context, Particles
from bayesrule.samplers import ess_bulk

X = torch.linspace(-1, 1, 12)[:, None]


def lines(slopes):
    """Particles of f(x) = slope·x, [C, D] of them, with noise 0.5."""
    model = nn.Linear(1, 1)
    states = [{"weight": s.reshape(1, 1), "bias": torch.zeros(1)} for s in slopes.flatten()]
    chain = torch.arange(len(slopes)).repeat_interleave(slopes.shape[1])
    return Particles(states, Context(model, Gaussian(0.5)), Chains(chain, slopes.flatten()))


def normal(*shape):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(0))


def test_independent_draws_have_mixed():
    found = br.evaluate.chains(lines(normal(4, 250)), X)
    assert found.mixed
    assert found.more == 0
    assert str(found).startswith("mixed: R̂ of predictions is at most ")
    assert 700 < found.least < 1300
    assert found.log_posterior[0] == pytest.approx(found.worst, abs=1e-9)  # here it is the slope itself


def test_chains_apart_have_not_and_no_number_of_draws_is_promised():
    found = br.evaluate.chains(lines(normal(4, 250) + 10 * torch.arange(4.0)[:, None]), X)
    assert not found.mixed
    assert found.more is None
    assert "places of their own" in str(found)
    assert (found.within < 1.05).all()  # each by itself is well


def test_slow_chains_are_told_how_many_more():
    steps, draws = normal(4, 400), []
    for k in range(400):
        draws.append(0.95 * (draws[-1] if draws else 0) + math.sqrt(1 - 0.95**2) * steps[:, k])
    found = br.evaluate.chains(lines(torch.stack(draws, 1)), X)
    assert not found.mixed
    # ESS is 1600 (1 − ρ)/(1 + ρ) = 41 of 400 that are asked for: ten times as many draws, within the scatter of both
    assert 400 < found.more < 12_000
    assert f"About {found.more} more draws" in str(found)


def test_a_chain_that_stands_still_has_not_mixed():
    found = br.evaluate.chains(lines(torch.ones(1, 250)), X)
    assert not found.mixed
    assert math.isnan(found.worst)
    assert found.more is None
    assert str(found) == "not mixed: the chains stand still, and all draws predict the same"


def test_few_draws_tell_nothing():
    found = br.evaluate.chains(lines(normal(2, 3)), X)
    assert not found.mixed
    assert math.isnan(found.worst)
    assert "too few to tell" in str(found)


def test_the_running_density_ends_at_that_of_the_prediction():
    x, y = br.data.sine(seed=0)
    data = br.data.standardize((x, y))
    posterior = br.fit(br.models.mlp(1, 1, hidden=(4,)), data, HMC(chains=2, draws=6, warm_up=6, training=5, leaps=4))
    found = br.evaluate.chains(posterior, x[:50], y[:50])
    wanted = float(posterior.predict(x[:50], samples=12).log_prob(y[:50]).mean())
    assert float(found.density[-1]) == pytest.approx(wanted, rel=1e-4)
    assert len(found.density) == 6
    first = Particles([posterior.states[0], posterior.states[6]], posterior.context)
    assert float(found.density[0]) == pytest.approx(float(first.predict(x[:50]).log_prob(y[:50]).mean()), rel=1e-4)


def test_only_samplers_have_chains():
    posterior = br.fit(mlp(), classes(), "map", epochs=1)
    with pytest.raises(ValueError, match="only the posterior of a sampler has chains, not this Particles"):
        br.evaluate.chains(posterior, classes()[0])
    with pytest.raises(ValueError, match="only the posterior of a sampler has chains"):
        posterior.to_arviz()


def test_what_is_shown_of_a_fit_is_the_misfit_and_not_the_prior():
    """Noise of 0.5 about a line: NLL of about log 0.5 + ½ log 2πe = 0.73, whatever so many weights cost."""
    x = torch.linspace(-1, 1, 200)[:, None]
    y = x[:, 0] + 0.5 * normal(200)
    model = br.models.mlp(1, 1, hidden=(300,))
    posterior = br.fit(model, (x, y), HMC(chains=2, draws=5, warm_up=10), Gaussian(0.5), prior="fan-in")
    last = posterior.info["history"][-1]
    assert 0.5 < last["nll"] < 1.2
    assert last["nll"] + last["penalty"] == pytest.approx(last["loss"], rel=1e-5)


def test_a_fit_warns_of_chains_that_have_not_mixed():
    x, y = classes()
    with pytest.warns(
        UserWarning, match=r"chains have not mixed: R̂ of the log posterior is .* after 8 draws of each"
    ) as told:
        br.fit(mlp(), (x, y), HMC(chains=4, draws=8, warm_up=2, warm_start="none", leaps=2, step=1e-3))
    assert told[0].filename == __file__  # the user's line, not one of the library


def test_export_without_arviz_says_how_to_have_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "arviz", None)
    with pytest.raises(ImportError, match=r"pip install 'bayesrule\[arviz\]'"):
        lines(normal(2, 5)).to_arviz()


@pytest.fixture
def arviz():
    """ArviZ itself, whose news on being imported are no error."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return pytest.importorskip("arviz")


class Named(nn.Module):
    """a·x + b, with parameters called as ArviZ calls its dimensions, one of them a single number."""

    def __init__(self):
        super().__init__()
        self.chain = nn.Parameter(torch.ones(1, 1))
        self.draw = nn.Parameter(torch.zeros(()))

    def forward(self, x):
        return x @ self.chain + self.draw

    def reset_parameters(self):
        with torch.no_grad():
            self.chain.normal_()
            self.draw.normal_()


def test_export_to_arviz(arviz, tmp_path):
    """Weights in the order of chains and draws, and a log posterior of which ArviZ says what the fit does."""
    model, train = mlp().double(), (classes()[0].double(), classes()[1])
    posterior = br.fit(model, train, HMC(chains=3, draws=20, warm_up=20, training=2, leaps=4))
    found = posterior.to_arviz()
    assert set(found.posterior.data_vars) == {name for name, _ in model.named_parameters()}
    for name, p in model.named_parameters():
        assert found.posterior[name].shape == (3, 20, *p.shape)
        for chain, draw in ((0, 0), (0, 19), (2, 3)):
            own = torch.from_numpy(found.posterior[name].values[chain, draw])
            assert torch.equal(own, posterior.states[20 * chain + draw][name])
    said, lp = posterior.info["diagnostics"], found.sample_stats["lp"]
    assert float(arviz.rhat(lp)["lp"]) == pytest.approx(said["r_hat"], abs=1e-4)
    assert float(arviz.ess(lp)["lp"]) == pytest.approx(said["ess"], abs=1e-3)
    assert len(arviz.summary(found)) == sum(p.numel() for p in model.parameters())
    found.to_netcdf(str(tmp_path / "draws.nc"))
    posterior.save(tmp_path / "posterior.safetensors")
    again = br.load(tmp_path / "posterior.safetensors", model).to_arviz()
    for other in (arviz.from_netcdf(str(tmp_path / "draws.nc")), again):
        assert other.posterior.equals(found.posterior)
        assert other.sample_stats.equals(found.sample_stats)


def test_export_to_arviz_of_parameters_called_as_its_dimensions(arviz):
    x = normal(30, 1)
    posterior = br.fit(Named(), (x, x[:, 0]), HMC(chains=2, draws=6, warm_up=4, training=1, leaps=4), Gaussian(0.5))
    found = posterior.to_arviz().posterior
    assert found["chain_"].shape == (2, 6, 1, 1)
    assert found["draw_"].shape == (2, 6)
    assert found["chain"].values.tolist() == [0, 1]
    assert float(found["draw_"][1, 5]) == float(posterior.states[11]["draw"])


METHODS = {
    "hmc": HMC(chains=8, draws=1500, warm_up=600, training=30, leaps=64),
    "mclmc": MCLMC(chains=8, draws=1500, warm_up=300, training=30, thin=60, variance=5e-4, first_variance=5e-3),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", METHODS)
def test_a_small_network_is_as_nuts_has_it(name):
    """Mean and deviation of f at 50 points beside NumPyro's (`nuts.json` says how they were made): within 4 standard
    errors of both, and for mclmc the bias of its steps, 3 % of the deviation."""
    reference = json.loads((Path(__file__).parent / "nuts.json").read_text())
    x, y = torch.tensor(reference["x"])[:, None].double(), torch.tensor(reference["y"]).double()
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(1, 8), nn.Tanh(), nn.Linear(8, 1)).double()
    posterior = br.fit(model, (x, y), METHODS[name], Gaussian(0.2), prior=1.0)
    grid = torch.tensor(reference["grid"])[:, None].double()
    found = br.evaluate.chains(posterior, grid)
    assert found.worst < 1.01
    outputs = posterior.outputs(posterior.inputs(grid), len(posterior.states), torch.Generator())[..., 0]
    mean, deviation = (torch.tensor(reference[key]).double() for key in ("mean", "deviation"))
    own, scatter = outputs.mean(0), outputs.std(0)
    apart = posterior.chains.apart((outputs - own).square())
    error = {
        "mean": torch.hypot(scatter / found.ess_bulk.sqrt(), torch.tensor(reference["mean_error"])),
        "deviation": torch.hypot(
            apart.flatten(0, 1).std(0) / ess_bulk(apart).sqrt() / (2 * scatter),
            torch.tensor(reference["deviation_error"]),
        ),
    }
    slack = 0.03 * deviation if name == "mclmc" else 0.0
    assert ((own - mean).abs() < 4 * error["mean"] + slack).all()
    assert ((scatter - deviation).abs() < 4 * error["deviation"] + slack).all()
