"""From an optimiser's Gaussian to a posterior."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import torch
from torch import Tensor

from bayesrule import modules, shards
from bayesrule.modules import Parameters
from bayesrule.posteriors import Context, Gaussian
from bayesrule.structures import Diagonal


def gaussian_over(deviations: Mapping[int, Tensor], context: Context) -> Gaussian:
    """N(w; m, σ²) over those parameters of the context's module whose σ is known, by the id of the parameter.

    m is what the module holds. All its other parameters are fixed: frozen ones are shared with it, the rest is copied.
    """
    model = context.model
    own = {name: id(p) for name, p in model.named_parameters()}
    twin = modules.twin(model, [p for p in modules.frozen(model).values() if id(p) not in deviations])
    mean: Parameters = {}
    others: Parameters = {}
    for name, p in twin.named_parameters():
        if own[name] in deviations:
            # the optimiser may know one that is frozen just now; in the posterior it is uncertain, so trainable
            mean[name] = p.requires_grad_().detach().clone()
        elif p.requires_grad:
            others[name] = p
    if not mean:
        raise ValueError("the optimiser trains none of the model's parameters: pass the model it was made for")
    precision = modules.flatten({name: deviations[own[name]] for name in mean}).pow(-2)
    fixed = modules.copies(others | dict(twin.named_buffers()))
    return Gaussian(mean, Diagonal(precision), fixed, replace(context, model=twin))


def gathered(means: Mapping[str, Tensor], deviations: Mapping[str, Tensor], context: Context) -> Gaussian:
    """The same from the shares of all processes, which they ask for together: the context's module, which is whole,
    gets the means by name."""
    own = dict(context.model.named_parameters())
    if missing := [name for name in means if name not in own]:
        raise ValueError(
            f"{missing[0]!r} must be a parameter of the model, which has {', '.join(list(own)[:3])}, ...: give the "
            "optimiser model.named_parameters(), and to_posterior a network of the same architecture"
        )
    if shards.any_of(own.values()):
        raise TypeError("model must be a network that is not sharded, such as a new one: it gets what was learnt")
    with torch.no_grad():
        for name, mean in means.items():
            own[name].copy_(shards.whole(mean))
    return gaussian_over({id(own[name]): shards.whole(each) for name, each in deviations.items()}, context)
