"""Sums of squares of gradients, Σ_k Σ_i g_ik g_ikᵀ, in one structure each; added up batch by batch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

import torch
from torch import Tensor

from bayesrule.curvature.blocks import Block, DenseBlock, DiagonalBlock, KroneckerBlock
from bayesrule.curvature.forms import Form, Outer, Product, pieces, total
from bayesrule.curvature.watched import Columns, Forms


class Sum(Protocol):
    """A block that is being added up."""

    def add(self, columns: Columns) -> None:
        """Some columns of one pass more."""

    def block(self) -> Block:
        """What has come together."""


def zeros(like: Tensor, *shape: int) -> Tensor:
    """Zeros in the dtype of sums: float64 for float64, float32 for all others."""
    dtype = torch.float64 if like.dtype == torch.float64 else torch.float32
    return torch.zeros(shape, dtype=dtype, device=like.device)


class DiagonalSum:
    """Σ_k Σ_i g_ik², number by number."""

    def __init__(self, parameters: Mapping[str, Tensor]) -> None:
        self.parameters = parameters
        first = next(iter(parameters.values()))
        self.values = zeros(first, sum(p.numel() for p in parameters.values()))
        self.parts = dict(
            zip(parameters, torch.split(self.values, [p.numel() for p in parameters.values()]), strict=True)
        )

    def add(self, columns: Columns) -> None:
        """The squares of some columns."""
        for name, p in self.parameters.items():
            found = [forms[name] for forms in columns.forms if name in forms]
            if not found:
                continue
            if all(len(forms) == 1 for forms in found):
                self.parts[name] += squares([forms[0] for forms in found]).flatten()
                continue
            for forms in found:  # a parameter that is used several times: its gradients are added, then squared
                self.parts[name] += total(forms, columns.examples, p.shape, 1.0, None).flatten()

    def block(self) -> DiagonalBlock:
        """The sums."""
        return DiagonalBlock(tuple(self.parameters), self.values)


def squares(columns: Sequence[Form]) -> Tensor:
    """Σ_k Σ_i g_ik² over forms of one parameter; in one go where they share the layer's input.

    >>> x, shape = torch.tensor([[1.0, 2.0]]), torch.Size([1, 2])
    >>> squares([Outer(torch.tensor([[3.0]]), x, shape), Outer(torch.tensor([[4.0]]), x, shape)])
    tensor([[ 25., 100.]])
    """
    first = columns[0]
    if len(columns) == 1 or not isinstance(first, Outer | Product):
        return _each(columns)
    rest = [form for form in columns[1:] if type(form) is type(first) and form.right is first.right]
    if len(rest) < len(columns) - 1:
        return _each(columns)
    left = [first.left, *(form.left for form in rest)]
    if isinstance(first, Outer):
        return _outer(left, first.right, first.shape)
    if first.left.shape[1] == first.left.shape[3] == 1:
        return _outer([part.flatten(1) for part in left], first.right.flatten(1), first.shape)
    groups, width = first.left.shape[1:3]
    shape = torch.Size([groups, len(left) * width, first.right.shape[2]])
    found = Product(torch.cat(left, 2), first.right, shape).squares()
    return found.view(groups, len(left), width, -1).sum(1).view(first.shape)


def _each(columns: Sequence[Form]) -> Tensor:
    found = columns[0].squares()
    for form in columns[1:]:
        found += form.squares()
    return found


def _outer(left: list[Tensor], right: Tensor, shape: torch.Size) -> Tensor:
    """Σ_k (left_k∘left_k)ᵀ(right∘right): the squares on the left are added before the product."""
    sums = left[0].square()
    for part in left[1:]:
        sums.addcmul_(part, part)
    return (sums.T @ right.square()).view(shape)


class DenseSum:
    """Σ_k Σ_i g_ik g_ikᵀ over all of some parameters."""

    def __init__(self, parameters: Mapping[str, Tensor]) -> None:
        self.parameters = parameters
        size = sum(p.numel() for p in parameters.values())
        self.matrix = zeros(next(iter(parameters.values())), size, size)

    def add(self, columns: Columns) -> None:
        """The products of some columns, as many examples at a time as there is room."""
        for rows in pieces(columns.examples, len(self.matrix) * len(columns.forms)):
            g = torch.cat([gradients(forms, self.parameters, rows) for forms in columns.forms])
            self.matrix.addmm_(g.T, g)

    def block(self) -> DenseBlock:
        """The sums."""
        return DenseBlock(tuple(self.parameters), self.matrix)


def gradients(forms: Forms, parameters: Mapping[str, Tensor], rows: slice) -> Tensor:
    """The gradients of some examples for one column, written out side by side: [len(rows), P]."""
    parts = []
    for name, p in parameters.items():
        uses = forms.get(name, [])
        found = uses[0].gradients(rows) if uses else zeros(p, rows.stop - rows.start, *p.shape)
        for form in uses[1:]:
            found = found + form.gradients(rows)
        parts.append(found.reshape(len(found), -1))
    return torch.cat(parts, 1)


class KroneckerSum:
    """B = Σ_k Σ_i Σ_t g_ikt g_iktᵀ and A = the mean over i and t of a_it a_itᵀ, for a layer with W = Σ_t g_t a_tᵀ.

    Each of the T positions at which an example uses the weight counts as an example of its own ("expand"). a is the
    layer's input, a patch of it for convolutions, with a 1 at its end if there is a bias.
    """

    def __init__(self, layer: str, parameters: Mapping[str, Tensor]) -> None:
        self.layer, self.parameters = layer, parameters
        self.weight, *bias = parameters
        weight = parameters[self.weight]
        self.bias = bool(bias)
        wide = weight[0].numel()
        self.outputs, self.second = zeros(weight, len(weight), len(weight)), zeros(weight, wide, wide)
        self.first, self.count = zeros(weight, wide), 0

    def add(self, columns: Columns) -> None:
        """The products of some columns; those of the inputs once in each pass."""
        found = [self._sides(forms[self.weight]) for forms in columns.forms if self.weight in forms]
        if not found:
            return
        if found[0][0].shape[2] == 1:
            self.outputs += _gram(torch.cat([left for left, _ in found]))
        else:
            for left, _ in found:
                self.outputs += _gram(left)
        if columns.first:
            right = found[0][1]
            self.second += _gram(right)
            self.first += right.sum((0, 2))
            self.count += len(right) * right.shape[2]

    def _sides(self, forms: list[Form]) -> tuple[Tensor, Tensor]:
        """The two sides of the gradients, [B, O, T] and [B, I, T]."""
        if len(forms) > 1:
            raise RuntimeError(
                f"layer {self.layer!r} is called {len(forms)} times in this batch but was called once in the first: a "
                "Kronecker form is for one call; take structure='diagonal', or make the first batch a typical one"
            )
        (form,) = forms
        if isinstance(form, Outer):
            return form.left.unsqueeze(2), form.right.unsqueeze(2)
        assert isinstance(form, Product)
        return form.left[:, 0], form.right[:, 0]

    def block(self) -> KroneckerBlock:
        """The factors."""
        count = max(1, self.count)
        inputs = self.second / count
        if self.bias:
            mean = self.first / count
            inputs = torch.cat([torch.cat([inputs, mean[:, None]], 1), torch.cat([mean, mean.new_ones(1)])[None]])
        return KroneckerBlock(tuple(self.parameters), self.outputs, inputs, self.bias)


def _gram(x: Tensor) -> Tensor:
    """Σ_b Σ_t x_bt x_btᵀ of x [B, K, T]: by example where the products are smaller than x, otherwise in one product.

    >>> _gram(torch.tensor([[[1.0, 2.0]], [[3.0, 0.0]]]))
    tensor([[14.]])
    """
    if x.transpose(0, 1).is_contiguous():
        columns = x.transpose(0, 1).flatten(1)
        return columns @ columns.T
    if x.shape[1] <= x.shape[2]:
        return torch.bmm(x, x.transpose(1, 2)).sum(0)
    rows = x.transpose(1, 2).flatten(0, 1)
    return rows.T @ rows
