"""How wide a Gaussian about a trained network may be, told by its training data alone: where doubt costs little.

Training data do not tell how wrong a network is on others: it has seen them all. But they tell what doubt costs. With
outputs N(f, spread·V) in the place of f, V = J Λ⁻¹ Jᵀ, the loss of an example that the network gets right rises, and
that of one that it gets wrong for sure falls. What it costs is asked of every example as if it had been left out of
the training. Under a Gaussian q(w) of precision Λ that is, to first order, its *cavity*,

    V₋ᵢ = (Vᵢ⁻¹ − E_q[Hᵢ])⁻¹,    f₋ᵢ = fᵢ + V₋ᵢ E_q[rᵢ],    r = −∂ log p/∂f,    H = −∂² log p/∂f²,

and over the examples to which doubt does harm, which are those that the network gets right,

    premium(spread) = mean of log p(yᵢ|f₋ᵢ) − log E[p(yᵢ|f)],    f ~ N(f₋ᵢ, spread·V₋ᵢ).

An example that was trained on has larger margins and pays less: in small tables the others pay several times as much.
The spread is the largest whose premium is at most `PREMIUM`: an insurance against sure mistakes at a price that is
known.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from bayesrule.curvature import Averaged, Tangents, averaged, definite_sum, log_probs
from bayesrule.data import Batch
from bayesrule.likelihoods import Likelihood
from bayesrule.modules import Parameters
from bayesrule.posteriors import normals
from bayesrule.structures import Blocks, Kronecker, Structure, joined

PREMIUM = 0.0035
"""Nats that doubt may cost an unseen example which the network gets right. On 32 networks for generated tables it has
cost 0.6 to 1.9 times what was told; 3 to 6 times on 6 whose two hidden layers were held small by a strong decay."""
LEFT = 1e-6
"""The spread of a network that is left as it is: predictions are its own to six digits."""
SPREADS = (LEFT, 1e-4, 1e-3, 0.003, 0.01, 0.03, 0.1, 0.3, 0.56, 1.0)  # that held-out data choose among
TRIES, NEAR = 8, 0.05  # of spreads, and how near to `PREMIUM` a premium has to come, in its log
ROUNDS = 5  # of the averages and the Gaussian, in turns: by then both change by a few percent
POINTS = 32  # of the outputs of an example, at least two for each output
LEAST = 1e-3  # of the factor on the prior's precision: of a network that loses nothing by growing
LEVERAGE = 0.9  # of an example's own share in what is known of its outputs, at most


@dataclass(frozen=True, eq=False)
class Settled:
    """The Gaussian of precision ``tightness``·Λ₀ + ``stiffness``·G, and how wide it may be.

    ``nll``: the network's, on training examples. ``premium``: what the spread costs unseen examples that it gets right.
    ``gain``: of the mean log p of held-out examples by this spread, None without any. ``unsure``: whether the network
    is less sure of its training data than it could well be, so that doubt is the last that it needs.
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
            why = f"any doubt costs examples that it gets right more than {PREMIUM:g} nats"
            if self.gain is not None:
                why = "no Gaussian about it makes the held-out examples clearly more probable"
            elif self.unsure:
                why = "it is less sure of its training examples than they warrant"
            return f"the network is left as it is: {why}"
        chosen = f"spread {self.spread:.2g} chosen: NLL of training examples {self.nll:.4g}, the network alone, "
        chosen += f"and {self.premium:.2g} more with it for unseen ones that it gets right"
        if self.gain is not None:
            chosen += f"; of held-out examples {self.gain:.2g} less"
        return chosen


@dataclass(frozen=True, eq=False)
class _Doubt:
    """Outputs f and targets of some examples, and ``noise``, points [S, B, ...] of the doubt about f."""

    likelihood: Likelihood
    f: Tensor
    y: Tensor
    noise: Tensor

    def log_prob(self, spread: float) -> Tensor:
        """log p(y) of each example where outputs are f + √spread·noise, the mean over all points."""
        logs = log_probs(self.likelihood, self.f, math.sqrt(spread) * self.noise, self.y)
        return logs.logsumexp(0) - math.log(len(logs))

    def premium(self) -> Callable[[float], float]:
        """What a spread costs the examples to which it does harm, in the mean."""
        before = self.likelihood.log_prob(self.f, self.y)

        def cost(spread: float) -> float:
            rise = (before - self.log_prob(spread)).clamp(min=0)
            return float(rise.sum() / rise.count_nonzero().clamp(min=1))

        return cost


@dataclass(frozen=True, eq=False)
class _About:
    """What N(w, Λ⁻¹), Λ = δΛ₀ + cG, makes of the outputs f [B, ...] of some examples.

    ``sharp``: residuals and Hessians at f itself, ``mean``: their averages over q. ``covariance``: V [B, K, K].
    ``points``: those [S, K] that stand for N(0, I).
    """

    f: Tensor
    y: Tensor
    points: Tensor
    covariance: Tensor
    sharp: Averaged
    mean: Averaged
    precision: Structure
    tightness: float
    stiffness: float

    @property
    def learnt(self) -> float:
        """γ/n, the mean of tr(E_q[H_i] V_i), for γ weights that n examples determine."""
        return float((self.mean.hessian * self.covariance).sum((1, 2)).mean())

    def left_out(self, power: float) -> tuple[Tensor, Tensor]:
        """f and V of every example without its own share in q, its likelihood to a power."""
        v, hessian = self.covariance, power * self.mean.hessian.double()
        share = (hessian * v).sum((1, 2), keepdim=True)  # no less than the largest eigenvalue of H V
        hessian = hessian * (LEVERAGE / share.clamp(min=LEVERAGE))
        one = torch.eye(v.shape[1], dtype=v.dtype, device=v.device)
        cavity = torch.linalg.solve(one - v @ hessian, v)
        cavity = (cavity + cavity.mT) / 2
        moved = torch.einsum("bkl,bl->bk", cavity, power * self.mean.residual.double())
        return self.f + moved.reshape(self.f.shape).to(self.f.dtype), cavity


