"""Signals in wide random networks: variance, correlation, and the edge of chaos.

With weights of variance σ_w²/fan-in and biases of variance σ_b², pre-activations of a wide network are normal, and
their variance and correlation go from layer to layer by (Poole et al. 2016, Schoenholz et al. 2017)

    q ↦ σ_w² E[φ(√q z)²] + σ_b²,    c ↦ (σ_w² E[φ(√q z)φ(√q z')] + σ_b²)/q

with z, z' standard normal of correlation c. χ = σ_w² E[φ'(√q* z)²] at the fixed point q* is the slope of the second map
at c = 1, and the factor of squared gradients per layer. At χ = 1, the edge of chaos, neither dies out.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from numbers import Real

import numpy as np
import torch
from torch import Tensor

from bayesrule.penalties.calibration.activations import Activation, Function, function, title

MOST = 1e6  # variances beyond it count as infinite
LEAST = 1e-12  # variances below it count as zero
BESIDE = 1e-3  # where to see whether the fixed point zero draws variances to it
REACH = 13.0  # what lies further out weighs e^−84
CLOSE = 1e-9  # slopes this near to one count as one
DEGREES = 200  # of the series of the correlation map


@dataclass(frozen=True)
class MeanField:
    """How signals fare in a wide random network.

    weight_variance, bias_variance: σ_w² and σ_b².
    fixed_point: q*, where the variance of pre-activations settles; where all variances stay, as under ReLU, one.
    slope: that of the variance map at q*. chi: χ, that of the correlation map at c = 1.
    correlation: c*, where the correlation of two inputs settles.
    variance_depth, correlation_depth: ξ = −1/log slope at q* and c*: the layers in which a difference falls to 1/e.
    """

    weight_variance: float
    bias_variance: float
    fixed_point: float
    slope: float
    chi: float
    correlation: float
    variance_depth: float
    correlation_depth: float


def mean_field(activation: Activation, weight: float, bias: float = 0.0) -> MeanField:
    """Signals under weights of variance σ_w²/fan-in and biases of variance σ_b².

    Args:
        activation: a name, a function of tensors, or a module; it acts on each number alone.
        weight: σ_w.
        bias: σ_b.

    >>> calm = mean_field("tanh", weight=0.5)
    >>> calm.fixed_point, round(calm.chi, 6), round(calm.correlation_depth, 4)  # −1/log ¼
    (0.0, 0.25, 0.7213)
    """
    _check("weight", weight)
    _check("bias", bias)
    phi = function(activation)
    fixed = _settle(lambda q: weight**2 * _square(phi, q) + bias**2)
    if not math.isfinite(fixed):
        raise ValueError(
            f"weight={weight} and bias={bias} have no fixed point under {title(activation)}: the variance grows from "
            "layer to layer without end; lower weight"
        )
    return _at(phi, weight**2, bias**2, fixed)


def edge_of_chaos(activation: Activation, bias: float = 0.0) -> MeanField:
    """σ_w² with χ = 1 for this σ_b: the weights under which signals and gradients reach deepest.

    χ = 1 says σ_w² = 1/E[φ'(√q z)²], and q = q* says σ_b² = q − σ_w² E[φ(√q z)²]: one equation for q. The fixed point
    has to be stable, or no network stays there.

    Args:
        activation: a name, a function of tensors, or a module; it acts on each number alone.
        bias: σ_b.

    >>> round(edge_of_chaos("relu").weight_variance, 12), round(edge_of_chaos("tanh").weight_variance, 12)
    (2.0, 1.0)
    >>> edge = edge_of_chaos("tanh", bias=0.3)
    >>> round(edge.weight_variance, 4), round(edge.fixed_point, 4), edge.correlation_depth
    (1.9477, 0.7635, inf)
    """
    _check("bias", bias)
    phi, name = function(activation), title(activation)
    q = _critical(phi, name, bias)
    edge = _at(phi, 1 / _slope_square(phi, q, name), bias**2, q)
    if edge.weight_variance * _map_slope(phi, q or BESIDE) > 1 + 1e-6:
        raise ValueError(
            f"{name} has no stable edge of chaos at bias={bias}: at χ = 1 the variance runs away from its fixed point "
            f"{q:.3g}; {_advice(phi, name, q)}"
        )
    return edge


def _check(name: str, value: float) -> None:
    if not (isinstance(value, Real) and math.isfinite(value) and value >= 0):
        raise ValueError(f"{name} is a standard deviation and must be a finite number of at least 0, not {value!r}")


def _critical(phi: Function, name: str, bias: float) -> float:
    """q* with χ = 1 at this σ_b."""
    if all(abs(_bias_square(phi, q, name)) < 1e-12 * q for q in (1e-4, 1.0, 1e4)):
        if bias == 0:
            return 1.0
        raise ValueError(
            f"{name} has no edge of chaos at bias={bias}: it keeps every variance as it is, and a bias would add to it "
            "layer by layer; pass bias=0"
        )
    if bias == 0 and _square(phi, 0.0) == 0:
        return 0.0
    low = max(bias**2, 1e-9)  # σ_b² ≤ q
    while (high := 2 * low) < MOST:
        if _bias_square(phi, high, name) >= bias**2:
            return _bisect(lambda q: _bias_square(phi, q, name) - bias**2, low, high)
        low = high
    raise ValueError(
        f"{name} has no edge of chaos at bias={bias}: no variance up to {MOST:.0e} is a fixed point with χ = 1; take "
        "another rule, such as rule='kaiming'"
    )


def _advice(phi: Function, name: str, q: float) -> str:
    """The least bias at which the critical fixed point is stable."""

    def excess(q: float) -> float:
        return _map_slope(phi, q) / _slope_square(phi, q, name) - 1

    low = max(q, 1e-3)
    while (high := 2 * low) < MOST:
        if excess(high) <= 0:
            least = math.sqrt(_bias_square(phi, _bisect(lambda q: -excess(q), low, high), name))
            return f"pass bias={math.ceil(least * 1000) / 1000:g} or more"
        low = high
    return "take another rule, such as rule='kaiming'"


def _bias_square(phi: Function, q: float, name: str) -> float:
    """σ_b² for which q is a fixed point with χ = 1."""
    return q - _square(phi, q) / _slope_square(phi, q, name)


def _settle(step: Callable[[float], float]) -> float:
    """The fixed point that a variance of one is led to; zero and infinity are possible."""
    q, upwards = 1.0, step(1.0) > 1
    if abs(step(1.0) - 1) < 1e-12:
        return 1.0
    while LEAST < q < MOST:
        before = q
        q *= 2.0 if upwards else 0.5
        if (step(q) > q) != upwards:
            return _bisect(lambda x: x - step(x), min(q, before), max(q, before))
    return math.inf if upwards else 0.0


def _bisect(rising: Callable[[float], float], low: float, high: float) -> float:
    """Where a function goes from below zero to above it."""
    for _ in range(80):
        middle = 0.5 * (low + high)
        if rising(middle) < 0:
            low = middle
        else:
            high = middle
    return 0.5 * (low + high)


def _at(phi: Function, weight: float, bias: float, q: float) -> MeanField:
    chi = weight * _slope_square(phi, q)
    slope = weight * _map_slope(phi, q)
    meeting, rate = 1.0, chi
    if not (chi <= 1 + CLOSE or q == 0):  # chaos: two inputs, however near, come to a correlation below one
        meeting, rate = _meeting(phi, weight, bias, q)
    return MeanField(weight, bias, q, slope, chi, meeting, _depth(slope), _depth(rate))


def _depth(slope: float) -> float:
    if slope <= 0:
        return 0.0
    if slope >= 1 - CLOSE:
        return math.inf
    return -1 / math.log(slope)


def _meeting(phi: Function, weight: float, bias: float, q: float) -> tuple[float, float]:
    """c* below one, and the slope of the correlation map there: E[φ(√q z)φ(√q z')] = Σ_k a_k² c^k."""
    z, weights = nodes()
    heights = _hermite(z) @ (weights.sqrt() * phi(math.sqrt(q) * z))
    powers = heights.square() * weight / q
    powers = torch.cat([powers, (weight * _square(phi, q) / q - powers.sum()).clamp(min=0)[None]])  # the rest, as one
    degrees = torch.arange(len(powers), dtype=torch.float64)

    def excess(c: float) -> float:
        return c - float(powers @ c**degrees) - bias / q

    meeting = _bisect(excess, 0.0, 1 - 1e-9)
    return meeting, float((powers * degrees)[1:] @ meeting ** degrees[:-1])


def _hermite(z: Tensor) -> Tensor:
    """The orthonormal Hermite polynomials h_k(z), k < DEGREES, times √(weight): rows [DEGREES, nodes]."""
    _, weights = nodes()
    rows = [weights.sqrt(), z * weights.sqrt()]
    for k in range(1, DEGREES - 1):
        rows.append((z * rows[k] - math.sqrt(k) * rows[k - 1]) / math.sqrt(k + 1))
    return torch.stack(rows)


@lru_cache(maxsize=1)
def nodes() -> tuple[Tensor, Tensor]:
    """Points and weights for E[f(z)], z ~ N(0, 1): Gauss–Legendre in panels that shrink towards zero.

    Gauss–Hermite would be poor at ReLU's kink and at a steep tanh; this sees both sides of zero on every scale.

    >>> z, weights = nodes()
    >>> round(float(weights @ z.relu() ** 2), 14), round(float(weights @ z**8), 9)
    (0.5, 105.0)
    """
    x, w = np.polynomial.legendre.leggauss(24)
    edges = np.concatenate([[0.0], 2.0 ** np.arange(-14, 0), np.arange(1.0, REACH + 0.1, 0.5)])
    half, middle = np.diff(edges)[:, None] / 2, ((edges[1:] + edges[:-1]) / 2)[:, None]
    z, spacing = (middle + half * x).ravel(), (half * w).ravel()
    z, spacing = np.concatenate([-z[::-1], z]), np.concatenate([spacing[::-1], spacing])
    return torch.from_numpy(z), torch.from_numpy(spacing * np.exp(-(z**2) / 2) / math.sqrt(2 * math.pi))


def _square(phi: Function, q: float) -> float:
    """E[φ(√q z)²]."""
    z, weights = nodes()
    with torch.no_grad():
        return float(weights @ phi(math.sqrt(q) * z).square())


def _slope_square(phi: Function, q: float, name: str = "the activation") -> float:
    """E[φ'(√q z)²]; at q = 0 its limit, from both sides of zero."""
    z, weights = nodes()
    found = float(weights @ _derivative(phi, max(math.sqrt(q), 1e-12) * z)[1].square())
    if not (math.isfinite(found) and found > 0):
        raise ValueError(
            f"{name} has no edge of chaos: E[φ'²] is {found} at variance {q:.3g}, and no weights make it 1; take an "
            "activation with a slope"
        )
    return found


def _map_slope(phi: Function, q: float) -> float:
    """d/dq E[φ(√q z)²] = E[φ(√q z)φ'(√q z)z]/√q; at q = 0 its limit E[φ'(0 ± 0)²z²] if φ(0) = 0."""
    z, weights = nodes()
    if q == 0:
        return float(weights @ (_derivative(phi, 1e-12 * z)[1] * z).square())
    root = max(math.sqrt(q), 1e-6)
    value, derivative = _derivative(phi, root * z)
    return float(weights @ (value * derivative * z)) / root


def _derivative(phi: Function, points: Tensor) -> tuple[Tensor, Tensor]:
    """φ and φ' at the points."""
    with torch.enable_grad():
        u = points.clone().requires_grad_()
        value = phi(u)
        if not value.requires_grad:
            return value, torch.zeros_like(points)
        (slope,) = torch.autograd.grad(value.sum(), u)
    return value.detach(), slope
