"""VON, OGN, VOGN, Vadam and IVON against their equations, and what users do with an optimiser."""

import copy
import io
import math
import warnings

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.nn import functional as F

import bayesrule as br
from bayesrule.optim import IVON, OGN, VOGN, VON, Vadam

N = 50
KINDS = {"ivon": IVON, "von": VON, "vogn": VOGN, "ogn": OGN, "vadam": Vadam}
every = pytest.mark.parametrize("kind", KINDS)


def network(seed=0, dtype=torch.float64):
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1)).to(dtype)


def examples(seed=0, n=20, dtype=torch.float64):
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(n, 3, generator=generator, dtype=dtype)
    return x, x.sum(1, keepdim=True).sin()


def build(kind, model, lr=0.05, ess=N, **options):
    extra = {"model": model} if kind in ("vogn", "ogn") else {}
    params = options.pop("params", None) or list(model.named_parameters())
    return KINDS[kind](params, lr=lr, ess=ess, **extra, **options)


def descend(optimizer, loss):
    """Backward as each of them needs it."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Using backward")  # of gradients that can be differentiated: VON's
        loss.backward(create_graph=optimizer.twice)


def train(optimizer, model, steps=5, data=None, draws=1):
    x, y = data or examples(dtype=next(model.parameters()).dtype)
    for _ in range(steps):
        optimizer.zero_grad()
        for _ in range(draws):
            with optimizer.sampled():
                descend(optimizer, F.mse_loss(model(x), y))
        optimizer.step()
    return [p.detach().clone() for p in model.parameters()]


def example_squares(model, x, y):
    """(1/M) Σ_i g_i² by a loop over examples."""
    total = [torch.zeros_like(p) for p in model.parameters()]
    for i in range(len(x)):
        grads = torch.autograd.grad(F.mse_loss(model(x[i : i + 1]), y[i : i + 1]), list(model.parameters()))
        total = [t + g.square() / len(x) for t, g in zip(total, grads, strict=True)]
    return total


def textbook(kind, model, optimizer, steps, δ0, betas, h0, η=lambda t: 1.0, m0=0.0, damping=0.0, ξ=math.inf):
    """The equations of the papers, tensor by tensor, at the weights that the optimiser draws."""
    (x, y), (β1, β2), lr = examples(), betas, 0.05
    m = [p.detach().clone() for p in model.parameters()]
    h, g = [torch.full_like(p, h0) for p in m], [torch.zeros_like(p) for p in m]
    for t in range(1, steps + 1):
        λ, δ = N / η(t), η(t) * δ0
        with optimizer.sampled():
            w = [p.detach().clone() for p in model.parameters()]
            fresh = torch.autograd.grad(F.mse_loss(model(x), y), list(model.parameters()))
            squares = example_squares(model, x, y) if kind in ("vogn", "ogn") else None
            descend(optimizer, F.mse_loss(model(x), y))
        optimizer.step()
        for i in range(len(m)):
            s = h[i] + δ
            if kind == "vadam":
                g[i] = β1 * g[i] + (1 - β1) * (fresh[i] + δ * (m[i] - m0))
                h[i] = β2 * h[i] + (1 - β2) * fresh[i] ** 2
                second = (h[i] - β2**t * h0) / (1 - β2**t)
                m[i] = m[i] - lr * g[i] / (1 - β1**t) / (second.sqrt() + δ + damping)
                continue
            g[i] = β1 * g[i] + (1 - β1) * fresh[i]
            if kind == "ivon":
                ĥ = fresh[i] * (w[i] - m[i]) * λ * s
                h[i] = β2 * h[i] + (1 - β2) * ĥ + 0.5 * (1 - β2) ** 2 * (h[i] - ĥ) ** 2 / s
            else:
                h[i] = β2 * h[i] + (1 - β2) * squares[i]
            rate = lr * (h0 + δ)
            move = (g[i] / (1 - β1**t) + δ * (m[i] - m0)) / (h[i] + δ + damping)
            m[i] = m[i] - rate * move.clamp(-ξ, ξ)
    return m, h


@pytest.mark.parametrize("refresh", [1, 8])
@pytest.mark.parametrize("kind", ["ivon", "vogn", "ogn", "vadam"])
def test_iterates_are_those_of_the_equations(kind, refresh):
    """Over 60 steps, float64."""
    model, δ, betas, h0 = network(), 0.02, (0.9, 0.99), 0.3
    optimizer = build(kind, model, weight_decay=δ, betas=betas, hess_init=h0, refresh=refresh)
    m, h = textbook(kind, model, optimizer, 60, δ, betas, h0)
    deviations = list(optimizer.deviations.values())
    for p, s, mean, curvature in zip(model.parameters(), deviations, m, h, strict=True):
        assert torch.allclose(p, mean, rtol=1e-9, atol=1e-12)
        assert torch.allclose(s, (N * (curvature + δ)).rsqrt(), rtol=1e-9)


def test_temperature_damping_prior_mean_and_clipping_are_in_the_equations():
    model = network()
    options = {"temperature": 0.4, "tempering": 20, "damping": 0.1, "prior_mean": 0.5, "clip_radius": 0.2}
    optimizer = build("ivon", model, weight_decay=0.02, betas=(0.8, 0.99), hess_init=0.3, **options)

    def temperature(t):
        return 0.4 * (0.1 + 0.9 * min((t - 1) / 20, 1))

    m, _ = textbook("ivon", model, optimizer, 30, 0.02, (0.8, 0.99), 0.3, temperature, m0=0.5, damping=0.1, ξ=0.2)
    assert all(torch.allclose(p, mean, rtol=1e-9) for p, mean in zip(model.parameters(), m, strict=True))


def test_von_has_the_hessian_of_a_diagonal_loss():
    """ĥ is exact there: h ← βh + (1 − β)H + ½(1 − β)²(h − H)²/(h + δ)."""
    w, a = nn.Parameter(torch.ones(3, dtype=torch.float64)), torch.tensor([1.0, 2.0, 5.0], dtype=torch.float64)
    optimizer = VON([w], lr=0.1, ess=N, weight_decay=0.1, betas=(0.0, 0.9), hess_init=0.5)
    h = torch.full_like(a, 0.5)
    for _ in range(50):
        with optimizer.sampled():
            descend(optimizer, 0.5 * (a * w.square()).sum())
        optimizer.step()
        h = 0.9 * h + 0.1 * a + 0.5 * 0.01 * (h - a) ** 2 / (h + 0.1)
    assert torch.allclose(optimizer.deviations["0"], (N * (h + 0.1)).rsqrt(), rtol=1e-10)


def logistic(n=60, seed=0):
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(n, 2, generator=generator, dtype=torch.float64)
    y = torch.rand(n, generator=generator, dtype=torch.float64).lt(
        torch.sigmoid(x @ torch.tensor([1.5, -1.0]).double())
    )
    return x, y.double()


def test_von_on_logistic_regression_meets_the_optimality_conditions():
    """E_q[∇ℓ] = 0 and S = E_q[H], by quadrature at what VON has converged to with falling rates.

    ℓ is the whole loss, of likelihood and prior, over N. Its gradient is of order one where training starts.
    """
    x, y = logistic()
    w = nn.Parameter(torch.zeros(2, dtype=torch.float64))
    δ = 1 / len(x)  # a prior N(0, 1)
    optimizer = VON([w], lr=1.0, ess=len(x), weight_decay=δ, betas=(0.0, 0.9), hess_init=1.0 - δ)
    means, precisions = [], []
    for t in range(6000):
        optimizer.param_groups[0].update(lr=1 / (1 + 0.1 * t), betas=(0.0, 1 - 1 / (2 + 0.1 * t)))
        with optimizer.sampled():
            descend(optimizer, F.binary_cross_entropy_with_logits(x @ w, y))
        optimizer.step()
        if t >= 3000:
            means.append(w.detach().clone())
            precisions.append(optimizer.deviations["0"] ** -2)
    m, s = torch.stack(means).mean(0), torch.stack(precisions).mean(0)
    nodes, weights = map(torch.from_numpy, np.polynomial.hermite_e.hermegauss(40))
    grid = torch.cartesian_prod(nodes, nodes) / s.sqrt() + m
    mass = torch.cartesian_prod(weights, weights).prod(1) / (2 * math.pi)
    p = torch.sigmoid(grid @ x.T)
    slope = ((p - y) @ x / len(x) + δ * grid).mul(mass[:, None]).sum(0)
    curve = ((p * (1 - p)) @ x.square() / len(x) + δ).mul(mass[:, None]).sum(0)
    assert slope.abs().max() < 1e-3
    assert (s / len(x) - curve).abs().max() < 1e-3
    mean, covariance = moments(x, y)
    assert ((m - mean) / covariance.diagonal().sqrt()).abs().max() < 0.05
    assert (s.rsqrt() / torch.linalg.inv(covariance).diagonal().rsqrt() - 1).abs().max() < 0.05


def moments(x, y):
    """Mean and covariance of the exact posterior under N(0, 1), on a grid.

    A mean-field q has the deviations of one weight given the others, not the marginal ones; the posterior is a little
    skewed, so that both agree to a few hundredths.
    """
    line = torch.linspace(-6, 6, 601, dtype=torch.float64)
    grid = torch.cartesian_prod(line, line)
    log_p = -F.softplus(-(2 * y - 1) * (grid @ x.T)).sum(1) - 0.5 * grid.square().sum(1)
    mass = torch.softmax(log_p, 0)
    mean = mass @ grid
    return mean, (grid - mean).T @ ((grid - mean) * mass[:, None])


@every
def test_the_weights_are_the_means_after_a_block_and_after_an_exception(kind):
    model = network()
    optimizer, (x, y) = build(kind, model), examples()
    before = copy.deepcopy(model.state_dict())
    with optimizer.sampled():
        inside = model[0].weight.detach().clone()
        descend(optimizer, F.mse_loss(model(x), y))
    assert torch.equal(inside, before["0.weight"]) == (kind == "ogn")
    with pytest.raises(KeyError), optimizer.sampled():
        raise KeyError("user's own")
    assert all(torch.equal(w, before[name]) for name, w in model.state_dict().items())
    optimizer.step()
    assert not torch.equal(model[0].weight, before["0.weight"])


def test_draws_are_from_q():
    """Noise of every place in a cycle is standard normal; a weight's draws are pairs of negatives, else independent.

    20 000 numbers: mean, variance and fourth moment within 4.5 standard errors, and correlations of draws; 2 seeds.
    24 tests each: a false alarm in 3 000 runs.
    """
    for seed in (0, 1):
        w = nn.Parameter(torch.zeros(20_000))
        optimizer = IVON([w], lr=0.1, ess=4.0, weight_decay=0.5, hess_init=0.5, seed=seed)
        draws = []
        for _ in range(9):
            with optimizer.sampled(), torch.no_grad():
                draws.append(w.detach().clone() * 2)  # σ = 1/√(4·1)
        n = len(w)
        for ε in draws:
            for power, moment, variance in ((1, 0, 1), (2, 1, 2), (4, 3, 96)):
                assert abs(float((ε.double() ** power).mean()) - moment) < 4.5 * math.sqrt(variance / n)
        for a in range(0, 8, 2):
            assert torch.equal(draws[a], -draws[a + 1])
            for b in range(a + 2, 9, 2):
                assert abs(float(draws[a] @ draws[b]) / n) < 4.5 / math.sqrt(n)


def test_noise_is_used_twice_only_where_that_pays():
    w = nn.Parameter(torch.zeros(10))
    optimizer = IVON([w], lr=0.1, ess=4.0)
    draws = []
    for _ in range(4):
        with optimizer.sampled():
            draws.append(w.detach().clone())
    assert torch.equal(draws[0], -draws[1])
    assert not {*draws[0].abs().tolist()} & {*draws[2].abs().tolist()}


@settings(deadline=None, max_examples=60)
@given(
    st.lists(st.lists(st.floats(-1e30, 1e30), min_size=3, max_size=3), min_size=1, max_size=12),
    st.floats(0, 0.99999),
    st.floats(0, 1),
    st.sampled_from([torch.float32, torch.float64]),
)
def test_ivons_precision_stays_positive_whatever_the_gradients(slopes, beta, decay, dtype):
    w = nn.Parameter(torch.zeros(3, dtype=dtype))
    optimizer = IVON([w], lr=0.0, ess=10.0, weight_decay=decay, betas=(0.9, beta), hess_init=1e-3)
    for slope in slopes:
        with optimizer.sampled():
            (w * torch.tensor(slope, dtype=dtype)).sum().backward()
        before = optimizer.state[w]["precision"].clone()
        optimizer.step()
        after = optimizer.state[w]["precision"]
        assert (after > 0).all()
        assert after.isfinite().all()
        assert (after >= 0.499 * before).all() or (before > 1e29).any()  # the bound is ½, but for rounding
        assert w.isfinite().all()
    descend_by_ones(optimizer, w)


def descend_by_ones(optimizer, w):
    """What comes after a wild gradient is finite too."""
    for _ in range(3):
        with optimizer.sampled():
            w.sum().backward()
        optimizer.step()
    assert w.isfinite().all()


def test_ivons_precision_stays_positive_if_it_is_halved_time_and_again():
    """The worst case: ĥ such that 1 + e + ½e² is ½, 300 times, without a prior."""
    w = nn.Parameter(torch.zeros(4))
    optimizer = IVON([w], lr=0.0, ess=10.0, weight_decay=0.0, betas=(0.9, 0.9), hess_init=1.0, refresh=1)
    for _ in range(300):
        with optimizer.sampled():
            flat = optimizer._flats[0]
            slope = -(9.0 / math.sqrt(10.0)) / flat.delta  # e = 0.1(ĥ/h − 1) = −1
            (w * slope.detach()).sum().backward()
        optimizer.step()
        assert (optimizer.state[w]["precision"] > 0).all()
    assert (optimizer.state[w]["precision"] < 1e-20).all()


@every
def test_several_draws_are_averaged(kind):
    """Two blocks and a step are one step from the mean gradient; with a pair of negatives, noise drops out of means."""
    model = network()
    optimizer, (x, y) = build(kind, model, betas=(0.0, 0.9)), examples()
    grads = []
    for _ in range(2):
        with optimizer.sampled():
            descend(optimizer, F.mse_loss(model(x), y))
            grads.append([p.grad.detach().clone() for p in model.parameters()])
    for p, a, b in zip(model.parameters(), *grads, strict=True):
        assert torch.allclose(p.grad, (a + b) / 2, rtol=1e-12)
    optimizer.step()
    if kind == "vadam":  # s ← β₂s + (1 − β₂)·mean ĝ², from s₀ = 1/(N·0.02²)
        for a, b, s in zip(*grads, optimizer.deviations.values(), strict=True):
            seen = 0.9 * (1 / (N * 0.02**2)) + 0.1 * (a.square() + b.square()) / 2
            assert torch.allclose(s, (N * (seen + 1e-4)).rsqrt(), rtol=1e-10)


@every
def test_accumulation_in_a_block_is_one_draw(kind):
    """Two halves of a batch in one block are the batch."""
    whole, halves = network(), network()
    x, y = examples()
    a, b = build(kind, whole, seed=3), build(kind, halves, seed=3)
    with a.sampled():
        descend(a, F.mse_loss(whole(x), y))
    with b.sampled():
        for rows in (slice(0, 10), slice(10, 20)):
            descend(b, F.mse_loss(halves(x[rows]), y[rows]) / 2)
    a.step()
    b.step()
    for p, q in zip(whole.parameters(), halves.parameters(), strict=True):
        assert torch.allclose(p, q, rtol=1e-10)
    if kind != "von":  # whose random signs meet other Hessians
        for p, q in zip(a.deviations.values(), b.deviations.values(), strict=True):
            assert torch.allclose(p, q, rtol=1e-10)


@every
def test_clipping_by_the_user_counts(kind):
    free, clipped = network(), network()
    for model, limit in ((free, None), (clipped, 1e-6)):
        optimizer, (x, y) = build(kind, model, betas=(0.0, 0.9), weight_decay=0.0), examples()
        with optimizer.sampled():
            descend(optimizer, F.mse_loss(model(x), y))
        if limit:
            nn.utils.clip_grad_norm_(model.parameters(), limit)
        optimizer.step()
    start = network()
    moved = [float((model[0].weight - start[0].weight).detach().norm()) for model in (free, clipped)]
    share = 0.5 if kind == "vadam" else 1e-2  # whose steps are nearly signs
    assert 0 < moved[1] < share * moved[0]


@every
def test_a_closure_is_called_in_a_block(kind):
    model = network()
    optimizer, (x, y) = build(kind, model), examples()
    other = network()
    twin = build(kind, other)

    def closure():
        optimizer.zero_grad()
        loss = F.mse_loss(model(x), y)
        descend(optimizer, loss)
        return loss

    assert float(optimizer.step(closure).detach()) > 0
    train(twin, other, steps=1)
    assert all(torch.equal(p, q) for p, q in zip(model.parameters(), other.parameters(), strict=True))


@every
def test_schedulers_that_turn_the_betas_work(kind):
    model = network()
    optimizer = build(kind, model)
    scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=0.05, total_steps=10)
    for _ in range(9):
        train(optimizer, model, steps=1)
        scheduler.step()
    assert optimizer.param_groups[0]["betas"][0] != 0.9
    assert all(p.isfinite().all() for p in model.parameters())


@every
def test_torch_schedulers_work(kind):
    model = network()
    optimizer = build(kind, model)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.0)
    train(optimizer, model, steps=1)
    scheduler.step()
    before = [p.detach().clone() for p in model.parameters()]
    train(optimizer, model, steps=1)
    assert all(torch.equal(p, q) for p, q in zip(model.parameters(), before, strict=True))


@every
def test_groups_frozen_and_unused_parameters(kind):
    """A frozen parameter stays; one that the loss does not depend on goes to the prior's mean; groups differ."""
    model = nn.ModuleDict({"used": network(), "unused": nn.Linear(2, 2).double(), "frozen": nn.Linear(2, 2).double()})
    model["frozen"].requires_grad_(False)
    model.forward = model["used"].forward
    frozen, unused = (copy.deepcopy(model[name].weight.detach()) for name in ("frozen", "unused"))
    groups = [
        {"params": list(model["used"].named_parameters()), "lr": 0.0},
        {"params": [(f"u.{k}", v) for k, v in model["unused"].named_parameters()], "weight_decay": 0.5},
        {"params": [(f"f.{k}", v) for k, v in model["frozen"].named_parameters()]},
    ]
    start = copy.deepcopy(model["used"].state_dict())
    optimizer = build(kind, model, params=groups)
    train(optimizer, model, steps=20)
    assert torch.equal(model["frozen"].weight, frozen)
    assert all(torch.equal(w, start[name]) for name, w in model["used"].state_dict().items())
    assert (model["unused"].weight.abs() < unused.abs()).all()
    assert set(optimizer.deviations) == {*dict(model["used"].named_parameters()), "u.weight", "u.bias"}


