"""J Λ⁻¹ Jᵀ of every structure and network against Jacobians by autograd; and the low-rank curvature."""

import pytest
import torch
from curvature_networks import call, networks, normal
from dense_reference import Joined, ggn, jacobian, relative
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from bayesrule.curvature import Tangents, curvature, example_gradients, propagate
from bayesrule.likelihoods import Categorical, Gaussian
from bayesrule.structures import Blocks, Dense, Diagonal, Kronecker, LowRank

EXACT = 1e-10
TABLE = {name: (Joined(model), x) for name, (model, x) in networks().items()}


def positive(seed, *shape):
    return normal(*shape, seed=seed).square() + 0.1


def structures(size):
    definite = normal(size, size, seed=1)
    return {
        "diagonal": Diagonal(positive(0, size)),
        "dense": Dense(definite @ definite.T + torch.eye(size, dtype=torch.float64)),
        "low rank": LowRank(positive(0, size), normal(size, 2, seed=2)),
        "path": LowRank(positive(0, size), normal(size, 2, seed=2), of="covariance"),
    }


@pytest.mark.filterwarnings("ignore:.*which is slow")
@pytest.mark.parametrize("kind", ["diagonal", "dense", "low rank", "path"])
@pytest.mark.parametrize("name", TABLE)
def test_any_network(name, kind):
    model, x = TABLE[name]
    parameters = {k: p for k, p in model.named_parameters() if p.requires_grad}
    structure = structures(sum(p.numel() for p in parameters.values()))[kind]
    outputs, variance = propagate(model, x, structure, list(parameters))
    j = jacobian(model.eval(), x)
    assert outputs.shape[0] == len(j)
    assert relative(variance, structure.variance_along(j)) < EXACT


@pytest.mark.filterwarnings("ignore:.*which is slow")
@pytest.mark.parametrize("name", TABLE)
def test_along_a_direction(name):
    """J d of every network, with J by autograd."""
    model, x = TABLE[name]
    parameters = {k: p for k, p in model.named_parameters() if p.requires_grad}
    direction = {k: normal(*p.shape, seed=i) for i, (k, p) in enumerate(parameters.items())}
    wanted = jacobian(model.eval(), x) @ torch.cat([d.flatten() for d in direction.values()])
    assert relative(Tangents(model, x, list(parameters)).along(direction), wanted) < EXACT


def kronecker(seed, rows, columns, bias, values):
    """A product with a prior, one precision for the weight and one for the bias."""
    left, right = (f @ f.T for f in (normal(rows, rows, seed=seed), normal(columns, columns, seed=seed + 1)))
    spread = torch.full((rows * columns,), values[0], dtype=torch.float64)
    spread[rows * (columns - bias) :] = values[1]
    return Kronecker([left], [right], spread, bias)


@pytest.mark.parametrize("values", [(1.0, 1.0), (4.0, 0.25)])
@pytest.mark.parametrize("bias", [False, True])
@given(seed=st.integers(0, 1000))
def test_linear_layers_without_their_jacobian(bias, values, seed):
    """Blocks of Kronecker products, one for each layer, the bias within."""
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(3, 4, bias=bias), nn.Tanh(), nn.Linear(4, 2, bias=bias)).double()
    parts = [kronecker(seed, 4, 3 + bias, bias, values), kronecker(seed + 2, 2, 4 + bias, bias, values)]
    precision, x = Blocks(parts), normal(5, 3, seed=seed)
    _, variance = propagate(model, x, precision, [name for name, _ in model.named_parameters()])
    assert relative(variance, precision.variance_along(jacobian(model, x))) < EXACT


def test_the_order_of_the_names_is_that_of_the_precision():
    model, x = nn.Linear(3, 2).double(), normal(4, 3)
    variances = {"bias": positive(0, 2), "weight": positive(1, 6)}
    found = [propagate(model, x, Diagonal(torch.cat([variances[n] for n in order])), order)[1] for order in
             (["bias", "weight"], ["weight", "bias"])]  # fmt: skip
    assert relative(found[0], found[1]) < EXACT


