"""A Gaussian over the parameters, its precision in any structure."""

from __future__ import annotations

import math
from collections.abc import Iterator
from functools import cached_property
from itertools import chain
from typing import ClassVar, cast

import torch
from torch import Tensor, nn

from bayesrule import modules, priors, structures
from bayesrule.data import Inputs
from bayesrule.files import Tree
from bayesrule.modules import Parameters
from bayesrule.naming import from_spec, to_spec
from bayesrule.posteriors.base import Context, Posterior
from bayesrule.posteriors.draws import Draws, seed_of
from bayesrule.posteriors.networks import Network, Runner
from bayesrule.posteriors.soundness import check_finite, check_gaussian, check_network
from bayesrule.priors import Prior, Product, Structured
from bayesrule.structures import Structure


class Gaussian(Posterior):
    """q(w) = N(w; mean, Λ⁻¹), Λ stored as a `Structure` over the flat vector of the mean.

    ``fixed``: what goes with the mean and is not uncertain, such as buffers, and weights that a subset leaves out.
    ``beside``: the prior of such weights, which no posterior has replaced. ``spread``: a factor that held-out data have
    put on the covariance for the sake of predictions; it is no part of what the data have taught, spread·Λ is.
    """

    kind: ClassVar[str] = "gaussian"

    def __init__(
        self,
        mean: Parameters,
        precision: Structure,
        fixed: Parameters,
        context: Context,
        beside: Structured | None = None,
        spread: float = 1.0,
    ) -> None:
        super().__init__(context)
        self.mean, self.precision, self.fixed, self.beside, self.spread = mean, precision, fixed, beside, spread

    @cached_property
    def _draws(self) -> Draws:
        """Made when networks are first asked for: a fit looks at posteriors that nobody draws from."""
        return Draws(Runner(self.model, self._output), self.mean, self.precision.fill, self.mean)

    def networks(self, count: int, generator: torch.Generator) -> Iterator[Network]:
        """The module under w = mean + δ, δ ~ N(0, Λ⁻¹); the same seed gives the same networks, kept for a while."""
        return chain.from_iterable(self._draws.networks(count, seed_of(generator)))

    def _output(self, module: nn.Module, weights: Parameters, x: Inputs) -> Tensor:
        return modules.try_call(module, x, weights | self.fixed)

    def draw(self, count: int, generator: torch.Generator) -> Iterator[Parameters]:
        """Weights w = mean + δ, δ ~ N(0, Λ⁻¹), one set at a time, with the fixed state beside them."""
        centre = modules.flatten(self.mean)
        for _ in range(count):
            delta = self.precision.sample(1, generator)[0].to(centre.dtype)
            yield modules.unflatten(centre + delta, self.mean) | self.fixed

    @property
    def std(self) -> Parameters:
        """The marginal deviation of each parameter, by name."""
        deviations = self.precision.variances.sqrt().to(modules.flatten(self.mean).dtype)
        return modules.unflatten(deviations, self.mean)

    def as_prior(self) -> Prior:
        """This posterior as the prior of what comes next; weights that it leaves out keep the prior they had.

        The density alone. Its likelihood, scaling and temperature come along with ``br.fit(..., prior=posterior)``:
        after a cold posterior a fit under ``as_prior()`` has to be given ``temperature=posterior.info["temperature"]``,
        or each example of the past counts more than a new one.
        """
        own = Structured(self.mean, self.precision * self.spread)
        if self.beside is None:
            return own
        return Product.of((own, list(self.mean)), (self.beside, list(self.beside.mean)))

    def at_mean(self, module: nn.Module | None = None) -> nn.Module:
        """A copy of the posterior's module, or of one like it, with the mean for its weights."""
        module = modules.twin(self.context.model if module is None else module)
        tensors = dict(module.named_parameters()) | dict(module.named_buffers())
        with torch.no_grad():
            for name, value in (self.mean | self.fixed).items():
                tensors[name].copy_(value)
        return module

    def verify(self) -> None:
        """Mean and fixed state are all of the module; the precision is one of the mean's, and has an inverse."""
        twice = sorted(set(self.mean) & set(self.fixed))
        if twice:
            raise ValueError(f"{twice[0]!r} is both uncertain and fixed")
        check_network("the mean", self.mean | self.fixed, self.context.model)
        check_gaussian(self.mean, self.precision, self.context.model)
        structures.check_sound(self.precision)
        if not 0 < self.spread < math.inf:
            raise ValueError(f"spread must be positive and finite, not {self.spread}")
        if self.beside is not None:
            self._verify_beside(self.beside)

    def _verify_beside(self, beside: Structured) -> None:
        rest = {name: p for name, p in modules.parameters(self.context.model).items() if name not in self.mean}
        if list(beside.mean) != list(rest):
            raise ValueError(f"the prior beside it must be of {list(rest)}, not of {list(beside.mean)}")
        for name, mean in beside.mean.items():
            if mean.shape != rest[name].shape or not mean.is_floating_point():
                raise ValueError(f"the prior of {name!r} must have its shape, {list(rest[name].shape)}")
            check_finite(f"the prior of {name!r}", mean)
        check_gaussian(rest, beside.precision, self.context.model)

    def state(self) -> Tree:
        """Mean, precision, fixed state, and what `as_prior` needs."""
        return {
            "mean": self.mean,
            "precision": to_spec(self.precision),
            "fixed": self.fixed,
            "beside": None if self.beside is None else to_spec(self.beside),
            "spread": self.spread,
        }

    @classmethod
    def from_state(cls, state: Tree, context: Context) -> Gaussian:
        """From all of these."""
        precision = from_spec("structure", state["precision"], structures.AVAILABLE)
        beside = None if state["beside"] is None else cast(Structured, priors.from_spec(state["beside"]))
        return cls(state["mean"], precision, state["fixed"], context, beside, state["spread"])
