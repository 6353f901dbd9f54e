"""The factor of a penalty from the variance of its prior, and the penalty as a prior."""

import math

import numpy as np
import pytest
import torch
from covering import covering
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from torch.distributions import Laplace, Normal

import bayesrule as br
from bayesrule import files, priors
from bayesrule.modules import flatten, parameters
from bayesrule.naming import to_spec
from bayesrule.penalties import calibrate
from bayesrule.penalties.functions import L1, L2, GroupLasso
from bayesrule.priors import GroupLaplace, Product
from bayesrule.priors.group_laplace import layout, log_normaliser, norms
from bayesrule.priors.scales import fans

ZERO = torch.zeros((), dtype=torch.float64)
PENALTIES = ["l2", "l1", "group", "group-transposed"]
LAYERS = {
    "linear": nn.Linear(40, 25),
    "conv1": nn.Conv1d(6, 10, 7),
    "conv2": nn.Conv2d(6, 10, 5),
    "conv3": nn.Conv3d(3, 5, 3),
    "conv2 in groups": nn.Conv2d(6, 12, 5, groups=3),
    "transposed": nn.ConvTranspose2d(6, 10, 5),
    "transposed in groups": nn.ConvTranspose2d(6, 12, 5, groups=3),
}


def network(dtype=torch.float64):
    torch.manual_seed(0)
    layers = [nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.ConvTranspose2d(4, 2, 3, groups=2), nn.ReLU()]
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(2 * 36, 3)).to(dtype)


@pytest.mark.parametrize(("penalty", "name"), covering(PENALTIES, LAYERS, whole=["group", "group-transposed"]))
def test_a_million_draws_have_the_variance_of_the_rule(name, penalty):
    """z-test over draws of the whole weight. A right sampler fails one of all these with probability 6e-4."""
    layer = LAYERS[name]
    calibrated, generator = calibrate(layer, penalty), torch.Generator().manual_seed(1)
    fan_in = fans(layer, layer.weight)[0]
    count = math.ceil(1e6 / layer.weight.numel())
    squares = torch.stack([calibrated.sample(layer, generator)["weight"].square().mean() for _ in range(count)])
    error = squares.std() / math.sqrt(count)
    assert abs(squares.mean() - 1 / fan_in) < 4.5 * error
    assert error < 0.02 / fan_in


@pytest.mark.parametrize(
    ("penalty", "expected"),
    [
        ("l2", 20.0),
        ("l1", math.sqrt(2 * 40)),
        ("group", math.sqrt(40 * 41)),
        ("group-transposed", math.sqrt(40 * 26)),
    ],
)
def test_the_factors_of_a_linear_layer(penalty, expected):
    strengths = calibrate(nn.Linear(40, 25), penalty).strengths
    assert strengths["weight"] == pytest.approx(expected, rel=1e-14)
    assert strengths["bias"] == 0.5  # normal with scale one


def test_a_normalisation_layer_has_no_fan_whatever_its_shape():
    """LayerNorm over two dimensions has a matrix for its weight, and sums over nothing."""
    model = nn.Sequential(nn.Linear(4, 4), nn.LayerNorm([4, 4]))
    assert priors.Gaussian("fan-in").resolve(model).scale["1.weight"] == 1.0
    assert br.penalties.explain(1e-4, model, n=10).rows[2].fan_in == 1.0
    assert calibrate(model, "group").strengths["1.weight"] == 0.5


@pytest.mark.parametrize("rule", ["fan-in", "glorot", "xavier", "kaiming"])
def test_the_variance_is_that_of_the_rule(rule):
    model = network()
    gaussian = priors.Gaussian(rule).resolve(model)
    found = calibrate(model, "l2", rule).resolve(model)
    assert isinstance(found, priors.Gaussian)
    assert found.scale == pytest.approx(gaussian.scale)
    assert found.mean == gaussian.mean


