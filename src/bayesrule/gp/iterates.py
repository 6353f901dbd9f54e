"""The iterates of an optimiser as inference in a Gaussian process."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from bayesrule import modules
from bayesrule.curvature import Subset
from bayesrule.gp.network import Solve, from_network
from bayesrule.likelihoods import Likelihood
from bayesrule.priors import Prior
from bayesrule.temperatures import Tempering


def iterate(
    model: nn.Module,
    train: Any,
    likelihood: str | Likelihood | None = None,
    prior: str | float | Prior | None = None,
    temperature: Tempering = 1.0,
    subset: Subset = "all",
    solve: Solve = "auto",
) -> nn.Module:
    """A network at the mean of the Gaussian process that ``model`` is: one full Gauss–Newton step.

    w − (diag s⁻² + Σ_i J_iᵀ Λ_i J_i/η)⁻¹ ∇, ∇ the gradient of −log p(D|w)/η − log p(w): the step of the learning rule
    with a full covariance, E_q at the mean, the Gauss–Newton matrix for the Hessian and ρ = 1. The same weights give
    the mean of Gaussian-process regression on the pseudo-targets f + Λ⁻¹∂log p/∂f. Arguments are those of
    `from_network`. The model is copied.

    >>> import bayesrule as br
    >>> x = torch.tensor([[0.0], [1.0], [2.0]])
    >>> after = iterate(nn.Linear(1, 1), (x, 2 * x[:, 0] + 1), br.likelihoods.Gaussian(0.01), br.priors.Gaussian(1.0))
    >>> [p.item() for p in after.parameters()]
    [1.9999..., 1.0000...]
    """
    found = from_network(model, train, likelihood, prior, temperature, subset, solve).mean_weights()
    after = modules.twin(model, shared=())
    known = dict(after.named_parameters())
    with torch.no_grad():
        for name, w in found.items():
            known[name].copy_(w)
    return after
