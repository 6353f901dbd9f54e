"""Normal outputs of single examples: points that stand for them, and links to logits."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

from bayesrule import likelihoods, tracing
from bayesrule.predictions import Reals

ROUNDS = 40
"""Of Newton's iteration: eigenvalues down to 1e-14 of the largest have their roots."""


def predict_reals(likelihood: likelihoods.Gaussian, f: Tensor, covariance: Tensor) -> Reals:
    """N(f, diag(covariance) + noise²)."""
    known = likelihood.predict(f[None])
    deviations = covariance.diagonal(dim1=1, dim2=2).clamp(min=0).sqrt()
    return Reals(known.means, known.stds, deviations.reshape(known.means.shape))


@tracing.outside()
def normals(samples: int, width: int, generator: torch.Generator) -> Tensor:
    """Points [S, K] that stand for N(0, I): pairs about zero, and zero itself where S is odd.

    From 2K points on their covariance is I exactly. A single one is drawn.

    >>> points = normals(5, 2, torch.Generator().manual_seed(0))
    >>> (points.T @ points / 5).round(decimals=6).abs(), points.sum(0)
    (tensor([[1., 0.], [0., 1.]], dtype=torch.float64), tensor([0., 0.], dtype=torch.float64))
    """
    half = torch.randn(max(1, samples // 2), width, generator=generator, dtype=torch.float64, device=generator.device)
    if samples == 1:
        return half
    if len(half) >= width:  # whitened, so that predictions do not depend on the luck of a few draws
        half = half @ torch.linalg.inv(torch.linalg.cholesky(2 * half.T @ half / samples)).T
    return torch.cat([torch.stack([half, -half], 1).flatten(0, 1), half.new_zeros(samples % 2, width)])


def normal_draws(f: Tensor, covariance: Tensor, noise: Tensor) -> Tensor:
    """Points [S, B, ...] of N(f, covariance) for every example, from the same `normals` [S, K] for all of them.

    >>> points = normal_draws(torch.zeros(1, 2), torch.eye(2)[None], normals(4, 2, torch.Generator().manual_seed(0)))
    >>> (points[:, 0].T @ points[:, 0] / 4).round(decimals=6).abs()
    tensor([[1., 0.],
            [0., 1.]])
    """
    return f + torch.einsum("bkl,sl->sbk", root(covariance), noise).reshape(len(noise), *f.shape).to(f.dtype)


def root(covariance: Tensor) -> Tensor:
    """L with L Lᵀ = covariance [B, K, K], in double precision; eigenvalues below zero count as zero.

    The symmetric one: eigenvectors of equal eigenvalues are any, and turn with the last bit of a covariance.
    """
    if tracing.active():
        return iterated_root(covariance.double())
    values, vectors = torch.linalg.eigh(covariance.double())
    return (vectors * values.clamp(min=0).sqrt()[:, None]) @ vectors.mT


def iterated_root(covariance: Tensor) -> Tensor:
    """`root` by products alone, for programs: few runtimes know eigenvalues. Newton's iteration, coupled (Higham 2008).

    ::

        Y ← Y (3I − Z Y)/2,  Z ← (3I − Z Y)/2 Z,  from Y = A/‖A‖, Z = I:    Y → √(A/‖A‖)

    A root doubles its digits in each round, once an eigenvalue λ has come near: after log(‖A‖/λ)/log 2.25 of them.

    >>> iterated_root(torch.tensor([[[4.0, 0.0], [0.0, 0.0]]], dtype=torch.float64)).round(decimals=6)
    tensor([[[2., 0.],
             [0., 0.]]], dtype=torch.float64)
    """
    size = covariance.square().sum((1, 2), keepdim=True).sqrt().clamp(min=torch.finfo(torch.float64).tiny)
    eye = torch.eye(covariance.shape[1], dtype=torch.float64, device=covariance.device).expand(covariance.shape)
    y, z, three = covariance / size, eye, 3 * eye
    for _ in range(ROUNDS):
        step = torch.baddbmm(three, z, y, beta=0.5, alpha=-0.5)
        y, z = torch.bmm(y, step), torch.bmm(step, z)
    return y * size.sqrt()


def centred(f: Tensor, covariance: Tensor) -> Tensor:
    """The covariance of logits [B, C, ...] less their mean over classes, which softmax does not see."""
    count, positions = f.shape[1], f[0, 0].numel()
    matrix = (torch.eye(count, dtype=torch.float64, device=f.device) - 1 / count).contiguous()
    whole = torch.kron(matrix, torch.eye(positions, dtype=torch.float64, device=f.device))
    return whole @ covariance.double() @ whole


@tracing.outside()
def contrasts(count: int, device: torch.device | None = None) -> Tensor:
    """Orthonormal directions [C, C − 1] of logits that do not move their mean over classes, which softmax cannot see.

    >>> contrasts(2).abs()
    tensor([[0.7071], [0.7071]], dtype=torch.float64)
    """
    steps = torch.eye(count, dtype=torch.float64, device=device).diff(dim=1)
    return torch.linalg.qr(steps).Q


def positions(link: Callable[[Tensor, Tensor], Tensor], f: Tensor, covariance: Tensor) -> Tensor:
    """A link of logits [B, C] and covariances [B, C, C], for every position of logits [B, C, ...]."""
    found = link(*by_position(f, covariance))
    return found.reshape(f.shape[0], -1, f.shape[1]).transpose(1, 2).reshape(f.shape)


def by_position(f: Tensor, covariance: Tensor) -> tuple[Tensor, Tensor]:
    """Logits [B·T, C] and their covariances [B·T, C, C] at each of T positions, from those of outputs [B, C, ...]."""
    size, count, width = f.shape[0], f.shape[1], f[0, 0].numel()
    # outputs are in the order [C, positions]: of a covariance [C·T, C·T] the blocks [C, C] of one position are wanted
    own = covariance.reshape(size, count, width, count, width).diagonal(dim1=2, dim2=4).permute(0, 3, 1, 2)
    flat = f.reshape(size, count, width).transpose(1, 2)
    return flat.reshape(-1, count), own.reshape(-1, count, count)


def probit(f: Tensor, variance: Tensor) -> Tensor:
    """f/√(1 + π/8 variance): the mean of σ(f) for a normal f is about σ of it.

    >>> probit(torch.tensor([2.0]), torch.tensor([8 / math.pi * 3]))
    tensor([1.])
    """
    return f / (1 + math.pi / 8 * variance.clamp(min=0)).sqrt()


def probit_of_classes(f: Tensor, covariance: Tensor) -> Tensor:
    """Logits −log Σ_l exp(−d_kl), d_kl the `probit` of f_k − f_l (Lu 2020): what all logits share does not matter.

    >>> probit_of_classes(torch.tensor([[2.0, 0.0]]), torch.ones(1, 2, 2)).softmax(1)[0, 0]  # σ(2)
    tensor(0.8808)
    """
    variance = covariance.diagonal(dim1=1, dim2=2)
    between = variance[:, :, None] + variance[:, None] - 2 * covariance
    return -(-probit(f[:, :, None] - f[:, None], between)).logsumexp(2)


def bridge(f: Tensor, covariance: Tensor) -> Tensor:
    """Logits log α of the Dirichlet distribution whose Laplace approximation in the softmax basis has these moments.

    α_k = (1 − 2/C + exp(m_k)/C² Σ_l exp(−m_l))/S_kk, with m and S those of f less its mean over classes.
    """
    count = f.shape[1]
    centre = torch.eye(count, dtype=torch.float64, device=f.device) - 1 / count
    m, s = f.double() @ centre, centre @ covariance.double() @ centre
    size = (m + (-m).logsumexp(1, keepdim=True) - 2 * math.log(count)).exp()
    variance = s.diagonal(dim1=1, dim2=2).clamp(min=1e-12)  # a network that is sure has α → ∞, not a division by zero
    return ((1 - 2 / count + size) / variance).log().to(f.dtype)
