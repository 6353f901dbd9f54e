"""Which noise real targets, or counts, have: by the held-out density of a linear model under each."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from bayesrule.data import Kind, as_data, splits
from bayesrule.likelihoods.gaussian import Gaussian
from bayesrule.likelihoods.log_normal import LogNormal
from bayesrule.likelihoods.negative_binomial import NegativeBinomial
from bayesrule.likelihoods.poisson import Poisson
from bayesrule.likelihoods.student import Student
from bayesrule.naming import unknown
from bayesrule.predictions import t_distribution
from bayesrule.predictions.counts import log_negative_binomial

FOLDS = 5
ROWS = 2000  # that are looked at: enough to tell, and quick
RIDGE = 1.0  # precision of the weights in units of the noise's, for standardised inputs
ODDS = 20  # by which held-out targets must be more probable before the simplest noise is given up
DEGREES = (2.1, 2.5, 3.0, 4.0, 6.0, 10.0, 20.0, 50.0, 100.0)  # of freedom that are tried
ROUNDS = 60  # of the fixed point for a scale
MOST_LOG_RATE = 30.0  # beyond it no count is
NEWTON = 25  # steps to the mode of a regression of counts
DISPERSIONS = (1e-4, 1e2, 121)  # that are tried: from, to, how many


@dataclass(frozen=True)
class NoiseChoice:
    """A likelihood by name, and why.

    ``densities``: the mean held-out log-density of an example, in nats and in the units of y, by likelihood.
    ``whole``: whether all of what are taken for reals are whole numbers from 0 up, which may be counts.
    """

    name: str
    densities: dict[str, float]
    whole: bool

    def __str__(self) -> str:
        told = ", ".join(f"{name} {density:.3f}" for name, density in self.densities.items())
        text = f"likelihood {self.name}, by held-out log-densities of a linear model: {told}"
        if self.whole:
            text += "; the targets are whole numbers: if they count something, take poisson or negative-binomial"
        return text


def best(train: Any, seed: int = 0, kind: Kind = "reals") -> NoiseChoice:
    """The noise of targets ``(X, y)`` in their own units.

    Of reals it is normal, Student or, if all targets are positive, log-normal; of counts Poisson or negative binomial.
    A ridge regression of y, one of log y, or one of Poisson's log-rates, is fitted to four fifths of at most 2000 rows,
    and predicts the others. The parameters of each noise are those most probable for the residuals of the other folds.
    The first noise is kept unless the held-out rows together are 20 times as probable under the best other one.

    >>> g = torch.Generator().manual_seed(0)
    >>> x = torch.randn(500, 2, generator=g)
    >>> best((x, (x[:, 0] + torch.randn(500, generator=g)).exp())).name
    'log-normal'
    """
    data = as_data(train)
    if data.scaling.targets is not None:
        raise ValueError("train must have targets in their own units, but they are standardised: pass the raw data")
    x, y = data.all()
    if not isinstance(x, Tensor) or not x.is_floating_point():
        raise TypeError("X must be one array of real numbers for a noise to be chosen: name a likelihood instead")
    if len(y) < 2 * FOLDS:
        raise ValueError(f"train must have at least {2 * FOLDS} rows for a noise to be chosen, not {len(y)}: name one")
    rows = torch.randperm(len(y), generator=torch.Generator().manual_seed(seed))[:ROWS]
    x, y = x[rows.to(x.device)].double().cpu().flatten(1), y[rows.to(y.device)].double().cpu().reshape(len(rows), -1)
    fold = splits.folds(torch.zeros(len(y)), FOLDS, 1 / FOLDS, seed)
    if kind == "reals":
        found, whole = _reals(x, y, fold), _whole(y)
    elif kind == "counts":
        found, whole = _counts(x, y, fold), False
    else:
        raise unknown("kind", kind, ("reals", "counts"))
    return NoiseChoice(_chosen(found), {name: float(d.mean()) for name, d in found.items()}, whole)


def _reals(x: Tensor, y: Tensor, fold: Tensor) -> dict[str, Tensor]:
    """Held-out log-densities ``[N]`` of real numbers, normal noise first."""
    residuals = _residuals(x, y, fold)
    found = {Gaussian.name: _normal(residuals, fold), Student.name: _tailed(residuals, fold)}
    if bool((y > 0).all()):
        log_y = y.log()
        found[LogNormal.name] = _normal(_residuals(x, log_y, fold), fold) - log_y.sum(1)
    return found


def _counts(x: Tensor, y: Tensor, fold: Tensor) -> dict[str, Tensor]:
    """Held-out log-probabilities ``[N]`` of counts, Poisson's first."""
    if not _whole(y):
        raise ValueError("y must hold whole numbers from 0 up to be counts: for other numbers take the kind reals")
    log_rates = _log_rates(x, y, fold)
    poisson = y * log_rates - log_rates.exp() - torch.lgamma(y + 1)
    start, end, many = DISPERSIONS
    alphas = torch.logspace(math.log10(start), math.log10(end), many, dtype=y.dtype)
    each = torch.stack([log_negative_binomial(log_rates, alpha, y) for alpha in alphas])  # [A, N, D]
    dispersed = torch.empty_like(y)
    for k in range(FOLDS):
        held = fold == k
        which = each[:, ~held].sum(1).argmax(0)  # the most probable dispersion of each target on the other folds
        for column, index in enumerate(which.tolist()):
            dispersed[held, column] = each[index, held, column]
    return {Poisson.name: poisson.sum(1), NegativeBinomial.name: dispersed.sum(1)}


