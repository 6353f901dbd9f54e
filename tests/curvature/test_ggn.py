"""Curvature in every structure against the dense matrix that autograd gives, one output at a time."""

import functools

import pytest
import torch
from covering import first
from curvature_networks import Functional, TiedEmbedding, layers, networks, normal, tokens
from dense_reference import Joined, ggn, jacobian, relative, size
from torch import nn

from bayesrule import modules
from bayesrule.curvature import curvature, heads, jacobians, plans, watched
from bayesrule.likelihoods import Bernoulli, Categorical, Gaussian, Heteroscedastic, Poisson
from bayesrule.structures import Dense, Diagonal, Kronecker

TABLE = {name: (Joined(model), x) for name, (model, x) in (layers() | networks()).items()}
EXACT = 1e-8
pytestmark = pytest.mark.filterwarnings("ignore:Using padding='same'")  # torch's own


@functools.cache
def looped(name):
    """The Jacobian of a network of the table, by the loop: seconds for some, so once."""
    return jacobian(*TABLE[name])


@functools.cache
def dense(name):
    """The matrix of a network of the table, for a categorical likelihood."""
    model, x = TABLE[name]
    return ggn(model, x, Categorical(), looped(name))


def labels(x, count=2):
    return torch.arange(size(x)) % count


def sequential(*parts, seed=0):
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = nn.Sequential(*[part() for part in parts]).double()
        for p in model.parameters():
            nn.init.normal_(p, std=0.6)
    return model


def linear_network():
    """Deep, and linear in its inputs."""
    return sequential(lambda: nn.Linear(4, 5), lambda: nn.Linear(5, 3), lambda: nn.Linear(3, 2))


def blocks_of(matrix, found):
    """What a dense matrix has in the place of each block."""
    wanted, start = [], 0
    for block in found.blocks().values():
        wanted.append(matrix[start : start + block.size, start : start + block.size])
        start += block.size
    return wanted


@pytest.mark.parametrize("name", TABLE)
def test_jacobians_are_those_of_a_loop_over_examples_and_outputs(name):
    model, x = TABLE[name]
    assert relative(jacobians(model, x), looped(name)) < EXACT


@pytest.mark.parametrize("name", TABLE)
def test_diagonal_and_dense_are_the_dense_matrix(name):
    model, x = TABLE[name]
    full = curvature(model, [(x, labels(x))], Categorical(), structure="dense")
    diagonal = curvature(model, [(x, labels(x))], Categorical(), structure="diagonal")
    assert relative(full.matrix.dense(), dense(name)) < EXACT
    assert relative(diagonal.matrix.diagonal, dense(name).diagonal()) < EXACT
    assert [type(block) for block in (full.matrix, diagonal.matrix)] == [Dense, Diagonal]


@pytest.mark.parametrize("name", TABLE)
def test_layers_without_a_kronecker_form_have_their_own_exact_block(name):
    model, x = TABLE[name]
    found = curvature(model, [(x, labels(x))], Categorical(), structure="kronecker")
    assert [name for names in found.blocks() for name in names] == list(found.shapes)
    for block, wanted in zip(found.blocks().values(), blocks_of(dense(name), found), strict=True):
        if isinstance(block, Dense):
            assert relative(block.matrix, wanted) < EXACT
    kronecker = sum(isinstance(block, Kronecker) for block in found.blocks().values())
    assert bool(found.fallbacks) == (kronecker < len(found.blocks()))


class Beside(nn.Module):
    """A layer in between the parameters of another one."""

    def __init__(self):
        super().__init__()
        self.shift, self.body = nn.Parameter(torch.ones(3)), nn.Linear(3, 3)
        self.scales = nn.ParameterList([torch.ones(3)])

    def forward(self, x):
        return self.body(x + self.shift) * self.scales[0]


def test_blocks_are_consecutive_pieces():
    x = normal(5, 3)
    found = curvature(Beside().double(), [(x, labels(x))], Categorical(), structure="kronecker")
    assert list(found.blocks()) == [("shift",), ("body.weight", "body.bias"), ("scales.0",)]


