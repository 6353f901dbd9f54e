"""The curvature of a last layer, dense or as a Kronecker product, without a backward pass.

With outputs f = W a, a the layer's input (and a 1 for the bias), the Jacobian in W is I ⊗ aᵀ, so that

    Σ_i J_iᵀ Λ_i J_i = Σ_i Λ_i ⊗ a_i a_iᵀ.

The block of the outputs c and d is Σ_i Λ_i[c, d] a_i a_iᵀ: one product of matrices for each pair c < d, and for c = d
where the rows of Λ do not add up to zero, as they do for classes. Examples whose share in a block is lost in rounding
are left out of it: the smallest |Λ_i[c, d]|·|a_i|² as long as they add up to no more than

    ε·√(Σ_j Λ_j[c, c]|a_j|² · Σ_j Λ_j[d, d]|a_j|²),    ε the precision of the numbers.

A network that is sure of most examples has many of them.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from bayesrule.curvature.forms import wide
from bayesrule.curvature.parts import check_finite, zeros
from bayesrule.curvature.records import Use
from bayesrule.curvature.rules import separates
from bayesrule.curvature.watched import Watched, unshaped
from bayesrule.structures import Dense, Kronecker

WAIT = 4096
"""Examples that are gathered before they are added: the sums are large, and going through them takes time."""
ROWS = 512
"""Examples in one product, few enough for the processor's own memory."""
TILE = 128
"""Columns of a symmetric product that are computed at a time, down to its diagonal and no further."""


def head(watched: Watched, outputs: Tensor) -> Use | None:
    """The call of a Linear layer that gave these outputs [B, C] or [B], if all parameters are its own; else None."""
    uses = [use for use in watched.uses if use.owned]
    if len(uses) != 1 or not isinstance(uses[0].layer, nn.Linear) or not separates(uses[0].layer, uses[0].rule):
        return None
    (use,) = uses
    layer, edge = use.layer, watched.watches[use].edges.get(0)
    assert isinstance(layer, nn.Linear)
    if edge is None or use.inputs[0].ndim != 2 or outputs.numel() != len(outputs) * layer.out_features:
        return None
    if edge.node is not outputs.grad_fn and (layer.out_features > 1 or edge.node not in unshaped(outputs)):
        return None  # a change of shape may put several outputs in another order, but not a single one
    if "weight" not in use.owned or set(watched.names(use).values()) != set(watched.parameters):
        return None
    return use


class Head:
    """Σ_i Λ_i ⊗ a_i a_iᵀ, as the upper blocks c ≤ d and their upper triangles.

    Those with c = d hold Σ_i (Σ_d Λ_i[c, d]) a_i a_iᵀ until the end, when the blocks beside them are taken off again:
    for classes the rows of Λ add up to zero, and C products less are needed.

    >>> sums = Head({"weight": torch.zeros(1, 2), "bias": torch.zeros(1)})
    >>> sums.add(torch.tensor([[2.0, 3.0]]), torch.tensor([[[10.0]]]))
    >>> sums.result().matrix
    tensor([[40., 60., 20.],
            [60., 90., 30.],
            [20., 30., 10.]])
    """

    def __init__(self, parameters: Mapping[str, Tensor]) -> None:
        self.parameters = parameters
        weight, *bias = parameters.values()
        self.bias, (self.width, self.inputs) = bool(bias), weight.shape
        self.pairs = [(c, d) for c in range(self.width) for d in range(c, self.width)]
        side = self.inputs + self.bias
        self.sums = zeros(weight, len(self.pairs), side, side)
        self._waiting: list[tuple[Tensor, Tensor]] = []

    def add(self, features: Tensor, hessian: Tensor) -> None:
        """Inputs [B, I] of the layer and Λ [B, C, C]."""
        a = wide(features)
        if self.bias:
            a = torch.cat([a, a.new_ones(len(a), 1)], 1)
        self._waiting.append((a, wide(hessian)))
        if sum(len(a) for a, _ in self._waiting) >= WAIT:
            self._flush()

    @torch.no_grad()
    def _flush(self) -> None:
        if not self._waiting:
            return
        a = torch.cat([features for features, _ in self._waiting])
        hessian = torch.cat([each for _, each in self._waiting])
        self._waiting = []
        first, second = torch.tensor(self.pairs, device=a.device).unbind(1)
        weights = hessian[:, first, second].T.contiguous()
        weights[first == second] = _row_sums(hessian).T  # see the class: the others are taken off at the end
        needed = _needed(a, hessian, weights, first, second)
        for sums, values, index in zip(self.sums, weights, needed, strict=True):
            if len(index) == len(a):  # no copy of all rows
                _add_gram(sums, a, values)
            elif len(index):
                _add_gram(sums, a.index_select(0, index), values[index])

    def result(self) -> Dense:
        """The matrix in the order of the parameters: weight, then bias."""
        self._flush()
        width, count = self.width, self.inputs
        cut = width * count
        matrix = self.sums.new_empty(width * (count + self.bias), width * (count + self.bias))
        # views of the matrix: [c, input, d, input] of the weight, and [c, input, d] between weight and bias
        weights = torch.unflatten(torch.unflatten(matrix[:cut, :cut], 0, (width, count)), 2, (width, count))
        across = torch.unflatten(matrix[:cut, cut:], 0, (width, count))
        for index, (c, d) in enumerate(self.pairs):
            sums = self.sums[index]
            if c == d:
                sums = sums - self._beside(c)
            whole = sums.triu() + sums.triu(1).T
            weights[c, :, d] = weights[d, :, c] = whole[:count, :count]
            if self.bias:
                across[c, :, d] = across[d, :, c] = whole[:count, count]
                matrix[cut + c, cut + d] = matrix[cut + d, cut + c] = whole[count, count]
        if self.bias:
            matrix[cut:, :cut] = matrix[:cut, cut:].T
        check_finite(self.parameters, matrix)
        return Dense(matrix)

    def _beside(self, c: int) -> Tensor | int:
        """Σ_{d ≠ c} of the blocks (c, d); a lone output has none."""
        return sum(self.sums[index] for index, pair in enumerate(self.pairs) if c in pair and pair != (c, c))


