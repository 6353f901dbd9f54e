"""What every likelihood has."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from bayesrule.data import Arrays, Kind, standardize
from bayesrule.naming import Named
from bayesrule.predictions import Prediction


@dataclass(frozen=True, eq=False)
class Likelihood(Named, ABC):
    """p(y|f) of targets y given network outputs f, ``[B, C, ...]`` with the output dimension 1, or ``[B]``.

    A single output ``[B, 1, ...]`` is a target ``[B, ...]``, here and in predictions. A likelihood never changes: what
    is learnt (`unknowns`) is put in with `with_unknowns`, which gives a new one.

    ``kind``: of the targets. ``classes_last``: whether outputs are ``[B, ..., C]`` instead. ``prior_scale``: of the
    weights' normal prior where nobody says another one. Logits and log-rates have to grow well beyond one before a
    network can be sure, which a narrow prior would not let them; standardised reals are of order one, as outputs are
    under Kaiming's scale.
    """

    name: ClassVar[str]
    kind: ClassVar[Kind]
    prior_scale: ClassVar[float | str] = 1.0
    classes_last: ClassVar[bool] = False

    @abstractmethod
    def check(self, outputs: Tensor, y: Tensor) -> Tensor:
        """``y`` in the shape and dtype that `log_prob` wants, or an error that says what is wrong with it."""

    def outputs_for(self, numbers: int, classes: int = 0) -> int:
        """How many outputs a network needs where each target holds so many ``numbers``, of so many ``classes``."""
        return numbers

    @abstractmethod
    def log_prob(self, outputs: Tensor, y: Tensor) -> Tensor:
        """Log p(y|f) per example, ``[B]``: summed over all other dimensions. ``y`` as `check` gives it."""

    @abstractmethod
    def hessian(self, outputs: Tensor) -> Tensor:
        """−∂² log p(y|f)/∂f², or its mean over y where it depends on y: ``[B, ..., C, C]``, no eigenvalue negative."""

    @abstractmethod
    def mean(self, outputs: Tensor) -> Tensor:
        """E[y|f]; for classes, their probabilities."""

    @abstractmethod
    def predict(self, outputs: Tensor) -> Prediction:
        """The mixture over networks, from outputs ``[S, B, ...]``."""

    def sample(self, outputs: Tensor, generator: torch.Generator | None = None) -> Tensor:
        """One draw of y for each example."""
        return self.predict(outputs.unsqueeze(0)).sample(1, generator)[0]  # a mixture of one network

    @property
    def rescales_targets(self) -> bool:
        """Whether targets may be standardised: nothing of the likelihood is given in units of y."""
        return False

    def standardized(self, train: Any, codes: int = 0) -> Arrays:
        """Data with standardised inputs, and targets if they `rescales_targets`: `bayesrule.data.standardize`."""
        return standardize(train, "auto" if self.rescales_targets else "keep", codes)

    def unknowns(self) -> dict[str, Tensor]:
        """What is learnt with the weights, as unconstrained tensors."""
        return {}

    def with_unknowns(self, values: Mapping[str, Tensor]) -> Likelihood:
        """This likelihood with other `unknowns`; gradients flow to ``values``."""
        if values:
            raise ValueError(f"{self.name} has nothing to learn, so values must be empty: got {sorted(values)}")
        return self

    def peak(self, y: Tensor) -> Tensor | None:
        """The largest log p(y|f) over all outputs f, per example, where noise on some scale is normal; else None.

        What is below it is ½ ((y − f)/noise)² on that scale, by which evidence tells the noise.
        """
        return None

    def verify(self) -> None:
        """Refuse unknowns that no fit can have learnt: for what comes from a file."""
        return

    def kept(self) -> Likelihood:
        """The same with its unknowns for known: they stay as they are."""
        return self

    def recalibrations(self, width: int = 1) -> dict[str, Likelihood]:
        """By name: the same with one more unknown, which is 1 in training and may be settled on held-out data then.

        ``width``: how many outputs an example has.
        """
        return {}

    def uncalibrated(self) -> Likelihood:
        """The same as it was before one of its `recalibrations` was settled."""
        return self

    def observing(self, y: Tensor) -> Likelihood:
        """The same for just these targets: where some of them do not count, it has no curvature there."""
        return self

    def placed(self, y: Tensor) -> Likelihood:
        """This likelihood with what it takes from the training targets and does not learn, such as their units."""
        return self

    def matched(self, outputs: Tensor, y: Tensor, weight: Tensor | None = None) -> Likelihood:
        """This likelihood with its unknowns started from the outputs of an untrained network and their targets.

        ``weight``: how many times each example counts; None: once.
        """
        return self

    @classmethod
    def pooled(cls, members: Sequence[Likelihood]) -> Likelihood:
        """One likelihood for a mixture of networks that were each learnt with their own."""
        return members[0]


def single(outputs: Tensor, dim: int = 1) -> Tensor:
    """Outputs without the output dimension if it has size 1."""
    # asked for first: a program of such a squeeze, which leaves other sizes as they are, is none that ONNX knows
    return outputs.squeeze(dim) if outputs.ndim > dim and outputs.shape[dim] == 1 else outputs


def summed(values: Tensor) -> Tensor:
    """The sum over all dimensions but the first."""
    return values.flatten(1).sum(1) if values.ndim > 1 else values


def mean_over(values: Tensor, weight: Tensor | None) -> Tensor:
    """The mean over examples, each counted as often as its weight says."""
    if weight is None:
        return values.mean(0)
    times = (weight / weight.sum()).to(values)
    return (times.reshape(-1, *[1] * (values.ndim - 1)) * values).sum(0)


def diagonal(values: Tensor) -> Tensor:
    """Values ``[B, C, ...]`` or ``[B]`` as diagonal matrices ``[B, ..., C, C]``."""
    if values.ndim == 1:  # one output, without a dimension of its own
        return values.unsqueeze(1).diag_embed()
    return values.movedim(1, -1).diag_embed()