def test_unfreezing_under_way():
    """A parameter that joins later starts at h₀ + δ; one that was away while δ changed comes back with its own h."""
    model = network()
    model[0].requires_grad_(False)
    optimizer = build("ivon", model, weight_decay=10.0, hess_init=1.0, betas=(0.9, 1 - 1e-15))
    train(optimizer, model, steps=1)
    model[0].requires_grad_(True)
    model[2].requires_grad_(False)
    optimizer.param_groups[0]["weight_decay"] = 20.0
    train(optimizer, model, steps=1)
    model[2].requires_grad_(True)
    for deviation in optimizer.deviations.values():
        assert torch.allclose(deviation, torch.full_like(deviation, (N * 21.0) ** -0.5))


def test_groups_without_names_are_numbered_through():
    model = network()
    optimizer = IVON([{"params": list(model[0].parameters())}, {"params": list(model[2].parameters())}], lr=0.1, ess=N)
    assert [*optimizer.means] == ["0", "1", "2", "3"]


def test_freezing_under_way():
    model = network()
    optimizer = build("ivon", model)
    train(optimizer, model, steps=3)
    kept = optimizer.deviations["2.weight"].clone()
    model[0].requires_grad_(False)
    weight = model[0].weight.detach().clone()
    assert torch.equal(optimizer.deviations["2.weight"], kept)
    train(optimizer, model, steps=3)
    assert torch.equal(model[0].weight, weight)
    assert set(optimizer.deviations) == {"2.weight", "2.bias"}


