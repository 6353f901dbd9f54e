"""Curvature as plain data: blocks along the diagonal of a matrix over the flat vector of parameters."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from bayesrule.curvature.limits import check_memory
from bayesrule.structures.kronecker import to_matrix, to_vector


@dataclass(frozen=True, eq=False)
class Block(ABC):
    """The curvature of the parameters ``names``, whose numbers follow one another in this order."""

    names: tuple[str, ...]

    @property
    @abstractmethod
    def size(self) -> int:
        """How many numbers the parameters have."""

    @abstractmethod
    def diagonal(self) -> Tensor:
        """The diagonal, [size]."""

    @abstractmethod
    def dense(self) -> Tensor:
        """The matrix, [size, size]."""


@dataclass(frozen=True, eq=False)
class DiagonalBlock(Block):
    """``values`` on the diagonal, zeros elsewhere."""

    values: Tensor

    @property
    def size(self) -> int:
        """How many numbers the parameters have."""
        return len(self.values)

    def diagonal(self) -> Tensor:
        """As it is."""
        return self.values

    def dense(self) -> Tensor:
        """diag(values)."""
        return self.values.diag()


@dataclass(frozen=True, eq=False)
class DenseBlock(Block):
    """A full ``matrix``."""

    matrix: Tensor

    @property
    def size(self) -> int:
        """How many numbers the parameters have."""
        return len(self.matrix)

    def diagonal(self) -> Tensor:
        """That of the matrix."""
        return self.matrix.diagonal()

    def dense(self) -> Tensor:
        """As it is."""
        return self.matrix


@dataclass(frozen=True, eq=False)
class KroneckerBlock(Block):
    """``outputs`` ⊗ ``inputs``, [O, O] ⊗ [I, I], over the matrix W of a layer, [O, I].

    The bias of a layer is the last column of W, its input there being 1: ``bias`` says whether it has one. The numbers
    of W are in another order than those of the parameters, weight and then bias; `to_matrix` and `to_vector` go from
    one to the other.

    >>> block = KroneckerBlock(("weight", "bias"), 2 * torch.eye(2), torch.eye(4), bias=True)
    >>> block.to_matrix(torch.arange(8.0))
    tensor([[0., 1., 2., 6.],
            [3., 4., 5., 7.]])
    >>> block.diagonal()
    tensor([2., 2., 2., 2., 2., 2., 2., 2.])
    """

    outputs: Tensor
    inputs: Tensor
    bias: bool

    @property
    def size(self) -> int:
        """How many numbers the parameters have."""
        return len(self.outputs) * len(self.inputs)

    def to_matrix(self, vector: Tensor) -> Tensor:
        """[..., size] in the order of the parameters as W, [..., O, I]."""
        return to_matrix(vector, len(self.outputs), len(self.inputs), self.bias)

    def to_vector(self, matrix: Tensor) -> Tensor:
        """W, [..., O, I], as a vector in the order of the parameters, [..., size]."""
        return to_vector(matrix, self.bias)

    def diagonal(self) -> Tensor:
        """The products of the factors' diagonals."""
        return self.to_vector(torch.outer(self.outputs.diagonal(), self.inputs.diagonal()))

    def dense(self) -> Tensor:
        """The Kronecker product, in the order of the parameters."""
        place = self.to_vector(torch.arange(self.size, device=self.outputs.device).view(len(self.outputs), -1))
        return torch.kron(self.outputs, self.inputs)[place][:, place]


@dataclass(frozen=True, eq=False)
class LowRankBlock(Block):
    """F Fᵀ + diag(``rest``), F = ``factor`` [size, R]: R directions, and what these leave of the diagonal."""

    factor: Tensor
    rest: Tensor

    @property
    def size(self) -> int:
        """How many numbers the parameters have."""
        return len(self.factor)

    def diagonal(self) -> Tensor:
        """The squared lengths of the rows, and the rest."""
        return self.factor.square().sum(1) + self.rest

    def dense(self) -> Tensor:
        """The product, and the rest on its diagonal."""
        return self.factor @ self.factor.T + self.rest.diag()


@dataclass(frozen=True, eq=False)
class Curvature:
    """Σ_i J_iᵀ Λ_i J_i over ``examples``, in ``blocks`` over consecutive pieces of the flat vector of parameters.

    - ``shapes``: the parameters that take part, in the order of the flat vector.
    - ``fallbacks``: layers that have no Kronecker form, with what they got instead and why.
    - ``loss``: −Σ_i log p(y_i|f_i), which goes with the curvature in a marginal likelihood.
    """

    shapes: Mapping[str, torch.Size]
    blocks: tuple[Block, ...]
    examples: int
    loss: float
    fallbacks: Mapping[str, str]

    @property
    def size(self) -> int:
        """P, the length of the flat vector."""
        return sum(shape.numel() for shape in self.shapes.values())

    def places(self, block: Block) -> Tensor:
        """Where the numbers of a block are in the flat vector."""
        starts, start = {}, 0
        for name, shape in self.shapes.items():
            starts[name], start = start, start + shape.numel()
        return torch.cat([torch.arange(starts[n], starts[n] + self.shapes[n].numel()) for n in block.names])

    def diagonal(self) -> Tensor:
        """The diagonal, [P]."""
        like = self.blocks[0].diagonal()
        found = like.new_zeros(self.size)
        for block in self.blocks:
            found[self.places(block)] = block.diagonal()
        return found

    def dense(self) -> Tensor:
        """The whole matrix, [P, P], zeros between blocks."""
        if len(self.blocks) == 1 and isinstance(self.blocks[0], DenseBlock):
            return self.blocks[0].matrix
        like = self.blocks[0].diagonal()
        check_memory(f"a matrix over {self.size:,} parameters", self.size**2, like, "go through its blocks instead")
        found = like.new_zeros(self.size, self.size)
        for block in self.blocks:
            place = self.places(block)
            found[place[:, None], place] = block.dense()
        return found
