"""What is converted, what is refused, and that the result is a posterior over the original module."""

import copy

import pytest
import torch
from covering import later
from networks import generator, mlp, zoo
from torch import nn
from torch.nn import functional as F

import bayesrule as br
from bayesrule import modules
from bayesrule.nn import ESTIMATORS, bayesianize, kl_weights

every_estimator = pytest.mark.parametrize("estimator", ESTIMATORS)


@every_estimator
@pytest.mark.parametrize("kind", zoo())
def test_any_module_by_parameter(estimator, kind):
    model, (x, y) = zoo()[kind]
    bnn = bayesianize(model, estimator=estimator, initial_std=0.1)
    assert list(bnn.means) == list(bnn.stds) == list(modules.parameters(model))
    for name, w in modules.parameters(model).items():
        assert torch.equal(bnn.means[name], w)
        torch.testing.assert_close(bnn.stds[name], torch.full_like(w, 0.1))
    bnn.objective(F.cross_entropy(modules.call(bnn, x), y), 1 / 24).backward()
    assert bnn.mean.grad.isfinite().all()
    assert bnn.rho.grad.isfinite().all()


@every_estimator
@pytest.mark.parametrize("kind", zoo())
def test_with_no_deviation_it_is_the_module(estimator, kind):
    model, (x, _) = zoo()[kind]
    model = model.double().eval()
    x = br.data.inputs.to(x, torch.float64)
    bnn = bayesianize(model, estimator=estimator, initial_std=1e-13).eval()
    torch.testing.assert_close(modules.call(bnn, x), modules.call(model, x), rtol=0, atol=1e-10)


def test_the_users_module_stays_as_it_is():
    model = mlp()
    before = copy.deepcopy(model.state_dict())
    bnn = bayesianize(model, estimator="local-reparam", initial_std=1.0)
    bnn(torch.randn(5, 4, generator=generator())).sum().backward()
    assert all(torch.equal(w, before[k]) for k, w in model.state_dict().items())
    assert all(p.requires_grad and p.grad is None for p in model.parameters())
    assert not any("forward" in vars(m) for m in bnn.modules())


def test_every_call_is_a_draw_of_all_weights():
    layer = nn.Linear(3, 2).double()
    bnn = bayesianize(layer, initial_std=0.3)
    x = torch.cat([torch.eye(3), torch.zeros(1, 3)]).double()
    torch.manual_seed(0)
    draws = []
    for _ in range(4000):
        out = bnn(x).detach()
        draws.append(torch.cat([(out[:3] - out[3]).T.flatten(), out[3]]))  # the weights themselves
    draws = torch.stack(draws)
    truth = torch.cat([layer.weight.flatten(), layer.bias]).detach()
    z = (draws.mean(0) - truth) / (0.3 / 4000**0.5)
    assert z.abs().max() < 4.5  # 8 normal z-scores: one run in 20 000 fails
    assert ((draws.var(0) / 0.09 - 1).abs() < 4.5 * (2 / 4000) ** 0.5).all()
    assert (torch.corrcoef(draws.T) - torch.eye(8)).abs().max() < 4.5 / 4000**0.5


LAYERS = {
    "linear": (nn.Linear(6, 4), (6,)),
    "linear without bias": (nn.Linear(6, 4, bias=False), (6,)),
    "linear over positions": (nn.Linear(6, 4), (3, 6)),
    "conv1d": (nn.Conv1d(4, 6, 3, padding=1, groups=2), (4, 7)),
    "conv2d": (nn.Conv2d(2, 4, 3, stride=2, padding=1, dilation=2, padding_mode="circular"), (2, 8, 8)),
    "conv2d reflected": (nn.Conv2d(2, 4, 3, padding=2, padding_mode="reflect"), (2, 5, 5)),
    "conv3d": (nn.Conv3d(1, 2, 2), (1, 3, 3, 3)),
    "transposed 1d": (nn.ConvTranspose1d(4, 6, 3, stride=2, output_padding=1, groups=2), (4, 5)),
    "transposed 2d": (nn.ConvTranspose2d(2, 3, 3, stride=2), (2, 4, 4)),
    "transposed 3d": (nn.ConvTranspose3d(1, 2, 2), (1, 2, 2, 2)),
}


