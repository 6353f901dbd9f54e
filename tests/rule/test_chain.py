"""A chain of classes against the sum over all paths."""

import itertools

import pytest
import torch

from bayesrule.families import inner
from bayesrule.rule.algorithms import Chain

FAMILY = Chain()


@pytest.fixture
def natural():
    generator = torch.Generator().manual_seed(0)
    return tuple(torch.randn(shape, generator=generator, dtype=torch.float64) for shape in ((4, 3), (3, 3, 3)))


def paths():
    every = torch.tensor(list(itertools.product(range(3), repeat=4)))
    return torch.nn.functional.one_hot(every, 3).double()


def test_everything_is_a_sum_over_paths(natural):
    weights = inner(natural, FAMILY.statistics(paths()))
    p = weights.softmax(0)
    assert torch.allclose(FAMILY.log_partition(natural), weights.logsumexp(0), rtol=1e-12)
    assert torch.allclose(FAMILY.log_prob(paths(), natural), p.log(), rtol=1e-12)
    assert torch.allclose(FAMILY.entropy(natural), -(p * p.log()).sum(), rtol=1e-12)
    for got, stat in zip(FAMILY.expectation(natural), FAMILY.statistics(paths()), strict=True):
        assert torch.allclose(got, torch.tensordot(p, stat, 1), rtol=1e-12)
    assert torch.equal(FAMILY.mean(natural), FAMILY.expectation(natural)[0])


def test_natural_from_expectation_gives_the_same_chain(natural):
    again = FAMILY.natural(FAMILY.expectation(natural))
    assert torch.allclose(FAMILY.log_prob(paths(), again), FAMILY.log_prob(paths(), natural), rtol=1e-10)
    one = (natural[0][:1], natural[1][:0])
    assert torch.allclose(FAMILY.natural(FAMILY.expectation(one))[0].softmax(-1), one[0].softmax(-1))


@pytest.mark.parametrize("seed", range(3))
def test_draws_have_the_frequencies_of_the_chain(seed, natural):
    """|z| < 5 for each of 12 classes and 27 pairs: an error rate below 3e-5."""
    n = 4000
    draws = FAMILY.sample(natural, n, torch.Generator().manual_seed(seed))
    for stat, want in zip(FAMILY.statistics(draws), FAMILY.expectation(natural), strict=True):
        z = (stat.mean(0) - want) / (want * (1 - want) / n).sqrt()
        assert (z.abs() < 5).all()


def test_what_is_refused(natural):
    with pytest.raises(ValueError, match="Fisher matrix has no inverse; take how='closed-form'"):
        FAMILY.fisher_solve(natural, natural)
    with pytest.raises(ValueError, match=r"pairs must have the shape \(3, 3, 3\), not"):
        FAMILY.check((natural[0], natural[1][:2]))