def test_large_ones_have_their_own_exact_diagonal(monkeypatch):
    monkeypatch.setattr(plans, "DENSE_UP_TO", 0)
    model, x = TABLE["cnn"]
    found = curvature(model, [(x, labels(x))], Categorical(), structure="kronecker")
    kinds = {type(block): block for block in found.blocks().values()}
    assert set(kinds) == {Kronecker, Diagonal}
    for block, wanted in zip(found.blocks().values(), blocks_of(dense("cnn"), found), strict=True):
        if isinstance(block, Diagonal):
            assert relative(block.values, wanted.diagonal()) < EXACT


@pytest.mark.parametrize("name", ["mlp", "cnn", "words", "attention", "tied embedding", "bare parameters"])
def test_jacobians_are_those_of_jacrev(name):
    model, x = TABLE[name]
    parameters = {n: p.detach() for n, p in modules.parameters(model).items()}
    found = torch.func.jacrev(lambda state: modules.call(model, x, state))(parameters)
    wanted = torch.cat([part.reshape(*part.shape[:2], -1) for part in found.values()], 2)
    assert relative(jacobians(model, x), wanted) < EXACT


def test_kronecker_blocks_are_exact_for_one_example():
    model, x = TABLE["mlp"]
    found = curvature(model, [(x[:1], labels(x[:1]))], Categorical(), structure="kronecker")
    assert all(isinstance(block, Kronecker) and block.bias for block in found.blocks().values())
    for block, wanted in zip(found.blocks().values(), blocks_of(ggn(model, x[:1], Categorical()), found), strict=True):
        assert relative(block.dense(), wanted) < EXACT
        assert relative(block.diagonal, wanted.diagonal()) < EXACT


@pytest.mark.parametrize("name", ["conv2d, as large as the image", "linear, no bias", "linear on sequences of one"])
def test_so_are_those_of_a_layer_that_an_example_uses_once(name):
    model, x = TABLE[name]
    found = curvature(model, [(x[:1], labels(x[:1]))], Categorical(), structure="kronecker")
    assert not found.fallbacks
    assert relative(found.matrix.dense(), ggn(model, x[:1], Categorical())) < EXACT


def test_kronecker_blocks_are_exact_for_deep_linear_networks_under_squared_loss():
    model, x, likelihood = linear_network(), normal(7, 4), Gaussian(noise=0.7)
    batches = [(x[:3], torch.zeros(3, 2)), (x[3:], torch.zeros(4, 2))]
    found = curvature(model, batches, likelihood, structure="kronecker")
    assert len(found.blocks()) == 3
    for block, wanted in zip(found.blocks().values(), blocks_of(ggn(model, x, likelihood), found), strict=True):
        assert relative(block.dense(), wanted) < EXACT


def test_and_for_those_with_a_loss_at_each_position():
    """Convolutions of width 1: every position is an example of its own."""
    model = sequential(lambda: nn.Conv1d(3, 4, 1), lambda: nn.Conv1d(4, 2, 1))
    x, likelihood = normal(5, 3, 6), Gaussian(noise=0.7)
    found = curvature(model, [(x, torch.zeros(5, 2, 6))], likelihood, structure="kronecker")
    for block, wanted in zip(found.blocks().values(), blocks_of(ggn(model, x, likelihood), found), strict=True):
        assert relative(block.dense(), wanted) < EXACT


def test_the_result_says_which_layers_fell_back():
    model, x = networks()["cnn"]
    found = curvature(model, [(x, labels(x, 3))], Categorical())
    assert found.fallbacks == {
        "1": "dense: BatchNorm2d has no Kronecker form",
        "3": "dense: Conv2d has no Kronecker form with groups",
        "4": "dense: GroupNorm has no Kronecker form",
    }
    assert list(found.blocks()) == [(f"{layer}.weight", f"{layer}.bias") for layer in ("0", "1", "3", "4", "6")]
    big = sequential(lambda: nn.Embedding(300, 4), nn.Flatten, lambda: nn.Linear(8, 3))
    found = curvature(big, [(tokens(6, 2, count=300), labels(x, 3))], Categorical())
    assert found.fallbacks == {"0": "diagonal: Embedding has no Kronecker form"}
    tied = networks()["tied layers"]
    found = curvature(tied[0], [(tied[1], labels(x, 4))], Categorical())
    assert found.fallbacks["a"] == "dense: its parameters are used 2 and 1 times"


