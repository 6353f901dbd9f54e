"""Kalman's filter and smoother, forward–backward and Baum–Welch: ρ = 1 in models of sequences."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor

from bayesrule.families import FullGaussian
from bayesrule.rule.algorithms.chain import Chain, log
from bayesrule.rule.algorithms.latent import likeliest
from bayesrule.rule.base import Rule


def _halved_square(residual: Tensor, covariance: Tensor) -> Tensor:
    """½rᵀV⁻¹r for rows r, summed over all dimensions between the first and the last."""
    terms = 0.5 * residual * torch.linalg.solve(covariance, residual.mT).mT
    return terms.flatten(1).sum(1)


@dataclass(frozen=True, eq=False)
class LinearSystem:
    """x_1 ~ N(mean, cov), x_t = A x_{t−1} + N(0, Q), y_t = C x_t + N(0, R).

    ``move``: A. ``drift``: Q. ``look``: C. ``noise``: R.
    """

    mean: Tensor
    cov: Tensor
    move: Tensor
    drift: Tensor
    look: Tensor
    noise: Tensor

    def filter(self, seen: Tensor) -> Moments:
        """p(x_t|y_{1:t}): the prior is conjugate, the loss −log p(y_t|x_t), ρ = 1.

        Each filtered q, moved on by A and Q (the sum rule of probability, the only thing beyond the rule), is the prior
        of the next.
        """
        means, covs, prior = [], [], (self.mean, self.cov)
        for y in seen:
            natural = FullGaussian.of(*prior)
            rule = Rule(FullGaussian(), partial(self.surprise, y=y), natural, how="local", rate=1.0)
            mean, cov = FullGaussian.mean_and_covariance(rule.step(rule.start(natural)).natural)
            means.append(mean)
            covs.append(cov)
            prior = self.move @ mean, self.move @ cov @ self.move.mT + self.drift
        return Moments(torch.stack(means), torch.stack(covs))

    def smooth(self, seen: Tensor) -> Moments:
        """p(x_t|y_{1:T}): one step of ρ = 1 for a full Gaussian over the whole path; its marginals are the answer."""
        length, width = len(seen), len(self.mean)

        def loss(path: Tensor) -> Tensor:
            x = path.reshape(-1, length, width)
            moved = _halved_square(x[:, 1:] - x[:, :-1] @ self.move.mT, self.drift)
            return _halved_square(x[:, :1] - self.mean, self.cov) + moved + self.surprise(x, seen)

        identity = torch.eye(length * width, dtype=seen.dtype)
        rule = Rule(FullGaussian(), loss, how="local", rate=1.0)
        state = rule.step(rule.start(FullGaussian.of(identity[0], identity)))
        mean, cov = FullGaussian.mean_and_covariance(state.natural)
        blocks = cov.reshape(length, width, length, width)
        marginals = torch.stack([blocks[t, :, t] for t in range(length)])
        return Moments(mean.reshape(length, width), marginals)

    def surprise(self, x: Tensor, y: Tensor) -> Tensor:
        """−log p(y|x) up to a constant, one number a point."""
        residual = y - x @ self.look.mT
        if residual.ndim == 2:  # points at one time: a path of length one
            residual = residual[:, None]
        return _halved_square(residual, self.noise)


class Moments(NamedTuple):
    """Means [T, D] and covariances [T, D, D]."""

    means: Tensor
    covs: Tensor


class Beliefs(NamedTuple):
    """p(z_t|y) [T, K], p(z_t, z_{t+1}|y) [T − 1, K, K] and log p(y)."""

    single: Tensor
    pairs: Tensor
    evidence: Tensor


def forward_backward(first: Tensor, move: Tensor, likelihood: Tensor) -> Beliefs:
    """One step of ρ = 1 for a chain of classes, then μ = ∇A(λ). ``likelihood``: p(y_t|z_t = k), [T, K].

    >>> first, move = torch.tensor([0.5, 0.5]), torch.tensor([[0.9, 0.1], [0.1, 0.9]])
    >>> forward_backward(first, move, torch.tensor([[0.8, 0.2], [0.8, 0.2]])).single[0]
    tensor([0.9193, 0.0807])
    """
    family, prior = Chain(), Chain.of(first, move, len(likelihood))
    rule = Rule(family, conjugate=(prior[0] + log(likelihood), prior[1]), rate=1.0)
    natural = rule.step(rule.start(prior)).natural
    single, pairs = family.expectation(natural)
    return Beliefs(single, pairs, family.log_partition(natural))


@dataclass(frozen=True, eq=False)
class HiddenMarkov:
    """Classes that move by ``move`` from ``first`` and show symbols by ``show``: [K], [K, K], [K, V]."""

    first: Tensor
    move: Tensor
    show: Tensor

    def step(self, symbols: Tensor) -> HiddenMarkov:
        """Baum–Welch, one round: the rule for the classes, then for each table of probabilities, both with ρ = 1.

        The tables' q are Dirichlet, with flat priors, and read at their modes: the local approximation, which makes
        variational Bayes expectation maximisation.
        """
        beliefs = forward_backward(self.first, self.move, self.show[:, symbols].mT)
        seen = torch.zeros_like(self.show).index_add(1, symbols, beliefs.single.mT)
        return HiddenMarkov(likeliest(beliefs.single[0]), likeliest(beliefs.pairs.sum(0)), likeliest(seen))