@pytest.mark.parametrize("outgoing", [False, True])
@pytest.mark.parametrize("groups", [1, 2])
def test_the_groups_of_a_convolution(outgoing, groups):
    """Only weights between one output channel and its inputs, or one input channel and its outputs, share a norm."""
    for layer in (nn.Conv2d(4, 6, 3, groups=groups), nn.ConvTranspose2d(4, 6, 3, groups=groups)):
        channel, side = (3, "input") if outgoing else (5, "output")
        x = torch.randn(1, 4, 8, 8)
        before = layer(x)
        with torch.no_grad():
            radii = norms(layer.weight, layout(layer, outgoing))
            mask = torch.zeros_like(radii).flatten()
            mask[channel] = 1.0
        (grad,) = torch.autograd.grad(
            (norms(layer.weight, layout(layer, outgoing)).flatten() * mask).sum(), layer.weight
        )
        with torch.no_grad():
            layer.weight[grad != 0] = 0.0
        after = layer(x)
        if side == "output":
            changed = (after != before).any(-1).any(-1)[0].nonzero().flatten().tolist()
            assert changed == [5]
            assert torch.equal(after[0, 5], layer.bias[5].expand_as(after[0, 5]))
        else:
            other = x.clone()
            other[0, 3] += 1.0
            assert torch.equal(layer(other), after)


@pytest.mark.parametrize("n", [1, 2, 3])
def test_the_group_density_integrates_to_one(n):
    nodes, weights = np.polynomial.legendre.leggauss(60)
    t = (nodes + 1) / 2
    x, spacing = torch.tensor(40 * t**3), torch.tensor(weights / 2 * 120 * t**2)  # dense about the corner at zero
    points, measure = torch.cartesian_prod(*[x] * n).reshape(-1, n), spacing
    for _ in range(n - 1):
        measure = torch.outer(measure, spacing).flatten()
    for scale in (0.3, 1.0):
        density = (-norms(points, (1, 1))[0] / scale - log_normaliser(n, scale)).exp()
        assert 2**n * float(measure @ density) == pytest.approx(1, abs=1e-6)


def test_a_group_of_one_is_laplaces():
    w = torch.randn(5, 1, dtype=torch.float64)
    layer = nn.Linear(1, 5, bias=False).double()
    found = GroupLaplace(0.7).resolve(layer).log_prob({"weight": w})
    torch.testing.assert_close(found, Laplace(ZERO, 0.7).log_prob(w).sum(), rtol=1e-13, atol=0)


@pytest.mark.parametrize("penalty", PENALTIES)
def test_log_prob_is_that_of_torch(penalty):
    model = network()
    calibrated, weights = calibrate(model, penalty, "kaiming"), parameters(model)
    expected = torch.zeros((), dtype=torch.float64)
    for name, w in weights.items():
        strength, centre = calibrated.strengths[name], float(name == "1.weight")
        if name not in ("0.weight", "3.weight", "6.weight"):
            expected += Normal(ZERO + centre, 1.0).log_prob(w).sum()
        elif penalty == "l2":
            expected += Normal(ZERO, (2 * strength) ** -0.5).log_prob(w).sum()
        elif penalty == "l1":
            expected += Laplace(ZERO, 1 / strength).log_prob(w).sum()
        else:
            radii = norms(w, calibrated.layouts[name]).flatten()
            n = w.numel() // len(radii)
            surface = math.log(2) + n / 2 * math.log(math.pi) - math.lgamma(n / 2)  # log of a unit sphere's area
            expected += torch.distributions.Gamma(ZERO + n, strength).log_prob(radii).sum()
            expected -= ((n - 1) * radii.log() + surface).sum()
    torch.testing.assert_close(calibrated.resolve(model).log_prob(weights), expected, rtol=1e-12, atol=1e-10)
    torch.testing.assert_close(calibrated.log_prob(weights), expected, rtol=1e-12, atol=1e-10)


