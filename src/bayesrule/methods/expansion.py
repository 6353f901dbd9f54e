"""The loss to second order about a network: Newton's step to the mode, and the Gaussians as wide as it is flat."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor, nn

from bayesrule import modules
from bayesrule.curvature import Curvature, Evidence, Grouping, Scatter, Tuning, group, rescaled
from bayesrule.data import Batch, inputs
from bayesrule.likelihoods import Likelihood
from bayesrule.methods.base import context
from bayesrule.modules import Parameters
from bayesrule.posteriors import Gaussian, Linearised, Posterior, match
from bayesrule.priors import Prior, Structured
from bayesrule.task import Task

WEIGHTS = "weights"
BATCH = 256  # examples at a time, for curvature and gradient
ENOUGH = 1000  # held-out examples to tune on
HALVINGS = 10  # of a Newton step, before it is given up
POWERS = (-4.0, -3.0, -2.0, -1.5, -1.0, -0.5, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0)  # of 10: factors tried on held-out data
Score = Callable[[Mapping[str, float]], tuple[float, Posterior]]
"""The loss of held-out data under some factors, and the posterior that they make."""


@dataclass(frozen=True, eq=False)
class Expansion:
    """−Σ log p(y|f_w)/η − log p(w) to second order about the weights of a network, with the curvature Λ₀ + G/η.

    ``found``: G of the weights that are uncertain, at the network's weights. ``grouping``: which of them share a factor
    on the prior's precision. ``predictive``: by the tangent with that link, or by drawn `WEIGHTS`.
    """

    task: Task
    prior: Prior
    network: nn.Module
    likelihood: Likelihood
    found: Curvature
    grouping: Grouping
    predictive: str

    @cached_property
    def weights(self) -> Parameters:
        """The weights that are uncertain, in the order of the curvature."""
        every = modules.parameters(self.network)
        return {name: every[name] for name in self.found.shapes}

    @cached_property
    def evidence(self) -> Evidence:
        """The log evidence as a function of the factors on the prior's precision and on the noise."""
        means, precision = self.prior.gaussian(self.weights)
        offsets = {name: w.detach() - means[name] for name, w in self.weights.items()}
        spread = scatter(self.likelihood, self.found, self.task)
        return Evidence.of(self.found, precision, offsets, spread, self.task.temperature)

    def newton_step(self) -> nn.Module:
        """A copy of the network at w − c(Λ₀ + G/η)⁻¹∇, c the largest of 1, ½, ¼, … under which the loss falls.

        The network itself, if there is none in `HALVINGS`. All of it is a function of the data in their own order, so
        that every process takes the same step.
        """
        here = self._loss(self.network)
        step = self.evidence.precision().solve(self._slope())
        start = modules.flatten(self.weights).detach().double()
        other = modules.twin(self.network)
        moving = modules.parameters(other)
        for halvings in range(HALVINGS):
            there = modules.unflatten(start - step / 2**halvings, self.weights)
            with torch.no_grad():
                for name, w in there.items():
                    moving[name].copy_(w)
            # A loss of NaN is not less than anything: such a step is halved like one that is too long.
            if self._loss(other) <= here:
                return other
        return self.network

    @torch.no_grad()
    def _loss(self, network: nn.Module) -> float:
        """−Σ log p(y|f)/η − log p(w) up to a constant, at a network like this one."""
        total = sum(float(loss) for loss in self._losses(network))
        offset, pull = self._pull(network)
        return total + 0.5 * float(torch.dot(offset, pull))

    def _slope(self) -> Tensor:
        """The gradient of that in the weights that are uncertain, at this network: flat, in float64."""
        weights = list(self.weights.values())
        every = modules.parameters(self.network)
        _, pull = self._pull(self.network)
        pulls = modules.unflatten(pull, every)
        slope = modules.flatten({name: pulls[name] for name in self.weights})
        for loss in self._losses(self.network):
            parts = torch.autograd.grad(loss, weights, allow_unused=True, materialize_grads=True)
            slope = slope + torch.cat([part.reshape(-1) for part in parts])
        return slope

    def _losses(self, network: nn.Module) -> Iterator[Tensor]:
        """−Σ log p(y|f)/η of one batch after the other; BatchNorm's statistics stay, as they do in the curvature."""
        evaluated = modules.shell(network).eval()  # the same tensors, but the network itself stays in training mode
        for batch in self.task.ordered(BATCH):
            nll = self.task.nll(modules.call(evaluated, batch.x), batch.y, self.likelihood)
            yield nll * len(batch.y) / self.task.temperature

    @torch.no_grad()
    def _pull(self, network: nn.Module) -> tuple[Tensor, Tensor]:
        """w − m and Λ₀(w − m) of *all* weights: a prior that earlier data have taught may tie some to others."""
        every = modules.parameters(network)
        means, precision = self.prior.gaussian(every)
        offset = modules.flatten({name: w - means[name] for name, w in every.items()})
        return offset, precision.multiply(offset)

    def tuned_on(self, held: Batch) -> Posterior:
        """With the prior's precision under which held-out data are the most probable."""
        some = subsample(held, ENOUGH)
        keys = {name: group(name, self.grouping) for name in self.evidence.sizes}

        def score(factors: Mapping[str, float]) -> tuple[float, Posterior]:
            one = torch.ones((), dtype=torch.float64, device=self.evidence.device)
            shared = {key: one * factor for key, factor in factors.items()}  # groups are told apart by identity
            tuning = Tuning({name: shared[key] for name, key in keys.items()}, one)
            there = self.matched(tuning, some, for_predictions=True)
            return float(-there.predict(some.x).log_prob(some.y).mean()), there

        return search(score, set(keys.values()))

    def matched(self, tuning: Tuning, held: Batch, for_predictions: bool = False) -> Posterior:
        """Under these factors and the noise of held-out data, by which the curvature counts too."""
        before = self.under(tuning, for_predictions)
        old = before.likelihood.unknowns()
        if not old:
            return before
        likelihood = match(before, held).likelihood
        # The unknowns are logs of scales: twice their change is that of the log variance, the factor on G's noise.
        moves = [2 * (u - old[name]).double().mean() for name, u in likelihood.unknowns().items()]
        noise = tuning.noise * torch.stack(moves).mean().exp()
        return self.under(Tuning(tuning.variances, noise), for_predictions).with_context(likelihood=likelihood)

    def under(self, tuning: Tuning, for_predictions: bool = False) -> Posterior:
        """The Gaussian under these factors, with the story of how it came about.

        ``for_predictions``: the factors were chosen by predictions of held-out data. They say how sure to be, not what
        was believed of the weights, so that a prior for other data is to do without them.
        """
        likelihood = self.likelihood
        unknowns = {name: u + 0.5 * tuning.noise.log().to(u.dtype) for name, u in likelihood.unknowns().items()}
        about = context(
            self.task,
            likelihood.with_unknowns(unknowns),
            log_evidence=float(self.evidence.log(tuning)) - units(self.task),
            prior_scale=self.evidence.prior_scales(tuning),
            fallbacks=dict(self.found.fallbacks),
        )
        rest = {name: p for name, p in modules.parameters(self.network).items() if name not in self.weights}
        fixed = modules.copies(rest | dict(self.network.named_buffers()))
        beside = Structured(*self.prior.gaussian(rest)) if rest else None  # what the subset leaves out keeps its prior
        mean, precision = modules.copies(self.weights), self.evidence.precision(tuning)
        surplus = self.evidence.surplus(tuning) if for_predictions and not self.prior.learnt else None
        if self.predictive == WEIGHTS:
            return Gaussian(mean, precision, fixed, about, beside, surplus)
        return Linearised(mean, precision, fixed, about, self.predictive, beside, surplus)


