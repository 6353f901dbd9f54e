"""What may be believed of the weights of networks that are trained side by side, each under a belief of its own."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn

from bayesrule import modules
from bayesrule.modules import Parameters
from bayesrule.priors import centres

TINY = 1e-12  # length of a column that counts as zero


@dataclass(frozen=True)
class Candidate:
    """One belief about the weights: a scale s by parameter, and the law of all of them.

    Normal and double exponential (``laplace``) weights have deviation s. Of ``pareto`` ones p(w) ∝ (1 + |w|/s)^−2
    (generalised double Pareto; Armagan et al. 2013): small weights are drawn to zero as double exponential ones are,
    large ones hardly. A scale of zero is a weight that is not there. ``columns``: the name of a matrix whose columns
    come and go as a whole, p(w) ∝ Π_j exp(−‖w_j‖/s'), where s' is such that a weight has deviation s.
    """

    name: str
    scales: Mapping[str, float]
    law: Literal["normal", "laplace", "pareto"] = "normal"
    columns: str | None = None


class Beliefs:
    """−log p(w) of M networks up to constants, each under its own candidate, K of each one after the other::

        Σ_j a_j (w_j − c_j)² + b_j |w_j − c_j| + 2 log(s_j + |w_j − c_j|) + Σ_columns g ‖w − c‖

    Normal weights of deviation d have a = 1/2d², double exponential ones b = √2/d, and columns of n weights
    g = √(n + 1)/d. ``there`` is 0 for weights that a candidate does without.
    """

    def __init__(self, candidates: Sequence[Candidate], folds: int, module: nn.Module) -> None:
        self.centres = centres(module)
        self.there: Parameters = {}
        self.partly: set[str] = set()  # weights that some candidate does without
        self.squares: Parameters = {}
        self.sizes: Parameters = {}
        self.tails: Parameters = {}
        self.lengths: Parameters = {}
        for name, p in modules.parameters(module).items():
            deviations = _each(p.new_tensor([c.scales[name] for c in candidates]), folds, p)
            there = deviations > 0
            laplace = _each(torch.tensor([c.law == "laplace" for c in candidates], device=p.device), folds, p) & there
            pareto = _each(torch.tensor([c.law == "pareto" for c in candidates], device=p.device), folds, p) & there
            grouped = _each(torch.tensor([c.columns == name for c in candidates], device=p.device), folds, p) & there
            none = torch.zeros_like(deviations)
            self.there[name] = there.to(p.dtype)
            if not bool(there.all()):
                self.partly.add(name)
            normal = there & ~laplace & ~pareto & ~grouped
            self.squares[name] = torch.where(normal, 0.5 / deviations**2, none)
            if bool(laplace.any()):
                self.sizes[name] = torch.where(laplace, math.sqrt(2) / deviations, none)
            if bool(pareto.any()):
                self.tails[name] = deviations.masked_fill(~pareto, math.inf)  # 1/(s + |w|) is then zero
            if bool(grouped.any()):
                self.lengths[name] = torch.where(grouped, math.sqrt(p.shape[0] + 1) / deviations, none)

    @torch.no_grad()
    def start(self, weights: Parameters) -> None:
        """Set weights to zero that a candidate does without."""
        for name, there in self.there.items():
            weights[name].mul_(there)

    @torch.no_grad()
    def add_slopes(self, weights: Parameters, factors: Tensor) -> None:
        """Add factors [M] times the gradients of −log p(w) to those that the weights have; zero stays zero.

        In closed form: to differentiate it took a third of the time of a step.
        """
        for name, a in self.squares.items():
            w = weights[name]
            off = w - self.centres[name]
            pull = 2 * a
            if name in self.lengths:
                pull = pull + self.lengths[name] / off.norm(dim=1, keepdim=True).clamp(min=TINY)
            slope = pull * off
            if name in self.sizes:
                slope.addcmul_(self.sizes[name], off.sign())
            if name in self.tails:
                slope.addcdiv_(off.sign(), self.tails[name] + off.abs(), value=2)
            grad = torch.zeros_like(w) if w.grad is None else w.grad
            w.grad = grad.addcmul_(factors.view_as(a), slope)
            if name in self.partly:
                w.grad.mul_(self.there[name])


def _each(values: Tensor, folds: int, p: Tensor) -> Tensor:
    """A value of every candidate as one of each of its networks, [M, 1, ...] beside weights [M, ...]."""
    return values.repeat_interleave(folds).view(-1, *[1] * p.ndim)