class KroneckerHead:
    """(Σ_i Λ_i) ⊗ (1/n Σ_i a_i a_iᵀ), what a Kronecker product keeps of Σ_i Λ_i ⊗ a_i a_iᵀ.

    >>> sums = KroneckerHead({"weight": torch.zeros(1, 2), "bias": torch.zeros(1)})
    >>> sums.add(torch.tensor([[2.0, 3.0]]), torch.tensor([[[10.0]]]))
    >>> sums.result().dense()[0]
    tensor([40., 60., 20.])
    """

    def __init__(self, parameters: Mapping[str, Tensor]) -> None:
        self.parameters = parameters
        weight, *bias = parameters.values()
        self.bias, side = bool(bias), weight.shape[1] + len(bias)
        self.left, self.right = zeros(weight, len(weight), len(weight)), zeros(weight, side, side)
        self.examples = 0

    @torch.no_grad()
    def add(self, features: Tensor, hessian: Tensor) -> None:
        """Inputs [B, I] of the layer and Λ [B, C, C]."""
        a = wide(features)
        if self.bias:
            a = torch.cat([a, a.new_ones(len(a), 1)], 1)
        self.left += wide(hessian).sum(0)
        self.right.addmm_(a.T, a)
        self.examples += len(a)

    def result(self) -> Kronecker:
        """The product of the two means, times the number of examples."""
        found = Kronecker.of(self.left, self.right / self.examples, self.bias)
        check_finite(self.parameters, found.diagonal)
        return found


def _row_sums(hessian: Tensor) -> Tensor:
    """Σ_d Λ[c, d], [B, C], zero where it is nothing but rounding."""
    sums = hessian.sum(2)
    return sums.masked_fill(sums.abs() <= 16 * torch.finfo(sums.dtype).eps * hessian.abs().sum(2), 0)


def _needed(a: Tensor, hessian: Tensor, weights: Tensor, first: Tensor, second: Tensor) -> list[Tensor]:
    """For each pair of outputs the examples that are not lost in rounding."""
    size = a.square().sum(1)
    scale = (hessian.diagonal(dim1=1, dim2=2) * size[:, None]).sum(0).clamp(min=0).sqrt()
    shares, order = (weights.abs() * size).sort(1)
    lost = shares.cumsum(1) <= torch.finfo(a.dtype).eps * (scale[first] * scale[second])[:, None]
    counts = lost.sum(1).tolist()  # one wait for the device, not one for each pair
    return [each[count:] for each, count in zip(order, counts, strict=True)]


def _add_gram(sums: Tensor, a: Tensor, weights: Tensor) -> None:
    """sums += aᵀ diag(weights) a, in and above the diagonal."""
    for rows, w in zip(torch.split(a, ROWS), torch.split(weights, ROWS), strict=True):
        scaled = rows * w[:, None]
        for start in range(0, a.shape[1], TILE):
            sums[start : start + TILE, start:].addmm_(scaled[:, start : start + TILE].T, rows[:, start:])
