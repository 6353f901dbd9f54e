"""The fits of a run: seeds, folders, and what all tasks have in common."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from bayesrule import modules
from bayesrule.lifelong.streams import Examples
from bayesrule.likelihoods import Likelihood
from bayesrule.methods import Method
from bayesrule.posteriors import Particles, Posterior, central_state
from bayesrule.priors import Prior
from bayesrule.seeds import mixed
from bayesrule.training import Folder, fit_or_resume

MEMORY = 1  # what a seed is for, beside fits
INTERVAL = 30.0  # seconds between checkpoints of a fit


@dataclass
class Fits:
    """Calls of `br.fit` for one task of a run: the n-th has a seed and a folder of its own.

    A fit whose folder is there already is read, or goes on from its checkpoint, so that a run which was cut short gives
    the same as one that was not.

    ``fresh``: the network before the first task. ``examples``: of the task. ``folder``: of the task; None: nothing is
    kept. ``progress``: whether to show how far a fit is.
    """

    fresh: nn.Module
    likelihood: Likelihood
    epochs: int
    batch_size: int
    seed: int
    examples: int
    folder: Path | None = None
    progress: bool = False
    count: int = 0

    def __call__(
        self,
        model: nn.Module,
        train: Examples,
        method: Method,
        prior: Prior | Posterior | None,
        temperature: float | None = None,
        epochs: int | None = None,
    ) -> Posterior:
        """A fit; under a posterior as the prior it starts from that, and takes its temperature where none is given."""
        self.count += 1
        options: dict[str, Any] = {"prior": prior, "temperature": temperature, "batch_size": self.batch_size}
        options["epochs"] = self.epochs if epochs is None else epochs
        if not isinstance(prior, Posterior):
            options["likelihood"] = self.likelihood
            options["temperature"] = 1.0 if temperature is None else temperature
        options |= {"method": method, "seed": mixed(self.seed, 0, self.count), "val": 0}
        folder = None if self.folder is None else Folder(self.folder / f"fit-{self.count}", INTERVAL)
        return fit_or_resume(folder, model, train, progress=self.progress, **options)

    def generator(self) -> torch.Generator:
        """For choices of the strategy itself, such as which examples to keep."""
        return torch.Generator().manual_seed(mixed(self.seed, MEMORY))


def network_of(posterior: Posterior | None, fits: Fits) -> nn.Module:
    """The network at the posterior's mean or only particle; without a posterior a copy of the fresh one."""
    network = modules.twin(fits.fresh)
    if posterior is not None:
        network.load_state_dict(central_state(posterior), strict=False)
    return network


def point(posterior: Posterior) -> Posterior:
    """The posterior's mean as a network that is taken to be certain."""
    return Particles([central_state(posterior)], posterior.context)
