"""Ridge regression in one step, and Laplace's method: the full Gaussian, exactly and locally."""

from __future__ import annotations

import torch
from torch import Tensor

from bayesrule.families import FullGaussian, LossLike
from bayesrule.rule.algorithms.descent import newton
from bayesrule.rule.base import Rule
from bayesrule.rule.trace import State


def ridge(x: Tensor, y: Tensor, decay: float, noise: float = 1.0) -> State:
    """ℓ(w) = ½‖y − Xw‖²/σ² + ½γ‖w‖² is linear in w and wwᵀ, so that ρ = 1 gives the posterior in one step.

    λ = (Xᵀy/σ², −½(XᵀX/σ² + γI)), that is S = XᵀX/σ² + γI and m = S⁻¹Xᵀy/σ², from whatever start.

    >>> after = ridge(torch.tensor([[1.0], [2.0]]), torch.tensor([2.0, 4.0]), decay=5.0)
    >>> FullGaussian.mean_and_covariance(after.natural)
    (tensor([1.]), tensor([[0.1000]]))
    """
    identity = torch.eye(x.shape[1], dtype=x.dtype)
    data = (x.mT @ y / noise**2, -0.5 * (x.mT @ x / noise**2 + decay * identity))
    rule = Rule(FullGaussian(), conjugate=data, rate=1.0)
    return rule.step(rule.start((torch.zeros_like(data[0]), -0.5 * identity)))


def laplace(loss: LossLike, start: Tensor, steps: int = 100, near: float = 1e-12) -> State:
    """N(m, S⁻¹) with ∇ℓ(m) = 0 and S = ∇²ℓ(m): Newton's rule until λ moves by less than ``near``, in proportion.

    >>> after = laplace(lambda w: (w.exp() - 2 * w).sum(-1), torch.zeros(1, dtype=torch.float64))  # log 2, curvature 2
    >>> FullGaussian.mean_and_covariance(after.natural)
    (tensor([0.6931], dtype=torch.float64), tensor([[0.5000]], dtype=torch.float64))
    """
    rule = newton(loss)
    state = rule.start(FullGaussian.of(start, torch.eye(len(start), dtype=start.dtype)))
    for _ in range(steps):
        state = rule.step(state)
        if _still(state, near):
            return state
    raise FloatingPointError(f"laplace did not settle in {steps} steps: take more, or a start nearer to the mode")


def _still(state: State, near: float) -> bool:
    """Whether the last step moved no part of λ by more than ``near`` of its largest entry."""
    for part, moved in zip(state.natural, state.velocity, strict=True):
        if float(moved.abs().max()) > near * float(part.abs().max()):
            return False
    return True
