"""Equations in ψ, the derivative of log Γ, solved by Newton's method."""

from __future__ import annotations

import torch
from torch import Tensor

STEPS = 60


def trigamma(x: Tensor) -> Tensor:
    """ψ'(x) = Σ_{i<k} 1/(x + i)² + ψ'(x + k): torch's series is off by up to 5e-10, far less from 20 on.

    >>> abs(float(trigamma(torch.tensor(1.0, dtype=torch.float64))) - torch.pi**2 / 6) < 1e-14
    True
    """
    shifts = torch.arange(20, dtype=x.dtype)
    return (x[..., None] + shifts).square().reciprocal().sum(-1) + torch.polygamma(1, x + 20)


def inverse_digamma(y: Tensor) -> Tensor:
    """x with ψ(x) = y, by Newton from e^y + ½ or −1/(y − ψ(1)) (Minka 2000).

    >>> inverse_digamma(torch.digamma(torch.tensor([0.01, 1.0, 300.0], dtype=torch.float64)))
    tensor([1.0000e-02, 1.0000e+00, 3.0000e+02], dtype=torch.float64)
    """
    x = torch.where(y >= -2.22, y.exp() + 0.5, -1 / (y - torch.digamma(torch.ones_like(y))))
    for _ in range(6):  # the start is good enough for double precision in five
        x = x - (torch.digamma(x) - y) / trigamma(x)
    return x


def gamma_shape(gap: Tensor) -> Tensor:
    """a with log a − ψ(a) = gap > 0, by Newton in 1/a (Minka 2002).

    >>> gamma_shape(torch.tensor(0.5772156649, dtype=torch.float64))  # log 1 − ψ(1)
    tensor(1.0000, dtype=torch.float64)
    """
    a = (3 - gap + ((gap - 3).square() + 24 * gap).sqrt()) / (12 * gap)
    for _ in range(20):
        slope = a.square() * (1 / a - trigamma(a))
        a = 1 / (1 / a + (a.log() - torch.digamma(a) - gap) / slope)
    return a


def dirichlet_concentration(logs: Tensor) -> Tensor:
    """α with ψ(α_k) − ψ(Σα) = E[log w_k], for each row: a few rounds of Minka's fixed point, then Newton's method.

    The Hessian is diag(ψ'(α)) − ψ'(Σα)11ᵀ, solved in O(K). A step that would leave α > 0 is halved.

    >>> alpha = torch.tensor([0.5, 2.0, 30.0], dtype=torch.float64)
    >>> dirichlet_concentration(torch.digamma(alpha) - torch.digamma(alpha.sum()))
    tensor([ 0.5000,  2.0000, 30.0000], dtype=torch.float64)
    """
    # Σ exp E[log w_k] falls short of one by about (K − 1)/(2Σα): a first guess of the total.
    missing = (1 - logs.exp().sum(-1, keepdim=True)).clamp_min(1e-12)
    total = (logs.shape[-1] - 1) / (2 * missing)
    for _ in range(10):
        alpha = inverse_digamma(logs + torch.digamma(total))
        total = alpha.sum(-1, keepdim=True)
    for _ in range(STEPS):
        step = _newton(alpha, logs)
        shrink = (2 * (step / alpha).amax(-1, keepdim=True)).clamp_min(1)
        alpha = alpha - step / shrink
        if bool((step.abs() <= 1e-15 * alpha).all()):
            break
    return alpha


def _newton(alpha: Tensor, logs: Tensor) -> Tensor:
    """H⁻¹(ψ(α) − ψ(Σα) − logs) by Sherman and Morrison."""
    total = alpha.sum(-1, keepdim=True)
    return solve(alpha, torch.digamma(alpha) - torch.digamma(total) - logs)


def solve(alpha: Tensor, right: Tensor) -> Tensor:
    """(diag(ψ'(α)) − ψ'(Σα)11ᵀ)⁻¹ right, the Fisher information of a Dirichlet solved."""
    own, common = trigamma(alpha), trigamma(alpha.sum(-1, keepdim=True))
    scaled = right / own
    share = common * scaled.sum(-1, keepdim=True) / (1 - common * (1 / own).sum(-1, keepdim=True))
    return scaled + share / own
