"""Laplace's method on a trained network: what is left out is predicted as by a fit without it; nothing is harmed."""

import copy

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy, one_hot

import bayesrule as br
from bayesrule.curvature import averaged, curvature
from bayesrule.data import Batch
from bayesrule.likelihoods import Categorical
from bayesrule.methods.leave_one_out import LEFT, LeaveOneOut
from bayesrule.structures import Dense, Diagonal


def blobs(n, seed, flip=0.0):
    """Three classes about three centres, some labels drawn at random."""
    generator = torch.Generator().manual_seed(seed)
    y = torch.randint(3, (n,), generator=generator)
    x = 1.5 * one_hot(y, 3).double() + torch.randn(n, 3, generator=generator, dtype=torch.float64)
    other = torch.randint(3, (n,), generator=generator)
    return x, torch.where(torch.rand(n, generator=generator) < flip, other, y)


def logistic(x, y, decay, weights=None):
    """The mode of a logistic regression under N(0, 1/decay), by L-BFGS; ``weights``: of each example."""
    torch.manual_seed(0)
    net = nn.Linear(3, 3).double()
    weights = torch.ones(len(y), dtype=torch.float64) if weights is None else weights
    optimizer = torch.optim.LBFGS(net.parameters(), max_iter=200, tolerance_grad=1e-9, line_search_fn="strong_wolfe")

    def loss():
        optimizer.zero_grad()
        value = (weights * cross_entropy(net(x), y, reduction="none")).sum()
        value = value + 0.5 * decay * sum(p.square().sum() for p in net.parameters())
        value.backward()
        return value

    optimizer.step(loss)
    return net


def test_an_example_left_out_is_predicted_as_by_a_fit_without_it():
    """The outputs of 20 exact refits, each without one of 100 examples, against V_i r_i: within a tenth of the change."""
    x, y = blobs(100, seed=0)
    net = logistic(x, y, decay=1.0)
    g = curvature(net, [(x, y)], Categorical(), "dense").matrix
    covariance = br.curvature.propagate(net, x, Diagonal(torch.ones(12, dtype=torch.float64)) + g, ["weight", "bias"])[1]
    with torch.no_grad():
        f = net(x)
    residual = averaged(Categorical(), f, torch.zeros_like(f)[None], y).residual
    moved = (covariance @ residual[:, :, None])[:, :, 0]
    errors, changes = [], []
    for i in range(20):
        weights = torch.ones(100, dtype=torch.float64)
        weights[i] = 0
        with torch.no_grad():
            exact = (logistic(x, y, 1.0, weights)(x[i : i + 1]) - f[i])[0]
        errors.append((moved[i] - exact).norm())
        changes.append(exact.norm())
    assert torch.stack(errors).norm() < 0.25 * torch.stack(changes).norm()


def test_the_prior_of_a_network_at_its_mode_is_found_again():
    """Of a logistic regression with many examples the Gaussian is narrow, and its prior that of the training."""
    x, y = blobs(2000, seed=1)
    net = logistic(x, y, decay=20.0)
    g = curvature(net, [(x, y)], Categorical(), "dense").matrix
    offsets = {name: p.detach() for name, p in net.named_parameters()}
    found = LeaveOneOut(net, Categorical(), Batch(x, y), offsets, 2000).settle(Diagonal(torch.ones(12).double()), g)
    assert abs(found.tightness / 20 - 1) < 0.3
    assert abs(found.stiffness - 1) < 0.1


def test_weights_of_kronecker_products_are_those_of_the_sum():
    generator = torch.Generator().manual_seed(0)
    b, a = (torch.randn(size, size, generator=generator, dtype=torch.float64) for size in (3, 4))
    whole = br.structures.Kronecker([b @ b.T], [a @ a.T], torch.full((12,), 0.5, dtype=torch.float64))
    found = whole.reweighted(2.0, 3.0)
    wanted = 2 * torch.kron(b @ b.T, a @ a.T) + 1.5 * torch.eye(12)
    torch.testing.assert_close(found.dense(), wanted)
    torch.testing.assert_close(found.variances, Dense(wanted).variances)


def overfitted(seed):
    """A network that knows 25 % wrong labels by heart."""
    x, y = blobs(300, seed, flip=0.25)
    x = x.float()
    torch.manual_seed(seed)
    net = nn.Sequential(nn.Linear(3, 100), nn.ReLU(), nn.Linear(100, 3))
    optimizer = torch.optim.Adam(net.parameters(), lr=1e-2)
    for _ in range(300):
        optimizer.zero_grad()
        cross_entropy(net(x), y).backward()
        optimizer.step()
    return net, (x, y)


def nll(posterior, test):
    return -float(posterior.predict(test[0].float()).log_prob(test[1]).mean())


@pytest.mark.parametrize("seed", [0, 1])
def test_an_overfitted_network_gains_without_any_held_out_data(seed):
    net, train = overfitted(seed)
    test = blobs(2000, seed + 100, flip=0.25)
    before = nll(br.fit(net, train, "map", epochs=0), test)
    weights = copy.deepcopy(net.state_dict())
    posterior = br.fit(net, train, "laplace", epochs=0)
    assert nll(posterior, test) < before - 0.02
    assert all(torch.equal(w, weights[name]) for name, w in posterior.mean.items())
    assert "the network alone" in posterior.info["diagnostics"]["settled"]
    held = br.fit(net, train, "laplace", epochs=0, val=blobs(500, seed + 200, flip=0.25))
    assert nll(held, test) < before - 0.02


def test_a_network_that_gains_nothing_is_left_as_it_is_and_says_so():
    """A small network, trained a little, on many examples."""
    x, y = blobs(2000, seed=3)
    net = logistic(x, y, decay=1000.0).float()  # far from sure of itself
    with pytest.warns(UserWarning, match="left as it is"):
        posterior = br.fit(net, (x.float(), y), "laplace", epochs=0)
    assert posterior.spread == LEFT
    assert "left as it is" in posterior.info["diagnostics"]["settled"]
    test = blobs(500, seed=4)
    assert abs(nll(posterior, test) - nll(br.fit(net, (x.float(), y), "map", epochs=0), test)) < 1e-4
