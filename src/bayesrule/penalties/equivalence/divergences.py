"""From a prior to a penalty: KL(β_{μ,ν}‖α) as a function of μ and ν."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor

from bayesrule.penalties.equivalence.implied import Implied
from bayesrule.penalties.functions import Penalty, Scales, paired
from bayesrule.penalties.terms import Terms
from bayesrule.penalties.translations import PointMass, Translation
from bayesrule.priors import Flat, Gaussian, Laplace, Prior, ScaleMixture

AT_ONCE = 2**17  # numbers of a quadrature without gradients: they stay in the cache

Given = Prior | torch.distributions.Distribution | Callable[[Tensor], Tensor]


def penalty_of(prior: Given, family: Translation, nodes: int = 400, draws: int = 64) -> Penalty:
    """r(μ, ν) = KL(β_{μ,ν}‖α) = −Ent(β_{0,ν}) − E log α(μ + νε): a penalty to train with.

    ``prior``: a prior of this package, a `torch.distributions.Distribution` of one number, or a function log α(x).
    Powers, waves and |x| in log α have closed forms (so Gaussian and Laplace priors do); all else is a sum over
    ``nodes`` points of the family, in double precision, differentiable in μ and ν. A prior that is not one density for
    every weight (`Structured`, a scale by rule) has its `total` by ``draws`` samples. For a point mass the entropy,
    which is infinite, is left out.

    >>> from bayesrule.penalties import translations
    >>> r = penalty_of(Gaussian(1.0), translations.Gaussian())
    >>> r(torch.zeros(2), torch.tensor([1.0, 2.0]))  # ½(ν² − 1) − log ν
    tensor([0.0000, 0.8069])
    """
    if not isinstance(family, Translation):
        raise TypeError(f"family must be one of br.penalties.translations, not {type(family).__name__}: {family!r}")
    if nodes < 2 or draws < 1:
        raise ValueError(f"nodes must be at least 2 and draws at least 1, not {nodes} and {draws}")
    belief = believed(prior)
    if belief is None:
        assert isinstance(prior, Prior)
        return Sampled(prior, family, draws)
    return Divergence(belief, family, nodes)


class Belief(NamedTuple):
    """log α(x) = terms(x − centre) + rest(x)."""

    centre: float
    terms: Terms
    rest: Callable[[Tensor], Tensor] | None = None


def believed(prior: Given) -> Belief | None:
    """The log-density of one weight; None if there is not the same one for all."""
    if isinstance(prior, Implied):
        if prior.exact is not None:
            return believed(prior.exact)
        return Belief(0.0, prior.terms + Terms((-prior.log_normaliser,)), prior.table)
    if isinstance(prior, Gaussian | Laplace):
        return _located(prior)
    if isinstance(prior, ScaleMixture):
        means = prior.mean or {}
        if any(bool(torch.as_tensor(mean).any()) for mean in means.values()):
            return None
        return Belief(0.0, Terms(), prior._log_density)
    if isinstance(prior, Flat):
        return Belief(0.0, Terms())
    if isinstance(prior, Prior):
        return None
    if isinstance(prior, torch.distributions.Distribution):
        if prior.batch_shape or prior.event_shape:
            raise ValueError(f"a prior distribution must be of one number, not {prior}: batch and event shape empty")
        return _known(prior) or Belief(0.0, Terms(), prior.log_prob)
    if not callable(prior):
        what = f"{type(prior).__name__}: {prior!r}"
        raise TypeError(f"prior must be a prior, a distribution or a function log α(x), not {what}")
    return Belief(0.0, Terms(), prior)


def _located(prior: Gaussian | Laplace) -> Belief | None:
    """Terms of a prior with one number as its scale."""
    if not isinstance(prior.scale, int | float) or isinstance(prior.mean, Mapping):
        return None
    scale, mean = float(prior.scale), float(prior.mean or 0.0)
    if isinstance(prior, Laplace):
        return Belief(mean, Terms((-math.log(2 * scale),), kink=-1 / scale))
    return Belief(mean, Terms((-math.log(scale) - 0.5 * math.log(2 * math.pi), 0.0, -0.5 * scale**-2)))


def _known(prior: torch.distributions.Distribution) -> Belief | None:
    """Terms of torch's normal and Laplace's, whose kink no quadrature should cross."""
    if isinstance(prior, torch.distributions.Laplace):
        return _located(Laplace(float(prior.scale), float(prior.loc)))
    if isinstance(prior, torch.distributions.Normal):
        return _located(Gaussian(float(prior.scale), float(prior.loc)))
    return None


class Divergence(Penalty):
    """KL(β_{μ,ν}‖α), for each element of μ."""

    def __init__(self, belief: Belief, family: Translation, nodes: int) -> None:
        self.belief, self.family, self.count = belief, family, nodes
        self.points, self.weights = family.nodes(nodes)

    def __repr__(self) -> str:
        return f"Divergence({self.family!r})"

    def __call__(self, mu: Tensor, nu: float | Tensor | None = None) -> Tensor:
        """KL(β_{μ,ν}‖α); ν may be left out if the family's is fixed."""
        given = self.family.chosen(nu)
        scale = torch.as_tensor(given, dtype=torch.float64, device=mu.device)
        if not bool((scale.detach() > 0).all()):
            raise ValueError("nu must be positive: it is the scale of the family")
        at = mu.double()
        total = -self._expected(at, scale)
        if not isinstance(self.family, PointMass):
            total = total - self.family.entropy(scale)
        return total.to(mu.dtype)

    def _expected(self, mu: Tensor, nu: Tensor) -> Tensor:
        """E log α(μ + νε)."""
        centre, terms, rest = self.belief
        closed = terms.expectation(self.family, mu - centre, nu)
        if rest is None:
            return closed
        return closed + self._sum(rest, mu, nu)

    def _sum(self, function: Callable[[Tensor], Tensor], mu: Tensor, nu: Tensor) -> Tensor:
        """Σ_i weight_i f(μ + ν ε_i), in parts where no gradient asks for all at once."""
        points, weights = self.points.to(mu.device), self.weights.to(mu.device)

        def part(m: Tensor, n: Tensor) -> Tensor:
            return (function(m[:, None] + n[:, None] * points) * weights).sum(-1)

        shape = torch.zeros_like(mu + nu)
        m, n = (mu + shape).reshape(-1), (nu + shape).reshape(-1)
        if torch.is_grad_enabled() and (mu.requires_grad or nu.requires_grad):
            return part(m, n).reshape(shape.shape)
        size = max(1, AT_ONCE // len(points))
        parts = [part(*both) for both in zip(torch.split(m, size), torch.split(n, size), strict=True)]
        return torch.cat(parts).reshape(shape.shape)


class Sampled(Penalty):
    """KL(β‖p) over all weights together, by draws: for priors that are not one density for every weight."""

    def __init__(self, prior: Prior, family: Translation, draws: int) -> None:
        self.prior, self.family, self.draws = prior, family, draws

    def __call__(self, mu: Tensor, nu: float | Tensor | None = None) -> Tensor:
        """There is no such thing for one weight."""
        raise ValueError(f"{type(self.prior).__name__} is not one density for every weight: use total, with names")

    def total(
        self,
        means: Tensor | Mapping[str, Tensor] | Iterable[Tensor],
        scales: Scales = None,
        generator: torch.Generator | None = None,
    ) -> Tensor:
        """−Σ Ent − 1/S Σ_s log p(μ + ν ε_s), the prior resolved for the module whose parameters are named."""
        if not isinstance(means, Mapping):
            raise TypeError(f"the means of a {type(self.prior).__name__} prior must have names, as a mapping")
        tensors, widths = paired(means, scales)
        chosen = [torch.as_tensor(self.family.chosen(s), dtype=m.dtype) for m, s in zip(tensors, widths, strict=True)]
        named: dict[str, Any] = dict(zip(means, zip(tensors, chosen, strict=True), strict=True))
        logs = []
        for _ in range(self.draws):
            noise = {k: self.family.sample(m.shape, 1.0, generator).to(m) for k, (m, _) in named.items()}
            logs.append(self.prior.log_prob({k: m + s * noise[k] for k, (m, s) in named.items()}))
        entropies = [torch.as_tensor(self.family.entropy(s)).expand(m.shape).sum() for m, s in named.values()]
        return -torch.stack(entropies).sum() - torch.stack(logs).mean()
