"""From what users have (arrays, tensors, lists, pandas objects, datasets, loaders) to `Data`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from numbers import Integral, Real
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, TensorDataset

from bayesrule.data import inputs
from bayesrule.data.batches import Arrays, Batch, Data, check_finite, check_fits, refusal
from bayesrule.data.inputs import Inputs
from bayesrule.data.loaders import TARGETS, Loader, apart
from bayesrule.data.scaling import Affine, Scaling
from bayesrule.data.splits import Split
from bayesrule.naming import unknown


def as_data(train: Any) -> Data:
    """`Data` from ``(X, y)``, ``(X, y, weight)``, a torch `Dataset` or `DataLoader`, or `Data` (returned as they are).

    One dict that names its target, such as ``{"input_ids": ..., "labels": ...}``, is a pair, too. ``X`` is an array, or
    a tuple or dict of arrays; an array is anything numpy can read, a tensor, or a pandas object. Floating dtypes are
    kept (the model's decides later); integer and boolean targets become int64. ``weight``: how many times each example
    counts.

    >>> as_data(([[0.0], [1.0]], [False, True])).all()
    Batch(x=tensor([[0.],
            [1.]], dtype=torch.float64), y=tensor([0, 1]))
    """
    if isinstance(train, Data):
        return train
    if isinstance(train, TensorDataset):
        if len(train.tensors) != 2:
            raise ValueError(
                f"train must be a TensorDataset of two tensors, x and y, got {len(train.tensors)}: "
                "pass several inputs as ((x1, x2), y)"
            )
        return Arrays(_tensor("X", train.tensors[0]), _tensor("y", train.tensors[1]))
    if isinstance(train, DataLoader | Dataset):
        return Loader(train)
    if isinstance(train, Batch):
        return Arrays(_inputs(train.x), _tensor("y", train.y), weight=train.weight)
    if isinstance(train, tuple | list) and len(train) in (2, 3):
        weight = _tensor("weight", train[2]) if len(train) == 3 else None
        return Arrays(_inputs(train[0]), _tensor("y", train[1]), weight=weight)
    if isinstance(train, Mapping):
        x, y = apart(_inputs(train))
        if y is None:
            raise ValueError(
                f"train must name its target where it is one dict, {' or '.join(map(repr, TARGETS))}, got only "
                f"{list(train)}: add it, or pass (X, y)"
            )
        return Arrays(x, y)
    got = type(train).__name__
    if isinstance(train, tuple | list):
        got += f" of {len(train)}"
    raise TypeError(f"train must be a pair (X, y), or (X, y, weight), a Dataset, a DataLoader or Data, got {got}")


def split_fingerprint(split: Split) -> str:
    """Of all training and test examples: what was learnt from others by the same name is not taken for it."""
    return as_data(split.train).fingerprint() + as_data(split.test).fingerprint()


def as_inputs(x: Any) -> Inputs:
    """Inputs alone, for prediction, under the same rules as `as_data`.

    >>> as_inputs({"age": [31, 64]})
    {'age': tensor([31, 64])}
    """
    x = _inputs(x)
    if inputs.length(x) == 0:
        raise ValueError("X must hold at least one example, got none")
    for name, part in inputs.named(x):
        check_finite(name, part)
    return x


def standardize(train: Any, targets: str = "auto", codes: int = 0) -> Arrays:
    """Data with inputs, and targets if they are real numbers, of mean 0 and standard deviation 1.

    Inputs are scaled per feature, pictures [B, C, H, W] per channel; a constant feature is only centred. Integer
    inputs may be indices and stay. Integer targets are labels or counts and are never scaled, and neither are
    floating targets that are only 0 and 1; ``targets="keep"`` leaves all targets as they are. The last ``codes``
    inputs, numbers of categories as `br.models.tabular` takes them, stay too.

    >>> data = standardize(([[0.0, 7.0], [2.0, 7.0]], [10.0, 30.0]))
    >>> data.x.tolist(), data.y.tolist(), data.scaling.targets.loc.item()
    ([[-1.0, 0.0], [1.0, 0.0]], [-1.0, 1.0], 20.0)
    """
    if targets not in ("auto", "keep"):
        raise unknown("targets", targets, ("auto", "keep"))
    data = as_data(train)
    if data.scaling.inputs or data.scaling.targets:
        raise ValueError("train must be in its own units, but it is standardized already: pass the raw data")
    x, y = data.all()
    weight = data.weight
    if not isinstance(x, Tensor):
        raise TypeError(f"X must be one array to be standardized, got a {type(x).__name__}: scale its parts before")
    labels = not y.is_floating_point() or bool(((y == 0) | (y == 1)).all())
    scale_x = scale_y = None
    if x.is_floating_point():
        scale_x = _z_score(x, weight)
        if codes:
            coded = torch.arange(x.shape[-1]) >= x.shape[-1] - codes
            scale_x = Affine(scale_x.loc.masked_fill(coded, 0.0), scale_x.scale.masked_fill(coded, 1.0))
    if targets == "auto" and not labels:
        scale_y = _z_score(y, weight)
    scaling = Scaling(scale_x, scale_y)
    return Arrays(*scaling.forward(x, y), scaling, weight)


def _z_score(t: Tensor, weight: Tensor | None) -> Affine:
    t = t.double()
    if t.ndim == 4:  # pictures: a number for each channel, [C, 1, 1]
        over: tuple[int, ...] = (0, 2, 3)
        origin = t[:1, :, :1, :1]
    else:
        over = (0,)
        origin = t[:1]
    # From the first value on: an offset, however large, takes nothing off the deviation, and a constant has none.
    if weight is None:
        std, mean = torch.std_mean(t - origin, dim=over, correction=0, keepdim=True)
    else:
        share = (weight / weight.sum()).to(t).reshape(-1, *[1] * (t.ndim - 1)) * len(t)
        mean = (share * (t - origin)).mean(over, keepdim=True)
        std = (share * (t - origin - mean).square()).mean(over, keepdim=True).sqrt()
    std, mean = std[0], (mean + origin)[0]
    # Values that differ in their last bits only are a constant that was computed in several ways.
    return Affine(mean, std.masked_fill(std <= torch.finfo(std.dtype).eps * mean.abs(), 1.0))


def _inputs(x: Any) -> Inputs:
    if isinstance(x, Mapping):
        return {str(key): _tensor(f"X[{key!r}]", part) for key, part in x.items()}
    if isinstance(x, tuple):
        return tuple(_tensor(f"X[{i}]", part) for i, part in enumerate(x))
    return _tensor("X", x)


def _tensor(name: str, value: Any) -> Tensor:
    if isinstance(value, Tensor):
        if value.layout is not torch.strided or value.is_meta or value.is_nested:
            raise refusal(name, value)
        if value.dtype in _UNSIGNED:
            if value.dtype == torch.uint64:
                check_fits(name, value)
            value = value.long()  # torch can do next to nothing with these types
        return value.detach()
    if hasattr(value, "tocoo"):  # scipy's, which numpy takes for one object
        raise TypeError(f"{name} must be a dense array, got a sparse {type(value).__name__}: pass {name}.toarray()")
    check_unmasked(name, value)
    try:
        if hasattr(value, "to_numpy"):  # pandas and polars
            value = value.to_numpy()
        array = np.asarray(value)
    except ValueError as error:
        raise ValueError(f"{name} must be an array of numbers with rows of one length: {error}") from error
    if array.dtype.kind not in "fiub":
        array = _numbers(name, array)
    dtype = array.dtype.newbyteorder("=")
    if dtype == np.uint64:
        check_fits(name, torch.from_numpy(np.require(array, dtype, ["C_CONTIGUOUS", "WRITEABLE"])))
    if dtype.name not in _TORCH:
        dtype = np.dtype(np.float64 if dtype.kind == "f" else np.int64)
    return torch.from_numpy(np.require(array, dtype, ["C_CONTIGUOUS", "WRITEABLE"]))


def check_unmasked(name: str, value: Any) -> None:
    """Refuse an array, or a list of rows, of which something is masked: numpy would read what is below the mask.

    >>> check_unmasked("X", np.ma.masked_array([1.0, 2.0], [False, True]))
    Traceback (most recent call last):
    ValueError: X must have all its values: 1 of 2 are masked, the first in row 1. Drop those rows or fill them in, ...
    """
    if isinstance(value, list) and any(isinstance(row, np.ma.MaskedArray) for row in value):
        value = np.ma.array(value)
    if not isinstance(value, np.ma.MaskedArray):
        return
    array = value
    masked = np.argwhere(np.ma.getmaskarray(array))
    if len(masked):
        row, *rest = masked[0].tolist()
        column = f", column {rest[0] if len(rest) == 1 else tuple(rest)}" if rest else ""
        raise ValueError(
            f"{name} must have all its values: {len(masked)} of {array.size} are masked, the first in row {row}{column}"
            f". Drop those rows or fill them in, {name}.filled(...)"
        )


_UNSIGNED = {torch.uint16, torch.uint32, torch.uint64}
_TORCH = {"bool", "float16", "float32", "float64", "int8", "int16", "int32", "int64", "uint8"}


def _numbers(name: str, array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """An object array of numbers as numbers; an error that names the first value that is not one."""
    good: Callable[[Any], bool] = _reads_as_number if array.dtype.kind in "UST" else _is_number
    first = next((index for index in np.ndindex(array.shape) if not good(array[index])), None)
    if first is None and array.dtype == object:
        whole = all(isinstance(v, Integral | np.bool_) for v in array.flat)
        try:
            return array.astype(np.int64 if whole else np.float64)
        except OverflowError as error:
            raise ValueError(f"{name} must hold whole numbers that fit into int64: {error}") from error
    first = first or (0,) * array.ndim
    value, where, column = array, "", ""
    if first and array.size:
        value, where = array.item(first), f", row {first[0]}"
    if len(first) == 2:
        column = f" column {first[1]}"
    elif len(first) > 2:
        column = f" column {first[1:]}"
    encode = "one-hot columns, say"
    if name == "y":
        encode = "np.unique(y, return_inverse=True)[1] numbers classes"
    raise TypeError(
        f"{name}{column} must hold numbers, got {value!r} (dtype {array.dtype}{where}): encode it ({encode}), "
        "or let `bayesrule fit file.csv --target NAME` do it"
    )


def _is_number(value: Any) -> bool:
    return isinstance(value, Real | np.bool_)


def _reads_as_number(value: Any) -> bool:
    try:
        float(value)
    except (TypeError, ValueError):
        return False
    return True
