"""A fit whose length is left open ends at the mode, and says so; a length of the user's is kept."""

import functools
import math

import hamiltonian
import pytest
import torch
from torch import nn

import bayesrule as br
from bayesrule.likelihoods import Gaussian
from bayesrule.methods import Plan, default_epochs
from bayesrule.methods.mode import FEWEST, passes
from bayesrule.seeds import Noise
from bayesrule.training.settings import default_batch_size

DOUBLE = torch.float64
NOISE, FEATURES, ROWS, CONDITION = 0.1, 5, 80, 207.0
PRIOR = br.priors.Gaussian(1.0)


def design(seed):
    """80 rows, whose XᵀX has condition number 207, weights from N(0, 1), and a generator for targets."""
    generator = torch.Generator().manual_seed(seed)
    u, _, v = torch.linalg.svd(torch.randn(ROWS, FEATURES, generator=generator, dtype=DOUBLE), full_matrices=False)
    lengths = torch.logspace(0, -math.log10(CONDITION) / 2, FEATURES, dtype=DOUBLE) * math.sqrt(ROWS)
    return u * lengths @ v, torch.randn(FEATURES, generator=generator, dtype=DOUBLE), generator


def linear(seed):
    """Data, the exact mode and the precision there."""
    x, w, generator = design(seed)
    y = x @ w + NOISE * torch.randn(ROWS, generator=generator, dtype=DOUBLE)
    precision = x.T @ x / NOISE**2 + torch.eye(FEATURES, dtype=DOUBLE)
    return (x.float(), y.float()), torch.linalg.solve(precision, x.T @ y / NOISE**2), precision


def logistic(seed):
    """The same by Newton's steps."""
    x, w, generator = design(seed)
    y = (torch.rand(ROWS, generator=generator, dtype=DOUBLE) < torch.sigmoid(3 * x @ w)).long()
    mode = torch.zeros(FEATURES, dtype=DOUBLE)
    for _ in range(50):
        p = torch.sigmoid(x @ mode)
        precision = (x * (p * (1 - p))[:, None]).T @ x + torch.eye(FEATURES, dtype=DOUBLE)
        mode = mode - torch.linalg.solve(precision, x.T @ (p - y) + mode)
    return (x.float(), y), mode, precision


CASES = {"linear": (linear, Gaussian(NOISE)), "logistic": (logistic, "bernoulli")}


def line(seed=0):
    torch.manual_seed(seed)
    return nn.Linear(FEATURES, 1, bias=False)


def off_mode(posterior, mode, precision):
    """√((w − w*)ᵀΛ(w − w*)/P): posterior deviations of a weight."""
    off = posterior.states[0]["weight"][0].double() - mode
    return float((off @ precision @ off / FEATURES).sqrt())


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(1, 6))])
def test_map_is_at_the_exact_mode(case, seed):
    """It was 2.4 to 6.5 deviations off in linear regression, after 2000 steps of Adam."""
    make, likelihood = CASES[case]
    data, mode, precision = make(seed)
    found = br.fit(line(seed), data, "map", likelihood, PRIOR, seed=seed)
    assert off_mode(found, mode, precision) < 0.05
    assert found.info["diagnostics"]["converged"]
    assert found.info["diagnostics"]["fell"] < 1e-3 * FEATURES


def test_a_length_of_the_users_is_kept():
    """As many epochs as the default has, but asked for: Adam's end, wherever that is, and no claim about it."""
    data, mode, precision = linear(0)
    epochs = default_epochs(ROWS // default_batch_size(ROWS))
    found = br.fit(line(), data, "map", Gaussian(NOISE), PRIOR, epochs=epochs)
    assert off_mode(found, mode, precision) > 1
    assert "diagnostics" not in found.info


def test_a_fit_that_a_callback_stops_is_left_where_it_is():
    data, _, _ = linear(0)
    found = br.fit(line(), data, "map", Gaussian(NOISE), PRIOR, callbacks=[lambda at: at.epoch == 2])
    assert len(found.info["history"]) == 3
    assert "diagnostics" not in found.info


def trained(model, data, likelihood=None, steps=400, prior=PRIOR, method="map"):
    """A learner of a length that is left open, after all its steps, and its task."""
    task = br.Task.create(model, data, likelihood, prior)
    method = br.methods.AVAILABLE[method]()
    learner = method.start(task, Plan(steps, 1, len(data[1]), to_convergence=True), Noise.on(task.device))
    batch = next(task.ordered(len(data[1])))
    for _ in range(steps):
        learner.step(batch)
    return learner


def test_the_end_changes_nothing_in_the_learner_and_is_the_same_again():
    learner = trained(line(), linear(0)[0], Gaussian(NOISE))
    before = {name: t.detach().clone() for name, t in learner.parameters.items()}
    one, two = learner.conclude(None), learner.conclude(None)
    assert torch.equal(one.states[0]["weight"], two.states[0]["weight"])
    assert not torch.equal(one.states[0]["weight"], before["weight"])
    assert torch.equal(learner.parameters["weight"], before["weight"])
    assert learner.network.training


class Hidden(nn.Module):
    """Two layers with something in between."""

    def __init__(self, between):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(FEATURES, 4), between, nn.Linear(4, 1))

    def forward(self, x):
        return self.layers(x)


