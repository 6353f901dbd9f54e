"""The same quantities in the space of weights, by autograd and dense matrices: nothing of `bayesrule.gp` is used."""

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.autograd.functional import hessian, jacobian
from torch.func import functional_call


def dense_jacobian(model: nn.Module, x: Tensor) -> Tensor:
    """[N, C, P]."""
    names, weights = zip(*model.named_parameters(), strict=True)

    def outputs(*w: Tensor) -> Tensor:
        return functional_call(model, dict(zip(names, w, strict=True)), (x,)).reshape(len(x), -1)

    return torch.cat([j.flatten(2) for j in jacobian(outputs, weights)], 2).detach()


def flat(model: nn.Module) -> Tensor:
    return torch.cat([p.detach().flatten() for p in model.parameters()])


@dataclass
class Dense:
    """Laplace's approximation of a network's posterior under N(0, s²), with the Gauss–Newton matrix."""

    model: nn.Module
    x: Tensor
    y: Tensor
    likelihood: object
    scale: Tensor
    temperature: float = 1.0

    def __post_init__(self):
        f = self.model(self.x).detach()
        single = [lambda f, y=y: -self.likelihood.log_prob(f[None], y[None])[0] for y in self.y]
        self.slopes = -torch.stack([jacobian(g, row) for g, row in zip(single, f, strict=True)]) / self.temperature
        self.hessians = torch.stack([hessian(g, row) for g, row in zip(single, f, strict=True)]) / self.temperature
        self.j = dense_jacobian(self.model, self.x)
        self.loss = -float(self.likelihood.log_prob(f, self.y).sum()) / self.temperature
        w, precision = flat(self.model), self.scale.pow(-2)
        self.curvature = torch.einsum("ncp,ncd,ndq->pq", self.j, self.hessians, self.j)
        self.covariance = torch.linalg.inv(self.curvature + precision.diag())
        self.gradient = -torch.einsum("ncp,nc->p", self.j, self.slopes) + w * precision
        self.step = w - self.covariance @ self.gradient

    def evidence(self) -> float:
        """log ∫ exp(−quadratic) N(w; 0, s²) dw."""
        w = flat(self.model)
        penalty = 0.5 * float((w / self.scale).square().sum())
        gained = 0.5 * float(self.gradient @ self.covariance @ self.gradient)
        whitened = torch.eye(len(w)).to(w) + self.scale[:, None] * self.curvature * self.scale
        return -self.loss - penalty + gained - 0.5 * float(torch.logdet(whitened))

    def moments(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Mean and joint covariance of the linearised outputs."""
        j = dense_jacobian(self.model, x)
        mean = self.model(x).detach().reshape(len(x), -1) + j @ (self.step - flat(self.model))
        return mean, torch.einsum("ncp,pq,mdq->ncmd", j, self.covariance, j)
