"""A network in coordinates in which a Gaussian over its weights has independent ones."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from bayesrule import modules
from bayesrule.posteriors import Gaussian
from bayesrule.priors import Structured
from bayesrule.structures import Blocks, Diagonal, Kronecker, Structure
from bayesrule.structures.kronecker import to_matrix, to_vector


class Rotated(nn.Module):
    """A network at w = mean + Mz as a module of the one parameter z, where MᵀΛM is diagonal for the precision Λ of a
    Gaussian with that mean.

    M is block diagonal, a block for each part of Λ: of a Kronecker product it is W = left Z rightᵀ in the product's
    `basis`, of a diagonal the identity. Adam has a rate for each coordinate, and none of them suits where the penalty
    ½(w − mean)ᵀΛ(w − mean) ties weights together along stiff and soft directions: in z each of these is a coordinate.

    >>> from bayesrule.likelihoods import Categorical
    >>> from bayesrule.posteriors import Context
    >>> network = nn.Linear(2, 2)
    >>> weights = modules.copies(modules.parameters(network))
    >>> product = Kronecker([torch.eye(2)], [torch.ones(3, 3)], torch.ones(6), bias=True)
    >>> rotated = Rotated(network, Gaussian(weights, product, {}, Context(network, Categorical())))
    >>> rotated.prior.precision.diagonal.sort().values.round()  # 1 + eigenvalues of I ⊗ 11ᵀ
    tensor([1., 1., 1., 1., 4., 4.], dtype=torch.float64)
    """

    def __init__(self, network: nn.Module, known: Gaussian) -> None:
        super().__init__()
        self.network = modules.twin(network)
        self.network.load_state_dict(known.mean | known.fixed, strict=False)
        self.network.requires_grad_(False)
        self.names = list(known.mean)
        dtype = modules.dtype_of(network)
        self.sizes = [part.size for part in parts(known.precision)]
        self.blocks = nn.ModuleList(_Block(part, dtype) for part in parts(known.precision))
        values = torch.cat([_values(part) for part in parts(known.precision)])
        self.z = nn.Parameter(torch.zeros_like(values, dtype=dtype))
        self.prior = Structured({"z": torch.zeros_like(self.z)}, Diagonal(values))

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """What the network says at w."""
        return modules.run(self.network, self.weights(), args, kwargs)

    def weights(self) -> modules.Parameters:
        """w = mean + Mz by name."""
        here = dict(self.network.named_parameters())
        mean = {name: here[name] for name in self.names}
        pieces = torch.split(self.z, self.sizes)
        moved = torch.cat([block(piece) for block, piece in zip(self.blocks, pieces, strict=True)])
        return {name: mean[name] + away for name, away in modules.unflatten(moved, mean).items()}


class _Block(nn.Module):
    """Mz of one part of Λ."""

    left: Tensor
    right: Tensor

    def __init__(self, part: Structure, dtype: torch.dtype) -> None:
        super().__init__()
        self.turns = isinstance(part, Kronecker)
        if isinstance(part, Kronecker):
            self.shape, self.bias = part.shape, part.bias
            left, right, _ = part.basis
            self.register_buffer("left", left.to(dtype), persistent=False)
            self.register_buffer("right", right.to(dtype), persistent=False)

    def forward(self, z: Tensor) -> Tensor:
        """vec W with W = left Z rightᵀ, or z itself."""
        if not self.turns:
            return z
        inside = to_matrix(z, *self.shape, self.bias)
        return to_vector(self.left @ (inside @ self.right.T), self.bias)


def has_coordinates(precision: Structure) -> bool:
    """Whether a precision has Kronecker products among its parts, and beside them nothing but diagonals."""
    found = parts(precision)
    return all(isinstance(part, Kronecker | Diagonal) for part in found) and any(
        isinstance(part, Kronecker) for part in found
    )


def parts(precision: Structure) -> list[Structure]:
    """The blocks of a precision, or itself alone."""
    return list(precision.parts) if isinstance(precision, Blocks) else [precision]


def _values(part: Structure) -> Tensor:
    """The diagonal of MᵀΛM."""
    if isinstance(part, Kronecker):
        return to_vector(part.basis[2], part.bias)
    return part.diagonal.double()
