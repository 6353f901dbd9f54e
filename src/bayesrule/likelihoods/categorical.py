"""One class out of C, and what all classes share: the temperature of their logits."""

from __future__ import annotations

import math
from abc import abstractmethod
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
GAPS = (0.0, 1.0, 2.0, 4.0, 8.0)
"""Nats below the most probable class at which an isotonic map may change its slope."""
MAPS = ("temperature", "vector", "isotonic")
"""What held-out data may settle, one of them."""


@dataclass(frozen=True, eq=False)
class Tempered(Likelihood):
    """p(y|f) is a function of logits that held-out data may have rescaled, in one of three ways:

    - ``temperature`` T: f/T (Guo et al. 2017). Weights and T would learn the same thing, so that T is 1 in training.
      None: it may be settled afterwards, and a tensor is what it was settled at. A number is known and stays, in
      training too.
    - ``vector`` [2, C]: a·f + b with a scale a > 0 and a shift b of each class (Guo et al. 2017); [2, 1] of yes or no,
      where it is Platt's scaling.
    - ``isotonic`` [5]: h(g) of the gaps g below the largest logit, h increasing and linear between `GAPS`, with these
      slopes: the order of the classes stays.

    The last two are never part of a training: a fit that starts from such a likelihood has them open again.
    """

    kind: ClassVar[Kind] = "classes"

    temperature: float | Tensor | None = None
    vector: Tensor | None = None
    isotonic: Tensor | None = None

    def __post_init__(self) -> None:
        given = self.temperature
        if not isinstance(given, float | int | Tensor | None) or isinstance(given, bool):
            raise TypeError(f"temperature must be a number, a tensor or None: got {given!r}; pass float(temperature)")
        if isinstance(given, float | int) and not 0 < given < math.inf:
            raise ValueError(f"temperature must be positive and finite: got {given:g}; None lets held-out data tell it")
        settled = [name for name in MAPS if isinstance(getattr(self, name), Tensor)]
        if len(settled) > 1:
            raise ValueError(f"only one of {', '.join(MAPS)} may be settled: got {' and '.join(settled)}")

    @property
    def as_they_are(self) -> bool:
        """Whether logits are the outputs themselves."""
        return self.temperature is None and self.vector is None and self.isotonic is None

    def logits(self, outputs: Tensor, dim: int = 1) -> Tensor:
        """The logits; ``dim`` is that of the classes."""
        if self.temperature is not None:
            outputs = outputs / self.divisor(outputs)
        if self.vector is not None:
            scale, shift = self._of_classes(self.vector, outputs, dim)
            outputs = scale * outputs + shift
        if self.isotonic is not None:
            outputs = self._bent(outputs, self.isotonic.to(outputs), dim)
        return outputs

    def divisor(self, outputs: Tensor) -> Tensor:
        """T in the dtype and on the device of outputs."""
        given = 1.0 if self.temperature is None else self.temperature
        return torch.as_tensor(given, dtype=outputs.dtype, device=outputs.device)

    @abstractmethod
    def _of_classes(self, numbers: Tensor, outputs: Tensor, dim: int) -> Tensor:
        """Numbers [2, C] in the dtype of outputs, so that each of both goes with them."""

    @abstractmethod
    def _bent(self, outputs: Tensor, slopes: Tensor, dim: int) -> Tensor:
        """Outputs under the isotonic map."""

    def normal(self, outputs: Tensor, covariance: Tensor) -> tuple[Tensor, Tensor] | None:
        """Mean and covariance [B, K, K] of the logits of normal outputs; None where logits are not normal."""
        if self.isotonic is not None:
            return None
        slopes = (self.logits(torch.ones_like(outputs[:1])) - self.logits(torch.zeros_like(outputs[:1]))).reshape(-1)
        slopes = slopes.to(covariance)
        return self.logits(outputs), covariance * slopes[:, None] * slopes

    def unknowns(self) -> dict[str, Tensor]:
        """Of what was settled on held-out data; in training there is none."""
        if isinstance(self.temperature, Tensor):
            return {"log_temperature": self.temperature.log()}
        if self.vector is not None:
            return {"log_scales": self.vector[0].log(), "shifts": self.vector[1]}
        if self.isotonic is not None:
            return {"log_slopes": self.isotonic.log()}
        return {}

    def with_unknowns(self, values: Mapping[str, Tensor]) -> Likelihood:
        """The same with other values of what was settled."""
        names = sorted(self.unknowns())
        if not names:
            return super().with_unknowns(values)
        if sorted(values) != names:
            raise ValueError(f"values must be of {names} for {self}: got {sorted(values)}")
        if "log_temperature" in values:
            return replace(self, temperature=values["log_temperature"].exp())
        if "log_slopes" in values:
            return replace(self, isotonic=values["log_slopes"].exp())
        return replace(self, vector=torch.stack([values["log_scales"].exp(), values["shifts"]]))

    def verify(self) -> None:
        """What was settled is of its shape, and within what is allowed."""
        t = self.temperature
        if isinstance(t, Tensor) and (t.ndim or not _within(t)):
            raise ValueError(f"temperature must be one number from {LEAST} to {MOST}: got {t.tolist()}")
        if self.vector is not None and not (
            self.vector.ndim == 2 and len(self.vector) == 2 and _within(self.vector[0]) and self.vector.isfinite().all()
        ):
            raise ValueError(f"vector must be scales from {LEAST} to {MOST} and shifts: got {self.vector.tolist()}")
        if self.isotonic is not None and not (self.isotonic.shape == (len(GAPS),) and _within(self.isotonic)):
            raise ValueError(
                f"isotonic must be {len(GAPS)} slopes from {LEAST} to {MOST}: got {self.isotonic.tolist()}"
            )

    def kept(self) -> Self:
        """The same with its temperature for known; the other maps are open again."""
        if not isinstance(self.temperature, Tensor):
            return self.uncalibrated()
        return replace(self, temperature=float(self.temperature))

    def matched(self, outputs: Tensor, y: Tensor, weight: Tensor | None = None) -> Self:
        """What other weights had settled is open again."""
        return self.uncalibrated()

    def uncalibrated(self) -> Self:
        """The same as it was before anything was settled."""
        if not self.unknowns():
            return self
        known = None if isinstance(self.temperature, Tensor) else self.temperature
        return replace(self, temperature=known, vector=None, isotonic=None)

    def recalibrations(self, width: int = 1) -> dict[str, Likelihood]:
        """``temperature``, ``vector`` and ``isotonic``, unless the user knows the temperature."""
        if isinstance(self.temperature, float | int):
            return {}
        plain = self.uncalibrated()
        scales, shifts = torch.ones(width, dtype=torch.float64), torch.zeros(width, dtype=torch.float64)
        return {
            "temperature": replace(plain, temperature=torch.tensor(1.0, dtype=torch.float64)),
            "vector": replace(plain, vector=torch.stack([scales, shifts])),
            "isotonic": replace(plain, isotonic=torch.ones(len(GAPS), dtype=torch.float64)),
        }


