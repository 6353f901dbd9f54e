"""Laplace's method: a Gaussian about the mode, as wide as the loss is flat."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from numbers import Integral
from typing import ClassVar, cast, get_args

import torch
from torch import Tensor, nn

from bayesrule import modules, priors
from bayesrule.curvature import Curvature, Evidence, Scatter, Tuning, curvature
from bayesrule.curvature.evidence import Grouping, group, rescaled
from bayesrule.curvature.plans import STRUCTURES, Structure, Subset, chosen
from bayesrule.curvature.roots import LABELS, Labels
from bayesrule.data import Batch, inputs
from bayesrule.files import Tree
from bayesrule.likelihoods import Likelihood
from bayesrule.methods.base import Learner, Logs, Method, Needs, Plan, context
from bayesrule.methods.point import PointLearner
from bayesrule.naming import to_spec, unknown
from bayesrule.optim import Group
from bayesrule.posteriors import Gaussian, Linearised, Posterior, match
from bayesrule.posteriors.linearised import LINKS, check_link
from bayesrule.predictions import Classes
from bayesrule.priors import Prior, Structured
from bayesrule.seeds import Noise
from bayesrule.task import Task

WEIGHTS = "weights"
TUNE = ("evidence", "held-out", "nothing")
Judge = Callable[[Mapping[str, float]], tuple[float, Posterior]]
"""The score of held-out data under some factors, and the posterior that they make."""
ENOUGH = 1000  # held-out examples to tune on
FEW = 4096  # weights, of which a dense matrix is no trouble
BATCH = 256  # examples at a time for the curvature
HALVINGS = 10  # of a Newton step, before it is given up
STEPS = (-4.0, -3.0, -2.0, -1.5, -1.0, -0.5, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0)  # powers of 10 for held-out data


@dataclass(frozen=True)
class Laplace(Method):
    """q(w) = N(w*, Λ⁻¹), Λ = Λ₀ + G/η: w* the mode, as `MAP` finds it, G the generalised Gauss–Newton matrix of the
    loss there, Λ₀ the precision of a Gaussian prior (MacKay 1992; Immer 2021).

    With ``epochs=0`` the module is taken as it is: Laplace's method after the fact, for a network that is trained.
    Under a prior that is the posterior of earlier data the sum of precisions is sequential Bayes.

    ``subset``: the weights that are uncertain, ``"all"``, ``"last-layer"``, or names of parameters or layers; None:
    all where they are at most 4096, those of the last layer otherwise. ``structure``: of G, ``"diagonal"``,
    ``"kronecker"``, ``"lowrank"`` or ``"dense"``. ``labels``: ``"exact"``, ``"sampled"`` or ``"empirical"``, see
    `br.curvature.curvature`. ``samples``: draws of labels where they are sampled. ``tune``: what settles the
    prior's precision and the noise, the ``"evidence"``, ``"held-out"`` data, or ``"nothing"``; None: held-out data
    where they are given or can be spared, but the evidence for reals and for a module that is taken as it is, and
    nothing under a prior that earlier data have taught.
    ``precision``: how many factors on the prior's precision are tuned, ``"one"``, one for each ``"layer"`` or for
    each ``"parameter"``. ``every``: epochs between tunings while training; 0 tunes at the end. ``predictive``: by
    the tangent, ``"sampling"``, ``"probit"`` or ``"bridge"``, see `br.posteriors.Linearised`; or by drawn
    ``"weights"``. ``rank``: directions that a low-rank structure keeps. ``lr``: Adam's learning rate after the
    warm-up. ``newton``: Gauss–Newton steps to the mode after training, w ← w − Λ⁻¹∇, each as long as the loss falls;
    a linear model with normal noise needs one, from any weights.
    """

    name: ClassVar[str] = "laplace"
    summary: ClassVar[str] = "a Gaussian about the mode, as wide as the loss is flat"
    post_hoc: ClassVar[bool] = True
    subset: str | tuple[str, ...] | None = None
    structure: str = "dense"
    labels: str = "exact"
    samples: int = 1
    tune: str | None = None
    precision: str = "one"
    every: int = 0
    predictive: str = "sampling"
    rank: int = 32
    lr: float = 1e-2
    newton: int = 0

    def __post_init__(self) -> None:
        _one_of("structure", self.structure, STRUCTURES)
        _one_of("labels", self.labels, LABELS)
        _one_of("tune", self.tune or TUNE[0], TUNE)
        _one_of("precision", self.precision, get_args(Grouping))
        _one_of("predictive", self.predictive, (*LINKS, WEIGHTS))
        for field, least in (("every", 0), ("samples", 1), ("rank", 1), ("newton", 0)):
            value = getattr(self, field)
            if not isinstance(value, Integral) or value < least:
                raise ValueError(f"{field} must be a whole number of at least {least}, not {value!r}")
        if self.every and self.tune not in (None, "evidence"):
            raise ValueError(f"every must be 0 unless the evidence tunes, not {self.every} with tune={self.tune!r}")
        if self.subset not in (None, "all", "last-layer"):
            names = self.subset.split(",") if isinstance(self.subset, str) else self.subset or ()
            if not names:
                raise ValueError("subset must name at least one parameter or layer, not none; 'all' takes all of them")
            object.__setattr__(self, "subset", tuple(name.strip() for name in names))

    def start(self, task: Task, plan: Plan, noise: Noise) -> LaplaceLearner:
        """MAP, and the curvature at its end; what does not fit is said before any training."""
        if modules.dtype_of(task.model) not in (torch.float32, torch.float64):
            dtype = modules.dtype_of(task.model)
            raise TypeError(f"laplace takes a model in float32 or float64, not {dtype}: model.float()")
        if self.predictive != WEIGHTS:
            check_link(self.predictive, task.likelihood)
        if self.labels == "empirical" and task.likelihood.unknowns():
            raise ValueError("labels='empirical' needs a known noise, such as br.likelihoods.Gaussian(0.1)")
        chosen(task.model, next(task.ordered(1)).x, self.weights(task.parameters()))
        self._check_prior(task)
        return LaplaceLearner(self, PointLearner(task, plan, Group(lr=self.lr)), noise)

    def _check_prior(self, task: Task) -> None:
        """Refuse a prior that is no Gaussian, or cannot have as many factors as are to be tuned."""
        parameters = task.parameters()
        _, precision = task.prior.gaussian(parameters)
        if self.every or self.tune in ("evidence", "held-out"):
            keys = {name: group(name, cast(Grouping, self.precision)) for name in parameters}
            factors = {key: precision.diagonal.new_ones(()) for key in keys.values()}
            tuning = Tuning({name: factors[key] for name, key in keys.items()}, precision.diagonal.new_ones(()))
            rescaled(precision, {name: p.numel() for name, p in parameters.items()}, tuning)

    def needs(self, task: Task, epochs: int) -> Needs:
        """The evidence needs no data beside those of the training, and a trained module has seen them all."""
        if self.tune is None and task.prior.learnt:
            return Needs("none")
        if self.tune == "held-out":
            return Needs("must")
        if self.tune == "nothing" and epochs > 0:
            return super().needs(task, epochs)
        return Needs("spare" if epochs > 0 and self.listens(task) else "none")

    def weights(self, parameters: Mapping[str, Tensor]) -> Subset:
        """The subset, if it is given or not."""
        if self.subset is not None:
            return self.subset
        return "all" if sum(p.numel() for p in parameters.values()) <= FEW else "last-layer"

    def listens(self, task: Task) -> bool:
        """Whether held-out data tune the precision, if there are any."""
        return self.tune == "held-out" or (self.tune is None and not self.every and not task.likelihood.unknowns())


class LaplaceLearner(Learner):
    """A point learner, and what its end is worth."""

    def __init__(self, method: Laplace, base: PointLearner, noise: Noise) -> None:
        self.method, self.base, self.noise = method, base, noise

    def step(self, batch: Batch) -> Logs:
        """A step of the point learner; now and then the prior and the noise are settled anew."""
        logs = self.base.step(batch)
        every = self.method.every * self.base.plan.steps_per_epoch
        if every and self.base.steps % every == 0:
            self._retune()
        return logs

    def _retune(self) -> None:
        likelihood, network = self.base.learnt(), self.base.network
        tuning = self._evidence(network, self._curvature(network, likelihood), likelihood).tuned(self._grouping)
        self.base.prior = scaled(self.base.prior, self.base.parameters, tuning)
        with torch.no_grad():
            for value in self.base.unknowns.values():
                value += 0.5 * tuning.noise.log()

    @property
    def _grouping(self) -> Grouping:
        return cast(Grouping, self.method.precision)

    def posterior(self) -> Posterior:
        """The network as it is: the curvature takes a pass over the data."""
        return self.base.posterior()

    def conclude(self, held: Batch | None) -> Posterior:
        """The Gaussian at the mode, under the prior and the noise that are settled as ``tune`` says."""
        likelihood = self.base.learnt() if self.base.steps else self._noise_as_it_is()
        network = self.base.network
        for _ in range(self.method.newton):
            network = self._newton_step(network, likelihood)
        found = self._curvature(network, likelihood)
        evidence = self._evidence(network, found, likelihood)
        end = End(self, network, found, evidence, likelihood)
        neutral = Tuning.neutral(evidence.sizes, evidence.device)
        if self.method.tune is None and self.base.task.prior.learnt:
            return end.under(neutral)
        if held is not None and self.method.listens(self.base.task):
            return end.tuned_on(held)
        if self.method.tune in (None, "evidence"):
            return end.under(evidence.tuned(self._grouping))
        return end.under(neutral) if held is None else end.matched(neutral, held)

    def _newton_step(self, network: nn.Module, likelihood: Likelihood) -> nn.Module:
        """A copy of the network at w − cΛ⁻¹∇, c the largest of 1, ½, ¼, … under which the loss falls; or itself."""
        found = self._curvature(network, likelihood)
        evidence = self._evidence(network, found, likelihood)
        here, slope = self._objective(network, likelihood, list(found.shapes))
        step = evidence.precision().solve(slope)
        own = {name: modules.parameters(network)[name].detach() for name in found.shapes}
        for halvings in range(HALVINGS):
            other = modules.twin(network)
            moved = modules.unflatten(modules.flatten(own).double() - step / 2**halvings, own)
            with torch.no_grad():
                for name, p in modules.parameters(other).items():
                    if name in moved:
                        p.copy_(moved[name])
            if self._objective(other, likelihood, [])[0] <= here:
                return other
        return network

    def _objective(self, network: nn.Module, likelihood: Likelihood, names: list[str]) -> tuple[float, Tensor]:
        """−Σ log p(y|f)/η − log p(w) up to a constant, with the network in eval mode; and its gradient in some weights.

        Without names the gradient is empty.
        """
        task, network = self.base.task, modules.shell(network).eval()
        every = modules.parameters(network)
        slopes = {name: torch.zeros_like(every[name], dtype=torch.float64) for name in names}
        total = 0.0
        for batch in task.ordered(BATCH):
            with torch.set_grad_enabled(bool(names)):
                loss = task.nll(modules.call(network, batch.x), batch.y, likelihood) * len(batch.y) / task.temperature
            total += float(loss.detach())
            if names:
                parts = torch.autograd.grad(loss, [every[n] for n in names], allow_unused=True, materialize_grads=True)
                for name, part in zip(names, parts, strict=True):
                    slopes[name] += part
        means, precision = self.base.prior.gaussian(every)
        away = modules.flatten({name: w.detach() - means[name] for name, w in every.items()})
        pull = precision.multiply(away)
        total += 0.5 * float(torch.dot(away, pull))
        pulls = modules.unflatten(pull, every)
        found = [(slopes[name] + pulls[name]).flatten() for name in names]
        return total, torch.cat(found) if found else torch.empty(0)

    def _noise_as_it_is(self) -> Likelihood:
        """At a network that is taken as it is: is it trained, and what is the noise about it, on all of the data?"""
        data = self.base.task.data.raw()
        point = match(self.base.posterior(), data)
        prediction = point.predict(data.x)
        if isinstance(prediction, Classes):
            loss, chance = -prediction.log_prob(data.y).mean(), _entropy(data.y)
            if loss >= chance:
                warnings.warn(
                    f"the network's NLL is {float(loss):.3g}, no better than the {float(chance):.3g} of guessing by "
                    "the frequency of each class: Laplace's method is for a trained network; train it, or epochs=None",
                    stacklevel=8,  # where `br.fit` was called
                )
        return point.likelihood

    def _curvature(self, network: nn.Module, likelihood: Likelihood) -> Curvature:
        """G at a network's weights, over all training data; sampled labels are the same in all processes."""
        method = self.method
        batches = ((batch.x, batch.y) for batch in self.base.task.ordered(BATCH))
        return curvature(
            network,
            batches,
            likelihood,
            cast(Structure, method.structure),
            method.weights(self.base.parameters),
            cast(Labels, method.labels),
            method.samples,
            self.noise.shared,
            rank=method.rank,
        )

    def _evidence(self, network: nn.Module, found: Curvature, likelihood: Likelihood) -> Evidence:
        task, every = self.base.task, modules.parameters(network)
        own = {name: every[name].detach() for name in found.shapes}
        means, precision = self.base.prior.gaussian(own)
        offsets = {name: w - means[name] for name, w in own.items()}
        return Evidence.of(found, precision, offsets, scatter(likelihood, found, task), task.temperature)

    def state_dict(self) -> Tree:
        """That of the point learner, and the prior as it was settled."""
        return {"base": self.base.state_dict(), "prior": to_spec(self.base.prior)}

    def load_state_dict(self, state: Tree) -> None:
        """Undo `state_dict`."""
        self.base.load_state_dict(state["base"])
        self.base.prior = priors.from_spec(state["prior"]).resolve(self.base.network)


