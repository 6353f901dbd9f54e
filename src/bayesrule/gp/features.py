"""The features of a linearised network, A(x) = J(x) diag(s), and their products.

A network linearised at w* is f(x) ≈ f_{w*}(x) + J(x)(w − w*). Under w ~ N(m, diag s²) it is a Gaussian process with the
kernel A(x) A(x')ᵀ. The features of all examples are P numbers for each output of each example; they are made a few
parameters and examples at a time, and never kept.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal, TypeAlias, get_args

import torch
from torch import Tensor, nn

from bayesrule import modules
from bayesrule.curvature import check_memory, check_outputs, jacobians
from bayesrule.data import Inputs, inputs
from bayesrule.modules import Parameters
from bayesrule.naming import unknown

Aggregate = Literal["full", "class", "sum"]
AGGREGATES: tuple[str, ...] = get_args(Aggregate)
Piece: TypeAlias = tuple[slice, Tensor]  # which examples, and their features
ROOM = 2**26
"""Numbers that features may take at a time."""
_SUMS = {"full": "ncp,mdp->ncmd", "class": "ncp,mcp->cnm", "sum": "ncp,mcp->nm"}
_FEWER = "take fewer examples at a time, or aggregate='sum'"


class Features:
    """A(x) = J(x) diag(s) of the parameters ``names`` of a model, [N, C, P]; the model is in eval mode and double.

    >>> features = Features(nn.Linear(2, 1).double(), ["weight", "bias"], torch.tensor([1.0, 1.0, 10.0]).double(), 1)
    >>> features.gram(torch.eye(2).double(), torch.eye(2).double(), "sum")  # x·x' + 100
    tensor([[101., 100.],
            [100., 101.]], dtype=torch.float64)
    """

    def __init__(self, model: nn.Module, names: list[str], scale: Tensor, width: int) -> None:
        self.model, self.scale, self.width = model, scale, width
        known = modules.parameters(model)
        self.parameters: Parameters = {name: known[name] for name in names}

    @property
    def room(self) -> int:
        """Numbers that anything may take at a time."""
        return ROOM

    def times(self, x: Inputs, vector: Tensor) -> Tensor:
        """A(x) v, [N, C]."""
        found = self.scale.new_zeros(inputs.length(x), self.width)
        for names, part in self._groups(len(found)):
            for rows, piece in self.pieces(x, names, part):
                found[rows] += piece @ vector[part]
        return found

    def pull(self, x: Inputs, gradient: Tensor) -> Tensor:
        """Σ_i A(x_i)ᵀ g_i for gradients of the outputs [N, C], [P]: one backward pass."""
        found = torch.zeros_like(self.scale)
        weights = list(self.parameters.values())
        for rows in _blocks(x, inputs.block(x)):
            with torch.enable_grad():
                f = modules.call(self.model, _rows(x, rows))
            if f.requires_grad:
                above = gradient[rows].reshape(f.shape)
                pulled = torch.autograd.grad(f, weights, above, allow_unused=True, materialize_grads=True)
                found += torch.cat([g.flatten() for g in pulled])
        return self.scale * found

    def own(self, x: Inputs) -> Tensor:
        """A(x_i) A(x_i)ᵀ of each example with itself, [N, C, C]."""
        found = self.scale.new_zeros(inputs.length(x), self.width, self.width)
        for names, part in self._groups(len(found)):
            for rows, piece in self.pieces(x, names, part):
                found[rows] += piece @ piece.mT
        return found

    def gram(self, x: Inputs, z: Inputs, aggregate: Aggregate, units: Tensor | None = None) -> Tensor:
        """The kernel A(x) A(z)ᵀ: all of it, [N, C, M, C]; of each output, [C, N, M]; or summed over them, [N, M].

        ``units``: what each output is multiplied by, [C].
        """
        if aggregate not in _SUMS:
            raise unknown("aggregate", aggregate, AGGREGATES)
        n, m, c = inputs.length(x), inputs.length(z), self.width
        shape = {"full": (n, c, m, c), "class": (c, n, m), "sum": (n, m)}[aggregate]
        what = f"the kernel of {n:,} and {m:,} examples with {c:,} outputs, aggregate={aggregate!r},"
        check_memory(what, torch.Size(shape).numel(), self.scale, _FEWER)
        found = self.scale.new_zeros(shape)
        if units is None:
            units = self.scale.new_ones(c)
        # The kernel is a sum over parameters, so that only a group of them is held at a time; each Jacobian of x is
        # worked out once, those of z once for every piece of x.
        for names, part in self._groups(n if x is z else n + m):
            for rows, left in self.pieces(x, names, part):
                left *= units[:, None]
                for columns, right in self._partners(rows, left, x, z, names, part):
                    if right is not left:
                        right *= units[:, None]
                    piece = torch.einsum(_SUMS[aggregate], left, right)
                    _block(found, aggregate, rows, columns).add_(piece)
                    if x is z and columns != rows:
                        _block(found, aggregate, columns, rows).add_(_mirrored(piece, aggregate))
        return found

    def _partners(
        self, rows: slice, left: Tensor, x: Inputs, z: Inputs, names: list[str], part: slice
    ) -> Iterator[Piece]:
        """What some examples of x are multiplied with: all of z; if z is x, themselves and those after them."""
        if x is not z:
            yield from self.pieces(z, names, part)
            return
        yield rows, left
        done = rows.start + len(left)
        for columns, right in self.pieces(_rows(x, slice(done, None)), names, part):
            yield slice(done + columns.start, done + columns.stop), right

    def _groups(self, examples: int) -> Iterator[tuple[list[str], slice]]:
        """Parameters that follow one another, and their slice of the flat vector: as many as there is room for."""
        most = ROOM // max(1, examples * self.width)
        names: list[str] = []
        start = end = 0
        for name, p in self.parameters.items():
            if names and end + p.numel() - start > most:
                yield names, slice(start, end)
                names, start = [], end
            names.append(name)
            end += p.numel()
        yield names, slice(start, end)

    def pieces(self, x: Inputs, names: list[str] | None = None, part: slice = slice(None)) -> Iterator[Piece]:
        """The features of some parameters (of all), [n, C, p], for as many examples at a time as there is room for."""
        names, scale = names or list(self.parameters), self.scale[part]
        # twice their size: a piece of x is held beside one of z
        for rows in _blocks(x, max(1, ROOM // max(1, 2 * self.width * len(scale)))):
            yield rows, jacobians(self.model, _rows(x, rows), names).mul_(scale)


def outputs(model: nn.Module, x: Inputs) -> Tensor:
    """f_{w*}(x), in the shape that the network gives it; an error that names the layer if it is not finite."""
    found = []
    for rows in _blocks(x, inputs.block(x)):
        part = _rows(x, rows)
        with torch.no_grad():
            found.append(modules.try_call(model, part))
        check_outputs(model, part, found[-1])
    return torch.cat(found)


def _block(kernel: Tensor, aggregate: str, rows: slice, columns: slice) -> Tensor:
    if aggregate == "full":
        return kernel[rows, :, columns]
    return kernel[..., rows, columns]


def _mirrored(piece: Tensor, aggregate: str) -> Tensor:
    """The same block on the other side of the diagonal."""
    if aggregate == "full":
        return piece.permute(2, 3, 0, 1)
    return piece.mT


def _blocks(x: Inputs, size: int) -> Iterator[slice]:
    for start in range(0, inputs.length(x), size):
        yield slice(start, start + size)


def _rows(x: Inputs, rows: slice) -> Inputs:
    """Some examples, in double precision."""
    return inputs.to(inputs.each(lambda t: t[rows], x), torch.float64)
