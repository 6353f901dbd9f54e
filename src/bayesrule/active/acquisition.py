"""Which rows of a pool to ask for next: acquisitions by name, each a function of what the posterior says."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, replace
from functools import cached_property
from typing import ClassVar

import torch
from torch import Tensor

from bayesrule import modules, naming
from bayesrule.active import gaussian, information
from bayesrule.data import Inputs, Kind, inputs
from bayesrule.data.centres import k_centre
from bayesrule.naming import Named
from bayesrule.posteriors import Posterior, finite
from bayesrule.predictions import Binary, Classes

NUMBERS: tuple[Kind, ...] = ("reals", "counts")


@dataclass(eq=False)
class View:
    """What an acquisition may look at; all draws are of the same networks.

    ``candidates``: the inputs that may be asked for. ``known``: those whose labels are known. ``pool``: inputs like
    those that predictions will be asked for. ``samples``: how many networks are drawn. ``seed``: of these.
    """

    posterior: Posterior
    candidates: Inputs
    known: Inputs | None
    pool: Inputs
    samples: int = 100
    seed: int = 0

    def __len__(self) -> int:
        return inputs.length(self.candidates)

    @cached_property
    def outputs(self) -> Tensor:
        """Outputs at the candidates under joint draws, [S, N, ...], in the network's units."""
        return self.outputs_at(self.candidates)

    def outputs_at(self, x: Inputs) -> Tensor:
        """Outputs of the same networks elsewhere."""
        generator = torch.Generator(modules.device_of(self.posterior.model)).manual_seed(self.seed)
        with torch.no_grad():
            return finite(self.posterior.outputs(self.posterior.inputs(x), self.samples, generator))

    @cached_property
    def probs(self) -> Tensor:
        """Probabilities of classes at the candidates, [S, N, C]."""
        return self._probs(self.outputs)

    def probs_at(self, x: Inputs) -> Tensor:
        """Probabilities of classes elsewhere."""
        return self._probs(self.outputs_at(x))

    def among(self, rows: Tensor) -> View:
        """What may be looked at where these candidates alone are left."""
        return replace(self, candidates=inputs.take(self.candidates, rows))

    def _probs(self, outputs: Tensor) -> Tensor:
        prediction = self.posterior.likelihood.predict(outputs)
        classes = prediction.classes if isinstance(prediction, Binary) else prediction
        assert isinstance(classes, Classes)
        if classes.logits.ndim != 3:
            raise ValueError(
                f"an example must have one label, but those of this network have the shape {list(classes.shape[1:])}"
            )
        return classes.logits.softmax(2)

    def numbers_at(self, x: Inputs) -> gaussian.Draws:
        """Means and noise of numbers, in the network's units."""
        outputs, likelihood = self.outputs_at(x), self.posterior.likelihood
        means = torch.stack([likelihood.mean(each) for each in outputs])
        noise = likelihood.predict(outputs).aleatoric
        if means.ndim == 3 and means.shape[2] == 1:
            means, noise = means[:, :, 0], noise.reshape(means.shape[1])
        return gaussian.Draws.of(means, noise)

    def some_of_the_pool(self, count: int, generator: torch.Generator) -> Inputs:
        """Inputs that were drawn from the pool, all of it if there are no more."""
        rows = torch.randperm(inputs.length(self.pool), generator=generator)[:count]
        return inputs.take(self.pool, rows)


@dataclass(frozen=True)
class Acquisition(Named, ABC):
    """A rule that chooses rows: `choose` gives indices into the candidates, each once.

    ``kinds``: of labels that it is for.
    """

    name: ClassVar[str]
    summary: ClassVar[str]
    kinds: ClassVar[tuple[Kind, ...]] = ("classes",)

    @abstractmethod
    def choose(self, view: View, count: int, generator: torch.Generator) -> Tensor:
        """The rows to ask for, the best first."""

    def check(self, kind: Kind) -> None:
        """Refuse labels that it is not for."""
        if kind not in self.kinds:
            others = ", ".join(name for name, other in AVAILABLE.items() if kind in other.kinds)
            raise ValueError(f"acquire={self.name!r} is for {' and '.join(self.kinds)}, not for {kind}: take {others}")


@dataclass(frozen=True)
class Random(Acquisition):
    """Any rows: what every other acquisition has to beat."""

    name: ClassVar[str] = "random"
    summary: ClassVar[str] = "any rows: the control"
    kinds: ClassVar[tuple[Kind, ...]] = ("classes", *NUMBERS)

    def choose(self, view: View, count: int, generator: torch.Generator) -> Tensor:
        """The first of a random order."""
        return torch.randperm(len(view), generator=generator)[:count]


