"""What curvature refuses, and what it says then."""

import pytest
import torch
from curvature_networks import networks, normal
from torch import nn

from bayesrule.curvature import curvature, jacobians, limits
from bayesrule.likelihoods import Categorical, Gaussian

X, Y = normal(6, 4), torch.tensor([0, 1, 1, 0, 1, 0])
BATCHES = [(X, Y)]


@pytest.fixture
def model():
    return networks()["mlp"][0]


def test_a_matrix_that_does_not_fit(model, monkeypatch):
    monkeypatch.setattr(limits, "free", lambda device: 20_000)
    with pytest.raises(MemoryError, match=r"dense curvature of 67 parameters needs .* only .* free: take structure="):
        curvature(model, BATCHES, Categorical(), "dense")
    with pytest.raises(MemoryError, match=r"Jacobian of 120 examples, 2 outputs and 67 parameters .*fewer examples"):
        jacobians(model, normal(120, 4))
    monkeypatch.setattr(limits, "free", lambda device: 2000)
    with pytest.raises(MemoryError, match=r"Kronecker factors of layer '2', 5² and 6² numbers.*'diagonal'"):
        curvature(model, BATCHES, Categorical(), "kronecker")
    curvature(model, BATCHES, Categorical(), "diagonal")


def test_a_matrix_over_a_large_network_is_refused_before_it_is_made():
    wide = nn.Linear(1000, 1000)
    with pytest.raises(MemoryError, match="dense curvature of 1,001,000 parameters needs 6,"):
        curvature(
            wide, [(torch.zeros(2, 1000), torch.tensor([0, 1]))], Categorical(), "dense", subset=["weight", "bias"]
        )


def test_free_memory_is_a_number_of_bytes(monkeypatch):
    assert limits.free(torch.device("cpu")) > 2**20
    monkeypatch.setattr(limits, "_meminfo", lambda: None)
    monkeypatch.setattr(limits, "_cgroup", lambda: None)
    assert limits.free(torch.device("cpu")) == limits.UNKNOWN


@pytest.mark.parametrize(("value", "said"), [(torch.nan, "NaN"), (torch.inf, "infinite numbers")])
def test_a_weight_that_is_no_number(model, value, said):
    with torch.no_grad():
        model[2].bias[1] = value
    with pytest.raises(FloatingPointError, match=rf"the bias of layer '2' \(Linear\) holds {said}"):
        curvature(model, BATCHES, Categorical())
    with pytest.raises(FloatingPointError, match="layer '2'"):
        jacobians(model, X)


class Overflows(nn.Module):
    def forward(self, x):
        return (x * 1e200).square()


def test_an_output_that_is_no_number(model):
    bad = nn.Sequential(model[0], Overflows(), model[4])
    with pytest.raises(FloatingPointError, match=r"layer '1' \(Overflows\) gives infinite numbers"):
        curvature(bad, BATCHES, Categorical())
    x = X.clone()
    x[2, 1] = torch.nan
    with pytest.raises(FloatingPointError, match="X holds NaN"):
        jacobians(model, x)


class Odd(Categorical):
    """A likelihood with a Hessian of one's own."""

    name = "odd"
    matrix = ((1.0, 0.0), (0.0, 1.0))

    def hessian(self, outputs):
        return torch.tensor(self.matrix, dtype=outputs.dtype).expand(len(outputs), 2, 2)


@pytest.mark.parametrize(
    ("matrix", "kind", "said"),
    [
        (((1.0, 0.0), (0.0, -0.5)), ValueError, "'odd' must have no negative eigenvalue, but has -0.5"),
        (((1.0, 2.0), (2.0, 1.0)), ValueError, "'odd' must have no negative eigenvalue, but has -1"),
        (((1.0, 2.0), (0.0, 9.0)), ValueError, "'odd' must be symmetric"),
        (((1.0, torch.nan), (torch.nan, 1.0)), FloatingPointError, "'odd' holds nan at outputs between"),
    ],
)
@pytest.mark.parametrize("subset", ["all", "last-layer"])
def test_a_hessian_that_is_none(model, matrix, kind, said, subset):
    likelihood = Odd()
    object.__setattr__(likelihood, "matrix", matrix)
    with pytest.raises(kind, match=said):
        curvature(model, BATCHES, likelihood, "dense", subset)


