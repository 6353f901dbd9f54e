"""Algorithms as the textbooks print them, in numpy or by another library: what the learning rule is measured against.

Nothing here imports the rule or its families. Where a form is iterated, the answer holds the start and every iterate.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

Array = npt.NDArray[np.float64]
Function = Callable[[Array], Array]


def sigmoid(x: Array) -> Array:
    """1/(1 + exp(−x))."""
    return 0.5 * (1 + np.tanh(0.5 * x))


@dataclass(frozen=True)
class LogisticLoss:
    """Σ_i log(1 + exp(−y_i wᵀx_i)) + ½δ‖w‖² with its slope and Hessian by hand; y = ±1."""

    x: Array
    y: Array
    decay: float = 1.0

    def gradient(self, w: Array) -> Array:
        """−Σ_i σ(−y_i wᵀx_i) y_i x_i + δw."""
        return -self.x.T @ (sigmoid(-self.y * (self.x @ w)) * self.y) + self.decay * w

    def hessian(self, w: Array) -> Array:
        """Σ_i p_i(1 − p_i) x_i x_iᵀ + δI."""
        p = sigmoid(self.x @ w)
        return (self.x * (p * (1 - p))[:, None]).T @ self.x + self.decay * np.eye(len(w))

    def batch(self, rows: Sequence[int]) -> LogisticLoss:
        """The same for some examples, δ in proportion."""
        return LogisticLoss(self.x[list(rows)], self.y[list(rows)], self.decay * len(rows) / len(self.x))


# Descent


def gradient_descent(gradients: Sequence[Function], start: Array, rate: float) -> Array:
    """θ ← θ − ρ∇ℓ_t(θ), a loss for each step (Cauchy 1847; Robbins and Monro 1951)."""
    path = [start]
    for gradient in gradients:
        path.append(path[-1] - rate * gradient(path[-1]))
    return np.array(path)


def newton(gradient: Function, hessian: Function, start: Array, steps: int) -> Array:
    """θ ← θ − H(θ)⁻¹∇ℓ(θ)."""
    path = [start]
    for _ in range(steps):
        path.append(path[-1] - np.linalg.solve(hessian(path[-1]), gradient(path[-1])))
    return np.array(path)


def averaged_newton(
    gradient: Function, hessian: Function, start: Array, precision: Array, rate: float, steps: int
) -> Array:
    """S ← (1−ρ)S + ρH(m), m ← m − ρS⁻¹∇ℓ(m): Newton's method with a running Hessian."""
    path, s = [start], precision
    for _ in range(steps):
        m = path[-1]
        s = (1 - rate) * s + rate * hessian(m)
        path.append(m - rate * np.linalg.solve(s, gradient(m)))
    return np.array(path)


def torch_optimiser(
    make: Callable[[list[Tensor]], torch.optim.Optimizer], losses: Sequence[Callable[[Tensor], Tensor]], start: Array
) -> Array:
    """The iterates of one of torch's optimisers, a loss for each step."""
    w = torch.tensor(start, dtype=torch.float64, requires_grad=True)
    optimiser, path = make([w]), [start]
    for loss in losses:
        optimiser.zero_grad()
        loss(w).backward()  # type: ignore[no-untyped-call]
        optimiser.step()
        path.append(w.detach().numpy().copy())
    return np.array(path)


# Binary and dropped weights


def straight_through(w: Tensor) -> Tensor:
    """The sign of w forwards, the identity backwards (Bengio, Léonard and Courville 2013)."""
    return w + (torch.where(w >= 0, 1.0, -1.0).to(w) - w).detach()


def bayesbinn(gradient: Function, start: Array, noise: Array, rate: float, temperature: float) -> Array:
    """Meng, Bachmann and Khan 2020, algorithm of table 1, w = ±1, no prior; a row of uniform ``noise`` for each step.

    w = tanh((λ + δ)/τ), δ = ½log(u/(1−u)); s = (1 − w²)/(τ(1 − tanh²λ)); λ ← (1−ρ)λ − ρ s∇ℓ(w).
    """
    path = [start]
    for u in noise:
        w = np.tanh((path[-1] + 0.5 * np.log(u / (1 - u))) / temperature)
        scale = (1 - w**2) / (temperature * (1 - np.tanh(path[-1]) ** 2))
        path.append((1 - rate) * path[-1] - rate * scale * gradient(w))
    return np.array(path)


# Exact posteriors


def ridge(x: Array, y: Array, decay: float) -> Array:
    """The w of least ‖y − Xw‖² + γ‖w‖²: least squares with √γ·I below X and zeros below y."""
    width = x.shape[1]
    tall = np.vstack([x, np.sqrt(decay) * np.eye(width)])
    return np.asarray(np.linalg.lstsq(tall, np.concatenate([y, np.zeros(width)]), rcond=None)[0])


