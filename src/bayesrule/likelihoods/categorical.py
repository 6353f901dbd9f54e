"""One class out of C, and what all classes share: the temperature of their logits."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, ClassVar

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from bayesrule.data import Kind
from bayesrule.likelihoods.base import Likelihood, summed
from bayesrule.predictions import Classes, targets

if TYPE_CHECKING:
    from typing_extensions import Self

LEAST, MOST = 0.02, 50.0
"""Temperatures that held-out data may ask for: beyond, they ask for answers that are quite sure, or for none."""


@dataclass(frozen=True, eq=False)
class Tempered(Likelihood):
    """p(y|f) is a function of logits f/T, T the ``temperature`` (Guo et al. 2017).

    Weights and T would learn the same thing, so that T is 1 in training. None: it may be settled on held-out data
    afterwards, and a tensor is what it was settled at. A number is known and stays, in training too.
    """

    kind: ClassVar[Kind] = "classes"

    temperature: float | Tensor | None = None

    def __post_init__(self) -> None:
        given = self.temperature
        if not isinstance(given, float | int | Tensor | None) or isinstance(given, bool):
            raise TypeError(f"temperature must be a number, a tensor or None: got {given!r}; pass float(temperature)")
        if isinstance(given, float | int) and not 0 < given < math.inf:
            raise ValueError(f"temperature must be positive and finite: got {given:g}; None lets held-out data tell it")

    def logits(self, outputs: Tensor) -> Tensor:
        """f/T."""
        return outputs if self.temperature is None else outputs / self.divisor(outputs)

    def divisor(self, outputs: Tensor) -> Tensor:
        """T in the dtype and on the device of outputs."""
        given = 1.0 if self.temperature is None else self.temperature
        return torch.as_tensor(given, dtype=outputs.dtype, device=outputs.device)

    def unknowns(self) -> dict[str, Tensor]:
        """``log_temperature``, where it was settled on held-out data; in training there is none."""
        if isinstance(self.temperature, Tensor):
            return {"log_temperature": self.temperature.log()}
        return {}

    def with_unknowns(self, values: Mapping[str, Tensor]) -> Likelihood:
        """The same with ``temperature = exp(log_temperature)``."""
        if not isinstance(self.temperature, Tensor):
            return super().with_unknowns(values)
        if sorted(values) != ["log_temperature"]:
            raise ValueError(f"values must be of ['log_temperature'] for {self}: got {sorted(values)}")
        return replace(self, temperature=values["log_temperature"].exp())

    def verify(self) -> None:
        """A temperature that was settled is one number within what is allowed."""
        if not isinstance(self.temperature, Tensor):
            return
        t = self.temperature
        if t.ndim or not t.is_floating_point() or not LEAST <= float(t) <= MOST:
            raise ValueError(f"temperature must be one number from {LEAST} to {MOST}: got {t.tolist()}")

    def kept(self) -> Self:
        """The same with its temperature for known."""
        if not isinstance(self.temperature, Tensor):
            return self
        return replace(self, temperature=float(self.temperature))

    def matched(self, outputs: Tensor, y: Tensor, weight: Tensor | None = None) -> Self:
        """A temperature that other weights had settled is open again."""
        if not isinstance(self.temperature, Tensor):
            return self
        return self.uncalibrated()

    def uncalibrated(self) -> Self:
        """The same as it was before its temperature was settled."""
        if not isinstance(self.temperature, Tensor):
            return self
        return replace(self, temperature=None)

    def recalibrations(self) -> dict[str, Likelihood]:
        """``temperature``, unless the user knows it."""
        if isinstance(self.temperature, float | int):
            return {}
        return {"temperature": replace(self, temperature=torch.tensor(1.0, dtype=torch.float64))}


@dataclass(frozen=True, eq=False)
class Categorical(Tempered):
    """``p(y|f) = softmax(f/T)[y]`` for outputs ``[B, C, ...]`` and integer labels ``[B, ...]``.

    ``temperature``: T, a number that is known; None: 1, unless held-out data tell another one after training. A tensor
    is what they told.

    ::

        hessian = (diag(p) − p pᵀ)/T²,    p = softmax(f/T)

    >>> Categorical().log_prob(torch.zeros(1, 4), torch.tensor([2])).exp()
    tensor([0.2500])
    """

    name: ClassVar[str] = "categorical"

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
        """``log softmax(f/T)[y]``."""
        logits = outputs if self.temperature is None else self.logits(outputs)
        return summed(-cross_entropy(logits, y, reduction="none"))

    def hessian(self, outputs: Tensor) -> Tensor:
        """``(diag(p) − p pᵀ)/T²``."""
        p = self.mean(outputs).movedim(1, -1)
        found = p.diag_embed() - p.unsqueeze(-1) * p.unsqueeze(-2)
        return found if self.temperature is None else found / self.divisor(outputs).square()

    def sample(self, outputs: Tensor, generator: torch.Generator | None = None) -> Tensor:
        """One label for each example: the largest of the logits with Gumbel noise."""
        logits = outputs if self.temperature is None else self.logits(outputs)
        return (logits - torch.empty_like(outputs).exponential_(generator=generator).log()).argmax(1)

    def mean(self, outputs: Tensor) -> Tensor:
        """Probabilities of the classes."""
        return self.logits(outputs).softmax(1)

    def predict(self, outputs: Tensor) -> Classes:
        """Mixture of categorical distributions."""
        return Classes(self.logits(outputs))
