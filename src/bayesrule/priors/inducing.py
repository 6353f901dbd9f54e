"""A prior over the body of a network with many heads: what was learnt of earlier tasks must stay probable in it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from torch import Tensor, nn

from bayesrule import modules
from bayesrule.models import MultiHead
from bayesrule.priors.base import Prior


@dataclass(frozen=True, eq=False, repr=False)
class Inducing(Prior):
    """p(θ) ∝ base(θ) · exp(−Σ_s Σ_c KL(q(u_sc) ‖ p_θ(u_sc))): FRCL, Titsias et al. (2020).

    u_sc are the values of output c of task s at the inducing points Z_s, of which q(u_sc) = N(m_sc, S_sc) was learnt.
    As the head of a task has the prior N(0, scale² I), u is a Gaussian process under the features φ_θ of the body,
    p_θ(u) = N(0, K), K = scale² (φ_θ(Z) φ_θ(Z)ᵀ + jitter I), φ with a 1 for the bias. What does not depend on θ, such
    as log|S|, is left out, so that S may be singular.

    ``points``: Z_s, inputs of the body. ``means``: m_s, ``[M, C]``. ``covariances``: S_s, ``[C, M, M]``. ``base``: a
    density of the weights beside it.

    >>> from bayesrule.priors import Flat
    >>> net = MultiHead(nn.Linear(1, 1, bias=False), features=1, heads=1, outputs=1)
    >>> one = torch.ones(1, 1)
    >>> prior = Inducing([one], [2 * one], [torch.ones(1, 1, 1)], Flat(), jitter=0.0).resolve(net)
    >>> prior.log_prob({"body.weight": 2 * one})  # K = 2² + 1: −½ (log 5 + (1 + 2²)/5)
    tensor(-1.3047)
    """

    name: ClassVar[str] = "inducing"
    learnt: ClassVar[bool] = True
    points: list[Tensor]
    means: list[Tensor]
    covariances: list[Tensor]
    base: Prior
    scale: float = 1.0
    jitter: float = 1e-4

    def __post_init__(self) -> None:
        if not len(self.points) == len(self.means) == len(self.covariances):
            raise ValueError(
                "points, means and covariances must be of as many sets, got "
                f"{len(self.points)}, {len(self.means)} and {len(self.covariances)}"
            )

    def __repr__(self) -> str:  # without the numbers, which may be millions
        return f"Inducing(points={sum(map(len, self.means))}, sets={len(self.points)}, base={self.base!r})"

    def resolve(self, module: nn.Module) -> Prior:
        """Bound to a copy of the module's body, on its device; matrices are in double precision."""
        if not isinstance(module, MultiHead):
            raise ValueError(f"an inducing prior must have a br.models.MultiHead, not a {type(module).__name__}")
        device, dtype = modules.device_of(module), modules.dtype_of(module)
        found = replace(self, points=[x.to(device, dtype) for x in self.points], base=self.base.resolve(module))
        moments = []
        for mean, covariance in zip(self.means, self.covariances, strict=True):
            m = mean.to(device, torch.float64)
            moments.append(covariance.to(device, torch.float64).sum(0) + m @ m.T)  # Σ_c E[u_c u_cᵀ]
        object.__setattr__(found, "_bound", (modules.twin(module.body).eval(), moments))
        return found

    _bound: ClassVar[tuple[nn.Module, list[Tensor]]]

    def log_prob(self, parameters: Mapping[str, Tensor]) -> Tensor:
        """log base − ½ Σ_s (C log|K_s| + tr K_s⁻¹ Σ_c (S_sc + m_sc m_scᵀ)); all points go through the body at once."""
        body, moments = self._bound
        total = self.base.log_prob(parameters)
        if not self.points:
            return total
        own = {name.removeprefix("body."): p for name, p in parameters.items() if name.startswith("body.")}
        features = with_one(modules.call(body, torch.cat(self.points), own))
        parts = torch.split(features.double(), [len(mean) for mean in self.means])
        for phi, mean, moment in zip(parts, self.means, moments, strict=True):
            root = torch.linalg.cholesky(kernel(phi, self.scale, self.jitter))
            volume = 2 * root.diagonal().log().sum()
            trace = torch.cholesky_solve(moment, root).trace()
            total = total - 0.5 * (mean.shape[1] * volume + trace).to(total)
        return total


def kernel(features: Tensor, scale: float, jitter: float) -> Tensor:
    """scale² (φφᵀ + jitter·I).

    >>> kernel(torch.tensor([[1.0], [2.0]]), 2.0, 0.25)
    tensor([[ 5.,  8.],
            [ 8., 17.]])
    """
    return scale**2 * (features @ features.T + jitter * torch.eye(len(features)).to(features))


def with_one(features: Tensor) -> Tensor:
    """A column of ones beside them, for the bias.

    >>> with_one(torch.zeros(1, 2))
    tensor([[0., 0., 1.]])
    """
    return torch.cat([features, torch.ones_like(features[:, :1])], 1)
