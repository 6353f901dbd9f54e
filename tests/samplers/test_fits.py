"""Samplers as methods: exact posteriors of linear models, errors, files."""

import math
from dataclasses import dataclass, replace
from typing import ClassVar

import pytest
import torch
from networks import classes, mlp, zoo
from torch import nn

import bayesrule as br
from bayesrule.jobs import threads
from bayesrule.likelihoods import Gaussian
from bayesrule.methods import HMC, LMC, MALA, MCLMC, SGHMC, SGLD, Ensemble, Noise, Plan
from bayesrule.methods.log_posterior import LogPosterior
from bayesrule.methods.sampling_limits import check_processes
from bayesrule.methods.symmetric import SymmetricPasses
from bayesrule.training import Diverged, EarlyStopping, Folder

LIMIT = 4.5  # standard errors, between 20 chains: a right sampler is beyond it once in 4000 times
NOISE = 0.5


def table(rows=30):
    g = torch.Generator().manual_seed(3)
    x = torch.randn(rows, 2, generator=g, dtype=torch.float64)
    return x, x @ torch.tensor([1.0, -2.0]).double() + NOISE * torch.randn(rows, generator=g, dtype=torch.float64)


def line():
    torch.manual_seed(0)
    return nn.Linear(2, 1).double()


def exact(x, y, temperature=1.0, noise=NOISE):
    """The mean and covariance of weights and bias under N(0, 1), of L^(1/η)·p."""
    design = torch.cat([x, torch.ones(len(x), 1).double()], 1)
    precision = design.T @ design / (noise**2 * temperature) + torch.eye(3).double()
    return torch.linalg.solve(precision, design.T @ y / (noise**2 * temperature)), precision.inverse()


def draws(posterior):
    """[C, D, 3]"""
    rows = torch.stack([torch.cat([s["weight"].flatten(), s["bias"]]) for s in posterior.states])
    return posterior.chains.apart(rows)


def z_scores(found, mean, covariance):
    """Of means and second moments, by their scatter between chains."""
    off = found - mean
    squares = torch.einsum("cdi,cdj->cij", off, off) / found.shape[1] - covariance
    both = torch.cat([off.mean(1), squares.flatten(1)], 1)
    return both.mean(0) / (both.std(0) / math.sqrt(len(both)))


EXACT = {
    "hmc": HMC(chains=20, draws=100, warm_up=100, training=5, leaps=8),
    "mala": MALA(chains=20, draws=100, warm_up=50, training=5, thin=10),
    "mclmc": MCLMC(chains=20, draws=100, warm_up=60, training=5, thin=10, variance=1e-5, first_variance=1e-4),
}


@pytest.mark.parametrize("temperature", [1.0, 4.0])
@pytest.mark.parametrize("name", EXACT)
def test_the_posterior_of_a_line_at_any_temperature(name, temperature):
    x, y = table()
    posterior = br.fit(line(), (x, y), EXACT[name], Gaussian(NOISE), prior=1.0, temperature=temperature)
    assert z_scores(draws(posterior), *exact(x, y, temperature)).abs().max() < LIMIT
    assert posterior.info["diagnostics"]["draws"] == 100
    assert len(posterior.info["history"]) == sum(EXACT[name].lengths())


@pytest.mark.slow
def test_a_prior_that_is_no_product_of_normals_is_that_prior():
    """A Laplace posterior with a dense precision as the prior of the second half of the data: as if all were one."""
    x, y = table()
    first = br.methods.Laplace("all", "dense", tune="nothing", predictive="weights")
    past = br.fit(line(), (x[:15], y[:15]), first, Gaussian(NOISE), prior=1.0, val=0)
    posterior = br.fit(line(), (x[15:], y[15:]), EXACT["hmc"], prior=past)
    assert z_scores(draws(posterior), *exact(x, y)).abs().max() < LIMIT