@pytest.mark.parametrize(
    ("between", "goes_on"), [(nn.Tanh(), True), (nn.Dropout(0.5), False), (nn.BatchNorm1d(4), False)]
)
def test_a_network_that_trains_on_another_function_than_it_predicts_with_has_no_such_mode(between, goes_on):
    learner = trained(Hidden(between), linear(0)[0], Gaussian(NOISE), steps=FEWEST)
    assert ("diagnostics" in learner.conclude(None).context.info) == goes_on


@pytest.mark.parametrize(("prior", "goes_on"), [(PRIOR, True), (br.priors.Laplace(1.0), False)])
def test_nor_has_the_loss_under_a_prior_with_edges(prior, goes_on):
    learner = trained(line(), linear(0)[0], Gaussian(NOISE), steps=FEWEST, prior=prior)
    assert ("diagnostics" in learner.conclude(None).context.info) == goes_on


@pytest.mark.parametrize(("rows", "goes_on"), [(5120, True), (5121, False)])
def test_many_data_leave_no_time_for_enough_passes(rows, goes_on):
    task = br.Task.create(nn.Linear(1, 1), (torch.zeros(rows, 1), torch.zeros(rows)))
    assert (passes(task, 2000) >= FEWEST) == goes_on


def test_too_few_passes_are_not_taken_for_convergence():
    """A network of which a few passes are not enough says that it is not there yet."""
    x = torch.linspace(-2, 2, 40)[:, None]
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(1, 16), nn.Tanh(), nn.Linear(16, 1))
    learner = trained(model, (x, torch.sin(3 * x[:, 0])), Gaussian(NOISE), steps=FEWEST)
    said = learner.conclude(None).context.info["diagnostics"]
    assert not said["converged"]
    assert said["fell"] > 0.1


def test_an_ensemble_tells_of_all_its_members():
    data, mode, precision = linear(1)
    found = br.fit(line(), data, br.methods.Ensemble(2), Gaussian(NOISE), PRIOR)
    assert [off_mode(each, mode, precision) < 0.05 for each in found.components] == [True, True]
    assert found.info["diagnostics"]["converged"]


def test_a_fit_without_a_prior_ends_too_where_the_data_have_no_mode():
    """A line separates them: the likelihood has no maximum, and the loss comes as near to zero as the test asks."""
    x = torch.randn(40, FEATURES, generator=torch.Generator().manual_seed(0))
    found = br.fit(line(), (x, (x[:, 0] > 0).long()), "mle", "bernoulli")
    assert found.states[0]["weight"].isfinite().all()
    assert found.predict(x).probs.isfinite().all()


def test_a_resumed_fit_knows_that_its_length_was_left_open(tmp_path):
    class PowerCut(Exception):
        pass

    def cut(at):
        if at.step == 20:
            raise PowerCut

    data, _, _ = linear(2)
    whole = br.fit(line(), data, "map", Gaussian(NOISE), PRIOR)
    with pytest.raises(PowerCut):
        br.fit(
            line(),
            data,
            "map",
            Gaussian(NOISE),
            PRIOR,
            callbacks=[cut],
            out=br.training.Folder(tmp_path / "run", interval=0),
        )
    resumed = br.resume(tmp_path / "run", line(1), data)
    assert torch.equal(resumed.states[0]["weight"], whole.states[0]["weight"])
    assert resumed.info["diagnostics"] == whole.info["diagnostics"]


HIDDEN = 16


