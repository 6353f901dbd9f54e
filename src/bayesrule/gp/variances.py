"""Variance of y at a network's outputs, and that which comes from not knowing them."""

from __future__ import annotations

import torch
from torch import Tensor

from bayesrule.likelihoods import Likelihood
from bayesrule.predictions import Binary, Classes


def aleatoric(likelihood: Likelihood, outputs: Tensor) -> Tensor:
    """Var(y|f): σ² for reals, p − p² for classes, the rate for counts.

    >>> from bayesrule.likelihoods import Categorical
    >>> aleatoric(Categorical(), torch.zeros(1, 4))
    tensor([[0.1875, 0.1875, 0.1875, 0.1875]])
    """
    prediction = likelihood.predict(outputs.unsqueeze(0))
    if isinstance(prediction, Classes | Binary):
        return prediction.probs - prediction.probs.square()
    return prediction.aleatoric


def epistemic(likelihood: Likelihood, outputs: Tensor, covariance: Tensor) -> Tensor:
    """diag(H Cov(f) Hᵀ), H = ∂E[y|f]/∂f: the variance of E[y|f] to first order, for Cov(f) [N, C, C].

    H is Λ for classes and counts, and 1 for reals.

    >>> from bayesrule.likelihoods import Bernoulli
    >>> epistemic(Bernoulli(), torch.zeros(1), torch.ones(1, 1, 1))  # (p − p²)²
    tensor([0.0625])
    """
    with torch.enable_grad():
        f = outputs.detach().requires_grad_()
        mean = likelihood.mean(f)
        columns = mean.reshape(len(f), -1).sum(0)
        found = []
        for column in columns:  # summed over examples, none of which acts on another: one pass gives all of their rows
            (slope,) = torch.autograd.grad(column, f, retain_graph=True)
            slope = slope.reshape(len(f), -1)
            found.append(torch.einsum("nc,ncd,nd->n", slope, covariance, slope))
    return torch.stack(found, 1).clamp(min=0).reshape(mean.shape)
