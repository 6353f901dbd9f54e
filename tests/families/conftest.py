"""One table for all families: parameters, an independent density, and a loss for each."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch import distributions as dist

from bayesrule import families as fam


def d(*numbers) -> Tensor:
    return torch.tensor(numbers, dtype=torch.float64)


@dataclass(frozen=True)
class Case:
    """``density``: log q of draws by other means. ``stochastic``: the estimators that are unbiased."""

    name: str
    family: fam.Family
    natural: fam.Natural
    density: Callable[[Any], Tensor]
    loss: Callable[[Any], Tensor]
    stochastic: tuple[str, ...] = ("score", "reparam")
    statistics: bool = True  # whether w has sufficient statistics


MEAN, COVARIANCE = d(0.5, -1.0), torch.tensor([[0.8, 0.3], [0.3, 0.5]], dtype=torch.float64)
GAUSSIAN = ("score", "reparam", "bonnet-price")
MIXED = d(0.2, 0.5, 0.3), torch.tensor([[-1.0, 0.5], [0.0, 1.0], [2.0, -0.5]], dtype=torch.float64)
SPREADS = torch.stack([COVARIANCE, 0.5 * COVARIANCE, torch.eye(2, dtype=torch.float64)])
KEEP, SLAB, VARIANCE = d(0.3, 0.8), torch.tensor([[1.0], [-0.5]], dtype=torch.float64), torch.full((2, 1), 0.7).double()
CONCENTRATIONS = torch.tensor([[0.7, 2.0, 4.0]], dtype=torch.float64)


def wavy(w: Tensor) -> Tensor:
    """Smooth, not a polynomial, no symmetry."""
    w = w.flatten(1)
    return torch.sin(w.sum(-1)) + 0.5 * (w * w).sum(-1) + torch.exp(-0.5 * w[:, 0])


def normal(w: Tensor) -> Tensor:
    return dist.MultivariateNormal(MEAN, COVARIANCE).log_prob(w)


def mixture(w: Tensor) -> Tensor:
    parts = dist.MultivariateNormal(MIXED[1], SPREADS)
    return dist.MixtureSameFamily(dist.Categorical(MIXED[0]), parts).log_prob(w)


def slab(w: Tensor) -> Tensor:
    """Against δ₀ + dw, unit by unit."""
    there = KEEP.log() + dist.Normal(SLAB, VARIANCE.sqrt()).log_prob(w)[..., 0]
    return torch.where(w[..., 0] != 0, there, torch.log1p(-KEEP)).sum(-1)


def dropped(w: Tensor) -> Tensor:
    there = math.log(0.4) + dist.Normal(SLAB, 0.7**0.5).log_prob(w)[..., 0]
    return torch.where(w[..., 0] != 0, there, math.log(0.6)).sum(-1)


def both(w: tuple[Tensor, Tensor]) -> Tensor:
    return dist.Bernoulli(d(0.3)).log_prob(w[0]) + dist.Gamma(d(2.5), d(1.5)).log_prob(w[1])


def independent(of: dist.Distribution) -> Callable[[Tensor], Tensor]:
    return lambda w: of.log_prob(w).flatten(1).sum(-1)


CASES = [
    Case(
        "fixed-number",
        fam.GaussianMean(d(0.6).squeeze()),
        fam.GaussianMean(d(0.6).squeeze()).of(MEAN),
        independent(dist.Normal(MEAN, 0.6**0.5)),
        wavy,
        GAUSSIAN,
    ),
    Case(
        "fixed-matrix",
        fam.GaussianMean(COVARIANCE),
        fam.GaussianMean(COVARIANCE).of(MEAN),
        normal,
        wavy,
        GAUSSIAN,
    ),
    Case(
        "diagonal",
        fam.DiagonalGaussian(),
        fam.DiagonalGaussian.of(MEAN, d(0.5, 1.5)),
        independent(dist.Normal(MEAN, d(0.5, 1.5).sqrt())),
        wavy,
        GAUSSIAN,
    ),
    Case("full", fam.FullGaussian(), fam.FullGaussian.of(MEAN, COVARIANCE), normal, wavy, GAUSSIAN),
    Case(
        "mixture",
        fam.GaussianMixture(),
        fam.GaussianMixture.of(*MIXED, SPREADS),
        mixture,
        wavy,
        GAUSSIAN,
        statistics=False,
    ),
    Case(
        "bernoulli",
        fam.Bernoulli(),
        fam.Bernoulli.of(d(0.2, 0.5, 0.9)),
        independent(dist.Bernoulli(d(0.2, 0.5, 0.9))),
        wavy,
        ("score",),
    ),
    Case(
        "categorical",
        fam.Categorical(),
        fam.Categorical.of(torch.stack([d(0.2, 0.5, 0.3), d(0.6, 0.3, 0.1)])),
        independent(dist.OneHotCategorical(torch.stack([d(0.2, 0.5, 0.3), d(0.6, 0.3, 0.1)]))),
        lambda w: wavy(w * torch.arange(1.0, 7.0).double().reshape(2, 3)),
        ("score",),
    ),
    Case(
        "beta",
        fam.Beta(),
        fam.Beta.of(d(0.7, 5.0), d(2.0, 3.0)),
        independent(dist.Beta(d(0.7, 5.0), d(2.0, 3.0))),
        wavy,
    ),
    Case(
        "gamma",
        fam.Gamma(),
        fam.Gamma.of(d(0.8, 6.0), d(1.5, 2.0)),
        independent(dist.Gamma(d(0.8, 6.0), d(1.5, 2.0))),
        wavy,
    ),
    Case(
        "dirichlet",
        fam.Dirichlet(),
        fam.Dirichlet.of(CONCENTRATIONS),
        independent(dist.Dirichlet(CONCENTRATIONS)),
        wavy,
    ),
    Case(
        "spike",
        fam.SpikeAndSlab(),
        fam.SpikeAndSlab.of(KEEP, SLAB, VARIANCE),
        slab,
        wavy,
        ("score", "bonnet-price"),
    ),
    Case(
        "dropped",
        fam.DroppedGaussian(0.4, 0.7),
        fam.DroppedGaussian(0.4, 0.7).of(SLAB),
        dropped,
        wavy,
        GAUSSIAN,
    ),
    Case(
        "product",
        fam.Product((fam.Bernoulli(), fam.Gamma())),
        fam.Bernoulli.of(d(0.3)) + fam.Gamma.of(d(2.5), d(1.5)),
        lambda w: both(w).sum(-1),
        lambda w: torch.sin((w[0] + 1) * w[1]).sum(-1) + w[1].sum(-1),
        ("score",),
    ),
]


def pytest_generate_tests(metafunc):
    """Tests ask for any ``case``, a ``member`` with sufficient statistics, a ``gaussian``, or a pair ``estimate``."""
    rows = {
        "case": CASES,
        "member": [case for case in CASES if case.statistics],
        "gaussian": [case for case in CASES if case.name in ("fixed-matrix", "diagonal", "full")],
    }
    for name in rows.keys() & set(metafunc.fixturenames):
        metafunc.parametrize(name, rows[name], ids=lambda case: case.name)
    if "estimate" in metafunc.fixturenames:
        pairs = [(case, how) for case in CASES for how in case.stochastic]
        metafunc.parametrize("estimate", pairs, ids=[f"{case.name}-{how}" for case, how in pairs])
