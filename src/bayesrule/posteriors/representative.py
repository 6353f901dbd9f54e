"""One network in the place of many."""

from __future__ import annotations

from bayesrule.modules import Parameters
from bayesrule.posteriors.base import Posterior
from bayesrule.posteriors.dropout import Dropout
from bayesrule.posteriors.gaussian import Gaussian
from bayesrule.posteriors.mixture import Mixture
from bayesrule.posteriors.particles import Particles


def representative(posterior: Posterior) -> Parameters:
    """The weights, and what else a network holds, to go on from: a Gaussian's mean, the first particle, the weights
    that dropout has masks for, and of a mixture those of its first part."""
    if isinstance(posterior, Particles):
        return posterior.states[0]
    if isinstance(posterior, Gaussian):
        return posterior.mean | posterior.fixed
    if isinstance(posterior, Dropout):
        return posterior.weights
    if isinstance(posterior, Mixture):
        return representative(posterior.components[0])
    raise TypeError(f"a network of a {posterior.kind} posterior was asked for, which has none that stands for it")
