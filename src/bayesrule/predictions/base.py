"""What every prediction has, whatever the kind of target."""

from __future__ import annotations

import dataclasses
import html
import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from bayesrule.predictions.frames import columns

if TYPE_CHECKING:
    import pandas as pd
    from typing_extensions import Self

SHOWN = 10
"""Examples, and columns, of the table that a notebook shows."""


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

    if TYPE_CHECKING:
        # What only some kinds have. Type checkers find it on every prediction, since `Posterior.predict` cannot say
        # which kind it will be; at run time the other kinds do not have it, and `__getattr__` says who does.

        @property
        def probs(self) -> Tensor:
            """Probability of each class, or of y = 1."""

        @property
        def label(self) -> Tensor:
            """The most probable class."""

        @property
        def confidence(self) -> Tensor:
            """Probability of the most probable class."""

        @property
        def entropy(self) -> Tensor:
            """Entropy of the label."""

        @property
        def mean(self) -> Tensor:
            """Mean of y."""

        @property
        def variance(self) -> Tensor:
            """Variance of y, noise included."""

        @property
        def std(self) -> Tensor:
            """Standard deviation of y, noise included."""

        def prediction_set(self, level: float) -> Tensor:
            """The smallest set of classes that holds probability ``level`` or more."""

        def interval(self, level: float) -> tuple[Tensor, Tensor]:
            """The central interval that holds a share ``level``."""

        def quantile(self, q: float | Tensor) -> Tensor:
            """The least y with ``cdf(y) ≥ q``."""

        def cdf(self, y: float | Tensor) -> Tensor:
            """Probability of a value up to ``y``."""

        def crps(self, y: Tensor) -> Tensor:
            """Continuous ranked probability score."""

    else:

        def __getattr__(self, name: str) -> Any:
            having = sorted(kind.__name__ for kind in _kinds(Prediction) if hasattr(kind, name))
            hint = f", which is of {' and '.join(having)}" if having else ""
            raise AttributeError(f"{type(self).__name__} has no {name!r}{hint}", name=name, obj=self)

    def observed(self, y: Tensor) -> tuple[Prediction, Tensor]:
        """The prediction of those targets alone that count, and these; all of them, but for tokens."""
        return self, y

    def rescaled(self, loc: float | Tensor, scale: float | Tensor) -> Prediction:
        """The prediction of ``loc + scale · y``; only real targets have units to change."""
        raise TypeError(f"{type(self).__name__} has no units to rescale: only reals of any sign have")

    @abstractmethod
    def summary(self, level: float | None = 0.9) -> dict[str, Tensor]:
        """What an exported program gives, by the names of this class: the predictive and both uncertainties.

        Classes: ``probs``, ``aleatoric``, ``epistemic``. Numbers: ``mean``, ``lower`` and ``upper`` end of the interval
        of ``level`` (None: without), ``aleatoric``, ``epistemic``.
        """

    def to_frame(self, level: float = 0.9, classes: Sequence[str] = ()) -> pd.DataFrame:
        """A pandas table with a row for each example: the best guess and both uncertainties.

        Classes: prediction, confidence, p_CLASS ..., entropy, aleatoric, epistemic (nats). Numbers: prediction, std,
        lower_90, upper_90, aleatoric_std, epistemic_std (units of y). Where an example has several targets, the columns
        of the j-th end in ``_j``. ``level``: of the interval of numbers. ``classes``: names in the place of 0, 1, ...
        """
        import pandas as pd

        return pd.DataFrame(self._columns(level, classes))

    def _columns(self, level: float, classes: Sequence[str]) -> dict[str, list[Any]]:
        """The columns of `to_frame`."""
        found: dict[str, list[Any]] = {}
        for name, values in (("prediction", self.point), ("aleatoric", self.aleatoric), ("epistemic", self.epistemic)):
            found |= columns(name, values)
        return found

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, index: int | slice | Sequence[int] | Tensor) -> Self:
        """The prediction of some of the examples: a slice, a mask or indices of them; a number gives one example."""
        if isinstance(index, int | np.integer):
            if not -len(self) <= index < len(self):  # which also ends a loop over the examples
                raise IndexError(f"index must be one of {len(self)} examples, got {index}")
            index = [int(index) % len(self)]
        fields = {}
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            fields[field.name] = value[:, index] if isinstance(value, Tensor) else value  # dimension 0 is the networks
        return dataclasses.replace(self, **fields)

    def __repr__(self) -> str:
        return f"{type(self).__name__}(samples={self.samples}, shape={list(self.shape)})"

    def _repr_html_(self) -> str:
        """The first examples as a table, for notebooks."""
        rows = self[:SHOWN].to_frame().to_html(max_cols=SHOWN)  # which escapes
        return f"<p>{html.escape(repr(self))}</p>{rows}"

    @classmethod
    def cat(cls, parts: Sequence[Self]) -> Self:
        """Predictions of several batches as one, in order."""
        kinds = sorted({f"{type(part).__name__} of {part.samples} samples" for part in parts})
        if len(kinds) != 1:
            raise ValueError(f"parts must be predictions of one kind with one number of samples: got {kinds}")
        return cls._joined(parts, 1)

    @classmethod
    def pooled(cls, parts: Sequence[Self]) -> Self:
        """Predictions of the same examples by several groups of networks as one, each network with the same weight."""
        kinds = sorted({f"{type(part).__name__} of shape {list(part.shape)}" for part in parts})
        if len(kinds) != 1:
            raise ValueError(f"parts must be predictions of one kind of the same examples: got {kinds}")
        return cls._joined(parts, 0)

    @classmethod
    def _joined(cls, parts: Sequence[Self], dimension: int) -> Self:
        """Along dimension 0, the networks, or 1, the examples."""
        joined = {}
        for field in dataclasses.fields(parts[0]):
            values = [getattr(part, field.name) for part in parts]
            if isinstance(values[0], Tensor):
                joined[field.name] = torch.cat(values, dimension)
        return dataclasses.replace(parts[0], **joined)

    def _tensors(self) -> tuple[Tensor, ...]:
        values = (getattr(self, field.name) for field in dataclasses.fields(self))
        return tuple(value for value in values if isinstance(value, Tensor))

    def _networks(self, n: int, generator: torch.Generator | None) -> Tensor:
        if n < 1:
            raise ValueError(f"n must be a number of draws of at least 1: got {n}")
        return torch.randint(self.samples, (n,), generator=generator, device=self._tensors()[0].device)


def _kinds(base: type[Prediction]) -> set[type[Prediction]]:
    """The final kinds of prediction."""
    below = base.__subclasses__()
    if not below:
        return {base}
    return set().union(*(_kinds(kind) for kind in below))


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
