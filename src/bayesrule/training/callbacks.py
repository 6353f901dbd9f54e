"""What a fit tells as it goes, and how to listen."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from torch import Tensor

from bayesrule.posteriors import Posterior


class LazyLogs(Mapping[str, float]):
    """Logs that stay on the device until someone looks.

    >>> import torch
    >>> logs = LazyLogs({"loss": torch.tensor(0.5)})
    >>> logs["loss"], dict(logs)
    (0.5, {'loss': 0.5})
    """

    def __init__(self, tensors: Mapping[str, Tensor]) -> None:
        self._tensors = tensors

    def __getitem__(self, name: str) -> float:
        return float(self._tensors[name])

    def __iter__(self) -> Iterator[str]:
        return iter(self._tensors)

    def __len__(self) -> int:
        return len(self._tensors)


def _nobody() -> Posterior:
    raise RuntimeError("there is no posterior outside of a fit")


@dataclass(frozen=True)
class Progress:
    """Where a fit stands after a step.

    ``logs`` are this step's; they are on the device still, and reading one waits for it. ``history`` has one entry per
    finished epoch: means of the logs, and ``val_nll`` where the fit was given validation data. ``posterior()`` is what
    is known at this moment.
    """

    step: int
    steps: int
    epoch: int
    epochs: int
    epoch_ended: bool
    logs: Mapping[str, float]
    history: list[dict[str, float]]
    posterior: Callable[[], Posterior] = _nobody


Callback = Callable[[Progress], bool | None]
"""Called after each step; True stops the fit at the end of the epoch."""


@dataclass(frozen=True)
class EarlyStopping:
    """Stop when ``watch`` has not improved for ``patience`` epochs.

    The posterior is that of the best epoch, whether the fit stops or gets to its end:
    ``posterior.info["best_epoch"]`` says which, counted from 0.

    It looks at the history alone, and a checkpoint has the best epoch's state, so that it survives a resume.

    >>> progress = Progress(4, 9, 3, 9, True, {}, [{"val_nll": v} for v in (1.0, 0.5, 0.6, 0.7)])
    >>> EarlyStopping(patience=2)(progress), EarlyStopping(patience=3)(progress)
    (True, False)
    >>> EarlyStopping().best(progress.history)
    1
    """

    patience: int = 5
    watch: str = "val_nll"

    def __call__(self, progress: Progress) -> bool:
        """Whether the fit should stop."""
        if not progress.epoch_ended:
            return False
        if self.watch not in progress.history[-1]:
            known = ", ".join(sorted(progress.history[-1]))
            raise ValueError(f"early stopping watches {self.watch!r}, but the fit logs {known}; give fit(val=...)")
        return len(progress.history) - 1 - self.best(progress.history) >= self.patience

    def best(self, history: Sequence[Mapping[str, float]]) -> int:
        """The epoch in which ``watch`` was lowest, counted from 0; of several the first. NaN is above all numbers."""
        values = [math.inf if math.isnan(entry[self.watch]) else entry[self.watch] for entry in history]
        return values.index(min(values))
