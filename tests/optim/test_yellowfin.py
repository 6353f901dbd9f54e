"""YellowFin against its equations."""

import copy
import math
import pickle

import numpy as np
import pytest
import torch
from covering import first
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from bayesrule import files
from bayesrule.optim import YellowFin, robust_region
from bayesrule.optim.yellowfin import LEAST, PROTECT, Tuner, best_root, least_root

GRID = np.linspace(0, 1, 20_001)
positive = st.floats(-3, 3).map(lambda exponent: 10.0**exponent)


def gradients(steps, size=3, seed=0, scale=1.0):
    return scale * torch.randn(steps, size, dtype=torch.float64, generator=torch.Generator().manual_seed(seed)) + 0.5


def feed(optimizer, parameters, rows):
    """Steps with given gradients, one row each."""
    for row in rows:
        for parameter in parameters:
            parameter.grad = row.to(parameter.dtype).clone()
        optimizer.step()


def parameter(*values, dtype=torch.float64):
    return nn.Parameter(torch.tensor(values, dtype=dtype))


# --- the single step ---


@given(positive, positive, positive)
def test_the_root_minimises_the_distance_after_one_step(distance, variance, curvature):
    """x²D² + (1 − x)⁴C/h², in units of its larger part, is nowhere on a grid of [0, 1] less than at the root."""

    def objective(x):
        parts = distance**2, variance / curvature**2
        return (x**2 * parts[0] + (1 - x) ** 4 * parts[1]) / max(parts)

    x = best_root(distance, variance, curvature)
    assert 0 <= x < 1
    assert objective(x) <= objective(GRID).min() * (1 + 1e-9) + 1e-15
    assert abs(x - GRID[objective(GRID).argmin()]) <= 2 * GRID[1]


@given(st.floats(-40, 40).map(lambda exponent: 10.0**exponent))
def test_the_root_solves_the_cubic_at_any_scale(p):
    """y³ + py + p = 0 with y = x − 1: exact up to the rounding of x."""
    y = best_root(math.sqrt(2 * p), 1.0, 1.0) - 1
    assert -1 <= y < 0
    assert abs(y**3 + p * y + p) <= 1e-15 * (p + 3 * y**2) + 1e-30


@given(st.floats(1e-2, 1e2))
def test_the_root_is_that_of_the_published_formula(p):
    w3 = (-math.sqrt(p**2 + 4 / 27 * p**3) - p) / 2
    w = math.copysign(abs(w3) ** (1 / 3), w3)
    assert best_root(math.sqrt(2 * p), 1.0, 1.0) == pytest.approx(w - p / (3 * w) + 1, abs=1e-12)


@given(st.lists(st.floats(1e-5, 1e5), min_size=1, max_size=50), st.floats(0, 1))
def test_the_pair_is_in_the_robust_region_of_all_curvatures(squares, share):
    """μ ≥ ((√κ − 1)/(√κ + 1))², so that α is in the region of h_min and of h_max."""
    tuner = Tuner(0.9, 5, 0.0)
    for square in squares:
        tuner = tuner.after(square, share * square)
    rate, momentum = tuner.target()
    assert 0 < tuner.low <= tuner.high * (1 + 1e-12)
    root = math.sqrt(tuner.high / tuner.low)
    assert momentum >= ((root - 1) / (root + 1)) ** 2 * (1 - 1e-9)
    for curvature in (tuner.low, tuner.high):
        low, high = robust_region(momentum, curvature)
        assert low * (1 - 1e-9) <= rate <= high * (1 + 1e-9)


def test_noise_free_and_narrow_the_bound_decides():
    """With C at its least the root is near 0, and momentum is what the range of curvatures asks for."""
    tuner = Tuner(0.0, 2, 0.0).after(1.0, 1.0).after(100.0, 100.0)
    assert tuner.target()[1] == pytest.approx((9 / 11) ** 2)
    assert tuner.target()[1] == pytest.approx(least_root(1.0, 100.0) ** 2)


# --- all of it ---


def mean(history, beta):
    """The zero-debiased exponential average of a list, by its weights."""
    weights = beta ** np.arange(len(history))[::-1]
    return np.tensordot(weights, np.array(history), 1) / weights.sum()


