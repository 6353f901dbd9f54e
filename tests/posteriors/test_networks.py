"""One draw is one function: joint draws of every kind of posterior, and the ways of running them."""

import copy
import math
import pickle
import threading

import pytest
import torch
from covering import covering, first
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

import bayesrule as br
from bayesrule import modules
from bayesrule.likelihoods import Gaussian as Noise
from bayesrule.posteriors import Context, Dropout, Gaussian, Linearised, Mixture, Particles, draws, networks
from bayesrule.structures import Blocks, Dense, Diagonal, Kronecker, LowRank

DOUBLE = torch.float64
DRAWS = 4000


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


def normal(seed, *shape):
    return torch.randn(*shape, generator=generator(seed), dtype=DOUBLE)


def line():
    """f(x) = w x, and two points on either side of zero."""
    return nn.Linear(1, 1, bias=False).double(), torch.tensor([[1.0], [-1.0]], dtype=DOUBLE)


def plane():
    return nn.Linear(3, 2).double(), normal(1, 2, 3)


def precisions(size, seed=0):
    """Every structure over so many weights."""
    spread = 0.5 + normal(seed, size).abs()
    factor = normal(seed + 1, size, size)
    found = {
        "diagonal": Diagonal(spread),
        "low rank": LowRank(spread, normal(seed + 2, size, 1)),
        "dense": Dense(factor @ factor.T + torch.eye(size, dtype=DOUBLE)),
    }
    if size == 8:
        left, right = normal(seed + 3, 2, 2), normal(seed + 4, 3, 3)
        weight = Kronecker.of(left @ left.T, right @ right.T) + Diagonal(torch.ones(6, dtype=DOUBLE))
        found["kronecker and diagonal"] = Blocks([weight, Diagonal(spread[:2])])
    return found


def of_weights(kind, model, precision):
    """A posterior of that kind whose law of weights is N(weights of the model, Λ⁻¹)."""
    context, mean = Context(model, Noise(1.0)), modules.copies(modules.parameters(model))
    if kind is Particles:
        centre = modules.flatten(mean)
        rows = centre + precision.sample(DRAWS, generator(11))
        return Particles([modules.unflatten(row, mean) for row in rows], context)
    if kind is Mixture:
        return Mixture([of_weights(each, model, precision) for each in (Gaussian, Linearised)], context)
    return kind(mean, precision, {}, context)


def exact(model, precision, x):
    """The covariance of all outputs at all of x, J Λ⁻¹ Jᵀ."""
    j = br.curvature.jacobians(model, x)
    return precision.variance_along(j.reshape(-1, j.shape[-1]))


def correlated(found, wanted):
    """Correlations of draws [S, K] against those of a covariance: within 4 standard errors (1 − ρ²)/√S each.

    Under the law a test of one pair fails for 1 in 16 000 seeds.
    """
    wanted = wanted / (wanted.diagonal()[:, None] * wanted.diagonal()).sqrt()
    error = (1 - wanted.square()) / math.sqrt(len(found))
    assert ((torch.corrcoef(found.T) - wanted).abs() <= 4 * error + 1e-7).all()


LAWS = {"gaussian": Gaussian, "linearised": Linearised, "particles": Particles, "mixture": Mixture}
LINES = {f"line, {name}": (line, name) for name in precisions(1)}
PLANES = {f"plane, {name}": (plane, name) for name in precisions(8)}


@pytest.mark.parametrize("seed", first([0, 1]))
@pytest.mark.parametrize(("law", "problem"), covering(LAWS, LINES | PLANES, whole=("gaussian", "linearised")))
def test_joint_draws_are_those_of_the_exact_posterior(law, problem, seed):
    make, structure = (LINES | PLANES)[problem]
    model, x = make()
    precision = precisions(sum(p.numel() for p in model.parameters()))[structure]
    found = of_weights(LAWS[law], model, precision).outputs(x, DRAWS, generator(seed))
    assert found.shape == (DRAWS, 2, model.out_features)
    correlated(found.flatten(1), exact(model, precision, x))