def test_unknown_noise_is_sampled_with_the_weights():
    """E[σ²|D] by quadrature over log σ, with its prior N(u₀, 3²): to 5 %."""
    x, y = table()
    posterior = br.fit(line(), (x, y), replace(EXACT["hmc"], draws=200), prior=1.0)
    start = float(br.Task.create(line(), (x, y), prior=1.0).likelihood.unknowns()["log_noise"])
    logs = torch.linspace(-3, 2, 2001).double()
    design = torch.cat([x, torch.ones(len(x), 1).double()], 1)
    evidence = []
    for u in logs.tolist():
        covariance = design @ design.T + math.exp(2 * u) * torch.eye(len(x)).double()
        law = torch.distributions.MultivariateNormal(torch.zeros(len(x)).double(), covariance)
        evidence.append(law.log_prob(y) - 0.5 * ((u - start) / 3) ** 2)
    share = torch.stack(evidence).softmax(0)
    assert float(posterior.likelihood.noise) ** 2 == pytest.approx(float((share * (2 * logs).exp()).sum()), rel=0.05)


@pytest.mark.slow
def test_mini_batches_make_sgld_wider_and_symmetric_passes_hardly():
    """Variances over the exact ones, in the mean over three weights."""
    x, y = table(40)
    mean, covariance = exact(x, y)
    settings = {"chains": 20, "draws": 100, "thin": 20, "warm_up": 20, "training": 200}
    ratios = {}
    for name, method in {
        "sgld": SGLD(**settings, sampling_lr=0.15),
        "there and back": SGHMC(**settings, sampling_lr=0.002, momentum=0.9, symmetric=True),
    }.items():
        found = draws(br.fit(line(), (x, y), method, Gaussian(NOISE), prior=1.0, batch_size=10))
        ratios[name] = float((found - mean).square().mean((0, 1)).div(covariance.diagonal()).mean())
    assert ratios["sgld"] > 1.1
    assert 0.95 < ratios["there and back"] < 1.05


def test_a_posterior_remembers_its_chains(tmp_path):
    method = HMC(chains=3, draws=5, warm_up=2, training=2, leaps=4)
    posterior = br.fit(mlp(), classes(), method)
    posterior.save(tmp_path / "p")
    again = br.load(tmp_path / "p", mlp(seed=1))
    assert again.chains.chain.tolist() == [0] * 5 + [1] * 5 + [2] * 5
    assert torch.equal(again.chains.log_posterior, posterior.chains.log_posterior)
    assert posterior.predict(classes()[0], samples=15).samples == 15
    task = br.Task.create(mlp(), classes())
    density = LogPosterior(task, 15).of(task.data.all())
    rows = torch.stack([br.modules.flatten({k: s[k] for k in posterior.states[0]}) for s in posterior.states])
    torch.testing.assert_close(density(rows)[0], posterior.chains.log_posterior, rtol=1e-4, atol=1e-3)


@pytest.mark.parametrize("chains", [{"chain": [0, 0, 1]}, {"chain": [0, 1]}, {"chain": [-1, 0, 0, 0]}])
def test_files_whose_chains_do_not_fit_are_refused(chains):
    posterior = br.fit(mlp(), classes(), HMC(chains=2, draws=2, warm_up=2, training=2, leaps=4))
    chain = torch.tensor(chains["chain"])
    other = br.posteriors.Chains(chain, torch.zeros(len(chain)))
    with pytest.raises(ValueError, match="chains must have"):
        br.posteriors.Particles(posterior.states, posterior.context, other).verify()


class Stopped(Exception):
    pass


@pytest.mark.parametrize("cut", [3, 9, 14])
@pytest.mark.parametrize("method", [HMC(chains=2, leaps=4), SGHMC(chains=2, symmetric=True)], ids=lambda m: m.name)
def test_a_fit_that_is_cut_in_training_warm_up_or_draws_goes_on_to_the_bit(method, cut, tmp_path):
    method = replace(method, draws=8, warm_up=6, training=4, thin=1)
    settings = {"epochs": 18} if method.full_batch else {"epochs": 6, "batch_size": 16}

    def stop(progress):
        if progress.step == cut:
            raise Stopped

    with pytest.raises(Stopped):
        br.fit(mlp(), classes(), method, callbacks=[stop], out=Folder(tmp_path, interval=0.0), **settings)
    resumed = br.resume(tmp_path, mlp(seed=1), classes())
    whole = br.fit(mlp(), classes(), method, **settings)
    for found, wanted in zip(resumed.states, whole.states, strict=True):
        assert all(torch.equal(found[name], wanted[name]) for name in wanted)
    assert resumed.info["diagnostics"] == whole.info["diagnostics"]


