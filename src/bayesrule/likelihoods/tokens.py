"""One token out of V at each position of a sequence: language models, and tags of tokens."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, ClassVar

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from bayesrule.likelihoods.base import Likelihood
from bayesrule.likelihoods.categorical import Tempered
from bayesrule.predictions import TokenClasses, targets

if TYPE_CHECKING:
    from typing_extensions import Self


@dataclass(frozen=True, eq=False)
class Tokens(Tempered):
    """``p(y|f) = Π_t softmax(f_t)[y_{t+shift}]`` for outputs ``[B, T, V]`` and labels ``[B, T]``, one for each token.

    ``shift``: how far a label stands behind the outputs that say it. 0: a tag of each token, and labels that were
    shifted before. 1: the next token, of labels that are the inputs themselves, as models of Hugging Face take them.
    Labels of −100 do not count, and neither do the first ``shift``.

    An example is a sequence, and its log p(y|f) is the sum over its tokens: N counts sequences, and the likelihood of
    the data is that of all their tokens.

    ``counted``: which positions of the outputs count, for the curvature of given labels; see `observing`.

    >>> f, y = torch.zeros(1, 3, 4), torch.tensor([[2, 0, -100]])
    >>> Tokens(shift=1).log_prob(f, y).exp(), Tokens().log_prob(f, y).exp()
    (tensor([0.2500]), tensor([0.0625]))
    """

    name: ClassVar[str] = "tokens"
    classes_last: ClassVar[bool] = True

    shift: int = 0
    counted: Tensor | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.vector is not None or self.isotonic is not None:
            raise ValueError("only the temperature of tokens may be known or settled: leave vector and isotonic out")
        if isinstance(self.shift, bool) or not isinstance(self.shift, int) or self.shift < 0:
            raise ValueError(
                f"shift must be a whole number of at least 0, got {self.shift!r}: 1 where labels are the inputs "
                "themselves, 0 where each stands at its own position"
            )

    def outputs_for(self, numbers: int, classes: int = 0) -> int:
        """One for each token of the vocabulary."""
        return classes

    def check(self, outputs: Tensor, y: Tensor) -> Tensor:
        """Labels as int64 token numbers, −100 where none counts."""
        if outputs.ndim != 3 or outputs.shape[2] < 2:
            raise ValueError(
                f"outputs must be [B, T, V] for likelihood 'tokens', the logits of V tokens at T positions: got "
                f"{list(outputs.shape)}; for one class of each sequence take 'categorical'"
            )
        if outputs.shape[1] <= self.shift:
            raise ValueError(
                f"outputs must have more than {self.shift} positions for Tokens(shift={self.shift}), got "
                f"{outputs.shape[1]}: pass longer sequences, or shift=0"
            )
        return targets.tokens(y, outputs.shape[:2], outputs.shape[2])

    def aligned(self, outputs: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        """Logits [B, T', V] and the labels [B, T'] that they are about."""
        end = outputs.shape[1] - self.shift
        logits = outputs if self.as_they_are else self.logits(outputs)
        return logits[:, :end], y[:, self.shift :]

    def log_prob(self, outputs: Tensor, y: Tensor) -> Tensor:
        """The sum of ``log softmax(logits)[y]`` over the tokens that count."""
        logits, labels = self.aligned(outputs, y)
        nll = cross_entropy(logits.transpose(1, 2), labels, ignore_index=targets.IGNORED, reduction="none")
        return -nll.sum(1)

    def observing(self, y: Tensor) -> Self:
        """The same for just these labels: nothing is said at positions whose label does not count."""
        return replace(self, counted=self._positions(y))

    def _positions(self, y: Tensor) -> Tensor:
        """The positions [B, T] of outputs whose label counts."""
        counted = torch.zeros_like(y, dtype=torch.bool)
        counted[:, : y.shape[1] - self.shift] = y[:, self.shift :] != targets.IGNORED
        return counted

    def _counted(self, outputs: Tensor) -> Tensor:
        """Those of `observing`; without it all but the last ``shift``."""
        if self.counted is not None:
            return self.counted.to(outputs.device)
        every = torch.zeros(outputs.shape[:2], dtype=torch.int64, device=outputs.device)
        return self._positions(every)

    def hessian(self, outputs: Tensor) -> Tensor:
        """``(diag(p) − p pᵀ)/T²`` at each position, [B, T, V, V]; 0 where nothing counts."""
        p = self.mean(outputs)
        found = (p.diag_embed() - p.unsqueeze(-1) * p.unsqueeze(-2)) / self.divisor(outputs) ** 2
        return found * self._counted(outputs)[..., None, None]

    def sample(self, outputs: Tensor, generator: torch.Generator | None = None) -> Tensor:
        """A label for each position that counts, and −100 elsewhere."""
        logits = outputs if self.as_they_are else self.logits(outputs)
        # the largest of the logits with Gumbel noise
        drawn = (logits - torch.empty_like(logits).exponential_(generator=generator).log()).argmax(2)
        drawn = drawn.masked_fill(~self._counted(outputs), targets.IGNORED)
        head = drawn.new_full((len(drawn), self.shift), targets.IGNORED)
        return torch.cat([head, drawn[:, : drawn.shape[1] - self.shift]], 1)

    def mean(self, outputs: Tensor) -> Tensor:
        """Probabilities of the tokens at each position."""
        return self.logits(outputs).softmax(2)

    def predict(self, outputs: Tensor) -> TokenClasses:
        """Mixture of distributions at each position."""
        return TokenClasses(self.logits(outputs), self.shift)

    def recalibrations(self, width: int = 1) -> dict[str, Likelihood]:
        """``temperature``: one number for the whole vocabulary, unless the user knows it."""
        if isinstance(self.temperature, float | int):
            return {}
        return {"temperature": replace(self, temperature=torch.tensor(1.0, dtype=torch.float64))}

    def _of_classes(self, numbers: Tensor, outputs: Tensor, dim: int) -> Tensor:
        raise NotImplementedError("tokens have no vector")

    def _bent(self, outputs: Tensor, slopes: Tensor, dim: int) -> Tensor:
        raise NotImplementedError("tokens have no isotonic map")
