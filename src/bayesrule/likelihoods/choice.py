"""Which noise real targets, or counts, have: by the held-out density of a linear model under each."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, NamedTuple

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
    """The noise of targets ``(X, y)``, or ``(X, y, weight)``, in their own units.

    Of reals it is normal, Student or, if all targets are positive, log-normal; of counts Poisson or negative binomial.
    A ridge regression of y, one of log y, or one of Poisson's log-rates, is fitted to four fifths of at most 2000 rows,
    and predicts the others. The parameters of each noise are those most probable for the residuals of the other folds.
    The first noise is kept unless the held-out rows together are 20 times as probable under the best other one.
    A row of weight w counts as w rows.

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
    weight = torch.ones(len(y)) if data.weight is None else data.weight.cpu()
    rows = torch.randperm(len(y), generator=torch.Generator().manual_seed(seed))
    rows = rows[weight[rows] > 0][:ROWS]  # what counts for nothing is not looked at
    if len(rows) < 2 * FOLDS:
        which = "rows" if data.weight is None else "rows of weight above zero"
        raise ValueError(
            f"train must have at least {2 * FOLDS} {which} for a noise to be chosen, not {len(rows)}: name one"
        )
    x, y = x[rows.to(x.device)].double().cpu().flatten(1), y[rows.to(y.device)].double().cpu().reshape(len(rows), -1)
    counted = Rows(x, y, weight[rows].double(), splits.folds(torch.zeros(len(y)), FOLDS, 1 / FOLDS, seed))
    if kind == "reals":
        found, whole = _reals(counted), _whole(y)
    elif kind == "counts":
        found, whole = _counts(counted), False
    else:
        raise unknown("kind", kind, ("reals", "counts"))
    share = counted.weight / counted.weight.sum()
    means = {name: float(share @ densities) for name, densities in found.items()}
    return NoiseChoice(_chosen(found, counted.weight), means, whole)


class Rows(NamedTuple):
    """Inputs ``[N, I]``, targets ``[N, D]``, how many times each row counts ``[N]``, and the fold that it is in."""

    x: Tensor
    y: Tensor
    weight: Tensor
    fold: Tensor


def _reals(rows: Rows) -> dict[str, Tensor]:
    """Held-out log-densities ``[N]`` of real numbers, normal noise first."""
    residuals = rows._replace(y=_residuals(rows))
    found = {Gaussian.name: _normal(residuals), Student.name: _tailed(residuals)}
    if bool((rows.y > 0).all()):
        log_y = rows.y.log()
        residuals = rows._replace(y=_residuals(rows._replace(y=log_y)))
        found[LogNormal.name] = _normal(residuals) - log_y.sum(1)
    return found


def _counts(rows: Rows) -> dict[str, Tensor]:
    """Held-out log-probabilities ``[N]`` of counts, Poisson's first."""
    y, fold = rows.y, rows.fold
    if not _whole(y):
        raise ValueError("y must hold whole numbers from 0 up to be counts: for other numbers take the kind reals")
    log_rates = _log_rates(rows)
    poisson = y * log_rates - log_rates.exp() - torch.lgamma(y + 1)
    start, end, many = DISPERSIONS
    alphas = torch.logspace(math.log10(start), math.log10(end), many, dtype=y.dtype)
    each = torch.stack([log_negative_binomial(log_rates, alpha, y) for alpha in alphas])  # [A, N, D]
    dispersed = torch.empty_like(y)
    weighted = each * rows.weight[:, None]
    for k in range(FOLDS):
        held = fold == k
        which = weighted[:, ~held].sum(1).argmax(0)  # the most probable dispersion of each target on the other folds
        for column, index in enumerate(which.tolist()):
            dispersed[held, column] = each[index, held, column]
    return {Poisson.name: poisson.sum(1), NegativeBinomial.name: dispersed.sum(1)}


def _chosen(densities: dict[str, Tensor], weight: Tensor) -> str:
    """The best, if all held-out targets together are `ODDS` times as probable under it as under the first."""
    # No test of the mean gain: that of tails comes from a few targets, and is as variable as they are rare.
    first = next(iter(densities))
    name = max(densities, key=lambda name: float(weight @ densities[name]))
    gain = float(weight @ (densities[name] - densities[first]))
    return name if gain > math.log(ODDS) else first


def _whole(y: Tensor) -> bool:
    return bool(((y >= 0) & (y == y.floor())).all())


def _mean(t: Tensor, weight: Tensor) -> Tensor:
    """The mean over rows, the first dimension, each counted as often as its weight says."""
    return torch.tensordot(weight / weight.sum(), t, 1)


def _residuals(rows: Rows) -> Tensor:
    """y less what a ridge regression on all other folds says of it, ``[N, D]``."""
    found = torch.empty_like(rows.y)
    for k in range(FOLDS):
        held = rows.fold == k
        inputs, y, weight = _standardised(rows, ~held), rows.y[~held], rows.weight[~held]
        middle = _mean(y, weight)
        found[held] = rows.y[held] - middle - inputs[held] @ _ridge(inputs[~held], y - middle, weight)
    return found