@pytest.mark.parametrize("seed", [0, 1])
def test_outputs_of_a_line_at_both_sides_of_zero_are_opposites(seed):
    model, x = line()
    for kind in (Gaussian, Linearised):
        found = of_weights(kind, model, Diagonal(torch.ones(1, dtype=DOUBLE))).outputs(x, 100, generator(seed))
        torch.testing.assert_close(found[:, 0], -found[:, 1])


@pytest.mark.parametrize("seed", first([0, 1]))
def test_dropout_is_jointly_that_of_its_masks(seed):
    """f(x) = Σ_j v_j m_j h_j(x)/(1 − rate): Cov(f(a), f(b)) = rate/(1 − rate) Σ_j v_j² h_j(a) h_j(b)."""
    torch.manual_seed(0)
    model, x = nn.Sequential(nn.Linear(1, 50), nn.Tanh(), nn.Linear(50, 1)).double(), line()[1]
    posterior = Dropout(modules.snapshot(model), 0.2, Context(model, Noise(1.0)))
    found = posterior.outputs(x, DRAWS, generator(seed))
    products = (model[2].weight * model[1](model[0](x))).detach()
    correlated(found.flatten(1), 0.2 / 0.8 * products @ products.T)


class Attention(nn.Module):
    def __init__(self, weights):
        super().__init__()
        self.weights, self.attend, self.head = (
            weights,
            nn.MultiheadAttention(4, 2, 0.3, batch_first=True),
            nn.Linear(4, 3),
        )

    def forward(self, x):
        return self.head(x + self.attend(x, x, x, need_weights=self.weights)[0]).mean(1)


class Recurrent(nn.Module):
    def __init__(self, batch_first):
        super().__init__()
        self.first = batch_first
        self.layer = nn.LSTM(4, 4, num_layers=3, bidirectional=True, dropout=0.3, batch_first=batch_first)
        self.head = nn.Linear(8, 3)

    def forward(self, x):
        return self.head(self.layer(x)[0].mean(1) if self.first else self.layer(x.transpose(0, 1))[0].mean(0))


def dropping():
    """Modules that drop, each with the shape of an example."""
    layer = nn.TransformerEncoderLayer(4, 2, 8, dropout=0.3, batch_first=True)
    return {
        "no dropout of its own": (nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 3)), (4,)),
        "element-wise": (nn.Sequential(nn.Linear(4, 6), nn.Dropout(0.3), nn.Linear(6, 3)), (4,)),
        "alpha": (nn.Sequential(nn.Linear(4, 6), nn.AlphaDropout(0.3), nn.Linear(6, 3)), (4,)),
        "channels": (nn.Sequential(nn.Conv2d(1, 4, 3), nn.Dropout2d(0.3), nn.Flatten(), nn.Linear(64, 3)), (1, 6, 6)),
        "attention": (Attention(False), (5, 4)),
        "attention with weights": (Attention(True), (5, 4)),
        "recurrent": (Recurrent(True), (5, 4)),
        "recurrent, time first": (Recurrent(False), (5, 4)),
        "transformer": (nn.Sequential(nn.TransformerEncoder(layer, 2), nn.Flatten(), nn.Linear(20, 3)), (5, 4)),
    }


def kinds():
    """A posterior of every kind on a small network, and what an example is."""
    torch.manual_seed(0)
    found = {}
    for name, (model, shape) in dropping().items():
        found[f"dropout, {name}"] = Dropout(modules.snapshot(model), 0.3, Context(model, Noise(1.0))), shape
    model = nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 3))
    size = sum(p.numel() for p in model.parameters())
    for kind in (Gaussian, Linearised):
        found[kind.kind] = of_weights(kind, model, Diagonal(torch.full((size,), 10.0))), (4,)
    states = [modules.copies({name: p * k for name, p in model.named_parameters()}) for k in (1, 2, 3)]
    found["particles"] = Particles(states, Context(model, Noise(1.0))), (4,)
    found["mixture"] = Mixture([found["gaussian"][0], found["particles"][0]], Context(model, Noise(1.0))), (4,)
    return found


