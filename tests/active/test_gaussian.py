"""Gaussian forms for numbers: against conditioning of the dense covariance."""

import math

import pytest
import torch

from bayesrule.active import gaussian


def draws(seed, rows=7, samples=9):
    generator = torch.Generator().manual_seed(seed)
    means = torch.randn(samples, rows, generator=generator, dtype=torch.float64)
    noise = 0.2 + torch.rand(rows, generator=generator, dtype=torch.float64)
    return means, noise


def conditioned(covariance, noise, row):
    """Cov of f after y at a row was seen."""
    column = covariance[:, row]
    return covariance - torch.outer(column, column) / (column[row] + noise[row])


def dense_greedy(means, noise, targets, count, score):
    """One row after the other, each with the largest score(covariance, row)."""
    covariance = means.T.cov(correction=0)
    chosen = []
    for _ in range(count):
        scores = {row: score(covariance, row) for row in range(means.shape[1]) if row not in chosen}
        scores = {row: value for row, value in scores.items() if row not in targets}
        chosen.append(max(scores, key=scores.get))
        covariance = conditioned(covariance, noise, chosen[-1])
    return chosen


def variance_removed(noise, targets):
    def score(covariance, row):
        after = conditioned(covariance, noise, row)
        return float((covariance - after).diagonal()[targets].mean())

    return score


def told_of_targets(noise, targets):
    """Mean of ½ log Var(y_*)/Var(y_*|y)."""

    def score(covariance, row):
        after = conditioned(covariance, noise, row)
        before = covariance.diagonal()[targets] + noise[targets]
        return float((before / (after.diagonal()[targets] + noise[targets])).log().mean() / 2)

    return score


def told_of_the_network(noise):
    return lambda covariance, row: 0.5 * math.log1p(float(covariance[row, row] / noise[row]))


@pytest.mark.parametrize("seed", range(4))
def test_greedy_choices_are_those_of_the_dense_covariance(seed):
    means, noise = draws(seed)
    targets = [5, 6]
    pool, rest = gaussian.Draws.of(means[:, :5], noise[:5]), gaussian.Draws.of(means[:, 5:], noise[5:])
    every = {
        "expected variance": (gaussian.expected_variance(pool, rest, 3), variance_removed(noise, targets)),
        "epig": (gaussian.epig(pool, rest, 3), told_of_targets(noise, targets)),
        "bald": (gaussian.bald(pool, 3), told_of_the_network(noise)),
    }
    for name, (found, score) in every.items():
        assert found.tolist() == dense_greedy(means, noise, targets, 3, score), name


@pytest.mark.parametrize("seed", range(4))
def test_scores_of_single_rows(seed):
    means, noise = draws(seed)
    covariance = means.T.cov(correction=0)
    pool, rest = gaussian.Draws.of(means[:, :5], noise[:5]), gaussian.Draws.of(means[:, 5:], noise[5:])
    targets = [5, 6]
    for row in range(5):
        assert float(gaussian.variance_removed(pool, rest)[row]) == pytest.approx(
            variance_removed(noise, targets)(covariance, row), abs=1e-10
        )
        assert float(gaussian.told(pool, rest)[row]) == pytest.approx(
            told_of_targets(noise, targets)(covariance, row), abs=1e-10
        )


def test_what_is_refused():
    means, noise = draws(0)
    with pytest.raises(ValueError, match="one number an example"):
        gaussian.Draws.of(means[..., None], noise)
    with pytest.raises(ValueError, match="count must be from 1 to the 7 rows"):
        gaussian.bald(gaussian.Draws.of(means, noise), 8)
    with pytest.raises(ValueError, match="noise must be above 0"):
        gaussian.Draws.of(means, 0 * noise)
