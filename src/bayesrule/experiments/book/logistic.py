"""Logistic regression with a prior N(0, 1) on each of a few weights, without noise: by quadrature."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import logsigmoid

NODES = np.polynomial.hermite_e.hermegauss(40)


@dataclass(frozen=True)
class Normal:
    """Independent normal weights, or the moments of the marginals of another distribution over them."""

    mean: list[float]
    std: list[float]

    def tensors(self) -> tuple[Tensor, Tensor]:
        """Mean and deviation in double precision."""
        return torch.tensor(self.mean, dtype=torch.float64), torch.tensor(self.std, dtype=torch.float64)


@dataclass(frozen=True)
class LogisticRegression:
    """Inputs ``x`` [B, D], labels ``y`` = ±1 [B], each example seen ``copies`` times: p(y|x, w) = σ(y wᵀx)."""

    x: Tensor
    y: Tensor
    copies: int = 1

    def bound(self, mean: Tensor, std: Tensor) -> Tensor:
        """E_q[log p(D|w)] − KL(q‖p) of q = N(mean, std²), exact but for one-dimensional quadrature.

        >>> flip = LogisticRegression(torch.zeros(1, 1, dtype=torch.float64), torch.ones(1, dtype=torch.float64))
        >>> round(flip.bound(*Normal([0.0], [1.0]).tensors()).item(), 6) == round(-math.log(2), 6)
        True
        """
        logits, weights = _logits(mean, std, self.x)
        likelihood = self.copies * (weights * logsigmoid(self.y * logits)).sum()
        return likelihood - (0.5 * (mean.square() + std.square() - 1) - std.log()).sum()

    def best(self) -> Normal:
        """The q of independent weights that is nearest to the posterior: where `bound` is highest."""
        state = torch.zeros(2, self.x.shape[1], dtype=torch.float64, requires_grad=True)
        search = torch.optim.LBFGS([state], max_iter=500, tolerance_grad=1e-10, line_search_fn="strong_wolfe")

        def loss() -> float:
            search.zero_grad()
            value = -self.bound(state[0], state[1].exp())
            value.backward()  # type: ignore[no-untyped-call]
            return value.item()

        search.step(loss)  # type: ignore[no-untyped-call]
        return Normal(state[0].tolist(), state[1].detach().exp().tolist())

    def exact(self, reach: float = 8.0, points: int = 81) -> tuple[Normal, float, list[float]]:
        """The posterior on a grid: moments of its marginals, log p(D), and P(y = 1) at each x."""
        line = torch.linspace(-reach, reach, points, dtype=torch.float64)
        grid = torch.cartesian_prod(*[line] * self.x.shape[1]).reshape(-1, self.x.shape[1])
        logits = grid @ self.x.T
        log_joint = self.copies * logsigmoid(self.y * logits).sum(1) - 0.5 * grid.square().sum(1)
        log_joint += grid.shape[1] * (math.log(float(line[1] - line[0])) - 0.5 * math.log(2 * math.pi))
        evidence = log_joint.logsumexp(0)
        p = (log_joint - evidence).exp()
        mean = p @ grid
        std = (p @ (grid - mean).square()).sqrt()
        return Normal(mean.tolist(), std.tolist()), evidence.item(), (p @ logits.sigmoid()).tolist()


def probability(q: Normal, x: Tensor) -> tuple[Tensor, Tensor]:
    """Mean and standard deviation of P(y = 1) at x under weights from q."""
    logits, weights = _logits(*q.tensors(), x)
    mean = (weights * logits.sigmoid()).sum(0)
    return mean, (weights * (logits.sigmoid() - mean).square()).sum(0).sqrt()


def _logits(mean: Tensor, std: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
    """The logit at x is N(xᵀm, Σ_j x_j² s_j²): values [K, B] at the nodes of Gauss and Hermite, and weights [K, 1]."""
    nodes, weights = torch.from_numpy(NODES[0])[:, None], torch.from_numpy(NODES[1])[:, None]
    return x @ mean + (x.square() @ std.square()).sqrt() * nodes, weights / math.sqrt(2 * math.pi)