KINDS = kinds()
every_kind = pytest.mark.parametrize("kind", KINDS)


@every_kind
@settings(max_examples=settings().max_examples // 5)
@given(seed=st.integers(0, 2**30), cut=st.integers(1, 11))
def test_a_network_is_one_function(kind, seed, cut):
    posterior, shape = KINDS[kind]
    x = torch.randn(12, *shape, generator=generator(seed))
    drawn = list(posterior.networks(4, generator(seed)))
    assert len(drawn) == posterior.count(4)
    with torch.no_grad():
        found = torch.stack([network(x) for network in drawn])
        for network, whole in zip(drawn, found, strict=True):
            assert torch.equal(network(x), whole)
            torch.testing.assert_close(torch.cat([network(x[:cut]), network(x[cut:])]), whole)
            torch.testing.assert_close(network(x.flip(0)), whole.flip(0))
        torch.testing.assert_close(posterior.outputs(x, 4, generator(seed)), found)


@every_kind
def test_networks_differ(kind):
    posterior, shape = KINDS[kind]
    found = posterior.outputs(torch.randn(1, *shape, generator=generator()), 20, generator())
    assert (found.std(0) > 0).all()


@every_kind
def test_drawing_leaves_no_trace(kind):
    posterior, shape = KINDS[kind]
    before, x = torch.get_rng_state(), torch.randn(3, *shape, generator=generator())
    posterior.outputs(x, 4, generator())
    assert torch.equal(torch.get_rng_state(), before)
    assert not any(m.training or m._forward_pre_hooks for m in posterior.model.modules())


@every_kind
def test_a_posterior_can_be_copied_and_pickled_after_use(kind):
    posterior, shape = KINDS[kind]
    x = torch.randn(3, *shape, generator=generator())
    wanted = posterior.outputs(x, 4, generator(1))
    for twin in (copy.deepcopy(posterior), pickle.loads(pickle.dumps(posterior))):
        torch.testing.assert_close(twin.outputs(x, 4, generator(1)), wanted)


@every_kind
def test_threads_do_not_disturb_each_other(kind):
    posterior, shape = KINDS[kind]
    x = torch.randn(40, *shape, generator=generator())
    wanted = [posterior.outputs(x, 4, generator(seed)) for seed in range(4)]
    found: dict[int, torch.Tensor] = {}

    def work(seed):
        for _ in range(5):
            found[seed] = posterior.outputs(x, 4, generator(seed))

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for seed, outputs in enumerate(wanted):
        torch.testing.assert_close(found[seed], outputs)


class TimesFirst(nn.Module):
    """Examples along the second dimension, flattened: rows are (time, example)."""

    def __init__(self):
        super().__init__()
        self.first, self.drop, self.last = nn.Linear(4, 4), nn.Dropout(0.3), nn.Linear(4, 3)

    def forward(self, x):
        rows = self.drop(self.first(x.transpose(0, 1)).flatten(0, 1))
        return self.last(rows).view(x.shape[1], x.shape[0], 3).mean(0)


class Squares(nn.Module):
    """A mask over pairs of examples."""

    def __init__(self):
        super().__init__()
        self.first, self.drop, self.last = nn.Linear(4, 4), nn.Dropout(0.3), nn.Linear(4, 3)

    def forward(self, x):
        h = self.first(x)
        return self.last(self.drop(h @ h.T) @ h)


@pytest.mark.parametrize(
    ("model", "shape", "match"),
    [
        (TimesFirst(), (5, 4), r"dropout of drop \(Dropout\) cannot have one mask .* depends on the batch"),
        (Squares(), (4,), r"it drops numbers of shape \[3, 3\], for one example \[1, 1\]"),
    ],
)
def test_dropout_that_cannot_be_one_function_is_refused(model, shape, match):
    posterior = Dropout(modules.snapshot(model), 0.3, Context(model, Noise(1.0)))
    with pytest.raises(ValueError, match=match):
        posterior.predict(torch.randn(3, *shape))


def vectorised(posterior):
    return posterior._draws.runner


@pytest.mark.parametrize("kind", [Gaussian, Linearised])
def test_many_at_once_are_the_loop(kind):
    torch.manual_seed(0)
    nets = {
        "mlp": (nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 3)), (4,)),
        "convolutions": (
            nn.Sequential(
                nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(16, 3)
            ),
            (1, 6, 6),
        ),
    }
    for model, shape in nets.values():
        size = sum(p.numel() for p in model.parameters())
        posterior = of_weights(kind, model, Diagonal(torch.full((size,), 10.0)))
        x = torch.randn(networks.FEW, *shape)
        outputs = posterior.outputs(x, 20, generator())
        assert vectorised(posterior).vectorises
        loop = torch.stack([network(x) for network in posterior.networks(20, generator())])
        torch.testing.assert_close(outputs, loop, rtol=1e-4, atol=1e-5)