def logistic_mode(table: LogisticLoss) -> Array:
    """Where ℓ is lowest, by scikit-learn's solver."""
    from sklearn.linear_model import LogisticRegression

    solver = LogisticRegression(C=1 / table.decay, fit_intercept=False, tol=1e-14, max_iter=1000, solver="newton-cg")
    return np.asarray(solver.fit(table.x, table.y).coef_[0], dtype=np.float64)


# Sequences


@dataclass(frozen=True)
class StateSpace:
    """x_1 ~ N(mean, cov), x_t = A x_{t−1} + N(0, Q), y_t = C x_t + N(0, R)."""

    mean: Array
    cov: Array
    move: Array  # A
    drift: Array  # Q
    look: Array  # C
    noise: Array  # R


def kalman_filter(system: StateSpace, seen: Array) -> tuple[Array, Array]:
    """p(x_t|y_{1:t}) with Kalman's gain K = PCᵀ(CPCᵀ + R)⁻¹: means [T, D] and covariances [T, D, D]."""
    mean, cov, means, covs = system.mean, system.cov, [], []
    for time, y in enumerate(seen):
        if time:
            mean, cov = system.move @ mean, system.move @ cov @ system.move.T + system.drift
        gain = cov @ system.look.T @ np.linalg.inv(system.look @ cov @ system.look.T + system.noise)
        mean, cov = mean + gain @ (y - system.look @ mean), cov - gain @ system.look @ cov
        means.append(mean)
        covs.append(cov)
    return np.array(means), np.array(covs)


def rauch_tung_striebel(system: StateSpace, seen: Array) -> tuple[Array, Array]:
    """p(x_t|y_{1:T}) by a pass back over the filter's answers, with gain G = P_t Aᵀ(A P_t Aᵀ + Q)⁻¹."""
    means, covs = kalman_filter(system, seen)
    for time in range(len(seen) - 2, -1, -1):
        ahead = system.move @ covs[time] @ system.move.T + system.drift
        gain = covs[time] @ system.move.T @ np.linalg.inv(ahead)
        means[time] = means[time] + gain @ (means[time + 1] - system.move @ means[time])
        covs[time] = covs[time] + gain @ (covs[time + 1] - ahead) @ gain.T
    return means, covs


def forward_backward(first: Array, move: Array, likelihood: Array) -> tuple[Array, Array, float]:
    """Rabiner 1989 with scaling: p(z_t|y) [T, K], Σ_t p(z_t, z_{t+1}|y) [K, K] and log p(y)."""
    forward, backward, scales = np.zeros_like(likelihood), np.ones_like(likelihood), np.zeros(len(likelihood))
    for time, now in enumerate(likelihood):
        forward[time] = now * (forward[time - 1] @ move if time else first)
        scales[time] = forward[time].sum()
        forward[time] /= scales[time]
    for time in range(len(likelihood) - 2, -1, -1):
        backward[time] = move @ (likelihood[time + 1] * backward[time + 1]) / scales[time + 1]
    pairs = np.zeros_like(move)
    for time in range(len(likelihood) - 1):
        after = likelihood[time + 1] * backward[time + 1] / scales[time + 1]
        pairs += forward[time][:, None] * move * after
    return forward * backward, pairs, float(np.log(scales).sum())


def baum_welch(first: Array, move: Array, show: Array, symbols: Array, steps: int) -> list[Array]:
    """Expectation maximisation for a hidden Markov chain: (first, move, show) side by side in one vector a step."""
    path = [np.concatenate([first, move.ravel(), show.ravel()])]
    for _ in range(steps):
        single, pairs, _ = forward_backward(first, move, show[:, symbols].T)
        counts = np.array([single[symbols == symbol].sum(0) for symbol in range(show.shape[1])]).T
        first, move = single[0], pairs / pairs.sum(1, keepdims=True)
        show = counts / counts.sum(1, keepdims=True)
        path.append(np.concatenate([first, move.ravel(), show.ravel()]))
    return path


# Latent variables


def gaussian_mixture_em(x: Array, weights: Array, means: Array, variances: Array, steps: int) -> Array:
    """EM for a mixture of Gaussians on the line: rows of (weights, means, variances), the start first."""
    path = [np.concatenate([weights, means, variances])]
    for _ in range(steps):
        density = weights * np.exp(-((x[:, None] - means) ** 2) / (2 * variances)) / np.sqrt(variances)
        share = density / density.sum(1, keepdims=True)
        total = share.sum(0)
        weights, means = total / len(x), share.T @ x / total
        variances = (share * (x[:, None] - means) ** 2).sum(0) / total
        path.append(np.concatenate([weights, means, variances]))
    return np.array(path)


