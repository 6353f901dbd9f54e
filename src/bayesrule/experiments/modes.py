"""A network at the mode of its posterior, for the experiments about networks as Gaussian processes."""

from __future__ import annotations

import torch
from torch import nn

from bayesrule.data import Arrays
from bayesrule.likelihoods import Likelihood
from bayesrule.methods import MAP
from bayesrule.models import Spec, build
from bayesrule.posteriors import Particles
from bayesrule.priors import Gaussian
from bayesrule.training import fit


def trained(
    spec: Spec,
    data: Arrays,
    scale: float,
    epochs: int,
    batch_size: int,
    seed: int,
    likelihood: Likelihood | None = None,
    lr: float = 1e-2,
) -> tuple[nn.Module, Likelihood]:
    """The network, in the data's units, after so many epochs of MAP under N(0, scale²), and its likelihood."""
    network = build(spec, seed).to(_dtype(data))
    posterior = fit(
        network,
        data,
        MAP(lr=lr),
        likelihood,
        Gaussian(scale),
        epochs=epochs,
        batch_size=batch_size,
        seed=seed,
        val=0,
    )
    assert isinstance(posterior, Particles)
    network.load_state_dict(posterior.states[0])
    return network, posterior.likelihood


def _dtype(data: Arrays) -> torch.dtype:
    return data.x.dtype if isinstance(data.x, torch.Tensor) else torch.get_default_dtype()
