"""Tables that need no file: those that scikit-learn brings along, and generated ones with a difficulty each."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

Array: TypeAlias = NDArray[Any]
Parts: TypeAlias = tuple[Array, Array, Array, Array]
"""Inputs and targets to train on, inputs and targets to test on."""


def cut(x: Array, y: Array, seed: int) -> Parts:
    """Four fifths to train on, a fifth to test."""
    order = np.random.default_rng(1000 + seed).permutation(len(y))
    held, rest = order[: len(y) // 5], order[len(y) // 5 :]
    return x[rest], y[rest], x[held], y[held]


def churn(seed: int) -> Parts:
    """6 % positive, seven columns that matter and five that do not."""
    from scipy.optimize import brentq

    random = np.random.default_rng(seed)
    x = random.normal(size=(1200, 12))
    logits = x[:, :7] @ random.normal(size=7) * 0.5
    shift = brentq(lambda b: np.mean(1 / (1 + np.exp(-logits - b))) - 0.06, -20, 20)
    return cut(x, (random.random(1200) < 1 / (1 + np.exp(-logits - shift))).astype(int), seed)


def categories(seed: int) -> Parts:
    """Three columns of categories as 0/1 columns, and two of numbers; some categories interact."""
    random = np.random.default_rng(seed)
    codes, numbers = random.integers(8, size=(900, 3)), random.normal(size=(900, 2))
    effects = random.normal(size=(3, 8))
    y = (
        sum(effects[j][codes[:, j]] for j in range(3))
        + numbers[:, 0] * (codes[:, 0] < 4)
        + 0.5 * random.normal(size=900)
    )
    return cut(np.concatenate([*(np.eye(8)[codes[:, j]] for j in range(3)), numbers], 1), y, seed)


def wide(seed: int) -> Parts:
    """300 rows to train on, 2000 columns, of which five matter."""
    random = np.random.default_rng(seed)
    x = random.normal(size=(375, 2000))
    return cut(x, x[:, :5] @ np.array([2.0, -1.5, 1.0, 1.0, 0.7]) + 0.5 * random.normal(size=375), seed)


def _brought(name: str, seed: int) -> Parts:
    """One of scikit-learn's own tables."""
    from sklearn import datasets

    x, y = getattr(datasets, f"load_{name}")(return_X_y=True)
    return cut(x, y, seed)


def _made(generator: str, seed: int, *args: Any, **settings: Any) -> Parts:
    """One of scikit-learn's generators."""
    from sklearn import datasets

    x, y = getattr(datasets, f"make_{generator}")(*args, random_state=seed, **settings)
    return cut(x, y, seed)


def _flipped(seed: int) -> Parts:
    return _made("classification", 700 + seed, 900, 12, n_informative=6, n_classes=3, flip_y=0.25)


def _few(seed: int) -> Parts:
    return _made("classification", 800 + seed, 100, 10, n_informative=4, flip_y=0.1)


TABLES: dict[str, Callable[[int], Parts]] = {
    "breast cancer": lambda seed: _brought("breast_cancer", seed),
    "wine": lambda seed: _brought("wine", seed),
    "churn-like": churn,
    "flipped labels": _flipped,
    "few rows": _few,
    "circles": lambda seed: _made("circles", 900 + seed, 500, noise=0.2, factor=0.5),
    "diabetes": lambda seed: _brought("diabetes", seed),
    "categories": categories,
    "wide": wide,
}
"""By name: a seed gives the rows, and which of them are tested on."""
