"""The loss to second order about a network: Newton's step to the mode, and the Gaussians as wide as it is flat."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import NamedTuple

import torch
from torch import Tensor, nn

from bayesrule import modules
from bayesrule.curvature import Curvature, Evidence, Grouping, Scatter, Tuning, group, rescaled
from bayesrule.data import Arrays, Batch, inputs
from bayesrule.likelihoods import Likelihood
from bayesrule.methods.base import context
from bayesrule.modules import Parameters
from bayesrule.posteriors import Context, Gaussian, Linearised, Posterior, match
from bayesrule.predictions import per_example
from bayesrule.priors import Prior, Structured
from bayesrule.structures import Structure
from bayesrule.task import Task, units

WEIGHTS = "weights"
LOG_NOISE = "log_noise"  # the unknown of likelihoods that is the log of a deviation
BATCH = 256  # examples at a time, for curvature and gradient
ENOUGH = 1000  # held-out examples to tune on
HALVINGS = 10  # of a Newton step, before it is given up
ODDS = 20  # by which held-out data must be more probable before the covariance is changed for them
POWERS = (-3.0, -2.0, -1.5, -1.0, -0.75, -0.5, -0.25, 0.25, 0.5, 1.0)  # of 10: factors tried on the covariance
EVEN = (-3.0, -2.5, -2.0, -1.5, -1.0, -0.5, 0.0, 0.5)  # of 10: all alike before the held-out data are seen


class Point(NamedTuple):
    """A loss and its gradient in the weights that are uncertain."""

    loss: float
    slope: Tensor


@dataclass(frozen=True, eq=False)
class Expansion:
    """−Σ log p(y|f_w)/η − log p(w) to second order about the weights of a network, with the curvature Λ₀ + G/η.

    ``found``: G of the weights that are uncertain, at the network's weights. ``predictive``: by the tangent with that
    link, or by drawn `WEIGHTS`. ``choice``: which weights, in which structure. ``known``: the data's share of loss and
    gradient, where it is known already.
    """

    task: Task
    prior: Prior
    network: nn.Module
    likelihood: Likelihood
    found: Curvature
    predictive: str
    choice: Mapping[str, str | list[str]]
    known: Point | None = None

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
        here = self._whole(self.network, self._data).loss
        for halvings in range(HALVINGS):
            other = self._moved(self.network, self._step / 2**halvings)
            # A loss of NaN is not less than anything: such a step is halved like one that is too long.
            if self._loss(other) <= here:
                return other
        return self.network

    def descended(self, passes: int, near: float) -> tuple[nn.Module, int]:
        """A network nearer to the mode, by Newton's steps that all have the curvature at *this* network.

        Each is one pass over the data, for the loss and its gradient where it leads to; one after which the loss is
        larger is not taken, and those that follow are half as long. They end where the mode is ``near`` posterior
        deviations away. Also gives the passes that were used; the network itself, if no step made the loss fall.
        """
        network, here, length = self.network, self._whole(self.network, self._data), 1.0
        for used in range(passes):
            step = self._as_it_is.solve(here.slope)
            if _deviations(here.slope, step) <= near:
                return network, used
            other = self._moved(network, length * step)
            there = self._whole(other, self._data_at(other))
            if there.loss <= here.loss:  # not so for NaN
                network, here, length = other, there, min(1.0, 2 * length)
            else:
                length /= 2
        return network, passes

    def retuned(self, tuning: Tuning) -> Expansion:
        """About the same network, under the prior and the noise of a tuning: all follows without the data."""
        prior = scaled(self.prior, modules.parameters(self.network), tuning)
        known = self._data_under(tuning)
        if not self.likelihood.unknowns():
            return replace(self, prior=prior, known=known)
        loss = known.loss * self.task.temperature
        found = replace(self.found, matrix=self.found.matrix * float(1 / tuning.noise), loss=loss)
        return replace(self, prior=prior, known=known, likelihood=renoised(self.likelihood, tuning), found=found)

    def _data_under(self, tuning: Tuning) -> Point:
        """The data's share of loss and gradient under the noise of a tuning."""
        loss = float(self.evidence.scatter.at(tuning.noise)) / self.task.temperature
        return Point(loss, self._data.slope / tuning.noise)

    @cached_property
    def off_mode(self) -> float:
        """√(∇ᵀ(Λ₀ + G/η)⁻¹∇): how many posterior deviations the weights are off the mode, to second order."""
        return _deviations(self._whole(self.network, self._data).slope, self._step)

    @cached_property
    def _step(self) -> Tensor:
        """(Λ₀ + G/η)⁻¹∇."""
        return self._as_it_is.solve(self._whole(self.network, self._data).slope)

    def _moved(self, network: nn.Module, step: Tensor) -> nn.Module:
        """A copy of a network like this one with the uncertain weights at w − step."""
        other = modules.twin(network)
        moving = modules.parameters(other)
        own = {name: moving[name] for name in self.weights}
        there = modules.unflatten(modules.flatten(own).detach().double() - step, own)
        with torch.no_grad():
            for name, w in there.items():
                moving[name].copy_(w)
        return other

    @torch.no_grad()
    def _loss(self, network: nn.Module) -> float:
        """−Σ log p(y|f)/η − log p(w) up to a constant, at a network like this one."""
        total = sum(float(loss) for loss in self._losses(network))
        offset, pull = self._pull(network)
        return total + 0.5 * float(torch.dot(offset, pull))

    @cached_property
    def _data(self) -> Point:
        """The data's share of loss and gradient at this network."""
        return self.known or self._data_at(self.network)

    def _data_at(self, network: nn.Module) -> Point:
        """−Σ log p(y|f)/η, and its gradient in the weights that are uncertain: flat, in float64."""
        every = modules.parameters(network)
        weights = [every[name] for name in self.weights]
        total, slope = 0.0, torch.zeros_like(modules.flatten(self.weights), dtype=torch.float64, requires_grad=False)
        for loss in self._losses(network):
            parts = torch.autograd.grad(loss, weights, allow_unused=True, materialize_grads=True)
            slope += torch.cat([part.reshape(-1) for part in parts])
            total += float(loss.detach())
        return Point(total, slope)

    def _whole(self, network: nn.Module, data: Point) -> Point:
        """Loss and gradient with those of the prior."""
        offset, pull = self._pull(network)
        pulls = modules.unflatten(pull, modules.parameters(network))
        own = modules.flatten({name: pulls[name] for name in self.weights})
        return Point(data.loss + 0.5 * float(torch.dot(offset, pull)), data.slope + own)

    def _losses(self, network: nn.Module) -> Iterator[Tensor]:
        """−Σ log p(y|f)/η of one batch after the other; BatchNorm's statistics stay, as they do in the curvature."""
        evaluated = modules.shell(network).eval()  # the same tensors, but the network itself stays in training mode
        for batch in self.task.ordered(BATCH):
            yield self.task.total_nll(modules.call(evaluated, batch.x), batch, self.likelihood) / self.task.temperature

    @torch.no_grad()
    def _pull(self, network: nn.Module) -> tuple[Tensor, Tensor]:
        """w − m and Λ₀(w − m) of *all* weights: a prior that earlier data have taught may tie some to others."""
        every = modules.parameters(network)
        means, precision = self.prior.gaussian(every)
        offset = modules.flatten({name: w - means[name] for name, w in every.items()})
        return offset, precision.multiply(offset)

    def tuned_on(self, held: Batch) -> Posterior:
        """With a factor on the covariance under which held-out data are more probable.

        The prior, and with it the mode, stay as they are: a prior that makes the posterior narrow would have another
        mode. Where there are fewer weights than examples, the Gaussian is believed, and the factor is 1 unless the best
        one makes the held-out data `ODDS` times as probable: a few examples by chance do not make a posterior sure of
        itself. With more weights than examples most directions are those of the prior, along which the network is far
        from a quadratic; no factor is then believed beforehand.
        """
        some = subsample(held, ENOUGH)
        if sum(self.evidence.sizes.values()) < self.task.data.total:
            factor = self._believed(some)
        else:
            factor = self._expected(some)
        return self.matched(self._neutral_tuning, some, factor)

    @property
    def _neutral_tuning(self) -> Tuning:
        return Tuning.neutral(self.evidence.sizes, self.evidence.device)

    def _log_prob_with(self, factor: float, held: Batch) -> float:
        """log p of held-out data with a factor on the covariance."""
        return _log_prob(self.matched(self._neutral_tuning, held, factor), held)

    def _believed(self, held: Batch) -> float:
        """1, or the best factor if the held-out data say so clearly."""
        before = highest = self._log_prob_with(1.0, held)
        best = 1.0
        for power in POWERS:  # one posterior at a time: each holds matrices of its own
            found = self._log_prob_with(10**power, held)
            if found > highest:
                best, highest = 10**power, found
        return best if highest - before > math.log(ODDS) else 1.0

    def _expected(self, held: Batch) -> float:
        """exp E[log factor] given the held-out data, all of `EVEN` being as probable before them."""
        logs = torch.tensor([self._log_prob_with(10**power, held) for power in EVEN], dtype=torch.float64)
        power = float((logs.softmax(0) * torch.tensor(EVEN, dtype=torch.float64)).sum())
        return 10**power

    def matched(self, tuning: Tuning, held: Batch, spread: float = 1.0) -> Posterior:
        """Under these factors and the noise of held-out data, by which the curvature counts too."""
        before = self.under(tuning, spread)
        if not before.likelihood.unknowns():
            return before
        likelihood = match(before, held).likelihood
        # G has the output Hessian for a factor, which is one over the variance of the noise.
        noise = tuning.noise * (self._log_hessian(before.likelihood) - self._log_hessian(likelihood)).exp()
        return self.under(Tuning(tuning.variances, noise), spread).with_context(likelihood=likelihood)

    def _log_hessian(self, likelihood: Likelihood) -> Tensor:
        """The mean log of the output Hessian's diagonal; only of counts does it differ from example to example."""
        evaluated = modules.shell(self.network).eval()
        with torch.no_grad():
            outputs = self.task.outputs(evaluated, next(self.task.ordered(BATCH)).x)
        return likelihood.hessian(outputs.double()).diagonal(dim1=-2, dim2=-1).log().mean()

    def under(self, tuning: Tuning, spread: float = 1.0) -> Posterior:
        """The Gaussian under these factors, with the story of how it came about.

        ``spread``: a factor on its covariance that was chosen by predictions of held-out data. It says how sure to be,
        not what was believed of the weights, so that a prior for other data is to do without it.
        """
        precision = self._precision(tuning)
        about = context(
            self.task,
            renoised(self.likelihood, tuning),
            log_evidence=float(self.evidence.log(tuning))
            - self.task.data.total * units(self.task) / self.task.temperature,
            prior_scale=self.evidence.prior_scales(tuning),
            spread=spread,
            off_mode=self._off_mode_under(tuning, precision),
            fallbacks=dict(self.found.fallbacks),
            **self.choice,
        )
        return self.gaussian(precision, spread, about)

    def gaussian(self, precision: Structure, spread: float, about: Context) -> Posterior:
        """The Gaussian of a precision about the weights, its variances ``spread`` times as large as that says."""
        mean = modules.copies(self.weights)
        rest = {name: p for name, p in modules.parameters(self.network).items() if name not in self.weights}
        fixed = modules.copies(rest | dict(self.network.named_buffers()))
        beside = Structured(*self.prior.gaussian(rest)) if rest else None  # what the subset leaves out keeps its prior
        if spread != 1:
            precision = precision * (1 / spread)
        if self.predictive == WEIGHTS:
            return Gaussian(mean, precision, fixed, about, beside, spread)
        return Linearised(mean, precision, fixed, about, self.predictive, beside, spread)

    def _precision(self, tuning: Tuning) -> Structure:
        """That under these factors; the one that is asked for again and again is kept, with its factors."""
        return self._as_it_is if _neutral(tuning) else self.evidence.precision(tuning)

    def _off_mode_under(self, tuning: Tuning, precision: Structure) -> float:
        """How many posterior deviations the weights are off the mode that belongs to a tuning."""
        if _neutral(tuning):
            return self.off_mode
        there = replace(self, prior=scaled(self.prior, modules.parameters(self.network), tuning))
        slope = there._whole(self.network, self._data_under(tuning)).slope
        return _deviations(slope, precision.solve(slope))

    @cached_property
    def _as_it_is(self) -> Structure:
        return self.evidence.precision()


