"""Priors of different kinds for different parameters."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import ClassVar

import torch
from torch import Tensor, nn

from bayesrule.modules import Parameters, flatten, parameters, unflatten
from bayesrule.priors.base import Prior
from bayesrule.structures import Structure, joined


@dataclass(frozen=True, eq=False)
class Product(Prior):
    """p(w) = Π_k p_k(w_k): independent parts, each a prior that is bound to the parameters it is for.

    ``parts``: the priors. ``names``: for each part, the names of its parameters.

    >>> from bayesrule.priors import Gaussian, Laplace
    >>> layer = nn.Linear(2, 1)
    >>> prior = Product.of((Laplace({"weight": 0.5}, {"weight": 0.0}), ["weight"]),
    ...                    (Gaussian({"bias": 1.0}, {"bias": 0.0}), ["bias"])).resolve(layer)
    >>> weights = {"weight": torch.zeros(1, 2), "bias": torch.zeros(1)}
    >>> prior.log_prob(weights)  # Laplace's density at zero is 1 here, and log N(0; 0, 1) = −0.9189
    tensor(-0.9189)
    """

    name: ClassVar[str] = "product"
    parts: tuple[Prior, ...]
    names: tuple[tuple[str, ...], ...]

    @property
    def learnt(self) -> bool:  # type: ignore[override]
        """Whether a part is."""
        return any(part.learnt for part in self.parts)

    @classmethod
    def of(cls, *pairs: tuple[Prior, Sequence[str]]) -> Product:
        """From priors and the names of their parameters; parts without any are left out."""
        parts: list[Prior] = []
        every: list[tuple[str, ...]] = []
        for part, names in pairs:
            if names:
                parts.append(part)
                every.append(tuple(names))
        return cls(tuple(parts), tuple(every))

    def __post_init__(self) -> None:
        if len(self.parts) != len(self.names):
            raise ValueError(f"names must be as many as parts, {len(self.parts)}, not {len(self.names)}")
        count = Counter(chain.from_iterable(self.names))
        for name in sorted(count):
            if count[name] > 1:
                raise ValueError(f"each parameter must be in one part of the prior, but {name!r} is in several")

    def resolve(self, module: nn.Module) -> Product:
        """Check that the parts are for the parameters of the module, all of them and no others."""
        want, have = set(chain.from_iterable(self.names)), set(parameters(module))
        for name in sorted(want ^ have):
            where = "the prior but not in the model" if name in want else "the model but not in the prior"
            raise ValueError(f"the prior does not fit the model: parameter {name!r} is in {where}")
        return self

    def tempered(self, temperature: float) -> Product:
        """The parts, each to the power."""
        return Product(tuple(part.tempered(temperature) for part in self.parts), self.names)

    def log_prob(self, parameters: Mapping[str, Tensor]) -> Tensor:
        """Σ_k log p_k(w_k)."""
        return torch.stack([part.log_prob(own) for part, own in self._split(parameters)]).sum()

    def divergence(self, mean: Tensor, std: Tensor, like: Mapping[str, Tensor]) -> Tensor | None:
        """Σ_k KL(N(m_k, s_k²)‖p_k), or None if a part has no closed form."""
        means, stds = unflatten(mean, like), unflatten(std, like)
        total = mean.new_zeros(())
        for part, own in self._split(like):
            mean, std = flatten({k: means[k] for k in own}), flatten({k: stds[k] for k in own})
            piece = part.divergence(mean, std, own)
            if piece is None:
                return None
            total = total + piece
        return total

    def gaussian(self, parameters: Mapping[str, Tensor]) -> tuple[Parameters, Structure]:
        """Those of the parts, if all are Gaussian; a part is cut where another's parameters are between its own."""
        means: Parameters = {}
        found: list[tuple[list[str], Structure]] = []
        for part, own in self._split(parameters):
            for run in _neighbours(list(parameters), own):
                mean, precision = part.gaussian({name: own[name] for name in run})
                means |= mean
                found.append((run, precision))
        order = list(parameters)
        found.sort(key=lambda piece: order.index(piece[0][0]))
        return {name: means[name] for name in order}, joined([precision for _, precision in found])

    def _split(self, named: Mapping[str, Tensor]) -> list[tuple[Prior, dict[str, Tensor]]]:
        """The parts that have something among the named parameters, each with what it has."""
        known = set(chain.from_iterable(self.names))
        for name in named:
            if name not in known:
                raise ValueError(f"no part of the prior is for parameter {name!r}")
        found = []
        for part, names in zip(self.parts, self.names, strict=True):
            own = {name: named[name] for name in names if name in named}
            if own:
                found.append((part, own))
        return found


def _neighbours(order: Sequence[str], own: Mapping[str, Tensor]) -> list[list[str]]:
    """The names of a part in runs that follow one another in the order.

    >>> _neighbours(["a", "b", "c"], {"a": torch.zeros(1), "c": torch.zeros(1)})
    [['a'], ['c']]
    """
    runs: list[list[str]] = []
    last = -2
    for index, name in enumerate(order):
        if name not in own:
            continue
        if index != last + 1:
            runs.append([])
        runs[-1].append(name)
        last = index
    return runs
