"""What users do with VON, OGN, VOGN, Vadam and IVON."""

import copy
import io
import math

import pytest
import torch
from natural_training import N, build, descend, every, examples, network, train
from torch import nn
from torch.nn import functional as F

import bayesrule as br
from bayesrule import modules
from bayesrule.optim import IVON


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


@every
def test_a_look_in_inference_mode_does_not_stop_the_training(kind):
    """Vectors that are made in that mode could never be changed again."""
    model = network()
    optimizer, (x, y) = build(kind, model), examples()
    with torch.inference_mode():
        assert all(bool((s > 0).all()) for s in optimizer.deviations.values())
        assert set(optimizer.means) == set(optimizer.deviations)
        with optimizer.sampled():
            model(x)
    before = model[0].weight.detach().clone()
    for _ in range(2):
        with optimizer.sampled():
            descend(optimizer, F.mse_loss(model(x), y))
        optimizer.step()
    assert not torch.equal(model[0].weight, before)


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


def look(optimizer, model, x, y):
    """A block without gradients."""
    with optimizer.sampled(), torch.no_grad():
        model(x)


def raise_after_backward(optimizer, model, x, y):
    def block():
        with optimizer.sampled():
            descend(optimizer, 7 * F.mse_loss(model(x), y))
            raise KeyError("user's own")

    with pytest.raises(KeyError):
        block()


def meet_a_nan(optimizer, model, x, y):
    with pytest.raises(FloatingPointError), optimizer.sampled():
        descend(optimizer, F.mse_loss(model(x), y * math.nan))


@every
@pytest.mark.parametrize("between", [look, raise_after_backward, meet_a_nan])
@pytest.mark.parametrize("when", ["before the step", "between draws"])
def test_a_block_that_gave_nothing_leaves_what_was_collected(kind, between, when):
    """The draws of noise go on, so the twin skips as many."""
    x, y = examples()
    found = []
    for disturbed in (True, False):
        model = network()
        optimizer = build(kind, model, betas=(0.5, 0.5))
        with optimizer.sampled():
            descend(optimizer, F.mse_loss(model(x), y))
        nn.utils.clip_grad_norm_(model.parameters(), 0.1)
        if disturbed:
            between(optimizer, model, x, y)
        else:
            optimizer.draws += 1
        if when == "between draws":
            with optimizer.sampled():
                descend(optimizer, F.mse_loss(model(x), y))
        optimizer.step()
        found.append([*model.parameters(), *optimizer.deviations.values()])
    assert all(torch.equal(a, b) for a, b in zip(*found, strict=True))


@every
@pytest.mark.parametrize("to_none", [True, False])
def test_gradients_that_the_model_forgot_are_missed(kind, to_none):
    """As after `optimizer.zero_grad`; in place nobody is told, and it is found out."""
    model = network()
    optimizer, (x, y) = build(kind, model), examples()
    before = copy.deepcopy(model.state_dict())
    with optimizer.sampled():
        descend(optimizer, F.mse_loss(model(x), y))
    model.zero_grad(set_to_none=to_none)
    with pytest.raises(RuntimeError, match=r"without gradients|set to zero between the block and the step"):
        optimizer.step()
    assert all(torch.equal(w, before[name]) for name, w in model.state_dict().items())
    assert optimizer.steps == 0
    train(optimizer, model, steps=1)  # and goes on


def test_draws_before_a_zero_grad_of_the_model_do_not_count():
    x, y = examples()
    found = []
    for forget in ("model", "optimizer"):
        model = network()
        optimizer = build("ivon", model)
        for _ in range(2):
            (model if forget == "model" else optimizer).zero_grad()
            with optimizer.sampled():
                descend(optimizer, F.mse_loss(model(x), y))
        optimizer.step()
        found.append([*model.parameters(), *optimizer.deviations.values()])
    assert all(torch.equal(a, b) for a, b in zip(*found, strict=True))


