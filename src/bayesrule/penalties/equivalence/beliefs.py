"""From a penalty to the prior it stands for."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any, NamedTuple

import torch
from torch import Tensor

from bayesrule.penalties.equivalence import verdicts
from bayesrule.penalties.equivalence.divergences import penalty_of
from bayesrule.penalties.equivalence.drift import Drift, drift
from bayesrule.penalties.equivalence.implied import Implied
from bayesrule.penalties.equivalence.lines import Place, Table, locate, not_finite, tail
from bayesrule.penalties.equivalence.numeric import numerically, unresolved
from bayesrule.penalties.equivalence.radial import Radial
from bayesrule.penalties.equivalence.recognition import polynomial
from bayesrule.penalties.equivalence.tails import untold
from bayesrule.penalties.equivalence.verdicts import Verdict
from bayesrule.penalties.functions import GroupLasso, Penalty, PenaltySum, penalty
from bayesrule.penalties.terms import Missing, Terms
from bayesrule.penalties.translations import Gaussian as GaussianFamily
from bayesrule.penalties.translations import PointMass, Translation
from bayesrule.priors import Gaussian, Laplace

Answer = Implied | Radial | Verdict
NONE = Drift(0.0, 0.0, 0.0, 0.0)


def prior_of(given: Penalty | Callable[..., Any], family: Translation, points: int = 16384) -> Answer:
    """The prior α with r(μ, ν) = KL(β_{μ,ν}‖α) + K for all μ and ν, or why there is none.

    A_ν = −Ent(β_{0,ν}) − F⁻¹[F r_ν / F β̌_{0,ν}] must not depend on ν, and exp(A) must be integrable: α = exp(A)/κ
    (Wolinski, Charpiat & Ollivier). Powers and waves in r are deconvolved exactly, through the moments and the
    characteristic function of the family, and so is everything under a point mass; other functions on a grid of at most
    ``points`` points, with a stated ``error``. A function that turns out to be a polynomial is one.

    ``given``: one of `penalties`, a sum of them, or a function r(mu, nu) or r(mu) of tensors. ``family``: one of
    `translations`; a scale that is a pair of numbers is trained, and all ν between them have to agree.

    >>> from bayesrule import penalties
    >>> from bayesrule.penalties import translations
    >>> prior_of(penalties.L2(0.5), translations.Gaussian(0.1)).exact  # fixed ν
    Gaussian(scale=1.0, mean=0.0)
    >>> verdict = prior_of(penalties.L2(0.5), translations.Gaussian((0.1, 2.0)))  # trained ν
    >>> verdict.reason, verdict.completed.exact
    ('depends on ν', Gaussian(scale=1.0, mean=0.0))
    >>> prior_of(penalties.L1(2.0), translations.Gaussian(0.1)).reason
    'no deconvolution'
    >>> prior_of(penalties.L1(2.0), translations.PointMass()).exact
    Laplace(scale=0.5, mean=0.0)
    """
    r = penalty(given)
    _require_family(family)
    if points < 64:
        raise ValueError(f"points must be at least 64, not {points}")
    with torch.no_grad():
        if isinstance(r, GroupLasso):
            return _grouped(r, family)
        if isinstance(family, PointMass):
            return _at_a_point(r)
        form = _decomposed(r, family.scales[0])
        if form.kink and family.order > 1:
            return _kinked(abs(form.kink), family, 1)
        if form.kink or form.rest:
            found = numerically(r, family, points)
            if isinstance(found, Verdict):
                return found
            return _judged(found.prior, found.drift, r, family, found.misfit)
        return _exactly(form, r, family)


def _require_family(family: object) -> None:
    if not isinstance(family, Translation):
        raise TypeError(
            f"family must be one of br.penalties.translations, which μ moves and does not change, not "
            f"{type(family).__name__}: {family!r}. Your own: translations.Density(function=log_density)"
        )


class Decomposition(NamedTuple):
    """A penalty at one ν: powers and waves, a kink, and parts that are neither; whether powers were fitted."""

    terms: Terms
    kink: float
    rest: list[Penalty]
    fitted: bool


def _decomposed(r: Penalty, nu: float) -> Decomposition:
    total, kink, rest, fitted = Terms(), 0.0, [], False
    for part in r.parts:
        form = part.closed(nu)
        if form is None:
            form, fitted = polynomial(lambda mu, part=part: _checked(part, mu, nu)), True  # type: ignore[misc]
        if form is None:
            rest.append(part)
        else:
            total, kink = total + replace(form, kink=0.0), kink + form.kink
    return Decomposition(total, kink, rest, fitted)


def _checked(part: Penalty, mu: Tensor, nu: float) -> Tensor:
    """r(μ, ν); an error if it is nowhere a number, or not near μ = 0: far out it may overflow."""
    values = part(mu, nu)
    wrong = ~values.isfinite() & (mu.abs() <= 1)
    if bool(wrong.any()):
        raise not_finite(float(mu[wrong][0]), nu)
    if not bool(values.isfinite().any()):
        raise not_finite(float(mu[0]), nu)
    return values


def _exactly(form: Decomposition, r: Penalty, family: Translation) -> Answer:
    """A in closed form at the smallest ν, held against the penalty at all ν."""
    nu = family.scales[0]
    try:
        exponent = (form.terms.times(-1) + Terms((-float(family.entropy(nu)),))).deconvolved(family, nu)
    except Missing as missing:
        if missing.frequency is None:
            return verdicts.no_moment(form.terms.degree)
        return verdicts.no_wave(missing.frequency)
    prior = _named(exponent, form.fitted)
    centre, width = prior.place
    half = 4 * width if math.isfinite(width) else 1.0
    return _judged(prior, drift(prior, r, family, centre - half, centre + half), r, family)


def _named(terms: Terms, fitted: bool) -> Implied:
    """The prior of an exponent, and which prior of the package it is."""
    c = (*terms.polynomial, 0.0, 0.0, 0.0)
    exact: Gaussian | Laplace | None = None
    if not any(a for a, _, _ in terms.waves):
        if terms.degree == 2 and c[2] < 0 and not terms.kink:
            centre = -c[1] / (2 * c[2]) if c[1] else 0.0  # and not −0.0
            exact = Gaussian((-2 * c[2]) ** -0.5, centre)
        elif terms.degree == 0 and terms.kink < 0:
            exact = Laplace(-1 / terms.kink, 0.0)
    prior = Implied(terms.polynomial, terms.waves, terms.kink, None, 0.0, exact)
    error = 1e-9 if fitted else 0.0
    if exact is None:
        error += 1e-12 + prior.doubt
    return replace(prior, error=error)


def _judged(prior: Implied, seen: Drift, r: Penalty, family: Translation, misfit: float | None = None) -> Answer:
    """The prior, unless A_ν depends on ν or exp(A) has no integral; ``misfit``: how far A ∗ β̌ may be off r."""
    if misfit is None:
        misfit = 4 * prior.error
    tolerance = misfit + seen.rounding + 1e-9
    if seen.shape > tolerance:
        return verdicts.changes(seen, family.scales)
    if not prior.integrable:
        return verdicts.not_integrable(prior.tail)
    if seen.constant > min(tolerance, 4 * seen.shape + seen.rounding + 1e-8):  # errors of A even out in the mean
        return verdicts.incomplete(seen, family.scales, _completion(prior, r, family), prior)
    return prior


def _completion(prior: Implied, r: Penalty, family: Translation) -> Callable[[float | Tensor], Tensor]:
    """c(ν) = KL(β_{μ,ν}‖α) − r(μ, ν), the same for every μ."""
    divergence, at = penalty_of(prior, family), torch.tensor([prior.place.centre], dtype=torch.float64)

    def completion(nu: float | Tensor) -> Tensor:
        """The term to be added to the penalty, for each element of ν."""
        scales = torch.as_tensor(nu, dtype=torch.float64)
        each = [divergence(at, one)[0] - r(at, one)[0] for one in scales.reshape(-1)]
        return torch.stack(each).reshape(scales.shape)

    return completion


def _at_a_point(r: Penalty) -> Answer:
    """α = exp(−r)/κ."""
    form = _decomposed(r, 1.0)
    terms = replace(form.terms, kink=form.kink).times(-1)
    if not form.rest:
        return _judged(_named(terms, form.fitted), NONE, r, PointMass())
    rest = PenaltySum(tuple(form.rest))
    place = locate(lambda x: -r(x, 1.0))
    if not math.isfinite(place.width):
        return verdicts.not_integrable(tail(lambda x: -r(x, 1.0), Place(0.0, 1.0)))
    table = Table.of(lambda x: -rest(x, 1.0), place)
    prior = Implied(terms.polynomial, terms.waves, terms.kink, table)
    doubt = unresolved(prior, lambda x: -rest(x, 1.0)) + prior.doubt
    if prior.integrable:
        doubt += untold(prior, lambda x: -rest(x, 1.0))
    return _judged(replace(prior, error=2 * doubt + 1e-12), NONE, r, PointMass())


def _grouped(r: GroupLasso, family: Translation) -> Answer:
    """Radial penalties: exact for a point mass; under normals the length of a group is not smooth enough."""
    if isinstance(family, PointMass):
        if r.factor > 0:
            return Radial(float(r.factor), r.axis)
        return verdicts.not_integrable(-float(r.factor))
    if isinstance(family, GaussianFamily):
        return _kinked(abs(r.factor), family, 2)
    raise ValueError(
        f"GroupLasso is radial, and a product of {type(family).__name__} shapes is not: take translations.PointMass() "
        f"or translations.Gaussian()"
    )


def _kinked(factor: float, family: Translation, dimensions: int) -> Verdict:
    """‖w‖ = C_n ∫ (1 − Ω_n(k‖w‖)) dk/k², so that at its tip A has C_n factor ∫ dk/(k² φ(k)), which diverges.

    Ω_n is the mean of a wave over directions and C_n = 2Γ((n + 1)/2)/(√π Γ(n/2)).
    """
    constant = 2 * math.gamma((dimensions + 1) / 2) / (math.sqrt(math.pi) * math.gamma(dimensions / 2))
    nu, bands = family.scales[0], []
    for start in (1.0, 2.0, 4.0):
        k = torch.linspace(start, 2 * start, 2001, dtype=torch.float64)
        inside = 1 / (k.square() * family.spectrum(k).abs().clamp(min=1e-300))
        bands.append((2 * start / nu, factor * nu * constant * float(torch.trapezoid(inside, k))))
    return verdicts.too_rough(tuple(bands))
