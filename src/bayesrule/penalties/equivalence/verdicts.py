"""Why a penalty has no prior."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar, Literal

from torch import Tensor

from bayesrule.penalties.equivalence.drift import Drift
from bayesrule.penalties.equivalence.implied import Implied

Reason = Literal["depends on ν", "no deconvolution", "not integrable"]
Bands = tuple[tuple[float, float], ...]


@dataclass(frozen=True, eq=False)
class Verdict:
    """No prior α has r = KL(β‖α) + K.

    | reason | measure |
    | --- | --- |
    | depends on ν | how much A_ν changes over the range of ν, in nats |
    | no deconvolution | how much the last band of frequencies that was seen adds to A, or how far off A is, in nats |
    | not integrable | dA/d log abs x far out, which must be below −1 |

    ``sentence`` says it in words. ``completion``: where all that is missing is a term c(ν), that term: r + c is
    KL(β‖α), with α in ``completed``.
    """

    exists: ClassVar[bool] = False
    reason: Reason
    measure: float
    sentence: str
    completion: Callable[[float | Tensor], Tensor] | None = None
    completed: Implied | None = None

    def __str__(self) -> str:
        return f"no prior ({self.reason}): {self.sentence}"


def changes(drift: Drift, scales: tuple[float, ...]) -> Verdict:
    """A_ν changes its shape."""
    return Verdict(
        "depends on ν",
        drift.shape,
        f"what the penalty says of the prior changes with ν: the prior that fits at ν = {scales[0]:.3g} is off by up "
        f"to {drift.shape:.3g} nats at others up to ν = {scales[-1]:.3g}, and more at some μ than at others. No term "
        f"in ν alone mends that; fix ν, or start from a prior, with br.penalties.penalty_of.",
    )


def incomplete(
    drift: Drift, scales: tuple[float, ...], completion: Callable[[float | Tensor], Tensor], completed: Implied
) -> Verdict:
    """A_ν changes by a constant only."""
    return Verdict(
        "depends on ν",
        drift.constant,
        f"a term in ν alone is missing: from ν = {scales[0]:.3g} to ν = {scales[-1]:.3g} the penalty is off by up to "
        f"{drift.constant:.3g} nats, so that training ν with it is not inference. Add completion(ν) to the penalty; it "
        f"is then the divergence from the prior in completed.",
        completion,
        completed,
    )


def not_integrable(slope: float) -> Verdict:
    """exp(A) has no finite integral."""
    how = "grows as a power of |x|"
    if slope < 1e3:
        how = f"goes as {slope:.3g}·log|x|, and the factor must be below −1"
    return Verdict(
        "not integrable",
        slope,
        f"exp(A) has no finite integral, so it is no density: far out A {how}. The penalty has to grow faster "
        f"with |μ|.",
    )


def too_rough(bands: Bands) -> Verdict:
    """The spectrum of r falls off more slowly than that of the family."""
    first, top, last = 0.0, 0.0, 0.0
    if bands:
        _, first = bands[0]
        top, last = bands[-1]
    return Verdict(
        "no deconvolution",
        last,
        f"the penalty is not as smooth as every penalty under this family must be: its spectrum falls off more slowly "
        f"than the family's. Frequencies up to {top:.3g} add {last:.3g} nats to A, after {first:.3g} lower down, "
        f"and more the higher they are. Under br.penalties.translations.PointMass() the prior is exp(−r).",
    )


def too_smooth(error: float) -> Verdict:
    """The family hides so much of A that what is left says too little."""
    return Verdict(
        "no deconvolution",
        error,
        f"this family smooths too much for a prior to be read off the penalty: at the precision of its values A is "
        f"only known to {error:.2g} nats. At a smaller scale more can be seen.",
    )


def too_fine(gap: float) -> Verdict:
    """r has structure at frequencies where the family leaves next to nothing, or above a zero of its spectrum."""
    return Verdict(
        "no deconvolution",
        gap,
        f"the penalty has structure finer than can be undone under this family: the A that is found, smoothed again, "
        f"is off it by {gap:.3g} nats. Take the family at a smaller scale; under br.penalties.translations.PointMass() "
        f"the prior is exp(−r).",
    )


def no_moment(degree: int) -> Verdict:
    """A power whose expectation under the family is infinite."""
    return Verdict(
        "no deconvolution",
        float(degree),
        f"the penalty has a power {degree} of μ, and the family has no moment of that order: the expectation of any "
        f"such log-density is infinite. Take a family with lighter tails.",
    )


def no_wave(frequency: float) -> Verdict:
    """A wave at a zero of the spectrum."""
    return Verdict(
        "no deconvolution",
        frequency,
        f"the penalty has a wave of frequency {frequency:.4g}, where the family's characteristic function is zero: no "
        f"log-density leaves a trace there.",
    )
