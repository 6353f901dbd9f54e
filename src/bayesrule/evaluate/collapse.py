"""Does a posterior still listen to the data?"""

from __future__ import annotations

from typing import Any

import torch

from bayesrule import modules, priors, temperatures
from bayesrule.data import Batch, as_data
from bayesrule.posteriors import Gaussian, Posterior
from bayesrule.priors import Prior
from bayesrule.training.collapse import EXAMPLES, Collapse, diagnose


def collapse(posterior: Posterior, train: Any = None, prior: Prior | None = None) -> Collapse:
    """Whether a variational posterior has collapsed onto its prior, the figures behind that, and what to do.

    Args:
        posterior: A Gaussian over all weights; of one with correlations, the product of its marginals is looked at.
        train: The training data ``(X, y)``, in the user's units. None: the figures that a fit of 1000 steps or more by
            ``bbb``, ``ivon``, ``vogn``, ``von`` or ``vadam`` has left in ``posterior.info["collapse"]``.
        prior: That of the fit, before a cold posterior's T. None: as ``posterior.info`` has it, which leaves out one
            that earlier data have taught.

    >>> import bayesrule as br
    >>> x, y = br.data.moons(seed=0)
    >>> posterior = br.fit(br.models.mlp(2, 2, hidden=(20,)), (x, y), "ivon", prior="fan-in", epochs=100)
    >>> br.evaluate.collapse(posterior).collapsed
    False
    """
    if train is None and prior is None:
        if "collapse" not in posterior.info:
            raise ValueError(
                "train must be the training data (X, y): only fits of 1000 steps or more by bbb, ivon, vogn, von and "
                "vadam, under a prior that is not a posterior, leave the figures with the posterior"
            )
        return Collapse.from_json(posterior.info["collapse"])
    if not isinstance(posterior, Gaussian):
        raise ValueError(
            f"posterior must be Gaussian, such as those of bbb and ivon, not one of kind {posterior.kind!r}"
        )
    if train is None:
        raise ValueError("train must be the training data (X, y) where another prior is given")
    data = as_data(train)
    raw = data.raw()
    some = raw.take(torch.linspace(0, len(raw.y) - 1, min(EXAMPLES, len(raw.y))).round().long())
    targets = posterior.context.scaling.targets
    y = some.y if targets is None else targets.forward(some.y)
    if y.is_floating_point():
        y = y.to(modules.dtype_of(posterior.model))
    looked = Batch(posterior.inputs(some.x), y, some.weight).to(modules.device_of(posterior.model))
    temperature = float(posterior.info.get("temperature", 1.0))
    found = diagnose(posterior, _prior(posterior, prior), looked, temperature, data.total)
    if found is None:
        raise ValueError(
            "the divergence of this posterior from its prior has no closed form: it needs a Gaussian over all weights, "
            "and a Gaussian or Laplace prior"
        )
    return found


def _prior(posterior: Posterior, given: Prior | None) -> Prior:
    """The prior of the fit, bound to the model and tempered as it was."""
    spec = posterior.info.get("prior")
    if given is None:
        if not spec or not (spec["fields"] or spec["name"] in priors.AVAILABLE):
            raise ValueError("prior must be given: the posterior does not know the one of its fit")
        given = priors.from_spec({"name": spec["name"], "fields": spec["fields"]})
    prior = given.resolve(posterior.context.model)
    tempering = posterior.info.get("tempering")
    if tempering is None:
        return prior
    named = temperatures.from_spec({"name": tempering["name"], "fields": tempering["fields"]})
    assert isinstance(named, temperatures.Temperature)
    return named.tempered(prior, posterior.info["temperature"])
