"""Ways to learn one task after another.

A strategy is a frozen dataclass with one method, `Strategy.learn`: what is known after a task, from what was known
before it. Most are one call of `br.fit` under a prior that holds the past.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import ClassVar

import torch
from torch import Tensor, nn

from bayesrule import structures
from bayesrule.curvature import kernels
from bayesrule.data import Inputs, inputs
from bayesrule.lifelong import memory as memories
from bayesrule.lifelong.base import Past, Strategy, divided, keep
from bayesrule.lifelong.coordinates import Rotated, has_coordinates
from bayesrule.lifelong.fits import Fits, network_of, point
from bayesrule.lifelong.generative import Generative
from bayesrule.lifelong.inducing import InducingPoints
from bayesrule.lifelong.streams import Chapter, Examples
from bayesrule.lifelong.synaptic import SynapticIntelligence
from bayesrule.likelihoods import Likelihood
from bayesrule.methods import BBB, IVON, MAP, VOGN, Laplace, Method
from bayesrule.modules import outputs_of
from bayesrule.naming import choose
from bayesrule.posteriors import Gaussian as GaussianPosterior
from bayesrule.posteriors import Posterior, central_state
from bayesrule.priors import Flat, Functional, Gaussian, Prior, means_at

SMALLEST = 1e-8  # of a kernel's diagonal, as a share of its mean: what is added before it is inverted


@dataclass(frozen=True)
class Finetune(Strategy):
    """Train on, from where the last task has ended: what forgetting looks like. ``lr``: Adam's rate. ``scale``: of the
    normal prior of the weights."""

    name: ClassVar[str] = "finetune"
    summary: ClassVar[str] = "train on, as if there were no past"
    lr: float = 1e-3
    scale: float = 1.0

    def learn(self, past: Past, chapter: Chapter, fits: Fits) -> Past:
        """One fit from the last weights."""
        return Past(fits(network_of(past.posterior, fits), chapter.train, MAP(self.lr), Gaussian(self.scale)))

    @property
    def needs_boundaries(self) -> bool:
        """No."""
        return False


@dataclass(frozen=True)
class Joint(Strategy):
    """Train anew on all data of all tasks so far: what no strategy can hope to pass. Fields as of `Finetune`."""

    name: ClassVar[str] = "joint"
    summary: ClassVar[str] = "train anew on the data of all tasks"
    lr: float = 1e-3
    scale: float = 1.0

    def learn(self, past: Past, chapter: Chapter, fits: Fits) -> Past:
        """One fit from a fresh start."""
        seen = (*past.seen, chapter.train)
        return Past(fits(fits.fresh, memories.joined(seen), MAP(self.lr), Gaussian(self.scale)), seen=seen)


@dataclass(frozen=True)
class MemoryOnly(Strategy):
    """Train anew on the kept examples alone, in as many steps as a task has: the control that every strategy with a
    memory must beat. ``points``: kept of a task. ``rule``: see `br.lifelong.memory.choose`."""

    name: ClassVar[str] = "memory-only"
    summary: ClassVar[str] = "train anew on the kept examples alone"
    points: int = 200
    rule: str = "random"
    lr: float = 1e-3
    scale: float = 1.0

    def learn(self, past: Past, chapter: Chapter, fits: Fits) -> Past:
        """One fit from a fresh start, on the memory."""
        before = network_of(past.posterior, fits)
        kept = keep(past, self.rule, self.points, before, chapter, fits)
        train = kept.together()
        epochs = fits.epochs * max(1, round(len(chapter.train[1]) / len(train[1])))
        return Past(fits(fits.fresh, train, MAP(self.lr), Gaussian(self.scale), epochs=epochs), memory=kept)


@dataclass(frozen=True)
class Replay(Strategy):
    """Train on, on the new data and the kept examples of the past, each half of every epoch. Fields as of
    `MemoryOnly`."""

    name: ClassVar[str] = "replay"
    summary: ClassVar[str] = "train on, with the kept examples among the new"
    points: int = 200
    rule: str = "random"
    lr: float = 1e-3
    scale: float = 1.0

    def learn(self, past: Past, chapter: Chapter, fits: Fits) -> Past:
        """One fit from the last weights, on new data and memory."""
        train = chapter.train
        if past.memory.parts:
            old = past.memory.together()
            train = memories.joined([train, repeated(old, len(train[1]))])
        posterior = fits(network_of(past.posterior, fits), train, MAP(self.lr), Gaussian(self.scale))
        return Past(posterior, memory=keep(past, self.rule, self.points, network_of(posterior, fits), chapter, fits))


@dataclass(frozen=True)
class Sequential(Strategy):
    """Bayes' rule: the posterior of the past is the prior of the next, `br.fit(..., prior=posterior)`.

    ``method``: any that gives a Gaussian. With `Laplace` it is EWC (diagonal) or structured online Laplace
    (Kronecker), with `BBB` variational continual learning. ``scale``: of the first prior, normal. ``predicts``: by the
    posterior's ``"draws"``, or by the network at its ``"mean"``. ``temperature``: η of all fits; below one the data of
    all tasks alike count 1/η times, and the sequence is still that of Bayes' rule (Loo et al. 2021). ``strength``: of
    the past, see `updated`; 1 is Bayes' rule.
    """

    name: ClassVar[str] = "sequential"
    summary: ClassVar[str] = "the posterior of the past is the prior of the next"
    method: Method = field(default_factory=IVON)
    scale: float = 1.0
    predicts: str = "draws"
    temperature: float = 1.0
    strength: float = 1.0

    def __post_init__(self) -> None:
        if self.predicts not in ("draws", "mean"):
            raise ValueError(f"predicts must be 'draws' or 'mean', not {self.predicts!r}")
        for name in ("temperature", "strength"):
            if not getattr(self, name) > 0:
                raise ValueError(f"{name} must be positive, not {getattr(self, name)}")

    def learn(self, past: Past, chapter: Chapter, fits: Fits) -> Past:
        """One fit."""
        belief = updated(past.belief, chapter.train, fits, self)
        return Past(point(belief) if self.predicts == "mean" else belief, belief)

    @property
    def needs_boundaries(self) -> bool:
        """No: any cut of the data will do."""
        return False


@dataclass(frozen=True)
class Weighted(Strategy):
    """Sequential Laplace in which the past counts ``strength`` times what Bayes' rule gives it.

    A task is learnt at temperature ``strength`` under the prior of the past, L(D|w)·p(w)^strength; its curvature is
    then added to that of the past as it is. With strength 1 it is `Sequential`, but for Kronecker products, of which
    one is kept for all tasks (`br.structures.Kronecker.pooled`), so that a step costs the same in all tasks.
    ``structure``: of the curvature, ``"diagonal"`` is EWC. ``scale``: of the first prior.
    """

    name: ClassVar[str] = "weighted"
    summary: ClassVar[str] = "online Laplace with a factor on the past"
    structure: str = "diagonal"
    strength: float = 1.0
    lr: float = 1e-3
    scale: float = 1.0

    def __post_init__(self) -> None:
        if not self.strength > 0:
            raise ValueError(f"strength must be positive, not {self.strength}")

    def learn(self, past: Past, chapter: Chapter, fits: Fits) -> Past:
        """Two fits: the mode, and the curvature there."""
        laplace = Laplace("all", self.structure, tune="nothing", lr=self.lr, predictive="weights")
        if past.belief is None:
            belief = fits(fits.fresh, chapter.train, laplace, Gaussian(self.scale))
        else:
            network = self._mode(past.belief, chapter, fits)
            belief = pooled(fits(network, chapter.train, laplace, past.belief.as_prior(), epochs=0))
        return Past(point(belief), belief)

    @property
    def needs_boundaries(self) -> bool:
        """No: any cut of the data will do."""
        return False

    def _mode(self, past: Posterior, chapter: Chapter, fits: Fits) -> nn.Module:
        """argmin of the task's loss plus strength/2 (w − w₀)ᵀΛ(w − w₀), from w₀."""
        assert isinstance(past, GaussianPosterior)
        if not has_coordinates(past.precision):
            mode = fits(network_of(past, fits), chapter.train, MAP(self.lr), past.as_prior(), self.strength)
            return network_of(mode, fits)
        rotated = Rotated(fits.fresh, past)
        x, y = chapter.train
        mode = fits(rotated, (rotated.inputs(x), y), MAP(self.lr), rotated.prior, self.strength)
        rotated.load_state_dict(central_state(mode), strict=False)
        network = network_of(past, fits)
        network.load_state_dict(rotated.weights(), strict=False)
        return network


