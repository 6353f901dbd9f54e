"""Jacobians and curvature by autograd, one output of one example at a time: what is right."""

from typing import Any

import torch
from curvature_networks import call, rows
from torch import Tensor, nn

from bayesrule.likelihoods import Likelihood


class Joined(nn.Module):
    """All outputs of a model in one row for each example."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, *args: Any, **kwargs: Any) -> Tensor:
        found = self.model(*args, **kwargs)
        parts = found.values() if isinstance(found, dict) else found if isinstance(found, tuple) else [found]
        return torch.cat([part.flatten(1) for part in parts], 1)


def size(x: Any) -> int:
    return len(next(iter(x.values())) if isinstance(x, dict) else x[0] if isinstance(x, tuple) else x)


def jacobian(model: nn.Module, x: Any) -> Tensor:
    """[B, C, P] over the trainable parameters, each example alone."""
    parameters = [p for p in model.parameters() if p.requires_grad]
    found = []
    for i in range(size(x)):
        outputs = call(model, rows(x, slice(i, i + 1))).flatten()
        each = [
            torch.autograd.grad(f, parameters, retain_graph=True, allow_unused=True, materialize_grads=True)
            for f in outputs
        ]
        found.append(torch.stack([torch.cat([g.flatten() for g in gradients]) for gradients in each]))
    return torch.stack(found).detach()


def ggn(model: nn.Module, x: Any, likelihood: Likelihood, j: Tensor | None = None) -> Tensor:
    """Σ_i J_iᵀ Λ_i J_i, [P, P]; ``j`` is the Jacobian, for those who have it already."""
    outputs = call(model, x).detach()
    j = jacobian(model, x) if j is None else j
    width = 1 if outputs.ndim == 1 else outputs.shape[1]
    hessian = likelihood.hessian(outputs).reshape(len(outputs), -1, width, width)
    j = j.view(len(j), width, -1, j.shape[-1])
    return torch.einsum("bctp,btcd,bdtq->pq", j, hessian, j)


def relative(found: Tensor, wanted: Tensor) -> float:
    """The error in the norm, of what is right; absolute where that is zero."""
    assert found.shape == wanted.shape
    return float((found - wanted).norm() / wanted.norm()) if wanted.any() else float(found.norm())