def test_a_model_that_changes_its_dtype_under_way():
    model = network(dtype=torch.float32)
    optimizer = build("ivon", model)
    train(optimizer, model, steps=3)
    before = optimizer.deviations["0.weight"].double()
    model.double()
    assert torch.allclose(optimizer.deviations["0.weight"], before, rtol=1e-6)
    train(optimizer, model, steps=3)
    assert optimizer.deviations["0.weight"].dtype == torch.float64


def test_dtypes_may_differ():
    model = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1).double())
    model.forward = lambda x: model[2](model[1](model[0](x)).double())
    optimizer = build("ivon", model)
    train(optimizer, model, data=(examples()[0].float(), examples()[1]))
    assert optimizer.deviations["0.weight"].dtype == torch.float32
    assert optimizer.deviations["2.weight"].dtype == torch.float64
    with pytest.raises(TypeError, match="autocast"):
        IVON([nn.Parameter(torch.zeros(2, dtype=torch.bfloat16))], lr=0.1, ess=1)
    model.bfloat16()
    with pytest.raises(TypeError, match="autocast"):
        _ = optimizer.deviations


def test_sparse_gradients_are_refused():
    model = nn.Embedding(5, 2, sparse=True)
    optimizer = IVON(model.named_parameters(), lr=0.1, ess=5)
    with pytest.raises(TypeError, match="'weight' is sparse"), optimizer.sampled():
        model(torch.tensor([1, 2])).sum().backward()