def test_examples_in_blocks_are_examples_at_once(monkeypatch):
    model, x = nn.Sequential(nn.Conv2d(1, 2, 3), nn.Flatten(), nn.Linear(18, 3)).double(), normal(7, 1, 5, 5)
    names = [name for name, _ in model.named_parameters()]
    precision = Diagonal(positive(0, sum(p.numel() for p in model.parameters())))
    whole = propagate(model, x, precision, names)
    monkeypatch.setattr("bayesrule.data.inputs.block", lambda x: 6)
    pieces = propagate(model, x, precision, names)
    assert all(relative(a, b) < EXACT for a, b in zip(pieces, whole, strict=True))
    with pytest.raises(ValueError, match="x must hold at least one example"):
        propagate(model, x[:0], precision, names)


@pytest.mark.parametrize("labels", ["exact", "empirical"])
def test_low_rank_is_exact_once_it_has_the_rank(labels):
    torch.manual_seed(0)
    model, x, y = nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 3)).double(), normal(5, 4), torch.arange(5) % 3
    dense = curvature(model, [(x[:2], y[:2]), (x[2:], y[2:])], Categorical(), "dense", labels=labels)
    low = curvature(model, [(x[:2], y[:2]), (x[2:], y[2:])], Categorical(), "lowrank", labels=labels, rank=15)
    assert relative(low.matrix.dense(), dense.matrix.dense()) < 1e-8
    assert relative(low.matrix.diagonal, dense.matrix.diagonal) < 1e-8
    if labels == "exact":
        assert relative(dense.matrix.dense(), ggn(model, x, Categorical())) < EXACT


@given(seed=st.integers(0, 1000), rank=st.integers(1, 12))
def test_low_rank_is_never_above_and_keeps_the_stiffest_directions(seed, rank):
    """G − FFᵀ has no negative eigenvalue, and what is left is not far above the best there is of this rank."""
    torch.manual_seed(seed)
    x = normal(30, 5, seed=seed) * torch.tensor([10.0, 3.0, 1.0, 0.3, 0.1], dtype=torch.float64)
    model = nn.Sequential(nn.Linear(5, 3), nn.Tanh(), nn.Linear(3, 2)).double()
    batches = [(x, torch.zeros(30, 2))]
    whole = curvature(model, batches, Gaussian(noise=1.0), "dense").matrix.dense()
    low = curvature(model, batches, Gaussian(noise=1.0), "lowrank", rank=rank)
    block = low.matrix
    left = torch.linalg.eigvalsh(whole - block.factor @ block.factor.T)
    values = torch.linalg.eigvalsh(whole)
    assert left[0] > -1e-8 * values[-1]
    assert left.sum() <= 3 * values[:-rank].sum() + 1e-8 * values[-1]
    assert block.factor.shape[1] <= rank
    assert relative(low.matrix.diagonal, whole.diagonal()) < 1e-8


@pytest.mark.filterwarnings("ignore:.*which is slow")
@pytest.mark.parametrize("name", TABLE)
def test_gradients_of_every_example(name):
    """Against autograd, one example at a time."""
    model, x = TABLE[name]
    model.eval()
    parameters = [p for p in model.parameters() if p.requires_grad]
    outputs = call(model, x)
    y, likelihood = torch.zeros_like(outputs.detach()), Gaussian(noise=0.7)
    losses = -likelihood.log_prob(outputs, likelihood.check(outputs.detach(), y))
    how = {"retain_graph": True, "allow_unused": True, "materialize_grads": True}
    each = [torch.autograd.grad(loss, parameters, **how) for loss in losses]
    wanted = [torch.cat([g.flatten() for g in gradients]) for gradients in each]
    assert relative(example_gradients(model, x, y, likelihood), torch.stack(wanted)) < EXACT


def test_gradients_of_no_example_are_refused():
    with pytest.raises(ValueError, match="x must hold at least one example"):
        example_gradients(nn.Linear(2, 1), torch.zeros(0, 2), torch.zeros(0), Gaussian(noise=1.0))