@dataclass(frozen=True)
class Coreset(Strategy):
    """Variational continual learning with coresets (Nguyen et al. 2018): some examples of each task are kept out of
    Bayes' rule, and what predicts is the posterior after them, too.

    ``method``: of both fits. ``points``: kept of a task. ``rule``: ``"random"`` or ``"k-centre"``, which do not look
    at what was learnt. ``scale``, ``temperature``, ``strength``: as of `Sequential`; the coresets are learnt by Bayes'
    rule as it is.
    """

    name: ClassVar[str] = "coreset"
    summary: ClassVar[str] = "Bayes' rule, with kept examples learnt last"
    method: Method = field(default_factory=BBB)
    points: int = 200
    rule: str = "random"
    scale: float = 1.0
    temperature: float = 1.0
    strength: float = 1.0

    def __post_init__(self) -> None:
        self.bayes()

    def bayes(self) -> Sequential:
        """How the rest of a task is learnt."""
        return Sequential(self.method, self.scale, temperature=self.temperature, strength=self.strength)

    def learn(self, past: Past, chapter: Chapter, fits: Fits) -> Past:
        """Two fits: on the rest of the task, and from there on all coresets."""
        before = network_of(past.posterior, fits)
        part, rest = divided(self.rule, self.points, before, chapter, fits)
        kept = past.memory.with_part(part)
        belief = updated(past.belief, rest, fits, self.bayes())
        train = kept.together()
        epochs = fits.epochs * max(1, round(len(rest[1]) / len(train[1])))
        return Past(fits(fits.fresh, train, self.method, belief, epochs=min(epochs, 20 * fits.epochs)), belief, kept)


