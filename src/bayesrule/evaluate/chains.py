"""Have a sampler's chains mixed: R̂ and effective draws of predictions, not of weights."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from bayesrule import modules
from bayesrule.data import as_inputs, inputs
from bayesrule.posteriors import Chains, Particles, Posterior
from bayesrule.predictions import per_example
from bayesrule.samplers import ess_bulk, ess_tail, r_hat
from bayesrule.samplers.convergence import FEWEST, MIXED

LOST = 1.5  # R̂ beyond which chains are in places of their own, and more draws will hardly bring them together
ENOUGH = 100  # effective draws that each chain should be worth
SEEN = 200  # examples whose predictions are looked at: more of them say the same
WEIGHTS = 2000  # weights that are looked at


@dataclass(frozen=True, eq=False)
class Mixing:
    """What draws of C chains tell of themselves.

    ``r_hat``, ``ess_bulk``, ``ess_tail``: of the predicted means at each example, rank-normalised and split.
    ``log_posterior``: the same three of log p(w|D). ``within``: of each chain by itself, the R̂ of its weights, halves
    against each other, that 95 % of them stay below. ``density``: the mean log p(y|x) of the mixture of the first
    1, 2, … draws of all chains, in the user's units; None without y.
    """

    chains: int
    draws: int
    r_hat: Tensor
    ess_bulk: Tensor
    ess_tail: Tensor
    log_posterior: tuple[float, float, float]
    within: Tensor
    density: Tensor | None

    @property
    def worst(self) -> float:
        """The largest R̂ of a prediction; not a number where draws are too few to tell, or all the same."""
        known = self.r_hat[~self.r_hat.isnan()]  # the probability of a class that no draw believes in has none
        return float(known.max()) if len(known) else math.nan

    @property
    def least(self) -> float:
        """The smallest number of effective draws, of bulk and tail, of any prediction."""
        both = torch.fmin(self.ess_bulk, self.ess_tail)
        return float(both.nan_to_num(nan=math.inf).min())

    @property
    def mixed(self) -> bool:
        """Whether R̂ is at most 1.01, and the draws of each chain are worth a hundred independent ones."""
        return self.draws >= FEWEST and self.worst <= MIXED and self.least >= ENOUGH * self.chains

    @property
    def more(self) -> int | None:
        """About how many more draws of each chain it takes to have mixed; None: nobody can tell, 0: none.

        R̂ − 1 falls as one over the number of draws once chains go through the same places, and ESS grows with it.
        """
        if self.mixed:
            return 0
        if self.draws < FEWEST or math.isnan(self.worst) or self.worst > LOST:
            return None
        factor = max((self.worst - 1) / (MIXED - 1), ENOUGH * self.chains / self.least, 1.1)
        return math.ceil(self.draws * (factor - 1))

    def __str__(self) -> str:
        if self.draws < FEWEST:
            return (
                f"{self.draws} draws of each chain are too few to tell whether they have mixed: give {FEWEST} or more"
            )
        if math.isnan(self.worst):
            return "not mixed: the chains stand still, and all draws predict the same"
        found = f"R̂ of predictions is at most {self.worst:.3f}, and {self.chains * self.draws} draws are worth "
        found += f"{self.least:.0f} independent ones or more"
        if self.mixed:
            return f"mixed: {found}"
        if self.more is None:
            return (
                f"not mixed: {found}. Chains are in places of their own, and more draws will hardly bring them together"
            )
        return f"not mixed: {found}. About {self.more} more draws of each chain would do, if they go on like this"


def chains(posterior: Posterior, x: Any, y: Any = None) -> Mixing:
    """Whether the chains of a sampler's posterior tell the same at inputs ``x``, and how many draws theirs are worth.

    With targets ``y`` also the running log predictive density, which says when more draws no longer matter.

    >>> import bayesrule as br
    >>> x = torch.linspace(-1, 1, 20)[:, None]
    >>> method = br.methods.HMC(chains=2, draws=100, warm_up=100, training=20)
    >>> known = br.likelihoods.Gaussian(0.3)
    >>> posterior = br.fit(torch.nn.Linear(1, 1), (x, x[:, 0]), method, known, prior=1.0)
    >>> found = chains(posterior, x)
    >>> found.r_hat.shape, found.worst < 1.1
    (torch.Size([20]), True)
    """
    if not isinstance(posterior, Particles) or posterior.chains is None:
        raise ValueError(
            f"only the posterior of a sampler has chains, not this {type(posterior).__name__}: take method 'hmc' or "
            "'mclmc', say; of an ensemble of samplers ask each of posterior.components"
        )
    given = as_inputs(x)
    rows = _few(inputs.length(given), SEEN)
    few = posterior.inputs(inputs.take(given, rows))
    generator = torch.Generator(modules.device_of(posterior.model)).manual_seed(0)
    with torch.no_grad():
        outputs = posterior.outputs(few, len(posterior.states), generator)
        means = torch.stack([posterior.likelihood.mean(own) for own in outputs])
        density = None if y is None else _running(posterior, outputs, torch.as_tensor(y)[rows])
    apart = posterior.chains.apart(means)
    values = posterior.chains.apart(posterior.chains.log_posterior)
    return Mixing(
        chains=apart.shape[0],
        draws=apart.shape[1],
        r_hat=r_hat(apart),
        ess_bulk=ess_bulk(apart),
        ess_tail=ess_tail(apart),
        log_posterior=(float(r_hat(values)), float(ess_bulk(values)), float(ess_tail(values))),
        within=_within(posterior, posterior.chains),
        density=density,
    )


def _few(count: int, most: int) -> Tensor:
    """At most so many of a number of things, evenly spread."""
    return torch.linspace(0, count - 1, min(count, most)).round().long()


def _running(posterior: Particles, outputs: Tensor, y: Tensor) -> Tensor:
    """The mean log 1/(C·t) Σ p(y|x, w) over the first t draws of all chains, for t from 1 on."""
    assert posterior.chains is not None
    targets = posterior.context.scaling.targets
    each = []
    for own in outputs:
        prediction = posterior.likelihood.predict(own[None])
        if targets is not None:
            prediction = prediction.rescaled(targets.loc, targets.scale)
        each.append(per_example(prediction.log_prob(y)).double())
    apart = posterior.chains.apart(torch.stack(each)).cpu()  # [C, D, B]
    running = apart.logsumexp(0).logcumsumexp(0)
    count = torch.arange(1, apart.shape[1] + 1, dtype=torch.float64)[:, None] * apart.shape[0]
    return (running - count.log()).mean(1)


def _within(posterior: Particles, chains: Chains) -> Tensor:
    """R̂ of weights between the halves of each chain: two chains may be one function under swapped units."""
    names = list(modules.parameters(posterior.context.model))
    rows = torch.stack([modules.flatten({name: state[name] for name in names}) for state in posterior.states])
    apart = chains.apart(rows[:, _few(rows.shape[1], WEIGHTS).to(rows.device)])
    return torch.stack([torch.nanquantile(r_hat(own[None]), 0.95) for own in apart])
