"""Networks under vmap, in inference mode and from several threads."""

import warnings
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from torch import nn

from bayesrule import modules
from bayesrule.likelihoods import Gaussian as Noise
from bayesrule.posteriors import Context, Gaussian, Linearised
from bayesrule.structures import Diagonal


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


def posterior_of(kind, model, precision=10.0):
    mean = modules.copies(modules.parameters(model))
    size = sum(p.numel() for p in mean.values())
    return kind(mean, Diagonal(torch.full((size,), precision)), {}, Context(model, Noise(1.0)))


class ReadsItsWeights(nn.Module):
    """For more than 4 examples it turns a weight into a number, which vmap cannot do."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 3)

    def forward(self, x):
        h = self.layer(x)
        return h * float(self.layer.weight.norm() > 0) if len(x) > 4 else h


@pytest.mark.parametrize("kind", [Gaussian, Linearised])
def test_inputs_that_vmap_cannot_run_are_looped_after_others_that_it_could(kind):
    posterior = posterior_of(kind, ReadsItsWeights())
    x = torch.randn(8, 4)
    posterior.outputs(x[:3], 6, generator())
    assert posterior._draws.runner.vectorises
    with pytest.raises(ValueError, match="cannot take the inputs"):
        posterior.outputs(x[:3, :2], 6, generator())
    assert posterior._draws.runner.vectorises  # inputs that do not fit decide nothing
    found = posterior.outputs(x, 6, generator())
    loop = torch.stack([network(x) for network in posterior.networks(6, generator())])
    torch.testing.assert_close(found, loop)
    # the tangent is at weights that all networks share: vmap can read these
    assert posterior._draws.runner.vectorises is (kind is Linearised)


def test_the_first_prediction_leaves_warnings_of_other_threads_alone():
    """The filters are the process's own: what a forward pass sees of them is what every thread sees."""
    seen = []

    class Looks(nn.Linear):
        def forward(self, x):
            seen.append([*warnings.filters])
            return super().forward(x)

    model = Looks(4, 3)
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        wanted = [*warnings.filters]
        posterior_of(Gaussian, model).outputs(torch.randn(3, 4), 6, generator())
    assert seen
    assert all(filters == wanted for filters in seen)


@pytest.mark.parametrize("kind", [Gaussian, Linearised])
def test_networks_that_were_drawn_in_inference_mode_can_be_differentiated(kind):
    posterior = posterior_of(kind, nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 3)))
    x = torch.randn(3, 4)
    wanted = posterior.predict(x, samples=8).mean
    with torch.inference_mode():
        torch.testing.assert_close(posterior.predict(x.clone(), samples=8).mean, wanted)
        posterior.outputs(x, 8, generator(1))
    z = x.clone().requires_grad_()
    next(iter(posterior.networks(8, generator(1))))(z).sum().backward()
    assert z.grad.abs().sum() > 0


class Recurrent(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer, self.head = nn.LSTM(4, 4, batch_first=True), nn.Linear(4, 3)

    def forward(self, x):
        return self.head(self.layer(x)[0]).mean(1)


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer, self.head = nn.Linear(4, 4), nn.Linear(4, 3)

    def forward(self, x):
        h = self.layer(x)
        return self.head(nn.functional.scaled_dot_product_attention(h, h, h)).mean(1)


def threaded():
    """Modules that torch runs by several kernels, and the shape of an example."""
    layers = [nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Conv2d(8, 8, 3), nn.Flatten(), nn.Linear(8 * 12 * 12, 3)]
    return {
        "convolutions": (nn.Sequential(*layers), (3, 16, 16)),
        "recurrent": (Recurrent(), (5, 4)),
        "attention": (Attention(), (5, 4)),
    }


@pytest.mark.parametrize("name", ["convolutions", "recurrent", "attention"])
def test_threads_that_predict_and_draw_from_one_tangent_agree_to_the_bit_and_leave_kernels_as_they_were(name):
    torch.manual_seed(0)
    model, shape = threaded()[name]
    posterior = posterior_of(Linearised, model)
    x = torch.randn(10, *shape, generator=generator())

    def work(_):
        return posterior.outputs(x[:4], 4, generator()), posterior.predict(x).std

    wanted = work(0)
    with ThreadPoolExecutor(20) as pool:
        for found in pool.map(work, range(40)):
            assert torch.equal(found[0], wanted[0])
            assert torch.equal(found[1], wanted[1])
    assert torch.backends.mkldnn.enabled
    assert torch.backends.mha.get_fastpath_enabled()
    assert torch.backends.cuda.flash_sdp_enabled()
