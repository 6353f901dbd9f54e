"""A network in coordinates in which a Gaussian over its weights has independent ones."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from bayesrule import modules
from bayesrule.data import Inputs
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

    Where the first layer is fully connected the module takes u = rightᵀ(x, 1) in the place of x (`inputs`): the layer
    says left (Z₀ + Z) u then, and the product with ``right``, an input's size squared, is not made in every step.

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
        self.mean = modules.copies(known.mean)
        self.blocks = [_Block.of(part, modules.dtype_of(network)) for part in parts(known.precision)]
        self.outside: Tensor | None = None
        self.first = _first_layer(network, self.blocks[0])
        if self.first is not None:
            self._take_rotated_inputs(self.first)
        values = torch.cat([block.precisions for block in self.blocks])
        self.z = nn.Parameter(torch.zeros_like(values, dtype=modules.dtype_of(network)))
        self.prior = Structured({"z": torch.zeros_like(self.z)}, Diagonal(values))

    def _take_rotated_inputs(self, first: int) -> None:
        """Put left Z₀ in the place of the first layer's weight and bias, W₀ = left Z₀ rightᵀ."""
        block = self.blocks[0]
        assert isinstance(self.network, nn.Sequential)
        assert block.right is not None
        weight, bias = self.mean.pop(f"{first}.weight"), self.mean.pop(f"{first}.bias")
        w = torch.cat([weight, bias[:, None]], 1).double()
        inside = torch.linalg.solve(block.right.double(), w.T).T.to(weight)
        self.mean = {f"{first}.weight": inside, **self.mean}
        # with no first weights drawn, which would take numbers from the user's generator
        rows, columns = inside.shape
        layer = nn.Linear(columns, rows, bias=False, device="meta", dtype=weight.dtype).to_empty(device=weight.device)
        layer.load_state_dict({"weight": inside})
        self.network[first] = layer.requires_grad_(False)
        self.outside = block.right
        self.blocks[0] = block.without_right()

    def inputs(self, x: Inputs) -> Inputs:
        """What `forward` takes in the place of x."""
        if self.outside is None:
            return x
        assert isinstance(x, Tensor)
        return x.flatten(1) @ self.outside[:-1] + self.outside[-1]

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """What the network says at w."""
        return modules.run(self.network, self._weights(), args, kwargs)

    def _weights(self) -> modules.Parameters:
        pieces = torch.split(self.z, [len(block.precisions) for block in self.blocks])
        moved = torch.cat([block.moved(piece) for block, piece in zip(self.blocks, pieces, strict=True)])
        return {name: self.mean[name] + away for name, away in modules.unflatten(moved, self.mean).items()}

    @torch.no_grad()
    def weights(self) -> modules.Parameters:
        """w = mean + Mz by the names of the network that was given."""
        found = self._weights()
        if self.outside is not None:
            w = found.pop(f"{self.first}.weight") @ self.outside.T
            found |= {f"{self.first}.weight": w[:, :-1], f"{self.first}.bias": w[:, -1]}
        return found


@dataclass(frozen=True)
class _Block:
    """Mz of one part of Λ, ``precisions`` the diagonal of MᵀΛM.

    W = left Z rightᵀ over a matrix of the given ``shape``, with ``bias`` as of `Kronecker`; None: the identity.
    """

    precisions: Tensor
    left: Tensor | None = None
    right: Tensor | None = None
    shape: tuple[int, int] = (0, 0)
    bias: bool = False

    @classmethod
    def of(cls, part: Structure, dtype: torch.dtype) -> _Block:
        """That of a structure, if it is a product or a diagonal."""
        if not isinstance(part, Kronecker):
            return cls(part.diagonal.double())
        left, right, values = part.basis
        return cls(to_vector(values, part.bias), left.to(dtype), right.to(dtype), part.shape, part.bias)

    def without_right(self) -> _Block:
        """The same for the matrix W right⁻ᵀ, which has no bias."""
        values = to_matrix(self.precisions, *self.shape, self.bias).flatten()
        return replace(self, precisions=values, right=None, bias=False)

    def moved(self, z: Tensor) -> Tensor:
        """Mz."""
        if self.left is None:
            return z
        inside = to_matrix(z, *self.shape, self.bias)
        if self.right is not None:
            inside = inside @ self.right.T
        return to_vector(self.left @ inside, self.bias)


def has_coordinates(precision: Structure) -> bool:
    """Whether a precision has Kronecker products among its parts, and beside them nothing but diagonals."""
    kinds = [type(part) for part in parts(precision)]
    return Kronecker in kinds and set(kinds) <= {Kronecker, Diagonal}


def parts(precision: Structure) -> list[Structure]:
    """The blocks of a precision, or itself alone."""
    return list(precision.parts) if isinstance(precision, Blocks) else [precision]


def _first_layer(network: nn.Module, block: _Block) -> int | None:
    """The layer of a sequence that sees the inputs, if it is fully connected and the block is that of its weights."""
    if not isinstance(network, nn.Sequential) or not block.bias:
        return None
    for index, layer in enumerate(network):
        if isinstance(layer, nn.Linear):
            fits = (layer.out_features, layer.in_features + 1) == block.shape
            return index if fits and layer.weight.requires_grad else None
        if not isinstance(layer, nn.Flatten):
            return None
    return None
