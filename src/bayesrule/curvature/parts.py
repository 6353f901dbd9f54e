"""Sums of squares of gradients, Σ_k Σ_i g_ik g_ikᵀ, filled into a structure batch by batch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from bayesrule.curvature.forms import GradientForm, Outer, OuterSum, pieces, total
from bayesrule.curvature.watched import Columns, Forms
from bayesrule.structures import Dense, Diagonal, Kronecker, Structure


@dataclass(eq=False)
class Part:
    """The curvature of some parameters, whose numbers follow one another: a structure that is being filled in place.

    ``layer``: the layer that it is of, for messages. ``positions``: at how many positions examples used a weight.
    """

    parameters: Mapping[str, Tensor]
    structure: Structure
    layer: str = ""
    positions: int = 0

    def add(self, columns: Columns) -> None:
        """Some columns of one pass more."""
        if isinstance(self.structure, Kronecker):
            _add_products(self, self.structure, columns)
        elif isinstance(self.structure, Dense):
            _add_dense(self.parameters, self.structure.matrix, columns)
        else:
            add_squares(self.parameters, self.structure.diagonal, columns)

    def result(self) -> Structure:
        """What has come together: for a Kronecker product the mean of a aᵀ over all positions on the right."""
        found = self.structure
        if isinstance(found, Kronecker):
            found = Kronecker.of(found.lefts[0], found.rights[0] / max(1, self.positions), found.bias)
        check_finite(self.parameters, found.diagonal)
        return found


def diagonal(parameters: Mapping[str, Tensor]) -> Part:
    """Number by number."""
    return Part(parameters, Diagonal(zeros(_first(parameters), _size(parameters))))


def dense(parameters: Mapping[str, Tensor]) -> Part:
    """Every number with every other."""
    size = _size(parameters)
    return Part(parameters, Dense(zeros(_first(parameters), size, size)))


def kronecker(layer: str, parameters: Mapping[str, Tensor]) -> Part:
    """B = Σ_k Σ_i Σ_t g_ikt g_iktᵀ and A = the mean over i and t of a_it a_itᵀ, for a layer with W = Σ_t g_t a_tᵀ.

    Each of the T positions at which an example uses the weight counts as an example of its own ("expand"). a is the
    layer's input, a patch of it for convolutions, with a 1 at its end if there is a bias.
    """
    weight, bias = _first(parameters), len(parameters) > 1
    rows, columns = len(weight), weight[0].numel() + bias
    factors = zeros(weight, rows, rows), zeros(weight, columns, columns)
    return Part(parameters, Kronecker.of(*factors, bias), layer)


def check_finite(names: Mapping[str, object], values: Tensor) -> None:
    """Refuse a curvature that overflowed, by the names of its parameters."""
    if not bool(values.isfinite().all()):
        raise FloatingPointError(f"the curvature of {', '.join(names)} is not finite: scale the inputs, or use doubles")


def _first(parameters: Mapping[str, Tensor]) -> Tensor:
    return next(iter(parameters.values()))


def _size(parameters: Mapping[str, Tensor]) -> int:
    return sum(p.numel() for p in parameters.values())


def zeros(like: Tensor, *shape: int) -> Tensor:
    """Zeros in the dtype of sums: float64 for float64, float32 for all others."""
    dtype = torch.float64 if like.dtype == torch.float64 else torch.float32
    return torch.zeros(shape, dtype=dtype, device=like.device)


def add_squares(parameters: Mapping[str, Tensor], values: Tensor, columns: Columns) -> None:
    """values += Σ_k Σ_i g_ik², number by number."""
    parts = torch.split(values, [p.numel() for p in parameters.values()])
    for (name, p), part in zip(parameters.items(), parts, strict=True):
        found = [forms[name] for forms in columns.forms if name in forms]
        once = all(len(uses) == 1 for uses in found)
        if found and once:
            part += squares([uses[0] for uses in found]).flatten()
            continue
        for uses in found:  # a parameter that is used several times: its gradients are added, then squared
            part += total(uses, columns.examples, p.shape, 1.0, None).flatten()


def squares(columns: Sequence[GradientForm]) -> Tensor:
    """Σ_k Σ_i g_ik² over forms of one parameter; in one go where they share the layer's input.

    >>> x, shape = torch.tensor([[1.0, 2.0]]), torch.Size([1, 2])
    >>> squares([Outer(torch.tensor([[3.0]]), x, shape), Outer(torch.tensor([[4.0]]), x, shape)])
    tensor([[ 25., 100.]])
    """
    first = columns[0]
    if len(columns) == 1 or not isinstance(first, Outer | OuterSum):
        return _each(columns)
    left = []
    for form in columns:
        if not isinstance(form, Outer | OuterSum) or form.right is not first.right:
            return _each(columns)
        left.append(form.left)
    if isinstance(first, Outer):
        return _outer(left, first.right, first.shape)
    if first.left.shape[1] == first.left.shape[3] == 1:
        return _outer([part.flatten(1) for part in left], first.right.flatten(1), first.shape)
    groups, width = first.left.shape[1:3]
    shape = torch.Size([groups, len(left) * width, first.right.shape[2]])
    found = OuterSum(torch.cat(left, 2), first.right, shape).squares()
    return found.view(groups, len(left), width, -1).sum(1).view(first.shape)


def _each(columns: Sequence[GradientForm]) -> Tensor:
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


def _add_dense(parameters: Mapping[str, Tensor], matrix: Tensor, columns: Columns) -> None:
    """matrix += Σ_k Σ_i g_ik g_ikᵀ, as many examples at a time as there is room."""
    for rows in pieces(columns.examples, len(matrix) * len(columns.forms)):
        g = torch.cat([gradients(forms, parameters, rows) for forms in columns.forms])
        matrix.addmm_(g.T, g)


def gradients(forms: Forms, parameters: Mapping[str, Tensor], rows: slice) -> Tensor:
    """The gradients of some examples for one column, written out side by side: [len(rows), P]."""
    parts = []
    for name, p in parameters.items():
        uses = forms.get(name, [])
        if not uses:
            parts.append(zeros(p, rows.stop - rows.start, p.numel()))
            continue
        found = uses[0].gradients(rows)
        for form in uses[1:]:
            found = found + form.gradients(rows)
        parts.append(found.reshape(found.shape[0], -1))
    return torch.cat(parts, 1)


def _add_products(part: Part, structure: Kronecker, columns: Columns) -> None:
    """The products of some columns; those of the inputs once in each pass."""
    weight = next(iter(part.parameters))
    found = [_sides(part.layer, forms[weight]) for forms in columns.forms if weight in forms]
    if not found:
        return
    outputs, inputs = structure.lefts[0], structure.rights[0]
    if found[0][0].shape[2] == 1:  # one product for all columns: these are small
        outputs += _gram(torch.cat([left for left, _ in found]))
    else:
        for left, _ in found:
            outputs += _gram(left)
    if columns.first:  # the inputs of a pass are the same for all of its columns
        _add_inputs(inputs, found[0][1])
        part.positions += len(found[0][1]) * found[0][1].shape[2]


def _add_inputs(inputs: Tensor, right: Tensor) -> None:
    """inputs += Σ a aᵀ of right [B, I, T]; where there is one column more than inputs, a has a 1 at its end."""
    width = right.shape[1]
    inputs[:width, :width] += _gram(right)
    if len(inputs) > width:
        sums = right.sum((0, 2))
        inputs[:width, width] += sums
        inputs[width, :width] += sums
        inputs[width, width] += len(right) * right.shape[2]


def _sides(layer: str, forms: list[GradientForm]) -> tuple[Tensor, Tensor]:
    """The two sides of the gradients of a weight, [B, O, T] and [B, I, T]."""
    if len(forms) > 1:
        raise RuntimeError(
            f"layer {layer!r} is called {len(forms)} times in this batch but was called once in the first: a "
            "Kronecker form is for one call; take structure='diagonal', or make the first batch a typical one"
        )
    (form,) = forms
    if isinstance(form, Outer):
        return form.left.unsqueeze(2), form.right.unsqueeze(2)
    assert isinstance(form, OuterSum)
    return form.left[:, 0], form.right[:, 0]


def _gram(x: Tensor) -> Tensor:
    """Σ_b Σ_t x_bt x_btᵀ of x [B, K, T], without a copy of x where its memory allows.

    >>> _gram(torch.tensor([[[1.0, 2.0]], [[3.0, 0.0]]]))
    tensor([[14.]])
    """
    if x.transpose(0, 1).is_contiguous():
        columns = x.transpose(0, 1).flatten(1)
        return columns @ columns.T
    if x.shape[1] <= x.shape[2]:  # by example, as these products are smaller than x
        return torch.bmm(x, x.transpose(1, 2)).sum(0)
    rows = x.transpose(1, 2).flatten(0, 1)
    return rows.T @ rows
