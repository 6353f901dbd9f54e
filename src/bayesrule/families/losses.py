"""What is averaged over a distribution: a function of w, with its derivatives by autograd or by hand."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

Point = Any
"""A batch of points: a tensor [n, ...], or a tuple of such tensors for a product of families."""


@dataclass(frozen=True)
class Loss:
    """ℓ(w), ∇ℓ(w) and ∇²ℓ(w) for a batch of points w, [n, ...].

    ``value`` gives [n] numbers. ``slope`` gives ∇ℓ in the shape of w; ``curvature`` gives ∇²ℓ as [n, d, d], or its
    diagonal in the shape of w, which is all that a diagonal Gaussian asks for. What is not given is had by autograd
    from what is. Without ``value`` a loss serves those who ask for derivatives only.

    >>> bowl = Loss(lambda w: (w**2).sum(-1))
    >>> w = torch.tensor([[1.0, 2.0]])
    >>> bowl.gradient(w), bowl.hessian(w)
    (tensor([[2., 4.]]), tensor([[[2., 0.],
             [0., 2.]]]))
    >>> Loss(slope=lambda w: 2 * w, curvature=lambda w: torch.full_like(w, 2)).hessian_diagonal(w)
    tensor([[2., 2.]])
    """

    value: Callable[[Point], Tensor] | None = None
    slope: Callable[[Tensor], Tensor] | None = None
    curvature: Callable[[Tensor], Tensor] | None = None

    @classmethod
    def of(cls, given: LossLike) -> Loss:
        """The loss itself, or one whose derivatives are had by autograd."""
        if isinstance(given, Loss):
            return given
        if not callable(given):
            raise TypeError(f"loss must be a function of w or a Loss, not {type(given).__name__}: {given!r}")
        return cls(given)

    def __call__(self, w: Point) -> Tensor:
        """ℓ(w), one number a point, without a graph."""
        if self.value is None:
            raise ValueError("loss has no value, only derivatives: give Loss(value=...) or an estimator that asks none")
        with torch.no_grad():
            return self._values(self.value, w)

    def gradient(self, w: Tensor) -> Tensor:
        """∇ℓ at each point, in the shape of w."""
        with torch.enable_grad():
            return self._slope(w.detach().requires_grad_(), graph=False).detach()

    def hessian(self, w: Tensor) -> Tensor:
        """∇²ℓ at each point of w [n, d], [n, d, d]."""
        if self.curvature is not None:
            given = self.curvature(w)
            if given.shape == w.shape:  # a diagonal
                return given.diag_embed()
            return given
        return torch.stack([column.flatten(1) for column in self._columns(w)], -1)

    def hessian_diagonal(self, w: Tensor) -> Tensor:
        """The diagonal of ∇²ℓ at each point, in the shape of w."""
        if self.curvature is not None:
            given = self.curvature(w)
            if given.shape == w.shape:
                return given
            return given.diagonal(dim1=-2, dim2=-1).reshape(w.shape)
        columns = [column.flatten(1)[:, j] for j, column in enumerate(self._columns(w))]
        return torch.stack(columns, -1).reshape(w.shape)

    def _columns(self, w: Tensor) -> list[Tensor]:
        """∂∇ℓ/∂w_j for each j: one backward pass each."""
        with torch.enable_grad():
            leaf = w.detach().requires_grad_()
            slope = self._slope(leaf, graph=True)
            # Points do not depend on one another, so the sum over them has each point's derivative in one pass.
            sums = slope.flatten(1).sum(0)
            return [_derivative(part, leaf, graph=True).detach() for part in sums]

    def _slope(self, w: Tensor, graph: bool) -> Tensor:
        if self.slope is not None:
            given = self.slope(w)
            if given.shape != w.shape:
                raise ValueError(f"slope must have the shape of w, {list(w.shape)}, not {list(given.shape)}")
            return given
        if self.value is None:
            raise ValueError("loss has neither value nor slope: give one of them, as in Loss(value=...)")
        return _derivative(self._values(self.value, w).sum(), w, graph)

    @staticmethod
    def _values(value: Callable[[Point], Tensor], w: Point) -> Tensor:
        result = value(w)
        first = w[0] if isinstance(w, tuple) else w
        count = len(first)
        if result.shape != (count,):
            raise ValueError(
                f"loss must give one number a point, shape [{count}], not {list(result.shape)}: sum the rest"
            )
        return result


LossLike = Loss | Callable[[Point], Tensor]


def _derivative(of: Tensor, by: Tensor, graph: bool) -> Tensor:
    """∂of/∂by, zeros where ``of`` does not depend on it."""
    if not of.requires_grad:
        return torch.zeros_like(by)
    (slope,) = torch.autograd.grad(of, by, create_graph=graph, retain_graph=True, allow_unused=True)
    if slope is None:
        return torch.zeros_like(by)
    return slope