def textbook(rows, beta, width, lr):
    """The path of the published equations, from lists of all that was seen; no gradient is beyond 100 h_max."""
    path, logs, ratios, rates, momentum = [np.zeros(rows.shape[1])] * 2, [], [], [], 0.0
    squares = [float(g @ g) for g in rows]
    high = math.inf
    for t, g in enumerate(rows):
        clipped = g if squares[t] < high else g * math.sqrt(high / squares[t])
        recent = squares[max(0, t + 1 - width) : t + 1]
        logs.append((math.log(min(recent)), math.log(max(recent))))
        low, high = np.exp(mean(logs, beta))
        norms = [math.sqrt(s) for s in squares[: t + 1]]
        ratios.append(mean(norms, beta) / mean(squares[: t + 1], beta))
        variance = max(mean(rows[: t + 1] ** 2, beta).sum() - (mean(rows[: t + 1], beta) ** 2).sum(), 1e-6)
        p = (mean(ratios, beta) * low) ** 2 / (2 * variance)
        x = 1 + min(np.roots([1, 0, p, p]), key=lambda root: abs(root.imag)).real
        root = max(x, (math.sqrt(high / low) - 1) / (math.sqrt(high / low) + 1))
        rates.append((1 - root) ** 2 / low)
        momentum = beta * momentum + (1 - beta) * root**2
        rate = lr * mean(rates, beta) * min(1, (t + 1) / (10 * width))
        path.append(path[-1] - rate * clipped + momentum * (path[-1] - path[-2]))
    return path[-1]


@pytest.mark.parametrize(("beta", "width", "lr"), [(0.999, 20, 1.0), (0.9, 3, 0.3)])
def test_the_path_is_that_of_the_equations(beta, width, lr):
    rows = gradients(60)
    w = parameter(0.0, 0.0, 0.0)
    feed(YellowFin([w], lr, beta=beta, window=width), [w], rows)
    expected = torch.from_numpy(textbook(rows.numpy(), beta, width, lr))
    torch.testing.assert_close(w.detach(), expected, rtol=1e-8, atol=1e-8)