LIKELIHOODS = {
    "classes": (Categorical(), 3, torch.tensor([0, 2, 1, 1, 0])),
    "yes or no": (Bernoulli(), 1, torch.tensor([0, 1, 1, 1, 0])),
    "three answers": (Bernoulli(), 3, torch.ones(5, 3)),
    "reals": (Gaussian(noise=0.3), 2, torch.zeros(5, 2)),
    "one real": (Gaussian(noise=0.3), 1, torch.zeros(5)),
    "noise from the network": (Heteroscedastic(), 4, torch.zeros(5, 2)),
    "counts": (Poisson(), 2, torch.tensor([[1, 0], [2, 3], [0, 0], [1, 1], [4, 0]])),
}


@pytest.mark.parametrize("subset", ["all", "last-layer"])
@pytest.mark.parametrize("name", LIKELIHOODS)
def test_every_likelihood(name, subset):
    likelihood, width, y = LIKELIHOODS[name]
    model = sequential(lambda: nn.Linear(4, 3), nn.Tanh, lambda: nn.Linear(3, width))
    x = normal(5, 4)
    found = curvature(model, [(x, y)], likelihood, structure="dense", subset=subset)
    wanted = ggn(model, x, likelihood)
    assert relative(found.matrix.dense(), wanted if subset == "all" else wanted[15:, 15:]) < EXACT
    outputs = model(x).detach()
    assert found.loss == pytest.approx(-float(likelihood.log_prob(outputs, likelihood.check(outputs, y)).sum()))
    assert (found.examples, found.matrix.size) == (5, 15 * (subset == "all") + 4 * width)


@pytest.mark.parametrize("subset", ["all", "last-layer"])
def test_outputs_for_every_pixel(subset):
    model = sequential(lambda: nn.Conv2d(1, 2, 3, padding=1), nn.Tanh, lambda: nn.Conv2d(2, 3, 1))
    x, y = normal(4, 1, 3, 2), tokens(4, 3, 2, count=3)
    wanted = ggn(model, x, Categorical())
    wanted = wanted if subset == "all" else wanted[20:, 20:]
    assert relative(curvature(model, [(x, y)], Categorical(), "dense", subset).matrix.dense(), wanted) < EXACT
    diagonal = curvature(model, [(x, y)], Categorical(), "diagonal", subset).matrix.diagonal
    assert relative(diagonal, wanted.diagonal()) < EXACT


def test_outputs_without_their_own_dimension():
    model = sequential(lambda: nn.Linear(4, 3), nn.Tanh, lambda: nn.Linear(3, 1), lambda: nn.Flatten(0))
    x, y = normal(5, 4), torch.zeros(5)
    wanted = ggn(model, x, Gaussian(noise=0.5))
    assert relative(curvature(model, [(x, y)], Gaussian(noise=0.5), "dense").matrix.dense(), wanted) < EXACT
    last = curvature(model, [(x, y)], Gaussian(noise=0.5), "dense", "last-layer")
    assert list(last.shapes) == ["2.weight", "2.bias"]
    assert relative(last.matrix.dense(), wanted[15:, 15:]) < EXACT


@pytest.mark.parametrize("names", [["4"], ["4.weight"], ["4.bias"], ["2.bias", "4"], ["0.weight", "4.bias"]])
@pytest.mark.parametrize("structure", ["diagonal", "kronecker", "dense"])
def test_parameters_by_name(names, structure):
    model, x = networks()["mlp"]
    found = curvature(model, [(x, labels(x))], Categorical(), structure, subset=names)
    everything = curvature(model, [(x, labels(x))], Categorical(), "dense")
    assert list(found.shapes) == [p for p in modules.parameters(model) if p in names or p.split(".")[0] in names]
    parts = torch.split(torch.arange(everything.matrix.size), [shape.numel() for shape in everything.shapes.values()])
    at = torch.cat([part for name, part in zip(everything.shapes, parts, strict=True) if name in found.shapes])
    wanted = everything.matrix.dense()[at][:, at]
    if structure == "dense":
        assert relative(found.matrix.dense(), wanted) < EXACT
    elif structure == "diagonal":
        assert relative(found.matrix.diagonal, wanted.diagonal()) < EXACT
    assert relative(jacobians(model, x, names), jacobian(model, x)[:, :, at]) < EXACT


