"""Models with latent variables: expectation maximisation, message passing, stochastic variational inference."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from bayesrule.families import Categorical, DiagonalGaussian, Dirichlet, FullGaussian, Gamma, Natural
from bayesrule.rule.algorithms.messages import posterior, sweep
from bayesrule.rule.base import Rule, Scheduled
from bayesrule.rule.trace import State


def whole(first: Tensor) -> Tensor:
    """All K probabilities from the first K − 1.

    >>> whole(torch.tensor([0.25, 0.25]))
    tensor([0.2500, 0.2500, 0.5000])
    """
    return torch.cat([first, 1 - first.sum(-1, keepdim=True)], -1)


def likeliest(counts: Tensor) -> Tensor:
    """The mode of a Dirichlet after counts under a flat prior: λ = n in one step, then λ/Σλ.

    >>> likeliest(torch.tensor([1.0, 3.0]))
    tensor([0.2500, 0.7500])
    """
    flat = (torch.zeros_like(counts),)
    (found,) = posterior(Dirichlet(), lambda mean: -(counts * mean[0]).sum(), flat)
    return found / found.sum(-1, keepdim=True)


@dataclass(frozen=True, eq=False)
class MixtureOfNormals:
    """Σ_k w_k N(x; m_k, v_k) on the line: weights, means and variances, [K] each."""

    weights: Tensor
    means: Tensor
    variances: Tensor

    def shares(self, x: Tensor) -> Tensor:
        """p(z_n = k|x_n), [N, K]: categorical, ρ = 1, ℓ = −log w_k N(x_n; m_k, v_k)."""
        cost = 0.5 * ((x[:, None] - self.means).square() / self.variances + self.variances.log()) - self.weights.log()
        start = (torch.zeros_like(cost[:, 1:]),)
        found = posterior(Categorical(), lambda mean: (whole(mean[0]) * cost).sum(), start)
        return Categorical().mean(found)

    def step(self, x: Tensor) -> MixtureOfNormals:
        """Expectation maximisation, one round: ρ = 1 for the classes, then for weights, means and precisions.

        q is Dirichlet, Gaussian and Gamma, priors are flat, and each is read at its mode: the local approximation.
        """
        shares, precisions = self.shares(x), 1 / self.variances
        totals = shares.sum(0)

        def misfit(mean: Natural) -> Tensor:
            return (precisions * (0.5 * totals * mean[1] - (shares.mT @ x) * mean[0])).sum()

        means = DiagonalGaussian().mean(posterior(DiagonalGaussian(), misfit, (self.means, -0.5 * precisions)))
        squares = (shares * (x[:, None] - means).square()).sum(0)
        flat = (torch.zeros_like(totals), -torch.ones_like(totals))
        shape, rate = posterior(Gamma(), lambda mean: 0.5 * (squares * mean[1] - totals * mean[0]).sum(), flat)
        return MixtureOfNormals(likeliest(totals), means, -rate / shape)


@dataclass(frozen=True, eq=False)
class Regression:
    """y ~ N(Xw, 1/τ), w ~ N(0, I/α), α and τ ~ Gamma(shape, rate): q(w)q(α)q(τ) by message passing."""

    x: Tensor
    y: Tensor
    shape: float = 1.0
    rate: float = 1.0

    families = (FullGaussian(), Gamma(), Gamma())

    def start(self) -> list[Natural]:
        """E[α] = E[τ] = 1; w is the first to be asked."""
        identity, one = torch.eye(self.x.shape[1], dtype=self.x.dtype), torch.ones((), dtype=self.x.dtype)
        return [FullGaussian.of(identity[0], identity), Gamma.of(one, one), Gamma.of(one, one)]

    def step(self, naturals: list[Natural]) -> list[Natural]:
        """A message to each of w, α and τ."""
        return sweep(self.families, naturals, self.expected)

    def expected(self, w: Natural, alpha: Natural, tau: Natural) -> Tensor:
        """E_q[−log p(y, w, α, τ)] from E[w], E[wwᵀ], E[log α], E[α], E[log τ], E[τ]."""
        count, width = self.x.shape
        residual = self.y @ self.y - 2 * (self.y @ self.x) @ w[0] + (self.x.mT @ self.x * w[1]).sum()
        data = 0.5 * (tau[1] * residual - count * tau[0])
        prior = 0.5 * (alpha[1] * w[1].diagonal().sum() - width * alpha[0])
        hyper = torch.zeros_like(prior)
        for mean in (alpha, tau):
            hyper = hyper + (self.rate * mean[1] - (self.shape - 1) * mean[0])
        return data + prior + hyper


@dataclass(frozen=True)
class Topics:
    """Latent Dirichlet allocation of ``documents`` documents: stochastic variational inference for the topics' words.

    ``mix`` and ``words``: concentrations of the priors of a document's topics and a topic's words. ``rate``: ρ, of the
    number of steps done. A batch's topics are inferred until no concentration moves by more than ``near``.
    """

    documents: int
    mix: float = 0.5
    words: float = 0.5
    rate: Scheduled = 0.1
    near: float = 1e-9
    most: int = 2000

    def step(self, state: State, counts: Tensor) -> State:
        """λ ← (1 − ρ)λ + ρ(prior + N/B Σ_d E[counts of words by topic]) after a batch of word counts [B, V]."""
        prior = (torch.full_like(state.natural[0], self.words - 1),)
        rule = Rule(Dirichlet(), conjugate=prior, how="closed-form", rate=self.rate)
        shares = self.infer(Dirichlet().expectation(state.natural)[0], counts)
        told = self.documents / len(counts) * torch.einsum("dv,dvk->kv", counts, shares)
        return rule.step(state, lambda mean: -(told * mean[0]).sum())

    def infer(self, logs: Tensor, counts: Tensor) -> Tensor:
        """q(topic of a word in a document), [B, V, K], by messages to and from the documents' mixes.

        ``logs``: E[log β], [K, V]. Where a word occurs several times, each has the same q and tells the mix as much.
        """
        mix = self._mix(counts, counts.new_full((*counts.shape, len(logs)), 1 / len(logs)))
        for _ in range(self.most):
            shares = self._shares(Dirichlet().expectation(mix)[0][:, None] + logs.mT)
            before, mix = mix, self._mix(counts, shares)
            if float((mix[0] - before[0]).abs().max()) < self.near:
                break
        return shares

    def _shares(self, fit: Tensor) -> Tensor:
        """The message to each word's topic, whose ℓ is −log θ − log β."""
        even = (torch.zeros_like(fit[..., 1:]),)
        return Categorical().mean(posterior(Categorical(), lambda mean: -(whole(mean[0]) * fit).sum(), even))

    def _mix(self, counts: Tensor, shares: Tensor) -> Natural:
        """The message to each document's mix."""
        told = self.mix - 1 + (counts[..., None] * shares).sum(1)
        return posterior(Dirichlet(), lambda mean: -(told * mean[0]).sum(), (torch.zeros_like(told),))