def test_draws_that_were_set_to_zero_are_found_out_by_the_next():
    model = network()
    optimizer, (x, y) = build("ivon", model), examples()
    with optimizer.sampled():
        descend(optimizer, F.mse_loss(model(x), y))
    model.zero_grad(set_to_none=False)
    with pytest.raises(RuntimeError, match="set to zero between"), optimizer.sampled():
        pass


def test_a_part_of_the_gradients_that_was_forgotten_is_named():
    model = network()
    optimizer, (x, y) = build("ivon", model), examples()
    with optimizer.sampled():
        descend(optimizer, F.mse_loss(model(x), y))
    model[2].zero_grad()
    with pytest.raises(RuntimeError, match=r"'2\.weight' was cleared between the block and the step"):
        optimizer.step()
    with pytest.raises(RuntimeError, match=r"'2\.weight' was cleared"), optimizer.sampled():
        pass


def test_gradients_of_the_users_own_count_in_the_next_draw_too():
    """Replaced rather than changed in place, between two draws."""
    x, y = examples()
    found = []
    for replaced in (True, False):
        model = network()
        optimizer = build("ivon", model)
        for _ in range(2):
            with optimizer.sampled():
                descend(optimizer, F.mse_loss(model(x), y))
            for p in model.parameters():
                if replaced:
                    p.grad = p.grad / 2
                else:
                    p.grad.div_(2)
        optimizer.step()
        found.append([p.detach() for p in model.parameters()])
    assert all(torch.equal(a, b) for a, b in zip(*found, strict=True))


def test_parameters_that_change_between_block_and_step_are_refused():
    model = network()
    optimizer, (x, y) = build("ivon", model), examples()
    for after in ("block", "step"):
        with optimizer.sampled():
            descend(optimizer, F.mse_loss(model(x), y))
        model[0].requires_grad_(False)
        with pytest.raises(RuntimeError, match="frozen, freed or moved between a sampled block and its step"):
            optimizer.step() if after == "step" else optimizer.sampled().__enter__()
        model[0].requires_grad_(True)
        optimizer.zero_grad()


@every
@pytest.mark.parametrize("unscale", [True, False])
def test_a_gradient_scaler_is_refused(kind, unscale):
    """It scales what the curvature is learnt from as well."""
    model = network(dtype=torch.float32)
    optimizer, (x, y) = build(kind, model), examples(dtype=torch.float32)
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    with optimizer.sampled():
        descend(optimizer, scaler.scale(F.mse_loss(model(x), y)))
    if unscale:
        scaler.unscale_(optimizer)
    before = copy.deepcopy(model.state_dict())
    with pytest.raises(RuntimeError, match=r"GradScaler .* bfloat16"):
        scaler.step(optimizer)
    assert all(torch.equal(w, before[name]) for name, w in model.state_dict().items())
    train(optimizer, model, steps=1)  # without it, all goes on


def test_a_gradient_scaler_that_is_switched_off_does_nothing():
    model = network(dtype=torch.float32)
    optimizer, (x, y) = build("ivon", model), examples(dtype=torch.float32)
    scaler = torch.amp.GradScaler("cpu", enabled=False)
    with optimizer.sampled():
        descend(optimizer, scaler.scale(F.mse_loss(model(x), y)))
    scaler.step(optimizer)
    scaler.update()
    assert optimizer.steps == 1


def test_gradients_set_to_zero_on_a_device_that_is_not_waited_for_are_found_when_someone_looks(monkeypatch):
    monkeypatch.setattr(modules, "SYNCHRONOUS", ())
    model = network()
    optimizer, (x, y) = build("ivon", model), examples()
    train(optimizer, model, steps=2)
    with optimizer.sampled():
        descend(optimizer, F.mse_loss(model(x), y))
    model.zero_grad(set_to_none=False)
    optimizer.step()
    with pytest.raises(FloatingPointError, match=r"step 2: .* set to zero after its block"):
        optimizer.state_dict()
