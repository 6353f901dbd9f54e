"""What every prediction has, whatever the kind of target."""

from __future__ import annotations

import dataclasses
import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

if TYPE_CHECKING:
    from typing_extensions import Self


@dataclass(frozen=True, eq=False, repr=False)
class Prediction(ABC):
    """The predictive distribution p(y|x, D) ≈ 1/S Σ_s p(y|f_s(x)) of B examples under S sampled networks.

    A final class holds tensors ``[S, B, ...]``, one slice per network. Its uncertainties are tensors of the shape of y,
    ``[B, ...]``, and always ``total = aleatoric + epistemic``:

    - ``aleatoric``: what stays unknown if the network is known, the mean over networks of each one's own uncertainty;
    - ``epistemic``: what the networks disagree about, and more data would settle. It is 0 when S = 1.

    The unit is nats for classes (entropies) and y² for reals and counts (variances).
    """

    @property
    @abstractmethod
    def shape(self) -> torch.Size:
        """Shape of the targets y, ``[B, ...]``."""

    @property
    @abstractmethod
    def aleatoric(self) -> Tensor:
        """Uncertainty that stays when the network is known, per target element."""

    @property
    @abstractmethod
    def epistemic(self) -> Tensor:
        """Uncertainty from not knowing the network, per target element."""

    @property
    @abstractmethod
    def uncertainty(self) -> Tensor:
        """One number per example ``[B]`` to rank by: the mean entropy or the mean standard deviation."""

    @property
    @abstractmethod
    def point(self) -> Tensor:
        """The best single guess of y: the most probable label, or the mean."""

    @abstractmethod
    def target(self, y: Tensor) -> Tensor:
        """``y`` in the shape, dtype and device of this prediction, or an error that says what is wrong with it."""

    @abstractmethod
    def log_prob(self, y: Tensor) -> Tensor:
        """Log p(y|x, D), per target element."""

    @abstractmethod
    def sample(self, n: int, generator: torch.Generator | None = None) -> Tensor:
        """``n`` draws of y, ``[n, B, ...]``: each takes one network for all examples, then y given that network."""

    @property
    def total(self) -> Tensor:
        """All uncertainty about y, per target element."""
        return self.aleatoric + self.epistemic

    @property
    def samples(self) -> int:
        """S, the number of networks."""
        return self._tensors()[0].shape[0]

    def rescaled(self, loc: float | Tensor, scale: float | Tensor) -> Prediction:
        """The prediction of ``loc + scale · y``; only real targets have units to change."""
        raise TypeError(f"{type(self).__name__} has no units to rescale: only reals of any sign have")

    def __len__(self) -> int:
        return self.shape[0]

    def __repr__(self) -> str:
        return f"{type(self).__name__}(samples={self.samples}, shape={list(self.shape)})"

    @classmethod
    def cat(cls, parts: Sequence[Self]) -> Self:
        """Predictions of several batches as one, in order."""
        kinds = sorted({f"{type(part).__name__} of {part.samples} samples" for part in parts})
        if len(kinds) != 1:
            raise ValueError(f"parts must be predictions of one kind with one number of samples: got {kinds}")
        fields = zip(*(part._tensors() for part in parts), strict=True)
        return cls(*(torch.cat(tensors, 1) for tensors in fields))  # dimension 0 is the networks, 1 the examples

    def _tensors(self) -> tuple[Tensor, ...]:
        values = (getattr(self, field.name) for field in dataclasses.fields(self))
        return tuple(value for value in values if value is not None)

    def _networks(self, n: int, generator: torch.Generator | None) -> Tensor:
        if n < 1:
            raise ValueError(f"n must be a number of draws of at least 1: got {n}")
        return torch.randint(self.samples, (n,), generator=generator, device=self._tensors()[0].device)


def log_mean(log_probs: Tensor) -> Tensor:
    """Log of the mean over the first dimension of ``exp(log_probs)``, without overflow."""
    return log_probs.logsumexp(0) - math.log(len(log_probs))


def per_example(values: Tensor) -> Tensor:
    """The mean over all dimensions but the first."""
    return values.flatten(1).mean(1) if values.ndim > 1 else values


def sampled(name: str, values: Tensor, layout: str) -> None:
    """Refuse ``values`` that are not S floating-point samples in the dimensions of ``layout``."""
    least = layout.count(",") + 1
    if values.ndim < least or not values.is_floating_point() or not values.shape[0]:
        raise ValueError(
            f"{name} must be a floating-point tensor [{layout}, ...] of at least one sample: got {values.dtype} of "
            f"shape {list(values.shape)}; for a single network use {name}.unsqueeze(0)"
        )


def fraction(name: str, value: float) -> float:
    """``value`` if it is strictly between 0 and 1."""
    if not 0 < value < 1:
        raise ValueError(f"{name} must be between 0 and 1, both excluded: got {value:g}; 90 % is {name}=0.9")
    return value


def tails(level: float) -> tuple[float, float]:
    """The quantiles at the ends of the central interval that holds a share ``level``."""
    outside = (1 - fraction("level", level)) / 2
    return outside, 1 - outside