def test_a_full_hessian(model):
    likelihood = Odd()
    object.__setattr__(likelihood, "matrix", ((2.0, 1.0), (1.0, 0.5)))
    j = jacobians(model, X)
    wanted = torch.einsum("bcp,cd,bdq->pq", j, torch.tensor(likelihood.matrix, dtype=j.dtype), j)
    assert torch.allclose(curvature(model, BATCHES, likelihood, "dense").matrix.dense(), wanted, atol=1e-10)


def test_a_hessian_of_another_shape(model, monkeypatch):
    monkeypatch.setattr(Odd, "hessian", lambda self, outputs: outputs)
    with pytest.raises(ValueError, match=r"must be \[B, ..., C, C\] for outputs \[6, 2\]: got \[6, 2\]"):
        curvature(model, BATCHES, Odd())


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"structure": "kroneker"}, "unknown structure 'kroneker': did you mean 'kronecker'"),
        ({"labels": "exactly"}, "unknown labels 'exactly': did you mean 'exact'"),
        ({"samples": 0}, "samples must be at least 1, not 0"),
        ({"subset": "last"}, r"subset must be 'all', 'last-layer' or a list of names, not 'last'"),
        ({"subset": ["4.weigth"]}, "unknown parameter or layer '4.weigth': did you mean '4.weight'"),
        ({"subset": []}, "no parameter takes part"),
    ],
)
def test_settings_that_do_not_exist(model, settings, said):
    with pytest.raises(ValueError, match=said):
        curvature(model, BATCHES, Categorical(), **settings)


def test_batches_that_are_none(model):
    with pytest.raises(ValueError, match="at least one pair"):
        curvature(model, [], Categorical())
    with pytest.raises(TypeError, match=r"pairs \(x, y\), not Tensor: one batch alone is \[\(x, y\)\]"):
        curvature(model, (X, Y), Categorical())
    with pytest.raises(ValueError, match="at least one example"):
        jacobians(model, X[:0])


def test_a_network_without_a_last_layer(model):
    with pytest.raises(ValueError, match=r"no last layer was found: .* Sequential .* subset=\['4.weight', '4.bias'\]"):
        curvature(nn.Sequential(*model, nn.Tanh()), BATCHES, Categorical(), subset="last-layer")


def test_outputs_without_the_examples():
    with pytest.raises(ValueError, match=r"outputs \[3, 6\] for 6 examples: it must keep the examples"):
        jacobians(nn.Sequential(nn.Linear(4, 3), _Turned()), X.float())


class _Turned(nn.Module):
    def forward(self, x):
        return x.T


class Branches(nn.Module):
    """A layer that is called twice where the first number is large."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 4)

    def forward(self, x):
        found = self.layer(x)
        return self.layer(found) if float(x.detach().max()) > 100 else found


def test_a_layer_that_is_called_more_often_later():
    x, y = X.float(), torch.zeros(6, 4)
    batches = [(x, y), (x * 1000, y)]
    for structure in ("kronecker", "dense"):
        with pytest.raises(RuntimeError, match=r"the first batch but not those of a later .* structure='diagonal'"):
            curvature(Branches(), batches, Gaussian(noise=1.0), structure)
    within = nn.Sequential(Branches(), nn.Linear(4, 4))  # not the last layer, which is looked at by itself
    with pytest.raises(RuntimeError, match=r"layer '0.layer' is called 2 times .* take structure='diagonal'"):
        curvature(within, batches, Gaussian(noise=1.0), "kronecker")
    curvature(Branches(), batches, Gaussian(noise=1.0), "diagonal")