class Branch(nn.Module):
    """What it does depends on numbers, which vmap cannot follow."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 3)

    def forward(self, x):
        h = self.layer(x)
        return h if h.sum() > 0 else 2 * h


@pytest.mark.parametrize("model", [Branch(), Recurrent(True)], ids=lambda m: type(m).__name__)
def test_what_cannot_be_run_at_once_is_looped_without_a_word(model):
    size = sum(p.numel() for p in model.parameters())
    posterior = of_weights(Gaussian, model, Diagonal(torch.full((size,), 10.0)))
    x = torch.randn(3, 5, 4) if isinstance(model, Recurrent) else torch.randn(3, 4)
    with pytest.raises(ValueError, match="cannot take the inputs"):
        posterior.outputs(x[..., :2], 6, generator())
    assert vectorised(posterior).vectorises is None  # inputs that do not fit decide nothing
    outputs = posterior.outputs(x, 6, generator())
    assert vectorised(posterior).vectorises is False
    loop = torch.stack([network(x) for network in posterior.networks(6, generator())])
    assert torch.equal(outputs, loop)


def test_the_last_networks_are_kept_within_a_budget(monkeypatch):
    model = nn.Linear(100, 10)
    posterior = of_weights(Gaussian, model, Diagonal(torch.full((1010,), 0.1)))
    x = torch.randn(3, 100)
    first = posterior.outputs(x, 8, generator(0))
    kept = posterior._draws._kept[1].weights
    assert torch.equal(posterior.outputs(x, 8, generator(0)), first)
    assert posterior._draws._kept[1].weights is kept
    posterior.outputs(x, 8, generator(1))
    assert posterior._draws._kept[1].weights is not kept
    monkeypatch.setattr(draws, "KEPT", 4 * 1010 * 4)
    monkeypatch.setattr(draws, "CHUNK", 3 * 1010 * 4)
    fresh = copy.deepcopy(posterior)
    assert fresh.outputs(x, 8, generator(0)).shape == (8, 3, 10)
    assert fresh._draws._kept is None
    four = fresh.outputs(x, 4, generator(0))
    assert len(fresh._draws._kept[1].weights) == 4
    assert torch.equal(fresh.outputs(x, 4, generator(0)), four)


def test_threads_that_draw_give_the_same_numbers(monkeypatch):
    model = nn.Linear(100, 10)
    posterior = of_weights(Gaussian, model, Diagonal(torch.full((1010,), 0.1)))
    monkeypatch.setattr(draws, "BLOCK", 1010)
    one = posterior.outputs(torch.ones(1, 100), 8, generator(0))
    monkeypatch.setattr(torch, "get_num_threads", lambda: 3)
    assert torch.equal(copy.deepcopy(posterior).outputs(torch.ones(1, 100), 8, generator(0)), one)