def _chosen(densities: dict[str, Tensor]) -> str:
    """The best, if all held-out targets together are `ODDS` times as probable under it as under the first."""
    # No test of the mean gain: that of tails comes from a few targets, and is as variable as they are rare.
    first = next(iter(densities))
    name = max(densities, key=lambda name: float(densities[name].sum()))
    gain = float((densities[name] - densities[first]).sum())
    return name if gain > math.log(ODDS) else first


def _whole(y: Tensor) -> bool:
    return bool(((y >= 0) & (y == y.floor())).all())


def _residuals(x: Tensor, y: Tensor, fold: Tensor) -> Tensor:
    """y less what a ridge regression on all other folds says of it, ``[N, D]``."""
    found = torch.empty_like(y)
    for k in range(FOLDS):
        held = fold == k
        inputs = _standardised(x, ~held)
        known, middle = inputs[~held], y[~held].mean(0)
        found[held] = y[held] - middle - inputs[held] @ _ridge(known, y[~held] - middle)
    return found


def _standardised(x: Tensor, known: Tensor) -> Tensor:
    """All inputs in units of the known ones."""
    std, mean = torch.std_mean(x[known], 0, correction=0)
    return (x - mean) / std.masked_fill(std <= 1e-12 * mean.abs(), 1.0)


def _log_rates(x: Tensor, y: Tensor, fold: Tensor) -> Tensor:
    """What a Poisson regression on all other folds says of each row, ``[N, D]``."""
    found = torch.empty_like(y)
    for k in range(FOLDS):
        held = fold == k
        inputs = _standardised(x, ~held)
        if inputs.shape[1] > int((~held).sum()):  # in the space of the rows |w|² is the same, and the system smaller
            inputs = inputs @ torch.linalg.svd(inputs[~held], full_matrices=False).Vh.T
        inputs = torch.cat([torch.ones_like(inputs[:, :1]), inputs], 1)
        for column in range(y.shape[1]):
            found[held, column] = inputs[held] @ _poisson(inputs[~held], y[~held, column])
    return found.clamp(-MOST_LOG_RATE, MOST_LOG_RATE)


def _poisson(x: Tensor, y: Tensor) -> Tensor:
    """argmin_w Σ exp(x w) − y x w + ½ RIDGE |w|², the first weight, of the constant, left free: by Newton's method."""
    weights = torch.zeros_like(x[0])
    weights[0] = (y.mean() + 1e-9).log()
    prior = torch.full_like(weights, RIDGE)
    prior[0] = 1e-6

    def loss(w: Tensor) -> Tensor:
        f = x @ w
        return (f.exp() - y * f).sum() + (prior * w.square()).sum() / 2

    for _ in range(NEWTON):
        rates = (x @ weights).exp()
        slope = x.T @ (rates - y) + prior * weights
        step = torch.linalg.solve(x.T @ (rates[:, None] * x) + prior.diag(), slope)
        length, here = 1.0, loss(weights)
        while not loss(weights - length * step) <= here and length > 1e-6:  # not so for NaN
            length /= 2
        weights = weights - length * step
        if float(step @ slope) < 1e-9:
            break
    return weights


def _ridge(x: Tensor, y: Tensor) -> Tensor:
    """argmin_w |y − x w|² + RIDGE |w|², by the smaller of two systems: (xᵀx + λ)⁻¹ xᵀ y = xᵀ (x xᵀ + λ)⁻¹ y."""
    rows, columns = x.shape
    if columns <= rows:
        return torch.linalg.solve(x.T @ x + RIDGE * torch.eye(columns, dtype=x.dtype), x.T @ y)
    return x.T @ torch.linalg.solve(x @ x.T + RIDGE * torch.eye(rows, dtype=x.dtype), y)


def _normal(residuals: Tensor, fold: Tensor) -> Tensor:
    """Held-out log-densities ``[N]`` under normal noise."""
    found = residuals.new_empty(len(residuals))
    for k in range(FOLDS):
        held = fold == k
        noise = _floored(residuals[~held].square().mean(0).sqrt())
        squares = (residuals[held] / noise).square()
        found[held] = -(squares / 2 + noise.log() + math.log(2 * math.pi) / 2).sum(1)
    return found


def _tailed(residuals: Tensor, fold: Tensor) -> Tensor:
    """Held-out log-densities ``[N]`` under Student noise."""
    found = residuals.new_empty(len(residuals))
    for k in range(FOLDS):
        held = fold == k
        noise, freedom = _student(residuals[~held])
        z = residuals[held] / noise
        found[held] = (t_distribution.log_density(z, freedom) - noise.log()).sum(1)
    return found


def _student(residuals: Tensor) -> tuple[Tensor, Tensor]:
    """The most probable scale and degrees of freedom of each column, among `DEGREES`.

    At the most probable scale ``s² = mean w r²`` with ``w = (ν + 1)/(ν + r²/s²)``.
    """
    freedoms = residuals.new_tensor(DEGREES)[:, None]
    squares = residuals.square()
    scales = _floored(squares.mean(0).sqrt()).expand(len(DEGREES), -1)
    for _ in range(ROUNDS):
        weights = (freedoms + 1)[:, None] / (freedoms[:, None] + squares / scales.square()[:, None])
        scales = _floored((weights * squares).mean(1).sqrt())
    densities = t_distribution.log_density(residuals / scales[:, None], freedoms[:, None]).mean(1) - scales.log()
    which = densities.argmax(0, keepdim=True)
    return scales.gather(0, which)[0], freedoms.expand_as(scales).gather(0, which)[0]


def _floored(scale: Tensor) -> Tensor:
    return scale.clamp(min=1e-9)  # of targets that a line meets exactly
