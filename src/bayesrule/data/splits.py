"""A data set in its training and test parts."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, TypeAlias

import numpy as np
import torch
from torch import Tensor

Pair: TypeAlias = tuple[Tensor, Tensor]
Kind: TypeAlias = Literal["classes", "reals", "counts"]


class Groups(NamedTuple):
    """The group of each test example, and of each example that promises are calibrated on."""

    test: tuple[str, ...]
    calibration: tuple[str, ...]


@dataclass(frozen=True, eq=False)
class Split:
    """A named data set: training and test examples, what the targets are, and inputs from elsewhere.

    >>> pair = torch.zeros(3, 1), torch.zeros(3)
    >>> Split("zeros", "reals", "nothing at all", test=pair).train
    Traceback (most recent call last):
    ValueError: zeros has no training examples (nothing at all): use its test examples
    """

    name: str
    kind: Kind
    what: str
    """One line about the data."""
    test: Pair
    training: Pair | None = None
    """The training examples, or None where there are only test examples."""
    classes: tuple[str, ...] = ()
    features: tuple[str, ...] = ()
    ood: Tensor | None = None
    """Inputs of the same shape and value range that are not of this data set."""
    image_shape: tuple[int, int, int] | None = None
    """Channels, height and width, if the inputs are pictures (perhaps flattened)."""
    weight: Tensor | None = None
    """How many times each training example counts; None: once."""
    calibration: Pair | None = None
    """Examples that are neither trained nor tested on, for promises to be calibrated on."""
    groups: Groups | None = None
    """Groups that a promise is to hold in, each by itself."""
    categories: tuple[int, ...] = ()
    """How many categories there are in each of the last inputs, which are their numbers; other inputs are amounts."""

    @property
    def train(self) -> Pair:
        """The training examples; an error where there are none."""
        if self.training is None:
            raise ValueError(f"{self.name} has no training examples ({self.what}): use its test examples")
        return self.training


def hold_out(y: Tensor, test: float, seed: int) -> tuple[Tensor, Tensor]:
    """Rows to train on and rows to test on, stratified if ``y`` are classes: integers.

    A share ``test`` of the rows, and as near as can be of every class, is held out; every class keeps at least one row
    to train on.

    >>> train, test = hold_out(torch.tensor([0, 0, 0, 0, 1, 1, 1, 1, 2]), test=0.25, seed=0)
    >>> len(train), len(test)
    (7, 2)
    """
    if not 0 <= test < 1:
        raise ValueError(f"test must be a share of the rows, at least 0 and below 1, got {test}")
    strata = np.zeros(len(y), dtype=int) if y.is_floating_point() else y.numpy()
    # Rows class by class, at random within each: evenly spaced ones are then a share of every class.
    order = np.lexsort((np.random.default_rng(seed).permutation(len(y)), strata))
    candidates = order[np.diff(strata[order], prepend=strata[order][:1] - 1) == 0]  # all but one of each class
    m = min(max(round(test * len(y)), int(test > 0)), len(candidates))
    held = np.zeros(len(y), dtype=bool)
    held[candidates[((np.arange(m) + 0.5) * len(candidates) / max(m, 1)).astype(int)]] = True  # evenly spaced
    return torch.from_numpy(np.flatnonzero(~held)), torch.from_numpy(np.flatnonzero(held))


def spare(n: int, count: int, seed: int) -> tuple[Tensor, Tensor]:
    """Rows that are left, and ``count`` rows that are spared: a simple random sample of all ``n``.

    >>> left, spared = spare(5, 2, seed=0)
    >>> len(left), len(spared)
    (3, 2)
    """
    order = np.random.default_rng(seed).permutation(n)
    return torch.from_numpy(np.sort(order[count:])), torch.from_numpy(np.sort(order[:count]))


def folds(y: Tensor, count: int, share: float, seed: int) -> Tensor:
    """The fold of every row, from 0 to ``count`` − 1, each a ``share`` of the rows and of every class; −1 is in none.

    >>> found = folds(torch.tensor([0, 0, 0, 0, 1, 1, 1, 1]), count=2, share=0.25, seed=0)
    >>> found.sort().values
    tensor([-1, -1, -1, -1,  0,  0,  1,  1])
    """
    strata = np.zeros(len(y), dtype=int) if y.is_floating_point() else y.numpy()
    order = np.lexsort((np.random.default_rng(seed).permutation(len(y)), strata))  # class by class, at random in each
    within = np.arange(len(y)) % round(1 / share)
    found = np.empty(len(y), dtype=np.int64)
    found[order] = np.where(within < count, within, -1)
    return torch.from_numpy(found)


def cut(x: Any, y: Tensor, test: float, seed: int) -> tuple[Pair, Pair]:
    """Training and test examples, by `hold_out`."""
    train, held = hold_out(y, test, seed)
    return (x[train], y[train]), (x[held], y[held])
