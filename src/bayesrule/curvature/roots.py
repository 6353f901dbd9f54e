"""The curvature of a likelihood in the outputs, as columns: Λ_i = Σ_k s_ik s_ikᵀ.

A column is a tensor of the outputs' shape. The curvature of the network is then a sum of squares,

    Σ_i J_iᵀ Λ_i J_i = Σ_k Σ_i (J_iᵀ s_ik)(J_iᵀ s_ik)ᵀ,

and each J_iᵀ s_ik is a gradient that one backward pass gives for all examples.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal, NamedTuple, get_args

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy, one_hot

from bayesrule.likelihoods import Categorical, Likelihood

MOST = 2**31
"""Numbers that the exact curvature of a batch in its outputs may hold."""
Labels = Literal["exact", "sampled", "empirical"]
LABELS: tuple[str, ...] = get_args(Labels)


def positions(outputs: Tensor, classes_last: bool = False) -> Tensor:
    """Outputs as [B, C, T]: C that belong together at each of T positions.

    >>> positions(torch.zeros(5)).shape, positions(torch.zeros(5, 2, 3, 4)).shape
    (torch.Size([5, 1, 1]), torch.Size([5, 2, 12]))
    """
    outputs = outputs[:, None] if outputs.ndim == 1 else outputs
    if classes_last:
        outputs = outputs.movedim(-1, 1)
    return outputs.reshape(*outputs.shape[:2], -1)


def hessian(likelihood: Likelihood, outputs: Tensor) -> Tensor:
    """Λ as [B, T, C, C], finite and symmetric."""
    examples, width, count = positions(outputs, likelihood.classes_last).shape
    if examples * count * width**2 > MOST:
        raise ValueError(
            f"labels must be 'sampled' for outputs {list(outputs.shape)}: the exact curvature of likelihood "
            f"{likelihood.name!r} would hold {examples * count * width**2:.2g} numbers for a batch"
        )
    found = likelihood.hessian(outputs.detach()).detach()
    if found.numel() != examples * count * width * width:
        raise ValueError(
            f"the Hessian of likelihood {likelihood.name!r} must be [B, ..., C, C] for outputs {list(outputs.shape)}: "
            f"got {list(found.shape)}"
        )
    found = found.reshape(examples, count, width, width)
    if not bool(found.isfinite().all()):
        raise FloatingPointError(
            f"the Hessian of likelihood {likelihood.name!r} holds {found[~found.isfinite()][0]:g} at outputs between "
            f"{outputs.min():g} and {outputs.max():g}: train the network further, or scale the targets"
        )
    return found


def root(likelihood: Likelihood, outputs: Tensor) -> Tensor:
    """S with S Sᵀ = Λ, [B, T, C, K]; for classes (diag(√p) − p√pᵀ)/T.

    >>> p = torch.tensor([[0.5, 0.25, 0.25]])
    >>> s = root(Categorical(), p.log())[0, 0]
    >>> torch.allclose(s @ s.T, Categorical().hessian(p.log())[0])
    True
    """
    found = hessian(likelihood, outputs)
    if type(likelihood) is Categorical and likelihood.vector is None and likelihood.isotonic is None:
        # in closed form: eigenvectors of Λ are dear for many classes, and lose digits where p is nearly one
        p = positions(likelihood.mean(outputs.detach())).transpose(1, 2)
        factor = p.sqrt().diag_embed() - p.unsqueeze(-1) * p.sqrt().unsqueeze(-2)
        return factor if likelihood.temperature is None else factor / likelihood.divisor(outputs)
    values = found.diagonal(dim1=-2, dim2=-1)
    if not bool((found - values.diag_embed()).any()):
        _not_negative(likelihood, values, values)
        return values.clamp(min=0).sqrt().diag_embed()
    if not torch.allclose(found, found.mT, rtol=1e-4):
        raise ValueError(f"the Hessian of likelihood {likelihood.name!r} must be symmetric: it is a second derivative")
    values, vectors = torch.linalg.eigh(found.double())
    _not_negative(likelihood, values, found)
    return (vectors * values.clamp(min=0).sqrt().unsqueeze(-2)).to(outputs.dtype)


def _not_negative(likelihood: Likelihood, eigenvalues: Tensor, like: Tensor) -> None:
    """No eigenvalue is below zero by more than rounding."""
    slack = 100 * torch.finfo(like.dtype).eps * float(eigenvalues.abs().max())
    if float(eigenvalues.min()) < -slack:
        raise ValueError(
            f"the Hessian of likelihood {likelihood.name!r} must have no negative eigenvalue, but has "
            f"{float(eigenvalues.min()):g}: give the mean over y (the Fisher information) where −∂² log p/∂f² has one"
        )


def exact(likelihood: Likelihood, outputs: Tensor) -> Iterator[Tensor]:
    """The columns of Λ's root, one for each position and column: T·C of them."""
    factors = root(likelihood, outputs)
    for position in range(factors.shape[1]):
        for column in factors[:, position].unbind(-1):
            found = outputs.new_zeros(outputs.shape)
            positions(found, likelihood.classes_last)[:, :, position] = column  # a view
            yield found