@pytest.mark.parametrize("model", [TiedEmbedding, Functional])
@pytest.mark.filterwarnings("ignore:.*used outside of its own call")
def test_a_last_layer_with_a_shared_weight_has_all_of_its_uses(model):
    """The table is read at the start too: the closed form of a last layer does not hold."""
    model, x = Joined(sequential(model)), tokens(6, 3)
    found = curvature(model, [(x, labels(x))], Categorical(), "dense", ["model.0.embed"])
    assert relative(found.matrix.dense(), ggn(model, x, Categorical())[:20, :20]) < EXACT


class Reordered(nn.Module):
    def forward(self, x):
        return x.view(-1, 2, 3).transpose(1, 2).flatten(1)


def test_a_last_layer_whose_outputs_are_put_in_another_order():
    model, x = sequential(lambda: nn.Linear(4, 3), nn.Tanh, lambda: nn.Linear(3, 6), Reordered), normal(5, 4)
    found = curvature(model, [(x, labels(x))], Categorical(), "dense", "last-layer")
    assert list(found.shapes) == ["2.weight", "2.bias"]
    assert relative(found.matrix.dense(), ggn(model, x, Categorical())[15:, 15:]) < EXACT


def test_noise_that_is_being_learnt_leaves_no_graph_behind():
    model, x = linear_network(), normal(5, 4)
    noise = torch.full((2,), 0.5, dtype=torch.float64, requires_grad=True)
    for subset in ("all", "last-layer"):
        found = curvature(model, [(x, torch.zeros(5, 2))], Gaussian(noise=noise), "dense", subset)
        assert not found.matrix.dense().requires_grad


@pytest.mark.parametrize("setting", ["ROWS", "TILE", "WAIT"])
def test_a_last_layer_in_small_pieces(setting, monkeypatch):
    model, x = networks()["mlp"]
    monkeypatch.setattr(heads, setting, 2)
    found = curvature(model, [(x[:3], labels(x[:3])), (x[3:], labels(x[3:]))], Categorical(), "dense", "last-layer")
    assert relative(found.matrix.dense(), ggn(model, x, Categorical())[-12:, -12:]) < EXACT


def test_examples_of_which_a_network_is_sure_are_left_out_of_a_last_layer_only_if_rounding_hides_them():
    model, x = networks()["mlp"]
    with torch.no_grad():
        model[-1].weight *= 60
        model[-1].bias *= 60
    found = curvature(model, [(x, labels(x))], Categorical(), "dense", "last-layer")
    assert relative(found.matrix.dense(), ggn(model, x, Categorical())[-12:, -12:]) < 1e-12


@pytest.mark.parametrize("structure", ["diagonal", "kronecker", "dense"])
@pytest.mark.parametrize("name", ["cnn", "tied layers", "bare parameters"])
def test_little_room_changes_nothing(structure, name, monkeypatch):
    model, x = TABLE[name]
    wanted = curvature(model, [(x, labels(x))], Categorical(), structure).matrix.dense()
    monkeypatch.setattr(watched, "ROOM", 1)
    assert relative(curvature(model, [(x, labels(x))], Categorical(), structure).matrix.dense(), wanted) < 1e-12


@pytest.mark.parametrize("structure", ["diagonal", "dense"])
def test_batches_add_up(structure):
    model, x = networks()["cnn"]
    parts = [(part, labels(part)) for part in x.split([1, 3, 2])]
    found = curvature(model, iter(parts), Categorical(), structure)
    whole = curvature(model, [(x, torch.cat([y for _, y in parts]))], Categorical(), structure)
    assert relative(found.matrix.dense(), whole.matrix.dense()) < 1e-12
    assert found.loss == pytest.approx(whole.loss)
    assert found.examples == whole.examples == 6


@pytest.mark.parametrize("structure", ["diagonal", "kronecker", "dense"])
def test_single_precision(structure):
    model, x = networks()["cnn"]
    wanted = curvature(model, [(x, labels(x))], Categorical(), structure).matrix.dense()
    single = networks()["cnn"][0].float()
    found = curvature(single, [(x, labels(x))], Categorical(), structure).matrix.dense()
    assert found.dtype == torch.float32
    assert relative(found.double(), wanted) < 1e-4


