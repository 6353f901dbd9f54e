"""A Gaussian of any structure as a prior: the posterior of the past, for the data to come."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar

import torch
from torch import Tensor, nn

from bayesrule.modules import Parameters, flatten, parameters
from bayesrule.priors.base import Prior
from bayesrule.structures import Structure, selected


@dataclass(frozen=True, eq=False, repr=False)
class Structured(Prior):
    """p(w) = N(w; mean, Λ⁻¹) with the precision Λ as a `Structure` over the flat vector of ``mean``'s parameters.

    >>> from bayesrule.structures import Diagonal
    >>> prior = Structured({"w": torch.ones(2)}, Diagonal(torch.tensor([4.0, 1.0])))
    >>> prior.log_prob({"w": torch.ones(2)}) - prior.log_prob({"w": torch.zeros(2)})  # ½ (4 + 1)
    tensor(2.5000)
    """

    name: ClassVar[str] = "structured"
    learnt: ClassVar[bool] = True
    mean: dict[str, Tensor]
    precision: Structure

    def __repr__(self) -> str:  # without the numbers, which may be millions
        count = sum(mean.numel() for mean in self.mean.values())
        return f"Structured(parameters={count}, precision={type(self.precision).__name__})"

    def resolve(self, module: nn.Module) -> Structured:
        """The same on the module's device, if the module has these parameters."""
        have = parameters(module)
        for name in sorted({*self.mean, *have}):
            ours, theirs = _described(self.mean.get(name)), _described(have.get(name))
            if ours != theirs:
                rule = f"the prior does not fit the model: parameter {name!r} is"
                raise ValueError(f"{rule} {ours} in the prior and {theirs} in the model")
        device = next(module.parameters()).device
        if all(m.device == device for m in self.mean.values()):
            return self
        return Structured({name: m.to(device) for name, m in self.mean.items()}, self.precision.to(device))

    def tempered(self, temperature: float) -> Structured:
        """N(mean, T·Λ⁻¹)."""
        return Structured(self.mean, self.precision * (1 / temperature))

    def log_prob(self, parameters: Mapping[str, Tensor]) -> Tensor:
        """log N(w; mean, Λ⁻¹), worked out in the precision of Λ."""
        away = flatten({name: parameters[name] - m for name, m in self.mean.items()})
        # The posterior of the past is known to more digits than float32 holds: a quadratic form of stiff directions is
        # a sum of large terms that cancel.
        exact = away.to(self.precision.dtype)
        return (self._at_mean - 0.5 * self.precision.quadratic(exact)).to(away.dtype)

    @cached_property
    def _at_mean(self) -> Tensor:
        """log N(mean; mean, Λ⁻¹): the same at every step of a fit."""
        nowhere = torch.zeros_like(self.precision.diagonal)
        return self.precision.log_prob(nowhere)

    def divergence(self, mean: Tensor, std: Tensor, like: Mapping[str, Tensor]) -> Tensor | None:
        """½(tr ΛS + dᵀΛd − P − log |Λ| − log |S|) with S = diag(std²) and d the distance of the means.

        Of all parameters together; of some of them it is None.
        """
        if list(like) != list(self.mean):
            return None
        exact = self.precision.diagonal.dtype
        away, squares = (mean - flatten(self.mean)).to(exact), std.square().to(exact)
        trace = (self.precision.diagonal * squares).sum()
        total = trace + self.precision.quadratic(away) - std.numel() - self._logdet
        return (0.5 * total).to(std.dtype) - std.log().sum()

    @cached_property
    def _logdet(self) -> Tensor:
        return self.precision.logdet()

    def gaussian(self, parameters: Mapping[str, Tensor]) -> tuple[Parameters, Structure]:
        """The mean, and the precision, of ``parameters`` given that all others are at their mean.

        Of all parameters it is Λ. Of some it is their rows and columns of Λ: a conditional, narrower than the marginal
        wherever Λ ties them to the others. If Λ is over more than 4096 numbers, what ties parameters that do not follow
        one another in the flat vector is left out (`structures.selected`).

        >>> from bayesrule.structures import Dense
        >>> both = {"a": torch.zeros(1), "b": torch.zeros(1)}
        >>> prior = Structured(both, Dense(torch.tensor([[2.0, 1.0], [1.0, 1.0]])))
        >>> prior.gaussian({"a": both["a"]})[1].variances  # given b
        tensor([0.5000])
        >>> prior.precision.variances[:1]  # whatever b is
        tensor([1.0000])
        """
        mean = {name: self.mean[name].double() for name in parameters}
        if list(parameters) == list(self.mean):
            return mean, self.precision
        return mean, selected(self.precision, list(_runs(self.mean, set(parameters))))


def _described(w: Tensor | None) -> str:
    if w is None:
        return "absent"
    return f"{list(w.shape)} {w.dtype}"


def _runs(named: Mapping[str, Tensor], wanted: set[str]) -> Iterator[tuple[int, int]]:
    """From where to where the wanted parameters are in the flat vector, those that follow one another together."""
    start, end = None, 0
    for name, tensor in named.items():
        if name in wanted:
            if start is None:
                start = end
        elif start is not None:
            yield start, end
            start = None
        end += tensor.numel()
    if start is not None:
        yield start, end