# ---- one density, three ways -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["plain", "shared, unused and frozen", "tuple inputs", "batch norm", "segmentation"])
def test_all_ways_to_run_networks_give_the_same(kind):
    model, data = zoo()[kind]
    task = br.Task.create(model, data, prior=br.priors.Laplace(1.0) if kind == "plain" else 1.0)
    density = LogPosterior(task, 3)
    rows = density.start(task.model) + 0.1 * torch.randn(3, density.total, generator=torch.Generator().manual_seed(0))
    found = {}
    for way in {density.networks.way, "vmap", "loop"}:
        density.networks.way = way
        found[way] = density.of(task.data.all())(rows)
    for value, slope in found.values():
        torch.testing.assert_close(value, found["loop"][0], rtol=1e-4, atol=1e-3)
        torch.testing.assert_close(slope, found["loop"][1], rtol=1e-3, atol=1e-3)


def test_networks_of_linear_layers_are_run_as_products():
    task = br.Task.create(br.models.mlp(4, 3, hidden=(5, 5)), classes())
    assert LogPosterior(task, 2).networks.way == "products"


def pictures(count=24):
    generator = torch.Generator().manual_seed(0)
    return torch.randn(count, 1, 16, 16, generator=generator), torch.randint(10, (count,), generator=generator)


def lenet(seed=0):
    return br.models.build({"name": "lenet5", "channels": 1, "side": 16, "outputs": 10}, seed)


def test_large_networks_with_convolutions_are_run_one_after_the_other():
    """Small ones are not: there `torch.vmap` is as quick, or quicker."""
    large, small = lenet(), nn.Sequential(nn.Conv2d(1, 2, 5), nn.Flatten(), nn.Linear(288, 10))
    assert LogPosterior(br.Task.create(large, pictures()), 2).networks.way == "loop"
    assert LogPosterior(br.Task.create(small, pictures()), 2).networks.way == "vmap"


@pytest.fixture
def one_thread():
    with threads(1):
        yield


def resumed(method, data, cut, folder):
    """A fit that was cut after so many steps, and went on."""

    def stop(progress):
        if progress.step == cut:
            raise Stopped

    with pytest.raises(Stopped):
        br.fit(lenet(), data, method, callbacks=[stop], out=Folder(folder, interval=0.0), prior=1.0)
    return br.resume(folder, lenet(seed=1), data)


CUTS = [pytest.param(None, id="whole"), pytest.param(3, id="cut in the warm-up", marks=pytest.mark.slow)]


@pytest.mark.parametrize("cut", CUTS)
@pytest.mark.parametrize(
    "method", [HMC(leaps=2), pytest.param(SGHMC(), marks=pytest.mark.slow)], ids=lambda method: method.name
)
@pytest.mark.filterwarnings("ignore:chains have not mixed")
def test_chains_in_processes_are_those_of_one_to_the_bit(method, cut, tmp_path, one_thread, monkeypatch):
    """In several pieces of data; those of one process are not cut."""
    monkeypatch.setattr("bayesrule.methods.log_posterior.ROWS", 30)  # ten examples of each of three chains
    method = replace(method, chains=3, draws=2, warm_up=2, training=2, thin=1)
    data = pictures()
    wanted = br.fit(lenet(), data, method, prior=1.0)
    if cut is None:
        found = br.fit(lenet(), data, replace(method, processes=2), prior=1.0)
    else:
        found = resumed(replace(method, processes=2), data, cut, tmp_path)
    assert (wanted.info["diagnostics"]["way"], found.info["diagnostics"]["way"]) == ("loop", "processes")
    for one, other in zip(found.states, wanted.states, strict=True):
        assert all(torch.equal(one[name], other[name]) for name in other)
    assert torch.equal(found.chains.log_posterior, wanted.chains.log_posterior)


def test_small_networks_stay_one_batch_however_many_processes_there_are():
    posterior = br.fit(mlp(), classes(), HMC(chains=2, draws=2, warm_up=2, training=2, leaps=2, processes=2))
    assert posterior.info["diagnostics"]["way"] == "products"


