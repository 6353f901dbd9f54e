"""How wide a Gaussian about a trained network is to be, told by its training data alone.

The network has seen all of them, so that its own loss there says nothing. What it would have said of an example that it
had not seen follows to first order from the posterior (the memory-perturbation equation of Nickl et al. 2023): without
example i the outputs there would be normal about

    f_i + V_i E_q[r_i],    V_i = J_i Λ⁻¹ J_iᵀ,    r = −∂ log p(y_i|f)/∂f,

with covariance V_i. Averages are over q and not at its mean: of a network that is sure of every example, residuals and
curvature at the mean are next to nothing, and a Gaussian by these alone is far too wide.
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

LEFT = 1e-6
"""The spread of a network that is left as it is: predictions are its own to six digits."""
SPREADS = (LEFT, 0.01, 0.03, 0.1, 0.3, 0.56, 1.0)
ROUNDS = 5  # of the averages and the Gaussian, in turns: by then both change by a few percent
ROUGH, FINE = 64, 256  # points of the outputs of an example: for averages over all examples, and for scores
LEAST = 1e-3  # of the factor on the prior's precision: of a network that loses nothing by growing


@dataclass(frozen=True, eq=False)
class Settled:
    """The Gaussian of precision ``tightness``·Λ₀ + ``stiffness``·G, and the spread that serves unseen examples best.

    ``scores``: mean log p of examples that were left out, for each of `SPREADS`; the first is that of the network.
    """

    precision: Structure
    tightness: float
    stiffness: float
    spread: float
    scores: tuple[float, ...]

    @property
    def left(self) -> bool:
        """Whether the network is better left as it is."""
        return self.spread == LEFT

    def sentence(self) -> str:
        """What was chosen, and what it beat."""
        network, chosen = -self.scores[0], -self.scores[SPREADS.index(self.spread)]
        if self.left:
            return (
                "the network is left as it is: no Gaussian about it clearly makes examples that it has not seen more "
                f"probable (NLL {network:.4g} by leave-one-out)"
            )
        return f"spread {self.spread:g} chosen: NLL {chosen:.4g} of unseen examples, the network alone {network:.4g}"


@dataclass(frozen=True, eq=False)
class LeaveOneOut:
    """Some training examples, and how they would have been predicted unseen.

    ``offsets``: the uncertain weights less the prior's mean. ``count``: of all examples, for which these stand.
    """

    network: nn.Module
    likelihood: Likelihood
    some: Batch
    offsets: Parameters
    count: int

    def settle(self, prior: Structure, curvature: Structure, held: Batch | None = None) -> Settled:
        """A prior under which the network is the mode, the Gaussian that goes with it, and its spread.

        With δ for tightness and c for stiffness, Λ = δΛ₀ + cG,

            δ = −(w − m)ᵀ Σ_i J_iᵀ E_q[r_i] / (w − m)ᵀ Λ₀ (w − m),    c = Σ_i tr(E_q[H_i] V_i) / Σ_i tr(H_i V_i):

        along w − m the slopes of prior and data cancel, as they do in all directions at the mode of a variational
        Gaussian; and its precision has E_q[H_i] for H_i (Opper and Archambeau 2009). Each round moves their logs half
        of the way. ``held``: examples that the network has not seen, in its own units, to choose the spread by.
        """
        tangents = Tangents(self.network, self.some.x, list(self.offsets))
        f, y = tangents.outputs.double(), self.likelihood.check(tangents.outputs, self.some.y)
        family = _Family(prior, curvature)
        away = torch.cat([w.flatten() for w in self.offsets.values()]).double()
        size = float(prior.quadratic(away))
        width = f[0].numel()
        covariance = f.new_zeros(len(f), width, width)
        sharp = averaged(self.likelihood, f, torch.zeros_like(f)[None], y).hessian
        log_delta, log_c = math.nan, 0.0  # the first round knows no earlier one
        for _ in range(ROUNDS):
            mean = self._averaged(f, covariance, y)
            delta = math.log(max(LEAST, -self._slope(mean.residual) / size))
            if math.isnan(log_delta):
                log_delta = delta
            else:
                log_delta = (log_delta + delta) / 2
                log_c = (log_c + _log_ratio(mean.hessian, sharp, covariance)) / 2
            precision = family.at(math.exp(log_delta), math.exp(log_c))
            covariance = tangents.covariance(precision).double()
        mean = self._averaged(f, covariance, y)
        if held is None:
            unseen = f + (covariance @ mean.residual.reshape(len(f), -1, 1)).reshape(f.shape)
            scores = self._scores(unseen, covariance, y)
            spread = _smallest(scores)
        else:
            ahead = Tangents(self.network, held.x, list(self.offsets))
            targets = self.likelihood.check(ahead.outputs, held.y)
            scores = self._scores(ahead.outputs.double(), ahead.covariance(precision).double(), targets)
            spread = SPREADS[max(range(len(SPREADS)), key=lambda index: float(scores[index].mean()))]
        means = [float(each.mean()) for each in scores]
        return Settled(precision, math.exp(log_delta), math.exp(log_c), spread, tuple(means))

    def _averaged(self, f: Tensor, covariance: Tensor, y: Tensor) -> Averaged:
        """Residuals and curvatures where outputs are N(f, covariance)."""
        return averaged(self.likelihood, f, _noise(f, covariance, ROUGH), y)

    def _slope(self, residual: Tensor) -> float:
        """(w − m)ᵀ Σ_i J_iᵀ r_i for residuals r, scaled up to all examples."""
        evaluated = modules.shell(self.network).eval()
        every = modules.parameters(self.network)
        weights = [every[name] for name in self.offsets]
        outputs = modules.call(evaluated, self.some.x)
        given = residual.reshape(outputs.shape).to(outputs.dtype)
        slopes = torch.autograd.grad(outputs, weights, given, allow_unused=True, materialize_grads=True)
        total = sum(float((g * w).sum()) for g, w in zip(slopes, self.offsets.values(), strict=True))
        return total * self.count / len(outputs)

    def _scores(self, f: Tensor, covariance: Tensor, y: Tensor) -> list[Tensor]:
        """log p(y) of each example where outputs are N(f, spread·covariance), for each spread."""
        noise = _noise(f, covariance, FINE)
        targets = y.repeat(len(noise), *[1] * (y.ndim - 1))
        found = []
        for spread in SPREADS:
            points = (f + math.sqrt(spread) * noise).flatten(0, 1)
            logs = self.likelihood.log_prob(points, targets).reshape(len(noise), len(f))
            found.append(logs.logsumexp(0) - math.log(len(noise)))
        return found


def _smallest(scores: list[Tensor]) -> float:
    """The smallest spread that is no worse than the best by more than a standard error of their difference."""
    best = max(scores, key=lambda each: float(each.mean()))
    for spread, each in zip(SPREADS, scores, strict=True):
        less = best - each
        if float(less.mean()) <= float(less.std()) / math.sqrt(len(less)):
            return spread
    return SPREADS[-1]


def _noise(f: Tensor, covariance: Tensor, count: int) -> Tensor:
    """Points [S, B, ...] that stand for N(0, covariance), the same every time."""
    points = normals(count, f[0].numel(), torch.Generator(f.device).manual_seed(0))
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