@pytest.mark.parametrize(("estimator", "draws"), [("local-reparam", 4000), ("flipout", 1000), later("flipout", 4000)])
@pytest.mark.parametrize("kind", LAYERS)
def test_fast_outputs_have_the_moments_of_sampled_weights(estimator, draws, kind):
    layer, shape = copy.deepcopy(LAYERS[kind])
    layer.double()
    x = torch.randn(1, *shape, generator=generator(), dtype=torch.float64)
    bnn = bayesianize(layer, estimator=estimator)
    with torch.no_grad():
        bnn.rho.normal_(generator=generator(1))
    variances = {k: s.detach().square() for k, s in bnn.stds.items()}
    exact_mean, exact_variance = layer(x)[0], torch.func.functional_call(layer, variances, (x.square(),))[0]
    torch.manual_seed(2)
    passes, copies = (1, draws) if estimator == "local-reparam" else (draws, 1)  # Flipout's noise is one for the batch
    out = torch.cat([bnn(x.expand(copies, *shape)).detach() for _ in range(passes)])
    assert list(bnn.fast) == [""]
    z = (out.mean(0) - exact_mean) / (exact_variance / draws).sqrt()
    assert z.abs().max() < 5  # some 100 normal z-scores: one run in 15 000 fails
    assert (out.var(0) / exact_variance - 1).abs().max() < 6 * (2 / draws) ** 0.5  # heavier tails than a normal's


def test_flipout_draws_other_weights_for_each_example():
    bnn = bayesianize(nn.Linear(5, 3), estimator="flipout", initial_std=1.0)
    out = bnn(torch.ones(64, 5))
    assert len({tuple(row.tolist()) for row in out}) > 32
    shared = bayesianize(nn.Linear(5, 3), initial_std=1.0)(torch.ones(64, 5))
    assert (shared - shared[0]).abs().max() < 1e-6


class Odd(nn.Module):
    """Layers called once, called twice, read without a call, called and read, and two that are tied."""

    def __init__(self):
        super().__init__()
        self.once, self.twice, self.read = nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 4)
        self.both = nn.Linear(4, 4)
        self.tied, self.other = nn.Linear(4, 4), nn.Linear(4, 4)
        self.other.weight = self.tied.weight

    def forward(self, x):
        x = self.twice(torch.tanh(self.twice(self.once(input=x))))
        x = F.linear(torch.tanh(self.both(x)), self.both.weight.T)
        return self.other(self.tied(F.linear(x, self.read.weight)))


@pytest.mark.parametrize("estimator", ["local-reparam", "flipout"])
def test_only_layers_called_once_with_weights_of_their_own_are_fast(estimator):
    bnn = bayesianize(Odd().double(), estimator=estimator, initial_std=0.5)
    assert set(bnn.fast) == {"once", "twice", "read", "both"}
    x = torch.randn(3, 4, dtype=torch.float64, generator=generator())
    state = torch.get_rng_state()
    bnn.settle((x,), {})
    assert torch.equal(torch.get_rng_state(), state)
    assert set(bnn.fast) == {"once"}
    assert not any("forward" in vars(m) for m in bnn.modules())
    with torch.no_grad():  # with the one fast layer silent, all examples of a pass see the same weights
        bnn.rho[: 4 * 4 + 4] = -60.0
        out = bnn(x[:1].expand(8, 4))
    torch.testing.assert_close(out, out[:1].expand(8, 4))


def test_parametrized_weights_are_drawn_behind_their_parametrization():
    layer = nn.utils.parametrizations.weight_norm(nn.Linear(4, 3))
    bnn = bayesianize(layer, estimator="flipout", initial_std=0.1)
    assert not bnn.fast
    assert "parametrizations.weight.original0" in bnn.means
    bnn(torch.randn(2, 4)).sum().backward()
    assert (bnn.rho.grad != 0).any()


def test_a_frozen_bias_has_no_noise():
    layer = nn.Linear(3, 2)
    layer.bias.requires_grad_(False)
    for estimator in ("local-reparam", "flipout"):
        bnn = bayesianize(layer, estimator=estimator, initial_std=1.0)
        out = bnn(torch.zeros(4, 3))
        torch.testing.assert_close(out, layer.bias.expand(4, 2))
        assert list(bnn.means) == ["weight"]


