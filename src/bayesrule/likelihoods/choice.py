"""Which noise real targets have: by the held-out density of a linear model under each."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from bayesrule.data import as_data, splits
from bayesrule.likelihoods.gaussian import Gaussian
from bayesrule.likelihoods.log_normal import LogNormal
from bayesrule.likelihoods.student import Student
from bayesrule.predictions import t_distribution

FOLDS = 5
ROWS = 2000  # that are looked at: enough to tell, and quick
RIDGE = 1.0  # precision of the weights in units of the noise's, for standardised inputs
ODDS = 20  # by which held-out targets must be more probable before normal noise is given up
DEGREES = (2.1, 2.5, 3.0, 4.0, 6.0, 10.0, 20.0, 50.0, 100.0)  # of freedom that are tried
ROUNDS = 60  # of the fixed point for a scale


@dataclass(frozen=True)
class NoiseChoice:
    """A likelihood by name, and why.

    ``densities``: the mean held-out log-density of an example, in nats and in the units of y, by likelihood.
    ``whole``: whether all targets are whole numbers from 0 up, which may be counts.
    """

    name: str
    densities: dict[str, float]
    whole: bool

    def __str__(self) -> str:
        told = ", ".join(f"{name} {density:.3f}" for name, density in self.densities.items())
        text = f"likelihood {self.name}, by held-out log-densities of a linear model: {told}"
        if self.whole:
            text += "; the targets are whole numbers: if they count something, take poisson"
        return text


def best(train: Any, seed: int = 0) -> NoiseChoice:
    """Normal, Student or, if all targets are positive, log-normal noise for real targets ``(X, y)`` in their own units.

    A ridge regression of y, and one of log y, are fitted to four fifths of at most 2000 rows, and predict the others.
    The parameters of each noise are those most probable for the residuals of the other folds. Normal noise is kept
    unless the held-out rows together are 20 times as probable under the best other one.

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
    residuals = _residuals(x, y, fold)
    found = {Gaussian.name: _normal(residuals, fold), Student.name: _tailed(residuals, fold)}
    if bool((y > 0).all()):
        log_y = y.log()
        found[LogNormal.name] = _normal(_residuals(x, log_y, fold), fold) - log_y.sum(1)
    return NoiseChoice(_chosen(found), {name: float(d.mean()) for name, d in found.items()}, _whole(y))


def _chosen(densities: dict[str, Tensor]) -> str:
    """The best, if all held-out targets together are `ODDS` times as probable under it."""
    # No test of the mean gain: that of tails comes from a few targets, and is as variable as they are rare.
    name = max(densities, key=lambda name: float(densities[name].sum()))
    gain = float((densities[name] - densities[Gaussian.name]).sum())
    return name if gain > math.log(ODDS) else Gaussian.name


def _whole(y: Tensor) -> bool:
    return bool(((y >= 0) & (y == y.floor())).all())


def _residuals(x: Tensor, y: Tensor, fold: Tensor) -> Tensor:
    """y less what a ridge regression on all other folds says of it, ``[N, D]``."""
    found = torch.empty_like(y)
    for k in range(FOLDS):
        held = fold == k
        std, mean = torch.std_mean(x[~held], 0, correction=0)
        std = std.masked_fill(std <= 1e-12 * mean.abs(), 1.0)
        inputs = (x - mean) / std
        known, middle = inputs[~held], y[~held].mean(0)
        found[held] = y[held] - middle - inputs[held] @ _ridge(known, y[~held] - middle)
    return found


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