@pytest.mark.parametrize("penalty", PENALTIES)
@pytest.mark.parametrize("rule", ["fan-in", "edge-of-chaos"])
def test_map_is_training_with_the_plain_penalty(penalty, rule):
    """The gradient of the task's loss is that of the user's mean loss with the penalty over n."""
    model = network()
    calibrated = calibrate(model, penalty, rule)
    x, y = torch.randn(12, 1, 6, 6).double(), torch.arange(12) % 3
    task = br.Task.create(model, (x, y), prior=calibrated)
    weights = list(parameters(model).values())
    outputs = model(x)
    loss, _ = task.loss(outputs, y, task.likelihood, -task.prior.log_prob(parameters(model)))
    plain = nn.functional.cross_entropy(outputs, y) + calibrated.penalty(model, n=12)
    ours = torch.autograd.grad(loss, weights, retain_graph=True)
    theirs = torch.autograd.grad(plain, weights, retain_graph=True)
    for a, b in zip(ours, theirs, strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=1e-10)
    summed = nn.functional.cross_entropy(outputs, y, reduction="sum") + calibrated.penalty(parameters(model))
    for a, b in zip(torch.autograd.grad(summed, weights), ours, strict=True):
        torch.testing.assert_close(a / 12, b, rtol=0, atol=1e-10)


def test_the_group_penalty_has_a_gradient_where_a_neuron_is_zero():
    layer = nn.Linear(3, 2)
    nn.init.zeros_(layer.weight)
    calibrate(layer, "group").penalty(layer).backward()
    assert torch.equal(layer.weight.grad, torch.zeros(2, 3))


@given(
    st.integers(1, 50), st.integers(1, 50), st.integers(1, 10**6), st.sampled_from(PENALTIES), st.floats(-10.0, 10.0)
)
def test_penalties_are_positive_and_fall_with_n(fan_in, fan_out, n, penalty, value):
    layer = nn.Linear(fan_in, fan_out).double()
    with torch.no_grad():
        layer.weight.fill_(value)
    calibrated = calibrate(layer, penalty)
    assert all(strength > 0 for strength in calibrated.strengths.values())
    total = calibrated.penalty(layer)
    assert total >= 0
    torch.testing.assert_close(calibrated.penalty(layer, n=n) * n, total, rtol=1e-12, atol=0)
    size = {"group": fan_in, "group-transposed": fan_out}.get(penalty, 1)
    variance = {"l2": lambda s: 1 / (2 * s), "l1": lambda s: 2 / s**2}.get(penalty, lambda s: (size + 1) / s**2)
    assert variance(calibrated.strengths["weight"]) == pytest.approx(1 / fan_in)


@pytest.mark.parametrize("penalty", PENALTIES)
def test_saved_and_loaded(penalty, tmp_path):
    model = network()
    calibrated = calibrate(model, penalty)
    for prior in (calibrated, calibrated.resolve(model)):
        files.save(tmp_path / "prior.safetensors", to_spec(prior), "prior")
        again = priors.from_spec(files.load(tmp_path / "prior.safetensors", "prior"))
        assert type(again) is type(prior)
        assert torch.equal(again.resolve(model).log_prob(parameters(model)), prior.log_prob(parameters(model)))
    x, y = torch.randn(12, 1, 6, 6).double(), torch.arange(12) % 3
    first = br.fit(model, (x, y), "map", prior=calibrated, epochs=2, out=tmp_path / "run")
    resumed = br.resume(tmp_path / "run", model, (x, y))
    assert torch.equal(first.predict(x).probs, resumed.predict(x).probs)


@pytest.mark.parametrize("method", sorted(br.methods.available()))
@pytest.mark.parametrize("penalty", PENALTIES)
def test_every_method_takes_it_that_takes_such_a_prior(method, penalty):
    model = nn.Sequential(nn.Linear(2, 4), nn.Tanh(), nn.Dropout(0.1), nn.Linear(4, 1))
    data = torch.randn(20, 2), torch.randn(20)
    prior = calibrate(model, penalty)
    if penalty != "l2" and method in ("ivon", "vogn", "ogn", "von", "vadam", "laplace"):
        with pytest.raises(ValueError, match=r"the prior must be Gaussian here"):
            br.fit(model, data, method, prior=prior, epochs=1)
    else:
        assert br.fit(model, data, method, prior=prior, epochs=1).predict(data[0]).mean.shape == (20,)