def test_processes_where_there_are_others_are_refused(monkeypatch):
    with pytest.raises(ValueError, match="processes must be a whole number of at least 1, not 0"):
        HMC(processes=0)
    monkeypatch.setattr("bayesrule.methods.sampling_limits.processes.count", lambda: 2)
    with pytest.raises(ValueError, match="processes must be 1 under torchrun, not 3: its 2 processes share the data"):
        check_processes(HMC(processes=3), br.Task.create(mlp(), classes()))


def test_the_data_of_processes_count_as_memory(monkeypatch):
    task = br.Task.create(mlp(), classes())
    monkeypatch.setattr("bayesrule.methods.sampling_limits.MOST", 2**20)
    few = {"chains": 2, "draws": 2}
    br.fit(mlp(), classes(), HMC(**few, warm_up=1, training=1, leaps=2))
    with pytest.raises(MemoryError, match="or fewer processes, each of which has the data"):
        HMC(**few, processes=2000).start(task, Plan(1, 1, 1), Noise.on(task.device))


def test_memory_is_asked_before_the_prior_is_settled(monkeypatch):
    def settle(*args, **kwargs):
        raise AssertionError

    monkeypatch.setattr("bayesrule.training.belief.settle", settle)
    with pytest.raises(MemoryError, match="keeps 5000 draws of 8 chains"):
        br.fit(br.models.mlp(4, 3, hidden=(100, 400)), classes(), HMC(chains=8, draws=5000))


@pytest.mark.parametrize(("step", "shorter"), [(1e6, 1e5), (5.0, None)])
def test_a_step_that_the_energy_does_not_survive_is_refused_with_one_to_try(step, shorter):
    method = MCLMC(chains=2, draws=4, warm_up=2, training=3, thin=5, step=step)
    with pytest.raises(Diverged, match=r"steps of mclmc went beyond all bounds at step=.*: try step=") as refused:
        br.fit(mlp(), classes(), method, prior=1.0)
    tried = float(str(refused.value).rpartition("=")[2])
    if shorter is not None:
        assert tried == shorter
        return
    posterior = br.fit(mlp(), classes(), replace(method, step=tried), prior=1.0)
    assert max(posterior.info["diagnostics"]["energy_variance"]) < 10


def test_weights_of_examples_count_as_repetitions():
    x, y = table()
    times = torch.arange(len(y)) % 3
    rows = torch.randn(2, 3, generator=torch.Generator().manual_seed(0)).double()
    weighted = br.Task.create(line(), (x, y, times.double()), Gaussian(NOISE), 1.0)
    repeated = br.Task.create(
        line(), (x.repeat_interleave(times, 0), y.repeat_interleave(times, 0)), Gaussian(NOISE), 1.0
    )
    found, wanted = (LogPosterior(task, 2).of(task.data.all())(rows) for task in (weighted, repeated))
    torch.testing.assert_close(found[0], wanted[0])
    torch.testing.assert_close(found[1], wanted[1])


def test_batches_in_pieces_are_the_whole(monkeypatch):
    x, y = table()
    task = br.Task.create(line(), (x, y), Gaussian(NOISE), 1.0)
    rows = torch.randn(2, 3, generator=torch.Generator().manual_seed(0)).double()
    whole = LogPosterior(task, 2).of(task.data.all())(rows)
    monkeypatch.setattr("bayesrule.methods.log_posterior.ROWS", 14)
    parts = LogPosterior(task, 2).of(task.data.all())(rows)
    torch.testing.assert_close(parts[0], whole[0])
    torch.testing.assert_close(parts[1], whole[1])


@pytest.mark.parametrize(("rows", "count"), [(30, 1), (31, 2), (32, 3), (2, 3)])
def test_every_example_counts_once_however_many_processes_there_are(monkeypatch, rows, count):
    """Shares are as long as each other, so that some examples are there twice where they do not suffice."""
    x, y = table(rows)
    task = br.Task.create(line(), (x, y), Gaussian(NOISE), prior=1.0)
    density = LogPosterior(task, chains=2)
    at = torch.stack([density.start(task.model), density.start(task.model) + 0.1])
    batch = next(task.ordered(rows))
    wanted, slope = density.of(batch)(at)
    monkeypatch.setattr("bayesrule.processes.count", lambda: count)
    monkeypatch.setattr("bayesrule.processes.average", lambda tensors: None)
    found = []
    for rank in range(count):
        monkeypatch.setattr("bayesrule.processes.rank", lambda rank=rank: rank)
        found.append(density.of_all(batch.share(rank, count))(at))
    assert torch.allclose(sum(value for value, _ in found) / count, wanted)
    assert torch.allclose(sum(own for _, own in found) / count, slope)


