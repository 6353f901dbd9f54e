"""A posterior as the prior of the next fit."""

from __future__ import annotations

from torch import nn

from bayesrule import modules
from bayesrule.data import Data
from bayesrule.likelihoods import Likelihood
from bayesrule.posteriors import Gaussian, Posterior
from bayesrule.priors import Prior


def continue_from(
    past: Posterior, model: nn.Module, data: Data, likelihood: str | Likelihood | None
) -> tuple[nn.Module, Data, Likelihood, Prior]:
    """The module at the posterior's mean, the data in its units, its likelihood with the noise it has, and its prior.

    ``model`` must be the module of the posterior; its own weights do not matter, but for frozen ones.
    """
    if not isinstance(past, Gaussian):
        raise ValueError(
            f"prior must be a Gaussian posterior, such as those of laplace, swag, bbb and ivon, not one of kind "
            f"{past.kind!r}: fit one of these first"
        )
    if likelihood is not None:
        raise ValueError(
            f"likelihood comes with the posterior that is the prior, {past.likelihood.name!r}: leave it out"
        )
    difference = modules.difference(modules.signature(past.context.model), modules.signature(model), "the posterior")
    if difference:
        raise ValueError(f"the posterior that is the prior does not fit the model: {difference}")
    frozen = modules.digests(modules.frozen(past.context.model))
    if modules.digests({name: p for name, p in model.named_parameters() if name in frozen}) != frozen:
        raise ValueError(
            "the model's frozen parameters are not those of the posterior that is the prior: load them first"
        )
    return past.at_mean(), data.scaled(past.context.scaling), past.likelihood.kept(), past.as_prior()
