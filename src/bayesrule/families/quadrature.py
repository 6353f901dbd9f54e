"""Points and weights that stand for a distribution: Σ_k weight_k f(w_k) ≈ E[f(w)]."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple

import torch
from torch import Tensor

from bayesrule.families.losses import Point

MOST = 1_000_000  # points of a grid
TAIL = 40.0  # what lies further out than e^−40 of the mode is left out


class Nodes(NamedTuple):
    """Points w [n, ...], their sufficient statistics and their weights [n], which sum to one."""

    w: Point
    statistics: tuple[Tensor, ...]
    weights: Tensor


@lru_cache(maxsize=32)
def hermite(count: int) -> tuple[Tensor, Tensor]:
    """Gauss–Hermite: exact for N(0, 1) and polynomials of degree 2·count − 1 (Golub & Welsch).

    The nodes are the eigenvalues of the matrix with √1, √2, ... beside its diagonal, the weights are the squared
    first components of its eigenvectors.

    >>> x, weights = hermite(5)
    >>> round(float(weights @ x**4), 12), round(float(weights @ x**8), 12)  # 3 and 7·5·3
    (3.0, 105.0)
    """
    if count < 1:
        raise ValueError(f"nodes must be at least 1, not {count}: it is the number of points a dimension")
    beside = torch.arange(1, count, dtype=torch.float64).sqrt()
    nodes, vectors = torch.linalg.eigh(torch.diag(beside, 1) + torch.diag(beside, -1))
    nodes = (nodes - nodes.flip(0)) / 2  # symmetric to the last bit
    weights = vectors[0].square()
    weights = (weights + weights.flip(0)) / 2
    return nodes, weights / weights.sum()


def grid(sizes: Sequence[int]) -> Tensor:
    """All combinations of indices, one a row: [Π sizes, len(sizes)].

    >>> grid([2, 2]).tolist()
    [[0, 0], [0, 1], [1, 0], [1, 1]]
    """
    count = math.prod(sizes)
    if count > MOST:
        raise ValueError(
            f"how='exact' would take {count:.1e} points ({len(sizes)} dimensions of up to {max(sizes)}), more than "
            f"{MOST}: lower nodes, or take an estimator such as 'reparam' or 'score'"
        )
    if not sizes:
        return torch.zeros(1, 0, dtype=torch.long)
    return torch.cartesian_prod(*(torch.arange(size) for size in sizes)).reshape(count, len(sizes))


def normal_grid(dimensions: int, count: int, like: Tensor) -> tuple[Tensor, Tensor]:
    """Gauss–Hermite in several dimensions: points [n, dimensions] and weights [n], in the dtype of ``like``."""
    nodes, weights = hermite(count)
    index = grid([count] * dimensions)
    return nodes[index].to(like), weights[index].prod(-1).to(like)


def log_gamma_line(shape: float, count: int) -> tuple[Tensor, Tensor]:
    """Points u and weights for u = log(w / (a/b)), w ~ Gamma(a, rate b): a density ∝ exp(−a(e^u − 1 − u)).

    >>> u, weights = log_gamma_line(2.0, 160)
    >>> round(float(weights @ (2 * u.exp())), 12)  # E[w] = a for b = 1
    2.0
    """
    low, high = TAIL / shape + math.sqrt(2 * TAIL / shape), math.log1p(TAIL / shape + math.sqrt(2 * TAIL / shape))
    u, spacing = _sinh_line(low, high, shape**-0.5, count)
    return u, torch.softmax(spacing.log() - shape * (u.expm1() - u), 0)


def logit_beta_line(a: float, b: float, count: int) -> tuple[Tensor, Tensor]:
    """Points t and weights for t = log(w/(1 − w)), w ~ Beta(a, b): a density ∝ σ(t)^a σ(−t)^b.

    >>> t, weights = logit_beta_line(2.0, 3.0, 160)
    >>> round(float(weights @ t.sigmoid()), 12)
    0.4
    """
    width = math.sqrt(1 / a + 1 / b)
    reach = width * math.sqrt(2 * TAIL)
    t, spacing = _sinh_line(TAIL / a + reach, TAIL / b + reach, width, count)
    t = t + math.log(a / b)
    logs = torch.nn.functional.logsigmoid(torch.stack([t, -t]))
    return t, torch.softmax(spacing.log() + a * logs[0] + b * logs[1], 0)


def _sinh_line(low: float, high: float, width: float, count: int) -> tuple[Tensor, Tensor]:
    """width·sinh(x) for equally spaced x, from −low to high, and its derivative.

    For analytic functions that fall off exponentially the rule of equal steps converges exponentially.
    """
    x = torch.linspace(-math.asinh(low / width), math.asinh(high / width), count, dtype=torch.float64)
    return width * x.sinh(), width * x.cosh()


def on_grid(lines: Sequence[tuple[Tensor, Tensor]]) -> tuple[Tensor, Tensor]:
    """Points [n, d] and weights [n] of the product of d lines, each of points and weights."""
    indices = grid([len(line[0]) for line in lines]).unbind(-1)
    columns, weights = [], []
    for (points_of_line, weights_of_line), index in zip(lines, indices, strict=True):
        columns.append(points_of_line[index])
        weights.append(weights_of_line[index])
    return torch.stack(columns, -1), torch.stack(weights, -1).prod(-1)
