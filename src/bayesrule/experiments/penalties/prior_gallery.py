"""What penalties believe: r, A_ν and the prior α of a gallery of penalties, or why there is no prior."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import torch
from torch import Tensor

from bayesrule import jobs
from bayesrule.experiments.base import Claim, Result, Setting
from bayesrule.experiments.penalties.gallery_figure import Answer, draw, in_words
from bayesrule.penalties import (
    L1,
    L2,
    Cosine,
    GroupLasso,
    Implied,
    Penalty,
    Polynomial,
    Radial,
    Verdict,
    penalty_of,
    prior_of,
    translations,
)

SCALES = {False: (0.25, 0.5, 1.0), True: (0.1, 0.25, 0.5, 0.75, 1.0)}  # ν where it is trained
FIXED = 0.5  # ν where it is not
SIZES = {False: (1e-3, 0.1, 1.0, 1e3), True: tuple(10.0**power for power in range(-3, 4))}  # σ0, and σ under L1
VARIANCES: dict[Any, float] = {  # at ν = 1
    translations.Laplace: 2.0,
    translations.Logistic: math.pi**2 / 3,
    translations.Student: 3.0,
    translations.Uniform: 1 / 3,
}
WAVE, FREQUENCY = 0.6, 4.0  # of the cosine in −log α
CUTS = (2.0, 2.5, 3.0)  # frequencies, times ν, up to which a spectrum without an inverse transform is drawn
SLICES = (0.0, 0.5, 1.0)  # the second weight of a group of two
SOURCE, ERRATUM = "Wolinski, theorem 2", "Wolinski, corollary (erratum)"

Function = Callable[[Tensor], Tensor]
Case = tuple[Penalty, translations.Translation, Function, float]  # r, family, log α, and how wide α is


class Exhibit(NamedTuple):
    """A penalty, a family, and how far from zero they are looked at."""

    name: str
    penalty: Penalty
    family: translations.Translation
    half: float = 3.0


@jobs.threads(1)
def run(setting: Setting) -> Result:
    """A row of the gallery for each exhibit, and claims about the same penalties."""
    nus, sizes = SCALES[setting.full], SIZES[setting.full]
    rows = [row(exhibit) for exhibit in exhibits(setting.full)]
    trained = translations.Gaussian(nus)
    blocks = 2 if setting.full else 1
    cases = [(corollary(s), trained, normal(s), s) for s in sizes]
    wave = _normalised(lambda x: -0.5 * x**2 - WAVE * (FREQUENCY * x).cos())
    claims = (
        stands_for("½(σ²/σ0² + log σ0²/σ² − 1) + μ²/2σ0², σ trained: N(0, σ0²)", cases, ERRATUM),
        _printed(nus),
        stands_for(
            "λμ² alone, σ fixed: N(0, 1/2λ)", [(L2(0.5), translations.Gaussian(nu), normal(1.0), 1.0) for nu in nus]
        ),
        _incomplete("λμ² alone, σ trained, is no KL: it lacks ½σ²/σ0² − ½ log σ²", {translations.Gaussian: 1.0}, nus),
        _incomplete("nor is it under other families: it lacks ½ Var β/σ0² − log ν", VARIANCES, nus),
        _lasso(sizes),
        stands_for(
            "L1 at a point: Laplace(1/λ)",
            [(L1(4.0), translations.PointMass(), lambda x: math.log(2) - 4 * x.abs(), 0.25)],
        ),
        stands_for("a square and a cosine, smoothed: it oscillates", [(wavy(), trained, wave, 1.0)]),
        stands_for("a quartic, smoothed: two modes", [(wells(), trained, _normalised(lambda x: x**2 - x**4 / 4), 1.0)]),
        _refused(trained),
    )
    size = (8.0 * blocks, 0.6 + 1.32 * math.ceil(len(rows) / blocks))
    return Result(claims, {"nu": list(nus), "gallery": rows}, lambda figure: draw(figure, rows, nus, blocks), size)


def exhibits(full: bool) -> list[Exhibit]:
    """The gallery; in full with other families, and with penalties that are known by their values only."""
    trained, fixed, point = translations.Gaussian(SCALES[full]), translations.Gaussian(FIXED), translations.PointMass()
    rows = [
        Exhibit("a(ν) + ½μ², complete", corollary(1.0), trained),
        Exhibit("½ + a(ν)μ², as printed", corollary(1.0, printed=True), trained),
        Exhibit("½μ²", L2(0.5), trained),
        Exhibit("½μ²", L2(0.5), fixed),
        Exhibit("2|μ|", L1(2.0), fixed),
        Exhibit("2|μ|", L1(2.0), point),
        Exhibit("a square and a cosine, smoothed", wavy(), trained),
        Exhibit("a double well, smoothed", wells(), trained, 2.5),
        Exhibit("cos 2μ", Cosine(1.0, 2.0), trained),
        Exhibit("2‖μ‖, groups of two", GroupLasso(2.0), point),
    ]
    if not full:
        return rows
    rows += [Exhibit("½μ²", L2(0.5), kind(SCALES[full])) for kind in VARIANCES]
    rows += [
        Exhibit("2|μ|", L1(2.0), translations.Laplace(FIXED)),
        Exhibit("¼μ⁴ − μ²", Polynomial(0.0, 0.0, -1.0, 0.0, 0.25), translations.Student(FIXED)),
        Exhibit("½μ² + ½ cos 2πμ", L2(0.5) + Cosine(0.5, 2 * math.pi), translations.Uniform(FIXED)),
        Exhibit("2 log(1 + w²), smoothed", logarithm(2.0, trained), trained, 5.0),
        Exhibit("0.4 log(1 + w²), smoothed", logarithm(0.4, trained), trained, 5.0),
        Exhibit("2‖μ‖, groups of two", GroupLasso(2.0), fixed),
    ]
    return rows


def missing(nu: Any, variance: float, sigma0: float = 1.0) -> Tensor:
    """½ variance·ν²/σ0² − log ν: what μ²/2σ0² lacks of KL(β_{μ,ν}‖N(0, σ0²)), but for a constant."""
    scale = torch.as_tensor(nu, dtype=torch.float64)
    return 0.5 * variance * (scale / sigma0).square() - scale.log()


def corollary(sigma0: float, printed: bool = False) -> Penalty:
    """KL(N(μ, ν²)‖N(0, σ0²)) = a(ν) + μ²/2σ0² with a = ½(ν²/σ0² + log σ0²/ν² − 1); as printed, the two exchanged."""

    def offset(nu: Any) -> Tensor:
        return missing(nu, 1.0, sigma0) + math.log(sigma0) - 0.5

    slope = 0.5 / sigma0**2
    if printed:
        return Polynomial(slope, 0.0, offset)
    return Polynomial(offset, 0.0, slope)


def wavy() -> Penalty:
    """KL(N(μ, ν²)‖α) + K for −log α = ½x² + c cos kx: a Gaussian leaves exp(−½k²ν²) of a wave."""
    wave = Cosine(lambda nu: WAVE * math.exp(-0.5 * (FREQUENCY * float(nu)) ** 2), FREQUENCY)
    return Polynomial(lambda nu: missing(nu, 1.0), 0.0, 0.5) + wave


def wells() -> Penalty:
    """KL(N(μ, ν²)‖α) + K for −log α = ¼x⁴ − x², by E(μ + νε)⁴ = μ⁴ + 6ν²μ² + 3ν⁴."""
    return Polynomial(lambda nu: missing(nu, -2.0) + 0.75 * nu**4, 0.0, lambda nu: 1.5 * nu**2 - 1, 0.0, 0.25)


def logarithm(power: float, family: translations.Translation) -> Penalty:
    """KL(β‖α) + K for −log α = power·log(1 + x²), by quadrature; α is a density if power > ½."""
    return penalty_of(lambda x: -power * torch.log1p(x.square()), family)


def row(exhibit: Exhibit) -> dict[str, Any]:
    """r, A_ν and α on a grid, as plain data; α is that of the completed penalty where a term in ν is missing."""
    x = _line(exhibit.half, 121)
    answer = prior_of(exhibit.penalty, exhibit.family)
    if isinstance(exhibit.penalty, GroupLasso):
        curves = _group_curves(exhibit.penalty, answer, x)
    else:
        curves = _curves(exhibit.penalty, exhibit.family, answer, x)
    verdict = None
    if isinstance(answer, Verdict):
        verdict = {"reason": answer.reason, "measure": answer.measure, "sentence": answer.sentence}
    return {
        "penalty": exhibit.name,
        "family": _family_said(exhibit.family),
        "says": in_words(answer),
        "lines": list(curves.r),
        "A_lines": list(curves.exponents),
        "verdict": verdict,
        "x": [_rounded(x)],
        "r": list(map(_rounded, curves.r.values())),
        "A": list(map(_rounded, curves.exponents.values())),
        "alpha": list(map(_rounded, curves.densities)),
    }


class Curves(NamedTuple):
    """r and A by the name of the line, and α."""

    r: dict[str, Tensor]
    exponents: dict[str, Tensor]
    densities: list[Tensor]


def _curves(r: Penalty, family: translations.Translation, answer: Answer, x: Tensor) -> Curves:
    """A line for each ν."""
    curves = Curves({}, {}, [])
    for nu in family.scales:
        name = "" if isinstance(family, translations.PointMass) else f"ν = {nu:g}"
        curves.r[name] = r(x, nu)
        values = exponent(r, family, nu, x)
        if values is not None:
            curves.exponents[name] = values
    if isinstance(r, L1) and not curves.exponents:
        nu = family.scales[0]
        for top in CUTS:
            curves.exponents[f"up to {top:g}/ν"] = cut(r.factor, family, nu, top / nu, x)
    prior = answer.completed if isinstance(answer, Verdict) else answer
    if isinstance(prior, Implied):
        curves.densities.append(prior.density(x))
    return curves


def _group_curves(r: GroupLasso, answer: Answer, x: Tensor) -> Curves:
    """A line for each value of the second weight of a group of two."""
    curves = Curves({}, {}, [])
    for other in SLICES:
        name, pair = f"w₂ = {other:g}", torch.stack([x, torch.full_like(x, other)], -1)
        curves.r[name] = r(pair)
        if isinstance(answer, Radial):
            curves.exponents[name] = -curves.r[name]
            curves.densities.append(answer.log_density(pair).exp())
    return curves


def _family_said(family: translations.Translation) -> str:
    if isinstance(family, translations.PointMass):
        return "at a point"
    how = "trained" if family.trained else f"= {family.scales[0]:g}"
    return f"{type(family).__name__}, ν {how}"


def _rounded(curve: Tensor) -> list[float]:
    """To seven digits: what a picture needs, in files of a readable size."""
    return [float(f"{value:.7g}") for value in curve.tolist()]


def exponent(r: Penalty, family: translations.Translation, nu: float, x: Tensor) -> Tensor | None:
    """A_ν(x), or None: that of r + μ² less that of μ², so that exp(A_ν) itself need have no integral."""
    fixed = family
    if not isinstance(family, translations.PointMass):
        fixed = replace(family, scale=nu)
    found = prior_of(r + L2(1.0), fixed)
    if not isinstance(found, Implied):
        return None
    return found.exponent(x) + x.square() - family.moment(2, nu)


def cut(factor: float, family: translations.Translation, nu: float, top: float, x: Tensor) -> Tensor:
    """A_ν of factor·|μ| by frequencies below ``top``: cosines in |μ| = (2/π) ∫ (1 − cos kμ)/k² dk are divided by φ."""
    k = top * (torch.arange(4000, dtype=torch.float64) + 0.5) / 4000
    inside = (1 - (k * x[:, None]).cos() / family.characteristic(k, nu)) / k.square()
    return -float(family.entropy(nu)) - 2 * factor / math.pi * (inside.sum(-1) * top / 4000 + 1 / top)


def _line(half: float, count: int = 401) -> Tensor:
    return torch.linspace(-half, half, count, dtype=torch.float64)


def normal(scale: float) -> Function:
    """log N(x; 0, scale²)."""
    return lambda x: -0.5 * (x / scale).square() - math.log(scale) - 0.5 * math.log(2 * math.pi)


def _normalised(exponent: Function) -> Function:
    x = _line(12.0, 24_001)
    log_mass = float(torch.logsumexp(exponent(x), 0) + (x[1] - x[0]).log())
    return lambda x: exponent(x) - log_mass


def gap(r: Penalty, family: translations.Translation, log_prior: Function, width: float) -> Tensor:
    """How much r − KL(β‖α) changes over ν and μ, up to two widths from zero: for normals, by an even sum over ±12ν."""
    reach = 0.0 if isinstance(family, translations.PointMass) else 12.0
    mu, noise = _line(2 * width, 21), _line(reach, 2401)
    weights, log_q = torch.softmax(-0.5 * noise.square(), 0), normal(1.0)(noise)
    gaps = []
    for nu in family.scales:
        divergence = (log_q - math.log(nu) - log_prior(mu[:, None] + nu * noise)) @ weights
        gaps.append(r(mu, nu) - divergence)
    return torch.stack(gaps).max() - torch.stack(gaps).min()


def stands_for(says: str, cases: Sequence[Case], source: str = SOURCE) -> Claim:
    """Whether prior_of gives each case's α, and r is the divergence from what it gives."""
    worst = torch.zeros(2, dtype=torch.float64)  # and not a number if one is
    for r, family, truth, width in cases:
        found, x = prior_of(r, family), _line(5 * width)
        if not isinstance(found, Implied):
            return Claim(source, says, str(found), False)
        off, change = (found.log_density(x) - truth(x)).abs().max(), gap(r, family, found.log_density, width)
        worst = torch.maximum(worst, torch.stack([off, change]))
    off, change = worst
    measured = f"log α is off by at most {off:.1e}; r − KL(β‖α), by quadrature, changes by at most {change:.1e}"
    return Claim(source, f"{says} (to 1e-8; r − KL to 1e-6)", measured, bool(off < 1e-8 and change < 1e-6))