@dataclass(frozen=True, eq=False)
class Insurance:
    """Some training examples, by which the doubt about a network is priced.

    ``offsets``: the uncertain weights less the prior's mean. ``count``: of all examples, for which these stand.
    ``power``: how often the likelihood of one counts, 1/η, which is part of where the mode is.
    """

    network: nn.Module
    likelihood: Likelihood
    some: Batch
    offsets: Parameters
    count: int
    power: float = 1.0

    def settle(self, prior: Structure, curvature: Structure, held: Batch | None = None) -> Settled:
        """A Gaussian of which the network is the mode, and how wide it may be.

        ``held``: examples that the network has not seen, in its own units. Another spread is chosen for them if it is
        better there by more than a standard error.
        """
        here = self._about(prior, curvature)
        f, covariance = here.left_out(self.power)
        premium = _Doubt(self.likelihood, f, here.y, _noise(f, covariance, here.points)).premium()
        unsure = _could_be_surer(here.f, here.sharp) > here.learnt
        spread = LEFT
        if not unsure:
            spread = _affordable(premium)
        gain = None
        if held is not None:
            spread, gain = self._on(held, here.precision, spread)
        nll = -float(self.likelihood.log_prob(here.f, here.y).mean())
        return Settled(here.precision, here.tightness, here.stiffness, spread, nll, premium(spread), gain, unsure)

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
        points, family = _points(f), _Family(prior, curvature)
        away = torch.cat([w.flatten() for w in self.offsets.values()]).double()
        size = max(float(prior.quadratic(away)), torch.finfo(f.dtype).tiny)
        steepness = tangents.along(self.offsets) * (
            self.power * self.count / len(f) / size
        )  # δ is −Σ_i r_i·steepness_i

        def log_tightness(residual: Tensor) -> float:
            return math.log(max(LEAST, -float((residual * steepness).sum())))

        sharp = averaged(self.likelihood, f, torch.zeros_like(f)[None], y)
        log_delta, log_c = log_tightness(sharp.residual), 0.0
        for left in reversed(range(ROUNDS)):
            precision = family.at(math.exp(log_delta), math.exp(log_c))
            covariance = tangents.covariance(precision).double()
            mean = averaged(self.likelihood, f, _noise(f, covariance, points), y)
            if left:
                log_delta = (log_delta + log_tightness(mean.residual)) / 2
                log_c = (log_c + _log_ratio(mean.hessian, sharp.hessian, covariance)) / 2
        return _About(f, y, points, covariance, sharp, mean, precision, math.exp(log_delta), math.exp(log_c))

    def _on(self, held: Batch, precision: Structure, start: float) -> tuple[float, float]:
        """The spread that is best for held-out examples, if it is better than ``start`` by more than a standard error.

        Also gives what it gains there over the network alone.
        """
        tangents = Tangents(self.network, held.x, list(self.offsets))
        f, y = tangents.outputs, self.likelihood.check(tangents.outputs, held.y)
        noise = _noise(f, tangents.covariance(precision).double(), _points(f))
        doubt = _Doubt(self.likelihood, f, y, noise)
        scores = {spread: doubt.log_prob(spread) for spread in (start, *SPREADS)}
        best = max(scores, key=lambda spread: float(scores[spread].mean()))
        more = scores[best] - scores[start]
        if len(more) < 2 or float(more.mean()) <= float(more.std()) / math.sqrt(len(more)):
            best = start
        return best, float((scores[best] - scores[LEFT]).mean())


def _affordable(premium: Callable[[float], float]) -> float:
    """The largest spread up to 1 whose premium is at most `PREMIUM`; `LEFT`, if there is none.

    By secants in the logs of both, which are nearly straight, between the largest spread that was cheap and the
    smallest that was dear.

    >>> round(_affordable(lambda spread: 35 * PREMIUM * spread**2), 2)
    0.17
    """
    low, high = math.log(LEFT), 0.0
    at, slope, last = 0.0, 1.0, None
    for _ in range(TRIES):
        above = math.log(max(premium(math.exp(at)), PREMIUM * LEFT) / PREMIUM)
        if (above <= 0 and at == 0) or abs(above) <= NEAR:
            return math.exp(at)
        low, high = (low, at) if above > 0 else (at, high)
        if last is not None:
            slope = (above - last[1]) / (at - last[0])
        last = at, above
        at = at - above / slope if slope > 0 else low
        if not low < at < high:
            at = (low + high) / 2
    return LEFT if low == math.log(LEFT) else math.exp(low)


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


def _points(f: Tensor) -> Tensor:
    """Points [S, K] that stand for N(0, I), K outputs of an example, the same every time."""
    width = f[0].numel()
    return normals(max(POINTS, 2 * width), width, torch.Generator(f.device).manual_seed(0))


def _noise(f: Tensor, covariance: Tensor, points: Tensor) -> Tensor:
    """Points [S, B, ...] that stand for N(0, covariance) at every example.

    By Cholesky factors, which take a tenth of the time of symmetric roots; what is added to the diagonal keeps those of
    outputs that do not vary from failing.
    """
    scale = covariance.diagonal(dim1=1, dim2=2).mean(1)
    added = (1e-9 * scale + torch.finfo(scale.dtype).tiny)[:, None, None]
    factor = torch.linalg.cholesky(covariance + added * torch.eye(covariance.shape[1]).to(covariance))
    return torch.einsum("bkl,sl->sbk", factor, points).reshape(len(points), *f.shape).to(f.dtype)


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
