"""What a curvature and the Gaussian that is made of it cost, from shapes alone: memory and operations.

The factors below are counts of the matrices that are held at once, at the moment when they are most; a test compares
them with what a process is seen to use.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from bayesrule.curvature.forms import ROOM
from bayesrule.curvature.limits import check_bytes

DOUBLE = 8  # bytes: sums are turned to float64 for the evidence and the posterior
MORE = 2  # random vectors for each direction that a low-rank structure keeps: the more, the closer


@dataclass(frozen=True)
class Block:
    """Parameters that follow one another in the flat vector, and the structure that they get.

    ``layer``: the layer that they are of, for messages. ``rank``: directions that a low-rank structure keeps.
    """

    structure: str
    parameters: Mapping[str, Tensor]
    layer: str = ""
    rank: int = 0

    @property
    def size(self) -> int:
        """P."""
        return sum(p.numel() for p in self.parameters.values())

    @property
    def sides(self) -> tuple[int, int]:
        """O and I of a Kronecker product: the weight as a matrix, with a column for the bias."""
        weight = next(iter(self.parameters.values()))
        return len(weight), weight[0].numel() + (len(self.parameters) > 1)

    @property
    def width(self) -> int:
        """Random vectors of a low-rank structure."""
        return min(MORE * self.rank, self.size)

    @property
    def item(self) -> int:
        """Bytes of a number in the sums."""
        return max(4, next(iter(self.parameters.values())).element_size())

    def sums(self) -> int:
        """Bytes that adding up over the data takes."""
        if self.structure == "dense":
            return int(1.5 * self.item * self.size**2)  # a last layer has its blocks and the matrix at the end
        if self.structure == "kronecker":
            rows, columns = self.sides
            return 2 * self.item * (rows**2 + columns**2)  # a batch's product beside the sum
        if self.structure == "lowrank":
            return (2 * self.item + 3 * DOUBLE) * self.size * self.width
        return 3 * self.item * self.size

    def kept(self) -> int:
        """Bytes of the sums and, in float64, of all that evidence and posterior keep of them."""
        if self.structure == "dense":
            return (self.item + 4 * DOUBLE) * self.size**2  # G, Λ and its factor; in turns of evidence, G of two
        if self.structure == "kronecker":
            rows, columns = self.sides
            return (self.item + 2 * DOUBLE) * (rows**2 + columns**2) + 5 * DOUBLE * rows * columns  # G and a basis
        if self.structure == "lowrank":
            return (self.item + 2 * DOUBLE) * self.size * self.rank + 5 * DOUBLE * self.size
        return 8 * DOUBLE * self.size

    def working(self) -> int:
        """Bytes that are needed beside these for a while."""
        if self.structure == "dense":
            return 2 * DOUBLE * self.size**2  # scaled, and the factor of that; or two copies for the eigenvalues
        if self.structure == "kronecker":
            return 6 * DOUBLE * max(self.sides) ** 2  # scaled, summed, symmetric, eigenvectors, and LAPACK's own two
        if self.structure == "lowrank":
            return 2 * DOUBLE * self.size * self.rank
        return 0

    def operations(self, examples: int, columns: float) -> float:
        """Of the sums over so many examples with so many columns each, and of the factors and eigenvalues."""
        if self.structure == "dense":
            return 2.0 * examples * columns * self.size**2 + 10.0 * self.size**3
        if self.structure == "kronecker":
            rows, width = self.sides
            sums = 2.0 * examples * (columns * rows**2 + width**2)
            return sums + 20.0 * (rows**3 + width**3)
        if self.structure == "lowrank":
            return 4.0 * examples * columns * self.size * self.width + 10.0 * self.size * self.width**2
        return 4.0 * examples * columns * self.size


@dataclass(frozen=True)
class Footprint:
    """Of a pass over some examples at once.

    ``activations``: numbers that an example leaves in the network. ``gradients``: numbers of gradients of layers'
    outputs that one column of an example has. ``columns``: of an example. ``weights``: of the whole network.
    """

    activations: int
    gradients: int
    columns: int
    weights: int

    def bytes(self, batch: int, item: int) -> int:
        """For a batch: activations with their gradients, columns, and the copies of the network that are made."""
        waiting = min(batch * self.gradients * self.columns, max(ROOM, batch * self.gradients))
        return item * (3 * batch * self.activations + waiting) + (4 * item + 3 * DOUBLE) * self.weights


def peak(blocks: Sequence[Block], footprint: Footprint, batch: int) -> int:
    """Bytes that the sums of these blocks, and then the Gaussian, take at most."""
    item = max(block.item for block in blocks)
    adding = sum(block.sums() for block in blocks) + _written(blocks, footprint, batch, item)
    settling = sum(block.kept() for block in blocks) + max(block.working() for block in blocks)
    return max(adding, settling) + footprint.bytes(batch, item)


def _written(blocks: Sequence[Block], footprint: Footprint, batch: int, item: int) -> int:
    """Bytes of gradients that are written out for a dense matrix or random vectors; a last layer needs none."""
    widest = max((block.size for block in blocks if block.structure in ("dense", "lowrank")), default=0)
    if footprint.columns == 0:
        return 0
    return item * min(ROOM, batch * footprint.columns * widest)


def check_sums(blocks: Sequence[Block], device: torch.device) -> None:
    """An error before sums are begun for which there is no room."""
    check_bytes(f"the {described(blocks)}", sum(block.sums() for block in blocks), device, instead(blocks))


def largest(blocks: Sequence[Block]) -> Block:
    """The one that takes the most."""
    return max(blocks, key=Block.kept)


def described(blocks: Sequence[Block]) -> str:
    """The block to blame for the memory, in words.

    >>> described([Block("dense", {"w": torch.zeros(3, 2)})])
    'dense curvature of 6 parameters'
    """
    most = largest(blocks)
    if most.structure == "kronecker":
        rows, columns = most.sides
        return f"Kronecker factors of layer {most.layer!r}, {rows:,}² and {columns:,}² numbers,"
    return f"{most.structure} curvature of {most.size:,} parameters"


def instead(blocks: Sequence[Block]) -> str:
    """What takes less than the block that takes the most."""
    most = largest(blocks)
    smaller = {
        "dense": "take structure='kronecker' or 'diagonal', or fewer weights: subset='last-layer'",
        "kronecker": "take structure='diagonal', or leave that layer out by naming the others in subset",
        "lowrank": "take a lower rank, or structure='diagonal'",
        "diagonal": "take fewer weights: subset='last-layer'",
    }
    return smaller[most.structure]