def _within(values: Tensor) -> bool:
    """Whether all are floats within what held-out data may ask for."""
    return values.is_floating_point() and bool(((values >= LEAST) & (values <= MOST)).all())


def isotonic(gaps: Tensor, slopes: Tensor) -> Tensor:
    """h(g) of gaps g ≥ 0: increasing, h(0) = 0, linear between `GAPS` with these slopes.

    >>> isotonic(torch.tensor([0.5, 1.5, 10.0]), torch.tensor([2.0, 1.0, 1.0, 1.0, 0.5]))
    tensor([ 1.0000,  2.5000, 10.0000])
    """
    ends = (*GAPS[1:], None)
    total = torch.zeros_like(gaps)
    for slope, start, end in zip(slopes, GAPS, ends, strict=True):
        total = total + slope * (gaps - start).clamp(0.0, None if end is None else end - start)
    return total


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

    def _of_classes(self, numbers: Tensor, outputs: Tensor, dim: int) -> Tensor:
        """Along the dimension of the classes."""
        return numbers.to(outputs).reshape(2, -1, *[1] * (outputs.ndim - dim - 1))

    def _bent(self, outputs: Tensor, slopes: Tensor, dim: int) -> Tensor:
        """Minus h of the gaps below the largest."""
        return -isotonic(outputs.amax(dim, keepdim=True) - outputs, slopes)

    def log_prob(self, outputs: Tensor, y: Tensor) -> Tensor:
        """``log softmax(logits)[y]``."""
        logits = outputs if self.as_they_are else self.logits(outputs)
        return summed(-cross_entropy(logits, y, reduction="none"))

    def hessian(self, outputs: Tensor) -> Tensor:
        """``Jᵀ (diag(p) − p pᵀ) J``, J the derivative of the logits: 1/T, or the scales or slopes."""
        p = self.mean(outputs).movedim(1, -1)
        found = p.diag_embed() - p.unsqueeze(-1) * p.unsqueeze(-2)
        if self.as_they_are:
            return found
        if self.isotonic is not None:
            jacobian = self._slopes(outputs.movedim(1, -1))
            return jacobian.mT @ found @ jacobian
        scales = torch.ones(outputs.shape[1]).to(outputs) / self.divisor(outputs)
        if self.vector is not None:
            scales = scales * self.vector[0].to(outputs)
        return found * scales[:, None] * scales

    def _slopes(self, f: Tensor) -> Tensor:
        """∂logits/∂f of the isotonic map for outputs [..., C], [..., C, C]: a class follows itself and the largest."""
        assert self.isotonic is not None
        top = f.argmax(-1, keepdim=True)
        gaps = f.gather(-1, top) - f
        segment = torch.bucketize(gaps, torch.tensor(GAPS[1:]).to(f))
        slopes = self.isotonic.to(f)[segment]
        to_top = torch.zeros_like(f).scatter(-1, top, 1.0)
        return slopes.diag_embed() - slopes.unsqueeze(-1) * to_top.unsqueeze(-2)

    def sample(self, outputs: Tensor, generator: torch.Generator | None = None) -> Tensor:
        """One label for each example: the largest of the logits with Gumbel noise."""
        logits = outputs if self.as_they_are else self.logits(outputs)
        return (logits - torch.empty_like(outputs).exponential_(generator=generator).log()).argmax(1)

    def mean(self, outputs: Tensor) -> Tensor:
        """Probabilities of the classes."""
        return self.logits(outputs).softmax(1)

    def predict(self, outputs: Tensor) -> Classes:
        """Mixture of categorical distributions."""
        return Classes(self.logits(outputs, 2))
