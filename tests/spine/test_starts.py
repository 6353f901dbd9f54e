"""Fresh starts: every parameter that is learnt is drawn anew, whatever makes the weights of it."""

import pytest
import torch
from networks import classes
from torch import nn
from torch.nn.utils import parametrizations, parametrize, prune, spectral_norm, weight_norm

import bayesrule as br
from bayesrule import modules
from bayesrule.methods import MAP, Ensemble
from bayesrule.starts import reinitialise

OLD = "ignore:`torch.nn.utils.weight_norm` is deprecated"


def pruned(layer):
    prune.l1_unstructured(layer, "weight", amount=0.5)
    return layer


class Halved(nn.Module):
    """A parametrisation without an inverse."""

    def forward(self, x):
        return x / 2


def halved(layer):
    parametrize.register_parametrization(layer, "weight", Halved())
    return layer


def used(make):
    """As a module is after a pass: the weight that a hook has made is part of a graph."""

    def made(layer):
        layer = make(layer)
        layer(torch.randn(2, 4))
        return layer

    return made


KINDS = {
    "plain": lambda layer: layer,
    "spectral norm by a hook": spectral_norm,
    "spectral norm by a hook, used": used(spectral_norm),
    "weight norm by a hook": weight_norm,
    "pruned": pruned,
    "spectral norm": parametrizations.spectral_norm,
    "weight norm": parametrizations.weight_norm,
    "orthogonal": parametrizations.orthogonal,
    "without inverse": halved,
}
every_kind = pytest.mark.parametrize("make", KINDS.values(), ids=list(KINDS))
pytestmark = [pytest.mark.filterwarnings(OLD), pytest.mark.filterwarnings("ignore:`torch.nn.utils.spectral_norm`")]


def net(make):
    torch.manual_seed(0)
    return nn.Sequential(make(nn.Linear(4, 8)), nn.Tanh(), nn.LayerNorm(8), nn.Linear(8, 3))


def weights(module, x):
    """What the first layer does, whatever its parameters are called."""
    return module[0](x)


@every_kind
def test_two_starts_differ_in_every_layer(make):
    module, x = net(make).eval(), classes()[0]
    before = weights(module, x).detach().clone()
    reinitialise(module)
    first = weights(module, x).detach().clone()
    reinitialise(module)
    assert not torch.allclose(first, before)
    assert not torch.allclose(weights(module, x), first)


@every_kind
def test_the_scale_of_a_start_is_that_of_the_layer(make):
    """Over 100 starts: kaiming_uniform_ of 4 inputs, within 10 %; or a largest singular value of about one."""
    torch.manual_seed(0)
    module, eye = make(nn.Linear(4, 8)).eval(), torch.eye(4)
    drawn = []
    for _ in range(100):
        reinitialise(module)
        drawn.append((module(eye) - module.bias).detach())
    found = torch.stack(drawn)
    # 3200 numbers of a deviation of at most .36: six standard errors of their mean are .038
    assert found.mean().abs() < 0.04
    if make in (KINDS["plain"], weight_norm, parametrizations.weight_norm):
        assert found.std() == pytest.approx(0.5 / 3**0.5, rel=0.1)
    elif make not in (pruned, halved):
        assert torch.linalg.matrix_norm(found, 2).sub(1).abs().max() < 0.2


@every_kind
def test_members_of_an_ensemble_are_different_networks(make):
    posterior = br.fit(net(make), classes(), Ensemble(3, MAP()), epochs=1)
    outputs = posterior.outputs(classes(seed=1)[0], 3, torch.Generator())
    assert not torch.allclose(outputs[0], outputs[1])
    assert not torch.allclose(outputs[1], outputs[2])


def test_constants_are_a_start_too():
    module = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2), nn.PReLU())
    with torch.no_grad():
        module[1].weight.fill_(3.0)
    reinitialise(module)
    assert (module[1].weight == 1).all()
    assert (module[1].bias == 0).all()


class Misses(nn.Module):
    """One parameter that its ``reset_parameters`` leaves out, whole or in part."""

    def __init__(self, part=slice(0, 0)):
        super().__init__()
        self.part = part
        self.weight, self.forgotten = nn.Parameter(torch.zeros(4, 3)), nn.Parameter(torch.zeros(3))
        self.reset_parameters()

    def reset_parameters(self):
        nn.init.normal_(self.weight)
        with torch.no_grad():
            self.forgotten[self.part] = 0.0

    def forward(self, x):
        return x @ self.weight + self.forgotten


@pytest.mark.parametrize("part", [slice(0, 0), slice(0, 2)], ids=["whole", "in part"])
def test_a_parameter_that_is_not_drawn_is_refused_by_name(part):
    with pytest.raises(ValueError, match=r"parameter '1\.forgotten': the reset_parameters\(\) of Misses leaves it"):
        br.fit(nn.Sequential(nn.Identity(), Misses(part)), classes(), Ensemble(2), epochs=1)


def test_starts_that_are_all_the_same_are_refused():
    module = nn.Sequential(nn.Linear(4, 3).requires_grad_(False), nn.LayerNorm(3))
    with pytest.raises(ValueError, match=r"'1\.weight' and all others the same values every time"):
        br.fit(module, classes(), Ensemble(2), epochs=1)
    assert br.fit(module, classes(), Ensemble(1), epochs=1).predict(classes()[0]).samples == 1


def test_frozen_parameters_stay():
    module = net(parametrizations.weight_norm)
    module[0].parametrizations.requires_grad_(False)
    before = modules.copies(modules.frozen(module))
    reinitialise(module)
    assert all(torch.equal(p, before[name]) for name, p in modules.frozen(module).items())