@dataclass(frozen=True)
class Entropy(Acquisition):
    """The largest H(y|x): rows of which the label is least known, noise included."""

    name: ClassVar[str] = "entropy"
    summary: ClassVar[str] = "labels that are least known, noise included"

    def choose(self, view: View, count: int, generator: torch.Generator) -> Tensor:
        """The largest first."""
        return _largest(information.entropy(view.probs), count)


@dataclass(frozen=True)
class VariationRatios(Acquisition):
    """The largest 1 − max p(y|x): rows whose best guess is most likely wrong."""

    name: ClassVar[str] = "variation-ratios"
    summary: ClassVar[str] = "labels whose best guess is most likely wrong"

    def choose(self, view: View, count: int, generator: torch.Generator) -> Tensor:
        """The largest first."""
        return _largest(information.variation_ratios(view.probs), count)


@dataclass(frozen=True)
class BALD(Acquisition):
    """The largest I(y; w|x): labels that tell most of the network, each on its own (`information.bald`).

    Rows that are alike are chosen together, though the second tells little after the first. Of numbers, whose
    covariance does not depend on labels, a batch takes that into account (`gaussian.bald`).
    """

    name: ClassVar[str] = "bald"
    summary: ClassVar[str] = "labels that tell most of the network, each on its own"
    kinds: ClassVar[tuple[Kind, ...]] = ("classes", *NUMBERS)

    def choose(self, view: View, count: int, generator: torch.Generator) -> Tensor:
        """The largest first."""
        if view.posterior.likelihood.kind == "classes":
            return _largest(information.bald(view.probs), count)
        return gaussian.bald(view.numbers_at(view.candidates), count)


@dataclass(frozen=True)
class BatchBALD(Acquisition):
    """The batch whose labels together tell most of the network, greedily (`information.batchbald`).

    ``configurations``: of the labels of a batch, all of them up to so many, drawn ones beyond.
    """

    name: ClassVar[str] = "batchbald"
    summary: ClassVar[str] = "the batch whose labels together tell most of the network"
    configurations: int = information.CONFIGURATIONS

    def __post_init__(self) -> None:
        if self.configurations < 2:
            raise ValueError(f"configurations must be at least 2, not {self.configurations}")

    def choose(self, view: View, count: int, generator: torch.Generator) -> Tensor:
        """In the order in which they were chosen."""
        return information.batchbald(view.probs, count, self.configurations, generator).rows


@dataclass(frozen=True)
class EPIG(Acquisition):
    """The largest mean I(y; y_*): labels that tell most of other labels of the pool, each on its own.

    ``targets``: at how many rows, drawn from the pool in each round. Of numbers (`gaussian.epig`) a batch takes into
    account what its own labels tell of each other.
    """

    name: ClassVar[str] = "epig"
    summary: ClassVar[str] = "labels that tell most of other labels of the pool"
    kinds: ClassVar[tuple[Kind, ...]] = ("classes", *NUMBERS)
    targets: int = 100

    def __post_init__(self) -> None:
        _check_targets(self.targets)

    def choose(self, view: View, count: int, generator: torch.Generator) -> Tensor:
        """The largest first."""
        targets = view.some_of_the_pool(self.targets, generator)
        if view.posterior.likelihood.kind == "classes":
            return _largest(information.epig(view.probs, view.probs_at(targets)), count)
        return gaussian.epig(view.numbers_at(view.candidates), view.numbers_at(targets), count)


@dataclass(frozen=True)
class Screened(Acquisition):
    """The choice of ``base`` among the ``keep`` candidates with the largest I(y; w|x), by few networks.

    Neither what a label adds to a batch nor what it tells of other labels is more than what it tells of the network:
    I(y; y_*) ≤ I(y; w). So rows that tell little of it need no more looks, and many draws are made for few rows. For
    ``base`` BALD, BatchBALD or EPIG; ``samples``: how many networks screen.

    >>> chosen("batchbald"), Screened(EPIG(), keep=200)
    (BatchBALD(configurations=1000), Screened(base=EPIG(targets=100), keep=200, samples=16))
    """

    name: ClassVar[str] = "screened"
    summary: ClassVar[str] = "batchbald among the rows that few networks find promising"
    base: Acquisition = BatchBALD()
    keep: int = 300
    samples: int = 16

    def __post_init__(self) -> None:
        if not isinstance(self.base, BALD | BatchBALD | EPIG):
            raise ValueError(
                f"base must be BALD, BatchBALD or EPIG, not {type(self.base).__name__}: of no other is what a label "
                "tells of the network a bound"
            )
        for name, least in (("keep", 1), ("samples", 2)):
            if (value := getattr(self, name)) < least:
                raise ValueError(f"{name} must be at least {least}, not {value}")

    def choose(self, view: View, count: int, generator: torch.Generator) -> Tensor:
        """In the order of the base."""
        few = replace(view, samples=min(self.samples, view.samples))
        rows = _largest(information.bald(few.probs), max(self.keep, count))
        return rows[self.base.choose(view.among(rows), count, generator)]


