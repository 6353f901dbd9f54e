"""One class out of C."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from bayesrule.predictions import targets
from bayesrule.predictions.base import Prediction, log_mean, per_example, sampled
from bayesrule.predictions.frames import columns


@dataclass(frozen=True, eq=False, repr=False)
class Classes(Prediction):
    """A mixture of S categorical distributions, from logits ``[S, B, C, ...]``.

    A sample may stand for a whole Gaussian of networks, such as those of a linearised one: its logits are then those of
    their mean probabilities, and ``entropies`` ``[S, B, ...]`` are the means of their entropies. None: every sample is
    one network, with the entropy of its own probabilities.

    ::

        probs     = mean_s softmax(logits_s)
        entropy   = H(probs)                                        total
        aleatoric = mean_s entropies_s,    H(softmax(logits_s)) for a single network
        epistemic = entropy − aleatoric = I(y; network) ≥ 0         mutual information

    Two networks that are each sure, of different classes: nothing is noise, all is ignorance.

    >>> import torch
    >>> prediction = Classes(torch.tensor([[[200.0, 0.0]], [[0.0, 200.0]]]))
    >>> prediction.probs
    tensor([[0.5000, 0.5000]])
    >>> prediction.aleatoric, prediction.epistemic
    (tensor([0.]), tensor([0.6931]))
    """

    logits: Tensor
    entropies: Tensor | None = None

    def __post_init__(self) -> None:
        sampled("logits", self.logits, "S, B, C")
        if self.entropies is None:
            return
        wanted = [*self.logits.shape[:2], *self.logits.shape[3:]]
        if list(self.entropies.shape) != wanted:
            raise ValueError(
                f"entropies must be {wanted}, one for each sample and label: got {list(self.entropies.shape)}"
            )

    @property
    def shape(self) -> torch.Size:
        """Shape of the labels, ``[B, ...]``."""
        return torch.Size([self.logits.shape[1], *self.logits.shape[3:]])

    @cached_property
    def probs(self) -> Tensor:
        """Probability of each class, ``[B, C, ...]``."""
        return self.logits.softmax(2).mean(0)

    @cached_property
    def aleatoric(self) -> Tensor:
        """Mean entropy of the networks' own distributions."""
        if self.entropies is not None:
            return self.entropies.mean(0)
        # entr(0) = 0, where p log p would be NaN
        return torch.special.entr(self.logits.softmax(2)).sum(2).mean(0)

    @cached_property
    def epistemic(self) -> Tensor:
        """Mutual information between label and network."""
        # Networks that agree leave a difference of equal entropies, which rounding may put below 0.
        return (torch.special.entr(self.probs).sum(1) - self.aleatoric).clamp(min=0)

    @property
    def entropy(self) -> Tensor:
        """Entropy of ``probs``."""
        return self.total

    @property
    def uncertainty(self) -> Tensor:
        """Entropy, averaged over trailing dimensions."""
        return per_example(self.entropy)

    @property
    def confidence(self) -> Tensor:
        """Probability of the most probable class."""
        return self.probs.amax(1)

    @property
    def label(self) -> Tensor:
        """The most probable class."""
        return self.probs.argmax(1)

    @property
    def point(self) -> Tensor:
        """The most probable class."""
        return self.label

    def target(self, y: Tensor) -> Tensor:
        """Labels as int64 class indices."""
        return targets.labels(y, self.shape, self.logits.shape[2]).to(self.logits.device)

    def log_prob(self, y: Tensor) -> Tensor:
        """``log probs[y]``, exact also where probs underflow."""
        index = self.target(y).unsqueeze(1).expand(self.samples, *self.shape[:1], 1, *self.shape[1:])
        return log_mean(self.logits.log_softmax(2).gather(2, index).squeeze(2))

    def prediction_set(self, level: float) -> Tensor:
        """The smallest set of classes that holds probability ``level`` or more, as a mask ``[B, C, ...]``."""
        if not 0 < level <= 1:
            raise ValueError(f"level must be above 0 and at most 1: got {level:g}; 90 % is level=0.9")
        # A class belongs to the set if the likelier ones do not hold the level yet. Stable: of equals the first.
        ordered, index = self.probs.sort(dim=1, descending=True, stable=True)
        before = ordered.cumsum(1) - ordered
        return torch.zeros_like(before, dtype=torch.bool).scatter(1, index, before < level)

    def summary(self, level: float | None = 0.9) -> dict[str, Tensor]:
        """Probabilities and both entropies; they have no interval, and no level."""
        return {"probs": self.probs, "aleatoric": self.aleatoric, "epistemic": self.epistemic}

    def _columns(self, level: float, classes: Sequence[str]) -> dict[str, list[Any]]:
        count = self.logits.shape[2]
        if classes and len(classes) != count:
            raise ValueError(f"classes must be the names of all {count} classes, got {len(classes)}")
        found: dict[str, list[Any]] = {**columns("prediction", self.label)}
        if classes:
            found = {name: [classes[number] for number in labels] for name, labels in found.items()}
        found |= columns("confidence", self.confidence)
        for number, name in enumerate(classes or range(count)):
            found |= columns(f"p_{name}", self.probs[:, number])
        for part in ("entropy", "aleatoric", "epistemic"):
            found |= columns(part, getattr(self, part))
        return found

    def sample(self, n: int, generator: torch.Generator | None = None) -> Tensor:
        """Labels ``[n, B, ...]``."""
        logits = self.logits[self._networks(n, generator)]
        # The first of C independent arrivals with rates exp(logits) is class c with probability softmax(logits)[c].
        return (logits - torch.empty_like(logits).exponential_(generator=generator).log()).argmax(2)


class OfClasses(Prediction):
    """What is a distribution of classes seen in another form: ``classes`` is that distribution."""

    @property
    @abstractmethod
    def classes(self) -> Classes:
        """The same as classes."""

    @property
    @abstractmethod
    def probs(self) -> Tensor:
        """Its probabilities, in the form of y."""

    @property
    def aleatoric(self) -> Tensor:
        """Mean entropy of the networks' own distributions."""
        return self.classes.aleatoric

    @property
    def epistemic(self) -> Tensor:
        """Mutual information between label and network."""
        return self.classes.epistemic

    @property
    def entropy(self) -> Tensor:
        """Entropy of ``probs``."""
        return self.total

    @property
    def confidence(self) -> Tensor:
        """Probability of the most probable label."""
        return self.classes.confidence

    @property
    def label(self) -> Tensor:
        """The most probable label."""
        return self.classes.label

    @property
    def point(self) -> Tensor:
        """The most probable label."""
        return self.label

    def summary(self, level: float | None = 0.9) -> dict[str, Tensor]:
        """Probabilities and both entropies; they have no interval, and no level."""
        return {"probs": self.probs, "aleatoric": self.aleatoric, "epistemic": self.epistemic}

    def _columns(self, level: float, classes: Sequence[str]) -> dict[str, list[Any]]:
        return self.classes._columns(level, classes)
