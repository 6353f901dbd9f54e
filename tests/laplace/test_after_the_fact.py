"""Laplace's method on a trained network: doubt costs no more than was said, and a network that needs none has none."""

import copy
import math

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy, one_hot

import bayesrule as br
from bayesrule.curvature import curvature
from bayesrule.data import Batch
from bayesrule.likelihoods import Categorical
from bayesrule.methods import Laplace
from bayesrule.methods.insurance import LEFT, PREMIUM, Insurance
from bayesrule.structures import Dense, Diagonal


def blobs(n, seed, flip=0.0):
    """Three classes about three centres, some labels drawn at random."""
    generator = torch.Generator().manual_seed(seed)
    y = torch.randint(3, (n,), generator=generator)
    x = 1.5 * one_hot(y, 3).double() + torch.randn(n, 3, generator=generator, dtype=torch.float64)
    other = torch.randint(3, (n,), generator=generator)
    return x, torch.where(torch.rand(n, generator=generator) < flip, other, y)


def logistic(x, y, decay):
    """The mode of a logistic regression under N(0, 1/decay), by L-BFGS."""
    torch.manual_seed(0)
    net = nn.Linear(3, 3).double()
    optimizer = torch.optim.LBFGS(net.parameters(), max_iter=200, tolerance_grad=1e-9, line_search_fn="strong_wolfe")

    def loss():
        optimizer.zero_grad()
        value = cross_entropy(net(x), y, reduction="sum")
        value = value + 0.5 * decay * sum(p.square().sum() for p in net.parameters())
        value.backward()
        return value

    optimizer.step(loss)
    return net


def insured(net, x, y, prior=1.0):
    """What is settled for a logistic regression, with the curvature of all examples in one matrix."""
    g = curvature(net, [(x, y)], Categorical(), "dense").matrix
    offsets = {name: p.detach() for name, p in net.named_parameters()}
    return Insurance(net, Categorical(), Batch(x, y), offsets, len(y)).settle(
        Diagonal(torch.full((12,), prior, dtype=torch.float64)), g
    )


def test_the_prior_of_a_network_at_its_mode_is_found_again():
    """Of a logistic regression with many examples the Gaussian is narrow, and its prior that of the training."""
    x, y = blobs(2000, seed=1)
    found = insured(logistic(x, y, decay=20.0), x, y)
    assert abs(found.tightness / 20 - 1) < 0.3
    assert abs(found.stiffness - 1) < 0.1


@pytest.mark.parametrize("temperature", [0.5, 1.0, 4.0])
def test_the_prior_of_a_mode_at_a_temperature_is_found_again(temperature):
    """The mode of Σ nll + ½·20·|w|² is that of L^(1/η)·p with the precision 20/η."""
    x, y = blobs(512, seed=1)
    net = logistic(x, y, decay=20.0)
    method = Laplace(subset="all", structure="dense")
    posterior = br.fit(net, (x, y), method, prior=1.0, temperature=temperature, epochs=0)
    for scale in posterior.info["diagnostics"]["prior_scale"].values():
        assert abs(temperature / scale**2 / 20 - 1) < 0.3


