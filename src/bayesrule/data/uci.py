"""UCI regression sets in the folders of Hernández-Lobato & Adams (2015), with the standard splits.

A folder holds ``data.txt`` (numbers, one row a line), ``index_features.txt`` and ``index_target.txt`` (columns), and
``index_train_K.txt`` and ``index_test_K.txt`` (rows of split K), all counted from zero, and ``n_splits.txt``.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from bayesrule.data.splits import Pair

FOLDERS = {
    "boston": "bostonHousing",
    "concrete": "concrete",
    "energy": "energy",
    "kin8nm": "kin8nm",
    "naval": "naval-propulsion-plant",
    "power": "power-plant",
    "protein": "protein-tertiary-structure",
    "wine": "wine-quality-red",
    "yacht": "yacht",
}


def read_uci(folder: Path, split: int = 0) -> tuple[Pair, Pair]:
    """Training and test examples of one split, in double precision and the data's own units."""
    data = _table(folder / "data.txt")
    splits = int(_table(folder / "n_splits.txt")[0, 0])
    if not 0 <= split < splits:
        raise ValueError(f"split must be between 0 and {splits - 1} for {folder}, got {split}")
    columns = _index(folder / "index_features.txt", data.shape[1])
    target = _index(folder / "index_target.txt", data.shape[1])
    if len(target) != 1:
        raise ValueError(f"{folder / 'index_target.txt'} must name one column, got {target.tolist()}")
    fit, held = (_index(folder / f"index_{part}_{split}.txt", len(data)) for part in ("train", "test"))
    if both := np.intersect1d(fit, held).tolist():
        raise ValueError(f"split {split} of {folder} must not test on training rows, got {len(both)} such: {both[:5]}")
    x, y = torch.from_numpy(data[:, columns]), torch.from_numpy(data[:, target[0]])
    return (x[fit], y[fit]), (x[held], y[held])


def _table(path: Path) -> NDArray[Any]:
    if not path.is_file():
        raise FileNotFoundError(f"looked for {path} and did not find it: set data_dir or $BAYESRULE_DATA")
    try:
        return np.loadtxt(path, ndmin=2)
    except ValueError as error:
        raise ValueError(f"{path} must be a table of numbers: {error}") from error


def _index(path: Path, size: int) -> NDArray[np.int64]:
    values = _table(path).ravel()
    if ((values != np.floor(values)) | (values < 0) | (values >= size)).any():
        raise ValueError(
            f"{path} must hold whole numbers from 0 to {size - 1}, got {values.min():g} to {values.max():g}"
        )
    return values.astype(np.int64)