def test_posterior_is_over_the_original_module(tmp_path):
    model = mlp()
    bnn = bayesianize(model, estimator="local-reparam", initial_std=0.2)
    posterior = bnn.posterior("categorical")
    assert isinstance(posterior, br.posteriors.Gaussian)
    torch.testing.assert_close(posterior.std["0.weight"], torch.full((8, 4), 0.2))
    x = torch.randn(5, 4, generator=generator())
    posterior.save(tmp_path / "q")
    assert torch.equal(br.load(tmp_path / "q", mlp(seed=3)).predict(x).probs, posterior.predict(x).probs)
    again = bayesianize(model, prior=posterior.as_prior())
    assert again.divergence() > 0
    assert again.divergences() == {}  # no sum over parameters


@pytest.mark.parametrize("rule", ["fan-in", "glorot", "xavier", "kaiming"])
def test_start_by_rule(rule):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(3, 64, 5), nn.BatchNorm2d(64), nn.Flatten(), nn.Linear(64, 4000))
    bnn = bayesianize(model, initial_std=rule, initial_mean=rule)
    scale = br.priors.Gaussian(rule).resolve(model).scale
    for name in ("0.weight", "3.weight"):
        torch.testing.assert_close(bnn.stds[name], torch.full_like(bnn.stds[name], scale[name]))
        assert abs(float(bnn.means[name].std()) / scale[name] - 1) < 5 * (0.5 / bnn.means[name].numel()) ** 0.5
    assert not bnn.means["3.bias"].any()
    assert (bnn.means["1.weight"] == 1).all()
    torch.testing.assert_close(bnn.stds["3.bias"], bnn.stds["3.weight"][:, 0])


def test_no_weight_starts_wider_than_its_prior():
    model = mlp()
    scales = torch.rand(sum(w.numel() for w in model.parameters()), generator=generator()).mul(0.2).add(0.01)
    known = bayesianize(model, initial_std=1.0)
    with torch.no_grad():
        known.rho.copy_(scales.expm1().log())
    start = bayesianize(model, known.posterior("categorical").as_prior(), initial_std=0.1)
    torch.testing.assert_close(modules.flatten(start.stds), scales.clamp(max=0.1))
    laplace = bayesianize(model, br.priors.Laplace(0.01), initial_std=0.1)  # has no deviation in this sense
    torch.testing.assert_close(modules.flatten(laplace.stds), torch.full_like(scales, 0.1))


BAD = {
    "no parameters": (nn.ReLU(), {}, ValueError, "no trainable parameters"),
    "frozen": (nn.Linear(2, 1).requires_grad_(False), {}, ValueError, "no trainable parameters"),
    "lazy": (nn.LazyLinear(3), {}, ValueError, "'weight' has no shape yet"),
    "complex": (nn.Linear(2, 1, dtype=torch.complex64), {}, TypeError, "'weight' is torch.complex64"),
    "two dtypes": (
        nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 1).double()),
        {},
        TypeError,
        "'1.weight' is torch.float64",
    ),
    "estimator": (mlp(), {"estimator": "local"}, ValueError, "unknown estimator 'local': did you mean 'local-reparam'"),
    "gradient": (mlp(), {"gradient": "paths"}, ValueError, "unknown gradient 'paths': did you mean 'path'"),
    "path and flipout": (mlp(), {"gradient": "path", "estimator": "flipout"}, ValueError, 'needs estimator="weight"'),
    "std": (
        mlp(),
        {"initial_std": 0.0},
        ValueError,
        "initial_std must be a rule, or positive and finite, from 1e-15 on, not 0.0",
    ),
    "std rule": (mlp(), {"initial_std": "he"}, ValueError, "unknown initialisation rule 'he'"),
    "prior": (mlp(), {"prior": "gausian"}, ValueError, "unknown prior 'gausian'"),
}


@pytest.mark.parametrize(("model", "settings", "error", "message"), BAD.values(), ids=list(BAD))
def test_refused_by_name(model, settings, error, message):
    before = {k: (id(p), p.requires_grad) for k, p in model.named_parameters()}
    with pytest.raises(error, match=message):
        bayesianize(model, **settings)
    assert before == {k: (id(p), p.requires_grad) for k, p in model.named_parameters()}


def test_scripted_modules_and_nan_weights_are_refused():
    with pytest.warns(DeprecationWarning, match="jit"):
        scripted = torch.jit.script(nn.Linear(2, 1))
    with pytest.raises(TypeError, match="scripted"):
        bayesianize(scripted)
    model = mlp()
    with torch.no_grad():
        model[2].bias[0] = float("nan")
    with pytest.raises(ValueError, match=r"'2.bias' of the model holds NaN"):
        bayesianize(model)


