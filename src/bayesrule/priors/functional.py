"""A prior over functions: what a network said at some points is what it is believed to say there."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn

from bayesrule import likelihoods, modules
from bayesrule.data import Inputs, inputs
from bayesrule.priors.base import Prior


@dataclass(frozen=True, eq=False, repr=False)
class Functional(Prior):
    """p(w) ∝ base(w) · exp(−½ Σ_s Σ_c dᵀ K_sc⁻¹ d), d = m_c(x_s; w) − m_sc, at the points x_s of several sets s.

    m_c(x; w) is the mean of output c under the ``likelihood``: for classes their probabilities. K is how far the means
    at the points are believed to move, and together (Pan et al. 2020, FROMP); with K = I it is distillation. As a
    density of weights it has no normaliser, and none is needed where it is a penalty.

    ``points``: the inputs x_s. ``means``: m_s, ``[M, C]``. ``precisions``: K_s⁻¹, ``[C, M, M]``. ``base``: a density
    of the weights beside it.

    >>> from bayesrule.priors import Flat
    >>> prior = Functional("gaussian", [torch.ones(1, 1)], [torch.zeros(1, 1)], [torch.full((1, 1, 1), 4.0)], Flat())
    >>> prior = prior.resolve(nn.Linear(1, 1, bias=False))
    >>> prior.log_prob({"weight": torch.full((1, 1), 3.0)})  # −½ · 3² · 4
    tensor(-18.)
    """

    name: ClassVar[str] = "functional"
    learnt: ClassVar[bool] = True
    likelihood: str
    points: list[Inputs]
    means: list[Tensor]
    precisions: list[Tensor]
    base: Prior

    def __post_init__(self) -> None:
        if not len(self.points) == len(self.means) == len(self.precisions):
            raise ValueError(
                "points, means and precisions must be of as many sets, got "
                f"{len(self.points)}, {len(self.means)} and {len(self.precisions)}"
            )
        for x, mean, precision in zip(self.points, self.means, self.precisions, strict=True):
            count = inputs.length(x)
            if mean.ndim != 2 or len(mean) != count or precision.shape != (mean.shape[1], count, count):
                raise ValueError(
                    f"a set of {count} points must have means [{count}, C] and precisions [C, {count}, {count}], got "
                    f"{list(mean.shape)} and {list(precision.shape)}"
                )

    def __repr__(self) -> str:  # without the numbers, which may be millions
        return f"Functional(points={sum(map(len, self.means))}, sets={len(self.points)}, base={self.base!r})"

    def resolve(self, module: nn.Module) -> Prior:
        """Bound to a copy of the module, on its device."""
        device, dtype = modules.device_of(module), modules.dtype_of(module)
        found = Functional(
            self.likelihood,
            [inputs.to(x, dtype, device) for x in self.points],
            [mean.to(device, dtype) for mean in self.means],
            [precision.to(device, dtype) for precision in self.precisions],
            self.base.resolve(module),
        )
        network = modules.twin(module).eval()
        x = inputs.join(found.points) if found.points else None
        object.__setattr__(found, "_bound", (network, x, likelihoods.choose(self.likelihood)))
        return found

    def tempered(self, temperature: float) -> Functional:
        """K·T, and the base to the same power."""
        precisions = [precision / temperature for precision in self.precisions]
        found = Functional(self.likelihood, self.points, self.means, precisions, self.base.tempered(temperature))
        if hasattr(self, "_bound"):
            object.__setattr__(found, "_bound", self._bound)
        return found

    _bound: ClassVar[tuple[nn.Module, Inputs | None, likelihoods.Likelihood]]

    def log_prob(self, parameters: Mapping[str, Tensor]) -> Tensor:
        """log base(w) − ½ Σ_s Σ_c dᵀ K_sc⁻¹ d; all points go through the network at once."""
        network, x, likelihood = self._bound
        total = self.base.log_prob(parameters)
        if x is None:
            return total
        found = means_at(likelihood, modules.call(network, x, parameters))
        sizes = [len(mean) for mean in self.means]
        for part, mean, precision in zip(torch.split(found, sizes), self.means, self.precisions, strict=True):
            away = (part - mean).T.unsqueeze(-1)  # [C, M, 1]
            total = total - 0.5 * (away * (precision @ away)).sum()
        return total


def means_at(likelihood: likelihoods.Likelihood, outputs: Tensor) -> Tensor:
    """E[y|f] of each example, [B, C] whatever the shape of a target.

    >>> means_at(likelihoods.choose("gaussian"), torch.zeros(3, 1)).shape
    torch.Size([3, 1])
    """
    return likelihood.mean(outputs).reshape(len(outputs), -1)
