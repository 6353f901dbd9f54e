"""What the transitions of chains tell together."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from bayesrule.files import Tree
from bayesrule.samplers import Move, e_bfmi

NAMES = ("accepted", "diverged", "last", "mean", "squares", "changes", "errors")


@dataclass
class Tally:
    """Sums over transitions, of every chain: acceptance, divergences, and energies with their changes."""

    accepted: Tensor
    diverged: Tensor
    last: Tensor
    mean: Tensor
    squares: Tensor
    changes: Tensor
    errors: Tensor
    count: int = 0

    @classmethod
    def none(cls, rows: Tensor) -> Tally:
        """Of no transitions yet."""
        zeros = rows.new_zeros(len(rows), dtype=torch.float32)
        return cls(zeros, zeros, zeros, zeros, zeros, zeros, zeros)  # which nothing changes in place

    def add(self, told: Move) -> None:
        """One more transition."""
        self.count += 1
        energy = told.energy.to(self.mean)
        error = torch.where(told.error.isfinite(), told.error, 0).to(self.mean)
        self.accepted = self.accepted + told.acceptance.to(self.accepted)
        self.diverged = self.diverged + told.diverged.to(self.diverged)
        self.errors = self.errors + error.square()
        if self.count > 1:
            self.changes = self.changes + (energy - self.last).square()
        before = energy - self.mean
        self.mean = self.mean + before / self.count
        self.squares = self.squares + before * (energy - self.mean)
        self.last = energy

    def acceptance(self) -> Tensor:
        """Its mean."""
        return self.accepted / max(self.count, 1)

    def e_bfmi(self) -> Tensor:
        """How well momenta mix the energy."""
        return e_bfmi(self.changes, self.squares)

    def energy_variance(self, size: int) -> Tensor:
        """The mean of the energy's squared error in a transition, for each of ``size`` coordinates."""
        return self.errors / max(self.count, 1) / size

    def tree(self) -> Tree:
        """Plain data."""
        return {name: getattr(self, name) for name in NAMES} | {"count": self.count}

    def restore(self, tree: Tree) -> None:
        """Undo `tree`."""
        for name in NAMES:
            setattr(self, name, tree[name].to(self.mean.device))
        self.count = tree["count"]
