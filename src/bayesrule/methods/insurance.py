"""How wide a Gaussian about a trained network may be, told by its training data alone: where doubt costs little.

Training data do not tell how wrong a network is on others: it has seen them all, and what is left out to first order
tells it badly where the network is sure of every example. But they tell what doubt costs. With outputs N(f, spread·V)
in the place of f, V = J Λ⁻¹ Jᵀ, the loss of an example that the network gets right rises, and that of one that it gets
wrong for sure falls. On its training data it is as right as it can be, so that the rise there,

    premium(spread) = mean of log p(y_i|f_i) − log E[p(y_i|f)],    f ~ N(f_i, spread·V_i),

is what doubt costs where the network is as good as on what it has seen. Elsewhere it mostly costs less, or gains. The
spread is the largest whose premium is at most `PREMIUM`: an insurance against sure mistakes at a price that is known.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from bayesrule import modules
from bayesrule.curvature import Averaged, Tangents, averaged, definite_sum
from bayesrule.data import Batch
from bayesrule.likelihoods import Likelihood
from bayesrule.modules import Parameters
from bayesrule.posteriors import normal_draws, normals
from bayesrule.structures import Blocks, Kronecker, Structure, joined

PREMIUM = 0.0025
"""Nats an example that doubt may cost on the training data. On unseen data it may be twice that, seldom more."""
LEFT = 1e-6
"""The spread of a network that is left as it is: predictions are its own to six digits."""
SPREADS = (LEFT, 1e-4, 1e-3, 0.003, 0.01, 0.03, 0.1, 0.3, 0.56, 1.0)  # that held-out data choose among
HALVINGS = 7  # of the six decades between `LEFT` and 1: to a factor of 1.12
ROUNDS = 5  # of the averages and the Gaussian, in turns: by then both change by a few percent
POINTS = 32  # of the outputs of an example, at least two for each output
LEAST = 1e-3  # of the factor on the prior's precision: of a network that loses nothing by growing


@dataclass(frozen=True, eq=False)
class Settled:
    """The Gaussian of precision ``tightness``·Λ₀ + ``stiffness``·G, and how wide it may be.

    ``nll``: the network's, on training examples. ``premium``: by how much the spread raises it. ``gain``: of the mean
    log p of held-out examples by this spread, None without any. ``unsure``: whether the network is less sure of its
    training data than it could well be, so that doubt is the last that it needs.
    """

    precision: Structure
    tightness: float
    stiffness: float
    spread: float
    nll: float
    premium: float
    gain: float | None
    unsure: bool

    @property
    def left(self) -> bool:
        """Whether the network is better left as it is."""
        return self.spread == LEFT

    def sentence(self) -> str:
        """What was chosen, and why."""
        if self.left:
            why = f"any doubt costs its training examples more than {PREMIUM:g} nats"
            if self.gain is not None:
                why = "no Gaussian about it makes the held-out examples clearly more probable"
            elif self.unsure:
                why = "it is less sure of its training examples than they warrant"
            return f"the network is left as it is: {why}"
        chosen = f"spread {self.spread:.2g} chosen: NLL of training examples {self.nll:.4g}, the network alone, "
        chosen += f"and {self.premium:.2g} more with it"
        if self.gain is not None:
            chosen += f"; of held-out examples {self.gain:.2g} less"
        return chosen


@dataclass(frozen=True, eq=False)
class _About:
    """Outputs and targets of some examples, and what N(w, (δΛ₀ + cG)⁻¹) makes of the outputs.

    ``noise``: points [S, B, ...] of it less f. ``sharp``: residuals and Hessians at f itself. ``learnt``: γ/n, the mean
    of tr(E_q[H_i] V_i), for γ weights that n examples determine.
    """

    f: Tensor
    y: Tensor
    noise: Tensor
    sharp: Averaged
    learnt: float
    precision: Structure
    tightness: float
    stiffness: float


@dataclass(frozen=True, eq=False)
class Insurance:
    """Some training examples, by which the doubt about a network is priced.

    ``offsets``: the uncertain weights less the prior's mean. ``count``: of all examples, for which these stand, over
    the temperature: how often the likelihood of one counts is part of where the mode is.
    """

    network: nn.Module
    likelihood: Likelihood
    some: Batch
    offsets: Parameters
    count: float

    def settle(self, prior: Structure, curvature: Structure, held: Batch | None = None) -> Settled:
        """A Gaussian of which the network is the mode, and how wide it may be.

        ``held``: examples that the network has not seen, in its own units. Another spread is chosen for them if it is
        better there by more than a standard error.
        """
        here = self._about(prior, curvature)
        before = self._log_prob(here.f, here.noise, here.y, 0.0)
        unsure = _could_be_surer(here.f, here.sharp) > here.learnt
        spread = LEFT
        if not unsure:
            spread = self._affordable(here, before)
        gain = None
        if held is not None:
            spread, gain = self._on(held, here.precision, spread)
        premium = float((before - self._log_prob(here.f, here.noise, here.y, spread)).mean())
        nll = -float(before.mean())
        return Settled(here.precision, here.tightness, here.stiffness, spread, nll, premium, gain, unsure)

    def _about(self, prior: Structure, curvature: Structure) -> _About:
        """A prior under which the network is the mode, and the Gaussian that goes with it.

        With δ for tightness and c for stiffness, Λ = δΛ₀ + cG,

            δ = −(w − m)ᵀ Σ_i J_iᵀ E_q[r_i] / (w − m)ᵀ Λ₀ (w − m),    c = Σ_i tr(E_q[H_i] V_i) / Σ_i tr(H_i V_i):

        along w − m the slopes of prior and data cancel, as they do in all directions at the mode of a variational
        Gaussian; and its precision has E_q[H_i] for H_i (Opper and Archambeau 2009). Averages are over q and not at its
        mean: of a network that is sure of every example, residuals and curvature at the mean are next to nothing, and
        a Gaussian by these alone is far too wide. Each round moves the logs of δ and c half of the way.
        """
        tangents = Tangents(self.network, self.some.x, list(self.offsets))
        f, y = tangents.outputs, self.likelihood.check(tangents.outputs, self.some.y)
        family = _Family(prior, curvature)
        away = torch.cat([w.flatten() for w in self.offsets.values()]).double()
        size, slope = float(prior.quadratic(away)), self._slope()
        covariance = f.new_zeros(len(f), f[0].numel(), f[0].numel())
        mean = sharp = averaged(self.likelihood, f, torch.zeros_like(f)[None], y)
        log_delta, log_c = math.log(max(LEAST, -slope(mean.residual) / size)), 0.0
        for index in range(ROUNDS):
            if index:
                delta = math.log(max(LEAST, -slope(mean.residual) / size))
                log_delta = (log_delta + delta) / 2
                log_c = (log_c + _log_ratio(mean.hessian, sharp.hessian, covariance)) / 2
            precision = family.at(math.exp(log_delta), math.exp(log_c))
            covariance = tangents.covariance(precision).double()
            noise = _noise(f, covariance)
            mean = averaged(self.likelihood, f, noise, y)
        learnt = float((mean.hessian * covariance).sum((1, 2)).mean())
        return _About(f, y, noise, sharp, learnt, precision, math.exp(log_delta), math.exp(log_c))

    def _affordable(self, here: _About, before: Tensor) -> float:
        """The largest spread up to 1 whose premium is at most `PREMIUM`, by halving the range of its log."""

        def dear(spread: float) -> bool:
            return float((before - self._log_prob(here.f, here.noise, here.y, spread)).mean()) > PREMIUM

        if not dear(1.0):
            return 1.0
        low, high = math.log(LEFT), 0.0
        for _ in range(HALVINGS):
            middle = (low + high) / 2
            if dear(math.exp(middle)):
                high = middle
            else:
                low = middle
        return LEFT if low == math.log(LEFT) else math.exp(low)

    def _on(self, held: Batch, precision: Structure, start: float) -> tuple[float, float]:
        """The spread that is best for held-out examples, if it is better than ``start`` by more than a standard error.

        Also gives what it gains there over the network alone.
        """
        tangents = Tangents(self.network, held.x, list(self.offsets))
        f, y = tangents.outputs, self.likelihood.check(tangents.outputs, held.y)
        noise = _noise(f, tangents.covariance(precision).double())
        scores = {spread: self._log_prob(f, noise, y, spread) for spread in (start, *SPREADS)}
        best = max(scores, key=lambda spread: float(scores[spread].mean()))
        more = scores[best] - scores[start]
        if len(more) < 2 or float(more.mean()) <= float(more.std()) / math.sqrt(len(more)):
            best = start
        return best, float((scores[best] - scores[LEFT]).mean())

    def _slope(self) -> _Slope:
        """What gives (w − m)ᵀ Σ_i J_iᵀ r_i for residuals r, scaled up to all examples."""
        evaluated = modules.shell(self.network).eval()
        every = modules.parameters(self.network)
        with torch.enable_grad():
            outputs = modules.call(evaluated, self.some.x)
        weights = [every[name] for name in self.offsets]
        return _Slope(outputs, weights, list(self.offsets.values()), self.count / len(outputs))

    def _log_prob(self, f: Tensor, noise: Tensor, y: Tensor, spread: float) -> Tensor:
        """log p(y) of each example where outputs are f + √spread·noise, the mean over all points [S, B, ...]."""
        if not spread:
            return self.likelihood.log_prob(f, y)
        targets = y.repeat(len(noise), *[1] * (y.ndim - 1))
        points = (f + math.sqrt(spread) * noise).flatten(0, 1)
        logs = self.likelihood.log_prob(points, targets).reshape(len(noise), len(f))
        return logs.logsumexp(0) - math.log(len(noise))


@dataclass(frozen=True, eq=False)
class _Slope:
    """(w − m)ᵀ Σ_i J_iᵀ r_i by a backward pass through one recorded pass, times ``share``."""

    outputs: Tensor
    weights: list[Tensor]
    offsets: list[Tensor]
    share: float

    def __call__(self, residual: Tensor) -> float:
        given = residual.reshape(self.outputs.shape).to(self.outputs.dtype)
        slopes = torch.autograd.grad(
            self.outputs, self.weights, given, retain_graph=True, allow_unused=True, materialize_grads=True
        )
        return self.share * sum(float((g * w).sum()) for g, w in zip(slopes, self.offsets, strict=True))


def _could_be_surer(f: Tensor, sharp: Averaged) -> float:
    """Nats an example by which the loss falls if all outputs grow by one factor, to second order; 0 if they shrink.

    A network that has learnt γ numbers from n examples may gain γ/n there and nothing on others. One that could gain
    more has been held back, by a decay or a short training, and is not too sure.
    """
    flat = f.flatten(1)
    slope = float((sharp.residual * flat).sum(1).mean())
    bend = float(torch.einsum("bk,bkl,bl->b", flat, sharp.hessian, flat).mean())
    if slope >= 0 or bend <= 0:
        return 0.0
    return slope**2 / (2 * bend)


def _noise(f: Tensor, covariance: Tensor) -> Tensor:
    """Points [S, B, ...] that stand for N(0, covariance), the same every time."""
    width = f[0].numel()
    points = normals(max(POINTS, 2 * width), width, torch.Generator(f.device).manual_seed(0))
    return normal_draws(torch.zeros_like(f), covariance, points)


def _log_ratio(hessian: Tensor, other: Tensor, covariance: Tensor) -> float:
    """log Σ_i tr(H_i V_i)/tr(H'_i V_i)."""
    along = (hessian * covariance).sum() / (other * covariance).sum().clamp(min=torch.finfo(other.dtype).tiny)
    return float(along.clamp(1e-6, 1e6).log())


class _Family:
    """tightness·Λ₀ + stiffness·G for any two weights; the eigenvectors of Kronecker products are found once."""

    def __init__(self, prior: Structure, curvature: Structure) -> None:
        parts = curvature.parts if isinstance(curvature, Blocks) else [curvature]
        self._parts: list[tuple[Structure, Structure, Structure | None]] = []
        start = 0
        for part in parts:
            own = prior.part(start, start + part.size)
            both = own + part if isinstance(part, Kronecker) else None
            self._parts.append((own, part, both))
            start += part.size

    def at(self, tightness: float, stiffness: float) -> Structure:
        """The sum under two weights."""
        found: list[Structure] = []
        for prior, curvature, both in self._parts:
            if isinstance(both, Kronecker):
                found.append(both.reweighted(stiffness, tightness))
            else:
                weight = curvature.diagonal.new_tensor(stiffness)
                found.append(definite_sum(prior * tightness, curvature, weight))
        return joined(found)
