"""What people see of posteriors."""

import copy

import pytest
from networks import classes, mlp

import bayesrule as br
from bayesrule.posteriors import Particles
from bayesrule.posteriors.base import Context

X, Y = classes()


def test_a_posterior_says_what_it_is():
    posterior = br.fit(mlp(), (X, Y), "map", epochs=1)
    assert repr(posterior) == "Particles(method='map', n=48, likelihood='categorical', parameters=67)"


def test_one_that_no_fit_has_made_says_what_it_knows():
    posterior = Particles.of([mlp()], Context(mlp(), br.likelihoods.Categorical()))
    assert repr(posterior) == "Particles(likelihood='categorical', parameters=67)"


def test_a_posterior_as_a_prior_is_shown_without_its_numbers():
    prior = br.fit(mlp(), (X, Y), br.methods.Laplace(structure="diagonal"), epochs=1).as_prior()
    assert repr(prior) == "Structured(parameters=67, precision=Diagonal)"


@pytest.mark.parametrize("name", ["mean", "std", "as_prior", "at_mean"])
def test_what_only_gaussians_have(name):
    posterior = br.fit(mlp(), (X, Y), "map", epochs=1)
    assert not hasattr(posterior, name)
    with pytest.raises(AttributeError, match=f"a Particles posterior has no '{name}': only Gaussians have.*laplace"):
        getattr(posterior, name)
    assert hasattr(br.fit(mlp(), (X, Y), "laplace", epochs=1), name)


def test_a_name_that_no_posterior_has():
    posterior = br.fit(mlp(), (X, Y), "map", epochs=1)
    with pytest.raises(AttributeError, match=r"a Particles posterior has no 'wieghts'$"):
        posterior.wieghts  # noqa: B018
    assert copy.copy(posterior).info == posterior.info  # which asks for names that are not there
