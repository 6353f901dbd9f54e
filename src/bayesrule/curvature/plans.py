"""Which parameters take part in a curvature, and which block each of them gets."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, get_args

import torch
from torch import Tensor, nn

from bayesrule import modules
from bayesrule.curvature import parts
from bayesrule.curvature.costs import Block, Footprint, described, instead, peak
from bayesrule.curvature.heads import head
from bayesrule.curvature.limits import check_bytes
from bayesrule.curvature.parts import Part
from bayesrule.curvature.recorder import Owner, parameter_owners
from bayesrule.curvature.records import tensors
from bayesrule.curvature.rules import separates
from bayesrule.curvature.sketch import Sketch
from bayesrule.curvature.watched import Watched, unshaped
from bayesrule.data import Inputs
from bayesrule.naming import unknown

StructureName = Literal["diagonal", "kronecker", "lowrank", "dense"]
STRUCTURES: tuple[str, ...] = get_args(StructureName)
Subset = Literal["all", "last-layer"] | Sequence[str]
"""The weights that take part: all, those of the last layer, or those named, by parameter or by layer."""
DENSE_UP_TO = 1024
"""A layer without a Kronecker form gets a dense block up to so many numbers, and a diagonal above."""


def select(model: nn.Module, names: Sequence[str]) -> list[str]:
    """The trainable parameters of that name or in a layer of that name, in the order of the flat vector.

    >>> select(nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 1)), ["1", "0.bias"])
    ['0.bias', '1.weight', '1.bias']
    """
    known = modules.parameters(model)
    found: set[str] = set()
    for name in names:
        own = {p for p in known if _within(p, name)}
        if not own:
            layers = {p.rpartition(".")[0] for p in known} - {""}
            raise unknown("parameter or layer", name, [*sorted(layers), *known])
        found |= own
    return [p for p in known if p in found]


def _within(parameter: str, name: str) -> bool:
    return parameter == name or parameter.startswith(f"{name}.")


def last_layer(model: nn.Module, x: Inputs) -> list[str]:
    """The parameters of the Linear or convolution whose output is the model's, up to its shape.

    >>> import torch
    >>> last_layer(nn.Sequential(nn.Linear(2, 3), nn.ReLU(), nn.Linear(3, 1), nn.Flatten(0)), torch.zeros(5, 2))
    ['2.weight', '2.bias']
    """
    watched = Watched(model)
    outputs = watched.run(x)
    nodes = unshaped(outputs)
    for use, watch in watched.watches.items():
        edge = watch.edges.get(0)
        if edge is not None and edge.node in nodes and isinstance(use.layer, nn.Linear | nn.modules.conv._ConvNd):
            found = list(watched.names(use).values())
            if found:
                return found
    raise ValueError(
        f"no last layer was found: the outputs of {type(model).__name__} are not those of a trainable Linear or "
        f"convolution; name its parameters instead, subset={list(modules.parameters(model))[-2:]!r}"
    )


def chosen(model: nn.Module, x: Inputs, subset: Subset) -> list[str]:
    """The names of the parameters that take part, in the order of the flat vector; x are some inputs.

    >>> import torch
    >>> chosen(nn.Sequential(nn.Linear(2, 3), nn.ReLU(), nn.Linear(3, 1)), torch.zeros(5, 2), "last-layer")
    ['2.weight', '2.bias']
    """
    if subset == "last-layer":
        return last_layer(model, x)
    if isinstance(subset, str) and subset != "all":
        raise ValueError(f"subset must be 'all', 'last-layer' or a list of names, not {subset!r}: subset=[{subset!r}]")
    names = list(modules.parameters(model)) if subset == "all" else select(model, subset)
    if not names:
        raise ValueError(f"no parameter takes part: {type(model).__name__} has no trainable one, or subset is empty")
    return names


def plan(structure: StructureName, rank: int, watched: Watched) -> tuple[list[Block], dict[str, str]]:
    """The blocks that are to be filled, given a pass through the model; and the layers that fell back."""
    if structure != "kronecker":
        return [Block(structure, watched.parameters, rank=rank)], {}
    return _kronecker(watched)


def part_of(block: Block) -> Part | Sketch:
    """A block that is to be filled, of zeros."""
    if block.structure == "lowrank":
        return Sketch(block)
    if block.structure == "kronecker":
        return parts.kronecker(block.layer, block.parameters)
    if block.structure == "dense":
        return parts.dense(block.parameters)
    return parts.diagonal(block.parameters)


@dataclass(frozen=True)
class Bill:
    """What a curvature and the Gaussian that is made of it will take, before either is begun.

    ``columns``: gradients of an example that are added up; half of one for a last layer, which needs none. ``before``:
    bytes that are taken, and given back, before the sums are begun.
    """

    blocks: list[Block]
    footprint: Footprint
    columns: float
    before: int = 0

    def memory(self, examples: int) -> int:
        """Bytes at most, with so many examples at a time."""
        return max(self.before, peak(self.blocks, self.footprint, examples))

    def operations(self, examples: int) -> float:
        """Of sums over so many examples, and of factors and eigenvalues; those of the passes themselves not counted."""
        return sum(block.operations(examples, self.columns) for block in self.blocks)

    def check(self, examples: int, device: torch.device) -> None:
        """An error that says what to take instead, if there is no room for so many examples at a time."""
        what = f"the {described(self.blocks)} with evidence and posterior"
        check_bytes(what, self.memory(examples), device, instead(self.blocks))


def bill(
    model: nn.Module, x: Inputs, structure: StructureName, subset: Subset, columns: int | None = None, rank: int = 32
) -> Bill:
    """For a model, given some inputs; ``columns`` of each example, None for as many as it has outputs.

    >>> found = bill(nn.Sequential(nn.Linear(2, 3), nn.Linear(3, 1)), torch.zeros(5, 2), "dense", "all")
    >>> [(block.structure, block.size) for block in found.blocks], found.columns
    ([('dense', 13)], 1)
    """
    watched = Watched(model, chosen(model, x, subset))
    activations = 0

    def count(layer: nn.Module, args: object, output: object) -> None:
        nonlocal activations
        activations += sum(t.numel() for t in tensors(output))

    leaves = [layer for layer in watched.model.modules() if not list(layer.children())]
    handles = [layer.register_forward_hook(count) for layer in leaves]
    try:
        outputs = watched.run(x)
    finally:
        for handle in handles:
            handle.remove()
    examples = len(outputs)
    given = outputs.numel() // examples if columns is None else columns
    gradients = sum(watch.numbers for watch in watched.watches.values()) // examples
    weights = sum(p.numel() for p in watched.model.parameters())
    alone = structure == "dense" and head(watched, outputs) is not None
    blocks, _ = plan(structure, rank, watched)
    if alone:  # no gradients are formed, and each pair of outputs takes a product once
        return Bill(blocks, Footprint(activations // examples, 0, 0, weights), 0.5)
    return Bill(blocks, Footprint(activations // examples, gradients, given, weights), given)


def _kronecker(watched: Watched) -> tuple[list[Block], dict[str, str]]:
    """A block for each layer, by its kind and by its use in the last pass."""
    names = {id(p): name for name, p in watched.parameters.items()}
    count: Counter[str] = Counter()
    for use in watched.uses:
        count.update(watched.names(use).values())
    found: list[Block] = []
    fallbacks: dict[str, str] = {}
    taken: set[str] = set()
    for owner in parameter_owners(watched.model):
        own: dict[str, Tensor] = {}
        for p in owner.parameters.values():
            name = names.get(id(p))  # None: it does not take part
            if name is not None and name not in taken:  # a tied one belongs to the first layer that has it
                own[name] = p
        taken |= set(own)
        if not own:
            continue
        why = _why_not(owner, own, count, watched)
        if why is None:
            found.append(Block("kronecker", own, owner.name))
            continue
        kind = "dense"
        if sum(p.numel() for p in own.values()) > DENSE_UP_TO:
            kind = "diagonal"
        found += [Block(kind, run, owner.name) for run in _runs(own, watched.parameters)]
        fallbacks[owner.name] = f"{kind}: {why}"
    return found, fallbacks


def _runs(own: Mapping[str, Tensor], parameters: Mapping[str, Tensor]) -> list[dict[str, Tensor]]:
    """Parameters in groups that follow one another in the flat vector.

    >>> import torch
    >>> a, b, c = torch.zeros(3, 1).unbind()
    >>> [list(run) for run in _runs({"a": a, "c": c}, {"a": a, "b": b, "c": c})]
    [['a'], ['c']]
    """
    found: list[dict[str, Tensor]] = []
    follows = False
    for name, p in parameters.items():
        if name in own:
            if not follows:
                found.append({})
            found[-1][name] = p
        follows = name in own
    return found


def _why_not(owner: Owner, own: Mapping[str, Tensor], count: Counter[str], watched: Watched) -> str | None:
    """Why a layer gets no Kronecker form; None if it gets one."""
    kind = type(owner.layer).__name__
    if not separates(owner.layer, owner.rule):
        with_groups = " with groups" if getattr(owner.layer, "groups", 1) > 1 else ""
        return f"{kind} has no Kronecker form{with_groups}"
    if owner.layer._parameters["weight"] is not next(iter(own.values())):
        return "its weight does not take part or is counted elsewhere"
    counts = [count[name] for name in own]
    if set(counts) != {1}:
        return f"its parameters are used {' and '.join(map(str, counts))} times"
    for use in watched.uses:
        if use.layer is owner.layer and set(watched.names(use).values()) == set(own):
            return None
    return "its parameters are used outside of its own call"