def _printed(nus: Sequence[float]) -> Claim:
    r, family = corollary(1.0, printed=True), translations.Gaussian(nus)
    found, change = prior_of(r, family), float(gap(r, family, normal(1.0), 1.0))
    held = isinstance(found, Verdict) and found.reason == "depends on ν" and not found.completion and change > 0.1
    said = []
    for nu in nus:
        answer = in_words(prior_of(r, translations.Gaussian(nu)))
        said.append(f"at ν = {nu:g} {answer.split(':')[0]}")
    measured = f"{in_words(found)}: {', '.join(said)}; r − KL(β‖N(0, 1)) changes by {change:.3g}"
    return Claim(ERRATUM, "as printed, 1/2σ0² + a(σ²)μ², it is no KL, whatever term in σ is added", measured, held)


def _incomplete(says: str, kinds: dict[Any, float], nus: Sequence[float]) -> Claim:
    """The completion of ½μ² for families of a known variance at ν = 1, and the prior N(0, 1) that it has then."""
    nu, x = torch.linspace(nus[0], nus[-1], 50, dtype=torch.float64), _line(5.0)
    moves, sizes = [], []
    off = torch.zeros((), dtype=torch.float64)
    for kind, variance in kinds.items():
        found = prior_of(L2(0.5), kind(nus))
        if not (isinstance(found, Verdict) and found.completion and found.completed):
            return Claim(SOURCE, says, f"{kind.__name__}: {found}", False)
        apart, prior = found.completion(nu) - missing(nu, variance), found.completed.log_density(x) - normal(1.0)(x)
        off = torch.stack([off, apart.max() - apart.min(), prior.abs().max()]).max()
        sizes.append(found.measure)
        moves.append(f"{found.measure:.2f} nats ({kind.__name__})")
    measured = (
        f"A_ν moves by {', '.join(moves)}; the completion, and log α = log N(0, 1/2λ) with it, are off by at most "
        f"{off:.1e}"
    )
    return Claim(SOURCE, f"{says} (to 1e-8)", measured, bool(off < 1e-8) and min(sizes) > 0.1)