@every
def test_bfloat16_autocast(kind):
    model = network(dtype=torch.float32)
    optimizer, (x, y) = build(kind, model), examples(dtype=torch.float32)
    for _ in range(5):
        with optimizer.sampled():
            with torch.autocast("cpu", torch.bfloat16):
                loss = F.mse_loss(model(x).float(), y)
            descend(optimizer, loss)
        optimizer.step()
    assert all(p.dtype == torch.float32 and bool(p.isfinite().all()) for p in model.parameters())


@every
@pytest.mark.parametrize("cut", [1, 4])
def test_a_state_goes_on_to_the_bit(kind, cut):
    """Through a file, in the middle of a pair and of a cycle, with another seed given to the new optimiser."""
    whole, first = network(), network()
    train(build(kind, whole, seed=5), whole, steps=9)
    optimizer = build(kind, first, seed=5)
    train(optimizer, first, steps=cut)
    file = io.BytesIO()
    torch.save({"optimizer": optimizer.state_dict(), "model": first.state_dict()}, file)
    file.seek(0)
    saved = torch.load(file, weights_only=True)
    again = network(seed=1)
    again.load_state_dict(saved["model"])
    restored = build(kind, again, seed=99, refresh=3)
    restored.load_state_dict(saved["optimizer"])
    assert restored.steps == cut
    train(restored, again, steps=9 - cut)
    assert all(torch.equal(p, q) for p, q in zip(whole.parameters(), again.parameters(), strict=True))


