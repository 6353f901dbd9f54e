"""What a weight decay believes."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

import bayesrule as br
from bayesrule.modules import parameters
from bayesrule.penalties import explain
from bayesrule.penalties.calibration.explanation import HEADER
from bayesrule.priors import Flat, Gaussian, Product


def network():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(50, 20), nn.BatchNorm1d(20), nn.ReLU(), nn.Linear(20, 2)).double()


@given(st.floats(1e-8, 1e2), st.integers(1, 10**7))
def test_the_variance_is_one_over_n_and_the_decay(decay, n):
    model = nn.Linear(25, 2)
    for row in explain(decay, model, "mean", n).rows:
        assert row.scale == pytest.approx((n * decay) ** -0.5)
    for row in explain(decay, model, "sum").rows:
        assert row.scale == pytest.approx(decay**-0.5)
    weight = explain(decay, model, n=n).rows[0]
    assert weight.fan_in == pytest.approx(0.2)
    assert weight.kaiming == pytest.approx(0.2 * math.sqrt(2))
    assert explain(weight.matching, model, n=n).rows[0].ratio == pytest.approx(1)


@pytest.mark.parametrize("kind", [torch.optim.SGD, torch.optim.Adam, torch.optim.RMSprop])
@pytest.mark.parametrize("reduction", ["mean", "sum"])
def test_training_stops_where_the_prior_says(kind, reduction):
    """A linear model trained with weight decay ends at the MAP under the explained prior."""
    torch.manual_seed(0)
    n, model = 40, nn.Linear(3, 1, bias=False).double()
    x = torch.randn(n, 3).double()
    y = x @ torch.tensor([[1.0], [-2.0], [0.5]]).double() + 0.1 * torch.randn(n, 1).double()
    decay = 0.2 if reduction == "mean" else 8.0
    optimizer = kind(model.parameters(), lr=0.08 if reduction == "mean" else 0.02, weight_decay=decay)
    schedule = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 1e-3, total_iters=1000)
    for _ in range(1000):
        optimizer.zero_grad()
        halves = 0.5 * (model(x) - y).square()  # −log N(y; f, 1) but for a constant
        (halves.mean() if reduction == "mean" else halves.sum()).backward()
        optimizer.step()
        schedule.step()
    scale = explain(optimizer, model, reduction, n).prior.resolve(model).scale["weight"]
    exact = torch.linalg.solve(x.T @ x + torch.eye(3).double() / scale**2, x.T @ y)
    torch.testing.assert_close(model.weight.detach().T, exact, rtol=0, atol=2e-4)


def test_groups_are_told_apart():
    model = network()
    weights = [p for p in model.parameters() if p.ndim > 1]
    others = [p for p in model.parameters() if p.ndim == 1]
    optimizer = torch.optim.SGD([{"params": weights, "weight_decay": 1e-3}, {"params": others}], lr=0.1)
    found = explain(optimizer, model, n=1000)
    assert {row.parameter: row.scale for row in found.rows} == {
        "0.weight": 1.0,
        "0.bias": math.inf,
        "1.weight": math.inf,
        "1.bias": math.inf,
        "3.weight": 1.0,
        "3.bias": math.inf,
    }
    prior = found.prior.resolve(model)
    assert isinstance(prior, Product)
    named = parameters(model)
    expected = sum(torch.distributions.Normal(0.0, 1.0).log_prob(w).sum() for w in weights)
    torch.testing.assert_close(prior.log_prob(named), expected)
    assert found.rows[1].verdict.startswith("no decay")
    assert found.far == ()  # the ratio is infinite, but there is nothing to be far


def test_the_prior_is_centred_at_zero_everywhere_and_works():
    model = network()
    found = explain(torch.optim.Adam(model.parameters(), weight_decay=0.01), model, n=30)
    prior = found.prior.resolve(model)
    assert isinstance(prior, Gaussian)
    assert set(prior.mean.values()) == {0.0}  # decay pulls the weights of normalisation layers to zero too
    data = torch.randn(30, 50).double(), torch.arange(30) % 2
    assert br.fit(model, data, "map", prior=found.prior, epochs=1).predict(data[0]).probs.shape == (30, 2)
    assert isinstance(explain(0.0, model, n=3).prior, Flat)


def test_adamw_is_no_penalty_and_is_read_by_the_size_of_gradients():
    model = network()
    optimizer = torch.optim.AdamW(model.parameters(), weight_decay=0.01)
    before = explain(optimizer, model, n=100)
    assert any("AdamW shrinks weights beside the gradient" in note for note in before.notes)
    assert "explain it again after some steps" in str(before)
    assert before.rows[0].scale == pytest.approx(1.0)
    for _ in range(3):
        optimizer.zero_grad()
        model(torch.randn(8, 50).double()).square().mean().backward()
        optimizer.step()
    after = explain(optimizer, model, n=100)
    v = optimizer.state[model[0].weight]["exp_avg_sq"] / (1 - 0.999**3)
    assert after.rows[0].scale == pytest.approx((100 * 0.01 * (v.sqrt().mean().item() + 1e-8)) ** -0.5)
    assert "√v̂" in str(after)
    assert len(explain(torch.optim.Adam(model.parameters(), weight_decay=0.01), model, n=100).notes) == 1


def test_adamw_that_has_seen_no_gradient():
    """Without ε there is no size to divide by: it is read as before the first step."""
    model = nn.Linear(2, 1)
    optimizer = torch.optim.AdamW(model.parameters(), weight_decay=0.01, eps=0.0)
    state = {"step": torch.tensor(3.0), "exp_avg": torch.zeros(1, 2), "exp_avg_sq": torch.zeros(1, 2)}
    optimizer.state[model.weight] = state
    assert explain(optimizer, model, n=100).rows[0].scale == pytest.approx(1.0)
    assert explain(np.float32(0.01), model, n=100).rows[0].scale == pytest.approx(1.0)


def test_far_from_the_start_in_words():
    model = nn.Linear(100, 1, bias=False)
    cases = {
        1e-4: "far wider than the start: weights 31.6 times as large cost next to nothing",
        1e-2: "wider than the start",
        0.1: "near the start",
        2.0: "narrower than the start",
        1000.0: "far narrower than the start: held to 1/100 of it unless the data insist",
    }
    for decay, verdict in cases.items():
        found = explain(decay, model, n=1000)
        assert found.rows[0].verdict == verdict
        assert bool(found.far) == verdict.startswith("far")


def test_the_table():
    model = network()
    found = explain(5e-4, model, n=1000)
    header, *lines = str(found).splitlines()
    assert header.split() == [word for part in HEADER for word in part.split()]
    assert lines[0].startswith("0.weight   0.0005       1.41       0.141          0.2")
    assert lines[-1] == "Weight decay wd on a mean over n = 1000 examples is the prior N(0, 1/(n·wd))."
    assert found.rows[0].found == pytest.approx(model[0].weight.square().mean().sqrt().item())


def test_what_the_optimiser_does_not_train():
    model = network()
    found = explain(torch.optim.SGD(model[0].parameters(), lr=0.1, weight_decay=0.1), model, n=10)
    assert "SGD does not train 1.weight, 1.bias, 3.weight, 3.bias" in found.notes[-1]
    foreign = br.optim.YellowFin(list(model.parameters()))
    assert "YellowFin is not an optimiser of torch" in explain(foreign, model, n=10).notes[-1]


@pytest.mark.parametrize(
    ("call", "error"),
    [
        (lambda: explain(-0.1, nn.Linear(1, 1), n=3), "weight decay must be a finite number of at least 0, not -0.1"),
        (lambda: explain(math.nan, nn.Linear(1, 1), n=3), "weight decay must be a finite number"),
        (lambda: explain("adam", nn.Linear(1, 1), n=3), "decay must be a torch optimiser or a weight decay, not str"),
        (lambda: explain(0.1, nn.Linear(1, 1), n=0), "n must be a whole number of at least 1, not 0"),
        (lambda: explain(0.1, nn.Linear(1, 1)), "n must be the number of training examples.*pass n="),
        (lambda: explain(0.1, nn.Linear(1, 1), "none", 3), "unknown loss_reduction 'none'"),
        (lambda: explain(0.1, nn.ReLU(), n=3), r"the model \(ReLU\) has no trainable weights"),
        (lambda: explain(0.1, "net", n=3), "model must be a torch.nn.Module"),
        (
            lambda: explain(torch.optim.SGD(nn.Linear(1, 1).parameters()), nn.Linear(1, 1), n=3),
            "the optimiser has no parameter of the model",
        ),
    ],
)
def test_bad_input(call, error):
    with pytest.raises((ValueError, TypeError), match=error):
        call()


def test_a_negative_decay_in_a_group_is_refused():
    model = nn.Linear(1, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    optimizer.param_groups[0]["weight_decay"] = -1.0
    with pytest.raises(ValueError, match=r"not -1\.0"):
        explain(optimizer, model, n=3)