def _neutral(tuning: Tuning) -> bool:
    return all(float(t) == 1 for t in (tuning.noise, *tuning.variances.values()))


def _deviations(slope: Tensor, step: Tensor) -> float:
    """√(∇ᵀΛ⁻¹∇) from ∇ and Λ⁻¹∇."""
    return float(torch.dot(slope, step).clamp(min=0).sqrt())


def _log_prob(posterior: Posterior, held: Batch) -> float:
    """Of all held-out examples together; several targets of one example count as one, being far from independent."""
    each = per_example(posterior.predict(held.x).log_prob(held.y).double())
    return float((each if held.weight is None else each * held.weight.to(each)).sum())


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


def renoised(likelihood: Likelihood, tuning: Tuning) -> Likelihood:
    """The likelihood with c times the variance of its noise, if that is unknown."""
    unknowns = likelihood.unknowns()
    if LOG_NOISE in unknowns:
        unknowns[LOG_NOISE] = unknowns[LOG_NOISE] + 0.5 * tuning.noise.log().to(unknowns[LOG_NOISE].dtype)
    return likelihood.with_unknowns(unknowns)


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
    perfect, numbers = 0.0, 0.0
    for y, weight in _targets(task):
        peak = likelihood.peak(y.double())
        if peak is None:  # no factor on the variance tells how the loss depends on the noise: it stays as learnt
            return Scatter(found.loss)
        count = torch.ones_like(peak) if weight is None else weight.to(peak)
        perfect -= float((count * peak).sum())
        numbers += float(count.sum()) * y[0].numel()
    return Scatter(found.loss, found.loss - perfect, numbers)