@dataclass(frozen=True, eq=False)
class End:
    """All that the posteriors of a finished learner have in common, whatever the prior's precision and the noise."""

    learner: LaplaceLearner
    network: nn.Module
    found: Curvature
    evidence: Evidence
    likelihood: Likelihood

    def tuned_on(self, held: Batch) -> Posterior:
        """With the precision under which held-out data are the most probable."""
        some = spread_out(held, ENOUGH)
        keys = {name: group(name, self.learner._grouping) for name in self.evidence.sizes}

        def judged(factors: Mapping[str, float]) -> tuple[float, Posterior]:
            one = torch.ones((), dtype=torch.float64, device=self.evidence.device)
            variances = {name: one * factors[key] for name, key in keys.items()}
            there = self.matched(Tuning(variances, one), some)
            return float(-there.predict(some.x).log_prob(some.y).mean()), there

        return search(judged, set(keys.values()))

    def matched(self, tuning: Tuning, held: Batch) -> Posterior:
        """Under these factors and the noise of held-out data, by which the curvature counts too."""
        before = self.under(tuning)
        old = before.likelihood.unknowns()
        likelihood = match(before, held).likelihood
        moves = [2 * (u - old[name]).double().mean() for name, u in likelihood.unknowns().items()]
        if not moves:
            return before
        noise = tuning.noise * torch.stack(moves).mean().exp()
        return self.under(Tuning(tuning.variances, noise)).with_context(likelihood=likelihood)

    def under(self, tuning: Tuning) -> Posterior:
        """The Gaussian under these factors, with the story of how it came about."""
        base, likelihood = self.learner.base, self.likelihood
        unknowns = {name: u + 0.5 * tuning.noise.log().to(u.dtype) for name, u in likelihood.unknowns().items()}
        every = modules.parameters(self.network)
        own = {name: every[name] for name in self.found.shapes}
        about = context(
            base.task,
            likelihood.with_unknowns(unknowns),
            log_evidence=float(self.evidence.log(tuning)) - units(base.task),
            prior_scale=self.evidence.prior_scales(tuning),
            fallbacks=dict(self.found.fallbacks),
        )
        rest = {name: p for name, p in every.items() if name not in own}
        fixed = modules.copies(rest | dict(self.network.named_buffers()))
        beside = Structured(*base.prior.gaussian(rest)) if rest else None  # what the subset leaves out keeps its prior
        parts = modules.copies(own), self.evidence.precision(tuning), fixed, about
        predictive = self.learner.method.predictive
        return Gaussian(*parts, beside) if predictive == WEIGHTS else Linearised(*parts, predictive, beside)


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


def spread_out(batch: Batch, most: int) -> Batch:
    """At most so many examples of a batch, any of them, the same every time."""
    index = torch.randperm(len(batch.y), generator=torch.Generator().manual_seed(0))[:most].to(batch.y.device)
    return Batch(inputs.take(batch.x, index), batch.y[index])


def _entropy(y: Tensor) -> Tensor:
    """Of the frequencies of labels, in nats."""
    return torch.special.entr(torch.bincount(y.flatten()) / y.numel()).sum()


def search(judge: Judge, keys: Iterable[str]) -> Posterior:
    """The posterior of the least score: all factors together first, then one after the other."""
    keys = sorted(keys)
    chosen = dict.fromkeys(keys, 1.0)
    best, posterior = judge(chosen)
    for moved in (keys, *([key] for key in keys if len(keys) > 1)):
        start = dict(chosen)
        for power in STEPS:
            tried = start | {key: start[key] * 10**power for key in moved}
            score, there = judge(tried)
            if score < best:
                best, posterior, chosen = score, there, tried
    return posterior


def _one_of(field: str, value: str, valid: Iterable[str]) -> None:
    if value not in valid:
        raise unknown(f"{field} of laplace", value, valid)
