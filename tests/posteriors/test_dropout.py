"""The masks of dropout: at any rate, in any mode of torch."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import bayesrule as br
from bayesrule import modules
from bayesrule.likelihoods import Gaussian as Noise
from bayesrule.posteriors import Context, Dropout
from bayesrule.posteriors.masks import Masks


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


class Attention(nn.Module):
    def __init__(self, rate):
        super().__init__()
        self.attend, self.head = nn.MultiheadAttention(4, 2, rate, batch_first=True), nn.Linear(4, 3)

    def forward(self, x):
        return self.head(self.attend(x, x, x, need_weights=False)[0]).mean(1)


class Recurrent(nn.Module):
    def __init__(self, rate):
        super().__init__()
        self.layer, self.head = nn.LSTM(4, 4, num_layers=2, dropout=rate, batch_first=True), nn.Linear(4, 3)

    def forward(self, x):
        return self.head(self.layer(x)[0]).mean(1)


def module(kind, rate):
    """A module that drops at a rate, and the shape of an example."""
    torch.manual_seed(0)
    if kind == "attention":
        return Attention(rate), (5, 4)
    if kind == "recurrent":
        return Recurrent(rate), (5, 4)
    if kind == "channels":
        return nn.Sequential(nn.Conv2d(1, 8, 3), nn.Dropout2d(rate), nn.Flatten(), nn.Linear(8 * 16, 3)), (1, 6, 6)
    if kind == "none of its own":
        return nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 3)), (4,)
    layer = {"elements": nn.Dropout, "alpha": nn.AlphaDropout}[kind](rate)
    return nn.Sequential(nn.Linear(4, 16), layer, nn.Linear(16, 3)), (4,)


KINDS = ["elements", "alpha", "channels", "attention", "recurrent", "none of its own"]


@pytest.mark.parametrize("inference", [False, True], ids=["plain", "inference mode"])
@pytest.mark.parametrize("rate", [0.1, 0.5, 0.9])
@pytest.mark.parametrize("kind", KINDS)
def test_a_network_is_one_function_at_any_rate_and_in_inference_mode(kind, rate, inference):
    model, shape = module(kind, rate)
    posterior = Dropout(modules.snapshot(model), rate, Context(model, Noise(1.0)))
    x = torch.randn(6, *shape, generator=generator())
    with torch.no_grad():
        wanted = posterior.outputs(x, 20, generator())
    assert (wanted.std(0) > 0).all()
    with torch.inference_mode(inference), torch.no_grad():
        own = x.clone()
        found = posterior.outputs(own, 20, generator())
        torch.testing.assert_close(found, wanted)
        for network, outputs in zip(posterior.networks(20, generator()), wanted, strict=True):
            torch.testing.assert_close(torch.cat([network(own[:2]), network(own[2:])]), outputs)


def test_the_default_rate_of_torch_can_be_fitted_and_predicted():
    model = nn.Sequential(nn.Linear(3, 16), nn.ReLU(), nn.Dropout(), nn.Linear(16, 2))
    x, y = torch.randn(20, 3), torch.arange(20) % 2
    posterior = br.fit(model, (x, y), "mc-dropout", epochs=1)
    wanted = posterior.predict(x[:3]).probs
    with torch.inference_mode():
        torch.testing.assert_close(posterior.predict(x[:3]).probs, wanted)


@pytest.mark.parametrize("rate", [0.1, 0.5, 0.9])
def test_masks_keep_as_many_as_the_rate_says(rate):
    """10 000 numbers: within 4 standard errors."""
    with Masks(0), torch.no_grad():
        masks = [torch.empty(10_000).bernoulli_(1 - rate), torch.empty(10_000).bernoulli_(p=1 - rate)]
        masks.append(torch.native_dropout(torch.ones(10_000), rate, True)[1].float())
    for mask in masks:
        assert abs(float(mask.mean()) - (1 - rate)) <= 4 * (rate * (1 - rate) / 10_000) ** 0.5


class Functional(nn.Module):
    """Drops by a function, in training only."""

    def __init__(self):
        super().__init__()
        self.first, self.last = nn.Linear(4, 16), nn.Linear(16, 3)
        self.norm = nn.BatchNorm1d(16)

    def forward(self, x):
        return self.last(F.dropout(self.norm(self.first(x)), 0.5, self.training))


class Counting(Functional):
    """Counts its passes in training."""

    def __init__(self):
        super().__init__()
        self.register_buffer("passes", torch.zeros(()))

    def forward(self, x):
        if self.training:
            self.passes += 1
        return super().forward(x)


def test_dropout_by_a_function_is_left_on_with_one_mask_for_all_examples():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 4), nn.Dropout(1e-9), Functional())  # the layer alone hardly ever drops
    weights = modules.snapshot(model)
    posterior = Dropout(weights, 0.3, Context(model, Noise(1.0)))
    x = torch.randn(6, 4, generator=generator())
    with torch.no_grad():
        found = posterior.outputs(x, 200, generator())
        hidden = model.eval()[2].norm(model[2].first(model[0](x)))
        for network, outputs in zip(posterior.networks(200, generator()), found, strict=True):
            torch.testing.assert_close(torch.cat([network(x[:1]), network(x[1:])]), outputs)
        # Var f_k = rate/(1 − rate) Σ_j (v_kj h_j)², rate 1/2; a standard error of a variance is √(2/S) of it
        wanted = hidden.square() @ model[2].last.weight.square().T
    ratio = found.var(0) / wanted
    assert ((ratio - 1).abs() <= 4 * (2 / 200) ** 0.5).all()
    for name, value in modules.snapshot(model).items():
        torch.testing.assert_close(weights[name], value)  # also the statistics of BatchNorm


def test_dropout_by_a_function_of_a_layer_that_changes_in_training_is_refused():
    model = Counting()
    posterior = Dropout(modules.snapshot(model), 0.3, Context(model, Noise(1.0)))
    with pytest.raises(
        ValueError, match=r"the dropout of the module \(Counting\) .* changes 'passes' too; use nn.Dropout"
    ):
        posterior.predict(torch.randn(3, 4))


class TwoOutputs(Functional):
    """Gives something else in training."""

    def forward(self, x):
        outputs = super().forward(x)
        return (outputs, outputs) if self.training else outputs


def test_a_layer_that_cannot_be_tried_in_training_mode_is_named_and_left_as_it_is():
    model = TwoOutputs()
    posterior = Dropout(modules.snapshot(model), 0.3, Context(model, Noise(1.0)))
    with pytest.warns(UserWarning, match=r"the module \(TwoOutputs\) cannot run in training mode: .* returned tuple"):
        posterior.predict(torch.randn(3, 4))
    posterior.predict(torch.randn(3, 4))  # said once