def test_tempering_warms_up():
    """σ² = η/(N(h + ηδ)): narrower by ten where it starts."""
    model = network()
    optimizer = build(
        "ivon", model, temperature=0.5, tempering=10, weight_decay=0.0, hess_init=0.1, betas=(0.9, 1 - 1e-15)
    )
    first = optimizer.deviations["0.weight"].clone()
    train(optimizer, model, steps=10)
    last = optimizer.deviations["0.weight"]
    assert torch.allclose(first, torch.full_like(first, math.sqrt(0.05 / (N * 0.1))))
    assert torch.allclose(last, torch.full_like(first, math.sqrt(0.5 / (N * 0.1))), rtol=1e-6)


def test_augmentation_is_a_factor_on_the_number_of_examples():
    a, b = network(), network()
    train(build("ivon", a, ess=20.0, augmentation=5.0), a)
    train(build("ivon", b, ess=100.0), b)
    assert all(torch.equal(p, q) for p, q in zip(a.parameters(), b.parameters(), strict=True))


def test_the_prior_shows_where_there_are_no_data():
    """Without a likelihood IVON ends at the prior, N(prior_mean, 1/(Nδ))."""
    w = nn.Parameter(torch.full((2000,), 3.0))
    optimizer = IVON([w], lr=0.2, ess=100, weight_decay=0.04, prior_mean=1.0, betas=(0.9, 0.9), hess_init=0.5)
    for _ in range(400):
        with optimizer.sampled():
            (0 * w).sum().backward()
        optimizer.step()
    assert torch.allclose(w, torch.ones_like(w), atol=1e-4)
    assert torch.allclose(optimizer.deviations["0"], torch.full_like(w, 0.5), rtol=1e-3)