@dataclass(frozen=True)
class Functions(Strategy):
    """Functional regularisation of the memorable past (FROMP, Pan et al. 2020): the network is to say at the kept
    points what it said there.

    The penalty is ½ Σ_s Σ_c dᵀ K⁻¹ d, see `br.priors.Functional`, with K = J Σ Jᵀ + εI, J the Jacobian of the means at
    the points, and Σ the diagonal of the online Laplace posterior. Both are taken when a task begins. ``points``: kept
    of a task. ``rule``: see `br.lifelong.memory.choose`. ``strength``: τ of FROMP, the penalty's factor beside a mean
    loss. ``scale``: of the prior of Σ, 1/scale² its precision. ``kernel``: False puts I in the place of K.
    ``weights``: a factor on the log density of the online Laplace posterior itself beside it, ½(w − w₀)ᵀΛ(w − w₀)
    (K-priors; EWC with functional regularisation); 0: none. ``structure``: of Λ.
    """

    name: ClassVar[str] = "functions"
    summary: ClassVar[str] = "the network says at kept points what it said there"
    points: int = 200
    rule: str = "relevance"
    strength: float = 0.5
    scale: float = 300.0
    jitter: float = 1e-5
    kernel: bool = True
    weights: float = 0.0
    structure: str = "diagonal"
    lr: float = 1e-3

    def learn(self, past: Past, chapter: Chapter, fits: Fits) -> Past:
        """Two fits: under the functional prior, and the curvature where it has ended."""
        total = len(chapter.train[1])
        if past.belief is None:
            weak: Prior = Gaussian(self.scale)
            mode = fits(fits.fresh, chapter.train, MAP(self.lr), weak)
        else:
            weak = past.belief.as_prior()
            prior = self._prior(past, weak, fits)
            mode = fits(network_of(past.posterior, fits), chapter.train, MAP(self.lr), prior, self.strength * total)
        network = network_of(mode, fits)
        laplace = Laplace("all", self.structure, tune="nothing", predictive="weights")
        belief = fits(network, chapter.train, laplace, weak, epochs=0)
        return Past(mode, belief, keep(past, self.rule, self.points, network, chapter, fits))

    def _prior(self, past: Past, weak: Prior, fits: Fits) -> Functional:
        """What the network says now at all points, and how far that is believed to move."""
        assert past.belief is not None
        network = network_of(past.posterior, fits)
        variances = past.belief.as_prior().gaussian(past.belief.mean)[1].variances.double()
        points, means, precisions = [], [], []
        for x, _ in past.memory.parts:
            mean = means_at(fits.likelihood, outputs_of(network, x))
            points.append(x)
            means.append(mean)
            precisions.append(self._precision(network, x, mean, variances, fits.likelihood))
        base: Prior = Flat()
        if self.weights:
            # the whole prior counts strength·N times; the density of the weights is to count ``weights`` times
            total = self.strength * fits.examples
            base = weak.tempered(total / self.weights)
        return Functional(fits.likelihood.name, points, means, precisions, base)

    def _precision(
        self, network: nn.Module, x: Inputs, mean: Tensor, variances: Tensor, likelihood: Likelihood
    ) -> Tensor:
        """K⁻¹ of each output, [C, M, M]."""
        count, outputs = mean.shape
        if not self.kernel:
            return torch.eye(count).expand(outputs, count, count).clone()
        # in double precision: points that say nearly the same make a kernel that is nearly singular
        kernel = kernels(_Means(network, likelihood), x, variances)
        least = self.jitter + SMALLEST * kernel.diagonal(dim1=1, dim2=2).mean(1)
        kernel += least[:, None, None] * torch.eye(count, dtype=torch.float64)
        return torch.cholesky_inverse(torch.linalg.cholesky(kernel)).float()