def test_the_split_into_parameters_does_not_matter():
    rows = gradients(50, 4)
    whole, left, right = parameter(0.0, 0.0, 0.0, 0.0), parameter(0.0), parameter(0.0, 0.0, 0.0)
    feed(YellowFin([whole]), [whole], rows)
    optimizer = YellowFin([{"params": [left]}, {"params": [right]}])
    for row in rows:
        left.grad, right.grad = row[:1].clone(), row[1:].clone()
        optimizer.step()
    torch.testing.assert_close(torch.cat([left, right]), whole, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("curvatures", first([(1.0, 10.0), (1.0, 1.0)]))
def test_a_bowl_is_descended(curvatures):
    h = torch.tensor(curvatures, dtype=torch.float64)
    w = nn.Parameter(torch.full_like(h, 3.0))
    optimizer = YellowFin([w])
    for _ in range(3000):
        optimizer.zero_grad()
        (h * w**2 / 2).sum().backward()
        optimizer.step()
    assert float((h * w.detach() ** 2).sum()) < 1e-6 * float((h * 9).sum())


def test_a_slow_start():
    """Gradients of one size ask for one rate; it comes in force in equal parts over ten windows."""
    tuner, shares = Tuner(0.999, 4, 0.0), []
    for _ in range(60):
        tuner = tuner.after(2.0, 2.0 * (1 - 0.999 ** (tuner.steps + 1)) ** 2)
        shares.append(tuner.learning_rate / tuner.target()[0])
    assert shares == pytest.approx([min(1.0, step / 40) for step in range(1, 61)])


def test_momentum_starts_as_given_and_moves_to_what_is_asked():
    tuner = Tuner(0.9, 20, 0.5)
    for step in range(1, 100):
        before, tuner = tuner.momentum, tuner.after(float(step), 0.0)
        assert tuner.momentum == pytest.approx(0.9 * before + 0.1 * tuner.target()[1])
    w = parameter(1.0, 1.0, 1.0)
    assert YellowFin([w], momentum=0.5).tuner.momentum == 0.5


@pytest.mark.parametrize("steps", [1, 50])
def test_a_large_gradient_is_clipped_and_the_averages_are_protected(steps):
    w = parameter(0.0, 0.0, 0.0)
    optimizer = YellowFin([w])
    feed(optimizer, [w], gradients(steps))
    before, high = optimizer.state[w]["velocity"].clone(), optimizer.tuner.high
    feed(optimizer, [w], torch.tensor([[0.0, 0.0, 1e6]]))
    tuner = optimizer.tuner
    push = optimizer.state[w]["velocity"] - tuner.momentum * before
    expected = torch.tensor([0.0, 0.0, -tuner.learning_rate * math.sqrt(high)], dtype=torch.float64)
    torch.testing.assert_close(push, expected, rtol=1e-9, atol=1e-12)
    assert tuner.window[-1] == pytest.approx(PROTECT * high)


def test_the_first_gradient_and_small_ones_are_not_clipped():
    w = parameter(0.0)
    optimizer = YellowFin([w])
    for size in (1e3, 1e2):
        before = optimizer.state[w]["velocity"].clone() if optimizer.state[w] else 0.0
        feed(optimizer, [w], torch.tensor([[size]]))
        push = optimizer.state[w]["velocity"] - optimizer.tuner.momentum * before
        assert float(push) == pytest.approx(-optimizer.tuner.learning_rate * size)


def test_after_one_gradient_of_a_million_learning_goes_on():
    """One gradient of a millionfold norm leaves the learning rate within a factor of two of what it would be."""
    rows = gradients(400)
    rates = []
    for spike in (1.0, 1e6):
        w = parameter(0.0, 0.0, 0.0)
        optimizer = YellowFin([w])
        feed(optimizer, [w], rows[:300])
        feed(optimizer, [w], rows[300:301] * spike)
        feed(optimizer, [w], rows[301:])
        rates.append(optimizer.tuner.learning_rate)
        assert bool(w.isfinite().all())
    assert 0.5 < rates[1] / rates[0] < 2


def test_gradients_of_zero_are_no_trouble():
    w = parameter(1.0, 1.0, 1.0)
    optimizer = YellowFin([w])
    feed(optimizer, [w], torch.zeros(30, 3))
    assert optimizer.tuner.low == pytest.approx(LEAST)
    assert w.tolist() == [1.0, 1.0, 1.0]
    feed(optimizer, [w], gradients(30))
    assert bool(w.isfinite().all())


# --- as an optimiser ---


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("after", [0, 1, 25])
def test_a_saved_state_continues_to_the_bit(after, dtype, tmp_path):
    rows = gradients(60)
    one = parameter(1.0, 2.0, 3.0, dtype=dtype)
    optimizer = YellowFin([one], 0.5, window=7)
    feed(optimizer, [one], rows[:after])
    files.save(tmp_path / "state", [one, optimizer.state_dict()], "state")
    feed(optimizer, [one], rows[after:])

    value, state = files.load(tmp_path / "state", "state")
    other = nn.Parameter(value)
    again = YellowFin([other])
    again.load_state_dict(state)
    feed(again, [other], rows[after:])
    assert torch.equal(one, other)
    assert optimizer.tuner == again.tuner


def test_a_state_handed_out_is_not_written_to():
    w = parameter(1.0, 1.0, 1.0)
    optimizer = YellowFin([w])
    feed(optimizer, [w], gradients(3))
    state = optimizer.state_dict()["state"]["tuner"]
    before = copy.deepcopy(state)
    feed(optimizer, [w], gradients(3))
    assert state == before


def test_copies_and_pickles_work():
    w = parameter(1.0, 1.0, 1.0)
    optimizer = YellowFin([w], window=3)
    feed(optimizer, [w], gradients(5))
    assert copy.deepcopy(optimizer).tuner == pickle.loads(pickle.dumps(optimizer)).tuner == optimizer.tuner


def test_without_gradient_a_parameter_stays_and_counts_as_zero():
    rows = gradients(30)
    alone, beside, idle, ever = (parameter(1.0, 1.0, 1.0) for _ in range(4))
    single, double = YellowFin([alone]), YellowFin([beside, idle, ever])
    for step, row in enumerate(rows):
        beside.grad, idle.grad = row.clone(), torch.zeros(3, dtype=torch.float64) if step % 2 else None
        double.step()
    feed(single, [alone], rows)
    assert idle.tolist() == ever.tolist() == [1.0, 1.0, 1.0]
    assert ever not in double.state
    torch.testing.assert_close(alone, beside, rtol=1e-12, atol=1e-12)


def test_a_gradient_that_goes_missing_fades_from_the_average():
    w, v = parameter(0.0, 0.0, 0.0), parameter(0.0, 0.0, 0.0)
    optimizer = YellowFin([w, v], beta=0.9)
    feed(optimizer, [w, v], gradients(10))
    average, place = optimizer.state[v]["average"].clone(), v.detach().clone()
    v.grad = None
    optimizer.step()
    torch.testing.assert_close(optimizer.state[v]["average"], 0.9 * average)
    assert torch.equal(v, place)


def test_without_any_gradient_a_step_is_nothing():
    w = parameter(1.0)
    optimizer = YellowFin([w])
    optimizer.step()
    assert w.item() == 1.0
    assert optimizer.tuner.steps == 0


def test_a_closure_is_evaluated():
    w = parameter(2.0)
    optimizer = YellowFin([w])

    def closure():
        optimizer.zero_grad()
        loss = (w**2).sum()
        loss.backward()
        return loss

    assert optimizer.step(closure).item() == 4.0
    assert 0 < w.item() < 2.0


def test_lr_is_a_factor_by_group_and_by_step():
    one, other = parameter(0.0, 0.0, 0.0), parameter(0.0, 0.0, 0.0)
    optimizer = YellowFin([{"params": [one]}, {"params": [other], "lr": 0.25}])
    rows = gradients(2)
    feed(optimizer, [one, other], rows[:1])
    torch.testing.assert_close(other, 0.25 * one)
    for group in optimizer.param_groups:
        group["lr"] = 0.0
    before = optimizer.state[one]["velocity"].clone()
    feed(optimizer, [one, other], rows[1:])
    torch.testing.assert_close(optimizer.state[one]["velocity"], optimizer.tuner.momentum * before)


def test_a_gradient_that_is_not_finite_is_named_and_changes_nothing():
    module = nn.Linear(2, 1)
    optimizer = YellowFin(module.named_parameters())
    for p in module.parameters():
        p.grad = torch.ones_like(p)
    optimizer.step()
    weight, tuner = module.weight.detach().clone(), optimizer.tuner
    module.bias.grad = torch.tensor([math.nan])
    with pytest.raises(FloatingPointError, match="gradient of parameter 'bias' of group 0 must be finite"):
        optimizer.step()
    assert torch.equal(module.weight, weight)
    assert optimizer.tuner == tuner


def test_a_sparse_gradient_is_refused():
    table = nn.Embedding(3, 2, sparse=True)
    table(torch.tensor([1])).sum().backward()
    with pytest.raises(TypeError, match=r"parameter 0 of group 0 must be dense.*sparse=False"):
        YellowFin(table.parameters()).step()


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"lr": 0.0}, "lr must be positive and finite, not 0.0"),
        ({"lr": math.inf}, "lr must be positive and finite, not inf"),
        ({"momentum": 1.0}, "momentum must be at least 0 and less than 1, not 1.0"),
        ({"momentum": math.nan}, "momentum must be"),
        ({"beta": 1.0}, "beta must be at least 0 and less than 1, not 1.0"),
        ({"window": 0}, "window must be a whole number of steps, at least 1, not 0"),
        ({"window": 2.5}, "window must be a whole number"),
    ],
)
def test_bad_options_are_refused(options, match):
    with pytest.raises(ValueError, match=match):
        YellowFin([parameter(1.0)], **options)


def test_a_bad_group_is_refused_and_not_kept():
    optimizer = YellowFin([parameter(1.0)])
    with pytest.raises(ValueError, match="lr must be positive"):
        optimizer.add_param_group({"params": [parameter(1.0)], "lr": -1.0})
    with pytest.raises(
        TypeError, match=r"parameter 0 of group 1 must be of a real floating dtype, not torch\.complex64"
    ):
        optimizer.add_param_group({"params": [torch.zeros(1, dtype=torch.complex64)]})
    assert len(optimizer.param_groups) == 1


def test_the_state_of_another_optimiser_is_refused():
    w = parameter(1.0)
    with pytest.raises(ValueError, match="not one of YellowFin"):
        YellowFin([w]).load_state_dict(torch.optim.SGD([w], lr=0.1).state_dict())


def test_nothing_is_known_before_the_first_step():
    with pytest.raises(ValueError, match="before the first step"):
        _ = YellowFin([parameter(1.0)]).tuner.learning_rate