@pytest.mark.parametrize("structure", ["diagonal", "dense"])
def test_given_labels_are_the_empirical_fisher_matrix(structure):
    model, x = networks()["mlp"]
    slopes = (nn.functional.one_hot(labels(x)) - model(x).softmax(1)).detach()
    each = torch.einsum("bcp,bc->bp", jacobian(model, x), slopes)
    found = curvature(model, [(x, labels(x))], Categorical(), structure, labels="empirical")
    assert relative(found.matrix.diagonal, each.square().sum(0)) < EXACT
    if structure == "dense":
        last = curvature(model, [(x, labels(x))], Categorical(), "dense", "last-layer", "empirical")
        assert relative(found.matrix.dense(), each.T @ each) < EXACT
        assert relative(last.matrix.dense(), (each.T @ each)[-12:, -12:]) < EXACT


@pytest.mark.parametrize("seed", first([0, 1, 2]))
@pytest.mark.parametrize("likelihood", ["classes", "noise from the network", "counts"])
def test_drawn_labels_give_the_exact_matrix_in_the_mean(likelihood, seed):
    """The mean of 400 draws of the diagonal is within 5 standard errors of it: wrong once in 10⁵ numbers or so."""
    likelihood, width, y = LIKELIHOODS[likelihood]
    model = sequential(lambda: nn.Linear(4, 3), nn.Tanh, lambda: nn.Linear(3, width))
    batches, generator = [(normal(5, 4), y)], torch.Generator().manual_seed(seed)
    wanted = curvature(model, batches, likelihood, "diagonal").matrix.diagonal
    draws = torch.stack(
        [
            curvature(model, batches, likelihood, "diagonal", labels="sampled", generator=generator).matrix.diagonal
            for _ in range(400)
        ]
    )
    assert ((draws.mean(0) - wanted).abs() < 5 * draws.std(0) / 400**0.5 + 1e-12).all()


@pytest.mark.parametrize("structure", ["diagonal", "kronecker"])
def test_many_draws_come_near(structure):
    model, x = networks()["mlp"]
    wanted = curvature(model, [(x, labels(x))], Categorical(), structure)
    draw = torch.Generator().manual_seed(0)
    found = curvature(model, [(x, labels(x))], Categorical(), structure, labels="sampled", samples=1000, generator=draw)
    assert relative(found.matrix.dense(), wanted.matrix.dense()) < 0.1


def test_the_model_and_the_random_state_are_left_alone():
    model, x = networks()["cnn"]
    model.train()
    before, state = {n: t.clone() for n, t in model.state_dict().items()}, torch.get_rng_state()
    generator = torch.Generator().manual_seed(0)
    curvature(model, [(x, labels(x))], Categorical(), labels="sampled", generator=generator)
    jacobians(model, x)
    assert all(torch.equal(before[n], t) for n, t in model.state_dict().items())
    assert torch.equal(state, torch.get_rng_state())
    assert all(m.training for m in model.modules())
    assert all(p.requires_grad and p.grad is None for p in model.parameters())
    assert not any(m._forward_hooks or m._forward_pre_hooks for m in model.modules())
    model.eval()


def test_frozen_parameters_take_no_part():
    model = linear_network()
    model[1].requires_grad_(False)
    x, likelihood = normal(5, 4), Gaussian(noise=1.0)
    found = curvature(model, [(x, torch.zeros(5, 2))], likelihood, "dense")
    assert list(found.shapes) == ["0.weight", "0.bias", "2.weight", "2.bias"]
    assert relative(found.matrix.dense(), ggn(model, x, likelihood)) < EXACT


class Scale(nn.Module):
    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(torch.tensor(0.7, dtype=torch.float64))

    def forward(self, x):
        return torch.tanh(self.scale * x)


@pytest.mark.parametrize("structure", ["diagonal", "kronecker", "dense"])
def test_a_single_number_that_is_used_twice(structure):
    scale = Scale()
    model, x = nn.Sequential(scale, scale), normal(5, 3)
    found = curvature(model, [(x, labels(x))], Categorical(), structure)
    assert relative(found.matrix.dense(), ggn(model, x, Categorical())) < EXACT


def test_inputs_by_name():
    model, x = networks()["dict in, dict out"]
    model = Joined(model)
    found = curvature(model, [(x, labels(x))], Categorical(), "dense")
    assert relative(found.matrix.dense(), ggn(model, x, Categorical())) < EXACT
