"""The second device itself: the CPU's numbers, one device at a time, a random state of its own."""

import copy

import pytest
import second_device
import torch
from networks import zoo
from torch import nn
from torch.func import functional_call, grad, jacrev, jvp, vjp, vmap
from torch.nn import functional as F

from bayesrule import files

X = torch.randn(5, 4, generator=torch.Generator().manual_seed(0))
LABELS = torch.tensor([0, 1, 2, 3, 1])


def moved(x, device):
    if isinstance(x, dict):
        return {name: t.to(device) for name, t in x.items()}
    return tuple(t.to(device) for t in x) if isinstance(x, tuple) else x.to(device)


def call(model, x):
    if isinstance(x, dict):
        return model(**x)
    return model(*x) if isinstance(x, tuple) else model(x)


# ---- the CPU's numbers -----------------------------------------------------------------------------------------------


def test_numbers_are_the_cpus(second):
    a = X.to(second)
    assert a.device == second
    assert torch.equal((a @ a.T + 1).cpu(), X @ X.T + 1)
    assert torch.equal(a.double().cpu(), X.double())
    assert a.tolist() == X.tolist()


def test_views_share_memory(second):
    a = X.to(second)
    a[1].add_(1)
    a.t().mul_(2)
    a.view(-1)[0] = 7
    expected = X.clone()
    expected[1].add_(1)
    expected.mul_(2)
    expected[0, 0] = 7
    assert torch.equal(a.cpu(), expected)
    a.unfold(0, 2, 1).zero_()
    assert not a.any()


def test_results_are_written_to_out_whatever_its_size(second):
    values, order = torch.empty(0, device=second), torch.empty(0, dtype=torch.long, device=second)
    torch.sort(X.to(second).flatten(), out=(values, order))
    assert torch.equal(values.cpu(), X.flatten().sort().values)
    assert values.resize_(2, 3).device == second


def test_a_deep_copy_is_on_the_device_and_apart(second):
    layer = nn.Linear(3, 2).to(second)
    twin = copy.deepcopy(layer)
    twin.weight.data.zero_()
    assert twin.weight.device == second
    assert layer.weight.any()


def test_files_hold_the_numbers_without_the_device(second, tmp_path):
    files.save(tmp_path / "x", {"x": X.to(second)}, "numbers")
    assert torch.equal(files.load(tmp_path / "x", "numbers")["x"], X)


@pytest.mark.parametrize("kind", zoo())
def test_losses_and_gradients_of_every_kind_of_module_are_the_cpus(second, kind):
    model, (x, y) = zoo()[kind]
    twin = copy.deepcopy(model).to(second)
    torch.manual_seed(0)  # for dropout: both devices start from the same state
    loss = F.cross_entropy(call(model, x), y)
    torch.manual_seed(0)
    other = F.cross_entropy(call(twin, moved(x, second)), y.to(second))
    loss.backward()
    other.backward()
    torch.testing.assert_close(other.cpu(), loss)
    for p, q in zip(model.parameters(), twin.parameters(), strict=True):
        assert (p.grad is None) == (q.grad is None)
        if p.grad is not None:
            torch.testing.assert_close(q.grad.cpu(), p.grad)


@pytest.mark.parametrize("options", [{"foreach": True}, {"foreach": False}, {"fused": True}], ids=str)
def test_steps_of_torchs_optimisers_are_the_cpus(second, options):
    model = nn.Linear(4, 3)
    twin = copy.deepcopy(model).to(second)
    for net, x in ((model, X), (twin, X.to(second))):
        optimizer = torch.optim.Adam(net.parameters(), lr=0.1, **options)
        for _ in range(3):
            optimizer.zero_grad()
            net(x).square().sum().backward()
            optimizer.step()
    torch.testing.assert_close(twin.weight.cpu(), model.weight)


@pytest.mark.filterwarnings("ignore:.*torch.jit.script.*:DeprecationWarning")  # from within torch.func.jvp
def test_function_transforms_are_the_cpus(second):
    net = nn.Sequential(nn.Linear(4, 3), nn.Tanh(), nn.Linear(3, 2))
    weights = {name: p.detach() for name, p in net.named_parameters()}

    def everything(net, weights, x):
        def f(w, rows):
            return functional_call(net, w, (rows,))

        output, pull = vjp(lambda w: f(w, x), weights)
        per_example = vmap(grad(lambda w, row: f(w, row).square().sum()), (None, 0))(weights, x)
        stacked = {name: torch.stack([w, 2 * w]) for name, w in weights.items()}
        push = jvp(lambda w: f(w, x), (weights,), (weights,))[1]
        tensors = [push, pull(output)[0]["0.weight"], per_example["0.weight"], vmap(f, (0, None))(stacked, x)]
        return [*tensors, jacrev(f)(weights, x)["0.weight"]]

    there = everything(copy.deepcopy(net).to(second), moved(weights, second), X.to(second))
    for a, b in zip(everything(net, weights, X), there, strict=True):
        torch.testing.assert_close(b.cpu(), a)


@pytest.mark.parametrize("name", ["cholesky", "eigh", "svd", "qr", "inv", "slogdet", "eigvalsh", "solve_triangular"])
def test_linear_algebra_is_the_cpus(second, name):
    matrix = X.T.double() @ X.double() + torch.eye(4)
    function = getattr(torch.linalg, name)
    if name == "solve_triangular":
        function = lambda a: torch.linalg.solve_triangular(torch.linalg.cholesky(a), a, upper=False)  # noqa: E731
    here, there = function(matrix), function(matrix.to(second))
    for a, b in zip(*((r if isinstance(r, tuple) else (r,)) for r in (here, there)), strict=True):
        torch.testing.assert_close(b.cpu(), a)