def test_symmetric_passes_go_there_and_back():
    x, y = table(10)
    passes = SymmetricPasses(br.Task.create(line(), (x, y), prior=1.0), 3, seed=5)
    seen = [passes.batch(step).y.tolist() for step in range(12)]
    assert seen[:3] == seen[3:6][::-1]
    assert sorted(seen[0] + seen[1] + seen[2]) == sorted(y.tolist())
    assert seen[6:9] == seen[9:12][::-1]
    assert seen[6] != seen[0]


# ---- what goes wrong -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [HMC, MALA])
def test_a_step_that_is_too_long_is_said_with_one_to_try(kind):
    x, y = table()
    method = kind(chains=2, draws=10, warm_up=2, training=5, step=50.0)
    with pytest.raises(Diverged, match=rf"{kind.name} accepted .*% of its proposals at step=50.* try step=") as said:
        br.fit(line(), (x, y), method, Gaussian(NOISE), prior=1.0)
    shorter = float(str(said.value).split("try step=")[1])
    assert shorter < 50.0
    br.fit(line(), (x, y), replace(method, step=shorter), Gaussian(NOISE), prior=1.0)


@pytest.mark.parametrize(
    ("method", "said"),
    [
        (
            SGLD(chains=2, sampling_lr=1e4),
            r"sgld went to infinity: try sampling_lr=1e\+03 in the place of sampling_lr=1",
        ),
        (LMC(chains=2, step=50.0), "lmc went to infinity: try step=5 in the place of step=50"),
    ],
)
def test_chains_that_go_to_infinity_are_an_error(method, said):
    x, y = table()
    method = replace(method, draws=10, warm_up=2, training=5)
    with pytest.raises(Diverged, match=said):
        br.fit(line(), (x, y), method, Gaussian(NOISE), prior=1.0, epochs=200)


def test_too_many_draws_for_the_memory_are_refused_before_the_first_step():
    model = nn.Sequential(nn.Linear(4, 1100), nn.ReLU(), nn.Linear(1100, 1100), nn.ReLU(), nn.Linear(1100, 3))
    with pytest.raises(MemoryError, match=r"hmc keeps 250 draws of 4 chains of 1,219,903 .*fewer draws or chains"):
        br.fit(model, classes(), "hmc", epochs=1)


@dataclass(frozen=True, eq=False)
class Cut(br.likelihoods.Categorical):
    """Its log-probability is of numbers that torch does not follow."""

    name: ClassVar[str] = "cut"

    def log_prob(self, outputs, y):
        return super().log_prob(outputs.detach(), y)


def test_a_likelihood_without_a_gradient_is_refused():
    with pytest.raises(ValueError, match="likelihood 'cut' gives no gradient: its log_prob cuts the graph"):
        br.fit(mlp(), classes(), "hmc", likelihood=Cut(), epochs=1)


@pytest.mark.parametrize(
    ("kind", "fields", "said"),
    [
        (HMC, {"chains": 0}, "chains must be a whole number of at least 1, not 0"),
        (HMC, {"draws": 2.5}, "draws must be a whole number"),
        (HMC, {"leaps": 0}, "leaps must be at least 1"),
        (HMC, {"acceptance": 1.0}, "acceptance must lie between 0 and 1, not 1.0"),
        (MALA, {"step": -1.0}, "step must be positive and finite, not -1.0"),
        (LMC, {"warm_start": "mle"}, "warm_start must be 'map' or 'none', not 'mle'"),
        (MCLMC, {"variance": 0.0}, "variance must be positive and finite"),
        (SGLD, {"sampling_lr": math.inf}, "sampling_lr must be positive and finite"),
        (SGLD, {"cycles": 51}, "cycles must be a whole number from 0 to draws=50, not 51"),
        (SGHMC, {"momentum": 1.0}, "momentum must lie between 0 and 1"),
    ],
)
def test_bad_fields_are_named(kind, fields, said):
    with pytest.raises(ValueError, match=said):
        kind(**fields)