def test_the_premium_is_that_of_exact_integrals():
    """Two classes whose logits differ by m ~ N(f, s·v): E[p] by 4001 points of m, for the mode of one slope."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(40, 1, generator=generator, dtype=torch.float64)
    y = (torch.rand(40, generator=generator) < torch.sigmoid(3 * x[:, 0])).long()
    slope = torch.zeros((), dtype=torch.float64)
    for _ in range(50):  # Newton's steps to the largest likelihood
        p = torch.sigmoid(slope * x[:, 0])
        slope = slope - (x[:, 0] * (p - y)).sum() / (x[:, 0] ** 2 * p * (1 - p)).sum()
    net = nn.Linear(1, 2, bias=False).double()
    with torch.no_grad():
        net.weight.copy_(slope / 2 * torch.tensor([[-1.0], [1.0]]))
    g = curvature(net, [(x, y)], Categorical(), "dense").matrix
    found = Insurance(net, Categorical(), Batch(x, y), {"weight": net.weight.detach()}, 40).settle(
        Diagonal(torch.ones(2, dtype=torch.float64)), g
    )
    contrast = torch.tensor([-1.0, 1.0], dtype=torch.float64)
    variance = (contrast @ torch.linalg.solve(found.precision.dense(), contrast)) * x[:, 0] ** 2
    margin = slope * x[:, 0]
    z = torch.linspace(-8, 8, 4001, dtype=torch.float64)
    weight = torch.exp(-(z**2) / 2) / torch.exp(-(z**2) / 2).sum()

    def mean(function, centre, v):
        return (weight * function(centre[:, None] + v.sqrt()[:, None] * z)).sum(1)

    # each example without its own share: a precision of E[p(1 − p)] and a slope of y − E[p] along the margin
    share = mean(lambda m: torch.sigmoid(m) * torch.sigmoid(-m), margin, variance)
    left = variance / (1 - share * variance)
    moved = margin + left * (mean(torch.sigmoid, margin, variance) - y)
    sign = 2 * y - 1
    p = mean(torch.sigmoid, sign * moved, found.spread * left)
    cost = torch.nn.functional.logsigmoid(sign * moved) - p.log()
    exact = float(cost[cost > 0].mean())
    assert found.spread < 1
    assert abs(found.premium / exact - 1) < 0.1
    assert abs(exact / PREMIUM - 1) < 0.15


def test_what_an_example_costs_is_asked_as_if_it_had_been_left_out():
    """The cavity's outputs are those of a logistic regression that is fitted again without the example."""
    x, y = blobs(300, seed=2)
    net = logistic(x, y, decay=20.0)
    g = curvature(net, [(x, y)], Categorical(), "dense").matrix
    offsets = {name: p.detach() for name, p in net.named_parameters()}
    insurance = Insurance(net, Categorical(), Batch(x, y), offsets, 300)
    f, _ = insurance._about(Diagonal(torch.full((12,), 20.0, dtype=torch.float64)), g).left_out(1.0)
    for i in range(3):
        rest = torch.arange(300) != i
        moved = (logistic(x[rest], y[rest], decay=20.0)(x[i]) - net(x[i])).detach()
        torch.testing.assert_close(f[i] - net(x[i]).detach(), moved, rtol=0.1, atol=1e-4)


def test_the_largest_spread_that_can_be_afforded_is_taken():
    """Half as much again as was chosen costs more than is allowed, by an independent grid."""
    x, y = blobs(300, seed=5, flip=0.1)
    found = insured(logistic(x, y, decay=1e-3), x, y)
    net = logistic(x, y, decay=1e-3)
    posterior = Dense(found.precision.dense())
    jacobian = torch.func.jacrev(lambda w, x: torch.cat([x, x.new_ones(1)]) @ w.T)
    weight = torch.cat([net.weight, net.bias[:, None]], 1).detach()
    order = torch.cat([torch.arange(9).reshape(3, 3), torch.arange(9, 12)[:, None]], 1).flatten()  # weight, then bias
    covariance = torch.linalg.inv(posterior.dense())[order][:, order]
    j = torch.func.vmap(jacobian, (None, 0))(weight, x).reshape(300, 3, 12)
    v = j @ covariance @ j.mT
    draws = torch.randn(4000, 1, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64)

    def points(f, v, spread):
        root = torch.linalg.cholesky(v + 1e-9 * torch.eye(3))
        return f + math.sqrt(spread) * torch.einsum("bkl,sbl->sbk", root, draws.expand(-1, 300, -1))

    f = net(x).detach()
    p = points(f, v, 1.0).softmax(-1)
    hessian = p.mean(0).diag_embed() - torch.einsum("sbk,sbl->bkl", p, p) / 4000
    left = v @ torch.linalg.inv(torch.eye(3) - hessian @ v)
    left = (left + left.mT) / 2
    moved = f + torch.einsum("bkl,bl->bk", left, p.mean(0) - one_hot(y, 3))

    def premium(spread):
        p = points(moved, left, spread).log_softmax(-1).gather(-1, y.expand(4000, -1)[..., None])[..., 0]
        cost = moved.log_softmax(1).gather(1, y[:, None])[:, 0] - p.logsumexp(0) + math.log(4000)
        return float(cost[cost > 0].mean())

    assert found.spread == 1 or premium(1.5 * found.spread) > PREMIUM
    assert premium(found.spread) < 1.2 * PREMIUM


def test_weights_of_kronecker_products_are_those_of_the_sum():
    generator = torch.Generator().manual_seed(0)
    b, a = (torch.randn(size, size, generator=generator, dtype=torch.float64) for size in (3, 4))
    whole = br.structures.Kronecker([b @ b.T], [a @ a.T], torch.full((12,), 0.5, dtype=torch.float64))
    found = whole.reweighted(2.0, 3.0)
    wanted = 2 * torch.kron(b @ b.T, a @ a.T) + 1.5 * torch.eye(12)
    torch.testing.assert_close(found.dense(), wanted)
    torch.testing.assert_close(found.variances, Dense(wanted).variances)


