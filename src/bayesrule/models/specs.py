"""Networks from plain data."""

from __future__ import annotations

import inspect
import math
from collections.abc import Mapping
from typing import Any, TypeAlias

import torch
from torch import nn

from bayesrule import likelihoods
from bayesrule.data import Split
from bayesrule.likelihoods import Likelihood
from bayesrule.models.architectures import MODELS
from bayesrule.models.devices import choose_device
from bayesrule.naming import unknown

Spec: TypeAlias = dict[str, Any]


def build(spec: Mapping[str, Any], seed: int = 0, device: str | torch.device = "cpu") -> nn.Module:
    """The network of ``spec``, initialised as a function of ``seed``; torch's global generator is left as it was.

    ``device`` is as for `choose_device`. The same seed gives the same weights on each of them.

    >>> a, b = (build({"name": "mlp", "inputs": 2, "outputs": 1, "hidden": [3]}, seed=7) for _ in range(2))
    >>> all(torch.equal(p, q) for p, q in zip(a.parameters(), b.parameters()))
    True
    """
    if "name" not in spec:
        raise ValueError(f"spec must have a 'name', one of {', '.join(MODELS)}, got {dict(spec)}")
    settings = {key: value for key, value in spec.items() if key != "name"}
    if spec["name"] not in MODELS:
        raise unknown("model", str(spec["name"]), MODELS)
    make = MODELS[spec["name"]]
    known = inspect.signature(make).parameters
    for key in settings:
        if key not in known:
            raise unknown(f"setting of {spec['name']}", key, known)
    if missing := [key for key, p in known.items() if p.default is p.empty and key not in settings]:
        raise ValueError(f"spec of {spec['name']} must have {', '.join(missing)}, got {dict(spec)}")
    target = choose_device(device)
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)
        network: nn.Module = make(**settings)  # on the CPU: generators of other devices give other numbers
    return network.to(target)


def default_for(split: Split, likelihood: str | Likelihood | None = None) -> Spec:
    """A network for the data: LeNet-5 for squares of at least 28 pixels a side, an MLP for other pictures, `tabular`.

    It has as many outputs as the likelihood needs; None is the usual one for the kind of target.

    >>> from bayesrule.data import load_set
    >>> default_for(load_set("digits"))
    {'name': 'mlp', 'inputs': 64, 'outputs': 10, 'hidden': [128, 128]}
    """
    x, y = split.test
    chosen = likelihoods.usual(split.kind) if likelihood is None else likelihoods.choose(likelihood)
    outputs = chosen.outputs_for(math.prod(y.shape[1:]), len(split.classes))
    channels, side, width = split.image_shape or (0, 0, 0)
    if side == width >= 28 and x.ndim == 4:
        return {"name": "lenet5", "channels": channels, "side": side, "outputs": outputs}
    if split.image_shape is not None:
        return {"name": "mlp", "inputs": math.prod(x.shape[1:]), "outputs": outputs, "hidden": [128, 128]}
    spec = {"name": "tabular", "inputs": math.prod(x.shape[1:]), "outputs": outputs, "hidden": [64, 64]}
    return spec | ({"categories": list(split.categories)} if split.categories else {})