def _standardised(rows: Rows, known: Tensor) -> Tensor:
    """All inputs in units of the known ones."""
    x, weight = rows.x[known], rows.weight[known]
    mean = _mean(x, weight)
    std = _mean((x - mean).square(), weight).sqrt()
    return (rows.x - mean) / std.masked_fill(std <= 1e-12 * mean.abs(), 1.0)


def _log_rates(rows: Rows) -> Tensor:
    """What a Poisson regression on all other folds says of each row, ``[N, D]``."""
    found = torch.empty_like(rows.y)
    for k in range(FOLDS):
        held = rows.fold == k
        inputs = _standardised(rows, ~held)
        if inputs.shape[1] > int((~held).sum()):  # in the space of the rows |w|² is the same, and the system smaller
            inputs = inputs @ torch.linalg.svd(inputs[~held], full_matrices=False).Vh.T
        inputs = torch.cat([torch.ones_like(inputs[:, :1]), inputs], 1)
        for column in range(rows.y.shape[1]):
            weights = _poisson(inputs[~held], rows.y[~held, column], rows.weight[~held])
            found[held, column] = inputs[held] @ weights
    return found.clamp(-MOST_LOG_RATE, MOST_LOG_RATE)


def _poisson(x: Tensor, y: Tensor, weight: Tensor) -> Tensor:
    """argmin_w Σ_i c_i (exp(x_i w) − y_i x_i w) + ½ RIDGE |w|² for counts c of the rows, by Newton's method.

    The first weight, of the constant, is left free.
    """
    weights = torch.zeros_like(x[0])
    weights[0] = (_mean(y, weight) + 1e-9).log()
    prior = torch.full_like(weights, RIDGE)
    prior[0] = 1e-6

    def loss(w: Tensor) -> Tensor:
        f = x @ w
        return weight @ (f.exp() - y * f) + (prior * w.square()).sum() / 2

    for _ in range(NEWTON):
        rates = (x @ weights).exp()
        slope = x.T @ (weight * (rates - y)) + prior * weights
        step = torch.linalg.solve(x.T @ ((weight * rates)[:, None] * x) + prior.diag(), slope)
        length, here = 1.0, loss(weights)
        while not loss(weights - length * step) <= here and length > 1e-6:  # not so for NaN
            length /= 2
        weights = weights - length * step
        if float(step @ slope) < 1e-9:
            break
    return weights


def _ridge(x: Tensor, y: Tensor, weight: Tensor) -> Tensor:
    """argmin_w Σ_i c_i |y_i − x_i w|² + RIDGE |w|² for counts c of the rows.

    By the smaller of two systems: (xᵀx + λ)⁻¹ xᵀ y = xᵀ (x xᵀ + λ)⁻¹ y, of rows times √c.
    """
    x, y = x * weight.sqrt()[:, None], y * weight.sqrt()[:, None]
    rows, columns = x.shape
    if columns <= rows:
        return torch.linalg.solve(x.T @ x + RIDGE * torch.eye(columns, dtype=x.dtype), x.T @ y)
    return x.T @ torch.linalg.solve(x @ x.T + RIDGE * torch.eye(rows, dtype=x.dtype), y)


def _normal(residuals: Rows) -> Tensor:
    """Held-out log-densities ``[N]`` of residuals under normal noise."""
    found = torch.empty_like(residuals.weight)
    for k in range(FOLDS):
        held = residuals.fold == k
        noise = _floored(_mean(residuals.y[~held].square(), residuals.weight[~held]).sqrt())
        squares = (residuals.y[held] / noise).square()
        found[held] = -(squares / 2 + noise.log() + math.log(2 * math.pi) / 2).sum(1)
    return found


def _tailed(residuals: Rows) -> Tensor:
    """Held-out log-densities ``[N]`` of residuals under Student noise."""
    found = torch.empty_like(residuals.weight)
    for k in range(FOLDS):
        held = residuals.fold == k
        noise, freedom = _student(residuals.y[~held], residuals.weight[~held])
        z = residuals.y[held] / noise
        found[held] = (t_distribution.log_density(z, freedom) - noise.log()).sum(1)
    return found


def _student(residuals: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
    """The most probable scale and degrees of freedom of each column, among `DEGREES`.

    At the most probable scale ``s² = mean w r²`` with ``w = (ν + 1)/(ν + r²/s²)``.
    """
    freedoms = residuals.new_tensor(DEGREES)[:, None]
    squares = residuals.square()[:, None]  # [N, 1, D] beside degrees [F, 1] and scales [F, D]
    scales = _floored(_mean(squares[:, 0], weight).sqrt()).expand(len(DEGREES), -1)
    for _ in range(ROUNDS):
        factors = (freedoms + 1) / (freedoms + squares / scales.square())
        scales = _floored(_mean(factors * squares, weight).sqrt())
    densities = t_distribution.log_density(residuals[:, None] / scales, freedoms.expand(-1, residuals.shape[1]))
    which = (_mean(densities, weight) - scales.log()).argmax(0, keepdim=True)
    return scales.gather(0, which)[0], freedoms.expand_as(scales).gather(0, which)[0]


def _floored(scale: Tensor) -> Tensor:
    return scale.clamp(min=1e-9)  # of targets that a line meets exactly
