"""From the precision of weights to the covariance of outputs: J Λ⁻¹ Jᵀ for every example, without J if there is a way.

The gradients of output k of a Linear layer are g_k aᵀ. Where Λ⁻¹ = (U ⊗ V) diag(1/v) (U ⊗ V)ᵀ

    (J Λ⁻¹ Jᵀ)_kl = Σ_o (Uᵀ g_k)_o (Uᵀ g_l)_o z_o,    z_o = Σ_i (Vᵀ a)_i² / v_oi,

so that P numbers are never written out for an output. A diagonal Λ is the same with U = V = I.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import torch
from torch import Tensor, nn

from bayesrule import tracing
from bayesrule.curvature.forms import Outer, pieces
from bayesrule.curvature.jacobians import units
from bayesrule.curvature.parts import gradients
from bayesrule.curvature.watched import Forms, Watched
from bayesrule.data import Inputs, inputs
from bayesrule.structures import Blocks, Diagonal, Kronecker, Structure, Sum


def propagate(model: nn.Module, x: Inputs, precision: Structure, names: Sequence[str]) -> tuple[Tensor, Tensor]:
    """f(x) [B, ...] and J Λ⁻¹ Jᵀ [B, K, K] for K outputs of an example, Λ over the parameters ``names`` in their order.

    One backward pass for each output. The model is copied, and run in eval mode.

    >>> model = nn.Linear(2, 1, bias=False)
    >>> propagate(model, torch.tensor([[1.0, 2.0]]), Diagonal(torch.tensor([1.0, 4.0])), ["weight"])[1]
    tensor([[[2.]]])
    """
    with tracing.outside():
        watched = Watched(model, names)
    parts = _parts(precision, {name: watched.parameters[name] for name in names})
    found: list[Tensor] = []
    covariances: list[Tensor] = []
    for piece in _blocks(x, watched):
        outputs, columns = _recorded(watched, piece)
        found.append(outputs)
        covariances.append(_covariance(parts, outputs, columns))
    return torch.cat(found), torch.cat(covariances)


class Tangents:
    """f(x) and what J Λ⁻¹ Jᵀ takes of the model: for several Λ over the same parameters, with one pass for all.

    ``outputs``: f(x), [B, ...].

    >>> tangents = Tangents(nn.Linear(2, 1, bias=False), torch.tensor([[1.0, 2.0]]), ["weight"])
    >>> [float(tangents.covariance(Diagonal(torch.tensor(values)))) for values in ([1.0, 4.0], [1.0, 1.0])]
    [2.0, 5.0]
    """

    def __init__(self, model: nn.Module, x: Inputs, names: Sequence[str]) -> None:
        watched = Watched(model, names)
        self._parameters = {name: watched.parameters[name] for name in names}
        self._passes = [_recorded(watched, piece) for piece in _blocks(x, watched)]
        self.outputs = torch.cat([outputs for outputs, _ in self._passes])

    def covariance(self, precision: Structure) -> Tensor:
        """J Λ⁻¹ Jᵀ [B, K, K]."""
        parts = _parts(precision, self._parameters)
        return torch.cat([_covariance(parts, outputs, columns) for outputs, columns in self._passes])

    @torch.no_grad()
    def along(self, direction: Mapping[str, Tensor]) -> Tensor:
        """J d [B, K], for a direction d of the weights by name.

        >>> tangents = Tangents(nn.Linear(2, 1, bias=False), torch.tensor([[1.0, 2.0]]), ["weight"])
        >>> tangents.along({"weight": torch.tensor([[3.0, 1.0]])})
        tensor([[5.]])
        """
        found = []
        for outputs, columns in self._passes:
            each = [_directed(columns, name, d, len(outputs)) for name, d in direction.items()]
            found.append(torch.stack(each).sum(0))
        return torch.cat(found)


def _recorded(watched: Watched, x: Inputs) -> tuple[Tensor, list[Forms]]:
    """The outputs for some examples, and their gradients in the weights, one form for each output."""
    outputs = watched.run(x)
    columns: list[Forms] = []
    for some in watched.columns(outputs, units(outputs)):
        columns += some.forms
    watched.forget()
    return outputs.detach(), columns


@torch.no_grad()
def _covariance(parts: list[tuple[Structure, dict[str, Tensor]]], outputs: Tensor, columns: list[Forms]) -> Tensor:
    """Σ of J Λ⁻¹ Jᵀ over the parts of a precision."""
    total = outputs.new_zeros(outputs.shape[0], len(columns), len(columns))
    for part, own in parts:
        total += _along(part, own, columns, outputs.shape[0])
    return total


def _blocks(x: Inputs, watched: Watched) -> Iterator[Inputs]:
    """As many examples at a time as have room for the gradients of all outputs."""
    count = inputs.length(x)
    if tracing.active():
        yield x
        return
    if not count:
        raise ValueError("x must hold at least one example: got none")
    with torch.no_grad():
        width = watched.run(inputs.take(x, torch.arange(1)))[0].numel()
    watched.forget()
    step = max(1, inputs.block(x) // max(1, width))
    for rows in torch.split(torch.arange(count), step):
        yield inputs.take(x, rows)


def _parts(precision: Structure, parameters: Mapping[str, Tensor]) -> list[tuple[Structure, dict[str, Tensor]]]:
    """Every part of a precision with the parameters that it is over."""
    if isinstance(precision, Sum):
        return _parts(precision.root, parameters)
    if not isinstance(precision, Blocks):
        return [(precision, dict(parameters))]
    found: list[tuple[Structure, dict[str, Tensor]]] = []
    left = list(parameters.items())
    for part in precision.parts:
        own: dict[str, Tensor] = {}
        while left and sum(p.numel() for p in own.values()) < part.size:
            name, p = left.pop(0)
            own[name] = p
        found += _parts(part, own)
    return found


def _along(part: Structure, own: Mapping[str, Tensor], columns: list[Forms], examples: int) -> Tensor:
    """J Λ⁻¹ Jᵀ of one part."""
    if isinstance(part, Diagonal):
        variances = torch.split(part.variances, [p.numel() for p in own.values()])
        found = []
        for (name, p), v in zip(own.items(), variances, strict=True):
            rows = p.shape[0] if p.ndim else 1
            found.append(_diagonal(v.view(rows, -1), {name: p}, columns, examples))
        return torch.stack(found).sum(0)
    if isinstance(part, Kronecker):
        sides = _sides(columns, *own)
        if sides is not None:
            return _separate(part, *sides)
    return _written(part, own, columns, examples)


def _diagonal(variance: Tensor, own: Mapping[str, Tensor], columns: list[Forms], examples: int) -> Tensor:
    """Of one parameter with a variance for each number, [O, I]."""
    sides = _sides(columns, *own)
    if sides is None:
        return _written(Diagonal(1 / variance.flatten()), own, columns, examples)
    left, right = sides
    return _weighted(left, right.square() @ variance.T.to(right.dtype))


def _separate(part: Kronecker, left: Tensor, right: Tensor) -> Tensor:
    """Of a Linear layer, bias and all, from g [B, K, O] and a [B, I]."""
    if part.bias:
        right = torch.cat([right, right.new_ones(right.shape[0], 1)], 1)
    u, v, values = (each.to(right.dtype) for each in part.basis)
    return _weighted(left @ u, (right @ v).square() @ (1 / values).T)


def _weighted(left: Tensor, weights: Tensor) -> Tensor:
    """Σ_o left_ko left_lo weights_o for every example: [B, K, K] from [B, K, O] and [B, O]."""
    return (left * weights[:, None]) @ left.mT


def _sides(columns: list[Forms], name: str, *others: str) -> tuple[Tensor, Tensor] | None:
    """The g [B, K, O] and a [B, I] of a weight whose gradients are g_k aᵀ, if they are; other names are its bias."""
    if len(others) > 1:
        return None
    left: list[Tensor] = []
    right: Tensor | None = None
    for forms in columns:
        uses = forms.get(name, [])
        outer = uses[0] if len(uses) == 1 else None
        if not isinstance(outer, Outer):
            return None
        if right is None:
            right = outer.right
        if outer.right is not right:  # another input: a call for each column
            return None
        left.append(outer.left)
    assert right is not None, "there is at least one output"
    return torch.stack(left, 1), right


def _directed(columns: list[Forms], name: str, d: Tensor, examples: int) -> Tensor:
    """J d [B, K] of one pass, for a direction of one parameter."""
    sides = _sides(columns, name)
    if sides is not None:  # g_kᵀ D a
        left, right = sides
        return torch.einsum("bko,bo->bk", left, right @ d.reshape(len(d), -1).T.to(right.dtype))
    found = []
    for rows in pieces(examples, d.numel() * len(columns)):
        j = torch.stack([gradients(forms, {name: d}, rows) for forms in columns], 1)
        found.append(j @ d.flatten().to(j.dtype))
    return torch.cat(found)


def _written(part: Structure, own: Mapping[str, Tensor], columns: list[Forms], examples: int) -> Tensor:
    """With J written out, a few examples at a time."""
    found = []
    for rows in pieces(examples, part.size * len(columns)):
        j = torch.stack([gradients(forms, own, rows) for forms in columns], 1)
        found.append(part.variance_along(j))
    return torch.cat(found)