def check_prior(prior: Prior, parameters: Mapping[str, Tensor], grouping: Grouping | None) -> None:
    """Refuse a prior that is no Gaussian, or that cannot have a factor for each group; None: nothing is tuned."""
    _, precision = prior.gaussian(parameters)
    if grouping is None:
        return
    one = precision.diagonal.new_ones(())
    keys = {name: group(name, grouping) for name in parameters}
    factors = {key: one.clone() for key in keys.values()}  # each its own tensor: groups are told apart by identity
    tuning = Tuning({name: factors[key] for name, key in keys.items()}, one)
    rescaled(precision, {name: p.numel() for name, p in parameters.items()}, tuning)


def scaled(prior: Prior, parameters: Mapping[str, Tensor], tuning: Tuning) -> Prior:
    """The prior with t times its variances, of the parameters that were tuned."""
    means, precision = prior.gaussian(parameters)
    sizes = {name: w.numel() for name, w in parameters.items()}
    one = torch.ones_like(tuning.noise)
    factors = Tuning({name: tuning.variances.get(name, one) for name in sizes}, tuning.noise)
    kept = {name: mean.to(parameters[name].dtype) for name, mean in means.items()}
    return Structured(kept, rescaled(precision, sizes, factors))


def scatter(likelihood: Likelihood, found: Curvature, task: Task) -> Scatter:
    """What of the loss depends on the noise, if that is to be learnt."""
    if not likelihood.unknowns():
        return Scatter(found.loss)
    exact = torch.zeros_like(next(task.ordered(1)).y, dtype=torch.float64)
    numbers = found.examples * exact.numel()
    perfect = -float(likelihood.log_prob(exact, exact).sum()) * found.examples
    return Scatter(found.loss, found.loss - perfect, numbers)


def units(task: Task) -> float:
    """What to take off a log density of standardised targets for that of the user's: N Σ log scale/η."""
    targets = task.data.scaling.targets
    if targets is None:
        return 0.0
    shape = next(task.ordered(1)).y[0].shape
    return task.data.n * float(targets.scale.log().expand(shape).sum()) / task.temperature


def subsample(batch: Batch, most: int) -> Batch:
    """At most so many examples of a batch, any of them, the same every time."""
    index = torch.randperm(len(batch.y), generator=torch.Generator().manual_seed(0))[:most].to(batch.y.device)
    return Batch(inputs.take(batch.x, index), batch.y[index])


def search(score: Score, keys: Iterable[str]) -> Posterior:
    """The posterior of the least loss: all factors together first, then one after the other."""
    keys = sorted(keys)
    chosen = dict.fromkeys(keys, 1.0)
    best, posterior = score(chosen)
    rounds = [keys]
    if len(keys) > 1:
        rounds += [[key] for key in keys]
    for moved in rounds:
        start = dict(chosen)
        for power in POWERS:
            tried = start | {key: start[key] * 10**power for key in moved}
            loss, there = score(tried)
            if loss < best:
                best, posterior, chosen = loss, there, tried
    return posterior