def _lasso(widths: Sequence[float]) -> Claim:
    """The verdicts, and what frequencies from 4/σ to 8/σ add to A by a sum of our own, in units of λσ."""
    unit, zero = translations.Gaussian(1.0), _line(0.0, 1)
    low, middle, high = (float(cut(1.0, unit, 1.0, top, zero)) for top in (2.0, 4.0, 8.0))
    refused, measures = [], []
    for width in widths:
        answer = prior_of(L1(1.0), translations.Gaussian(width))
        refused.append(isinstance(answer, Verdict) and answer.reason == "no deconvolution")
        measures.append(answer.measure / width if isinstance(answer, Verdict) else 0.0)
    off = float((torch.tensor(measures) / (high - middle) - 1).abs().max())
    measured = (
        f"{sum(refused)} of {len(widths)} refused, σ = {widths[0]:g} to {widths[-1]:g}: frequencies from 2/σ to 4/σ "
        f"add {middle - low:.2g} λσ nats to A, from 4/σ to 8/σ {high - middle:.2g} λσ; the verdicts agree to {off:.1%}"
    )
    return Claim(SOURCE, "L1 has no prior under Gaussians, however narrow", measured, all(refused) and off < 0.01)


def _refused(family: translations.Translation) -> Claim:
    """Penalties that do not grow, or so slowly that exp(A) goes as |x|^−0.8; one where it goes as |x|^−1.2 is not."""
    slow, fast = prior_of(logarithm(0.4, family), family), prior_of(logarithm(0.6, family), family)
    found = [prior_of(Cosine(1.0, 2.0), family), prior_of(L2(-0.5), family), slow]
    refused = [getattr(each, "reason", None) == "not integrable" for each in found]
    tail = getattr(slow, "measure", math.nan)
    says = "no prior if exp(A) has no integral: cos 2μ, −½μ², c log(1 + w²) smoothed with c ≤ ½"
    has = "a" if fast.exists else "no"
    known = f"A goes as {tail:.4f} log|x| for c = 0.4; c = 0.6 has {has} prior"
    held = all(refused) and fast.exists and abs(tail + 0.8) < 1e-3
    return Claim(SOURCE, says, f"{sum(refused)} of 3 refused; {known}", held)
