"""What a task refuses, and what a posterior promises."""

import copy

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from networks import classes, mlp, zoo
from torch import nn

import bayesrule as br
from bayesrule import modules
from bayesrule.files import FileError
from bayesrule.methods import BBB, MAP, SWAG, Ensemble, MCDropout
from bayesrule.posteriors import Context, Gaussian, Particles, networks
from bayesrule.structures import Diagonal

X, Y = classes()


class Pair(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 3)

    def forward(self, x):
        return self.layer(x), x


@pytest.mark.parametrize(
    ("model", "train", "error", "match"),
    [
        ("mlp", (X, Y), TypeError, "model must be a torch.nn.Module, not str"),
        (nn.Flatten(), (X, Y), ValueError, "no trainable parameters"),
        (mlp(features=5), (X, Y), ValueError, r"cannot take the inputs \(X: \[48, 4\] torch.float32\)"),
        (mlp(), (X.mul(9).long(), Y), ValueError, "must be floats"),
        (Pair(), (X, Y), TypeError, "must return one tensor, but Pair returned tuple"),
        (mlp(), (X, Y + 1), ValueError, "3"),
        (mlp(), (X, Y[:9]), ValueError, "48 in X and 9 in y"),
        (mlp(), (X[:0], Y[:0]), ValueError, "at least one example"),
        (mlp(), (X.index_fill(0, torch.tensor([3]), float("nan")), Y), ValueError, "row 3"),
        (mlp(), (X, X.index_fill(0, torch.tensor([5]), float("inf"))[:, :3]), ValueError, "row 5"),
        (mlp(), "data.csv", TypeError, "train must be a pair"),
        (nn.Sequential(nn.Flatten(0), nn.Linear(192, 3)), (X, Y), ValueError, "examples in the first dimension"),
    ],
)
def test_a_task_refuses(model, train, error, match):
    with pytest.raises(error, match=match):
        br.Task.create(model, train)


def test_weights_that_are_not_finite_are_refused():
    model = mlp()
    with torch.no_grad():
        model[0].weight[0, 0] = float("nan")
    with pytest.raises(ValueError, match=r"parameter '0.weight' of the model holds NaN"):
        br.Task.create(model, (X, Y))


def test_raw_tables_draw_advice():
    with pytest.warns(UserWarning, match="standardize"):
        br.Task.create(mlp(), (X * 1000, Y))


def test_standardised_targets_need_a_likelihood_that_can():
    counts = torch.arange(48.0)
    with pytest.raises(ValueError, match="counts in its own units"):
        br.Task.create(mlp(1), br.data.standardize((X, counts)), "poisson")


def posterior(seed=0):
    return br.fit(mlp(), (X, Y), SWAG(rank=2, snapshots=4), epochs=3, batch_size=16, seed=seed)


def test_prediction_does_not_depend_on_chunks(monkeypatch):
    p = posterior()
    whole = p.predict(X).probs
    monkeypatch.setattr(networks.inputs, "block", lambda x, **limits: 7)
    torch.testing.assert_close(p.predict(X).probs, whole)


def test_prediction_is_a_function_of_its_seed():
    p = posterior()
    assert torch.equal(p.predict(X, seed=1).probs, p.predict(X, seed=1).probs)
    assert not torch.equal(p.predict(X, seed=1).probs, p.predict(X, seed=2).probs)


@given(st.permutations(range(12)))
def test_prediction_follows_a_permutation_of_the_inputs(order):
    p = Gaussian(
        modules.copies(modules.parameters(mlp())),
        Diagonal(torch.full((67,), 0.1)),
        {},
        Context(mlp(), br.likelihoods.Categorical()),
    )
    x = X[:12]
    torch.testing.assert_close(p.predict(x[order]).probs, p.predict(x).probs[order])


def test_too_large_a_prediction_is_refused_in_words(monkeypatch):
    monkeypatch.setattr(networks, "MEMORY", 32 * 10 * 3 * 4)
    with pytest.raises(MemoryError, match="predict at most 10 examples at a time"):
        posterior().predict(X)


@pytest.mark.parametrize(
    ("x", "match"),
    [
        (X[:, :2], "cannot take"),
        (X[:0], "at least one example"),
        (torch.full((2, 4), float("nan")), "must be finite"),
        ([["a"] * 4], "must hold numbers"),
    ],
)
def test_wrong_inputs_to_predict(x, match):
    with pytest.raises((ValueError, TypeError), match=match):
        posterior().predict(x)


def test_samples_must_be_positive():
    with pytest.raises(ValueError, match="samples must be at least 1, not 0"):
        posterior().predict(X, samples=0)


def test_a_mixture_takes_as_many_from_each():
    p = br.fit(mlp(), (X, Y), Ensemble(3, SWAG(rank=2, snapshots=4)), epochs=3, batch_size=16)
    assert p.predict(X, samples=12).samples == 12
    assert p.predict(X, samples=2).samples == 3


def test_particles_are_spread_evenly():
    states = [{"w": torch.tensor(float(i))} for i in range(10)]
    p = Particles(states, Context(mlp(), br.likelihoods.Categorical()))
    assert [int(network.args[0]["w"]) for network in p.networks(5, torch.Generator())] == [0, 2, 4, 6, 8]
    assert len(list(p.networks(99, torch.Generator()))) == p.count(99) == 10


def test_std_by_name():
    p = posterior()
    assert {k: v.shape for k, v in p.std.items()} == {k: v.shape for k, v in mlp().named_parameters()}
    assert all((v > 0).all() for v in p.std.values())


