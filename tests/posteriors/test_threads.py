"""Predictions from several threads at once, and of modules that draw random numbers by themselves."""

import warnings
from concurrent.futures import ThreadPoolExecutor
from functools import cache

import pytest
import torch
from torch import nn

import bayesrule as br
from bayesrule.methods import BBB, IVON, MAP, SWAG, DropoutEnsemble, Ensemble, Laplace, MCDropout

THREADS = 4


def data(n=48):
    x = torch.randn(n, 4, generator=torch.Generator().manual_seed(0))
    return x, x[:, :3].argmax(1)


def mlp(*extra):
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 8), *extra, nn.Tanh(), nn.Linear(8, 3))


class Drops(nn.Module):
    """Dropout by a function, in training alone."""

    def __init__(self):
        super().__init__()
        self.net = mlp()

    def forward(self, x):
        return self.net(nn.functional.dropout(x, 0.2, self.training))


class Own(nn.Module):
    """A layer without a closed form: its per-example gradients come from calling it again."""

    def __init__(self):
        super().__init__()
        self.scale, self.net = nn.Parameter(torch.ones(4)), mlp()

    def forward(self, x):
        return self.net(x * self.scale)


KINDS = {
    "particles": lambda: (mlp(), MAP()),
    "gaussian": lambda: (mlp(), IVON()),
    "gaussian, variational": lambda: (mlp(), BBB()),
    "linearised, sampling": lambda: (mlp(), Laplace("all", "kronecker", tune="nothing")),
    "linearised, probit": lambda: (mlp(), Laplace("all", "diagonal", tune="nothing", predictive="probit")),
    "linearised, bridge": lambda: (mlp(), Laplace(tune="nothing", predictive="bridge")),
    "linearised, own layers": lambda: (Own(), Laplace("all", "diagonal", tune="nothing")),
    "laplace, weights": lambda: (mlp(), Laplace("all", "diagonal", tune="nothing", predictive="weights")),
    "dropout": lambda: (mlp(), MCDropout()),
    "dropout, own": lambda: (mlp(nn.Dropout(0.2)), MCDropout()),
    "dropout, functions": lambda: (Drops(), MCDropout()),
    "swag": lambda: (mlp(), SWAG(rank=3, snapshots=4)),
    "swag, BatchNorm": lambda: (mlp(nn.BatchNorm1d(8)), SWAG(rank=3, snapshots=4)),
    "mixture": lambda: (mlp(), Ensemble(3)),
    "mixture of dropout": lambda: (mlp(), DropoutEnsemble(2)),
    "mixture of gaussians": lambda: (mlp(), Ensemble(2, SWAG(rank=3, snapshots=4))),
    "mixture of tangents": lambda: (mlp(), Ensemble(2, Laplace(tune="nothing"))),
}


@cache
def fitted(kind):
    model, method = KINDS[kind]()
    return br.fit(model, data(), method, epochs=1, batch_size=16)


