"""Per-example gradients of one parameter, in the form in which a layer gives them.

For a parameter of shape P and a batch of B examples the gradients are g_1, …, g_B, a tensor [B, *P]. It is written out
only where there is no way around it, and then a few examples at a time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from bayesrule import tracing

ROOM = 2**24
"""Numbers of per-example gradients that are written out at a time (64 MB in float32)."""


class GradientForm(Protocol):
    """The gradients of one parameter for every example of a batch."""

    def gradients(self, rows: slice) -> Tensor:
        """Those of some examples, written out: [len(rows), *P]."""

    def squares(self, factor: float = 1.0, out: Tensor | None = None) -> Tensor:
        """factor·Σ_i g_i², of the parameter's shape; in ``out``, a contiguous tensor of that shape, if given."""


def wide(tensor: Tensor) -> Tensor:
    """In float32 at least: squares of half-precision numbers overflow and vanish."""
    if tensor.dtype in (torch.float32, torch.float64):
        return tensor
    return tensor.float()


def pieces(examples: int, numbers: int) -> Iterator[slice]:
    """The examples in slices that fit into `ROOM` when each takes so many numbers.

    >>> list(pieces(5, ROOM // 2))
    [slice(0, 2, None), slice(2, 4, None), slice(4, 5, None)]
    """
    if tracing.active():
        return iter([slice(0, examples)])
    size = max(1, ROOM // max(1, numbers))
    return (slice(start, min(start + size, examples)) for start in range(0, examples, size))


def total(forms: Sequence[GradientForm], examples: int, shape: torch.Size, factor: float, out: Tensor | None) -> Tensor:
    """factor·Σ_i (Σ_u g_iu)²: squares of what the uses u of one parameter give together, example by example."""
    if len(forms) == 1:
        return forms[0].squares(factor, out)

    def gradients(rows: slice) -> Tensor:
        found = forms[0].gradients(rows)
        for form in forms[1:]:
            found = found + form.gradients(rows)
        return found

    return _summed(gradients, examples, shape, out).mul_(factor)


def _summed(gradients: Callable[[slice], Tensor], examples: int, shape: torch.Size, out: Tensor | None) -> Tensor:
    """Σ_i g_i² from gradients that are written out, a piece of the examples at a time."""
    sums: Tensor | None = None
    for rows in pieces(examples, shape.numel()):
        squares = gradients(rows).square_()
        squares = squares.view(len(squares), -1)
        if sums is None:
            sums = _sum(squares, out)
        else:
            sums.add_(squares.sum(0))
    assert sums is not None
    return sums.view(shape)


def _sum(values: Tensor, out: Tensor | None) -> Tensor:
    """The sum over the first dimension."""
    if out is None:
        return values.sum(0)
    return torch.sum(values, 0, out=out.view(values.shape[1:]))


@dataclass(frozen=True)
class Explicit:
    """Gradients that are small enough to be held: [B, *P].

    >>> Explicit(torch.tensor([[1.0, 2.0], [3.0, 4.0]])).squares()
    tensor([10., 20.])
    """

    values: Tensor

    def gradients(self, rows: slice) -> Tensor:
        """As they are."""
        return self.values[rows]

    def squares(self, factor: float = 1.0, out: Tensor | None = None) -> Tensor:
        """factor·Σ_i g_i²."""
        return _sum(self.values.square(), out).mul_(factor)


@dataclass(frozen=True)
class Outer:
    """Gradients of a weight that each example uses once: g_i = left_i right_iᵀ, with ``left`` [B, O], ``right`` [B, K].

    Their squares are (left∘left)ᵀ(right∘right), one product of matrices.

    >>> Outer(torch.tensor([[1.0], [2.0]]), torch.tensor([[1.0, 0.0], [3.0, 1.0]]), torch.Size([1, 2])).squares()
    tensor([[37.,  4.]])
    """

    left: Tensor
    right: Tensor
    shape: torch.Size

    def gradients(self, rows: slice) -> Tensor:
        """One matrix for each example."""
        return torch.einsum("bo,bk->bok", self.left[rows], self.right[rows]).view(-1, *self.shape)

    def squares(self, factor: float = 1.0, out: Tensor | None = None) -> Tensor:
        """factor·Σ_i g_i²."""
        left, right = self.left.square().t_(), self.right.square()
        if out is None:
            out = left.new_empty(self.shape)
        flat = out.view(len(left), -1)
        torch.addmm(flat, left, right, beta=0, alpha=factor, out=flat)  # beta = 0: what is there is not read
        return out


@dataclass(frozen=True)
class OuterSum:
    """Gradients of a weight that an example uses at positions t: g_i = Σ_t left_i[:, t] right_i[:, t]ᵀ, by group.

    ``left`` [B, groups, O, T] and ``right`` [B, groups, K, T].

    >>> left, right = torch.ones(2, 1, 3, 5), torch.ones(2, 1, 4, 5)
    >>> OuterSum(left, right, torch.Size([3, 4])).squares()[0]
    tensor([50., 50., 50., 50.])
    """

    left: Tensor
    right: Tensor
    shape: torch.Size

    def gradients(self, rows: slice) -> Tensor:
        """One small product for each example and group."""
        left, right = self.left[rows], self.right[rows]
        products = torch.bmm(left.flatten(0, 1), right.flatten(0, 1).transpose(1, 2))
        return products.view(left.shape[0], *self.shape)

    def squares(self, factor: float = 1.0, out: Tensor | None = None) -> Tensor:
        """factor·Σ_i g_i², without the gradients if each example uses the weight at one position."""
        if self.left.shape[1] == self.left.shape[3] == 1:
            return Outer(self.left.flatten(1), self.right.flatten(1), self.shape).squares(factor, out)
        return _summed(self.gradients, len(self.left), self.shape, out).mul_(factor)


@dataclass(frozen=True)
class Rows:
    """Gradients of a table whose rows are looked up: g_i[v] = Σ_t 1[index_i[t] = v] values_i[t].

    ``index`` [B, T], ``values`` [B, T, D]; a row that an example reads several times has its gradients added first.

    >>> index, values = torch.tensor([[0, 0], [0, 1]]), torch.ones(2, 2, 1)
    >>> Rows(index, values, 3).squares().flatten()
    tensor([5., 1., 0.])
    """

    index: Tensor
    values: Tensor
    count: int

    def gradients(self, rows: slice) -> Tensor:
        """One table for each example."""
        index, values = self.index[rows], self.values[rows]
        examples, width = len(index), values.shape[-1]
        tables = values.new_zeros(examples * self.count, width)
        return tables.index_add_(0, self._keys(index), values.reshape(-1, width)).view(examples, self.count, width)

    def squares(self, factor: float = 1.0, out: Tensor | None = None) -> Tensor:
        """factor·Σ_i g_i², over the pairs of example and row that occur."""
        width = self.values.shape[-1]
        # only the rows that were read: a table of all examples would be B times as large as the parameter
        pairs, inverse = torch.unique(self._keys(self.index), return_inverse=True)
        sums = self.values.new_zeros(len(pairs), width).index_add_(0, inverse, self.values.reshape(-1, width))
        table = self.values.new_zeros(self.count, width) if out is None else out.zero_()
        return table.index_add_(0, pairs % self.count, sums.square_(), alpha=factor)

    def _keys(self, index: Tensor) -> Tensor:
        examples = torch.arange(len(index), device=index.device)[:, None]
        return (examples * self.count + index).flatten()
