"""Weights of candidates: against enumeration, and against the conditions of a maximum."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from bayesrule.posteriors import seats, stacked
from bayesrule.posteriors.stacking import PRIOR


def problem(seed, candidates=3, n=60):
    return torch.randn(candidates, n, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


@pytest.mark.parametrize("seed", range(3))
def test_two_candidates_are_weighed_as_a_fine_grid_weighs_them(seed):
    log_probs = problem(seed, candidates=2)
    grid = torch.linspace(1e-4, 1 - 1e-4, 20_001, dtype=torch.float64)
    both = torch.stack([grid.log(), (1 - grid).log()])  # [2, G]
    value = (log_probs[:, :, None] + both[:, None]).logsumexp(0).sum(0) + PRIOR / 2 * both.sum(0)
    assert float(stacked(log_probs)[0]) == pytest.approx(float(grid[value.argmax()]), abs=2e-4)


@pytest.mark.parametrize("seed", range(3))
def test_at_the_maximum_no_candidate_would_gain_by_a_larger_weight(seed):
    """Σ_i p_c(y_i)/p(y_i) + a/(C π_c) is the same for all candidates: N + a."""
    log_probs = problem(seed, candidates=4)
    weights = stacked(log_probs)
    mixture = (log_probs + weights.log()[:, None]).logsumexp(0)
    gain = (log_probs - mixture).exp().sum(1) + PRIOR / 4 / weights
    torch.testing.assert_close(gain, torch.full_like(gain, 60 + PRIOR), rtol=1e-3, atol=0)
    assert float(weights.sum()) == pytest.approx(1)


def test_the_mixture_is_at_least_as_probable_as_its_best_candidate_up_to_one_example():
    for seed in range(5):
        log_probs = problem(seed, candidates=5)
        mixture = (log_probs + stacked(log_probs).log()[:, None]).logsumexp(0).sum()
        assert mixture > log_probs.sum(1).max() - 1


def test_a_candidate_that_is_not_finite_counts_for_nothing():
    log_probs = problem(0)
    log_probs[1, 3] = torch.nan
    weights = stacked(log_probs)
    assert weights[1] == 0
    assert float(weights.sum()) == pytest.approx(1)
    with pytest.raises(FloatingPointError, match="no candidate"):
        stacked(log_probs * torch.nan)


@given(st.lists(st.floats(0.01, 1), min_size=1, max_size=8), st.integers(1, 50))
def test_seats_add_up_and_are_off_by_less_than_one(raw, count):
    weights = torch.tensor(raw, dtype=torch.float64)
    weights /= weights.sum()
    found = seats(weights, count)
    assert sum(found) == count
    assert max(abs(a - count * float(w)) for a, w in zip(found, weights, strict=True)) < 1 + 1e-9