@dataclass(frozen=True)
class ExpectedVariance(Acquisition):
    """The batch of numbers after which the mean variance over the pool is least (`gaussian.expected_variance`).

    ``targets``: at how many rows, drawn from the pool in each round.
    """

    name: ClassVar[str] = "expected-variance"
    summary: ClassVar[str] = "numbers that leave the least variance over the pool"
    kinds: ClassVar[tuple[Kind, ...]] = NUMBERS
    targets: int = 100

    def __post_init__(self) -> None:
        _check_targets(self.targets)

    def choose(self, view: View, count: int, generator: torch.Generator) -> Tensor:
        """In the order in which they were chosen."""
        targets = view.some_of_the_pool(self.targets, generator)
        return gaussian.expected_variance(view.numbers_at(view.candidates), view.numbers_at(targets), count)


@dataclass(frozen=True)
class KCentre(Acquisition):
    """Rows that are farthest from all known ones, by the network's mean outputs (Sener and Savarese 2018)."""

    name: ClassVar[str] = "k-centre"
    summary: ClassVar[str] = "rows farthest from all known ones, by the network's outputs"
    kinds: ClassVar[tuple[Kind, ...]] = ("classes", *NUMBERS)

    def choose(self, view: View, count: int, generator: torch.Generator) -> Tensor:
        """The farthest first."""
        points = _points(view.outputs)
        known = None if view.known is None else _points(view.outputs_at(view.known))
        return k_centre(points, count, generator, known)


@dataclass(frozen=True)
class Relevance(Acquisition):
    """The largest tr(∇²_ff ℓ · Cov_w f(x)): rows that would hold the network most, each on its own.

    It is the relevance of examples (`br.gp.relevance`) before their label is known, which ∇²_ff ℓ does not need: the
    leverage of x under the covariance of the posterior at the end of a round, by its draws, whatever method made it.
    Nothing is gathered over the steps of training: the rows of a pool are in no batch of it. Of ivon, vogn and von that
    posterior is the Gaussian of the last step itself, mean and precision as the optimiser holds them, with no curvature
    worked out afterwards; a round ends, questions are asked, and with ``warm=True`` training goes on from that mean.
    """

    name: ClassVar[str] = "relevance"
    summary: ClassVar[str] = "rows that would hold the network most: the leverage"
    kinds: ClassVar[tuple[Kind, ...]] = ("classes", *NUMBERS)

    def choose(self, view: View, count: int, generator: torch.Generator) -> Tensor:
        """The largest first."""
        return _largest(leverage(view), count)


def leverage(view: View) -> Tensor:
    """tr(∇²_ff ℓ · Cov_w f(x)) of the candidates, [N], the Hessian at the mean outputs."""
    mean = view.outputs.mean(0)
    curvature = view.posterior.likelihood.hessian(mean)
    if curvature.ndim != 3:
        raise ValueError(f"an example must have one label, but this network gives {list(mean.shape[1:])} outputs")
    score = mean.new_zeros(len(mean))
    for draw in view.outputs:
        away = (draw - mean).reshape(len(mean), -1)
        score += torch.einsum("nc,ncd,nd->n", away, curvature, away)
    return score / len(view.outputs)


def _largest(scores: Tensor, count: int) -> Tensor:
    """Rows by their score; of equals the first."""
    return scores.argsort(descending=True, stable=True)[:count]


def _points(outputs: Tensor) -> Tensor:
    """Mean outputs [N, D] of outputs [S, N, ...]."""
    mean = outputs.mean(0)
    return mean.flatten(1) if mean.ndim > 1 else mean[:, None]


def _check_targets(targets: int) -> None:
    if targets < 1:
        raise ValueError(f"targets must be at least 1 row of the pool, not {targets}")


AVAILABLE: dict[str, type[Acquisition]] = {
    kind.name: kind
    for kind in (
        Random,
        Entropy,
        VariationRatios,
        BALD,
        BatchBALD,
        EPIG,
        Screened,
        ExpectedVariance,
        KCentre,
        Relevance,
    )
}


def chosen(given: str | Acquisition) -> Acquisition:
    """The acquisition that was asked for: an object, or a name.

    >>> chosen("bald")
    BALD()
    >>> chosen("bold")
    Traceback (most recent call last):
    ValueError: unknown acquisition 'bold': did you mean 'bald'? Valid: bald, batchbald, ...
    """
    return naming.choose("acquisition", given, AVAILABLE, Acquisition)