def together(kind, calls, tmp_path):
    """Every call of four threads on one posterior, never used before, gives what one thread gives, to the bit."""
    fitted(kind).save(tmp_path / "posterior")
    fresh = [br.load(tmp_path / "posterior", KINDS[kind]()[0]) for _ in range(2)]
    x = data(12)[0]

    def call(posterior, number):
        """One of eight: few and more inputs, other seeds, and now and then networks, outputs, info."""
        turn = number % 8
        part = x[: 3 + 5 * (turn % 2)]
        if turn < 6:
            return posterior.predict(part, samples=6, seed=turn // 2).probs
        generator = torch.Generator().manual_seed(turn)
        if turn == 6:
            assert posterior.info["n"] == len(data()[0])
            return torch.stack([network(part) for network in posterior.networks(4, generator)])
        if hasattr(posterior, "std"):
            assert all(bool((s > 0).all()) for s in posterior.std.values())
        return posterior.outputs(part, 4, generator)

    wanted = [call(fresh[0], number) for number in range(8)]
    state, filters = torch.get_rng_state(), [*warnings.filters]

    def work(thread):
        return [n for n in range(thread, calls + thread) if not torch.equal(call(fresh[1], n), wanted[n % 8])]

    with ThreadPoolExecutor(THREADS) as pool:
        wrong = sum(map(len, pool.map(work, range(THREADS))))
    assert wrong == 0, f"{wrong} of {THREADS * calls} answers differ"
    assert torch.equal(torch.get_rng_state(), state)
    assert warnings.filters == filters


@pytest.mark.parametrize("kind", KINDS)
def test_threads_agree_with_one(kind, tmp_path):
    together(kind, 8, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_four_threads_and_a_thousand_predictions_each(kind, tmp_path):
    together(kind, 1000, tmp_path)


class Noisy(nn.Module):
    """Draws wherever it can, also at prediction."""

    def __init__(self, noise=lambda h: h + torch.randn_like(h)):
        super().__init__()
        self.net, self.noise = mlp(), noise

    def forward(self, x):
        return self.net(self.noise(x))


DRAWS = {
    "randn_like": lambda h: h + torch.randn_like(h),
    "rand": lambda h: h + torch.rand(h.shape[1]),
    "normal": lambda h: torch.normal(h, 1.0),
    "dropout": lambda h: nn.functional.dropout(h, 0.5, training=True),
    "alpha dropout": lambda h: nn.functional.alpha_dropout(h, 0.5, training=True),
    "randint": lambda h: h + torch.randint(5, h.shape),
    "randperm": lambda h: h[:, torch.randperm(h.shape[1])],
    "multinomial": lambda h: h + torch.multinomial(torch.ones(9), 4),
    "distribution": lambda h: h + torch.distributions.Gamma(torch.ones(4), 1.0).sample(),
    "rrelu": lambda h: nn.functional.rrelu(h, training=True),
    "in place": lambda h: h + torch.empty_like(h).uniform_(),
}


@pytest.mark.parametrize("noise", DRAWS.values(), ids=list(DRAWS))
def test_what_a_module_draws_at_prediction_comes_from_the_seed(noise):
    x, _ = data()
    posterior = br.fit(Noisy(noise), data(), "map", epochs=1)
    state = torch.get_rng_state()
    first = posterior.predict(x, seed=1).probs
    assert torch.equal(torch.get_rng_state(), state)
    torch.randn(3)
    assert torch.equal(posterior.predict(x, seed=1).probs, first)
    assert any(not torch.equal(posterior.predict(x, seed=seed).probs, first) for seed in range(2, 6))


METHODS = [
    MAP(),
    IVON(),
    Laplace("all", tune="nothing"),
    Laplace("all", "diagonal", tune="nothing", predictive="weights"),
    SWAG(rank=3, snapshots=4),
    Ensemble(2),
]


@pytest.mark.parametrize("method", METHODS, ids=lambda method: method.name)
def test_predictions_of_a_module_that_draws_repeat_whatever_the_method(method):
    (x, y), model = data(), Noisy()
    state = torch.get_rng_state()
    posterior = br.fit(model, (x, y), method, epochs=1)
    assert torch.equal(torch.get_rng_state(), state)
    for part in (x, x[:3]):
        first = posterior.predict(part).probs
        network = next(iter(posterior.networks(3, torch.Generator())))
        again = network(part)
        torch.randn(3)
        assert torch.equal(posterior.predict(part).probs, first)
        assert torch.equal(network(part), again)
    state = torch.get_rng_state()
    with ThreadPoolExecutor(THREADS) as pool:
        found = list(pool.map(lambda _: posterior.predict(x).probs, range(12)))
    assert all(torch.equal(each, posterior.predict(x).probs) for each in found)
    assert torch.equal(torch.get_rng_state(), state)


def test_networks_of_a_module_that_draws_draw_differently():
    posterior = br.fit(Noisy(), data(), IVON(), epochs=1)
    x = data()[0]
    one, other = (network(x) for network in posterior.networks(2, torch.Generator()))
    assert (one - other).std() > 0.1


def test_a_module_that_does_not_draw_runs_without_the_mode():
    posterior = br.fit(mlp(), data(), IVON(), epochs=1)
    posterior.predict(data()[0])
    assert posterior._draws.runner.noise.draws is False
