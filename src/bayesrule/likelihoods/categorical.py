"""One class out of C."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from bayesrule.data import Kind
from bayesrule.likelihoods.base import Likelihood, summed
from bayesrule.predictions import Classes, targets


@dataclass(frozen=True, eq=False)
class Categorical(Likelihood):
    """``p(y|f) = softmax(f)[y]`` for outputs ``[B, C, ...]`` and integer labels ``[B, ...]``.

    ::

        hessian = diag(p) − p pᵀ,    p = softmax(f)

    >>> Categorical().log_prob(torch.zeros(1, 4), torch.tensor([2])).exp()
    tensor([0.2500])
    """

    name: ClassVar[str] = "categorical"
    kind: ClassVar[Kind] = "classes"

    def outputs_for(self, numbers: int, classes: int = 0) -> int:
        """One for each class."""
        return numbers * classes

    def check(self, outputs: Tensor, y: Tensor) -> Tensor:
        """Labels as int64 class indices."""
        if outputs.ndim < 2 or outputs.shape[1] < 2:
            raise ValueError(
                f"categorical outputs must be [B, C, ...] with C of at least 2: got {list(outputs.shape)}; "
                f"give the network one output per class, or use likelihood 'bernoulli'"
            )
        return targets.labels(y, [len(outputs), *outputs.shape[2:]], outputs.shape[1])

    def log_prob(self, outputs: Tensor, y: Tensor) -> Tensor:
        """``log softmax(f)[y]``."""
        return summed(-cross_entropy(outputs, y, reduction="none"))

    def hessian(self, outputs: Tensor) -> Tensor:
        """``diag(p) − p pᵀ``."""
        p = self.mean(outputs).movedim(1, -1)
        return p.diag_embed() - p.unsqueeze(-1) * p.unsqueeze(-2)

    def sample(self, outputs: Tensor, generator: torch.Generator | None = None) -> Tensor:
        """One label for each example: the largest of the logits with Gumbel noise."""
        return (outputs - torch.empty_like(outputs).exponential_(generator=generator).log()).argmax(1)

    def mean(self, outputs: Tensor) -> Tensor:
        """Probabilities of the classes."""
        return outputs.softmax(1)

    def predict(self, outputs: Tensor) -> Classes:
        """Mixture of categorical distributions."""
        return Classes(outputs)