def test_autocast_lowers_the_precision_of_products_only(second):
    layer, x = nn.Linear(4, 4).to(second), X.to(second)
    with torch.autocast(second.type, dtype=torch.bfloat16):
        outputs = layer(x)
        assert outputs.dtype == torch.bfloat16
        assert F.cross_entropy(outputs, LABELS.to(second)).dtype == torch.float32


# ---- no mix of devices -----------------------------------------------------------------------------------------------

MIXES = {
    "a sum": lambda a: a + X,
    "a product": lambda a: X @ a.T,
    "a list": lambda a: torch.cat([a, X]),
    "numbers without dimensions in a list": lambda a: torch.stack([a.sum(), torch.tensor(1.0)]),
    "out": lambda a: torch.add(a, 1, out=torch.empty(5, 4)),
    "in place": lambda a: torch.zeros(5, 4).add_(a),
    "in place, into a number": lambda a: torch.tensor(0.0).add_(a.sum()),
    "indices": lambda a: a[torch.tensor([0, 1])],
    "index_select": lambda a: a.index_select(0, torch.tensor([0, 1])),
    "where": lambda a: torch.where(a > 0, a, X),
    "foreach": lambda a: torch._foreach_add([a], [X]),
    "an embedding": lambda a: F.embedding(LABELS, a),
    "a loss": lambda a: F.cross_entropy(a, LABELS),
    "a layer": lambda a: nn.Linear(4, 2)(a),
    "a CPU generator": lambda a: torch.randn(3, device=a.device, generator=torch.Generator()),
    "a CPU generator, in place": lambda a: a.normal_(generator=torch.Generator()),
    "the device's generator on the CPU": lambda a: torch.randn(3, generator=torch.Generator(a.device)),
}


@pytest.mark.parametrize("mix", MIXES.values(), ids=list(MIXES))
def test_a_mix_with_the_cpu_is_refused(second, mix):
    with pytest.raises(RuntimeError, match=r"second:0|same device"):
        mix(X.to(second))


def test_a_refusal_names_the_operator_and_the_shape(second):
    with pytest.raises(RuntimeError, match=r"aten::index_select: a tensor of cpu with shape \[5\] among .* second:0"):
        X.to(second).index_select(0, LABELS)


def test_numbers_of_the_cpu_without_dimensions_are_taken_as_numbers(second):
    assert torch.equal((X.to(second) * torch.tensor(2.0)).cpu(), X * 2)


def test_numpy_cannot_see_the_device(second):
    with pytest.raises(TypeError, match="second:0"):
        X.to(second).numpy()


# ---- random numbers --------------------------------------------------------------------------------------------------


def test_a_generator_of_the_device_repeats(second):
    g = torch.Generator(second).manual_seed(3)
    assert g.device == second
    first = torch.randn(7, device=second, generator=g)
    state = g.get_state()
    following = torch.empty(3, device=second).exponential_(generator=g)
    g.set_state(state)
    assert torch.equal(torch.empty(3, device=second).exponential_(generator=g), following)
    assert torch.equal(torch.randn(7, device=second, generator=g.manual_seed(3)), first)
    assert torch.bernoulli(torch.full((9,), 0.5, device=second), generator=g).device == second


def test_the_random_state_is_the_devices_own(second):
    torch.manual_seed(5)
    cpu = torch.get_rng_state()
    drawn = torch.randn(3, device=second), F.dropout(torch.ones(9, device=second))
    assert torch.equal(torch.get_rng_state(), cpu)
    torch.manual_seed(5)
    assert torch.equal(torch.randn(3, device=second), drawn[0])
    assert torch.equal(F.dropout(torch.ones(9, device=second)), drawn[1])


def test_fork_rng_keeps_the_devices_state(second):
    with torch.random.fork_rng(devices=[0], device_type=second.type):
        inside = torch.randn(3, device=second)
    assert torch.equal(torch.randn(3, device=second), inside)
    with torch.random.fork_rng(devices=[]):
        inside = torch.randn(3, device=second)
    assert not torch.equal(torch.randn(3, device=second), inside)


# ---- waiting ---------------------------------------------------------------------------------------------------------


def test_waits_are_counted(second):
    def waits(action):
        before = second_device.waits()
        action()
        return second_device.waits() - before

    a = X.to(second)
    assert waits(lambda: (a @ a.T).relu_().sum()) == 0
    assert waits(lambda: a.sum().item()) == 1
    assert waits(lambda: a.cpu()) == 1
    assert waits(lambda: bool((a > 0).all())) == 1
    assert waits(lambda: a[a > 0]) >= 1  # how many there are has to be known


def test_waits_can_be_refused(second):
    a = X.to(second)
    with second_device.no_waits():
        total = (a @ a.T).sum()
        with pytest.raises(RuntimeError, match=r"aten::_local_scalar_dense: the program waits for second:0"):
            total.item()
        with pytest.raises(RuntimeError, match="a copy to the CPU: the program waits"):
            a.cpu()
    assert total.item() == pytest.approx(float((X @ X.T).sum()))


def test_the_device_is_available_within_a_test_that_asks_for_it(second):
    assert torch.accelerator.is_available()


@pytest.mark.skipif(torch.cuda.is_available() or torch.backends.mps.is_available(), reason="a real accelerator")
def test_the_device_is_not_available_to_other_tests():
    assert torch.accelerator.current_accelerator(check_available=True) is None