def test_a_closed_divergence_where_each_part_has_one():
    model = nn.Sequential(nn.Linear(2, 4), nn.LayerNorm(4))
    weights = parameters(model)
    flat = flatten(weights).detach()
    std = torch.rand_like(flat) + 0.5
    calibrated = calibrate(model, "l1")
    found = calibrated.divergence(flat, std, weights)
    torch.manual_seed(3)
    draws = flat + std * torch.randn(20_000, len(flat))
    log_q = Normal(flat, std).log_prob(draws).sum(-1)
    log_p = torch.stack([calibrated.log_prob(br.modules.unflatten(w, weights)) for w in draws[:4000]])
    gaps = log_q[:4000] - log_p
    assert abs(found - gaps.mean()) < 4.5 * gaps.std() / math.sqrt(4000)  # fails a right formula 7 times in a million
    assert calibrate(model, "group").divergence(flat, std, weights) is None


def test_the_prior_by_name_and_its_sampler():
    """The mean of the radii is n·s: z-test, a right sampler fails 7 times in a million."""
    layer, generator = nn.Linear(30, 2000, bias=False), torch.Generator().manual_seed(0)
    prior = priors.choose("group-laplace")
    radii = prior.sample(layer, generator)["weight"].norm(dim=1)
    scale = prior.resolve(layer).scale["weight"]
    assert scale == pytest.approx((30 * 31) ** -0.5)
    assert abs(radii.mean() - 30 * scale) < 4.5 * radii.std() / math.sqrt(2000)


def test_normalisation_layers_and_embeddings_keep_scale_one():
    model = nn.Sequential(nn.Embedding(7, 5), nn.Linear(5, 3), nn.LayerNorm([4, 3]))
    found = calibrate(model, "group")
    assert set(found.layouts) == {"1.weight"}
    assert {name: s for name, s in found.strengths.items() if name != "1.weight"} == {
        "0.weight": 0.5,
        "1.bias": 0.5,
        "2.weight": 0.5,
        "2.bias": 0.5,
    }
    assert found.means["2.weight"] == 1.0
    assert isinstance(found.resolve(model), Product)


def test_the_edge_of_chaos_follows_the_activation_of_each_layer():
    inner = nn.Sequential(nn.Linear(6, 5), nn.BatchNorm1d(5), nn.ReLU())
    model = nn.Sequential(nn.Linear(8, 6), nn.Tanh(), nn.Dropout(), inner, nn.Linear(5, 1))
    prior = calibrate(model, "l2", "edge-of-chaos").resolve(model)
    assert prior.scale["0.weight"] == pytest.approx(math.sqrt(1 / 8))  # feeds a tanh
    assert prior.scale["3.0.weight"] == pytest.approx(math.sqrt(1 / 6))  # reads a tanh
    assert prior.scale["4.weight"] == pytest.approx(math.sqrt(2 / 5))  # reads a ReLU
    with_bias = nn.Sequential(nn.Linear(8, 6), nn.Tanh(), nn.Linear(6, 1))
    scale = calibrate(with_bias, "l2", "edge-of-chaos", bias=0.2).resolve(with_bias).scale
    edge = br.penalties.edge_of_chaos("tanh", bias=0.2)
    assert scale["0.bias"] == pytest.approx(0.2)
    assert scale["2.weight"] == pytest.approx(math.sqrt(edge.weight_variance / 6))


class Parallel(nn.Module):
    def __init__(self):
        super().__init__()
        self.left, self.right = nn.Linear(4, 2), nn.Linear(4, 2)

    def forward(self, x):
        return self.left(x).tanh() + self.right(x)