def test_one_weight_is_too_few():
    with pytest.raises(ValueError, match="mclmc needs two weights or more"):
        br.fit(nn.Linear(1, 1, bias=False), (torch.ones(4, 1), torch.ones(4)), "mclmc", Gaussian(1.0), epochs=1)


def test_chains_without_training_start_from_drawn_weights():
    x, y = classes()
    method = HMC(chains=3, draws=4, warm_up=4, warm_start="none", leaps=4, step=1e-6)
    posterior = br.fit(mlp(), (x, y), method)
    assert len(posterior.info["history"]) == 8
    own = mlp().state_dict()["0.weight"]
    assert torch.allclose(posterior.states[0]["0.weight"], own, atol=1e-3)
    assert not torch.allclose(posterior.states[4]["0.weight"], own, atol=1e-1)


@pytest.mark.parametrize(
    "method", [SGLD(chains=2, draws=8, thin=5, training=50), SGHMC(chains=2, draws=8, training=50)]
)
def test_the_log_posterior_of_draws_by_mini_batches_is_that_of_all_data(method):
    """By the normal densities themselves, up to the same constant."""
    x, y = table()
    posterior = br.fit(line(), (x, y), method, Gaussian(NOISE), prior=1.0, batch_size=8)
    rows = draws(posterior)
    outputs = rows[..., :2] @ x.T + rows[..., 2:]
    residuals = (outputs - y).square().sum(-1) / NOISE**2 + rows.square().sum(-1)
    constant = -len(y) * math.log(NOISE) - (len(y) + 3) / 2 * math.log(2 * math.pi)
    found = posterior.chains.apart(posterior.chains.log_posterior)
    assert torch.allclose(found, constant - 0.5 * residuals, atol=1e-8)


def test_the_log_posterior_of_many_data_is_by_the_same_examples_for_all_draws(monkeypatch):
    """Of draws that hardly move it then hardly changes, as one by the last mini-batch would."""
    monkeypatch.setattr("bayesrule.methods.sampling_learner.JUDGES", 10)
    method = SGLD(chains=1, draws=20, thin=1, warm_up=1, training=300, sampling_lr=1e-9)
    x, y = table(200)
    loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(x, y), batch_size=10)
    for train in ((x, y), loader):
        posterior = br.fit(line(), train, method, Gaussian(NOISE), prior=1.0, batch_size=10)
        assert float(posterior.chains.log_posterior.std()) < 0.1


@pytest.mark.parametrize("method", [HMC(), Ensemble(2, base=SGLD())], ids=lambda method: method.name)
def test_early_stopping_is_refused(method):
    """The best epoch may be one of the training or the warm-up, of which nothing is kept."""
    x, y = classes()
    with pytest.raises(ValueError, match=f"early stopping must be left out with {method.name}: .* fewer draws"):
        br.fit(mlp(), (x, y), method, val=classes(seed=1), callbacks=[EarlyStopping()])


def test_a_fit_that_is_stopped_before_its_first_draw_says_so():
    x, y = classes()
    method = HMC(chains=2, draws=5, warm_up=5, training=5, leaps=2)
    with pytest.warns(UserWarning, match="hmc was stopped before its first draw: the posterior is the 2 networks"):
        posterior = br.fit(mlp(), (x, y), method, prior=1.0, callbacks=[lambda at: at.step == 7])
    assert posterior.chains is None
    assert posterior.info["diagnostics"]["draws"] == 0


def test_numbers_of_few_digits_are_refused():
    x, y = classes()
    with pytest.raises(TypeError, match=r"hmc takes a model in float32 or float64, not torch\.bfloat16: model\.float"):
        br.fit(mlp().bfloat16(), (x, y), "hmc")
    with pytest.raises(ValueError, match="autocast must be None for sgld"):
        br.fit(mlp(), (x, y), "sgld", autocast="bfloat16")


def test_an_ensemble_of_samplers_is_as_long_as_one():
    """It had the 2000 steps of gradient methods, of which few were draws."""
    base = HMC(chains=2, draws=6, warm_up=6, training=3, leaps=2)
    posterior = br.fit(mlp(), classes(), Ensemble(2, base=base), prior=1.0)
    assert posterior.info["epochs"] == 15
    assert [part.info["diagnostics"]["draws"] for part in posterior.components] == [6, 6]
    assert Ensemble(base=br.methods.IVON()).default_epochs(10) == 400
