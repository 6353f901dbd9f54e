"""Variational message passing: several factors, one function of their expectation parameters, ρ = 1 by turns."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from torch import Tensor

from bayesrule.families import Family, Natural
from bayesrule.rule.base import Rule

Expected = Callable[..., Tensor]
"""E_q[ℓ] from the expectation parameters of each factor, linear in those of any one of them."""


def posterior(family: Family, expected: Callable[[Natural], Tensor], start: Natural) -> Natural:
    """−∇_μ E_q[ℓ]: where one step of ρ = 1 leads if E_q[ℓ] is linear in μ, that is if ℓ is conjugate to the family.

    >>> import torch
    >>> from bayesrule.families import Dirichlet
    >>> counts = torch.tensor([1.0, 3.0])
    >>> posterior(Dirichlet(), lambda mean: -(counts * mean[0]).sum(), (torch.zeros(2),))
    (tensor([1., 3.]),)
    """
    rule = Rule(family, expected, how="closed-form", rate=1.0)
    return rule.step(rule.start(start)).natural


def sweep(families: Sequence[Family], naturals: Sequence[Natural], expected: Expected) -> list[Natural]:
    """One round of messages: each factor in its turn takes the whole step, given the others as they are by then.

    λ_i ← −∇_{μ_i} E_q[ℓ]. Because E_q[ℓ] is linear in each μ_i, this is the best q_i given the others.
    """
    found = list(naturals)
    for place, family in enumerate(families):
        means = [other.expectation(natural) for other, natural in zip(families, found, strict=True)]

        def given(mean: Natural, place: int = place, means: list[Natural] = means) -> Tensor:
            return expected(*means[:place], mean, *means[place + 1 :])

        found[place] = posterior(family, given, found[place])
    return found
