"""Optimisers by name: each against its equations, and one table for what all must do."""

import math
import subprocess
import sys
from importlib.util import find_spec

import pytest
import torch
from covering import first
from torch import nn

from bayesrule import files, naming
from bayesrule.optim import AVAILABLE, Cosine, Recipe, YellowFin, choose

# name: a learning rate that suits a quadratic of curvature about 1
TABLE = {
    "sgd": 0.02,
    "rmsprop": 0.03,
    "adagrad": 0.5,
    "adam": 0.05,
    "amsgrad": 0.05,
    "radam": 0.05,
    "adabound": 0.05,
    "amsbound": 0.05,
    "yellowfin": 1.0,
}
installed = pytest.mark.skipif(not find_spec("pytorch_optimizer"), reason="pytorch_optimizer is not installed")
EXTRA = [pytest.param(name, marks=installed) for name in ("adabound", "amsbound")]
NAMES = [*(name for name in TABLE if "bound" not in name), *EXTRA]
CURVATURE = torch.tensor([0.5, 1.0, 2.0, 4.0], dtype=torch.float64)
OPTIMUM = torch.tensor([1.0, -2.0, 0.5, 3.0], dtype=torch.float64)


def gradients(steps, size=4, seed=0):
    return torch.randn(steps, size, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def feed(optimizer, parameter, rows):
    for row in rows:
        parameter.grad = row.to(parameter.dtype).clone()
        optimizer.step()


def test_the_table_is_complete():
    assert set(TABLE) == set(AVAILABLE)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("seed", first([0, 1, 2]))
def test_the_minimum_of_a_noisy_quadratic_is_reached(name, seed):
    """Within 0.5 in each coordinate, from a distance of 3.

    Over 100 seeds the ends had standard deviations of at most 0.04 and, YellowFin, a bias of 0.22 at most: the bar is
    more than 6 deviations away in every row, an error rate < 1e-6 in all.
    """
    w = nn.Parameter(torch.zeros(4, dtype=torch.float64))
    optimizer, schedule = choose(name).build([w], TABLE[name]), Cosine()
    for step, noise in enumerate(gradients(1000, seed=seed)):
        for group in optimizer.param_groups:
            group["lr"] = TABLE[name] * schedule((step + 0.5) / 1000)
        w.grad = CURVATURE * (w.detach() - OPTIMUM) + 0.3 * noise
        optimizer.step()
    assert float((w.detach() - OPTIMUM).abs().max()) < 0.5


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_saved_state_continues_to_the_bit(name, dtype, tmp_path):
    """Through a file, into an optimiser built anew at the rate of the recipe, under a schedule."""
    rows, half = gradients(40, 7), 20

    def train(w, optimizer, steps):
        for step in steps:
            optimizer.param_groups[0]["lr"] = TABLE[name] * (1 - step / 40)
            feed(optimizer, w, rows[step : step + 1])

    one = nn.Parameter(torch.ones(7, dtype=dtype))
    optimizer = choose(name).build([one], TABLE[name])
    train(one, optimizer, range(half))
    files.save(tmp_path / "state", [one, optimizer.state_dict()], "state")
    train(one, optimizer, range(half, 40))

    value, state = files.load(tmp_path / "state", "state")
    other = nn.Parameter(value)
    again = choose(name).build([other], TABLE[name])
    again.load_state_dict(state)
    train(other, again, range(half, 40))
    assert torch.equal(one, other)


@pytest.mark.parametrize("name", NAMES)
def test_without_gradient_a_parameter_stays(name):
    w, idle = nn.Parameter(torch.ones(4)), nn.Parameter(torch.ones(4))
    feed(choose(name).build([w, idle], TABLE[name]), w, gradients(3))
    assert idle.tolist() == [1.0] * 4
    assert w.tolist() != [1.0] * 4


@pytest.mark.parametrize("name", NAMES)
def test_groups_and_generators_are_taken(name):
    net = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 1))
    groups = ({"params": layer.parameters(), "lr": lr} for layer, lr in zip(net, (0.1, 0.2), strict=True))
    optimizer = choose(name).build(groups, 0.3)
    assert [(len(group["params"]), group["lr"]) for group in optimizer.param_groups] == [(2, 0.1), (2, 0.2)]
    assert len(choose(name).build(net.parameters(), 0.3).param_groups[0]["params"]) == 4


@pytest.mark.parametrize("name", NAMES)
def test_nothing_decays_by_itself(name):
    """At a gradient of zero a weight stays where it is: the prior alone pulls."""
    w = nn.Parameter(torch.ones(4))
    feed(choose(name).build([w], TABLE[name]), w, torch.zeros(5, 4))
    assert w.tolist() == [1.0] * 4


# --- the equations, in ten lines each ---


def moments(rows, betas):
    """(t, g, m, v) at each step."""
    m = v = torch.zeros_like(rows[0])
    for t, g in enumerate(rows, 1):
        m, v = betas[0] * m + (1 - betas[0]) * g, betas[1] * v + (1 - betas[1]) * g**2
        yield t, g, m, v