def test_a_file_fits_one_architecture(tmp_path):
    path = tmp_path / "p.safetensors"
    posterior().save(path)
    with pytest.raises(
        FileError, match=r"does not fit the model: '0.weight' is \[8, 4\] float32 in the file and \[8, 5\]"
    ):
        br.load(path, mlp(features=5))
    with pytest.raises(FileError, match=r"'0.bias' is \[8\] float32 in the file and absent in the model"):
        br.load(path, nn.Linear(4, 3))
    with pytest.raises(FileError, match="float64 in the model"):
        br.load(path, mlp().double())


def test_targets_come_back_in_the_users_units(tmp_path):
    y = 1000 + 50 * X[:, 0]
    p = br.fit(mlp(1), br.data.standardize((X, y)), MAP(lr=0.02), epochs=100)
    p.save(tmp_path / "p")
    for q in (p, br.load(tmp_path / "p", mlp(1))):
        assert (q.predict(X).mean - y).abs().mean() < 15
        assert q.predict(X).std.mean() < 50


def test_dropout_is_off_after_a_prediction():
    p = br.fit(mlp(), (X, Y), MCDropout(), epochs=1)
    p.predict(X)
    assert not any(m.training for m in p.model.modules())
    assert not any(m._forward_pre_hooks for m in p.model.modules())


def test_a_network_without_hidden_layers_has_nothing_to_drop():
    with pytest.raises(ValueError, match="mc-dropout needs a module with dropout layers"):
        br.fit(nn.Linear(4, 3), (X, Y), MCDropout(), epochs=1)


class Bare(nn.Module):
    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(torch.ones(4, 3))

    def forward(self, x):
        return x @ self.scale


def test_an_ensemble_needs_fresh_starts():
    with pytest.raises(ValueError, match=r"cannot draw a fresh start for parameter 'scale' .*reset_parameters"):
        br.fit(Bare(), (X, Y), "ensemble", epochs=1)


def test_running_under_other_weights_leaves_a_shared_layer_as_it_was():
    model, (x, _) = zoo()["shared, unused and frozen"]
    before = copy.deepcopy(model.state_dict())
    other = {name: (2 * p).detach().requires_grad_() + 0 for name, p in modules.parameters(model).items()}
    doubled = copy.deepcopy(model)
    with torch.no_grad():
        for p in modules.parameters(doubled).values():
            p.mul_(2)
    torch.testing.assert_close(modules.call(model, x, other), doubled(x))
    assert all(torch.equal(w, before[name]) for name, w in model.state_dict().items())
    assert all(p.is_leaf for p in copy.deepcopy(model).parameters())


@pytest.mark.parametrize("method", [MAP(), Ensemble(2), SWAG(), BBB()])
def test_frozen_normalisation_stays(method):
    model = nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.ReLU(), nn.Linear(6, 3))
    model[:2].requires_grad_(False)
    model[1].running_mean.fill_(5.0)
    posterior = br.fit(model, (X, Y), method, epochs=2)
    tensors = []

    def collect(node):
        if isinstance(node, dict):
            tensors.extend(v for k, v in node.items() if k == "1.running_mean")
        for child in node.values() if isinstance(node, dict) else node if isinstance(node, list) else []:
            collect(child)

    collect(posterior.state())
    assert tensors
    assert all((t == 5.0).all() for t in tensors)


def test_dropout_in_a_transformer_is_at_work():
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.TransformerEncoderLayer(4, 2, 8, dropout=0.3, batch_first=True)
            self.head = nn.Linear(4, 3)

        def forward(self, x):
            return self.head(self.layer(x).mean(1))

    x = torch.randn(48, 5, 4, generator=torch.Generator().manual_seed(0))
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = Net()
    assert br.fit(model, (x, Y), MCDropout(), epochs=5).predict(x).epistemic.mean() > 1e-3
    assert torch.backends.mha.get_fastpath_enabled()


def test_one_example_needs_its_dimension():
    posterior = br.fit(mlp(1), (X, X[:, 0]), MAP(), epochs=1)
    with pytest.raises(ValueError, match=r"one example alone is X\[None\]"):
        posterior.predict(X[0])
    assert posterior.predict(X[:1]).mean.shape == (1,)


def test_a_mixture_counts_all_its_networks(monkeypatch):
    posterior = br.fit(mlp(), (X, Y), Ensemble(5), epochs=1)
    monkeypatch.setattr(networks, "MEMORY", 3 * 48 * 3 * 4)
    with pytest.raises(MemoryError, match="5 networks on 48 examples"):
        posterior.predict(X)


def test_large_examples_go_through_a_few_at_a_time():
    sizes = []

    class Big(nn.Module):
        def __init__(self):
            super().__init__()
            self.net = nn.Linear(4, 3)

        def forward(self, x):
            sizes.append(len(x))
            return self.net(x[:, :4])

    x = torch.zeros(40, 2**20)
    x[:, :4] = X[:40]
    br.fit(Big(), (x, Y[:40]), MAP(), epochs=1, batch_size=4).predict(x)
    assert max(sizes) == 8


def test_a_posterior_says_how_it_came_about():
    info = br.fit(mlp(1), (X, X[:, 0]), MAP(), epochs=1).info
    assert info["prior"]["fields"]["scale"] == "kaiming"
    assert info["versions"]["bayesrule"] == br.__version__


@pytest.mark.parametrize("ood", [X.tolist(), X.numpy(), (X, Y), torch.utils.data.TensorDataset(X, Y)])
def test_inputs_from_elsewhere_in_any_form(ood):
    posterior = br.fit(mlp(), (X, Y), MAP(), epochs=1)
    assert br.evaluate(posterior, (X, Y), ood=ood, bootstrap=0)["auroc_ood"] == 0.5
