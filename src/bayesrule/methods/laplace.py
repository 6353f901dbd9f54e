"""Laplace's method: a Gaussian about the mode, as wide as the loss is flat."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from numbers import Integral
from typing import ClassVar, cast, get_args

import torch
from torch import Tensor, nn

from bayesrule import modules, priors
from bayesrule.curvature import (
    LABELS,
    STRUCTURES,
    Bill,
    Grouping,
    Labels,
    StructureName,
    Subset,
    Tuning,
    bill,
    curvature,
    last_layer,
)
from bayesrule.data import Batch, inputs
from bayesrule.files import Tree
from bayesrule.likelihoods import Likelihood
from bayesrule.methods.base import Learner, Logs, Method, Needs, Plan, context
from bayesrule.methods.expansion import (
    BATCH,
    ENOUGH,
    LOG_NOISE,
    WEIGHTS,
    Expansion,
    check_prior,
    in_parts,
    scaled,
    some_of,
    subsample,
)
from bayesrule.methods.insurance import Insurance
from bayesrule.methods.point import PointLearner
from bayesrule.naming import to_spec, unknown
from bayesrule.optim import Group
from bayesrule.posteriors import LINKS, WIDE, Particles, Posterior, check_link, match
from bayesrule.predictions import Classes
from bayesrule.priors import Prior
from bayesrule.seeds import Noise
from bayesrule.structures import Structure
from bayesrule.task import Task

TUNE = ("evidence", "held-out", "nothing")
FEW = 4096  # weights up to which all of them may be uncertain where nobody says which
BUDGET = 1.5e11  # operations that a structure may take where nobody says which: some seconds on one core
MODEST = 10**9  # bytes that it may take
BY_COST: tuple[StructureName, ...] = ("dense", "kronecker", "diagonal")  # each keeps less than the one before
ROUNDS = 4  # of tuning by evidence, each followed by steps to the mode of the prior that was found
SMALL = 512  # weights up to which a round costs next to nothing, and there may be four times as many
STEPS = 6  # of Newton with one curvature
SOME = 512  # training examples whose curvature stands for that of all, for a module that is taken as it is
PRICED, NUMBERS = 256, 1280  # of these that tell what doubt costs, and of their outputs; at least 64 examples
HELD = 2**25  # numbers of gradients that these may take
NEAR = 0.05  # posterior deviations off the mode that do not matter


@dataclass(frozen=True)
class Laplace(Method):
    """q(w) = N(w*, Λ⁻¹), Λ = Λ₀ + G/η: w* the mode, as `MAP` finds it, G the generalised Gauss–Newton matrix of the
    loss there, Λ₀ the precision of a Gaussian prior (MacKay 1992; Immer 2021).

    With ``epochs=0`` the module is taken as it is: Laplace's method after the fact, for a network that is trained.
    Under a prior that is the posterior of earlier data the sum of precisions is sequential Bayes.

    ``subset``: the weights that are uncertain, ``"all"``, ``"last-layer"``, or names of parameters or layers; None:
    all where they are at most 4096 or no layer is the last, those of the last layer otherwise, and after the fact
    where ``tune`` is None too. ``structure``: of G, ``"diagonal"``, ``"kronecker"``, ``"lowrank"`` or ``"dense"``;
    None: dense where that takes at most 1.5e11 operations and 1 GB, else Kronecker products where these do, else
    diagonal; where both are None, a dense matrix of the last layer comes before other structures of all weights, but no
    dense one for classes after the fact. ``labels``: ``"exact"``, ``"sampled"`` or ``"empirical"``, see
    `br.curvature.curvature`. ``samples``: draws of labels where they are sampled. ``tune``: what settles how wide q is.
    The ``"evidence"`` tunes the prior's precision and the noise, and moves w* to the mode under them; ``"held-out"``
    data a factor on q's covariance, and the noise, under the prior as it is; or ``"nothing"``. None: held-out data
    where they are given or can be spared, but the evidence for reals and for several factors, and nothing under a
    prior that earlier data have taught; for classes of a module that is taken as it is, as much doubt as costs what
    it gets right next to nothing, or as held-out data say, by the curvature of 512 examples (see `insurance`).
    ``precision``: how many factors on the prior's precision the evidence tunes, ``"one"``, one for each ``"layer"`` or
    for each ``"parameter"``. ``tune_every``: epochs between tunings while training; 0 tunes at the end.
    ``predictive``: by the tangent, ``"sampling"``, ``"probit"`` or ``"bridge"``, see `br.posteriors.Linearised`; or by
    drawn ``"weights"``. ``rank``: directions that a low-rank structure keeps. ``lr``: Adam's learning rate after the
    warm-up. ``newton``: Gauss–Newton steps to the mode after training, w ← w − Λ⁻¹∇, each as long as the loss falls;
    a linear model with normal noise needs one, from any weights.
    """

    name: ClassVar[str] = "laplace"
    summary: ClassVar[str] = "a Gaussian about the mode, as wide as the loss is flat"
    weighs: ClassVar[bool] = True
    post_hoc: ClassVar[bool] = True
    subset: str | tuple[str, ...] | None = None
    structure: str | None = None
    labels: str = "exact"
    samples: int = 1
    tune: str | None = None
    precision: str = "one"
    tune_every: int = 0
    predictive: str = "sampling"
    rank: int = 32
    lr: float = 1e-2
    newton: int = 0

    def __post_init__(self) -> None:
        _one_of("structure", self.structure or STRUCTURES[0], STRUCTURES)
        _one_of("labels", self.labels, LABELS)
        _one_of("tune", self.tune or TUNE[0], TUNE)
        _one_of("precision", self.precision, get_args(Grouping))
        _one_of("predictive", self.predictive, (*LINKS, WEIGHTS))
        for field, least in (("tune_every", 0), ("samples", 1), ("rank", 1), ("newton", 0)):
            value = getattr(self, field)
            if not isinstance(value, Integral) or value < least:
                raise ValueError(f"{field} must be a whole number of at least {least}, not {value!r}")
        if self.precision != "one" and self.tune == "held-out":
            raise ValueError(
                f"precision must be 'one' where held-out data tune, not {self.precision!r}: they tell how wide the "
                "posterior is to be, not the prior of each layer; take tune='evidence'"
            )
        if self.tune_every and self.tune not in (None, "evidence"):
            raise ValueError(
                f"tune_every must be 0 unless the evidence tunes, not {self.tune_every} with tune={self.tune!r}"
            )
        if self.subset not in (None, "all", "last-layer"):
            names = self.subset or ()
            if isinstance(names, str):  # from a command line
                names = tuple(names.split(","))
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
        asked = self.tune in ("evidence", "held-out") or (self.tune_every and not task.prior.learnt)
        check_prior(task.prior, task.parameters(), cast(Grouping, self.precision) if asked else None)
        insured = self.insures(task, plan.epochs)
        method, needed = self._settled(task, self._as_it_stands(task, plan.epochs), insured)
        if task.data.weight is not None:
            _check_weighable(method, plan.epochs)
        if plan.epochs == 0:
            needed = replace(needed, before=_of_a_look(task))
        needed.check(min(BATCH, task.data.n), task.device)
        return LaplaceLearner(method, PointLearner(task, plan, Group(lr=self.lr)), noise, needed, insured)

    def insures(self, task: Task, epochs: int) -> bool:
        """Whether q is as wide as costs next to nothing, or as held-out data say: for classes, of a trained module."""
        asked = self.tune_every or self.precision != "one"
        if not self._as_it_stands(task, epochs) or asked or self.labels != "exact" or self.structure == "lowrank":
            return False
        outputs = task.outputs(task.model, next(task.ordered(1)).x)
        return task.likelihood.kind == "classes" and outputs.ndim <= 2 and outputs.numel() <= WIDE

    def needs(self, task: Task, epochs: int) -> Needs:
        """The evidence needs no data beside those of the training, and a trained module has seen them all."""
        if self.tune is None and task.prior.learnt:
            return Needs("none")
        if self.tune == "held-out":
            return Needs("required")
        if self.tune == "nothing" and epochs > 0:
            return super().needs(task, epochs)
        return Needs("optional" if epochs > 0 and self.tunes_on_held_out(task) else "none")

    def _as_it_stands(self, task: Task, epochs: int) -> bool:
        """Whether a trained module is taken as it is, and nobody says how wide q is to be."""
        return not epochs and self.tune is None and not self.newton and not task.prior.learnt

    def _settled(self, task: Task, as_it_stands: bool, insured: bool) -> tuple[Laplace, Bill]:
        """With subset and structure chosen where they are None, and what these will take.

        The first that is cheap, of those that keep less and less; the last in any case. It depends on the shapes and on
        the number of examples alone, so that it is the same on every machine and in every process.
        """
        x = next(task.ordered(1)).x
        columns = {"exact": None, "sampled": self.samples, "empirical": 1}[self.labels]
        examples = min(SOME, task.data.n) if insured else task.data.n
        last = _last_layer(task) if self.subset is None else []
        for subset, structure in self._candidates(task, as_it_stands, insured, bool(last)):
            names = last if last and subset == "last-layer" else subset
            found = bill(task.model, x, structure, names, columns, self.rank)
            cheap = found.operations(examples) <= BUDGET and found.memory(min(BATCH, task.data.n)) <= MODEST
            if self.structure is not None or cheap:
                break
        names = subset if isinstance(subset, str) else tuple(subset)
        return replace(self, subset=names, structure=structure), found

    def _candidates(
        self, task: Task, as_it_stands: bool, insured: bool, has_last: bool
    ) -> list[tuple[Subset, StructureName]]:
        """Subsets and structures to choose from, the best first; ``has_last``: whether there is a last layer.

        Of a network that is taken as it is the evidence may tune the last layer alone: it takes the weights for the
        mode, which has followed the noise in every direction that the data determine. Training that was ended early has
        done so in the last layer at most, and with all weights the evidence finds several times the noise that is
        there.
        """
        structures = BY_COST if self.structure is None else (cast(StructureName, self.structure),)
        if self.structure is None and task.data.weight is not None:
            structures = ("dense", "diagonal")  # Kronecker factors have no weights
        weights = sum(p.numel() for p in task.parameters().values())
        if insured:
            return self._cheap(structures, has_last, weights)
        if self.subset is not None:
            return [(self.subset, structure) for structure in structures]
        if not has_last:  # outputs that are a sum of layers', for instance
            return [("all", structure) for structure in structures]
        if weights > FEW or as_it_stands:
            return [("last-layer", structure) for structure in structures]
        first, *others = structures
        return [("all", first), ("last-layer", first), *[("last-layer", structure) for structure in others]]

    def _cheap(
        self, structures: Sequence[StructureName], has_last: bool, weights: int
    ) -> list[tuple[Subset, StructureName]]:
        """Those that take about an epoch of training: of the last layer, without a matrix of all its weights.

        Where somebody says which weights, and the network is small, such a matrix is as cheap.
        """
        if self.structure is None and (self.subset is None or weights > SMALL):
            structures = structures[1:]
        subset: Subset = "all"
        if self.subset is not None:
            subset = self.subset
        elif has_last:
            subset = "last-layer"
        return [(subset, structure) for structure in structures]

    def tunes_on_held_out(self, task: Task) -> bool:
        """Whether held-out data tune the precision, if there are any."""
        if self.tune is not None:
            return self.tune == "held-out"
        return not self.tune_every and self.precision == "one" and not task.likelihood.unknowns()


class LaplaceLearner(Learner):
    """A point learner, and what its end is worth; ``needed``: what that takes. ``insured``: see `Laplace.insures`."""

    def __init__(self, method: Laplace, base: PointLearner, noise: Noise, needed: Bill, insured: bool) -> None:
        self.method, self.base, self.noise, self.needed, self.insured = method, base, noise, needed, insured

    def step(self, batch: Batch) -> Logs:
        """A step of the point learner; now and then the prior and the noise are settled anew."""
        logs = self.base.step(batch)
        every = self.method.tune_every * self.base.plan.steps_per_epoch
        unasked = self.method.tune is None and self.base.task.prior.learnt
        if every and self.base.steps % every == 0 and not unasked:
            self._retune()
        return logs

    def _retune(self) -> None:
        tuning = self._expansion(self.base.network, self.base.learnt()).evidence.tuned(self._grouping)
        self.base.prior = scaled(self.base.prior, self.base.parameters, tuning)
        with torch.no_grad():
            if LOG_NOISE in self.base.unknowns:  # a log deviation; the factor is on the variance
                self.base.unknowns[LOG_NOISE] += 0.5 * tuning.noise.log()

    @property
    def _grouping(self) -> Grouping:
        return cast(Grouping, self.method.precision)

    def posterior(self) -> Posterior:
        """The network as it is: the curvature takes a pass over the data."""
        return self.base.posterior()

    def conclude(self, held: Batch | None) -> Posterior:
        """The Gaussian at the mode, under the prior and the noise that are settled as ``tune`` says."""
        if self.insured:
            return self._after_the_fact(held)
        self.base.check_sound()
        network, likelihood = self.base.at_mode(), self.base.learnt()
        trained = self.base.steps > 0
        # Noise that no training has learnt is that about the network as it stands, and a step of Newton moves both.
        for _ in range(self.method.newton):
            if not trained:
                likelihood = self._point(network).likelihood
            network = self._expansion(network, likelihood).newton_step()
        if not trained:
            likelihood = self._noise_as_it_is(network)
        end = self._expansion(network, likelihood)
        neutral = Tuning.neutral(end.evidence.sizes, end.evidence.device)
        if self.method.tune is None and self.base.task.prior.learnt:
            return end.under(neutral)
        if held is not None and self.method.tunes_on_held_out(self.base.task):
            # Of a part of the weights there is no mode as long as the others are not at theirs.
            whole = trained and len(end.weights) == len(self.base.parameters)
            return (self._at_mode(end) if whole else end).tuned_on(held)
        if self.method.tune in (None, "evidence"):
            return self._by_evidence(end)
        if held is not None:
            return end.matched(neutral, held)
        return end.under(neutral)

    def _after_the_fact(self, held: Batch | None) -> Posterior:
        """The Gaussian about a trained network, as wide as costs next to nothing, or as held-out data say.

        By the curvature of some examples, scaled up to all; see `insurance`.
        """
        task, network = self.base.task, self.base.network
        some = some_of(task, SOME)
        end = self._expansion(network, task.likelihood, some=some)
        self._check_trained(end.found.loss / task.data.n, some.y)
        gradients = max(1, self.needed.footprint.gradients * self.needed.footprint.columns)
        outputs = max(1, self.needed.footprint.columns)
        priced = min(PRICED, max(64, NUMBERS // outputs), len(some.y), max(8, HELD // gradients))
        few = torch.arange(priced, device=some.y.device)
        means, precision = self.base.prior.gaussian(end.weights)
        offsets = {name: w.detach() - means[name] for name, w in end.weights.items()}
        if held is not None:
            held = subsample(held, ENOUGH)
            held = Batch(self.base.posterior().inputs(held.x), held.y)
        power = 1 / task.temperature
        insurance = Insurance(network, task.likelihood, some.take(few), offsets, task.data.n, power)
        precision, g = precision.to(torch.float64), end.found.matrix.to(torch.float64)
        settled = insurance.settle(precision, g * power, held)
        if settled.left:
            warnings.warn(settled.sentence(), stacklevel=9)  # where `br.fit` was called
        about = context(
            task,
            task.likelihood,
            prior_scale=_scales(precision * settled.tightness, end.found.shapes),
            spread=settled.spread,
            stiffness=settled.stiffness,
            premium=settled.premium,
            settled=settled.sentence(),
            curvature_examples=len(some.y),
            fallbacks=dict(end.found.fallbacks),
            **end.choice,
        )
        return end.gaussian(settled.precision, settled.spread, about)

    def _by_evidence(self, here: Expansion) -> Posterior:
        """Under the prior and the noise of the largest evidence, at the mode that belongs to them.

        Another prior has another mode, and another mode another prior: in turns, until both stay, `ROUNDS` are over
        (MacKay 1992), or as many passes over the data were taken as by the training. A module that is taken as it is
        stays where it is.
        """
        if self.base.steps == 0:
            return here.under(here.evidence.tuned(self._grouping))
        passes = self._passes()
        rounds = ROUNDS if sum(here.evidence.sizes.values()) > SMALL else 4 * ROUNDS
        for _ in range(rounds):
            tuning = here.evidence.tuned(self._grouping)
            there = here.retuned(tuning)
            nearer = self._nearer(there, passes)
            arrived = nearer is there
            del there  # with matrices that may be large
            if arrived:
                del nearer
                return here.under(tuning)
            here = nearer
        return here.under(here.evidence.tuned(self._grouping))

    def _at_mode(self, here: Expansion) -> Expansion:
        """The expansion about the mode under the same prior and noise, or as near as the passes that there are come."""
        passes = self._passes()
        for _ in range(ROUNDS):
            nearer = self._nearer(here, passes)
            if nearer is here:
                break
            here = nearer
        return here

    def _passes(self) -> Passes:
        """As many as the training took; one for each backward pass that a curvature needs."""
        # To a last layer little goes back.
        columns = 1 if self.method.subset == "last-layer" else max(1, self.needed.footprint.columns)
        return Passes(self.base.steps // self.base.plan.steps_per_epoch, columns)

    def _nearer(self, here: Expansion, passes: Passes) -> Expansion:
        """A curvature further on the way to the mode; ``here``, if it is there or there is no way."""
        if here.off_mode <= NEAR:
            return here
        near = max(NEAR / 2, here.off_mode / 10)  # there the curvature is another one, and with it the best prior
        network, used = here.descended(min(STEPS, max(0, passes.left - passes.curvature)), near)
        passes.left -= used
        if network is here.network:
            return here
        passes.left -= passes.curvature
        return self._expansion(network, here.likelihood, here.prior)

    def _point(self, network: nn.Module) -> Posterior:
        """One network, with the noise about it on all training data."""
        point = Particles.of([network], context(self.base.task, self.base.learnt()))
        return match(point, self.base.task.data.raw())

    def _noise_as_it_is(self, network: nn.Module) -> Likelihood:
        """At a network that no fit has trained: is it good for anything, and what is the noise about it?"""
        data = self.base.task.data.raw()
        point = self._point(network)
        prediction = point.predict(data.x)
        # Under a posterior of the past the network may know that alone, and what the new data add is all that is asked.
        if isinstance(prediction, Classes) and not self.base.task.prior.learnt:
            self._check_trained(-float(prediction.log_prob(data.y).mean()), data.y)
        return point.likelihood

    def _check_trained(self, loss: float, y: Tensor) -> None:
        """Tell of a network that is no better than one that knows how frequent each class is."""
        chance = float(_entropy(y.long()))
        if loss >= chance:
            warnings.warn(
                f"the network's NLL is {loss:.3g}, no better than the {chance:.3g} of guessing by "
                "the frequency of each class: Laplace's method is for a trained network; train it, or epochs=None",
                stacklevel=10,  # where `br.fit` was called
            )

    def _expansion(
        self, network: nn.Module, likelihood: Likelihood, prior: Prior | None = None, some: Batch | None = None
    ) -> Expansion:
        """The loss about a network's weights, over all training data or by ``some`` that stand for them all.

        Sampled labels are the same in all processes.
        """
        method, task = self.method, self.base.task
        given = task.ordered(BATCH) if some is None else in_parts(some, BATCH)
        found = curvature(
            network,
            given,
            likelihood,
            cast(StructureName, method.structure),
            [name for block in self.needed.blocks for name in block.parameters],
            cast(Labels, method.labels),
            method.samples,
            self.noise.shared,
            rank=method.rank,
        )
        if found.examples < task.data.n:
            share = task.data.n / found.examples
            found = replace(found, matrix=found.matrix * share, loss=found.loss * share, examples=task.data.n)
        subset = method.subset if isinstance(method.subset, str) else list(method.subset or ())
        choice = {"structure": str(method.structure), "subset": subset}
        return Expansion(task, prior or self.base.prior, network, likelihood, found, method.predictive, choice)

    def state_dict(self) -> Tree:
        """That of the point learner, and the prior as it was settled."""
        return {"base": self.base.state_dict(), "prior": to_spec(self.base.prior)}

    def load_state_dict(self, state: Tree) -> None:
        """Undo `state_dict`."""
        self.base.load_state_dict(state["base"])
        self.base.prior = priors.from_spec(state["prior"]).resolve(self.base.network)


def _last_layer(task: Task) -> list[str]:
    """The parameters of the last layer; none, if there is no such layer."""
    try:
        return last_layer(task.model, next(task.ordered(1)).x)
    except ValueError:
        return []


def _of_a_look(task: Task) -> int:
    """Bytes that a prediction of all training data takes, beside the data: a copy for the check that all are finite."""
    one = sum(part.numel() * part.element_size() for _, part in inputs.named(next(task.ordered(1)).x))
    return int(1.5 * task.data.n * one)


@dataclass
class Passes:
    """Over the data: how many may still be taken, and how many a curvature counts for."""

    left: int
    curvature: int


def _scales(precision: Structure, shapes: Mapping[str, torch.Size]) -> dict[str, float]:
    """The mean standard deviation of each parameter's weights, given all others."""
    parts = torch.split(precision.diagonal.rsqrt(), [shape.numel() for shape in shapes.values()])
    return {name: float(part.mean()) for name, part in zip(shapes, parts, strict=True)}


def _entropy(y: Tensor) -> Tensor:
    """Of the frequencies of labels, in nats."""
    return torch.special.entr(torch.bincount(y.flatten()) / y.numel()).sum()


def _check_weighable(method: Laplace, epochs: int) -> None:
    """Refuse weights of examples where they would not count."""
    if method.structure == "kronecker":
        raise ValueError(
            "structure must be 'dense', 'diagonal' or 'lowrank' for weighted examples, not 'kronecker', whose factors "
            "have no weights: say which"
        )
    if not epochs:
        raise ValueError("laplace does not know weights of examples for a trained module, epochs=0: give train=(X, y)")


def _one_of(field: str, value: str, valid: Iterable[str]) -> None:
    if value not in valid:
        raise unknown(f"{field} of laplace", value, valid)
