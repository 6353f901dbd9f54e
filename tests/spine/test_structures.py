import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.distributions import LowRankMultivariateNormal, MultivariateNormal

from bayesrule.structures import Diagonal, LowRank

seeds = st.integers(0, 2**20)


def random(kind, size, rank, seed):
    generator = torch.Generator().manual_seed(seed)
    variance = torch.rand(size, generator=generator, dtype=torch.float64) + 0.1
    factor = torch.randn(size, rank, generator=generator, dtype=torch.float64)
    return Diagonal(variance) if kind is Diagonal else LowRank(variance, factor)


def dense(structure):
    factor = structure.factor if isinstance(structure, LowRank) else torch.zeros(structure.size, 1, dtype=torch.float64)
    return structure.variance.diag() + factor @ factor.T


@pytest.mark.parametrize("kind", [Diagonal, LowRank])
@given(size=st.integers(1, 12), rank=st.integers(1, 5), seed=seeds)
def test_density_is_that_of_the_dense_matrix(kind, size, rank, seed):
    structure = random(kind, size, rank, seed)
    v = torch.randn(size, generator=torch.Generator().manual_seed(seed + 1), dtype=torch.float64)
    reference = MultivariateNormal(torch.zeros(size, dtype=torch.float64), dense(structure))
    torch.testing.assert_close(structure.log_prob(v), reference.log_prob(v), rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(structure.diagonal, dense(structure).diagonal())
    assert structure.size == size
    assert structure.quadratic(v) >= 0


def test_low_rank_agrees_with_torch():
    structure = random(LowRank, 30, 4, 0)
    v = torch.randn(30, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    torch_own = LowRankMultivariateNormal(torch.zeros(30, dtype=torch.float64), structure.factor, structure.variance)
    torch.testing.assert_close(structure.log_prob(v), torch_own.log_prob(v))


@pytest.mark.parametrize("kind", [Diagonal, LowRank])
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_draws_have_the_covariance(kind, seed):
    """z-test of every entry of the sample covariance; 3 seeds × 2 kinds × 15 entries at |z| < 5: error rate < 1e-4."""
    structure, n = random(kind, 5, 2, seed), 20_000
    draws = structure.sample(n, torch.Generator().manual_seed(seed))
    sigma = dense(structure)
    error = ((sigma.diagonal()[:, None] * sigma.diagonal() + sigma.square()) / n).sqrt()
    assert ((draws.T @ draws / n - sigma).abs() / error).max() < 5
    assert (draws.mean(0).abs() / (sigma.diagonal() / n).sqrt()).max() < 5