def variational_regression(x: Array, y: Array, prior: tuple[float, float], steps: int) -> Array:
    """Bishop 2006, section 10.3, with the noise unknown too: rows of (mean of w, E[α], E[τ]) after each sweep.

    y ~ N(Xw, 1/τ), w ~ N(0, I/α), α and τ ~ Gamma(a, b); the first sweep starts from E[α] = E[τ] = 1.
    """
    (a, b), (count, width) = prior, x.shape
    alpha = tau = 1.0
    path = []
    for _ in range(steps):
        cov = np.linalg.inv(alpha * np.eye(width) + tau * x.T @ x)
        mean = tau * cov @ x.T @ y
        alpha = (a + width / 2) / (b + 0.5 * (mean @ mean + np.trace(cov)))
        residual = ((y - x @ mean) ** 2).sum() + np.trace(x @ cov @ x.T)
        tau = (a + count / 2) / (b + 0.5 * residual)
        path.append(np.concatenate([mean, [alpha, tau]]))
    return np.array(path)


def online_lda(counts: Array, batches: Sequence[Sequence[int]], settings: dict[str, Any]) -> Iterator[Array]:
    """Hoffman, Blei and Bach 2010 by scikit-learn: the topics' Dirichlet parameters [K, V] after each batch."""
    from sklearn.decomposition import LatentDirichletAllocation

    model = LatentDirichletAllocation(learning_method="online", total_samples=len(counts), **settings)
    for rows in batches:
        yield np.array(model.partial_fit(counts[list(rows)]).components_)


# Search


def hedge(losses: Array, rate: float) -> Array:
    """Exponential weights: w_k ∝ exp(−η Σ_{s≤t} ℓ_s(k)), by multiplying and dividing (Freund and Schapire 1997)."""
    path = [np.full(losses.shape[1], 1 / losses.shape[1])]
    for row in losses:
        weights = path[-1] * np.exp(-rate * row)
        path.append(weights / weights.sum())
    return np.array(path)


def evolution(loss: Function, mean: Array, variance: Array, noise: Array, rate: float) -> Array:
    """Natural evolution strategies (Wierstra et al. 2014): λ ← λ − ρF⁻¹ Σ_k (ℓ(θ_k) − ℓ̄)∇_λ log q(θ_k)/(n − 1).

    For N(m, diag v), coordinate by coordinate: λ = (m/v, −1/(2v)), T = (θ, θ²), F = Cov(T), ∇_λ log q = T − E[T].
    ``noise`` [steps, n, D] is standard normal. Rows of (m, v).
    """
    path = [np.concatenate([mean, variance])]
    for draws in noise:
        theta = mean + np.sqrt(variance) * draws
        pull = (loss(theta) - loss(theta).mean()) / (len(draws) - 1)
        first, second = mean / variance, -0.5 / variance
        for j, (m, v) in enumerate(zip(mean, variance, strict=True)):
            fisher = np.array([[v, 2 * m * v], [2 * m * v, 4 * m**2 * v + 2 * v**2]])
            score = np.array([theta[:, j] - m, theta[:, j] ** 2 - m**2 - v])
            first[j], second[j] = np.array([first[j], second[j]]) - rate * np.linalg.solve(fisher, score @ pull)
        variance = -0.5 / second
        mean = first * variance
        path.append(np.concatenate([mean, variance]))
    return np.array(path)


@dataclass(frozen=True)
class Ripple:
    """½θ² + a·(1 − cos kθ): a bowl with ripples, and what is left of it under N(m, σ²)."""

    height: float = 1.5
    pace: float = 4.0

    def smoothed(self, m: Array, deviation: float) -> Array:
        """½(m² + σ²) + a(1 − exp(−½k²σ²) cos km), the average over N(m, σ²)."""
        left = np.exp(-0.5 * (self.pace * deviation) ** 2)
        return 0.5 * (m**2 + deviation**2) + self.height * (1 - left * np.cos(self.pace * m))

    def slope(self, m: Array, deviation: float) -> Array:
        """Of `smoothed` in m."""
        left = np.exp(-0.5 * (self.pace * deviation) ** 2)
        return m + self.height * left * self.pace * np.sin(self.pace * m)


def continuation(ripple: Ripple, start: Array, deviations: Sequence[float], rate: float) -> Array:
    """Gaussian homotopy (Mobahi and Fisher 2015): descent on the smoothed loss while the smoothing goes away."""
    slopes: list[Function] = [partial(ripple.slope, deviation=deviation) for deviation in deviations]
    return gradient_descent(slopes, start, rate)