def overfitted(seed, n=250):
    """A network that knows 25 % wrong labels by heart."""
    x, y = blobs(n, seed, flip=0.25)
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
def test_an_overfitted_network_gains_and_pays_the_premium_on_what_it_gets_right(seed):
    net, train = overfitted(seed)
    test = blobs(2000, seed + 100, flip=0.25)
    before = br.fit(net, train, "map", epochs=0)
    weights = copy.deepcopy(net.state_dict())
    posterior = br.fit(net, train, "laplace", epochs=0)
    diagnostics = posterior.info["diagnostics"]
    assert (diagnostics["subset"], diagnostics["structure"]) == ("last-layer", "kronecker")
    assert nll(posterior, test) < nll(before, test) - 0.002
    told = diagnostics["premium"]
    assert posterior.spread == 1 or abs(told / PREMIUM - 1) < 0.06
    x, y = test[0].float(), test[1]
    plain = before.predict(x)
    cost = plain.log_prob(y) - posterior.predict(x).log_prob(y)
    assert 0.5 < float(cost[plain.probs.argmax(1) == y].mean()) / told < 2  # of unseen examples that it gets right
    assert nll(posterior, train) - nll(before, train) < PREMIUM  # those that it has seen pay less
    assert all(torch.equal(w, weights[name]) for name, w in posterior.mean.items())
    assert "more with it" in diagnostics["settled"]


def test_held_out_data_choose_more_doubt_where_it_gains():
    net, train = overfitted(0)
    test = blobs(2000, 100, flip=0.25)
    alone = br.fit(net, train, "laplace", epochs=0)
    held = br.fit(net, train, "laplace", epochs=0, val=blobs(500, 200, flip=0.25))
    assert held.spread > alone.spread or alone.spread == 1
    assert nll(held, test) < nll(alone, test) - 0.01
    assert "of held-out examples" in held.info["diagnostics"]["settled"]


def test_a_network_that_is_held_back_is_left_as_it_is_and_says_so():
    """A small network under a strong decay, on many examples."""
    x, y = blobs(2000, seed=3)
    net = logistic(x, y, decay=1000.0).float()  # far from sure of itself
    with pytest.warns(UserWarning, match="left as it is: it is less sure"):
        posterior = br.fit(net, (x.float(), y), "laplace", epochs=0)
    assert posterior.spread == LEFT
    assert "left as it is" in posterior.info["diagnostics"]["settled"]
    test = blobs(500, seed=4)
    assert abs(nll(posterior, test) - nll(br.fit(net, (x.float(), y), "map", epochs=0), test)) < 1e-4


def test_a_network_without_a_last_layer_has_doubt_about_all_weights():
    class Ends(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer, self.scale = nn.Linear(3, 3), nn.Parameter(torch.ones(3))

        def forward(self, x):
            return self.layer(x) * self.scale

    torch.manual_seed(0)
    x, y = blobs(200, seed=6)
    trained = br.fit(Ends(), (x.float(), y), "map", epochs=20)
    net = Ends()
    net.load_state_dict(trained.states[0])
    posterior = br.fit(net, (x.float(), y), "laplace", epochs=0)
    assert posterior.info["diagnostics"]["subset"] == "all"
    assert set(posterior.mean) == {"layer.weight", "layer.bias", "scale"}


@pytest.mark.parametrize("seed", [0, pytest.param(1, marks=pytest.mark.slow), pytest.param(2, marks=pytest.mark.slow)])
def test_reals_of_a_network_whose_training_was_ended_early_are_not_harmed(seed):
    """By the evidence of all weights the NLL would rise: it takes them for the mode, which has followed the noise."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.rand(1300, 4, generator=generator)
    y = torch.sin(3 * x[:, 0]) + x[:, 1] * x[:, 2] + 0.2 * torch.randn(1300, generator=generator)
    torch.manual_seed(seed)
    net = nn.Sequential(nn.Linear(4, 50), nn.ReLU(), nn.Linear(50, 1))
    optimizer = torch.optim.Adam(net.parameters(), lr=1e-2)
    train, test = (x[:300], y[:300]), (x[300:], y[300:])
    for _ in range(150):
        optimizer.zero_grad()
        nn.functional.mse_loss(net(train[0])[:, 0], train[1]).backward()
        optimizer.step()
    before = nll(br.fit(net, train, "map", epochs=0), test)
    posterior = br.fit(net, train, "laplace", epochs=0)
    assert posterior.info["diagnostics"]["subset"] == "last-layer"
    assert nll(posterior, test) < before + 0.005
    assert nll(br.fit(net, train, Laplace("all"), epochs=0), test) > nll(posterior, test) + 0.01
