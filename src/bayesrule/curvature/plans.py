"""Which parameters take part in a curvature, and which block each of them gets."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Literal, get_args

from torch import Tensor, nn

from bayesrule import modules
from bayesrule.curvature import parts
from bayesrule.curvature.limits import check_memory
from bayesrule.curvature.parts import Part
from bayesrule.curvature.recorder import Owner, parameter_owners
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
_SMALLER = "take structure='kronecker' or 'diagonal', or fewer parameters: subset='last-layer'"


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


def plan(structure: StructureName, rank: int, watched: Watched) -> tuple[list[Part | Sketch], dict[str, str]]:
    """What is to be added up, given a pass through the model; and the layers that fell back."""
    if structure == "diagonal":
        return [parts.diagonal(watched.parameters)], {}
    if structure == "lowrank":
        return [Sketch(watched.parameters, rank)], {}
    if structure == "dense":
        size = sum(p.numel() for p in watched.parameters.values())
        like = next(iter(watched.parameters.values()))
        check_memory(f"the dense curvature of {size:,} parameters", size**2, like, _SMALLER)
        return [parts.dense(watched.parameters)], {}
    return _kronecker(watched)


def _kronecker(watched: Watched) -> tuple[list[Part | Sketch], dict[str, str]]:
    """A part for each layer, by its kind and by its use in the last pass."""
    names = {id(p): name for name, p in watched.parameters.items()}
    count: Counter[str] = Counter()
    for use in watched.uses:
        count.update(watched.names(use).values())
    found: list[Part | Sketch] = []
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
            found.append(_factors(owner, own))
            continue
        instead, make = "dense", parts.dense
        if sum(p.numel() for p in own.values()) > DENSE_UP_TO:
            instead, make = "diagonal", parts.diagonal
        found += map(make, _runs(own, watched.parameters))
        fallbacks[owner.name] = f"{instead}: {why}"
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


def _factors(owner: Owner, own: Mapping[str, Tensor]) -> Part:
    weight = next(iter(own.values()))
    rows, columns = len(weight), weight[0].numel()
    what = f"the Kronecker factors of {owner}, {rows:,}² and {columns:,}² numbers,"
    check_memory(what, rows**2 + columns**2, weight, "take structure='diagonal', or leave the layer out by name")
    return parts.kronecker(owner.name, own)


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
