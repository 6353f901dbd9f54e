"""Networks under vmap, in inference mode and from several threads."""

import warnings

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
