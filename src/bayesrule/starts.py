"""Fresh starts of a module: all that is learnt is drawn anew, by each layer's own ``reset_parameters``."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize
from torch.nn.utils.spectral_norm import SpectralNorm
from torch.nn.utils.weight_norm import WeightNorm

from bayesrule import modules
from bayesrule.modules import Parameters

LOOKS = 15
"""How often a new weight is looked at in training mode.

A spectral norm is divided by as buffers know it, which follow the weight from look to look. Under those of another
weight it may come out near zero, and the start a hundred times too large.
"""


@torch.no_grad()
def reinitialise(module: nn.Module) -> None:
    """Draw all trainable parameters anew, in place; frozen ones stay. One that is not drawn is an error by its name.

    Drawn is what was written: zeros of a bias and ones of a norm are a start, too. To tell them from what no
    ``reset_parameters`` has touched, all numbers are changed before. Matrices of zeros beside frozen weights stay
    zero, as long as others are drawn: so adapters start, such as LoRA's, at the function of what is frozen.

    >>> adapted = nn.ModuleList([nn.Linear(2, 2, bias=False) for _ in range(3)])
    >>> _ = adapted[0].requires_grad_(False), nn.init.zeros_(adapted[2].weight)
    >>> reinitialise(adapted)
    >>> bool(adapted[1].weight.any()), bool(adapted[2].weight.any())
    (True, False)
    """
    kept = modules.copies(modules.frozen(module))  # a layer that is frozen in part is drawn whole
    trainable = modules.parameters(module)
    if kept:
        kept |= _zero_by_design(trainable)
    for p in trainable.values():
        p.mul_(0.75).add_(0.31415)  # any change that no start undoes
    before = modules.copies(trainable)
    for name, layer in module.named_modules():
        own = _own(layer)
        if own and not isinstance(layer, parametrize.ParametrizationList):
            _draw(name, layer, own[0])
    for name, p in module.named_parameters():
        if name in kept:
            p.copy_(kept[name])
        elif bool((p == before[name]).any()):
            owner = module.get_submodule(name.rpartition(".")[0])
            raise ValueError(
                f"cannot draw a fresh start for parameter {name!r}: the reset_parameters() of {type(owner).__name__} "
                "leaves it as it is, or a part of it; draw it there"
            )


def _zero_by_design(trainable: Parameters) -> Parameters:
    """Matrices that are zero throughout, if there are others beside them."""
    matrices = {name: p for name, p in trainable.items() if p.ndim > 1}
    zeros = {name: p for name, p in matrices.items() if not bool(p.any())}
    return modules.copies(zeros) if len(zeros) < len(matrices) else {}


def _own(layer: nn.Module) -> list[str]:
    """The trainable parameters that a layer answers for: its own, and those that a parametrisation makes its own of."""
    found = [name for name, p in layer.named_parameters(recurse=False) if p.requires_grad]
    if parametrize.is_parametrized(layer):
        inner = layer.get_submodule("parametrizations").named_parameters(prefix="parametrizations")
        found += [name for name, p in inner if p.requires_grad]
    return found


def _draw(name: str, layer: nn.Module, first: str) -> None:
    """Draw one layer; weights that are made of parameters are drawn as if they were ones, and taken apart again."""
    reset = getattr(layer, "reset_parameters", None) or getattr(layer, "_reset_parameters", None)
    if reset is None:
        raise ValueError(
            f"cannot draw a fresh start for parameter {first!r} of {name or 'the model'} "
            f"({type(layer).__name__}): give the class a reset_parameters() method"
        )
    for made in modules.computed(layer):
        setattr(layer, made, getattr(layer, made).detach().clone())  # to be drawn in place
    for made, value in _parametrised(layer, reset).items():
        _take_apart(layer, made, value)
    for made, hook in modules.computed(layer).items():
        drawn = getattr(layer, made)
        if isinstance(hook, WeightNorm):
            getattr(layer, f"{made}_g").copy_(torch.norm_except_dim(drawn, 2, hook.dim))
            getattr(layer, f"{made}_v").copy_(drawn)
            continue
        getattr(layer, f"{made}_orig").copy_(drawn)
        if isinstance(hook, SpectralNorm):
            for _ in range(LOOKS):
                hook.compute_weight(layer, do_power_iteration=True)


def _parametrised(layer: nn.Module, reset: Callable[[], object]) -> Parameters:
    """Draw a layer, and give the weights it then has under a parametrisation, by name."""
    if not parametrize.is_parametrized(layer):
        reset()
        return {}
    with parametrize.cached():  # or what is drawn into such a weight is lost: each look makes it anew
        names = list(layer.get_submodule("parametrizations")._modules)
        made = {name: getattr(layer, name) for name in names}
        reset()
    return {name: value.detach().clone() for name, value in made.items()}


def _take_apart(layer: nn.Module, name: str, value: Tensor) -> None:
    """Parameters whose parametrisation gives a weight, or about it."""
    originals = layer.get_submodule(f"parametrizations.{name}")
    if not any(p.requires_grad for p in originals.parameters()):
        return
    try:
        setattr(layer, name, value)
    except (NotImplementedError, RuntimeError):  # it has no inverse; torch then starts from the value itself
        original = getattr(originals, "original", None)
        if isinstance(original, Tensor) and original.shape == value.shape:
            original.copy_(value)
    modes = {part: part.training for part in originals.modules()}
    originals.train()
    for _ in range(LOOKS):
        getattr(layer, name)
    for part, mode in modes.items():
        part.training = mode