@every
def test_to_posterior(kind):
    model = network()
    optimizer = build(kind, model)
    train(optimizer, model)
    posterior = optimizer.to_posterior(model, br.likelihoods.Gaussian(noise=0.1))
    assert type(posterior) is br.posteriors.Gaussian
    for name, p in model.named_parameters():
        assert torch.equal(posterior.mean[name], p)
        assert torch.allclose(posterior.std[name], optimizer.deviations[name])
    assert posterior.predict(examples()[0]).mean.shape == (20,)
    with pytest.raises(ValueError, match="none of the model"):
        optimizer.to_posterior(network(), "gaussian")


def test_parameters_of_others_are_fixed_in_the_posterior():
    model = network()
    optimizer = IVON(model[2].parameters(), lr=0.1, ess=N)
    train(optimizer, model)
    posterior = optimizer.to_posterior(model, "gaussian")
    assert set(posterior.mean) == {"2.weight", "2.bias"}
    assert torch.equal(posterior.fixed["0.weight"], model[0].weight)


@every
@pytest.mark.parametrize("spoilt", ["inputs", "targets"])
def test_a_nan_is_named_and_changes_nothing(kind, spoilt):
    model = network()
    optimizer, (x, y) = build(kind, model), examples()
    train(optimizer, model, steps=3)
    before, spread = copy.deepcopy(model.state_dict()), {k: v.clone() for k, v in optimizer.deviations.items()}
    x, y = (x * math.nan, y) if spoilt == "inputs" else (x, y * math.nan)
    with pytest.raises(FloatingPointError, match=r"step 3: the gradient of parameter '0\.weight'"), optimizer.sampled():
        descend(optimizer, F.mse_loss(model(x), y))
    assert all(torch.equal(w, before[name]) for name, w in model.state_dict().items())
    assert all(torch.equal(s, spread[name]) for name, s in optimizer.deviations.items())
    with pytest.raises(RuntimeError, match="without gradients"):
        optimizer.step()
    train(optimizer, model, steps=1)
    assert all(p.isfinite().all() for p in model.parameters())


