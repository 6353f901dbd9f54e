"""Draws of Markov chains over networks, and the posterior that they are."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from bayesrule import modules
from bayesrule.files import Tree
from bayesrule.likelihoods import Likelihood
from bayesrule.methods.base import context
from bayesrule.methods.log_posterior import LogPosterior
from bayesrule.posteriors import Chains, Particles


class Draws:
    """Positions ``[C, P + U]`` of all chains, one after the other, and their log posterior ``[C]``."""

    def __init__(self, density: LogPosterior) -> None:
        self.density = density
        self.positions: list[Tensor] = []
        self.values: list[Tensor] = []

    def __len__(self) -> int:
        return len(self.positions)

    def add(self, position: Tensor, value: Tensor) -> None:
        """One more of every chain."""
        self.positions.append(position)
        self.values.append(value)

    def log_posterior(self) -> Tensor:
        """Of every draw, ``[C, D]``."""
        return torch.stack(self.values, 1)

    def posterior(self, now: Tensor, **found: Any) -> Particles:
        """q(w) = 1/S Σ_s δ(w − w_s): draw after draw of the first chain, then of the second, …

        Before there is a draw it is the networks as they stand, ``now``. ``found``: diagnostics.
        """
        rows, chains = now[:, None], None
        if self.positions:
            rows = torch.stack(self.positions, 1)
            chain = torch.arange(rows.shape[0], device=rows.device).repeat_interleave(rows.shape[1])
            chains = Chains(chain, self.log_posterior().flatten())
        task, flat = self.density.task, rows.flatten(0, 1)
        buffers = modules.copies(dict(task.model.named_buffers()))
        states = []
        for row in flat:
            states.append(modules.copies(self.density.parameters(row)) | buffers)
        return Particles(states, context(task, self._likelihood(flat), **found), chains)

    def _likelihood(self, rows: Tensor) -> Likelihood:
        """p(y|f) for the mixture of all networks, whose unknowns were drawn with them."""
        likelihood = self.density.task.likelihood
        unknowns = self.density.unknowns(rows)
        if not unknowns:
            return likelihood
        each = [{name: u[s].clone() for name, u in unknowns.items()} for s in range(len(rows))]
        return likelihood.pooled([likelihood.with_unknowns(own) for own in each])

    def tree(self) -> Tree:
        """Plain data."""
        if not self.positions:
            return {"draws": None, "values": None}
        return {"draws": torch.stack(self.positions), "values": torch.stack(self.values)}

    def restore(self, tree: Tree, device: torch.device) -> None:
        """Undo `tree`."""
        self.positions = [] if tree["draws"] is None else list(tree["draws"].to(device))
        self.values = [] if tree["values"] is None else list(tree["values"].to(device))
