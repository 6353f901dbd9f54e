"""What is unknown of a likelihood, settled on data that the weights have not seen.

Residuals on the training data flatter a network, and the more so the longer it trains; noise learnt from them makes
intervals too narrow. Held-out data give the noise that predictions really have.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from bayesrule import modules
from bayesrule.data import Batch
from bayesrule.likelihoods import Likelihood
from bayesrule.posteriors.base import Posterior
from bayesrule.predictions import per_example


def match(posterior: Posterior, held: Batch, samples: int = 32) -> Posterior:
    """A posterior like this one, the unknowns of its likelihood set to the most probable ones for held-out data."""
    likelihood = posterior.likelihood
    if not likelihood.unknowns():
        return posterior
    return posterior.with_context(likelihood=most_probable(likelihood, held_out_log_prob(posterior, held, samples)))


def held_out_log_prob(posterior: Posterior, held: Batch, samples: int = 32) -> HeldOut:
    """log 1/S Σ_s p(y_i | f_s(x_i)) of held-out examples, as a function of the likelihood."""
    targets = posterior.context.scaling.targets
    with torch.no_grad():
        generator = torch.Generator(modules.device_of(posterior.model)).manual_seed(0)
        outputs = posterior.marginals(posterior.inputs(held.x), samples, generator).double()
    y = held.y.to(outputs.device)
    if y.is_floating_point():
        y = y.double()
    if targets is not None:
        y = targets.forward(y)
    return HeldOut(outputs, y, held.weight)


def settled(likelihood: Likelihood, outputs: Tensor, y: Tensor, weight: Tensor | None = None) -> Likelihood:
    """A likelihood with its most probable unknowns for outputs ``[S, B, ...]`` of S networks.

    u* = argmax_u Σ_i w_i log 1/S Σ_s p(y_i | f_s(x_i), u); ``weight`` None: w_i = 1.
    """
    if not likelihood.unknowns():
        return likelihood
    return most_probable(likelihood, HeldOut(outputs.double(), y, weight))


@dataclass(frozen=True, eq=False)
class HeldOut:
    """log 1/S Σ_s p(y_i|f_s(x_i)) of every example, as often as its weight says, as a function of the likelihood."""

    outputs: Tensor
    y: Tensor
    weight: Tensor | None

    @property
    def width(self) -> int:
        """How many outputs an example has."""
        return self.outputs.shape[2] if self.outputs.ndim > 2 else 1

    def __call__(self, likelihood: Likelihood) -> Tensor:
        """Of every example, [n]."""
        prediction = likelihood.predict(self.outputs)
        each = per_example(prediction.log_prob(prediction.target(self.y)))
        if self.weight is None:
            return each
        return each * self.weight.to(each) / self.weight.mean()


def most_probable(likelihood: Likelihood, log_prob: Callable[[Likelihood], Tensor]) -> Likelihood:
    """A likelihood like this one with the unknowns that maximise the mean of ``log_prob``, by L-BFGS.

    The likelihood itself where there is no maximum: outputs that meet every target want no noise at all.
    """
    first = likelihood.unknowns()
    if not first:
        return likelihood
    unknowns = {name: value.detach().double().requires_grad_() for name, value in first.items()}
    optimizer = torch.optim.LBFGS(unknowns.values(), max_iter=100, line_search_fn="strong_wolfe")

    @torch.enable_grad()
    def loss() -> Tensor:
        optimizer.zero_grad()
        value = -log_prob(likelihood.with_unknowns(unknowns)).mean()
        value.backward()  # type: ignore[no-untyped-call]
        return value

    optimizer.step(loss)  # type: ignore[no-untyped-call]
    found = likelihood.with_unknowns({name: u.detach().to(first[name].dtype) for name, u in unknowns.items()})
    try:
        found.verify()
    except ValueError:
        return likelihood
    return found