def slope(likelihood: Likelihood, outputs: Tensor, y: Tensor) -> Tensor:
    """∂ log p(y|f)/∂f at given targets: the one column of the empirical Fisher matrix."""
    with torch.enable_grad():
        f = outputs.detach().requires_grad_()
        (found,) = torch.autograd.grad(likelihood.log_prob(f, y).sum(), f)
    return found


def sampled(
    likelihood: Likelihood, outputs: Tensor, samples: int, generator: torch.Generator | None
) -> Iterator[Tensor]:
    """Slopes at targets drawn from p(y|f), divided by √samples: E[Σ_k s_k s_kᵀ] = Λ, over all positions at once."""
    outputs = outputs.detach()
    for _ in range(samples):
        y = likelihood.check(outputs, likelihood.sample(outputs, generator))
        yield slope(likelihood, outputs, y) / samples**0.5


class Averaged(NamedTuple):
    """`E[−∂ log p(y|f)/∂f]` of shape `[B, K]`, and `E[−∂² log p(y|f)/∂f²]`, `[B, K, K]`, of K normal outputs."""

    residual: Tensor
    hessian: Tensor


def averaged(likelihood: Likelihood, f: Tensor, noise: Tensor, y: Tensor) -> Averaged:
    """Averages over outputs f + noise_s of [S, B, ...] in S points, for outputs [B, C] or [B].

    >>> f, y = torch.tensor([[0.0, 0.0]]), torch.tensor([0])
    >>> averaged(Categorical(), f, torch.tensor([[[1.0, 0.0]], [[-1.0, 0.0]]]), y).residual
    tensor([[-0.5000,  0.5000]])
    """
    count, examples = len(noise), len(f)
    points = (f + noise).flatten(0, 1)
    if type(likelihood) is Categorical:
        return _averaged_classes(likelihood, points, count, y)
    targets = y.repeat(count, *[1] * (y.ndim - 1))
    residual = -slope(likelihood, points, targets).reshape(count, examples, -1).mean(0)
    curved = hessian(likelihood, points).reshape(count, examples, *([positions(f).shape[1]] * 2))
    return Averaged(residual, curved.mean(0))


def _averaged_classes(likelihood: Categorical, points: Tensor, count: int, y: Tensor) -> Averaged:
    """In closed form: E[p] − y and diag(E[p]) − E[p pᵀ], over T and T². No C × C matrix of a point is written out."""
    p = _classes_first(likelihood, points).softmax(0).reshape(-1, count, len(y))
    mean = p.mean(1).T
    squares = torch.einsum("ksb,lsb->bkl", p, p) / count
    unit, labels = likelihood.divisor(p), one_hot(y, len(p))
    return Averaged((mean - labels) / unit, (mean.diag_embed() - squares) / unit.square())


def log_probs(likelihood: Likelihood, f: Tensor, noise: Tensor, y: Tensor) -> Tensor:
    """log p(y|f + noise_s) of every example at S points, [S, B], for outputs [B, C] or [B].

    >>> log_probs(Categorical(), torch.zeros(1, 2), torch.zeros(3, 1, 2), torch.tensor([0])).exp()[:, 0]
    tensor([0.5000, 0.5000, 0.5000])
    """
    points = (f + noise).flatten(0, 1)
    targets = y.repeat(len(noise), *[1] * (y.ndim - 1))
    if type(likelihood) is Categorical:
        found = -cross_entropy(_classes_first(likelihood, points)[None], targets[None], reduction="none")
    else:
        found = likelihood.log_prob(points, targets)
    return found.reshape(noise.shape[:2])


def _classes_first(likelihood: Categorical, points: Tensor) -> Tensor:
    """Logits [C, N] from outputs [N, C]: of few classes and many points, kernels take a fifth of the time like this."""
    return likelihood.logits(points).T.contiguous()
