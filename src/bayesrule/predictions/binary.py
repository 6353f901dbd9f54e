"""Yes or no, once or several times per example."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from bayesrule.predictions import targets
from bayesrule.predictions.base import sampled
from bayesrule.predictions.classes import Classes, OfClasses


@dataclass(frozen=True, eq=False, repr=False)
class Binary(OfClasses):
    """A mixture of S Bernoulli distributions, from logits of y = 1 ``[S, B, ...]``; ``[S, B, L]`` for L labels.

    It is two classes with logits (0, logit), since softmax(0, logit) = (1 − σ(logit), σ(logit)): the view ``classes``.
    ``entropies`` are those of `Classes`, where a sample stands for a whole Gaussian of networks.

    >>> import torch
    >>> prediction = Binary(torch.tensor([[0.0, 3.0], [0.0, 5.0]]))
    >>> prediction.probs, prediction.label
    (tensor([0.5000, 0.9729]), tensor([0, 1]))
    """

    logits: Tensor
    entropies: Tensor | None = None

    def __post_init__(self) -> None:
        sampled("logits", self.logits, "S, B")

    @property
    def shape(self) -> torch.Size:
        """Shape of the labels, ``[B, ...]``."""
        return self.logits.shape[1:]

    @cached_property
    def classes(self) -> Classes:
        """The same prediction over the two classes 0 and 1."""
        return Classes(torch.stack([torch.zeros_like(self.logits), self.logits], 2), self.entropies)

    @property
    def probs(self) -> Tensor:
        """Probability of y = 1, of the shape of y."""
        return self.classes.probs[:, 1]

    @property
    def uncertainty(self) -> Tensor:
        """Entropy, averaged over the labels of an example."""
        return self.classes.uncertainty

    def target(self, y: Tensor) -> Tensor:
        """Zeros and ones as int64."""
        return targets.answers(y, self.shape).to(self.logits.device, torch.int64)

    def log_prob(self, y: Tensor) -> Tensor:
        """``log probs`` where y is 1 and ``log (1 − probs)`` where it is 0."""
        return self.classes.log_prob(self.target(y))

    def prediction_set(self, level: float) -> Tensor:
        """The smallest set of the classes 0 and 1 that holds probability ``level``, as a mask ``[B, 2, ...]``."""
        return self.classes.prediction_set(level)

    def sample(self, n: int, generator: torch.Generator | None = None) -> Tensor:
        """Labels ``[n, B, ...]``."""
        return self.classes.sample(n, generator)