@pytest.mark.parametrize(("rho", "value"), [(-200.0, "0.0"), (float("inf"), "inf")])
def test_a_deviation_that_leaves_its_range_is_named(rho, value):
    bnn = bayesianize(mlp())
    with torch.no_grad():
        bnn.rho[-1] = rho
    nll = bnn(torch.randn(3, 4)).square().mean()
    with pytest.raises(FloatingPointError, match=f"deviation of parameter '2.bias' has become {value}"):
        bnn.objective(nll, 1.0)


@pytest.mark.parametrize("ratio", [0, 0.5, 1, 2, 0.97, 1e-300, 1e300])
def test_kl_weights_of_a_million_batches(ratio):
    weights = kl_weights(10**6, ratio)
    assert weights.isfinite().all()
    assert (weights >= 0).all()
    assert float(weights.sum()) == pytest.approx(1.0 if ratio else 0.0, abs=1e-9)


def test_kl_weights_by_hand():
    powers = torch.tensor([0.5, 0.25, 0.125, 0.0625], dtype=torch.float64)
    torch.testing.assert_close(kl_weights(4, 0.5), powers / powers.sum())
    for ratio in (-1.0, float("nan"), float("inf")):
        with pytest.raises(ValueError, match="at least 0 and finite"):
            kl_weights(4, ratio)
    with pytest.raises(ValueError, match="at least 1"):
        kl_weights(0)


def test_a_layers_own_hooks_see_the_noise():
    layer = nn.Linear(3, 2).double()
    layer.register_forward_hook(lambda module, args, output: 3 * output + 1)
    x = torch.ones(1, 3, dtype=torch.float64)
    torch.manual_seed(0)
    for estimator in ESTIMATORS:
        bnn = bayesianize(layer, estimator=estimator, initial_std=0.5)
        out = torch.cat([bnn(x).detach() for _ in range(1000)])
        assert (out.var(0) / (9 * 0.25 * 4) - 1).abs().max() < 4.5 * (2 / 1000) ** 0.5  # without the hook it is 1/9


class Sometimes(nn.Module):
    """A layer that a later pass calls twice."""

    def __init__(self):
        super().__init__()
        self.layer, self.times = nn.Linear(2, 2), 1

    def forward(self, x):
        for _ in range(self.times):
            x = self.layer(x)
        return x


def test_a_fast_layer_that_is_called_twice_after_all_is_an_error():
    bnn = bayesianize(Sometimes(), estimator="flipout")
    bnn(torch.zeros(1, 2))
    bnn.module.times = 2
    with pytest.raises(RuntimeError, match="'layer' is called twice in a pass, but once before"):
        bnn(torch.zeros(1, 2))


@every_estimator
def test_a_variational_module_can_be_copied_after_a_pass(estimator):
    bnn = bayesianize(mlp(), estimator=estimator, initial_std=0.1)
    x = torch.randn(5, 4, generator=generator())
    bnn(x)
    twin = copy.deepcopy(bnn)
    torch.manual_seed(0)
    first = bnn(x)
    torch.manual_seed(0)
    assert torch.equal(first, twin(x))


def test_a_pass_that_nobody_learns_from_leaves_no_trace():
    bnn = bayesianize(mlp(), initial_std=0.1)
    x = torch.randn(5, 4, generator=generator())
    grads = []
    for look in (False, True):
        bnn.zero_grad()
        torch.manual_seed(0)
        nll = bnn(x).square().mean()
        if look:
            with torch.no_grad():
                bnn(x)
        bnn.objective(nll, 1.0).backward()
        grads.append(bnn.rho.grad.clone())
    assert torch.equal(*grads)


def test_the_score_needs_a_pass_for_each_objective():
    bnn = bayesianize(mlp(), gradient="score")
    x = torch.randn(5, 4, generator=generator())
    with pytest.raises(RuntimeError, match="call the module before"):
        bnn.objective(torch.zeros(()), 1.0)
    bnn(x)
    with pytest.raises(RuntimeError, match="one objective for each pass"):
        bnn(x)


def test_sparse_gradients_are_refused():
    with pytest.raises(ValueError, match="'0' has sparse gradients"):
        bayesianize(nn.Sequential(nn.Embedding(3, 2, sparse=True)))
