"""A Markov chain of classes as an exponential family: its expectation parameters are forward–backward's answer."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor
from torch.nn import functional

from bayesrule.families import Family, Natural


@dataclass(frozen=True)
class Chain(Family):
    """q(z) = exp(Σ_t λ₁[t, z_t] + Σ_t λ₂[t, z_t, z_{t+1}] − A): λ₁ [T, K] and λ₂ [T − 1, K, K], z one-hot [T, K].

    A is the forward recursion; μ = ∇A, the probabilities of single classes and of neighbouring pairs, is
    back-propagation through it, which is the backward recursion. λ has more entries than needed: several give one q.

    >>> family = Chain()
    >>> natural = family.of(torch.tensor([0.5, 0.5]), torch.tensor([[0.9, 0.1], [0.2, 0.8]]), length=3)
    >>> family.expectation(natural)[0][-1]  # after two moves
    tensor([0.5850, 0.4150])
    """

    title: ClassVar[str] = "chain of classes"
    symbols: ClassVar[tuple[str, ...]] = ("log-weights of classes", "log-weights of pairs")

    @staticmethod
    def of(first: Tensor, move: Tensor, length: int) -> Natural:
        """λ of p(z_1) and p(z_{t+1}|z_t)."""
        single = torch.cat([log(first)[None], first.new_zeros(length - 1, len(first))])
        return single, log(move).expand(length - 1, *move.shape)

    def statistics(self, w: Tensor) -> Natural:
        """The classes and the pairs of neighbours, one-hot."""
        return w, w[..., :-1, :, None] * w[..., 1:, None, :]

    def log_partition(self, natural: Natural) -> Tensor:
        """log Σ_z exp⟨λ, T(z)⟩, by the forward recursion."""
        return torch.logsumexp(self._forward(natural)[-1], -1)

    def _forward(self, natural: Natural) -> list[Tensor]:
        """a_1 = λ₁[1], a_{t+1} = λ₁[t+1] + log Σ_z exp(a_t[z] + λ₂[t, z])."""
        single, pairs = natural
        messages = [single[0]]
        for own, pair in zip(single[1:], pairs, strict=True):
            messages.append(own + torch.logsumexp(messages[-1][:, None] + pair, 0))
        return messages

    def expectation(self, natural: Natural) -> Natural:
        """p(z_t) and p(z_t, z_{t+1}), as ∇A."""
        leaves = tuple(part.detach().requires_grad_() for part in natural)
        with torch.enable_grad():
            return torch.autograd.grad(self.log_partition(leaves), leaves, materialize_grads=True, allow_unused=True)

    def natural(self, expectation: Natural) -> Natural:
        """q = Π_t p(z_t, z_{t+1}) / Π_{1<t<T} p(z_t)."""
        single, pairs = expectation
        if len(single) == 1:  # no pairs: the classes themselves
            return single.log(), pairs.log()
        inner = -single.log()
        inner[0], inner[-1] = 0, 0
        return inner, pairs.log()

    def mean(self, natural: Natural) -> Tensor:
        """p(z_t), [T, K]."""
        return self.expectation(natural)[0]

    def sample(self, natural: Natural, n: int, generator: torch.Generator | None = None) -> Tensor:
        """Paths [n, T, K]: the last class first, then each one before it."""
        messages = self._forward(natural)
        found = [_draw(messages[-1].expand(n, -1), generator)]
        for message, pair in zip(messages[-2::-1], natural[1].flip(0), strict=True):
            found.append(_draw(message + pair.T[found[-1]], generator))
        return functional.one_hot(torch.stack(found[::-1], 1), natural[0].shape[-1]).to(natural[0])

    def fisher_solve(self, natural: Natural, gradient: Natural) -> Natural:
        """Refused: F has no inverse, since λ has more entries than needed."""
        raise ValueError(f"{self.title}: the Fisher matrix has no inverse; take how='closed-form'")

    def _check_domain(self, natural: Natural) -> None:
        length, classes = natural[0].shape
        shape = (length - 1, classes, classes)
        if natural[1].shape != shape:
            raise ValueError(f"{self.title}: pairs must have the shape {shape}, not {natural[1].shape}")


def log(probabilities: Tensor) -> Tensor:
    """log p, finite where p is zero: that of the smallest positive number."""
    return probabilities.clamp_min(torch.finfo(probabilities.dtype).tiny).log()


def _draw(logits: Tensor, generator: torch.Generator | None) -> Tensor:
    """A class for each row."""
    return torch.multinomial(logits.softmax(-1), 1, generator=generator)[:, 0]
