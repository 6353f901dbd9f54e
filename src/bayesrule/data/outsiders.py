"""A part of a data set as strangers: a class, or a range of a column, that training never sees."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from bayesrule.data.splits import Pair, Split
from bayesrule.naming import unknown


def without_class(split: Split, name: str | int) -> Split:
    """The split without the examples of a class, whose test examples become those from elsewhere, ``ood``.

    The classes after it are renumbered, so that a network for the split has one output less.

    >>> from bayesrule.data import load_set
    >>> known = without_class(load_set("digits"), "9")
    >>> len(known.classes), int(known.train[1].max()), len(known.ood) + len(known.test[1])
    (9, 8, 359)
    """
    if split.kind != "classes" or split.test[1].ndim != 1:
        what = split.kind if split.kind != "classes" else "several for each example"
        raise ValueError(f"split must have classes, one for each example, for one to be left out, but has {what}")
    if str(name) not in split.classes:
        raise unknown("class", str(name), split.classes)
    if len(split.classes) < 3:
        raise ValueError(f"split must have two classes when one is left out, but {split.name} has {len(split.classes)}")
    left_out = split.classes.index(str(name))
    kept = tuple(known for known in split.classes if known != str(name))

    def known(pair: Pair) -> Tensor:
        return pair[1] != left_out

    found = _parted(split, known(split.train), known(split.test), f"class {name!r}")
    return replace(
        found, classes=kept, training=_renumbered(found.train, left_out), test=_renumbered(found.test, left_out)
    )


def without_range(split: Split, column: str | int, above: float = 0.8) -> Split:
    """The split without the rows whose column is above a quantile of the training rows; those to test become ``ood``.

    ``column``: an input by its name or number. ``above``: the quantile, so that 0.8 leaves a fifth out.

    >>> from bayesrule.data import load_set
    >>> known = without_range(load_set("diabetes"), "bmi")
    >>> bool(known.train[0][:, 2].max() < known.ood[:, 2].min())
    True
    """
    x = split.train[0]
    if x.ndim != 2:
        raise ValueError(f"split must be a table, rows of numbers, but inputs of {split.name} are {list(x.shape[1:])}")
    if not 0 < above < 1:
        raise ValueError(
            f"above must be a quantile between 0 and 1, both excluded, got {above:g}: for a fifth give 0.8"
        )
    place = _place(split, column)
    edge = x[:, place].double().quantile(above)
    train, test = (pair[0][:, place].double() <= edge for pair in (split.train, split.test))
    return _parted(split, train, test, f"{column!r} above {float(edge):g}")


def _place(split: Split, column: str | int) -> int:
    """The number of a column."""
    count = split.train[0].shape[1]
    if isinstance(column, str):
        if column not in split.features:
            raise unknown("column", column, split.features)
        return split.features.index(column)
    if not 0 <= column < count:
        raise ValueError(f"column must be from 0 to {count - 1}, or a name: got {column}")
    return column


def _parted(split: Split, train: Tensor, test: Tensor, what: str) -> Split:
    """The examples where masks are true; test examples where they are not are from elsewhere."""
    if bool(test.all()) or not bool(test.any()) or not bool(train.any()):
        raise ValueError(f"{what} must be a part of the examples of {split.name}, neither none of the test nor all")
    if split.calibration is not None:
        raise ValueError("split must have no examples to calibrate on: leave a part out first, and then spare some")
    return replace(
        split,
        what=f"{split.what}, without {what}",
        training=_where(split.train, train),
        test=_where(split.test, test),
        ood=split.test[0][~test],
        weight=None if split.weight is None else split.weight[train],
    )


def _where(pair: Pair, mask: Tensor) -> Pair:
    return pair[0][mask], pair[1][mask]


def _renumbered(pair: Pair, left_out: int) -> Pair:
    x, y = pair
    return x, torch.where(y > left_out, y - 1, y)
