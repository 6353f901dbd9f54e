"""Modules that change their inputs in place: the user's arrays, and what later passes see, stay as they were."""

import copy

import pytest
import torch
from covering import chosen
from networks import classes, generator, mlp
from test_methods import EACH_LEARNER, METHODS, fit
from torch import nn

import bayesrule as br
from bayesrule import modules
from bayesrule.curvature import curvature, jacobians
from bayesrule.likelihoods import Categorical
from bayesrule.methods import MAP, Ensemble, Laplace


class Shifts(nn.Module):
    """x − 1 through a network, in place or not."""

    def __init__(self, in_place=True, when=lambda module, x: True):
        super().__init__()
        self.net, self.in_place, self.when = mlp(), in_place, when

    def forward(self, x):
        if not self.when(self, x):
            return self.net(x)
        return self.net(x.sub_(1.0) if self.in_place else x - 1.0)


def same(a, b):
    return torch.equal(a.predict(classes(seed=1)[0]).probs, b.predict(classes(seed=1)[0]).probs)


@pytest.mark.parametrize("name", chosen(METHODS, now=EACH_LEARNER))
def test_a_fit_is_that_of_the_same_module_that_does_not_write(name):
    method, (x, y) = METHODS[name][0], classes()
    before = x.clone()
    posterior = fit(method, Shifts(), (x, y), epochs=1)
    assert torch.equal(x, before)
    assert same(posterior, fit(method, Shifts(in_place=False), (x, y), epochs=1))
    posterior.predict(x)
    assert torch.equal(x, before)
    assert all(not torch.equal(f(x), f(x) + 1) for f in posterior.networks(2, generator()))
    assert torch.equal(x, before)


def test_a_first_layer_that_works_in_place():
    x, y = classes()
    before = x.clone()
    nets = [nn.Sequential(nn.ReLU(inplace=flag), mlp()) for flag in (True, False)]
    assert same(*(fit("map", net, (x, y), epochs=2) for net in nets))
    assert torch.equal(x, before)


def test_members_of_an_ensemble_see_the_same_batch():
    """The second member used to see what the first one had left."""
    method = Ensemble(3, MAP())
    assert same(*(fit(method, Shifts(flag), epochs=2) for flag in (True, False)))


def test_a_module_that_writes_only_while_it_trains():
    nets = [Shifts(flag, when=lambda module, x: module.training) for flag in (True, False)]
    assert same(*(fit(Ensemble(2), net, epochs=2) for net in nets))


def test_arrays_of_numpy_tuples_and_dicts():
    class Two(nn.Module):
        def __init__(self):
            super().__init__()
            self.net = mlp()

        def forward(self, a, b):
            return self.net(torch.cat([a.sub_(1.0), b.mul_(2.0)], 1))

    x, y = classes()
    for given in ((x[:, :2].numpy().copy(), x[:, 2:].clone()), {"a": x[:, :2].clone(), "b": x[:, 2:].clone()}):
        before = copy.deepcopy(given)
        posterior = fit("laplace", Two(), (given, y))
        posterior.predict(given)
        for part, old in zip(*(t.values() if isinstance(t, dict) else t for t in (given, before)), strict=True):
            assert (part == old).all()


def test_held_out_data_and_a_loaded_posterior(tmp_path):
    x, y = classes()
    held = classes(seed=2)
    before = held[0].clone()
    posterior = fit(Laplace(tune="held-out"), Shifts(), (x, y), val=held)
    assert torch.equal(held[0], before)
    posterior.save(tmp_path / "posterior")
    loaded = br.load(tmp_path / "posterior", Shifts())
    assert torch.equal(loaded.predict(held[0]).probs, posterior.predict(held[0]).probs)
    assert torch.equal(held[0], before)


def test_curvature_jacobians_and_the_gaussian_process():
    x, y = classes()
    before = x.clone()
    found = [curvature(Shifts(flag), [(x, y)], Categorical(), "dense").matrix.dense() for flag in (True, False)]
    assert torch.equal(*found)
    assert torch.equal(*(jacobians(Shifts(flag), x) for flag in (True, False)))
    br.gp.from_network(Shifts(), (x, y)).predict(x[:4])
    assert torch.equal(x, before)


def test_a_module_that_writes_for_some_inputs_only_is_an_error_that_says_so():
    posterior = fit("map", Shifts(when=lambda module, x: len(x) == 5), epochs=1)
    posterior.predict(classes()[0][:4])
    with pytest.raises(RuntimeError, match=r"Shifts changed its inputs \(X\) in place, which it did not do before"):
        posterior.predict(classes()[0][:5])


def test_a_module_that_writes_behind_torchs_back_is_refused_before_training():
    class Hidden(Shifts):
        def forward(self, x):
            x.data.sub_(1.0)
            return self.net(x)

    x, y = classes()
    before = x.clone()
    with pytest.raises(ValueError, match=r"Hidden changes its inputs \(X\).*x = x\.clone\(\)"):
        fit("map", Hidden(), (x, y))
    assert torch.equal(x, before)


def test_what_does_not_write_gets_the_users_own_memory():
    """No copy a call: only the first call of a module is made on one, at the same place in a line of the cache."""
    seen = []

    class Looks(nn.Linear):
        def forward(self, x):
            seen.append(x.data_ptr())
            return super().forward(x)

    module, x = Looks(3, 2), torch.randn(21)[1:19].view(6, 3)
    for _ in range(3):
        modules.call(module, x)
    assert seen[0] != x.data_ptr()
    assert (seen[0] - x.data_ptr()) % 64 == 0
    assert seen[1:] == [x.data_ptr()] * 2
