"""Independent parts, each of a family of its own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from itertools import chain
from typing import ClassVar

import torch
from torch import Tensor

from bayesrule.families.base import Family, How, Natural, Recipe, refuse
from bayesrule.families.losses import Point
from bayesrule.families.quadrature import Nodes, grid


@dataclass(frozen=True)
class Product(Family):
    """q(w) = Π_i q_i(w_i): the parameters of the factors one after another, and w a tuple with a part for each.

    >>> from bayesrule.families import Bernoulli, Gamma
    >>> family = Product((Bernoulli(), Gamma()))
    >>> natural = family.join((Bernoulli.of(torch.tensor(0.5)), Gamma.of(torch.tensor(4.0), torch.tensor(2.0))))
    >>> gradient = family.gradient(lambda w: w[0] * w[1], natural)  # E = p·a/b
    >>> [round(float(part), 6) for part in gradient]
    [2.0, 0.0, 0.5]
    """

    title: ClassVar[str] = "product"
    factors: tuple[Family, ...] = ()

    def __post_init__(self) -> None:
        refuse(len(self.factors) > 0, "factors must name at least one family, not none")

    @property
    def symbols(self) -> tuple[str, ...]:  # type: ignore[override]
        """Those of the factors."""
        return tuple(chain.from_iterable(factor.symbols for factor in self.factors))

    @property
    def has_conjugates(self) -> bool:  # type: ignore[override]
        """Where all factors have them."""
        return all(factor.has_conjugates for factor in self.factors)

    def split(self, natural: Natural) -> tuple[Natural, ...]:
        """The parameters of each factor."""
        parts, start = [], 0
        for factor in self.factors:
            parts.append(natural[start : start + len(factor.symbols)])
            start += len(factor.symbols)
        return tuple(parts)

    def join(self, parts: Sequence[Natural]) -> Natural:
        """Undo `split`."""
        return tuple(chain.from_iterable(parts))

    def statistics(self, w: Point) -> Natural:
        """Those of the factors."""
        return self.join([factor.statistics(part) for factor, part in zip(self.factors, w, strict=True)])

    def log_base(self, w: Point) -> Tensor:
        """Σ_i log h_i(w_i)."""
        parts = [factor.log_base(part) for factor, part in zip(self.factors, w, strict=True)]
        return reduce(torch.add, parts)

    def log_partition(self, natural: Natural) -> Tensor:
        """Σ_i A_i(λ_i)."""
        return torch.stack([factor.log_partition(part) for factor, part in self._pairs(natural)]).sum()

    def expectation(self, natural: Natural) -> Natural:
        """Those of the factors."""
        return self.join([factor.expectation(part) for factor, part in self._pairs(natural)])

    def natural(self, expectation: Natural) -> Natural:
        """Those of the factors."""
        return self.join([factor.natural(part) for factor, part in self._pairs(expectation)])

    def mean(self, natural: Natural) -> Point:
        """A tuple of means."""
        return tuple(factor.mean(part) for factor, part in self._pairs(natural))

    def sample(self, natural: Natural, n: int, generator: torch.Generator | None = None) -> Point:
        """A tuple of draws."""
        return tuple(factor.sample(part, n, generator) for factor, part in self._pairs(natural))

    def entropy(self, natural: Natural) -> Tensor:
        """Σ_i H(q_i)."""
        return torch.stack([factor.entropy(part) for factor, part in self._pairs(natural)]).sum()

    def entropy_gradient(
        self, natural: Natural, how: How = "exact", generator: torch.Generator | None = None
    ) -> Natural:
        """Those of the factors."""
        return self.join([factor.entropy_gradient(part, how, generator) for factor, part in self._pairs(natural)])

    def fisher_solve(self, natural: Natural, gradient: Natural) -> Natural:
        """Factor by factor: F is block-diagonal."""
        solved = []
        for factor, part, slope in zip(self.factors, self.split(natural), self.split(gradient), strict=True):
            solved.append(factor.fisher_solve(part, slope))
        return self.join(solved)

    def recipes(self) -> Mapping[str, Recipe]:
        """Those that ask for no derivative by w."""
        return {"exact": self._exact, "score": self._score, "closed-form": self._closed_form}

    def _nodes(self, natural: Natural, count: int | None) -> Nodes:
        """All combinations of the factors' points."""
        each = [factor._nodes(part, count) for factor, part in self._pairs(natural)]
        indices = grid([len(nodes.weights) for nodes in each]).unbind(-1)
        w, statistics, weights = [], [], []
        for nodes, index in zip(each, indices, strict=True):
            w.append(nodes.w[index])
            statistics += [statistic[index] for statistic in nodes.statistics]
            weights.append(nodes.weights[index])
        return Nodes(tuple(w), tuple(statistics), reduce(torch.mul, weights))

    def _check_domain(self, natural: Natural) -> None:
        for factor, part in self._pairs(natural):
            factor.check(part)

    def _pairs(self, natural: Natural) -> list[tuple[Family, Natural]]:
        return list(zip(self.factors, self.split(natural), strict=True))
