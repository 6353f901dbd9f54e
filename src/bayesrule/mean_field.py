"""One wide hidden layer: the ELBO of its N neurons, and the functional of measures that it tends to.

The network is `br.models.MeanFieldNet`, f(x) = 1/N Σ_j a_j relu(⟨b_j, x⟩). A mean-field q has the parameters θ_j for
neuron j, the means and deviations of its weights, and ν = 1/N Σ_j δ_θj is a measure over such parameters. With
log-likelihoods log L(y_i|f) of p examples, prior P0 and temperature η (Huix et al. 2022)::

    ELBO(θ) = Σ_i E_q[log L(y_i|f(x_i))] − η Σ_j KL(q_θj‖P0)
    F̃(ν)    = Σ_i log L(y_i|E_q[f(x_i)]) − η N ∫ KL(q_θ‖P0) dν(θ)

The second has the mean over q within the loss, and |ELBO(θ) − F̃(ν)| ≤ C·p/N. With η = τ·p/N, F̃/p depends on N no
longer.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from bayesrule.likelihoods import Likelihood


class Estimate(NamedTuple):
    """A mean over draws, and its standard error."""

    value: float
    error: float


@dataclass(frozen=True, eq=False)
class Neurons:
    """θ: means and deviations of the weights into each of N neurons, [N, D], and out of it, [N, K].

    >>> neurons = Neurons.drawn(50, inputs=3, seed=0)
    >>> mean, variance = neurons.moments(torch.ones(4, 3, dtype=torch.float64))
    >>> mean.shape, bool((variance > 0).all())
    (torch.Size([4, 1]), True)
    """

    in_mean: Tensor
    in_std: Tensor
    out_mean: Tensor
    out_std: Tensor

    @classmethod
    def of(cls, mean: Mapping[str, Tensor], std: Mapping[str, Tensor]) -> Neurons:
        """From ``posterior.mean`` and ``posterior.std`` of a `br.models.MeanFieldNet`."""
        if set(mean) != {"hidden.weight", "outer.weight"}:
            raise ValueError(f"mean must be that of a br.models.MeanFieldNet, not of the parameters {sorted(mean)}")
        into, out = "hidden.weight", "outer.weight"
        return cls(mean[into].double(), std[into].double(), mean[out].double().T, std[out].double().T)

    @classmethod
    def drawn(cls, count: int, inputs: int, outputs: int = 1, seed: int = 0) -> Neurons:
        """N neurons from one law over a compact set: means from −1 to 1, deviations from 0.2 to 1, in float64."""
        generator = torch.Generator().manual_seed(seed)

        def uniform(low: float, high: float, width: int) -> Tensor:
            return low + (high - low) * torch.rand(count, width, generator=generator, dtype=torch.float64)

        means, stds = (-1.0, 1.0), (0.2, 1.0)
        return cls(uniform(*means, inputs), uniform(*stds, inputs), uniform(*means, outputs), uniform(*stds, outputs))

    def __len__(self) -> int:
        return len(self.in_mean)

    def moments(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """E_q[f(x)] and Var_q[f(x)], both [B, K], in closed form.

        A neuron's input is u ~ N(m, s²), so E relu(u) = mΦ(m/s) + sφ(m/s) and E relu(u)² = (m² + s²)Φ(m/s) + msφ(m/s).
        """
        m, s = x @ self.in_mean.T, (x.square() @ self.in_std.square().T).sqrt().clamp_min(1e-300)
        z = m / s
        below, density = torch.special.ndtr(z), (-0.5 * z.square()).exp() / math.sqrt(2 * math.pi)
        first = m * below + s * density
        second = (m.square() + s.square()) * below + m * s * density
        n = len(self)
        mean = first @ self.out_mean / n
        squares = second @ (self.out_mean.square() + self.out_std.square())
        return mean, (squares - first.square() @ self.out_mean.square()) / n**2

    def divergences(self, scale: float) -> Tensor:
        """KL(q_θj‖N(0, scale²)) of each neuron, [N]."""
        parts = [_divergence(self.in_mean, self.in_std, scale), _divergence(self.out_mean, self.out_std, scale)]
        return parts[0] + parts[1]

    def draws(self, x: Tensor, count: int, generator: torch.Generator) -> Tensor:
        """f(x) of drawn networks, [S, B, K]."""
        found = []
        for _ in range(count):
            into = torch.addcmul(self.in_mean, self.in_std, _normal(self.in_mean, generator))
            out = torch.addcmul(self.out_mean, self.out_std, _normal(self.out_mean, generator))
            found.append((x @ into.T).relu() @ out / len(self))
        return torch.stack(found)


def elbo(
    neurons: Neurons,
    x: Tensor,
    y: Tensor,
    likelihood: Likelihood,
    scale: float,
    temperature: float,
    samples: int = 200,
    seed: int = 0,
) -> Estimate:
    """ELBO_η of N neurons under the prior N(0, scale²), by ``samples`` drawn networks.

    What a draw differs from E_q[f] by, times the slope of the log-likelihood there, has the mean zero: it is taken off,
    which leaves the mean as it is and most of the noise out.
    """
    centre = neurons.moments(x)[0]
    slope = _slope(likelihood, centre, y)
    generator = torch.Generator(x.device).manual_seed(seed)
    found: list[Tensor] = []
    for f in neurons.draws(x, samples, generator):
        off = f - centre
        found.append(likelihood.log_prob(f, y).sum() - (slope * off).sum())
    totals = torch.stack(found)
    penalty = temperature * float(neurons.divergences(scale).sum())
    return Estimate(float(totals.mean()) - penalty, float(totals.std() / math.sqrt(samples)))


def limit_functional(
    neurons: Neurons, x: Tensor, y: Tensor, likelihood: Likelihood, scale: float, temperature: float
) -> float:
    """F̃ of the measure ν = 1/N Σ_j δ_θj, exactly."""
    centre = neurons.moments(x)[0]
    return float(likelihood.log_prob(centre, y).sum()) - temperature * float(neurons.divergences(scale).sum())


def gaussian_elbo(neurons: Neurons, x: Tensor, y: Tensor, noise: float, scale: float, temperature: float) -> Tensor:
    """ELBO_η for normal noise, exactly and with gradients: Σ_i log N(y_i; E f, noise²) − Σ_i Var f/2noise² − η KL.

    >>> from bayesrule.likelihoods import Gaussian
    >>> x, y = torch.ones(5, 2, dtype=torch.float64), torch.zeros(5, dtype=torch.float64)
    >>> neurons = Neurons.drawn(20, inputs=2, seed=0)
    >>> exact = float(gaussian_elbo(neurons, x, y, 0.5, 1.0, 1.0))
    >>> sampled = elbo(neurons, x, y, Gaussian(0.5), 1.0, 1.0, samples=2000)
    >>> abs(sampled.value - exact) < 5 * sampled.error
    True
    """
    mean, variance = neurons.moments(x)
    squares = (y.reshape(mean.shape) - mean).square() + variance
    misfit = 0.5 * (squares / noise**2 + math.log(2 * math.pi * noise**2))
    return -misfit.sum() - temperature * neurons.divergences(scale).sum()


def slope(sizes: Tensor, values: Tensor) -> float:
    """The slope of log values over log sizes, by least squares.

    >>> sizes = torch.tensor([1.0, 10.0, 100.0], dtype=torch.float64)
    >>> slope(sizes, 5 / sizes)
    -1.0
    """
    a, b = sizes.double().log(), values.double().log()
    a, b = a - a.mean(), b - b.mean()
    return round(float((a * b).sum() / a.square().sum()), 12)


def _slope(likelihood: Likelihood, centre: Tensor, y: Tensor) -> Tensor:
    """∂ log L/∂f at the mean outputs."""
    with torch.enable_grad():
        at = centre.detach().requires_grad_()
        (found,) = torch.autograd.grad(likelihood.log_prob(at, y).sum(), at)
    return found


def _divergence(mean: Tensor, std: Tensor, scale: float) -> Tensor:
    """KL(N(mean, std²)‖N(0, scale²)), summed over all but the first dimension."""
    each = 0.5 * ((mean.square() + std.square()) / scale**2 - 1) - (std / scale).log()
    return each.sum(1)


def _normal(like: Tensor, generator: torch.Generator) -> Tensor:
    return torch.randn(like.shape, generator=generator, dtype=like.dtype, device=like.device)