def textbook_sgd(rows, lr, momentum=0.9, nesterov=False):
    w = v = torch.zeros_like(rows[0])
    for g in rows:
        v = momentum * v + g
        w = w - lr * (g + momentum * v if nesterov else v)
    return w


def textbook_rmsprop(rows, lr, alpha=0.99, eps=1e-8, momentum=0.0):
    w = v = b = torch.zeros_like(rows[0])
    for g in rows:
        v = alpha * v + (1 - alpha) * g**2
        b = momentum * b + g / (v.sqrt() + eps)
        w = w - lr * b
    return w


def textbook_adagrad(rows, lr, initial_accumulator_value=0.0, eps=1e-10):
    return -lr * (rows / ((rows**2).cumsum(0).add(initial_accumulator_value).sqrt() + eps)).sum(0)


def textbook_adam(rows, lr, betas=(0.9, 0.999), eps=1e-8, largest=False):
    w = most = torch.zeros_like(rows[0])
    for t, _, m, v in moments(rows, betas):
        most = torch.maximum(most, v) if largest else v
        w = w - lr * m / (1 - betas[0] ** t) / ((most / (1 - betas[1] ** t)).sqrt() + eps)
    return w


def textbook_amsgrad(rows, lr, **options):
    return textbook_adam(rows, lr, largest=True, **options)


