"""The network that learns a pool where the user gives none."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from bayesrule import models
from bayesrule.active.pools import Pool
from bayesrule.data import Split
from bayesrule.likelihoods import Likelihood
from bayesrule.methods import Method
from bayesrule.seeds import mixed

NETWORK = 5  # what a seed is for: see `running`


def network_for(
    pool: Pool, likelihood: Likelihood, method: Method, seed: int, hidden: Sequence[int] | None = None
) -> nn.Module:
    """The usual network for such inputs and labels, drawn by the seed: `br.models.default_for`, or fully connected with
    ``hidden`` layers. The linear path of `br.models.tabular` is for ``auto``, which looks for it."""
    if not isinstance(pool.x, Tensor):
        raise ValueError("model must be given for inputs of several parts: only one tensor has a usual network")
    few = pool.x[:1], torch.zeros(1)
    split = Split(pool.name, pool.kind, "", few, classes=pool.classes, image_shape=pool.image_shape)
    spec = models.default_for(split, likelihood)
    if hidden is not None:
        name = "mlp" if pool.image_shape else "tabular"
        spec = {"name": name, "inputs": pool.x[0].numel(), "outputs": spec["outputs"], "hidden": list(hidden)}
    if spec["name"] == "tabular" and method.name != "auto":
        spec["name"] = "mlp"
    return models.build(spec, mixed(seed, NETWORK))
