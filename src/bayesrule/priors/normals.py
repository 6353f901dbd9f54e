"""Priors that are independent normal distributions, whatever they are called."""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor

from bayesrule.modules import unflatten
from bayesrule.priors.base import Prior
from bayesrule.priors.gaussian import Gaussian
from bayesrule.priors.independent import Value
from bayesrule.priors.structured import Structured
from bayesrule.structures import Diagonal


def normals(prior: Prior, parameters: Mapping[str, Tensor]) -> tuple[dict[str, Value], dict[str, Value]]:
    """The deviations and means of a prior of independent normal weights, by name; an error for any other.

    >>> import torch
    >>> normals(Gaussian(2.0).resolve(torch.nn.Linear(1, 1)), {"bias": torch.zeros(1)})
    ({'bias': 2.0}, {'bias': 0.0})
    """
    if isinstance(prior, Gaussian):
        scales, means = prior.bound(parameters)
        return dict(zip(parameters, scales, strict=True)), dict(zip(parameters, means, strict=True))
    if isinstance(prior, Structured) and isinstance(prior.covariance, Diagonal):
        deviations = unflatten(prior.covariance.variance.sqrt(), prior.mean)
        return {name: deviations[name] for name in parameters}, {name: prior.mean[name] for name in parameters}
    kind = repr(prior.name)
    if isinstance(prior, Structured):
        kind = f"a posterior whose covariance is {prior.covariance.name}"
    raise ValueError(
        f"the prior must be of independent normal weights, not {kind}: take br.priors.Gaussian, or a Gaussian "
        "posterior with a diagonal covariance"
    )