class _Means(nn.Module):
    """The means of a network's outputs."""

    def __init__(self, network: nn.Module, likelihood: Likelihood) -> None:
        super().__init__()
        self.network, self.likelihood = network, likelihood

    def forward(self, *args: Tensor, **kwargs: Tensor) -> Tensor:
        """[B, C]."""
        return means_at(self.likelihood, self.network(*args, **kwargs))


def repeated(examples: Examples, count: int) -> Examples:
    """The examples again and again until there are ``count``."""
    x, y = examples
    rows = torch.arange(count) % len(y)
    return inputs.take(x, rows), y[rows]


def updated(past: Posterior | None, train: Examples, fits: Fits, by: Sequential) -> Posterior:
    """What is known after ``train``: the posterior under the past, or under the first prior.

    With a strength s other than 1 it is learnt under p(w)^s and the past's precision is then counted once:
    Λ = Λ_past + (Λ' − sΛ_past) for the precision Λ' that was found, which adds the curvature of the new data as it is.
    """
    if past is None:
        return fits(fits.fresh, train, by.method, Gaussian(by.scale), by.temperature)
    if by.strength == 1:
        return fits(fits.fresh, train, by.method, past, by.temperature)
    before = _diagonal(past)
    stronger = past.as_prior().tempered(1 / by.strength)
    found = fits(network_of(past, fits), train, by.method, stronger, by.temperature)
    assert isinstance(found, GaussianPosterior)
    # noise, or a saddle, may have left less than the prior had: such data say nothing of the weight
    added = (_diagonal(found) - by.strength * before).clamp(min=0)
    precision = structures.Diagonal(before + added)
    return GaussianPosterior(found.mean, precision, found.fixed, found.context, found.beside, found.spread)


def _diagonal(belief: Posterior) -> Tensor:
    """The precision of independent weights."""
    if not isinstance(belief, GaussianPosterior) or not isinstance(belief.precision, structures.Diagonal):
        raise ValueError(
            "strength must be 1 unless the posterior is a Gaussian of independent weights, as of ivon or bbb: take "
            "br.lifelong.Weighted(structure, strength) for Laplace's"
        )
    return belief.precision.diagonal


def pooled(belief: Posterior) -> Posterior:
    """The Gaussian with one Kronecker product in the place of one for each task."""
    assert isinstance(belief, GaussianPosterior)
    precision = structures.pooled(belief.precision)
    return GaussianPosterior(belief.mean, precision, belief.fixed, belief.context, belief.beside, belief.spread)


# Strengths, rates, scales and temperatures were chosen on held-out training examples of five or ten permuted MNIST
# tasks (`Stream.tuning`), 20 000 examples and 3 or 10 epochs each.
AVAILABLE: dict[str, Callable[[], Strategy]] = {
    "finetune": Finetune,
    "joint": Joint,
    "memory-only": MemoryOnly,
    "replay": Replay,
    "ewc": lambda: Weighted("diagonal", strength=10.0, lr=3e-3),
    "kfac-laplace": lambda: Weighted("kronecker", strength=3.0, lr=5e-3),
    "si": lambda: Sequential(SynapticIntelligence(strength=1.0, lr=3e-3), predicts="mean"),
    "vcl": lambda: Sequential(BBB(), scale=0.3),
    "vcl-coreset": lambda: Coreset(BBB(), scale=0.3),
    "ivon": lambda: Sequential(IVON(lr=0.1), scale=0.2, temperature=0.1),
    "vogn": lambda: Sequential(VOGN(lr=0.1), scale=0.2, temperature=0.1),
    "fromp": lambda: Functions(strength=0.05, lr=3e-3),
    "ewc-functions": lambda: Functions(strength=0.05, lr=3e-3, weights=1.0),
    "frcl": InducingPoints,
    "generative": Generative,
}


ALIASES = {"online-ewc": "ewc", "k-priors": "ewc-functions", "ewc-fr": "ewc-functions"}  # names that people look for


def chosen(given: str | Strategy) -> Strategy:
    """The strategy that was asked for: an object, or a name with settings that suit it.

    >>> chosen("online-ewc") == chosen("ewc")
    True
    """
    known = ALIASES.get(given, given) if isinstance(given, str) else given
    return choose("strategy", known, AVAILABLE, Strategy)  # type: ignore[arg-type]
