"""Predictions where the outputs of an example are normal: exact for reals, and averages over many points for classes.

A draw of an example's logits costs C² operations, whatever the network: there is no reason to make do with a few. The
points are quasi-random, the same for all examples and in every run, so that a prediction depends on nothing else.
"""

from __future__ import annotations

import math
from functools import lru_cache

import torch
from torch import Tensor
from torch.quasirandom import SobolEngine

from bayesrule import likelihoods, tracing
from bayesrule.likelihoods import Bernoulli, Categorical, Likelihood
from bayesrule.posteriors.marginals import by_position, contrasts, normal_draws, normals, predict_reals, root
from bayesrule.posteriors.networks import check_memory
from bayesrule.predictions import Binary, Classes, Prediction

POINTS = 4096
"""Of each normal law. With ten classes and logits of variance 20 probabilities are within .005; with 32 points, .1."""
BENT = 256
"""Draws at the least of logits that are no longer normal, under an isotonic map."""
ROOM = 2**20
"""Logits that are held at a time: few enough for the processor's own memory."""


def predict_normal(
    likelihood: Likelihood, f: Tensor, covariance: Tensor, samples: int, generator: torch.Generator
) -> Prediction:
    """What is not known of y where outputs are normal, N(f, covariance).

    Exact for normal noise; for classes as exact as `POINTS` points are; for all others from so many `normal_draws`.

    >>> likelihood, spread = likelihoods.Gaussian(noise=0.6), torch.tensor([[[0.64]]])
    >>> predict_normal(likelihood, torch.zeros(1, 1), spread, 1, torch.Generator()).variance
    tensor([1.])
    """
    if isinstance(likelihood, likelihoods.Gaussian):
        return predict_reals(likelihood, f, covariance)
    if isinstance(likelihood, Categorical | Bernoulli):
        moments = likelihood.normal(f, covariance)
        if moments is not None and isinstance(likelihood, Categorical):
            return predict_classes(*moments)
        if moments is not None:
            return predict_binary(*moments)
        samples = max(samples, BENT)
    check_memory(samples, f.shape[0], f)
    return likelihood.predict(normal_draws(f, covariance, normals(samples, f[0].numel(), generator)))


def predict_classes(f: Tensor, covariance: Tensor) -> Classes:
    """Of logits [B, C, ...] that are normal, N(f, covariance).

    >>> f, covariance = torch.tensor([[2.0, 0.0]]), torch.diag(torch.tensor([8.0, 0.0]))
    >>> predict_classes(f, covariance[None]).probs, torch.tensor([[2.0, 0.0]]).softmax(1)
    (tensor([[0.7260, 0.2740]]), tensor([[0.8808, 0.1192]]))
    """
    logs, entropies = averages(*by_position(f, covariance))
    labels = (f.shape[0], *f.shape[2:])
    logits = logs.reshape(f.shape[0], -1, f.shape[1]).transpose(1, 2).reshape(f.shape)
    return Classes(logits[None], entropies.reshape(labels)[None])


def predict_binary(f: Tensor, covariance: Tensor) -> Binary:
    """Of logits of y = 1, [B, ...], that are normal, each on its own: two classes with logits (0, f)."""
    if f.ndim > 1 and f.shape[1] == 1:  # outputs [B, 1] are for labels [B]
        f = f.squeeze(1)
    both = torch.stack([torch.zeros_like(f), f], -1).reshape(-1, 2)
    spread = covariance.new_zeros(both.shape[0], 2, 2)
    spread[:, 1, 1] = covariance.diagonal(dim1=1, dim2=2).reshape(-1)
    logs, entropies = averages(both, spread)
    return Binary((logs[:, 1] - logs[:, 0]).reshape(1, *f.shape), entropies.reshape(1, *f.shape))


def averages(f: Tensor, covariance: Tensor) -> tuple[Tensor, Tensor]:
    """Logs of E[softmax] [B, C] and E[H(softmax)] [B] for logits [B, C] that are normal."""
    across = contrasts(f.shape[1], f.device)
    factor = (across @ root(across.T @ covariance.double() @ across)).to(f.dtype)
    points = normal_points(f.shape[1] - 1).T.to(f)
    if tracing.active():
        return _averages(f[:, :, None] + factor @ points)
    rows = max(1, ROOM // (POINTS * f.shape[1]))
    logs, entropies = [], []
    for mean, own in zip(torch.split(f, rows), torch.split(factor, rows), strict=True):
        found = _averages(torch.baddbmm(mean[:, :, None], own, points.expand(len(mean), -1, -1)))
        logs.append(found[0])
        entropies.append(found[1])
    return torch.cat(logs), torch.cat(entropies)


def _averages(logits: Tensor) -> tuple[Tensor, Tensor]:
    """The same of points [B, C, S], which are changed."""
    logits -= logits.amax(1, keepdim=True)
    weights = logits.exp()
    totals = weights.sum(1)
    # with p = weights/totals: −Σ p log p = log totals − Σ p logits
    entropies = (totals.log() - (weights * logits).sum(1) / totals).mean(1)
    probs = (weights / totals[:, None]).mean(2)
    logs = probs.log()
    # A probability that underflows still has a log; such examples are few, and take the long way.
    lost = (probs < torch.finfo(probs.dtype).tiny).any(1)
    if tracing.active():  # which ones, a program cannot choose
        exact = (logits - totals.log()[:, None]).logsumexp(2) - math.log(logits.shape[2])
        return torch.where(lost[:, None], exact, logs), entropies
    if bool(lost.any()):
        logs[lost] = (logits[lost] - totals[lost].log()[:, None]).logsumexp(2) - math.log(logits.shape[2])
    return logs, entropies


@lru_cache(maxsize=8)
def normal_points(width: int) -> Tensor:
    """`POINTS` points [S, K] that stand for N(0, I), whose mean is zero and whose covariance is I, in float64.

    >>> points = normal_points(3)
    >>> (points.T @ points / POINTS).round(decimals=6).abs().diagonal()
    tensor([1., 1., 1.], dtype=torch.float64)
    """
    engine = SobolEngine(width, scramble=True, seed=0)  # type: ignore[no-untyped-call]
    even = engine.draw(POINTS, dtype=torch.float64)
    tiny = 0.5 / POINTS**2  # a point at the edge would be infinite
    points = torch.special.ndtri(even.clamp(tiny, 1 - tiny))
    points = points - points.mean(0)
    return points @ torch.linalg.inv(torch.linalg.cholesky(points.T @ points / POINTS)).T
