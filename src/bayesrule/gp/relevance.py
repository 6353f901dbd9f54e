"""How much each training example holds the solution."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, get_args

import torch
from torch import Tensor, nn

from bayesrule.curvature import Subset
from bayesrule.gp.network import from_network
from bayesrule.likelihoods import Likelihood
from bayesrule.naming import unknown
from bayesrule.priors import Prior
from bayesrule.temperatures import Tempering

Method = Literal["hessian", "leverage"]
METHODS: tuple[str, ...] = get_args(Method)


@dataclass(frozen=True, eq=False)
class Relevance:
    """Two scores of each training example, [N]; see `relevance`. ``leverage`` is None if it was not asked for."""

    hessian: Tensor
    leverage: Tensor | None = None

    @property
    def score(self) -> Tensor:
        """The leverage if it was asked for, the Hessian's trace else."""
        return self.hessian if self.leverage is None else self.leverage

    @property
    def order(self) -> Tensor:
        """The examples by their score, the most relevant first.

        >>> Relevance(torch.tensor([0.1, 0.5, 0.2])).order
        tensor([1, 2, 0])
        """
        return self.score.argsort(descending=True, stable=True)


def relevance(
    model: nn.Module,
    train: Any,
    likelihood: str | Likelihood | None = None,
    prior: str | float | Prior | None = None,
    method: Method = "hessian",
    temperature: Tempering = 1.0,
    subset: Subset = "all",
) -> Relevance:
    """How much each training example holds a trained network where it is.

    ``hessian``: tr Λ_i = tr ∇²_ff ℓ_i, the score of Khan's memorable past, for one pass through the network: high where
    the network is undecided. ``leverage``, only for ``method="leverage"``: h_i = tr(Λ_i J_i Σ J_iᵀ), between 0 and the
    number of outputs C, which also asks whether other examples say the same. Σ_i h_i is the effective number of
    weights, P − tr(Σ diag s⁻²). It takes a linear system, see `from_network`; for a large network give a ``subset``.
    At a temperature η, Λ/η stands for Λ in both.

    >>> import bayesrule as br
    >>> x = torch.tensor([[0.1], [0.2], [3.0]])
    >>> found = relevance(nn.Linear(1, 1, bias=False), (x, x[:, 0]), br.likelihoods.Gaussian(noise=1.0), "glorot",
    ...                   method="leverage")
    >>> found.order, found.leverage
    (tensor([2, 1, 0]), tensor([0.0010, 0.0040, 0.8955]))
    """
    if method not in METHODS:
        raise unknown("method", method, METHODS)
    gp = from_network(model, train, likelihood, prior, temperature, subset)
    sites, dtype = gp.sites, next(model.parameters()).dtype
    hessian = sites.root.square().sum((1, 2)).to(dtype)
    if method == "hessian":
        return Relevance(hessian)
    covariance = gp.solver.each(sites.x)
    leverage = torch.einsum("ncd,ncd->n", sites.hessian, covariance)
    return Relevance(hessian, leverage.to(dtype))