@every
def test_blocks_and_steps_out_of_place(kind):
    model = network()
    optimizer, (x, y) = build(kind, model), examples()
    with pytest.raises(RuntimeError, match="backward"):
        optimizer.step()
    with optimizer.sampled():
        with pytest.raises(RuntimeError, match="one block at a time"), optimizer.sampled():
            pass
        with pytest.raises(RuntimeError, match="within a sampled block"):
            _ = optimizer.deviations
        descend(optimizer, F.mse_loss(model(x), y))
        with pytest.raises(RuntimeError, match="after the block"):
            optimizer.step()
    optimizer.zero_grad()
    with pytest.raises(RuntimeError, match="backward"):
        optimizer.step()


def test_von_says_what_it_needs():
    model = network()
    optimizer, (x, y) = build("von", model), examples()
    with pytest.raises(RuntimeError, match="create_graph"), optimizer.sampled():
        F.mse_loss(model(x), y).backward()


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("ess", 0.0),
        ("ess", -1.0),
        ("ess", math.inf),
        ("lr", -1.0),
        ("betas", (1.0, 0.9)),
        ("betas", (0.9, -0.1)),
        ("weight_decay", -1e-4),
        ("temperature", 0.0),
        ("hess_init", 0.0),
        ("hess_init", math.nan),
        ("damping", -1.0),
        ("clip_radius", 0.0),
        ("augmentation", 0.0),
        ("tempering", -1),
        ("refresh", 0),
        ("refresh", 1.5),
        ("seed", -1),
        ("betas", (0.9,)),
        ("betas", 0.9),
        ("prior_mean", math.nan),
        ("ess", "8"),
    ],
)
def test_bad_settings_are_named(name, value):
    with pytest.raises(ValueError, match=name):
        IVON([nn.Parameter(torch.zeros(2))], **{"lr": 0.1, "ess": 10, name: value})