def curve(seed):
    """50 points of a curve with known noise, in [−2, 2]."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.rand(50, 1, generator=generator, dtype=DOUBLE) * 4 - 2
    noise = NOISE * torch.randn(50, generator=generator, dtype=DOUBLE)
    return x, 0.8 * torch.sin(2 * x[:, 0]) + 0.3 * x[:, 0] + noise


def outputs(w, x):
    """Of a network with one layer of tanh, [C, B] under weights [C, P]."""
    first, bias, second, shift = w[:, None].split([HIDDEN, HIDDEN, HIDDEN, 1], dim=2)
    return (torch.tanh(x * first + bias) * second).sum(2) + shift[..., 0]


@functools.cache
def exact(seed):
    """Inputs where data are, and the mean and deviation of f there under the exact posterior, by 16 chains."""
    x, y = curve(seed)

    def log_density(w):
        return -0.5 * ((y - outputs(w, x)) / NOISE).square().sum(1) - 0.5 * w.square().sum(1)

    inputs = torch.linspace(-2, 2, 41, dtype=DOUBLE)[:, None]
    start = torch.randn(16, 3 * HIDDEN + 1, generator=torch.Generator().manual_seed(1), dtype=DOUBLE)
    drawn = hamiltonian.sample(log_density, start, draws=250, leaps=80)
    functions = torch.stack([outputs(w, inputs) for w in drawn])
    assert hamiltonian.r_hat(functions) < 1.05
    return inputs, functions.mean((0, 1)), functions.flatten(0, 1).std(0)


def small_network(method, seed, **settings):
    """A fit of the small network; at defaults if nothing else is said."""
    x, y = curve(seed)
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(1, HIDDEN), nn.Tanh(), nn.Linear(HIDDEN, 1))
    return br.fit(model, (x.float(), y.float()), method, Gaussian(NOISE), PRIOR, seed=seed, **settings)


def off_exact(method, seed):
    """The error of the predictive mean in deviations of the exact posterior, averaged over inputs."""
    inputs, mean, deviation = exact(seed)
    predicted = small_network(method, seed).predict(inputs.float(), samples=512).mean.double().reshape(-1)
    return float(((predicted - mean).abs() / deviation).mean())


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("method", ["map", "laplace", "ensemble", "ivon", "bbb"])
def test_a_small_network_against_the_exact_posterior(method, seed):
    """Defaults: they were 0.5 to 2.1 deviations off. A mode of this posterior is 0.1 to 0.25 off its mean, the best
    Gaussian of independent weights 0.14 to 0.23."""
    assert off_exact(method, seed) < 0.5


PARTS = ("0.weight", "0.bias", "2.weight", "2.bias")


def slopes(w, x):
    """Outputs [C, B] under weights [C, P], and their first and second derivatives by each weight, [C, B, P]."""
    first, bias, second, shift = w[:, None].split([HIDDEN, HIDDEN, HIDDEN, 1], dim=2)
    t = torch.tanh(x * first + bias)
    dt, ddt, none = 1 - t**2, -2 * t * (1 - t**2), torch.zeros(*t.shape[:2], 1, dtype=t.dtype)
    once = torch.cat([second * x * dt, second * dt, t, none + 1], 2)
    twice = torch.cat([second * x**2 * ddt, second * ddt, torch.zeros_like(t), none], 2)
    return (t * second).sum(2) + shift[..., 0], once, twice


def fixed_point(posterior, seed, squares, draws=2000):
    """The deviations that a method's rule has at rest around these means: 1/σ² = Σ_i E_q[h_i] + 1 over the data.

    h_i is the second derivative of −log p(y_i|f); of ``squares`` of gradients, as vogn has them, the square of the
    first. q is the posterior: where the rule is at rest, these are its own deviations.
    """
    x, y = curve(seed)
    mean = torch.cat([posterior.mean[name].flatten() for name in PARTS]).double()
    std = torch.cat([posterior.std[name].flatten() for name in PARTS]).double()
    generator, total = torch.Generator().manual_seed(0), torch.zeros_like(mean)
    for _ in range(draws // 200):
        f, once, twice = slopes(mean + std * torch.randn(200, len(mean), generator=generator, dtype=DOUBLE), x)
        off = (y - f)[..., None] / NOISE**2
        each = (off * once) ** 2 if squares else once**2 / NOISE**2 - off * twice
        total += each.sum((0, 1)) / draws
    return std, (total + 1).clamp(min=1e-3).rsqrt()


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("method", ["ivon", "vogn", "bbb"])
def test_the_deviations_of_a_small_network_belong_to_its_means(method, seed):
    """Within 25 % over all weights, and typically for one. Seen: 0.89 to 0.95 in the mean, 0.10 to 0.22 for one weight.
    Of fits ten times as long 0.93 to 1.00, and 0.03 to 0.12."""
    std, rest = fixed_point(small_network(method, seed), seed, squares=method == "vogn")
    ratio = (std / rest).log()
    assert abs(float(ratio.mean())) < math.log(1.25)
    assert float(ratio.square().mean().sqrt()) < 0.25


def by_size(posterior):
    """Deviations by layer, the smallest first: hidden units of two fits may be the same ones in another order."""
    return torch.cat([posterior.std[name].flatten().sort().values for name in PARTS]).double()


SLOW_MEANS = "the means of vogn's default rate are still on their way: at lr=0.5 the ratios are 0.85 and 1.00"


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("method", ["ivon", "vogn", "bbb"])
def test_the_deviations_of_a_small_network_are_those_of_a_long_fit(method, seed, request):
    """From the same start with ten times the steps, within 25 % in the geometric mean. Two such long fits, the second
    from the end of a default one, differ by 0.93 to 1.00."""
    if method == "vogn" and seed < 2:
        request.applymarker(pytest.mark.xfail(strict=True, reason=SLOW_MEANS))
    default = small_network(method, seed)
    long = small_network(method, seed, epochs=10 * len(default.info["history"]))
    assert abs(float((by_size(default) / by_size(long)).log().mean())) < math.log(1.25)
