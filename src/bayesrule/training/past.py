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

    ``model`` decides the device, and all else that is no weight; its weights do not matter, but for frozen ones.
    """
    if not isinstance(past, Gaussian):
        raise ValueError(
            "prior must be a Gaussian posterior, such as those of laplace, bbb, ivon, and swag without BatchNorm, not "
            f"one of kind {past.kind!r}: fit one of these first"
        )
    if likelihood is not None:
        raise ValueError(
            f"likelihood comes with the posterior that is the prior, {past.likelihood.name!r}: leave it out"
        )
    _check_module(past, model)
    return past.at_mean(model), data.scaled(past.context.scaling), past.likelihood.kept(), past.as_prior()


def _check_module(past: Gaussian, model: nn.Module) -> None:
    """Refuse a module whose parameters are not those of the posterior, learnt or frozen alike."""
    known = past.context.model
    difference = modules.difference(modules.signature(known), modules.signature(model), "the posterior")
    if difference:
        raise ValueError(f"the posterior that is the prior does not fit the model: {difference}")
    learnt, given = set(modules.parameters(known)), set(modules.parameters(model))
    for name in sorted(learnt ^ given):
        where = "learnt in the posterior and frozen in the model" if name in learnt else "frozen in the posterior only"
        raise ValueError(f"the posterior that is the prior does not fit the model: {name!r} is {where}")
    if modules.digests(modules.frozen(known)) != modules.digests(modules.frozen(model)):
        raise ValueError(
            "the model's frozen parameters are not those of the posterior that is the prior: load them first"
        )