def test_a_setting_that_does_not_exist():
    with pytest.raises(ValueError, match="did you mean 'hess_init'"):
        IVON([nn.Parameter(torch.zeros(2))], lr=0.1, ess=10, hessinit=1.0)


def test_a_state_of_something_else_is_refused():
    model, other = network(), nn.Linear(2, 1).double()
    optimizer = build("ivon", model)
    train(optimizer, model, steps=1)
    state = copy.deepcopy(optimizer.state_dict())
    with pytest.raises(ValueError, match="of 4 parameters, the optimiser has 2"):
        build("ivon", other).load_state_dict(state)
    with pytest.raises(ValueError, match=r"shape \[4, 3\], the parameter \[3, 4\]"):
        build("ivon", nn.Sequential(nn.Linear(4, 3), nn.Linear(3, 1)).double()).load_state_dict(state)
    with pytest.raises(ValueError, match="not one of IVON"):
        optimizer.load_state_dict(torch.optim.Adam(model.parameters()).state_dict())
    with pytest.raises(ValueError, match="not one of IVON, but of Vadam"):
        optimizer.load_state_dict(build("vadam", model).state_dict())


@every
def test_a_copy_goes_on_by_itself(kind):
    model = network()
    pair = {"model": model, "optimizer": build(kind, model)}
    train(pair["optimizer"], model, steps=3)
    twin = copy.deepcopy(pair)
    train(twin["optimizer"], twin["model"], steps=3)
    train(pair["optimizer"], model, steps=3)
    assert all(torch.equal(p, q) for p, q in zip(model.parameters(), twin["model"].parameters(), strict=True))
