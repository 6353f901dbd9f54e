"""The one network that stands for a posterior."""

from __future__ import annotations

from bayesrule.modules import Parameters
from bayesrule.posteriors.base import Posterior
from bayesrule.posteriors.gaussian import Gaussian
from bayesrule.posteriors.mixture import Mixture
from bayesrule.posteriors.particles import Particles


def central_state(posterior: Posterior) -> Parameters:
    """Weights and buffers at the mean of a Gaussian, or of the first particle or component.

    >>> import bayesrule as br
    >>> posterior = br.fit(br.models.mlp(2, 2, hidden=(4,)), br.data.moons(n=40), "map", epochs=1)
    >>> sorted(central_state(posterior))
    ['1.bias', '1.weight', '3.bias', '3.weight']
    """
    if isinstance(posterior, Particles):
        return posterior.states[0]
    if isinstance(posterior, Gaussian):
        return posterior.mean | posterior.fixed
    if isinstance(posterior, Mixture):
        return central_state(posterior.components[0])
    raise TypeError(
        f"a {posterior.kind} posterior has no network that stands for it: take a Gaussian one, such as that of laplace "
        "or ivon, or that of map"
    )
