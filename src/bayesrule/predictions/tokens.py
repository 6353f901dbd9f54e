"""One token out of V, at each position of a sequence."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from bayesrule.predictions import targets
from bayesrule.predictions.base import per_example, sampled
from bayesrule.predictions.classes import Classes, OfClasses


@dataclass(frozen=True, eq=False, repr=False)
class TokenClasses(OfClasses):
    """A mixture of S distributions of a token at each of T positions, from logits ``[S, B, T, V]``.

    The logits at position t are about label t + ``shift``: 0 for a tag of each token, 1 for the next token. Labels of
    −100, and the first ``shift`` ones, do not count: their log-probability is 0. Uncertainties stand at the position of
    the logits, so that the last one is about the token that comes after the sequence.

    >>> sure = TokenClasses(torch.tensor([[[[9.0, 0.0], [9.0, 0.0], [0.0, 9.0]]]]), shift=1)
    >>> sure.log_prob(torch.tensor([[1, 0, -100]])).exp().round(decimals=2)
    tensor([[1., 1., 1.]])
    >>> sure.observed(torch.tensor([[1, 0, -100]]))[1]
    tensor([0])
    """

    logits: Tensor
    shift: int = 0

    def __post_init__(self) -> None:
        sampled("logits", self.logits, "S, B, T, V")

    @property
    def shape(self) -> torch.Size:
        """Shape of the labels, ``[B, T]``."""
        return self.logits.shape[1:3]

    @cached_property
    def classes(self) -> Classes:
        """The same without a shift: a distribution of classes for each position of the logits."""
        return Classes(self.logits.movedim(-1, 2))

    @property
    def probs(self) -> Tensor:
        """Probability of each token, ``[B, T, V]``."""
        return self.classes.probs.movedim(1, -1)

    @property
    def uncertainty(self) -> Tensor:
        """Entropy, averaged over positions."""
        return per_example(self.entropy)

    def target(self, y: Tensor) -> Tensor:
        """Labels as int64 token numbers, and −100 where none counts."""
        return targets.tokens(y, self.shape, self.logits.shape[-1]).to(self.logits.device)

    def log_prob(self, y: Tensor) -> Tensor:
        """``log probs[y]`` at the position of each label; 0 where none counts."""
        found, counts = self.logits.new_zeros(self.shape), self._counts(y)
        classes, labels = self.observed(y)
        # by scatter, not in place by a mask: gradients flow to logits
        return found.masked_scatter(counts, classes.log_prob(labels))

    def observed(self, y: Tensor) -> tuple[Classes, Tensor]:
        """The labels that count, ``[n]``, and the distribution of each of them."""
        y, counts = self.target(y), self._counts(y)
        said = self.logits[:, :, : self.shape[1] - self.shift]
        return Classes(said[:, counts[:, self.shift :]]), y[counts]

    def _counts(self, y: Tensor) -> Tensor:
        """Which labels count, ``[B, T]``."""
        counts = self.target(y) != targets.IGNORED
        counts[:, : self.shift] = False
        return counts

    def sample(self, n: int, generator: torch.Generator | None = None) -> Tensor:
        """Labels ``[n, B, T]``, each token given the true ones before it; the first ``shift`` are −100."""
        drawn = self.classes.sample(n, generator)
        head = drawn.new_full((*drawn.shape[:2], self.shift), targets.IGNORED)
        return torch.cat([head, drawn[..., : self.shape[1] - self.shift]], 2)