def test_a_given_activation_is_for_the_layers_without_one():
    found = calibrate(Parallel(), "l1", "edge-of-chaos", activation=nn.ReLU())
    assert found.strengths["left.weight"] == pytest.approx(math.sqrt(2 / (2 / 4)))
    with pytest.raises(ValueError, match=r"activation beside layer 'left' \(Linear\).*pass activation="):
        calibrate(Parallel(), "l2", "edge-of-chaos")
    with pytest.raises(ValueError, match=r"layer 'model' \(Linear\)"):
        calibrate(nn.Linear(2, 1), "l2", "edge-of-chaos")


class Named:
    name = "group"


def test_penalties_as_objects_with_a_name():
    assert calibrate(nn.Linear(3, 2), Named()).strengths["weight"] == pytest.approx(math.sqrt(12))


@pytest.mark.parametrize(
    ("penalty", "name"),
    [(L2(3.0), "l2"), (L1(), "l1"), (GroupLasso(), "group"), (GroupLasso(axis=1), "group-transposed")],
)
def test_penalty_objects(penalty, name):
    assert calibrate(nn.Linear(3, 2), penalty).strengths == calibrate(nn.Linear(3, 2), name).strengths


@pytest.mark.parametrize(
    ("call", "error"),
    [
        (lambda: calibrate(nn.Linear(2, 1), "l3"), "unknown penalty 'l3': did you mean"),
        (lambda: calibrate(nn.Linear(2, 1), 3), "penalty must be L2, L1, GroupLasso or a name"),
        (lambda: calibrate(nn.Linear(2, 1), "l2", "fan-inn"), "unknown rule 'fan-inn': did you mean 'fan-in'"),
        (lambda: calibrate("net"), "model must be a torch.nn.Module, not str"),
        (lambda: calibrate(nn.ReLU()), r"the model \(ReLU\) has no trainable weights that sum over inputs"),
        (lambda: calibrate(nn.Embedding(3, 2)), r"\(Embedding\) has no trainable weights"),
        (lambda: calibrate(nn.Linear(2, 1), bias=0.1), "belong to rule='edge-of-chaos', and the rule is 'fan-in'"),
        (lambda: calibrate(nn.Linear(2, 1)).penalty(nn.Linear(2, 1), n=0), "n must be a whole number .* not 0"),
        (lambda: calibrate(nn.Linear(2, 1)).penalty(nn.Linear(2, 1), n=2.5), "n must be a whole number .* not 2.5"),
        (lambda: calibrate(nn.Linear(2, 1)).penalty(nn.Linear(3, 1)), r"'weight' is \[1, 2\] there and \[1, 3\] here"),
        (lambda: calibrate(nn.Linear(2, 1)).resolve(nn.Linear(2, 1, bias=False)), "'bias' is .* absent here"),
        (lambda: GroupLaplace("fan"), "unknown scale rule 'fan'"),
        (lambda: GroupLaplace(-1.0), "must be positive and finite, not -1.0"),
        (lambda: GroupLaplace({"weight": 0.0}), "of 'weight' must be positive"),
        (lambda: GroupLaplace({"wieght": 1.0}).resolve(nn.Linear(2, 1)), "did you mean 'weight'"),
        (lambda: GroupLaplace({}).resolve(nn.Linear(2, 1)), "no scale for parameter 'weight'"),
        (lambda: GroupLaplace().resolve(nn.LayerNorm(3)), "there are no groups; take br.priors.Gaussian"),
        (lambda: GroupLaplace().log_prob({"weight": torch.ones(2, 2)}), "not bound to a module yet"),
        (lambda: Product((priors.Flat(),), ()), "names must be as many as parts, 1, not 0"),
        (lambda: Product.of((priors.Flat(), ["a"]), (priors.Flat(), ["a"])), "'a' is in several"),
        (lambda: Product.of((priors.Flat(), ["a"])).resolve(nn.Linear(1, 1)), "'a' is in the prior but not in"),
        (lambda: Product.of((priors.Flat(), ["a"])).log_prob({"b": torch.ones(1)}), "for parameter 'b'"),
    ],
)
def test_bad_input(call, error):
    with pytest.raises((ValueError, TypeError), match=error):
        call()