def textbook_radam(rows, lr, betas=(0.9, 0.999), eps=1e-8):
    w, limit = torch.zeros_like(rows[0]), 2 / (1 - betas[1]) - 1
    for t, _, m, v in moments(rows, betas):
        rho = limit - 2 * t * betas[1] ** t / (1 - betas[1] ** t)
        step = lr * m / (1 - betas[0] ** t)
        if rho > 5:
            r2 = (rho - 4) * (rho - 2) * limit / ((limit - 4) * (limit - 2) * rho)
            step = step * math.sqrt(r2 * (1 - betas[1] ** t)) / (v.sqrt() + eps)
        w = w - step
    return w


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("sgd", {}),
        ("sgd", {"momentum": 0.5}),
        ("sgd", {"nesterov": True}),
        ("rmsprop", {}),
        ("rmsprop", {"alpha": 0.9, "momentum": 0.5}),
        ("adagrad", {}),
        ("adagrad", {"initial_accumulator_value": 0.1}),
        ("adam", {}),
        ("adam", {"betas": (0.5, 0.9), "eps": 1e-3}),
        ("amsgrad", {}),
        ("amsgrad", {"betas": (0.5, 0.9)}),
        ("radam", {}),
        ("radam", {"betas": (0.5, 0.9)}),
    ],
)
def test_the_path_is_that_of_the_equations(name, options):
    rows = gradients(50) * torch.linspace(2, 0.5, 50, dtype=torch.float64)[:, None]  # so that a largest v differs
    w = nn.Parameter(torch.zeros(4, dtype=torch.float64))
    feed(Recipe(name, options).build([w], 0.01), w, rows)
    expected = globals()[f"textbook_{name}"](rows, 0.01, **options)
    torch.testing.assert_close(w.detach(), expected, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("name", EXTRA)
@pytest.mark.parametrize("options", [{}, {"final_lr": 0.02, "gamma": 0.1}, {"gamma": 10.0}])
def test_adabound_is_its_equations_under_a_schedule(name, options):
    """η = clip(lr·√(1 − β₂ᵗ)/(1 − β₁ᵗ)/(√v + ε), l_t, u_t); the bounds go with lr over the lr of the start."""
    rows = gradients(50) * torch.linspace(2, 0.5, 50, dtype=torch.float64)[:, None]
    parameter = nn.Parameter(torch.zeros(4, dtype=torch.float64))
    optimizer = Recipe(name, options).build([parameter], 0.01)
    w = most = torch.zeros(4, dtype=torch.float64)
    gamma, clipped = options.get("gamma", 1e-3), 0
    for t, g, m, v in moments(rows, (0.9, 0.999)):
        lr = optimizer.param_groups[0]["lr"] = 0.01 * (1 - t / 60)
        feed(optimizer, parameter, g[None])
        most = torch.maximum(most, v) if name == "amsbound" else v
        rate = lr * math.sqrt(1 - 0.999**t) / (1 - 0.9**t) / (most.sqrt() + 1e-8)
        final = options.get("final_lr", 0.1) * lr / 0.01
        eta = rate.clip(final * (1 - 1 / (gamma * t + 1)), final * (1 + 1 / (gamma * t)))
        clipped += int((eta != rate).sum())
        w = w - eta * m
    assert clipped > 50 or not options
    torch.testing.assert_close(parameter.detach(), w, rtol=1e-10, atol=1e-10)


# --- fused kernels ---


@pytest.mark.parametrize("name", ["sgd", "adam", "amsgrad", "adagrad"])
def test_fused_kernels_serve_plain_parameters_only(name):
    def fused(*parameters):
        return choose(name).build(parameters, 0.1).param_groups[0]["fused"]

    plain = nn.Parameter(torch.zeros(4, 4))
    assert fused(plain, nn.Parameter(torch.zeros(3, dtype=torch.float64))) is True
    assert fused(plain, nn.Parameter(torch.zeros(4, dtype=torch.bfloat16))) is None
    assert fused(nn.Parameter(torch.zeros(4, 4)[:, ::2])) is None
    assert fused(("weight", plain)) is True
    assert fused({"params": [plain, nn.Parameter(torch.zeros(4, dtype=torch.float16))]}) is None


@pytest.mark.parametrize("name", ["sgd", "adam", "amsgrad", "adagrad"])
@pytest.mark.parametrize("kind", ["16 bits", "strided"])
def test_other_parameters_learn_as_well(name, kind):
    """64 weights with a gradient of 1 each, all moved alike; torch's fused SGD leaves those of 16 bits in place."""
    w = nn.Parameter(torch.zeros(64, dtype=torch.bfloat16) if kind == "16 bits" else torch.zeros(64, 2)[:, 0])
    optimizer = choose(name).build([w], 0.1)
    rows = torch.ones(3, 64) * torch.arange(1, 65)
    feed(optimizer, w, rows)
    reference = nn.Parameter(torch.zeros(64))
    feed(choose(name).build([reference], 0.1), reference, rows)
    torch.testing.assert_close(w.float(), reference, rtol=0.03, atol=0)


# --- recipes ---


def test_choose_takes_a_name_or_a_recipe():
    recipe = Recipe("sgd", {"momentum": 0.5})
    assert choose(recipe) is recipe
    assert choose("yellowfin") == Recipe("yellowfin")
    assert isinstance(choose("yellowfin").build([nn.Parameter(torch.zeros(1))], 1.0), YellowFin)
    assert choose("adam") == Recipe()


def test_a_recipe_is_plain_data_and_back():
    recipe = Recipe("adam", {"betas": (0.9, 0.99)})
    spec = naming.to_spec(recipe)
    assert spec == {"name": "recipe", "fields": {"optimizer": "adam", "options": {"betas": (0.9, 0.99)}}}
    again = naming.from_spec("optimizer", spec, {Recipe.name: Recipe})
    assert again == recipe
    assert hash(again) == hash(recipe)


def test_a_recipe_does_not_follow_the_users_dict():
    options = {"momentum": 0.5}
    recipe = Recipe("sgd", options)
    options["momentum"] = 0.9
    assert recipe.options == {"momentum": 0.5}


def test_an_optimiser_of_ones_own_can_be_registered(monkeypatch):
    monkeypatch.setitem(AVAILABLE, "nadam", torch.optim.NAdam)
    optimizer = Recipe("nadam", {"momentum_decay": 0.01}).build([nn.Parameter(torch.zeros(1))], 0.1)
    assert optimizer.param_groups[0]["momentum_decay"] == 0.01


@pytest.mark.parametrize("name", ["adabound", "amsbound"])
def test_a_missing_package_is_named_with_its_extra(name, monkeypatch):
    recipe = Recipe(name, {"final_lr": 0.5})
    monkeypatch.setitem(sys.modules, "pytorch_optimizer", None)
    with pytest.raises(ImportError, match=r'pip install "bayesrule\[optim\]"'):
        recipe.build([nn.Parameter(torch.zeros(1))], 0.1)


@pytest.mark.parametrize(
    ("make", "match"),
    [
        (lambda w: choose("adma"), "unknown optimizer 'adma': did you mean 'adam'"),
        (lambda w: Recipe("adagard"), "did you mean 'adagrad'"),
        (lambda w: Recipe("sgd", {"momentun": 0.5}), "option of sgd 'momentun': did you mean 'momentum'"),
        (lambda w: Recipe("adabound", {"alpha": 0.5}), "Valid: betas, eps, final_lr, gamma"),
        (lambda w: Recipe("adam", {"lr": 0.5}), "unknown option of adam 'lr'"),
        (lambda w: Recipe("adam", {"weight_decay": 0.5}), "weight_decay is not an option of adam: the prior"),
        (lambda w: Recipe().build([w], 0.0), "lr must be positive and finite, not 0.0"),
        (lambda w: Recipe().build([w], math.nan), "lr must be positive and finite, not nan"),
        (lambda w: Recipe().build([], 0.1), "'adam' with no options cannot be built: .*empty"),
        (lambda w: Recipe("adam", {"betas": (2, 0)}).build([w], 0.1), r"'adam' with betas=\(2, 0\) cannot be built"),
        (lambda w: Recipe("yellowfin", {"window": 0}).build([w], 1.0), "window must be"),
    ],
)
def test_errors_teach(make, match):
    with pytest.raises(ValueError, match=match):
        make(nn.Parameter(torch.zeros(1)))


def test_other_things_are_refused():
    with pytest.raises(TypeError, match="optimizer must be a name or a Recipe, not SGD"):
        choose(torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=0.1))
    with pytest.raises(TypeError, match=r"write \[w\]"):
        Recipe().build(nn.Parameter(torch.zeros(1)), 0.1)


@pytest.mark.slow  # tests/test_architecture.py asks for more
def test_the_import_is_light():
    code = "import sys, bayesrule.optim; print([n for n in ('pytorch_optimizer', 'matplotlib') if n in sys.modules])"
    found = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout
    assert found.strip() == "[]"