def _targets(task: Task) -> Iterator[tuple[Tensor, Tensor | None]]:
    """All training targets and their weights, in parts."""
    if isinstance(task.data, Arrays):
        yield task.data.y, task.data.weight
        return
    for batch in task.ordered(BATCH):
        yield batch.y, batch.weight


def subsample(batch: Batch, most: int) -> Batch:
    """At most so many examples of a batch, any of them, the same every time."""
    index = torch.randperm(len(batch.y), generator=torch.Generator().manual_seed(0))[:most].to(batch.y.device)
    return batch.take(index)


def some_of(task: Task, most: int) -> Batch:
    """At most so many training examples, any of them, the same every time; in the network's units."""
    order = torch.randperm(task.data.n, generator=torch.Generator().manual_seed(0))[:most]
    if isinstance(task.data, Arrays):
        return next(task.data.take(order).ordered(len(order))).to(task.device)
    chosen = torch.zeros(task.data.n, dtype=torch.bool)
    chosen[order] = True
    parts, start = list[Batch](), 0
    for batch in task.ordered(BATCH):  # behind a loader there is no other way to some than through all
        index = chosen[start : start + len(batch.y)].nonzero()[:, 0].to(batch.y.device)
        start += len(batch.y)
        parts.append(batch.take(index))
    return Batch(inputs.join([part.x for part in parts]), torch.cat([part.y for part in parts]))


def in_parts(batch: Batch, size: int) -> Iterator[Batch]:
    """A batch in smaller ones."""
    for rows in torch.split(torch.arange(len(batch.y), device=batch.y.device), size):
        yield batch.take(rows)
